"""Block types that the CPU makes, most by code shared by all levels: the very bytes of the core's encoders."""

from __future__ import annotations

import numpy as np
import pytest
from bound_step import BoundStep
from encoded import LONG, bytes_of, same_bytes, same_random_bytes, same_special_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_step import BACKEND, LEVELS

from jackfield import ops
from jackfield.backend import DTYPES, Spec, Step

PART = 3  # see thorough.py

MADE = ("q8_0", "q1_0", "q2_0", "tq1_0", "tq2_0", "iq4_nl", "mxfp4", "nvfp4", "q8_1", "q8_K", "q2_K", "q3_K", "iq4_xs")
SEARCHED = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
each_level = pytest.mark.parametrize("level", LEVELS)
each_searched = pytest.mark.parametrize("name", SEARCHED)
each = pytest.mark.parametrize("name", MADE + SEARCHED)

# Few values among them, so that many rows of a codebook are equally near.
ELEMENTS = st.one_of(st.integers(-3, 3).map(float), st.floats(-3, 3, width=32), st.sampled_from([-0.0, 1e-30, 1e4]))


@each_level
@each
@pytest.mark.parametrize("threads", [1, 3])
def test_special_blocks(level, name, threads):
    same_special_bytes(DTYPES[name], level, threads)


@each_level
@each
def test_random_blocks(level, name):
    same_random_bytes(DTYPES[name], level)


@each
@given(x=hnp.arrays(np.float32, (2, LONG), elements=st.floats(-7e4, 7e4, width=32) | st.integers(-20, 20).map(float)))
@settings(max_examples=40)
def test_any_blocks(name, x):
    same_bytes(x, DTYPES[name], LEVELS[0])


@each_level
@each
def test_what_is_not_finite_spoils_its_block_alone(level, name):
    x = np.random.default_rng(5).standard_normal((8, 2 * LONG)).astype(np.float32)
    x[1, 3], x[4, LONG], x[7, -1] = np.nan, np.inf, -np.inf
    same_bytes(x, DTYPES[name], level)


def strided():
    """f32 (5, 2, 512): heads outermost, every third element, in reverse."""
    x = np.random.default_rng(6).standard_normal((2, 5, 3 * 2 * LONG)).astype(np.float32)
    return x.transpose(1, 0, 2)[::-1, :, ::3]


@each_level
@each_searched
@pytest.mark.parametrize("threads", [1, 3])
def test_searched_blocks_of_strided_elements(level, name, threads):
    same_bytes(strided(), DTYPES[name], level, threads)


@each_level
@each_searched
@pytest.mark.parametrize("threads", [1, 3])
def test_searched_blocks_are_written_into_a_region(level, name, threads):
    dtype = DTYPES[name]
    base = np.random.default_rng(8).integers(0, 50, (2, 6, 4, dtype.block_nbytes), dtype=np.uint8)
    names = {"target": base.transpose(1, 0, 2, 3), "x": strided()}
    start = {"start": (1, 0, LONG)}
    step = BoundStep(ops.write, names, level, threads, attrs=start, blocks={"target": dtype})
    assert step.run() is None
    want = base.copy()
    want.transpose(1, 0, 2, 3)[1:6, :, 1:3] = bytes_of(strided(), dtype)[0].reshape(5, 2, 2, -1)
    np.testing.assert_array_equal(step.target().reshape(base.shape), want)


@each_searched
@given(
    x=hnp.arrays(np.float32, (2, LONG), elements=ELEMENTS, fill=ELEMENTS),
    size=st.sampled_from([1e-38, 1e-9, 1e-3, 1.0, 1e5]),
)
@settings(max_examples=25)
def test_drawn_searched_blocks(name, x, size):
    same_bytes(x * np.float32(size), DTYPES[name], LEVELS[-1])


@each_level
def test_dtypes_without_a_way_are_refused_with_a_reason(level):
    x = Spec(DTYPES["f32"], (2, LONG))
    step = Step("cast", (x,), Spec(DTYPES["u8"], x.shape), ops.cast.complete({"dtype": "u8"}))
    reason = BACKEND.why_not(step, BACKEND.targets()[0])
    assert "not converted to the dtype of the result" in str(reason)
