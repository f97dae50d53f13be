"""What the kit tries of every op: extents, optional operands alone and together; and of attention all its parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from jackfield import ops
from jackfield.conformance import examples
from jackfield.dtypes import f32
from jackfield.op import OPS
from jackfield.reference import ReferenceBackend
from jackfield_conformance import run
from jackfield_conformance.derived import derived
from jackfield_conformance.verdicts import verdict

ASKED = [name for name in ops.__all__ if not OPS[name].is_view and OPS[name].priority != "P2"]
EXTENTS = {0, 1, 255, 256, 257}
NEVER = {"arange": {0}}  # at least one number, or it is refused
ALONE = {("attention", "kv_rows")}  # needs a mask or lengths, or it is refused


@cache
def declared(name):
    """The dense examples of an op's declared cases."""
    return [example for example in examples(OPS[name]) if example.layout == "dense"]


@pytest.mark.parametrize("name", ASKED)
def test_extents(name):
    """Of operands; of the result where there are none."""
    found = {
        extent
        for example in (*declared(name), *(made.example for made in derived(OPS[name])))
        for spec in (*example.specs, None if OPS[name].operands else example.result)
        if spec is not None
        for extent in spec.shape
    }
    assert not EXTENTS - NEVER.get(name, set()) - found
    assert any(extent % 2 and 1 < extent < 255 for extent in found)


@pytest.mark.parametrize(
    ("name", "operand"),
    [
        ("rope", "x"),
        ("rwkv_wkv6", "k"),
        ("rwkv_wkv7", "k"),
        ("gated_linear_attention", "k"),
        ("gated_delta_net", "k"),
        ("ssm_scan", "state"),
        ("ssm_conv", "weight"),
    ],
)
def test_the_size_of_a_head_or_a_state_beyond_256(name, operand):
    """Its square is another operand's extent, or an attribute goes with it: a declared case must have it."""
    axis = -2 if name == "ssm_conv" else -1
    assert any(e.views[operand].spec.shape[axis] == 257 for e in declared(name))


@pytest.mark.parametrize("name", [name for name in ASKED if OPS[name].optional])
def test_each_optional_operand_alone_and_all_together(name):
    optional = OPS[name].optional
    given = {optional & set(example.views) for example in declared(name)}
    alone = {frozenset([operand]) for operand in optional if (name, operand) not in ALONE}
    assert not {frozenset(), optional, *alone} - given


def opened(example):
    """The most columns that a row of its mask opens, and how many there are."""
    mask = np.asarray(example.arrays()[OPS["attention"].operands.index("mask")], np.float32)
    return int((mask != -np.inf).sum(-1).max()), mask.shape[-1]


@pytest.mark.parametrize(
    ("given", "attributes"),
    [
        (("mask", "kv_rows"), ()),
        (("mask", "kv_rows"), ("window",)),
        (("mask", "kv_rows"), ("max_bias",)),
        (("mask", "sinks", "kv_rows"), ()),
        (("sinks", "kv_rows", "kv_len"), ("window",)),
        (("mask", "kv_rows", "kv_len"), ("causal", "window")),
        (("kv_rows", "kv_len"), ("window",)),
        (("kv_rows", "kv_len"), ("causal",)),
        (("mask", "kv_len"), ("max_bias",)),
        (("mask", "sinks", "kv_len"), ("causal", "window")),
        (("mask", "sinks", "kv_rows", "kv_len"), ("causal", "window", "max_bias", "logit_softcap")),
        (("mask",), ("max_bias", "logit_softcap")),
        (("mask", "sinks"), ("kv_limit",)),
        (("mask", "kv_len"), ("kv_limit",)),
        ((), ("window",)),
        ((), ("causal", "window")),
    ],
)
def test_parts_of_attention_together(given, attributes):
    op = OPS["attention"]
    assert any(
        op.optional & set(example.views) == set(given)
        and all(example.attrs[name] != op.defaults[name] for name in attributes)
        for example in declared("attention")
    )


def test_a_promise_of_attention_is_used_to_its_end_and_kept():
    promised = [e for e in declared("attention") if e.attrs["kv_limit"]]
    rows = [(e.attrs["kv_limit"], *opened(e)) for e in promised]
    assert all(most <= limit for limit, most, _ in rows)
    assert any(most == limit < columns for limit, most, columns in rows)


def without(example, part):
    """What a device sees that forgets one operand or attribute of attention."""
    op = example.op
    if part in op.attrs:
        return replace(example, attrs=op.complete(dict(example.attrs) | {part: op.defaults[part]}))
    given = dict(zip(op.operands, example.arrays(), strict=True))
    columns = given["k"].shape[-2] if given["kv_rows"] is None else given["kv_rows"].shape[-1]
    nothing = {"mask": 0, "sinks": -np.inf, "kv_len": columns}[part]
    return replace(example, given={part: np.full_like(given[part], nothing)})


def is_noticed(example, seen):
    """A device that computes something else than it was asked is wrong."""
    backend = ReferenceBackend()
    return bool(verdict(example, run(seen, backend, backend.devices()[0])).mistakes)


PARTS = ("mask", "sinks", "kv_len", "causal", "window", "max_bias", "logit_softcap")
PAIRS = [(part, beside) for beside in ("kv_rows", "kv_len", "sinks") for part in PARTS if part != beside]
PAIRS += [(part, "kv_limit") for part in ("mask", "sinks", "kv_len")]


@pytest.mark.parametrize(("part", "beside"), PAIRS)
def test_what_attention_forgets_beside_another_part_is_noticed(part, beside):
    op = OPS["attention"]

    def has(example, name):
        return name in example.views or example.attrs.get(name, 0) != op.defaults.get(name, 0)

    both = [e for e in declared("attention") if has(e, part) and has(e, beside) and e.dtype is f32]
    assert any(is_noticed(example, without(example, part)) for example in both)


def without_the_last_entry(example):
    """What a device sees that gathers one column less than kv_limit allows."""
    mask = example.arrays()[example.op.operands.index("mask")].copy()
    for row in mask.reshape(-1, mask.shape[-1]):
        row[np.flatnonzero(row != -np.inf)[example.attrs["kv_limit"] - 1 :]] = -np.inf
    return replace(example, given={"mask": mask})


def test_an_entry_that_a_promise_allows_and_a_device_drops_is_noticed():
    promised = [e for e in declared("attention") if e.attrs["kv_limit"]]
    assert any(is_noticed(example, without_the_last_entry(example)) for example in promised)
