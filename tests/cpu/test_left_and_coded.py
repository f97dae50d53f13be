"""Triangular systems in all forms and sums in block dtypes, at every level, against float64 and the encoders."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_step import BACKEND, LEVELS, device

from jackfield.conformance.cases import Example, examples, made
from jackfield.draws import Draw
from jackfield.dtypes import DTYPES, f32
from jackfield.dtypes.arrays import convert, decoded
from jackfield.errors import KernelError
from jackfield.op import OPS
from jackfield.spec import Spec, View
from jackfield_conformance import mistakes
from jackfield_conformance.direct import refused, run, step_of

FORMS = [(lower, unit, left) for lower in (True, False) for unit in (True, False) for left in (True, False)]


def solved(level, a, b, threads=1, **attrs):
    example = made(OPS["solve_triangular"], {"a": a, "b": b}, **attrs)
    return run(example, BACKEND, device(level, threads)).result


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("lower", "unit", "left"), FORMS)
@given(n=st.sampled_from([0, 1, 2, 7, 33]), m=st.sampled_from([1, 3, 64, 65, 130]), seed=st.integers(0, 99))
def test_x_solves_the_system_and_the_other_triangle_is_not_read(level, lower, unit, left, n, m, seed):
    rng = np.random.default_rng(seed)
    full = rng.uniform(-1, 1, (2, n, n)) / max(n, 1) + 3 * np.eye(n)
    used = np.tril(full) if lower else np.triu(full)
    a = np.where(np.tril(np.ones((n, n))) if lower else np.triu(np.ones((n, n))), full, np.nan).astype(np.float32)
    if unit:
        a[:, range(n), range(n)] = np.nan
        used[:, range(n), range(n)] = 1
    b = rng.standard_normal((2, n, m) if left else (2, m, n)).astype(np.float32)
    x = solved(level, a, b, threads=3, lower=lower, unit_diagonal=unit, left=left).astype(np.float64)
    assert x.shape == b.shape
    back = used @ x if left else x @ used
    assert np.abs(back - b).max(initial=0) <= 1e-5 * max(1, np.abs(b).max(initial=0))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["add", "solve_triangular"])
def test_every_declared_case_in_every_dtype_and_layout(level, name):
    wrong, tried = [], 0
    for example in examples(OPS[name]):
        if refused(step_of(example), BACKEND, device(level, 3)) is None:
            wrong += mistakes(example, BACKEND, device(level, 3))
            tried += 1
    assert not wrong, "\n".join(wrong[:6])
    assert tried > 50


def added(level, dtype, a, b):
    specs = {"a": Spec(dtype, b.shape), "b": Spec(f32, b.shape)}
    draws = {name: Draw(spec.shape, dtype=spec.dtype) for name, spec in specs.items()}
    views = {name: View(spec, 0) for name, spec in specs.items()}
    example = Example(
        OPS["add"], -1, dtype, "dense", draws, views, specs, OPS["add"].complete({}), given={"a": a, "b": b}
    )
    return run(example, BACKEND, device(level, 3))


CODED = [DTYPES[name] for name in sorted(BACKEND.kernels()["add"].operands["a"]) if DTYPES[name].is_block]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", CODED, ids=str)
def test_blocks_are_decoded_added_to_and_coded_as_the_core_does(level, dtype):
    """The core's bytes for the sum in f32, in rows that are no whole pieces; a block that can't be coded is told."""
    rng = np.random.default_rng(3)
    n = 3 * max(dtype.block, 32)
    a, _ = convert(rng.standard_normal((5, n)), dtype)
    b = rng.standard_normal((5, n)).astype(np.float32)
    made_of = added(level, dtype, a, b)
    want, _ = convert(decoded(a).astype(np.float32) + b, dtype)
    assert made_of.result.tobytes() == want.tobytes()
    assert made_of.fault is None
    b[2, 1] = np.inf
    spoilt = added(level, dtype, a, b)
    assert isinstance(spoilt.fault, KernelError)
    assert "b holds inf" in str(spoilt.fault)
    first = 2 * n // dtype.block
    blocks = spoilt.result.reshape(-1)
    assert not blocks[first : first + 1].view(np.uint8).any()
    assert np.delete(blocks, first).tobytes() == np.delete(want.reshape(-1), first).tobytes()
