"""ssm_conv where the channels of a token lie together, as where rows are tokens: no copy turns them first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_step import LEVELS, Tensor, device, plain, run, spaced

from jackfield.backend import DTYPES, Spec

F32 = DTYPES["f32"]
TOKENS, CHANNELS = (1, 2, 5, 33), (1, 3, 15, 16, 17, 31, 64, 65, 130)


def with_gaps(array, behind, before=1):
    """The array as a view whose rows lie apart: between them lies NaN. array: [..., n]."""
    parent = np.full((*array.shape[:-1], before + array.shape[-1] + behind), np.nan, np.float32)
    window = parent[..., before : before + array.shape[-1]]
    window[...] = array
    return parent, window


def together(x, behind=0):
    """x [sequences, channels, inputs], whose channels lie together; `behind`: NaN after those of each token."""
    parent, window = with_gaps(np.swapaxes(x, 1, 2), behind, before=3 * bool(behind))
    strides = (window.strides[0], 4, window.strides[1])
    return Tensor(Spec(F32, x.shape, strides), parent.reshape(-1).view(np.uint8), 12 * bool(behind))


def drawn(tokens, channels, taps, sequences=2):
    rng = np.random.default_rng([tokens, channels, taps])
    x = rng.normal(size=(sequences, channels, taps - 1 + tokens)).astype(np.float32)
    return x, rng.normal(size=(channels, taps)).astype(np.float32)


def convolved(x, taps):
    """The same in float64: [sequences, tokens, channels]."""
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), taps.shape[1], axis=2)
    return np.einsum("sctj,cj->stc", windows, taps.astype(np.float64))


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 9])
def test_any_number_of_taps_and_channels(taps, level):
    for tokens in TOKENS:
        for channels in CHANNELS:
            x, weight = drawn(tokens, channels, taps)
            for behind in (0, 5):
                for threads in (1, 3):
                    on = device(level, threads)
                    got = run("ssm_conv", [together(x, behind), plain(weight)], (2, tokens, channels), on=on)
                    close(got, convolved(x, weight))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("taps", [2, 4, 7])
def test_taps_and_results_with_gaps(taps, level):
    x, weight = drawn(5, 70, taps)
    parent, window = with_gaps(weight, 2)
    rows = Tensor(Spec(F32, weight.shape, window.strides), parent.reshape(-1).view(np.uint8), 4)
    want, on = convolved(x, weight), device(level, 2)
    close(run("ssm_conv", [together(x), rows], want.shape, on=on), want)
    for strides in ((5 * 73 * 4, 73 * 4, 4), (5 * 70 * 12, 70 * 12, 12)):
        close(run("ssm_conv", [together(x), rows], want.shape, on=on, strides=strides), want)
    close(run("ssm_conv", [spaced(x), rows], want.shape, on=on), want)


@pytest.mark.parametrize("level", LEVELS)
@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 80), st.integers(0, 3), st.integers(0, 3))
def test_any_sizes(level, taps, tokens, channels, sequences, behind):
    x, weight = drawn(tokens, channels, taps, sequences)
    want = convolved(x, weight) if tokens else np.empty((sequences, 0, channels))
    close(run("ssm_conv", [together(x, behind), plain(weight)], want.shape, on=device(level, 2)), want)
