"""Every kernel at every level on its op's declared cases, on devices of one worker and of three.

tests/conformance tries all dtypes and layouts at the best level; here each level has its turn with fewer of them. Most
cases are too small for a second worker: steps that are shared are in test_shared_work.
"""

from __future__ import annotations

from functools import cache

import pytest
from one_step import BACKEND, LEVELS, device

from jackfield.conformance import examples
from jackfield.op import OPS
from jackfield_conformance import Refused, mistakes

LAYOUTS = ("dense", "sliced")
KERNELS = sorted(name for name in BACKEND.kernels() if name not in {"attention", "linear", "linear_experts"})
SHOWN = 6


@cache
def usual(name):
    """Examples in the dtypes a case has where it names none."""
    first = {n: dtypes[0] for n, dtypes in OPS[name].declared.accepts.items()}
    return [
        example
        for example in examples(OPS[name])
        if example.layout in LAYOUTS and all(v.spec.dtype is first[n] for n, v in example.views.items())
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", KERNELS)
def test_declared_cases(name, level):
    wrong, tried = [], 0
    for threads in (1, 3):
        for example in usual(name):
            try:
                wrong += mistakes(example, BACKEND, device(level, threads))
                tried += 1
            except Refused:
                continue
    assert not wrong, f"{len(wrong)} mistakes\n" + "\n".join(wrong[:SHOWN])
    assert tried
