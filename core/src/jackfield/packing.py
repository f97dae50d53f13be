"""In which layout each constant lies on each device. Pure functions: nothing is packed here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .backend import Packing, Step
from .candidates import Panel
from .containment import contained
from .errors import DeviceError
from .graph import Source
from .partition import Item, Ref, Run, Value, users
from .spec import Spec

__all__ = ["Constant", "Key", "choose", "key_of"]

Key = tuple[object, ...]  # what makes two constants one: where the bytes are, and the window on them
_Uses = list[tuple[Item, int]]
_Known = dict[tuple[int, Spec, tuple[Step, ...]], Packing | None]


@dataclass(eq=False, slots=True)
class Constant:
    """One constant on one device. layout: "" for plain bytes. packing: how to make it, where it is not there yet.

    again: a second copy of what lies on the device in another layout already.
    """

    value: Value
    key: Key
    layout: str
    nbytes: int
    packing: Packing | None
    again: bool = False


@dataclass
class _Chooser:
    panel: Panel
    held: Callable[[int, Key], Mapping[str, int]]
    identity: Callable[[Source], Key]
    packings: _Known = field(default_factory=dict)
    found: list[Constant] = field(default_factory=list)
    new: dict[tuple[int, Key], dict[str, int]] = field(default_factory=dict)
    changed: dict[tuple[int, int, str], tuple[Step, Step]] = field(default_factory=dict)
    packed: dict[tuple[Spec, str], Spec] = field(default_factory=dict)

    def add(self, value: Value, uses: _Uses) -> None:
        key = key_of(value, self.identity)
        held = self._held(value, key)
        direct = [(item, i) for item, i in uses if _is_whole(item.operands[i], value)]
        layout, packing = self._layout(value, direct, held) if direct else ("", None)
        self._use(value, direct if layout else uses, layout, packing, key)
        if layout and len(direct) < len(uses):  # views read plain bytes, so there is a plain copy as well
            plain = replace(value)
            rest = [(item, i) for item, i in uses if not _is_whole(item.operands[i], value)]
            for item, i in rest:
                ref = item.operands[i]
                assert ref is not None
                item.operands[i] = Ref(plain, ref.offset, ref.spec)
            self._use(plain, rest, "", None, key)

    def _layout(self, value: Value, direct: _Uses, held: Mapping[str, int]) -> tuple[str, Packing | None]:
        """A layout that lies there already and that all users read; else the one the backend wishes for."""
        steps = tuple(dict.fromkeys(item.step for item, _ in direct))
        packing = self._packing(value, steps)
        if packing is not None and packing.name in held:
            return packing.name, packing
        for layout in held:
            if all(self._refusal(item, i, layout) is None for item, i in direct):
                return layout, None
        if packing is None:
            return "", None
        for item, i in direct:
            if (reason := self._refusal(item, i, packing.name)) is not None:
                name = self.panel.name(value.device)
                with contained(name, "pack"):
                    raise DeviceError(f"{name} packs {value.spec} as {packing.name} but refuses it so: {reason}")
        return packing.name, packing

    def _packing(self, value: Value, steps: tuple[Step, ...]) -> Packing | None:
        key = (value.device, value.spec, steps)
        if key not in self.packings:
            opened = self.panel.devices[value.device]
            name = opened.name
            with contained(name, "pack"):
                packing = opened.backend.pack(value.spec, steps, opened.target)
                if packing is not None and not isinstance(packing, Packing):
                    raise DeviceError(f"{name}: pack gives a {type(packing).__name__}, must be a Packing or None")
                if packing is not None:
                    _check(name, packing, value.spec)
            self.packings[key] = packing
        return self.packings[key]

    def _held(self, value: Value, key: Key) -> Mapping[str, int]:
        """Layouts that are there, or will be, to bytes."""
        held, new = self.held(value.device, key), self.new.get((value.device, key))
        return held if new is None else {**held, **new}

    def _refusal(self, item: Item, i: int, layout: str) -> object:
        return self.panel.answer(item.device, self._with_layout(item.step, i, layout)).reason

    def _use(self, value: Value, uses: _Uses, layout: str, packing: Packing | None, key: Key) -> None:
        held = self._held(value, key)
        nbytes = held.get(layout, packing.nbytes if packing is not None else value.spec.nbytes)
        value.nbytes = nbytes
        self.found.append(Constant(value, key, layout, nbytes, packing, again=bool(held) and layout not in held))
        self.new.setdefault((value.device, key), {})[layout] = nbytes
        if layout:
            value.spec = self._packed(value.spec, layout)
            for item, i in uses:
                item.step = self._with_layout(item.step, i, layout)
                item.operands[i] = Ref(value, 0, value.spec)

    def _packed(self, spec: Spec, layout: str) -> Spec:
        known = self.packed.get((spec, layout))
        if known is None:
            known = self.packed[spec, layout] = replace(spec, layout=layout)
        return known

    def _with_layout(self, step: Step, i: int, layout: str) -> Step:
        """The step with one operand packed. Equal steps are one object, so objects are remembered, and held."""
        known = self.changed.get((id(step), i, layout))
        if known is None:
            spec = step.operands[i]
            assert spec is not None
            operands = (*step.operands[:i], self._packed(spec, layout), *step.operands[i + 1 :])
            known = self.changed[id(step), i, layout] = step, replace(step, operands=operands)
        return known[1]


def choose(
    runs: Sequence[Run],
    panel: Panel,
    *,
    held: Callable[[int, Key], Mapping[str, int]],
    identity: Callable[[Source], Key],
) -> list[Constant]:
    """Every constant the runs read, with its layout; steps and operands are changed to it.

    held: what lies on a device already, as layout to bytes. identity: when two sources are one.
    Raises: DeviceError where a backend wishes for a packing that its kernels refuse.
    """
    chooser = _Chooser(panel, held, identity)
    for value, uses in users(runs).items():
        chooser.add(value, uses)
    return chooser.found


def _check(device: str, packing: Packing, plain: Spec) -> None:
    """Raises: DeviceError where its sizes can't be."""
    if packing.nbytes < 0:
        raise DeviceError(f"{device}: the packing {packing.name} takes {packing.nbytes} bytes, must be 0 or more")
    if packing.part is None:
        return
    unit, packed = packing.part
    block = plain.dtype.block_nbytes
    if unit <= 0 or unit % block or packed * -(-plain.nbytes // unit) != packing.nbytes:
        raise DeviceError(
            f"{device}: the packing {packing.name} makes {packed} bytes of each {unit}: it must make its "
            f"{packing.nbytes} of the {plain.nbytes} of {plain}, in parts of whole blocks of {block}"
        )


def key_of(value: Value, identity: Callable[[Source], Key]) -> Key:
    """What tells this constant from others: its source's bytes, its type, and the window it is copied from."""
    assert value.tensor is not None
    assert value.tensor.source is not None
    return (*identity(value.tensor.source), value.tensor.spec.dtype, value.tensor.spec.shape, value.window)


def _is_whole(ref: Ref | None, value: Value) -> bool:
    return ref is not None and ref.offset == 0 and ref.spec == value.spec
