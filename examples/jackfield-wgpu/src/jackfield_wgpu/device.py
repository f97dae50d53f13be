"""One GPU: its memory and its queue. It is opened when something is first asked of it, not when it is listed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import jackfield.backend as jb

from .adapters import Found, card_of, target_of
from .kernels import dispatches
from .memory import WORD, Block, Readback, check_span, rounded, words_around
from .pipelines import Pipelines
from .program import WgpuProgram

COPIES = "COPY_SRC|COPY_DST"
# wgpu gives memory back, that of freed buffers and of bytes on their way, when somebody waits for the queue. So often:
MOST_PENDING = 8 << 20  # bytes
# Limits that are asked for as high as the adapter has them; the others stay at WebGPU's defaults.
RAISED = ("max-buffer-size", "max-storage-buffer-binding-size", "max-storage-buffers-per-shader-stage")


class WgpuDevice(jb.Device):
    """Buffers are opaque Blocks. All calls of one device take turns; while one waits for the GPU, Python goes on."""

    def __init__(self, found: Found) -> None:
        info = found.info
        limits = dict(found.adapter.limits)
        self.name = found.name
        self.adapter = found.adapter
        self.target = target_of(limits)
        self.model, self.driver = info["device"], f"{info['backend_type']}: {info['description']}"
        self.card = "" if found.is_software else card_of(info)
        self.boundary = max(
            256, limits["min-storage-buffer-offset-alignment"], limits["min-uniform-buffer-offset-alignment"]
        )
        self.widest = limits["max-storage-buffer-binding-size"]
        self._limits = limits
        self._lock = threading.RLock()
        self._pending = 0  # bytes written or freed since somebody waited
        self._reading = False
        self._pid = os.getpid()

    @cached_property
    def gpu(self) -> Any:
        """The GPUDevice of the package wgpu. It compiles shaders and has the queue."""
        self._alive()
        limits = {name: self._limits[name] for name in RAISED}
        return self.adapter.request_device_sync(required_limits=limits)

    @cached_property
    def pipelines(self) -> Pipelines:
        return Pipelines(self.gpu)

    @cached_property
    def _readback(self) -> Readback:
        return Readback(self.gpu)

    @cached_property
    def _mark(self) -> Any:
        return self.new_buffer(WORD)

    @contextmanager
    def queue(self) -> Iterator[Any]:
        """The GPUDevice, for this thread alone. Its errors become the contract's."""
        self._alive()
        with self._lock:
            gpu = self.gpu
            try:
                yield gpu
            except _errors() as e:
                raise self._told(e) from e

    def _told(self, e: Exception) -> jb.Error:
        text = f"{self.name}: {e}"
        if "OutOfMemory" in type(e).__name__ or "not enough memory" in text.lower():
            return jb.OutOfMemory(text)
        return (jb.DeviceLost if "device is lost" in text.lower() else jb.DeviceError)(text)

    def _alive(self) -> None:
        if self._pid != os.getpid():
            text = f"{self.name} belongs to process {self._pid}, this is its child; start workers by spawn"
            raise jb.ForkedError(text)

    # Memory

    def alloc(self, nbytes: int, usage: jb.Usage) -> jb.Buffer:
        most = self.target.limits.max_buffer or 0
        if nbytes > most:
            raise jb.OutOfMemory(f"{self.name}: one buffer of {nbytes} bytes for {usage.value}, at most {most}")
        size = rounded(nbytes)
        return Block(self, self.new_buffer(size), nbytes, size)

    def new_buffer(self, size: int, usage: str = "STORAGE", image: bytes = b"") -> Any:
        """A GPUBuffer of zeros, or of these bytes."""
        with self.queue() as gpu:
            buffer = gpu.create_buffer(size=size, usage=f"{usage}|{COPIES}")
            if image:
                gpu.queue.write_buffer(buffer, 0, image)
            return buffer

    def free(self, buffer: jb.Buffer) -> None:
        if self._pid != os.getpid():  # the parent frees it
            return
        with self.queue():
            self._gpu_of(buffer).destroy()
            buffer.gpu = None
            self._tidy(buffer.size)

    def _tidy(self, nbytes: int) -> None:
        """Not in the middle of a read: the collector may free a Session there."""
        self._pending += nbytes
        if self._pending > MOST_PENDING and not self._reading:
            self.synchronize()

    def _gpu_of(self, buffer: jb.Buffer) -> Any:
        if not isinstance(buffer, Block) or buffer.owner is not self:
            raise jb.DeviceError(
                f"{self.name}: a {type(buffer).__name__} that is no buffer of this device was used here"
            )
        if buffer.gpu is None:
            raise jb.DeviceError(f"{self.name}: a buffer of {buffer.nbytes} bytes was freed before")
        return buffer.gpu

    def write(self, buffer: jb.Buffer, offset: int, data: memoryview) -> None:
        with self.queue() as gpu:
            into = self._gpu_of(buffer)
            check_span(self.name, buffer, offset, data.nbytes)
            if not data.nbytes:
                return
            first, nbytes = words_around(offset, data.nbytes)
            if (first, nbytes) != (offset, data.nbytes):  # WebGPU writes whole words
                image = bytearray(nbytes)
                self.read_words(into, first, memoryview(image))
                image[offset - first : offset - first + data.nbytes] = data
                data = memoryview(image)
            gpu.queue.write_buffer(into, first, data)
            self._tidy(nbytes)

    def read(self, buffer: jb.Buffer, offset: int, out: memoryview) -> None:
        with self.queue():
            source = self._gpu_of(buffer)
            check_span(self.name, buffer, offset, out.nbytes)
            if out.nbytes:
                self.read_words(source, offset, out)

    def read_words(self, source: Any, offset: int, out: memoryview) -> None:
        """These bytes of a GPUBuffer, after all queued work."""
        first, nbytes = words_around(offset, out.nbytes)
        with self.queue():
            self._reading = True
            try:
                shown = self._readback.read(source, first, nbytes)
                out.cast("B")[:] = shown[offset - first : offset - first + out.nbytes]
                del shown
                self._readback.done()
            finally:
                self._reading = False
            self._pending = 0

    # Work

    def compile(self, run: Sequence[jb.Group], scratch: jb.Place | None) -> jb.Program:
        with self.queue():
            for placed in (placed for group in run for placed in group.steps):
                for place in (*placed.operands, placed.result):
                    if place is not None:
                        self._gpu_of(place.buffer)
            starts = [(placed.step.op, one) for group in run for placed in group.steps for one in dispatches(placed)]
            return WgpuProgram(self, starts)

    def synchronize(self) -> None:
        """By reading a word: `on_submitted_work_done` can't be called in wgpu 0.32."""
        with self.queue():
            self.read_words(self._mark, 0, memoryview(bytearray(WORD)))


def _errors() -> tuple[type[Exception], ...]:
    import wgpu

    return (wgpu.GPUError,)
