"""Random graphs with views and updates, each with what it means in plain numpy. The meaning knows nothing of plans."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.graph import Tensor

SIZES = ((2, 6), (3, 4), (12,), (4, 3), (2, 3, 2))


@dataclass
class Built:
    """A graph, the data of its inputs, and the value of every tensor."""

    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    values: list[tuple[Tensor, np.ndarray]] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensors(self) -> list[Tensor]:
        return [self.values[i][0] for i in self.outputs]

    def expected(self) -> list[np.ndarray]:
        return [self.values[i][1] for i in self.outputs]


def numbers(draw, shape) -> np.ndarray:
    seed = draw(st.integers(0, 2**31))
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@st.composite
def graphs(draw, updates: bool = True, most: int = 14) -> Built:
    """Graphs of whole numbers (so that every order of addition gives the same bits) in f32."""
    built = Built()
    for i in range(draw(st.integers(1, 3))):
        shape = draw(st.sampled_from(SIZES))
        built.inputs[f"x{i}"] = numbers(draw, shape)
        built.values.append((jf.input(f"x{i}", shape), built.inputs[f"x{i}"]))
    data = numbers(draw, draw(st.sampled_from(SIZES)))
    built.values.append((jf.constant(data, name="c"), data))
    for _ in range(draw(st.integers(1, most))):
        built.values.append(draw(steps(built, updates)))
    nodes = range(len(built.values))
    count = draw(st.integers(1, 3))
    built.outputs = draw(st.lists(st.sampled_from(nodes), min_size=count, max_size=count))
    return built


@st.composite
def steps(draw, built: Built, updates: bool):
    kinds = [
        "add",
        "multiply",
        "view",
        "view",
        "contiguous",
        "concatenate",
        "fill",
        "triangle",
        *(["write", "accumulate", "put_rows"] if updates else []),
    ]
    kind = draw(st.sampled_from(kinds))
    t, v = draw(st.sampled_from(built.values))
    if kind == "view":
        return draw(views(t, v))
    if kind == "contiguous":
        return ops.contiguous(t), v.copy()
    if kind in ("add", "multiply", "concatenate"):
        same = [(a, b) for a, b in built.values if a.shape == t.shape]
        u, w = draw(st.sampled_from(same))
        if kind == "concatenate" and t.rank:
            axis = draw(st.integers(0, t.rank - 1))
            return ops.concatenate(t, u, axis=axis), np.concatenate([v, w], axis)
        if kind == "add":
            return ops.add(t, u), v + w
        return ops.multiply(t, u), np.clip(v * w, -1e6, 1e6) if abs(v * w).max(initial=0) > 1e6 else v * w
    if kind == "fill":
        value = draw(st.integers(-4, 4))
        return ops.full(shape=t.shape, value=value), np.full(t.shape, value, np.float32)
    if kind == "triangle" and t.rank == 2:
        past = draw(st.integers(-1, 2))
        return ops.causal_mask(t, past=past, fill=7), np.where(np.tri(*t.shape, past) > 0, v, np.float32(7))
    if kind in ("write", "accumulate") and not t.spec.overlaps_itself and t.rank:
        start = tuple(draw(st.integers(0, n)) for n in t.shape)
        size = tuple(draw(st.integers(0, n - s)) for n, s in zip(t.shape, start, strict=True))
        new = numbers(draw, size)
        at = tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))
        result = v.copy()
        result[at] = new if kind == "write" else result[at] + new
        return getattr(ops, kind)(t, jf.constant(new), start=start), result
    if kind == "put_rows" and not t.spec.overlaps_itself and t.rank == 2 and t.shape[0]:
        count = draw(st.integers(0, 3))
        rows = np.array(draw(st.lists(st.integers(-1, t.shape[0] - 1), min_size=count, max_size=count)), np.int32)
        new = numbers(draw, (count, t.shape[1]))
        result = v.copy()
        for row, values in zip(rows, new, strict=True):
            if row >= 0:
                result[row] = values
        return ops.put_rows(t, jf.constant(new), jf.constant(rows)), result
    return ops.contiguous(t), v.copy()


@st.composite
def views(draw, t: Tensor, v: np.ndarray):
    kind = draw(st.sampled_from(["transpose", "slice", "reshape", "broadcast", "window"]))
    if kind == "window" and v.size:
        shape, strides = ((draw(st.integers(1, 3)), draw(st.integers(1, 4))) for _ in range(2))
        most = v.size - 1 - sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if most >= 0:
            offset = draw(st.integers(0, most))
            line = np.ascontiguousarray(v).reshape(-1)[offset:]
            seen = np.lib.stride_tricks.as_strided(line, shape, [4 * s for s in strides])
            return ops.strided_view(t, shape=shape, strides=strides, offset=offset), seen
    if kind == "transpose" and t.rank:
        axes = draw(st.permutations(range(t.rank)))
        return ops.transpose(t, axes=tuple(axes)), v.transpose(axes)
    if kind == "slice" and t.rank:
        cut = []
        for n in t.shape:
            low = draw(st.integers(0, n))
            cut.append(slice(low, draw(st.integers(low, n)), draw(st.integers(1, 2))))
        return t[tuple(cut)], v[tuple(cut)]
    if kind == "reshape":
        shape = draw(st.sampled_from([s for s in (*SIZES, (v.size,), (1, v.size)) if np.prod(s) == v.size]))
        return ops.reshape(t, shape=shape), v.reshape(shape)
    if kind == "broadcast" and t.rank < 3:
        shape = (2, *t.shape)
        return ops.broadcast_to(t, shape=shape), np.broadcast_to(v, shape)
    return ops.reshape(t, shape=t.shape), v
