"""Which devices take a step, asked once a step and device, with the reason of every refusal (P1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from .backend import Device, Reason, Step, refusal, work_of
from .containment import blamed, contained
from .graph import Attrs
from .markers import guards
from .op import OPS, Work
from .opened import OpenDevice
from .spec import Spec
from .stages import words_of

__all__ = ["Answer", "Memo", "Panel", "contiguous_step"]

Memo = dict[tuple[str, int], dict[Step, "Answer"]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one device says to one step.

    reason: why it refuses; None: it runs. step: the step as the kernel gets it, copied operands dense.
    dense: positions of operands that must be copied to dense first. seconds: predicted, those copies included.
    """

    reason: Reason | None
    step: Step
    dense: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass
class Panel:
    """The devices of one compile.

    devices: all that may be asked. chosen: numbers of those that were asked for, best first. fallback: numbers of
    those that take over what none of the chosen takes, in order; ask `spare()` for them. more: opens fallbacks that
    nobody needed yet. memo: answers, shared by the compiles of a Session. raised: the first thing each raised when it
    was asked.
    """

    devices: list[OpenDevice]
    chosen: Sequence[int]
    fallback: Sequence[int] = ()
    memo: Memo = field(default_factory=dict)
    more: Callable[[], Sequence[OpenDevice]] | None = None
    _tables: list[dict[Step, Answer]] = field(init=False, repr=False)
    _seen: list[dict[int, tuple[Step, Answer]]] = field(init=False, repr=False)
    _work: dict[Step, Work] = field(init=False, repr=False, default_factory=dict)
    _read: set[int] = field(init=False, repr=False, default_factory=set)  # devices whose fields could be read
    raised: dict[int, BaseException] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._tables, self._seen = [], []
        for opened in self.devices:
            self._enter(opened)

    def _enter(self, opened: OpenDevice) -> None:
        self._tables.append(self.memo.setdefault((opened.name, opened.target.stamp), {}))
        self._seen.append({})

    def spare(self) -> Sequence[int]:
        """The fallbacks. What opens them runs the first time somebody asks: no plugin is run for nothing."""
        if self.more is not None:
            more, self.more = self.more, None
            known = {o.name for o in self.devices}
            for opened in more():
                if opened.name not in known:
                    self.fallback = (*self.fallback, len(self.devices))
                    self.devices.append(opened)
                    self._enter(opened)
        return self.fallback

    def name(self, number: int) -> str:
        return self.devices[number].name

    def device(self, number: int) -> Device:
        """Raises: DeviceError where its fields can't be read any more, the first time it is asked for."""
        opened = self.devices[number]
        if number not in self._read:
            self._read.add(number)
            with contained(opened.name, "name, alignment or target"):
                _ = opened.device.name, opened.device.alignment, opened.device.target.features
        return opened.device

    def number(self, name: str) -> int | None:
        """The device of that name; "cpu" means "cpu:0". Fallbacks are opened only if none of the others is it."""
        found = self._number(name)
        if found is None and self.more is not None:
            self.spare()
            found = self._number(name)
        return found

    def _number(self, name: str) -> int | None:
        for i, opened in enumerate(self.devices):
            if opened.name in (name, f"{name}:0"):
                return i
        return None

    def answer(self, number: int, step: Step) -> Answer:
        """Whether a device takes a step, asked once.

        Hashing a Step is slow, and one object is asked for often, so objects are remembered as well; they are held, so
        that their id stays theirs.
        """
        seen = self._seen[number].get(id(step))
        if seen is not None:
            return seen[1]
        table = self._tables[number]
        known = table.get(step)
        if known is None:
            known = table[step] = self._ask(number, step)
        self._seen[number][id(step)] = step, known
        return known

    def _ask(self, number: int, step: Step) -> Answer:
        opened = self.devices[number]
        if step.op not in opened.kernels:
            return Answer(refusal(step, opened.kernels, opened.target), step)
        try:
            if not guards:  # as good as always, and an answer takes microseconds
                return _asked(opened, step)
            with contained(opened.name, "question"):
                return _asked(opened, step)
        except (Exception, SystemExit) as e:  # noqa: BLE001 (a plugin may raise anything; the other devices must still be asked)
            error = blame.cause if (blame := blamed(e)) is not None else e
            self.raised.setdefault(number, error)
            text = f"{opened.name} raised {type(error).__name__} when asked: {words_of(error)}"
            return Answer(Reason(text), step)

    def work(self, step: Step) -> Work:
        known = self._work.get(step)
        if known is None:
            known = self._work[step] = work_of(step)
        return known


def contiguous_step(spec: Spec) -> Step:
    """The step that copies a strided tensor to a dense one."""
    return Step("contiguous", (spec,), spec.dense().with_role("temporary"), Attrs())


def _asked(opened: OpenDevice, step: Step) -> Answer:
    backend, target = opened.backend, opened.target
    dense = _must_copy(opened, step)
    if dense:
        strided = next((i for i in OPS[step.op].targets if i in dense), None)
        if strided is not None:
            what = OPS[step.op].operands[strided]
            text = f"{step.op}: the {what} is strided, the kernel writes it {_reads(opened, step)[strided]}"
            return Answer(Reason(text, "layout"), step)
        operands = tuple(s.dense() if i in dense and s is not None else s for i, s in enumerate(step.operands))
        final = replace(step, operands=operands)
    else:
        final = step
    reason: Reason | str | None = refusal(final, opened.kernels, target) or _limited(opened, final)
    if reason is None:
        reason = backend.why_not(final, target)
    if reason is not None:
        return Answer(reason if isinstance(reason, Reason) else Reason(reason), step)
    seconds = backend.cost(final, target)
    if seconds is None:
        work, rates = work_of(final), target.rates
        seconds = rates.launch + max(work.multiply_adds / rates.multiply_adds, work.nbytes / rates.nbytes)
    seconds = float(seconds)
    if not 0 <= seconds < inf:
        return Answer(Reason(f"{step.op}: its cost is {seconds} seconds, must be a finite number of at least 0"), step)
    for i in dense:
        spec = step.operands[i]
        assert spec is not None
        seconds += target.rates.launch + 2 * spec.nbytes / target.rates.nbytes
    return Answer(None, final, dense, seconds)


def _reads(opened: OpenDevice, step: Step) -> Sequence[str]:
    return opened.backend.reads(step, opened.target)


def _must_copy(opened: OpenDevice, step: Step) -> tuple[int, ...]:
    """Operands that arrive strided where the kernel wants them dense, or with dense rows."""
    strided = [i for i, s in enumerate(step.operands) if s is not None and s.strides]
    if not strided:
        return ()
    reads = _reads(opened, step)
    if len(reads) != len(step.operands):
        raise ValueError(f"reads of {step.op} gives {len(reads)} words for {len(step.operands)} operands")
    return tuple(i for i in strided if not _takes(reads[i], step.operands[i]))


def _takes(reads: str, spec: Spec | None) -> bool:
    assert spec is not None
    return reads == "any" or (reads == "rows" and spec.rows_are_dense)


def _limited(opened: OpenDevice, step: Step) -> Reason | None:
    """Limits that Target states as data."""
    limits = opened.target.limits
    if limits.max_buffer is not None:
        for spec in (*step.operands, step.result):
            if spec is not None and spec.extent_nbytes > limits.max_buffer:
                return Reason(
                    f"{step.op}: {spec} takes {spec.extent_nbytes} bytes, an allocation at most {limits.max_buffer}",
                    "size",
                )
    fewest = _min_rows(limits.min_rows, step.op)
    if fewest > 1:
        first = next((s for s in step.operands if s is not None), step.result)
        rows = prod(first.shape[:-1])
        if rows < fewest:
            return Reason(f"{step.op}: {rows} rows, worth it from {fewest}", "size")
    return None


def _min_rows(table: Mapping[str, int], op: str) -> int:
    return table.get(op, 1)
