"""Block types that the CPU makes by code shared by all levels: the very bytes of the core's encoders."""

from __future__ import annotations

import numpy as np
import pytest
from bound_step import BoundStep
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_step import BACKEND, LEVELS, content

from jackfield import ops
from jackfield.backend import DTYPES, Spec, Step
from jackfield.errors import AttributeValueError, KernelError

MADE = ("q1_0", "q2_0", "tq1_0", "tq2_0", "iq4_nl", "mxfp4", "nvfp4", "q8_1", "q8_K")
FITTED = ("q2_K", "q3_K", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs")
each_level = pytest.mark.parametrize("level", LEVELS)
each = pytest.mark.parametrize("name", MADE)
LONG = 256  # whole blocks of every type


def cast(x, name, level, threads=1):
    """The bytes of the result and the fault or None."""
    step = BoundStep(ops.cast, {"x": x}, level, threads, attrs={"dtype": name})
    fault = step.run()
    return content(step.device, step.out, step.out_nbytes).reshape(-1, DTYPES[name].block_nbytes), fault


def same_bytes(x, name, level, threads=1):
    """Blocks that the core refuses must be zeros, and the first of them is told."""
    dtype = DTYPES[name]
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, dtype.block)
    want, bad = np.zeros((len(blocks), dtype.block_nbytes), np.uint8), []
    for number, block in enumerate(blocks):
        try:
            want[number] = dtype.encode(block)
        except AttributeValueError:
            bad.append(number)
    got, fault = cast(x, name, level, threads)
    np.testing.assert_array_equal(got, want)
    assert (fault is None) == (not bad)
    if bad:
        assert isinstance(fault, KernelError)
        if threads == 1:
            assert f"block {bad[0]}:" in str(fault)


def special():
    """Rows that trip over zeros and their signs, ties, equal extremes, outliers, powers of two, ends of the ranges."""
    i = np.arange(LONG)
    rows = [i * 0.0, i * -0.0, np.where(i % 2, 0.0, -0.0)]
    rows += [np.full(LONG, v) for v in (1.0, -1.0, 0.3, -7.0, 6e4, -6e4, 1e-8, 1e-20, -1e-31, 1e-37, -1e-40, 1e-45)]
    rows += [np.where(i == k, v, rest) for k in (0, 100, 255) for v in (5.0, -5.0) for rest in (0.0, -0.0, 0.25)]
    rows += [i - 128.0, (i - 128) / 2, i % 16 - 8.0, i % 32 / 2 - 8, i % 63 * 0.5, np.where(i % 2, 4.0, -4.0)]
    rows += [np.where(i % 3, v, -v / 2) for v in (6.0, 12.0, 448.0 * 6, 449.0 * 6, 3e3, 7e4, 8.4e6, 1e30, 3e38)]
    rows += [np.resize([127, 0.5, -0.5, 1.5, -1.5, 2.5, 126.5, -126.5], LONG), np.resize([1, -0.5, 0.5, 0.25], LONG)]
    powers = np.float32(2) ** np.arange(-32, 33, dtype=np.float32)
    for power in np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(1e38))]):
        rows.append(np.where(i % 5, power / 3, power))
    return np.array(rows, np.float32)


@each_level
@each
@pytest.mark.parametrize("threads", [1, 3])
def test_special_blocks(level, name, threads):
    same_bytes(special(), name, level, threads)


@each_level
@each
def test_random_blocks(level, name):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, LONG))
    kinds = [x, x * 10.0 ** rng.uniform(-36, 6, (60, 1)), rng.choice([-1.0, 1.0, -0.0, 0.5], x.shape)]
    kinds += [rng.integers(-127, 128, x.shape) / 2, rng.standard_t(2, x.shape), np.abs(x)]
    same_bytes(np.concatenate(kinds).astype(np.float32), name, level)


@each
@given(x=hnp.arrays(np.float32, (2, LONG), elements=st.floats(-7e4, 7e4, width=32) | st.integers(-20, 20).map(float)))
@settings(max_examples=40)
def test_any_blocks(name, x):
    same_bytes(x, name, LEVELS[0])


@each_level
@each
def test_what_is_not_finite_spoils_its_block_alone(level, name):
    x = np.random.default_rng(5).standard_normal((8, 2 * LONG)).astype(np.float32)
    x[1, 3], x[4, LONG], x[7, -1] = np.nan, np.inf, -np.inf
    same_bytes(x, name, level)


@pytest.mark.parametrize("name", FITTED)
def test_types_that_only_the_core_fits_are_refused_with_a_reason(name):
    x = Spec(DTYPES["f32"], (2, LONG))
    step = Step("cast", (x,), Spec(DTYPES[name], x.shape), ops.cast.complete({"dtype": name}))
    reason = BACKEND.why_not(step, BACKEND.targets()[0])
    assert "no encoder for the dtype of the result" in str(reason)
