"""The devices that the suite runs on: the simulated and the reference device always, others where they are there."""

from __future__ import annotations

from functools import cache

import pytest

from jackfield.errors import Error
from jackfield.reference import ReferenceBackend
from jackfield.registry import Registry
from jackfield.simulated import Shape, SimBackend

KINDS = ("reference", "sim", "cpu")
REGISTRY = Registry()


@cache
def opened(kind):
    """(backend, its first device), or the reason why there is none."""
    if kind == "reference":
        backend = ReferenceBackend()
    elif kind == "sim":
        backend = SimBackend(Shape())
    else:
        try:
            backend = REGISTRY.open_backend(kind)
        except Error as e:
            return str(e).splitlines()[0]
    return backend, backend.devices()[0]


@pytest.fixture(params=KINDS)
def on(request, absent):
    """(backend, device) of each kind; skips where it is absent, fails where JACKFIELD_REQUIRE names it."""
    found = opened(request.param)
    if isinstance(found, str):
        absent(request.param, found)
    return found
