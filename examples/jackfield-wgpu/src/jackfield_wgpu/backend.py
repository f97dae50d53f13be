"""What the backend says: its devices, its kernels, what they refuse, how they read, what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jackfield.backend as jb

from .adapters import found, target_of
from .device import WgpuDevice
from .kernels import ENTRIES

LEAST = target_of()  # what every implementation of WebGPU has


class WgpuBackend(jb.Backend):
    """WGSL kernels for any adapter of the package wgpu."""

    name = "wgpu"
    api = (0, 1)

    def __init__(self) -> None:
        self._devices: Sequence[WgpuDevice] | None = None

    def devices(self) -> Sequence[jb.Device]:
        if self._devices is None:
            self._devices = tuple(map(WgpuDevice, found()))
        return self._devices

    def targets(self) -> Sequence[jb.Target]:
        return (LEAST,)

    def kernels(self) -> Mapping[str, jb.Kernel]:
        return {name: entry.kernel for name, entry in ENTRIES.items()}

    def why_not(self, step: jb.Step, target: jb.Target) -> jb.Reason | None:
        most = target.limits.max_operand
        if most is not None and step.result.extent_nbytes > most:
            text = f"{step.op}: the result spans {step.result.extent_nbytes} bytes, the limit is {most}"
            return jb.Reason(text, "size")
        return ENTRIES[step.op].why_not(step)

    def reads(self, step: jb.Step, target: jb.Target) -> tuple[jb.Reads, ...]:
        """Any strides; blocks lie one behind the other in their rows, but for copies, which don't look into them."""
        copies = step.op in ("contiguous", "concatenate", "write")
        return tuple(
            "rows" if spec is not None and spec.dtype.is_block and not copies else "any" for spec in step.operands
        )

    def cost(self, step: jb.Step, target: jb.Target) -> float | None:
        cost = ENTRIES[step.op].cost
        return super().cost(step, target) if cost is None else cost(step, target.rates)
