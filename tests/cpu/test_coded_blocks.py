"""Block types that the CPU makes, most by code shared by all levels: the very bytes of the core's encoders."""

from __future__ import annotations

import numpy as np
import pytest
from encoded import LONG, same_bytes, same_special_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from one_step import BACKEND, LEVELS

from jackfield import ops
from jackfield.backend import DTYPES, Spec, Step

MADE = ("q8_0", "q1_0", "q2_0", "tq1_0", "tq2_0", "iq4_nl", "mxfp4", "nvfp4", "q8_1", "q8_K", "q2_K", "q3_K", "iq4_xs")
SEARCHED = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
each_level = pytest.mark.parametrize("level", LEVELS)
each = pytest.mark.parametrize("name", MADE)


@each_level
@each
@pytest.mark.parametrize("threads", [1, 3])
def test_special_blocks(level, name, threads):
    same_special_bytes(DTYPES[name], level, threads)


@each_level
@each
def test_random_blocks(level, name):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((60, LONG))
    kinds = [x, x * 10.0 ** rng.uniform(-36, 6, (60, 1)), rng.choice([-1.0, 1.0, -0.0, 0.5], x.shape)]
    kinds += [rng.integers(-127, 128, x.shape) / 2, rng.standard_t(2, x.shape), np.abs(x)]
    same_bytes(np.concatenate(kinds).astype(np.float32), DTYPES[name], level)


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


@pytest.mark.parametrize("name", SEARCHED)
def test_types_that_only_the_core_makes_are_refused_with_a_reason(name):
    x = Spec(DTYPES["f32"], (2, LONG))
    step = Step("cast", (x,), Spec(DTYPES[name], x.shape), ops.cast.complete({"dtype": name}))
    reason = BACKEND.why_not(step, BACKEND.targets()[0])
    assert "no encoder for the dtype of the result" in str(reason)
