"""Is a device's result the oracle's? By the tolerance class of the op; an op may widen its class, a device may not.

E: equal bits. A: one unit in the last place. T: 2e-6 of the value and 1e-6. R: 1e-5 of the row's largest value and
1e-6, and NMSE 1e-9. M: 1e-5 (f16 2e-3, bf16 1e-2 operands) of the sum of magnitudes and 1e-7. Q, for a product with a
block dtype and for a sum that is coded in one: NMSE 5e-4. N: NMSE 1e-8 for f32, 1e-5 for f16 and bf16, 5e-4 for block
operands. f16 and bf16 results may be off by one unit in the last place besides. NMSE = sum((a - b)^2) / sum(b^2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jackfield.dtypes import DType, bf16, f16, f32
from jackfield.dtypes.arrays import as_bytes, decoded, dtype_of, widened
from jackfield.errors import BadIndex, Error, KernelError
from jackfield.op import Array, Fault, Op, collect

from .cases import Example

__all__ = ["compare", "expected", "faults_agree", "max_ulp", "oracle"]

_BITS = {f32: (24, -149), f16: (11, -24), bf16: (8, -133)}  # of the fraction, and the smallest exponent
TINY = float(np.finfo(np.float32).tiny)  # subnormals may be flushed


def expected(example: Example) -> tuple[Array, list[Fault]]:
    """What the oracle makes of an example, and the faults it finds."""
    (want, *_), faults = oracle(example)
    return want, faults


def oracle(example: Example) -> tuple[list[Array], list[Fault]]:
    """The result and what the op's further targets become; and the faults."""
    arrays = example.arrays()
    for i in example.op.targets:
        target = arrays[i]
        assert target is not None
        arrays[i] = target.copy()
    faults: list[Fault] = []
    with collect(faults):
        want = example.op.evaluate(arrays, example.attrs, example.result.dtype)
    further = [target for i in example.op.targets[1:] if (target := arrays[i]) is not None]
    return [want, *further], faults if example.result.size else []  # nothing is run for an empty result


def max_ulp(got: Array, want: Array) -> float | None:
    """The largest distance of a finite element from the oracle's, in units of its last place; None for no floats."""
    dtype = dtype_of(want)
    if dtype not in _BITS or got.shape != want.shape:
        return None
    a, b = widened(got), widened(want)
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return None
    return float(f"{(np.abs(a[both] - b[both]) / _ulp(b[both], dtype)).max():.3g}")


def faults_agree(op: Op, faults: Sequence[Fault], raised: Error | None) -> str:
    """What is wrong with the error a device raised for these faults, in words; "" if nothing."""
    if not faults:
        return "" if raised is None else f"raised {raised!r}, the oracle finds no fault"
    kind = BadIndex if faults[0].kind == "index" else KernelError
    if not isinstance(raised, kind):
        return f"raised {raised!r}, must be {kind.__name__} for {faults[0].text(op.name)}"
    if op.name not in str(raised) or (kind is BadIndex and not any(str(f.value) in str(raised) for f in faults)):
        return f"raised {str(raised)!r}, must name {op.name} and the index {faults[0].value}"
    return ""


def compare(example: Example, got: Array, want: Array) -> str:
    """What is wrong with a result, in words with the worst element; "" if nothing."""
    if got.shape != want.shape:
        return f"shape {got.shape}, must be {want.shape}"
    if not want.size:
        return ""
    arrays = example.arrays()
    if example.op.name == "top_k":
        assert arrays[0] is not None
        return _top_k(arrays[0], got, want)
    if example.op.tolerance != "E" and dtype_of(want).is_block:
        return _close(example, arrays, widened(got), widened(want))
    if example.op.tolerance == "E" or not dtype_of(want).is_float:
        return _equal(example, got, want)
    return _close(example, arrays, widened(got), widened(want))


def _top_k(x: Array, got: Array, want: Array) -> str:
    """The same values in any order, by distinct indices."""
    if ((got < 0) | (got >= x.shape[-1])).any():
        return f"an index outside 0 to {x.shape[-1] - 1}"
    if (np.diff(np.sort(got, -1), axis=-1) == 0).any():
        return "an index twice in one row"
    a, b = (np.sort(np.take_along_axis(x, i.astype(np.int64), -1), -1) for i in (got, want))
    return "" if np.array_equal(a, b, equal_nan=True) else "not the largest values"


def _equal(example: Example, got: Array, want: Array) -> str:
    if want.ndim == 0:
        got, want = got.reshape(1), want.reshape(1)
    dtype = dtype_of(want)
    wrong = (as_bytes(got) != as_bytes(want)).reshape(*want.shape, dtype.block_nbytes).any(-1)
    if dtype.is_float:
        a, b = got.astype(np.float64), want.astype(np.float64)
        if not example.op.stored or any(s is not None and s.dtype is not dtype for s in example.specs[:2]):
            wrong &= ~(np.isnan(a) & np.isnan(b))  # only a copy keeps the bits of a NaN
        if not example.op.stored:
            wrong &= ~((a == 0) & (b == 0))
        return _worst(a, b, wrong, "must be equal")
    return _worst(got, want, wrong, "must be equal")


def _worst(got: Array, want: Array, wrong: Array, law: str) -> str:
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(wrong.sum())} of {wrong.size} elements: [{', '.join(map(str, at))}] is {got[at]}, {want[at]} {law}"


def _close(example: Example, arrays: list[Array | None], got: Array, want: Array) -> str:
    finite = np.isfinite(want)
    same = np.isnan(want) & np.isnan(got) | (got == want)
    if example.op.tolerance == "M" and _has_blocks(example):
        same |= np.isnan(got)  # whoever rounds x to integers can't keep an inf: the row becomes NaN
    if example.op.declared.nan_too is not None and not same.all():
        named = _widened(example, arrays)
        with np.errstate(all="ignore"):
            open_ = np.asarray(example.op.declared.nan_too(named, example.attrs), bool)
        same |= open_ & (np.isnan(got) | (np.isnan(want) & np.isinf(got)))
    if not (finite | same).all():
        return _worst(got, want, ~(finite | same), "must be the same")
    if not np.isfinite(got[finite]).all():
        return _worst(got, want, finite & ~np.isfinite(got), "must be finite")
    bound, nmse = _bounds(example, arrays, np.where(finite, want, 0))
    error = np.abs(np.where(finite, got - np.where(finite, want, 0), 0))
    power = float(np.square(want[finite]).sum())
    ratio = float(np.square(error).sum()) / power if power else 0.0
    if nmse is not None and ratio > nmse and error.max() > TINY:
        return f"NMSE {ratio:.2g}, at most {nmse:g}"
    if bound is None:
        return "" if power else _worst(got, want, error > 1e-6, "must be near")
    return _worst(got, want, error > bound, "is too far off")


def _bounds(example: Example, arrays: list[Array | None], want: Array) -> tuple[Array | None, float | None]:
    """Largest absolute error an element, and largest NMSE; None: not asked."""
    op, dtype = example.op, example.result.dtype
    if dtype.is_block:
        return None, 5e-4
    ulp = _ulp(want, dtype) if dtype is not f32 else np.zeros_like(want)
    size = np.abs(want)
    blocks = _has_blocks(example)
    laws: dict[str, Callable[[], tuple[Array | None, float | None]]] = {
        "A": lambda: (_ulp(want, dtype) + TINY, None),
        "T": lambda: (ulp + 1e-6 + (2e-6 * size if dtype is f32 else 0), None),
        "R": lambda: (ulp + 1e-5 * _row_max(size) + 1e-6, 1e-9 if dtype is f32 else None),
        "M": lambda: (None, 5e-4) if blocks else (ulp + _factor(example) * _magnitude(example, arrays) + 1e-7, None),
        "N": lambda: (None, 5e-4 if blocks else 1e-5 if _factor(example) > 1e-5 else 1e-8),
    }
    bound, nmse = laws[op.tolerance]()
    if bound is not None and op.declared.slack is not None:
        named = _widened(example, arrays)
        with np.errstate(all="ignore"):
            bound = bound + np.nan_to_num(op.declared.slack(named, example.attrs), nan=0, posinf=np.inf)
    return bound, nmse


def _widened(example: Example, arrays: list[Array | None]) -> dict[str, Array | None]:
    """The operands as the body gets them, by name."""
    return {n: None if a is None else widened(a) for n, a in zip(example.op.operands, arrays, strict=True)}


def _has_blocks(example: Example) -> bool:
    return any(s is not None and s.dtype.is_block for s in example.specs)


def _ulp(want: Array, dtype: DType) -> Array:
    """The distance to the next number of this dtype."""
    bits, least = _BITS[dtype]
    _, exponent = np.frexp(want)
    return np.asarray(np.exp2(np.maximum(exponent - bits, least).astype(np.float64)))


def _row_max(size: Array) -> Array:
    return np.asarray(size.max(-1, keepdims=True)) if size.ndim else size


def _factor(example: Example) -> float:
    dtypes = [s.dtype for name, s in zip(example.op.operands, example.specs, strict=True) if s and name != "mask"]
    return 1e-2 if bf16 in dtypes else 2e-3 if f16 in dtypes else 1e-5


def _magnitude(example: Example, arrays: list[Array | None]) -> Array:
    """The product of the magnitudes: sum(abs(a * b)) for each element."""
    sizes = [None if a is None else np.abs(decoded(a)) if dtype_of(a).is_float else a for a in arrays]
    return np.nan_to_num(example.op.evaluate(sizes, example.attrs, f32).astype(np.float64), nan=0, posinf=np.inf)
