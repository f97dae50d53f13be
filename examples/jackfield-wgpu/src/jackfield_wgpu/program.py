"""One run, compiled: pipelines and bindings of every dispatch, recorded anew and submitted at each call.

A command buffer of WebGPU can be submitted once, so a call records its commands; nothing is computed, written or
allocated for that. `run` does not wait: the queue works the dispatches off in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jackfield.backend as jb
import numpy as np

from .dispatch import Dispatch
from .shading import layout
from .windows import windows

if TYPE_CHECKING:
    from .device import WgpuDevice

MOST_GROUPS = 65535  # workgroups on one axis of a grid
FAULT_NBYTES = 16


class WgpuProgram(jb.Program):
    """dispatches: of each step its op and what it starts."""

    def __init__(self, device: WgpuDevice, dispatches: Sequence[tuple[str, Dispatch]]) -> None:
        self.device = device
        self.faulty = {n: (op, d.operands) for n, (op, d) in enumerate(dispatches, 1) if d.shader.faulty}
        self.ran = False
        self._fault = device.new_buffer(FAULT_NBYTES) if self.faulty else None
        self._table, tables = self._tables(d for _, d in dispatches)
        rows = [self._laid_out(n, d, tables.get(id(d))) for n, (_, d) in enumerate(dispatches, 1)]
        self._numbers = self._filled([raw for _, _, raw in rows])
        self._calls = [self._bound(d, row, at) for (_, d), row, at in zip(dispatches, rows, self._starts, strict=True)]

    def run(self) -> None:
        with self.device.queue() as gpu:
            encoder = gpu.create_command_encoder()
            walk = encoder.begin_compute_pass()
            before = None
            for pipeline, bindings, x, y in self._calls:
                if pipeline is not before:
                    walk.set_pipeline(pipeline)
                    before = pipeline
                walk.set_bind_group(0, bindings)
                walk.dispatch_workgroups(x, y)
            walk.end()
            gpu.queue.submit([encoder.finish()])
            self.ran = True

    def check(self) -> None:
        """Raises: jb.BadIndex with the first index that lay outside, of the runs since the last check."""
        if self._fault is None or not self.ran:
            return
        self.ran = False
        words = np.zeros(FAULT_NBYTES // 4, np.uint32)
        self.device.read_words(self._fault, 0, words.view(np.uint8).data)
        if not words[0]:
            return
        with self.device.queue() as gpu:
            gpu.queue.write_buffer(self._fault, 0, bytes(FAULT_NBYTES))
        op, operands = self.faulty[int(words[0])]
        value = int(words[1:3].copy().view(np.int64)[0])
        raise jb.BadIndex(f"[{op}] {operands[words[3]]} holds the index {value}, which lies outside its axis")

    # Making it

    def _tables(self, dispatches: Iterable[Dispatch]) -> tuple[Any, dict[int, tuple[int, int]]]:
        """All tables in one buffer, and where each one lies."""
        places, image = {}, b""
        for one in dispatches:
            if one.table is not None:
                places[id(one)] = len(image), one.table.nbytes
                image += one.table.astype(np.float32).tobytes()
                image += bytes(-len(image) % self.device.boundary)
        return (self._uploaded(image, "STORAGE") if image else None), places

    def _laid_out(self, number: int, one: Dispatch, table: tuple[int, int] | None) -> tuple[Any, Any, bytes]:
        """Pipeline, entries of its bindings but for the numbers, and the numbers."""
        shown = windows({**one.reads, "out": one.out}, one.units, self.device.boundary, self.device.widest)
        numbers = {**one.numbers, **shown.bases, "groups": one.groups, "infinite": 0x7F800000, "step": number}
        fields, raw = layout(numbers)
        made = self.device.pipelines.get(one.shader, shown.tensors, shown.accesses, fields)
        parts = [(w.block.gpu, w.low, w.high - w.low) for w in shown.windows]
        if table is not None:
            parts.append((self._table, *table))
        if one.shader.faulty:
            parts.append((self._fault, 0, FAULT_NBYTES))
        return made, parts, raw

    def _filled(self, blocks: Sequence[bytes]) -> Any:
        """The numbers of all dispatches in one buffer; `_starts`: where each has them."""
        self._starts, image = list[tuple[int, int]](), bytearray()
        for raw in blocks:
            self._starts.append((len(image), len(raw)))
            image += raw + bytes(-len(raw) % self.device.boundary)
        return self._uploaded(bytes(image), "UNIFORM") if image else None

    def _uploaded(self, image: bytes, usage: str) -> Any:
        return self.device.new_buffer(len(image), usage, image)

    def _bound(self, one: Dispatch, row: tuple[Any, Any, bytes], numbers: tuple[int, int]) -> tuple[Any, Any, int, int]:
        (pipeline, bindings), parts, _ = row
        resources = [(self._numbers, *numbers), *parts]
        entries = [
            {"binding": i, "resource": {"buffer": buffer, "offset": at, "size": nbytes}}
            for i, (buffer, at, nbytes) in enumerate(resources)
        ]
        group = self.device.gpu.create_bind_group(layout=bindings, entries=entries)
        return pipeline, group, *grid(one.groups)


def grid(groups: int) -> tuple[int, int]:
    """So many workgroups, or a few more, over two axes."""
    if groups <= MOST_GROUPS:
        return groups, 1
    y = -(-groups // MOST_GROUPS)
    return -(-groups // y), y
