"""Recurrences token by token, from slot to slot and back; masks bit by bit: on every device that has the ops."""

from __future__ import annotations

import numpy as np
import pytest
from mixers import MIXERS
from recipes import USUAL, examples_of, need_kernel

from jackfield import ops
from jackfield.backend import BadIndex
from jackfield.conformance import made
from jackfield.op import OPS
from jackfield_conformance import Refused, run
from jackfield_conformance.direct import NAN_GUARD

TOKENS = 6
RWKV = ("rwkv_wkv6", "rwkv_wkv7", "gated_linear_attention")


def result(on, name, arrays, **attrs):
    """The numbers of one use on a device; NaN lies round every operand, and nothing but the result is touched."""
    try:
        outcome = run(made(OPS[name], arrays, **attrs), *on, guard=NAN_GUARD)
    except Refused as reason:
        pytest.skip(str(reason))
    assert not outcome.damage
    assert outcome.fault is None
    return outcome.result


def usual(name, **extents):
    """Arrays by operand, and the attributes, of an op's recipe."""
    letters, recipe = MIXERS[name]
    (example, *_) = examples_of(name, recipe({letter: (USUAL | extents)[letter] for letter in letters}))
    return dict(zip(example.op.operands, example.arrays(), strict=True)), dict(example.attrs)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()) + 1e-6)


@pytest.mark.parametrize("name", RWKV)
def test_rows_token_by_token(name, on):
    """Each token sees the state of the one before, whatever the number of sequences."""
    need_kernel(name, on)
    arrays, attrs = usual(name, S=2, T=TOKENS)
    S, (H, D) = 2, arrays["k"].shape[1:]
    whole = result(on, name, arrays, **attrs)
    state, rows = arrays["state"], []
    for t in range(TOKENS):
        part = {
            n: a if n == "first" else np.ascontiguousarray(a.reshape(S, TOKENS, H, D)[:, t])
            for n, a in arrays.items()
            if n != "state"
        }
        one = result(on, name, part | {"state": state}, **attrs)
        rows.append(one[:S])
        state = np.ascontiguousarray(one[S:]).reshape(S, -1)
    close(np.stack(rows, 1).reshape(S * TOKENS, -1), whole[: S * TOKENS])
    close(state.reshape(-1), whole[S * TOKENS :].reshape(-1))


@pytest.mark.parametrize("snapshots", [1, 3, TOKENS, TOKENS + 2])
def test_states_of_a_scan_are_those_of_fewer_tokens(snapshots, on):
    """Item 168: what a rejected token changed is undone by an earlier state, also where there are fewer tokens."""
    need_kernel("ssm_scan", on)
    arrays, _ = usual("ssm_scan", S=2, T=TOKENS)
    x, state = arrays["x"], arrays["state"]
    got = result(on, "ssm_scan", arrays, snapshots=snapshots)
    kept = got[x.size :].reshape(snapshots, 2, *state.shape[1:])
    for j in range(snapshots):
        left = max(0, TOKENS - j)
        fewer = {n: a[:, :left].copy() if n in ("x", "dt", "b", "c") else a for n, a in arrays.items()}
        want = result(on, "ssm_scan", fewer)[x[:, :left].size :]
        close(kept[j].reshape(-1), want)


@pytest.mark.parametrize("snapshots", [1, 3, TOKENS, TOKENS + 2])
def test_states_of_a_delta_net_are_those_of_fewer_tokens(snapshots, on):
    """Item 168, as above."""
    need_kernel("gated_delta_net", on)
    arrays, _ = usual("gated_delta_net", T=TOKENS)
    S, _, H, D = arrays["v"].shape
    got = result(on, "gated_delta_net", arrays, snapshots=snapshots)
    kept = got[S * TOKENS :].reshape(snapshots, S, H, D, D)
    for j in range(snapshots):
        left = max(0, TOKENS - j)
        fewer = {n: a if n == "state" else a[:, :left].copy() for n, a in arrays.items()}
        want = result(on, "gated_delta_net", fewer)[S * left :]
        close(kept[j].reshape(-1), want.reshape(-1))


@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_a_slot_that_is_not_there_is_told(bad, on):
    """Item 168: the sequence gives zeros, and those beside it are right."""
    need_kernel("ssm_scan", on)
    arrays, attrs = usual("ssm_scan", S=3)
    whole = result(on, "ssm_scan", arrays, **attrs)
    wrong = arrays | {"ids": np.array([arrays["ids"][0], bad, arrays["ids"][2]], np.int32)}
    outcome = run(made(ops.ssm_scan, wrong, **attrs), *on, guard=NAN_GUARD)
    assert isinstance(outcome.fault, BadIndex)
    assert str(bad) in str(outcome.fault)
    assert not outcome.damage
    size = arrays["x"].size
    for got, want in zip(
        (outcome.result[:size].reshape(1, 3, -1), outcome.result[size:].reshape(attrs["snapshots"], 3, -1)),
        (whole[:size].reshape(1, 3, -1), whole[size:].reshape(attrs["snapshots"], 3, -1)),
        strict=True,
    ):
        assert not got[:, 1].any()
        close(got[:, ::2], want[:, ::2])


@pytest.mark.parametrize("bits", [np.uint16, np.uint32])
def test_masks_are_opened_bit_by_bit(bits, on):
    """Item 166: duplicates, negative numbers and those beyond the end, scores of NaN and -inf, -0 and NaN payloads."""
    need_kernel("top_k_mask", on)
    rng = np.random.default_rng(3)
    kind = {np.uint16: np.float16, np.uint32: np.float32}[bits]
    shut = np.array(-np.inf, kind).view(bits)
    for columns in (1, 31, 64, 257):
        mask = rng.integers(0, np.iinfo(bits).max, (2, columns), bits, endpoint=True)
        mask[:, ::3] = np.array([1 << 8 * mask.itemsize - 1], bits)  # -0
        picks = rng.integers(-3, columns + 4, (4, 40)).astype(np.int32)
        picks[:, :2] = [-(2**31), 2**31 - 1]
        score = rng.standard_normal((4, columns)).astype(np.float32)
        score[rng.random(score.shape) < 0.3] = -np.inf
        score[rng.random(score.shape) < 0.3] = np.nan
        got = result(on, "top_k_mask", {"mask": mask.view(kind), "picks": picks, "score": score})
        for row in range(4):
            want = np.full(columns, shut)
            for p in picks[row]:
                if 0 <= p < columns and score[row, p] > -np.inf:
                    want[p] = mask[row % 2, p]
            np.testing.assert_array_equal(np.ascontiguousarray(got[row]).view(bits), want)
