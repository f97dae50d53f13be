"""Buffers of the GPU, and the way of bytes into and out of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jackfield.backend as jb

WORD = 4  # bytes; what WebGPU copies in
LEAST = 16  # bytes of a buffer: an empty binding is not allowed
KEPT = 16 << 20  # bytes of a staging buffer that is kept for the next read


@dataclass(eq=False)
class Block:
    """One allocation. gpu: the GPUBuffer of the package wgpu, None once it was freed."""

    owner: object
    gpu: Any
    nbytes: int
    size: int  # bytes of the GPUBuffer: nbytes, rounded up


def rounded(nbytes: int) -> int:
    return max(LEAST, -(-nbytes // WORD) * WORD)


def check_span(name: str, block: Block, offset: int, nbytes: int) -> None:
    """Raises: jb.DeviceError for bytes outside a buffer."""
    if offset < 0 or offset + nbytes > block.nbytes:
        text = f"bytes {offset} to {offset + nbytes} of a buffer of {block.nbytes}: must lie inside"
        raise jb.DeviceError(f"{name}: {text}")


def words_around(offset: int, nbytes: int) -> tuple[int, int]:
    """(first byte, bytes) of the whole words that hold these bytes."""
    first = offset // WORD * WORD
    return first, -(-(offset + nbytes) // WORD) * WORD - first


class Readback:
    """Bytes from the GPU by way of a buffer that the host can map."""

    def __init__(self, gpu: Any) -> None:
        self.gpu = gpu
        self.staging: Any = None

    def read(self, buffer: Any, offset: int, nbytes: int) -> memoryview:
        """These bytes, whole words, after all queued work. The memory is good until `done`."""
        staging = self._room(nbytes)
        encoder = self.gpu.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer, offset, staging, 0, nbytes)
        self.gpu.queue.submit([encoder.finish()])
        staging.map_sync("READ", 0, nbytes)
        return staging.read_mapped(0, nbytes, copy=False)

    def done(self) -> None:
        self.staging.unmap()
        if self.staging.size > KEPT:
            self.close()

    def _room(self, nbytes: int) -> Any:
        if self.staging is None or self.staging.size < nbytes:
            self.close()
            size = max(1 << 16, 1 << (nbytes - 1).bit_length()) if nbytes <= KEPT else nbytes
            self.staging = self.gpu.create_buffer(size=size, usage="MAP_READ|COPY_DST")
        return self.staging

    def close(self) -> None:
        if self.staging is not None:
            self.staging.destroy()
            self.staging = None
