"""What tests of the core share: no other machine is spoken to, and, where asked for, no plugin is installed.

While they run, whoever opens a socket fails.
"""

from __future__ import annotations

import sys

import pytest

from jackfield import registry

WATCHED = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


class _Watch:
    is_on = False
    seen: list[str] = []


def _audit(event: str, args: tuple) -> None:
    if _Watch.is_on and event in WATCHED:
        _Watch.seen.append(f"{event} {args[1:]}")
        raise ConnectionRefusedError(f"{event}: the core opens no socket")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def no_network():
    """Gives the list of what was tried."""
    _Watch.is_on, _Watch.seen = True, []
    yield _Watch.seen
    _Watch.is_on = False
    assert _Watch.seen == []


@pytest.fixture
def only_core(monkeypatch):
    """No installed plugin, no variable of the user."""
    for name in ("JACKFIELD_DEVICE", "JACKFIELD_POLICY", "JACKFIELD_SIM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(registry, "scan", lambda wishes, *, anew=False: ([], True))
    registry.refresh()
    yield
    registry.refresh()
