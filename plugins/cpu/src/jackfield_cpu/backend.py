"""Which devices there are, what their kernels read, which constants are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from jackfield.backend import (
    Backend,
    Device,
    Kernel,
    Packing,
    Rates,
    Reads,
    Reason,
    Spec,
    Step,
    Target,
)

from . import _native
from .device import MOST_ANSWERS, CpuDevice
from .settings import read_settings
from .steps import TABLE, operand_order, step_tuple, view_tuple

__all__ = ["CpuBackend"]

# Shipped figures of one core: multiply-adds and bytes a second. Those of x86-64 are from bench/; those of aarch64 were
# never measured: they are set by how many products an instruction makes, and only have to rank devices.
RATES = {
    "base": Rates(6e9, 8e9, launch=3e-7),
    "avx2": Rates(3e10, 1.5e10, launch=3e-7),
    "avx512": Rates(5e10, 2e10, launch=3e-7),
    "vnni": Rates(1e11, 2e10, launch=3e-7),
    "dotprod": Rates(3e10, 1.5e10, launch=3e-7),
    "i8mm": Rates(3e10, 1.5e10, launch=3e-7),
}


class CpuBackend(Backend):
    name = "cpu"
    api = (0, 1)

    def __init__(self) -> None:
        self._refusals: dict[tuple[Step, str], Reason | None] = {}

    def devices(self) -> Sequence[Device]:
        settings = read_settings()
        _native.set_bf16_products(settings.bf16)
        _native.set_iq_panels(settings.iq_panels)
        target = _target(settings.level)
        each = max(1, settings.threads // settings.parts)
        device = partial(CpuDevice, target=target, threads=each, fuses=settings.fuses, cpus=settings.cpus)
        if settings.parts == 1:
            return [device("cpu:0")]
        return [device(f"cpu:0:{part}") for part in range(settings.parts)]

    def targets(self) -> Sequence[Target]:
        return [_target(name) for name, _ in reversed(_native.levels())]

    def kernels(self) -> Mapping[str, Kernel]:
        return {op: _kernel(*row) for op, row in TABLE.items()}

    def why_not(self, step: Step, target: Target) -> Reason | None:
        asked = step, target.arch
        with suppress(KeyError):
            return self._refusals[asked]
        text = _native.why_not(step_tuple(step), target.arch)
        answer = Reason(f"{step.op}: {text}") if text else None
        if len(self._refusals) >= MOST_ANSWERS:
            self._refusals.clear()
        self._refusals[asked] = answer
        return answer

    def reads(self, step: Step, target: Target) -> tuple[Reads, ...]:
        answers: list[Reads] = ["dense"] * len(step.operands)
        for (_, reads, _, _), i in zip(TABLE[step.op][0], operand_order(step.op), strict=True):
            answers[i] = reads
        return tuple(answers)

    def pack(self, constant: Spec, users: Sequence[Step], target: Target) -> Packing | None:
        """The first packing that fits the constant and that every user's kernel reads."""
        plain = view_tuple(constant)
        for name, nbytes, part in _native.packings(plain):
            if users and all(_reads_layout(step, constant, name) for step in users):
                args = (name, plain, constant.dtype.block, constant.dtype.block_nbytes)
                there, back = partial(_native.pack, *args), partial(_native.unpack, *args)
                return Packing(name, nbytes, there, back, part, looks=True)
        return None


def _target(level: str) -> Target:
    features = frozenset({"host_visible", "reads_host", "zeroed"})
    return Target(kind="cpu", arch=level, features=features, rates=RATES[level])


def _kernel(operands: list[_native.Operand], attributes: list[str], results: list[str]) -> Kernel:
    return Kernel(
        operands={name: frozenset(dtypes) for name, _, dtypes, _ in operands},
        results=frozenset(results),
        attributes=frozenset(attributes),
        layouts={name: frozenset(layouts) for name, _, _, layouts in operands if layouts},
    )


def _reads_layout(step: Step, constant: Spec, layout: str) -> bool:
    """Every operand of the step that is this constant may come in the layout."""
    if step.op not in TABLE:
        return False
    at = {i for i, spec in enumerate(step.operands) if spec == constant}
    rows = zip(TABLE[step.op][0], operand_order(step.op), strict=True)
    return bool(at) and at <= {i for (_, _, _, layouts), i in rows if layout in layouts}
