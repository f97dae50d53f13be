"""Which adapters there are, and what jackfield calls them.

A graphics card is `wgpu:0`, `wgpu:1`, ... in the order the driver lists them. A driver that computes on the CPU is
`wgpu:soft`: a name that has to be written out, because nobody who asks for any GPU wants to end there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jackfield.backend as jb

SOFTWARE = "soft"
ARCH = "wgsl"
# OpenGL is left out: what it has, the others have better, and opening it talks to the window system.
DRIVERS = ("Vulkan", "Metal", "DX12")
NOTHING = (
    "no Vulkan, Metal or Direct3D 12 adapter: install the driver of a graphics card; "
    "on Debian the package mesa-vulkan-drivers has one that computes on the CPU, as wgpu:soft"
)
PCI = Path("/sys/bus/pci/devices")
# A driver has threads, which a forked child lacks: there the list of adapters would be waited for without end.
_process = 0  # that has asked for adapters


@dataclass(frozen=True)
class Found:
    """An adapter with its name. adapter: the GPUAdapter of the package wgpu."""

    name: str
    adapter: Any

    @property
    def info(self) -> dict[str, Any]:
        return dict(self.adapter.info)

    @property
    def is_software(self) -> bool:
        return self.name.endswith(f":{SOFTWARE}")


def found() -> Sequence[Found]:
    """All adapters. Raises: jb.Unavailable where there is none, jb.ForkedError in a child of a process that asked."""
    global _process
    _process = _process or os.getpid()
    if _process != os.getpid():
        raise jb.ForkedError(f"wgpu: process {_process} opened the driver, this is its child; start workers by spawn")
    import wgpu
    from wgpu.backends.wgpu_native import extras

    with _no_window_system():
        with suppress(RuntimeError):  # the app has used wgpu before, and chosen for itself
            extras.set_instance_extras(backends=DRIVERS)
        adapters = [a for a in wgpu.gpu.enumerate_adapters_sync() if a.info["backend_type"] != "OpenGL"]
    if not adapters:
        raise jb.Unavailable(NOTHING)
    return named(adapters)


@contextmanager
def _no_window_system() -> Iterator[None]:
    """Mesa's layer that moves the card of the screen to the front asks the window system, which complains on stderr."""
    switch = "NODEVICE_SELECT"
    if switch in os.environ:
        yield
        return
    os.environ[switch] = "1"
    try:
        yield
    finally:
        del os.environ[switch]


def named(adapters: Sequence[Any]) -> Sequence[Found]:
    """Cards by number, in order; then the first software adapter, under its own name."""
    soft = [a for a in adapters if a.info["adapter_type"] == "CPU"]
    cards = [a for a in adapters if a not in soft]
    return [*(Found(f"wgpu:{i}", a) for i, a in enumerate(cards)), *(Found(f"wgpu:{SOFTWARE}", a) for a in soft[:1])]


def card_of(info: dict[str, Any], root: Path = PCI) -> str:
    """Where a card is plugged. WebGPU does not tell: it is known where one card alone has these ids. "" else."""
    wanted = info["vendor_id"], info["device_id"]
    places = []
    for folder in root.iterdir() if root.is_dir() else ():
        with suppress(OSError, ValueError):
            if tuple(int((folder / name).read_text(), 16) for name in ("vendor", "device")) == wanted:
                places.append(folder.name)
    return f"pci-{places[0]}" if len(places) == 1 else ""


# Of a card of the middle. A software adapter says the same: who writes its name wants to see it work, and told to be as
# slow as it is it would be given nothing beside the CPU.
RATES = jb.Rates(multiply_adds=1e12, nbytes=2e11, launch=5e-6, copy_nbytes=5e9, copy_launch=1e-4)


def target_of(limits: dict[str, int] | None = None) -> jb.Target:
    """What decides support: the limits of an adapter, or those that every implementation of WebGPU has."""
    known = limits or {}
    bounds = jb.Limits(
        max_buffer=known.get("max-buffer-size", 1 << 28) // 4 * 4,
        max_operand=known.get("max-storage-buffer-binding-size", 1 << 27) - 512,  # a window starts at a boundary before
    )
    return jb.Target("wgpu", ARCH, frozenset({"zeroed"}), bounds, RATES)
