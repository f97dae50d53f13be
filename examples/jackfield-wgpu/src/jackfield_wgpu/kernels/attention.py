"""Attention over a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

import jackfield.backend as jb

from ..dispatch import LANES, Dispatch, four, strides
from ..shading import Number, Shader
from .entry import F32, FLOATS, I32, Entry, attrs_of, place_of
from .norms import slopes

OPERANDS = ("kv_len", "kv_rows")  # that may hold a bad index
MOST_VALUES = 1024  # channels of a value: a lane keeps one of 64
TOLD = "bitcast<i32>(kv_len_bits(s * p.kv_len_stride))"
LISTED = "bitcast<i32>(kv_rows_bits(s * p.kv_rows_strides.z + j * p.kv_rows_strides.w))"
MASK = """if (row != UNSEEN) {
            entry = mask_at(at_strides(vec4(s % p.mask_shape.x, h % p.mask_shape.y, t, j), p.mask_strides));
            if (bitcast<u32>(entry) == 0xff800000u) {
                row = UNSEEN;
            }
            entry *= table[h];
        }"""
SINK = """if (n > 0u) {
        top = key_of(sinks_at(h * p.sinks_stride));
        sum = select(0.0, 1.0, top > NOTHING);
    }"""


def attention(placed: jb.PlacedStep) -> Iterator[Dispatch]:
    attrs = attrs_of(placed.step)
    q, k, v = (place_of(placed, i) for i in range(3))
    mask, sinks, kv_rows, kv_len = placed.operands[3:]
    (streams, heads, tokens, key_size), (_, shared, rows, _) = four(q.spec.shape), four(k.spec.shape)
    numbers: dict[str, Number] = {
        "q_strides": strides(q.spec),
        "k_strides": strides(k.spec),
        "v_strides": strides(v.spec),
        "heads": heads,
        "tokens": tokens,
        "shared_by": heads // shared,
        "columns": rows if kv_rows is None else kv_rows.spec.shape[-1],
        "cache_rows": rows,
        "key_size": key_size,
        "value_size": v.spec.shape[-1],
        "causal": int(attrs["causal"]),
        "window": min(attrs["window"], (1 << 31) - 1),
        "scale": float(attrs["scale"]),
        "softcap": float(attrs["logit_softcap"]),
    }
    reads = {"q": q, "k": k, "v": v}
    for name, place in (("mask", mask), ("sinks", sinks), ("kv_rows", kv_rows), ("kv_len", kv_len)):
        if place is not None:
            reads[name] = place
    numbers |= _further(mask, sinks, kv_rows, kv_len)
    lists = 1 if kv_rows is None else kv_rows.spec.shape[-1] + 1
    numbers |= {"lists": lists, "indices": streams * lists}
    faulty = bool(kv_len or kv_rows)
    words = (
        ("look", "look_for_fault(group, lane);" if faulty else ""),
        ("told", TOLD if kv_len else "i32(p.columns)"),
        ("listed", LISTED if kv_rows else "i32(j)"),
        ("sink", SINK if sinks else ""),
        ("mask", MASK if mask else ""),
        *_channels(-(-v.spec.shape[-1] // LANES)),
    )
    shader = Shader("attention", words, faulty=faulty, table=True)
    groups = placed.step.result.size // v.spec.shape[-1]
    yield Dispatch(shader, reads, placed.result, numbers, groups, slopes(heads, attrs["max_bias"]), OPERANDS)


def _further(
    mask: jb.Place | None, sinks: jb.Place | None, kv_rows: jb.Place | None, kv_len: jb.Place | None
) -> dict[str, Number]:
    found: dict[str, Number] = {}
    if mask is not None:
        found |= {"mask_shape": four(mask.spec.shape), "mask_strides": strides(mask.spec)}
    if sinks is not None:
        found["sinks_stride"] = strides(sinks.spec)[3]
    if kv_rows is not None:
        found["kv_rows_strides"] = strides(kv_rows.spec)
    if kv_len is not None:
        found["kv_len_stride"] = strides(kv_len.spec)[3]
    return found


def _channels(count: int) -> tuple[tuple[str, str], ...]:
    """The text for so many channels of a value in each lane."""
    at = [f"lane + {i * LANES}u" for i in range(count)]
    gather = [
        f"if ({d} < p.value_size) {{ y{i} += shares[i] * v_at(at + ({d}) * p.v_strides.w); }}" for i, d in enumerate(at)
    ]
    end = [
        f"if ({d} < p.value_size) {{ out_put(out_start + {d}, finished(y{i}, sum, top)); }}" for i, d in enumerate(at)
    ]
    return (
        ("begin", "\n".join(f"var y{i} = 0.0;" for i in range(count))),
        ("fade", "\n".join(f"y{i} *= kept;" for i in range(count))),
        ("gather", "\n".join(gather)),
        ("end", "\n".join(end)),
    )


def _small(step: jb.Step) -> jb.Reason | None:
    size = step.result.shape[-1]
    if size > MOST_VALUES:
        return jb.Reason(f"attention: {size} channels of a value, at most {MOST_VALUES}", "size")
    return None


ENTRIES = {
    "attention": Entry(
        jb.Kernel(
            {
                "q": F32,
                "k": FLOATS,
                "v": FLOATS,
                "mask": frozenset({"f32", "f16"}),
                "sinks": F32,
                "kv_rows": I32,
                "kv_len": I32,
            },
            F32,
            frozenset({"scale", "causal", "window", "max_bias", "logit_softcap", "kv_limit", "precision"}),
        ),
        attention,
        _small,
    )
}
