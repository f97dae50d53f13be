"""Which steps of a run the CPU makes together. Pure functions on the contract's data; no memory, no addresses.

Three kinds of groups, each with a kernel in `fused/` of the same name:

linears      linear steps of the same x. x is rounded once and the workers meet once. If x is the product of rms_norm
             and its weights, and nothing else reads it, both belong to the group. So do, where nothing else reads what
             they take: the gated unit of two of them, and up to two `add` behind each (biases; residuals of few rows).
scaled_norm  rms_norm and the multiplication by its weights.
turned       rope and the put_rows that alone reads its result, turned round to rows of heads; so keys go to the cache
             as they are made. With it a rope by the same angles beside it, that of the queries.

What comes out has the same bits as one by one. What one step of a group makes for another is never in memory. A step
is moved to where its group is made only if nothing it touches changes on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from jackfield.backend import Grouping, Link, Spec, Step

__all__ = ["fuse", "kernel_of"]

GATED = frozenset({"swiglu", "geglu", "geglu_erf"})
MOST_ADDS, MOST_PRODUCTS = 2, 16  # as in kernels/products.h
MATRIX = 2  # axes
# Above, a product takes longer with a residual inside than both one by one (bench/NOTES.md): sixteen columns of row
# after row miss the caches. One row for all, a bias, never does.
MOST_ROWS_OF_RESIDUAL = 16


def kernel_of(ops: Sequence[str]) -> str | None:
    """Who makes a group of these ops: "" a kernel of the op itself, a name in `fused/`; None: nobody, one by one."""
    if len(ops) == 1:
        return ""
    if "linear" in ops:
        return "linears"
    if ops[0] == "rope":
        return "turned"
    return "scaled_norm" if tuple(ops) == ("rms_norm", "multiply") else None


def fuse(steps: Sequence[Step], links: Sequence[Link]) -> Grouping:
    """Groups of one run."""
    work = _Run(steps, links)
    for i, step in enumerate(steps):
        if step.op == "linear" and i not in work.taken:
            work.take(_linears(work, i))
    for i, step in enumerate(steps):
        if step.op == "rms_norm" and i not in work.taken and (scaled := _scaled(work, i)) is not None:
            work.take((i, scaled))
    ropes = _ropes(work)
    for alike in ropes.values():
        for i in alike:
            if i not in work.taken and (members := _turned(work, i, alike)) is not None:
                work.take(members, max(members))
    return Grouping(work.in_order(), unwritten=True)


@dataclass(slots=True)  # never changed, but thousands are made, and frozen ones take three times as long
class _Use:
    """Operand `operand` of step `step`."""

    step: int
    operand: int


class _Run:
    def __init__(self, steps: Sequence[Step], links: Sequence[Link]) -> None:
        self.steps, self.links = steps, links
        self.taken: dict[int, int] = {}  # steps of groups, and where those are made
        self.groups: list[tuple[int, tuple[int, ...]]] = []  # where each is made, and its steps
        self.uses: dict[int, list[_Use]] = defaultdict(list)  # of a value
        self.changes: dict[int, list[int]] = defaultdict(list)  # steps that make a value or change it in place
        self.linears: dict[object, list[int]] = defaultdict(list)  # by what those of one group share
        for i, (step, link) in enumerate(zip(steps, links, strict=True)):
            for operand, value in enumerate(link.operands):
                if value is not None:
                    self.uses[value].append(_Use(i, operand))
            if step.op == "linear":
                self.linears[self.shared(i)].append(i)
            self.changes[link.result].append(i)

    def shared(self, i: int) -> object:
        """What linear steps of one group agree on: x as it is before step i, and how they are multiplied."""
        step, link = self.steps[i], self.links[i]
        x, weight = step.operands
        assert x is not None
        assert weight is not None
        if weight.rank != MATRIX or not step.result.size or not x.size:
            return i  # alone
        value = link.operands[0]
        changes = 0 if value is None else sum(j < i for j in self.changes[value])
        kind = "block" if weight.dtype.is_block else "bf16" if weight.dtype.name == "bf16" else "float"
        return value, changes, link.offsets[0], _form(x), kind, step.attrs["precision"]

    def take(self, members: tuple[int, ...], place: int | None = None) -> None:
        """Make these a group. place: where it is made; None: as early as can be."""
        if len(members) > 1:
            place = self.place(members) if place is None else place
            self.groups.append((place, members))
            self.taken.update(dict.fromkeys(members, place))

    def made_at(self, i: int) -> int:
        """Where step i is made."""
        return self.taken.get(i, i)

    def place(self, members: Sequence[int]) -> int:
        """Where a group is made: as the first of its results that something else reads."""
        inner = self.inner(members)
        return min(i for i in members if self.links[i].result not in inner)

    def inner(self, members: Sequence[int]) -> set[int]:
        """Values that one step of the group makes and another reads."""
        return {self.links[i].result for i in members} & {
            value for i in members for value in self.links[i].operands if value is not None
        }

    def in_order(self) -> tuple[tuple[int, ...], ...]:
        alone = [(i, (i,)) for i in range(len(self.steps)) if i not in self.taken]
        return tuple(members for _, members in sorted([*self.groups, *alone]))

    def sole(self, i: int) -> _Use | None:
        """The one operand that reads the result of step i, all of it as it was made; None if anything else does."""
        value = self.links[i].result
        if self.links[i].outside or len(self.uses[value]) != 1 or len(self.changes[value]) != 1:
            return None
        (use,) = self.uses[value]
        return use if use.step not in self.taken and self.reads_whole(use, i) else None

    def reads_whole(self, use: _Use, maker: int) -> bool:
        spec, made = self.steps[use.step].operands[use.operand], self.steps[maker].result
        assert spec is not None
        return self.links[use.step].offsets[use.operand] == 0 and _form(spec) == _form(made)

    def lasts(self, i: int, operand: int, first: int, last: int) -> bool:
        """Whether what step i reads there is the same from before step `first` to after step `last`."""
        value = self.links[i].operands[operand]
        if value is None:
            return True
        made = max((j for j in self.changes[value] if j < i), default=-1)
        return made < first and not any(made < j <= last for j in self.changes[value])

    def maker(self, i: int, operand: int) -> int | None:
        """The step whose result, as it was made, is this operand."""
        value = self.links[i].operands[operand]
        if value is None or len(self.changes[value]) != 1:
            return None
        (maker,) = self.changes[value]
        return maker if maker < i and self.reads_whole(_Use(i, operand), maker) else None


def _form(spec: Spec) -> tuple[object, ...]:
    return spec.dtype.name, spec.shape, spec.byte_strides


def _linears(run: _Run, first: int) -> tuple[int, ...]:
    """The group of the linear step `first` and later ones of the same x; (first,) if it stays alone."""
    alike = run.linears[run.shared(first)]
    siblings = [j for j in alike if j not in run.taken and run.lasts(j, 1, first, j)][:MOST_PRODUCTS]
    chains: list[tuple[int, ...]] = []
    for j in siblings:
        if not any(j in chain for chain in chains):
            chains.append(_chain(run, j, siblings, first))
    members = tuple(i for chain in chains for i in chain)
    members = _norm_before(run, first, siblings, max(members)) + members
    inner, last = run.inner(members), run.place(members)
    stays = all(
        value in inner or run.lasts(i, operand, first, last)
        for i in members
        for operand, value in enumerate(run.links[i].operands)
        if value is not None
    )
    return members if stays else (first,)


def _chain(run: _Run, j: int, siblings: Sequence[int], first: int) -> tuple[int, ...]:
    """A linear step, or two and their gated unit, and the additions behind."""
    chain = _gated(run, j, siblings) or (j,)
    for _ in range(MOST_ADDS):
        use = run.sole(chain[-1])
        if use is None or not _is_addend(run, use, first):
            break
        chain += (use.step,)
    return chain


def _gated(run: _Run, j: int, siblings: Sequence[int]) -> tuple[int, ...] | None:
    """gate, up and their unit, if j is one of the two and nothing else reads them."""
    use = run.sole(j)
    if use is None or run.steps[use.step].op not in GATED:
        return None
    halves = [run.maker(use.step, operand) for operand in range(len(run.links[use.step].operands))]
    if len(halves) != 2 or any(half is None or half not in siblings or run.sole(half) is None for half in halves):
        return None
    step = run.steps[use.step]
    return None if step.attrs["swapped"] else (*[h for h in halves if h is not None], use.step)


def _is_addend(run: _Run, use: _Use, first: int) -> bool:
    """Whether this is an addition in f32 of something that is known before the group is made."""
    step = run.steps[use.step]
    if step.op != "add":
        return False
    made, other = step.operands[use.operand], step.operands[1 - use.operand]
    assert made is not None
    assert other is not None
    rows = other.size // max(1, other.shape[-1]) if other.shape else 1
    plain = other.dtype.name == step.result.dtype.name == "f32" and rows <= MOST_ROWS_OF_RESIDUAL
    return plain and step.result.shape == made.shape and run.lasts(use.step, 1 - use.operand, first, use.step)


def _norm_before(run: _Run, first: int, siblings: Sequence[int], last: int) -> tuple[int, ...]:
    """The norm that makes x and the multiplication by its weights, if only these linear steps read it."""
    scaled = run.maker(first, 0)
    if scaled is None or run.steps[scaled].op != "multiply" or run.links[scaled].outside:
        return ()
    if {(use.step, use.operand) for use in run.uses[run.links[scaled].result]} != {(j, 0) for j in siblings}:
        return ()
    for operand in range(2):
        norm = run.maker(scaled, operand)
        if norm is not None and run.steps[norm].op == "rms_norm" and _scaled(run, norm, last) == scaled:
            return norm, scaled
    return ()


def _scaled(run: _Run, norm: int, last: int | None = None) -> int | None:
    """The step that multiplies the norm by one row of weights, if nothing else reads the norm.

    last: the step until which x and the weights must stay; None: that step itself.
    """
    use, step = run.sole(norm), run.steps[norm]
    if use is None or run.steps[use.step].op != "multiply":
        return None
    product = run.steps[use.step]
    weights, x = product.operands[1 - use.operand], step.operands[0]
    assert weights is not None
    assert x is not None
    row = weights.size == weights.shape[-1] == x.shape[-1] if weights.rank else False
    plain = all(spec.dtype.name == "f32" for spec in (x, weights, step.result, product.result))
    dense = weights.byte_strides[-1:] == (4,) and product.result.byte_strides[-1:] == (4,)
    if not (row and plain and dense and product.result.size and product.result.shape == x.shape):
        return None
    end = use.step if last is None else last
    stays = run.lasts(norm, 0, norm, end) and run.lasts(use.step, 1 - use.operand, use.step, end)
    return use.step if stays else None


def _ropes(run: _Run) -> dict[object, list[int]]:
    """Steps that turn [1, tokens, heads, channels] by the same angles."""
    found: dict[object, list[int]] = defaultdict(list)
    for i, (step, link) in enumerate(zip(run.steps, run.links, strict=True)):
        if step.op != "rope":
            continue
        x, *sources = step.operands
        assert x is not None
        if x.rank == len(_AXES) and x.shape[0] == 1 and step.result.is_dense and step.result.size:
            angles = tuple(None if spec is None else _form(spec) for spec in sources)
            attrs = tuple(sorted(step.attrs.items()))
            found[x.dtype.name, x.shape[1], angles, link.operands[1:], link.offsets[1:], attrs].append(i)
    return found


_AXES = ("one", "tokens", "heads", "channels")


def _turned(run: _Run, i: int, alike: list[int]) -> tuple[int, ...] | None:
    """The rope i with the put_rows behind it, and neighbours by the same angles; None if nothing takes its rows."""
    put, at = _put(run, i), alike.index(i)
    if put is None or not _moves(run, (i, put)):
        return None
    members: tuple[int, ...] = (i, put)
    for near in alike[max(0, at - 1) : at] + alike[at + 1 : at + 2]:
        if near not in run.taken:
            other = _put(run, near)
            more = (near,) if other is None else (near, other)
            longer = more + members if near < i else members + more
            members = longer if _moves(run, longer) else members
    return members


def _put(run: _Run, rope: int) -> int | None:
    """The put_rows that alone reads the rope's result, as [heads, tokens, channels]."""
    value, made = run.links[rope].result, run.steps[rope].result
    if run.links[rope].outside or len(run.uses[value]) != 1 or len(run.changes[value]) != 1:
        return None
    (use,) = run.uses[value]
    step, link = run.steps[use.step], run.links[use.step]
    if step.op != "put_rows" or use.operand != 1 or use.step in run.taken:
        return None
    x = step.operands[1]
    assert x is not None
    order = (2, 1, 3)
    whole = link.offsets[1] == 0 and x.dtype.name == made.dtype.name and x.shape == tuple(made.shape[a] for a in order)
    steps = zip(x.shape, x.byte_strides, (made.byte_strides[axis] for axis in order), strict=whole)
    return use.step if whole and all(n == 1 or stride == wanted for n, stride, wanted in steps) else None


def _moves(run: _Run, members: Sequence[int]) -> bool:
    """Whether all of these can be made where the last one is, by one kernel."""
    place, own = max(members), set(members)
    for i in members:
        link = run.links[i]
        for operand, value in enumerate(link.operands):
            for j in () if value is None else run.changes[value]:
                from_rope = operand == 1 and run.steps[i].op == "put_rows" and run.steps[j].op == "rope"
                if j != i and (not from_rope if j in own else not _in_order(run, j, i, place)):
                    return False
        others = [*(use.step for use in run.uses[link.result]), *run.changes[link.result]]
        if not all(j in own or _in_order(run, j, i, place) for j in others):
            return False
    return True


def _in_order(run: _Run, j: int, i: int, place: int) -> bool:
    """Whether step j, which touches what step i touches, stays on its side of it when i is made at `place`."""
    return (j < i) == (run.made_at(j) < place)
