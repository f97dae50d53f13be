"""`python -m jackfield_conformance.ops_page NAME ... > docs/ops.md`: every op, and which device takes which dtype.

All of it is derived: signatures and sentences from the declarations, answers from the dense examples of the declared
cases, asked as a planner asks. Nothing is run and no hardware is needed.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jackfield import ops
from jackfield.backend import Backend, Reason, Target, refusal
from jackfield.conformance.cases import examples
from jackfield.dtypes import DTYPES
from jackfield.errors import Error
from jackfield.op import OPS, Op
from jackfield.registry import Registry

from .direct import step_of

__all__ = ["main", "page"]

# Families in the order of the page; what is not named here comes behind, by name.
FAMILIES = (
    "elementwise",
    "activations",
    "rounding",
    "gated",
    "reduce",
    "views",
    "copies",
    "rows",
    "fills",
    "masks",
    "norms",
    "products",
    "position",
    "attention",
    "sparse_attention",
    "hyper_connections",
    "state_space",
    "linear_attention",
)
FIXED = ("reference", "sim")
BLOCKS = [dtype.name for dtype in OPS["linear"].declared.accepts["weight"] if dtype.is_block]

HEAD = """# Ops

Made by `python -m jackfield_conformance.ops_page {names} > docs/ops.md` from the declarations in
`core/src/jackfield/ops/` and from what each backend answers; a test fails when the page is out of date.

Each op has a signature (`name?` is an optional operand, what stands behind `*` are attributes), its priority, its
tolerance class (they stand in `core/src/jackfield/conformance/check.py`) and what it does with memory;
`help(jf.ops.NAME)` has the rest. The tables say for each dtype under test and each device whether the declared cases
are taken{targets}:

- **yes**: all of them. **no**: none, for the reasons of these numbers below the table. **partly**: some, likewise.
- A dtype under test is given to every operand that accepts it, and to each of them alone.
- What a device refuses runs on the next one of the selection; `plan.explain()` says so.

Block dtypes are {blocks}.
"""


@dataclass(frozen=True)
class Answer:
    """What one device says to the cases of an op in one dtype: does it take any, and why not the others."""

    taken: bool
    reasons: tuple[str, ...]


def page(backends: Sequence[Backend]) -> str:
    """The whole page for these backends, each at the target that can do least."""
    targets = [_target(backend) for backend in backends]
    known = [
        f"{b.name} at `{t.arch}`, its least" for b, t in zip(backends, targets, strict=True) if b.name not in FIXED
    ]
    blocks = ", ".join(BLOCKS)
    names = " ".join(b.name for b in backends if b.name not in FIXED)
    head = HEAD.format(names=names, targets=f" ({', '.join(known)})" if known else "", blocks=blocks)
    return head + "".join(_family(name, members, backends, targets) for name, members in _families())


def _target(backend: Backend) -> Target:
    named = list(backend.targets()) or [device.target for device in backend.devices()]
    return named[0]


def _families() -> list[tuple[str, list[Op]]]:
    found: dict[str, list[Op]] = defaultdict(list)
    for name in sorted(ops.__all__):
        found[OPS[name].body.__module__.rpartition(".")[2]].append(OPS[name])
    order = [*FAMILIES, *sorted(found.keys() - set(FAMILIES))]
    return [(name, found[name]) for name in order if name in found]


def _family(name: str, members: Sequence[Op], backends: Sequence[Backend], targets: Sequence[Target]) -> str:
    title = sys.modules[members[0].body.__module__].__doc__ or name
    lines = [f"\n## {_first_sentence(title).rstrip('.')}\n"]
    lines += ["\n", *(_described(op) for op in members)]
    running = [op for op in members if not op.is_view]
    if running:
        notes: dict[str, int] = {}
        rows = [row for op in running for row in _rows(op, backends, targets, notes)]
        head = " | ".join(("op", "dtype", *(backend.name for backend in backends)))
        lines += [f"\n| {head} |\n|{' --- |' * (2 + len(backends))}\n", *rows]
        if notes:
            lines.append("\n")
        lines += [f"{number}. {text}\n" for text, number in notes.items()]
    return "".join(lines)


def _described(op: Op) -> str:
    """Signature, first sentence, and what else the declaration says."""
    operands = [f"{name}?" if name in op.optional else name for name in op.operands]
    attrs = [f"{name}={op.defaults[name]!r}" if name in op.defaults else name for name in op.attrs]
    marks: list[str] = [op.priority]
    if op.is_view:
        marks.append("a view: takes no time and no memory")
    else:
        marks.append(f"tolerance {op.tolerance}")
        if op.updates:
            marks.append(f"updates {op.operands[0]} where it lies")
        elif op.inplace:
            marks.append(f"may take over the memory of {' or '.join(op.inplace)}")
    signature = ", ".join([*operands, *(["*", *attrs] if attrs else [])])
    return f"- `{op.name}({signature})`: {_first_sentence(op.doc)} ({'; '.join(marks)})\n"


def _first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence, on one line."""
    paragraph = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.split(r"(?<=\.) (?=[A-Z])", paragraph)[0]


def _rows(op: Op, backends: Sequence[Backend], targets: Sequence[Target], notes: dict[str, int]) -> list[str]:
    """Lines of the table; dtypes with equal answers share one."""
    each = [_answers(op, backend, target) for backend, target in zip(backends, targets, strict=True)]
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for dtype in each[0]:
        cells = tuple(_cell(answers[dtype], backend, notes) for answers, backend in zip(each, backends, strict=True))
        groups[cells].append(dtype)
    return [f"| {' | '.join((op.name, spelled(dtypes), *cells))} |\n" for cells, dtypes in groups.items()]


def _cell(answer: Answer, backend: Backend, notes: dict[str, int]) -> str:
    if not answer.reasons:
        return "yes"
    numbers = [notes.setdefault(f"{backend.name}: {reason}", len(notes) + 1) for reason in answer.reasons]
    return f"{'partly' if answer.taken else 'no'}: {', '.join(map(str, sorted(numbers)))}"


def _answers(op: Op, backend: Backend, target: Target) -> Mapping[str, Answer]:
    """By dtype under test."""
    kernels = backend.kernels()
    taken: dict[str, bool] = defaultdict(bool)
    reasons: dict[str, list[str]] = defaultdict(list)
    for example in examples(op):
        if example.layout == "dense":
            step = step_of(example)
            reason = refusal(step, kernels, target) or backend.why_not(step, target)
            taken[example.dtype.name] |= reason is None
            reasons[example.dtype.name] += [] if reason is None else [shortened(op.name, reason)]
    return {name: Answer(some, tuple(dict.fromkeys(reasons[name]))) for name, some in taken.items()}


def shortened(op: str, reason: Reason | str) -> str:
    """A reason without the op's name, and without the dtype it happened to be asked about."""
    text = str(reason).removeprefix(f"{op}: ")
    found = re.fullmatch(r"(\w+) (?:is )?\w+, the kernel (?:reads|makes) (.+)", text)
    if not isinstance(reason, Reason) or reason.code != "dtype" or found is None:
        return text
    return f"{op} takes only {spelled(found[2].split(', '))} as {found[1]}"


def spelled(names: Iterable[str]) -> str:
    """Names of dtypes; where most block dtypes are among them, those that are missing."""
    given = [name for name in DTYPES if name in set(names)]
    missing = [name for name in BLOCKS if name not in given]
    if len(missing) * 3 > len(BLOCKS):
        return " ".join(given)
    rest = [name for name in given if name not in BLOCKS]
    every = f"all {len(BLOCKS)} block dtypes" if not missing else f"block dtypes except {' '.join(missing)}"
    return ", ".join([*([" ".join(rest)] if rest else []), every])


def main(arguments: list[str]) -> int:
    if any(name.startswith("-") for name in arguments):
        sys.stderr.write("usage: python -m jackfield_conformance.ops_page [NAME ...] (backends besides sim)\n")
        return 2
    try:
        registry = Registry()
        backends = [registry.open_backend(name) for name in (*FIXED, *(n for n in arguments if n not in FIXED))]
    except Error as e:
        sys.stderr.write(f"Error: {e}\n")
        return 1
    sys.stdout.write(page(backends))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
