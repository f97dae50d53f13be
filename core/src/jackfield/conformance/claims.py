"""What a backend says it can do, as text that is committed: a kernel that gets lost then shows as a changed line."""

from __future__ import annotations

from collections import defaultdict

from jackfield import ops
from jackfield.backend import Backend, Step, Target, refusal
from jackfield.op import OPS

from .cases import Example, examples

__all__ = ["claims"]


def claims(backend: Backend, target: Target) -> str:
    """One line an op and dtype, as `softmax f32 5/6`: cases taken of cases declared. Needs no hardware.

    A case counts as taken if all its dense examples of that dtype are, those without optional operands included.
    """
    lines = []
    for name in ops.__all__:
        if OPS[name].is_view:
            continue
        by_dtype: dict[str, dict[int, bool]] = defaultdict(dict)
        for example in examples(OPS[name]):
            if example.layout == "dense":
                cases = by_dtype[example.dtype.name]
                cases[example.case] = cases.get(example.case, True) and _taken(example, backend, target)
        lines += [f"{name} {dtype} {sum(cases.values())}/{len(cases)}" for dtype, cases in by_dtype.items()]
    return "".join(f"{line}\n" for line in lines)


def _taken(example: Example, backend: Backend, target: Target) -> bool:
    step = Step(example.op.name, example.specs, example.result, example.attrs)
    return refusal(step, backend.kernels(), target) is None and backend.why_not(step, target) is None
