"""Constants on their way to a device: looked through for damage, packed, written; several at once where it pays."""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import takewhile
from threading import Barrier, Lock, local

import numpy as np

from .backend import Buffer, Device
from .containment import contained
from .errors import GraphError
from .graph import Source, Tensor, source_bytes
from .packing import Constant
from .spec import Spec

__all__ = ["Held", "check_scales", "fill", "plain_bytes", "release", "source_of", "tensor_of"]

_WORTH_THREADS = 1 << 22  # bytes; below that starting threads costs more than they save
_LARGE = 1 << 23  # bytes of a constant
_LOOK = 1 << 21  # bytes of one that a thread looks at in one go
_SMALL_ROOM = 1 << 20  # bytes
_MOST_THREADS = 8  # a few saturate the memory, and each holds one packed constant


@dataclass(frozen=True, slots=True)
class Held:
    """A constant on a device. borrowed: host memory used in place."""

    buffer: Buffer
    offset: int
    nbytes: int
    borrowed: bool = False


def fill(device: Device, places: Sequence[tuple[Constant, Held]]) -> Generator[tuple[Constant, Held]]:
    """Bring each constant to its place; yields them in their order, each as soon as it and those before are there.

    Several threads do it, since much of the work (looking, packing, copying) is one thread's; but a device that is not
    the host's own memory is written to by one at a time, and large constants come one by one: there would be a plain
    and a packed copy of each in memory.
    Raises: GraphError for a damaged one, what the device raises; those not begun are left.
    """
    threads = min(_cores(), _MOST_THREADS, len(places))
    worth = threads > 1 and sum(held.nbytes for _, held in places) >= _WORTH_THREADS
    workers = _started(threads) if worth else None
    if workers is None:
        yield from _in_order(device, places, None)
        return
    rooms = _Rooms()
    writing = nullcontext() if "host_visible" in device.target.features else Lock()
    try:
        large = sum(1 for _ in takewhile(lambda place: place[1].nbytes >= _LARGE, places))
        yield from _in_order(device, places[:large], workers)
        rest = places[large:]
        tasks = [workers.submit(_fill, device, held, constant, rooms, writing) for constant, held in rest]
        for place, task in zip(rest, tasks, strict=True):
            task.result()
            yield place
    finally:
        workers.shutdown(cancel_futures=True)


def _started(threads: int) -> ThreadPoolExecutor | None:
    """So many threads, all of them begun; None where the system gives no more: then the caller does it alone."""
    workers, together = ThreadPoolExecutor(threads, "jackfield-upload"), Barrier(threads)
    try:
        for _ in range(threads):
            workers.submit(together.wait)
    except RuntimeError:
        together.abort()
        workers.shutdown(cancel_futures=True)
        return None
    return workers


def _in_order(
    device: Device, places: Sequence[tuple[Constant, Held]], workers: Executor | None
) -> Iterator[tuple[Constant, Held]]:
    rooms = _Rooms()
    for constant, held in places:
        _fill(device, held, constant, rooms, nullcontext(), workers)
        yield constant, held


class _Rooms(local):
    """Memory for the packed form of one constant, one a thread: fresh memory for each would cost its clearing.

    A mapping of its own, since a C library keeps what threads give back to it.
    """

    room: mmap.mmap | None = None

    def of(self, nbytes: int) -> memoryview:
        """The last one again, unless it is too small, or large enough to matter and twice what is needed."""
        held = 0 if self.room is None else len(self.room)
        if held < nbytes or held > max(2 * nbytes, _SMALL_ROOM):
            self.room = None  # first give back, then take
            private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
            self.room = mmap.mmap(-1, nbytes, **private)
        return memoryview(b"" if self.room is None else self.room)[:nbytes]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fill(
    device: Device,
    held: Held,
    constant: Constant,
    rooms: _Rooms,
    writing: AbstractContextManager[object],
    workers: Executor | None = None,
) -> None:
    """One constant, packed on the way; its source may drop the bytes as soon as they are read."""
    source = source_of(constant)
    check_scales(tensor_of(constant), workers)
    data = plain_bytes(tensor_of(constant), constant.value.window)
    if constant.packing is not None:
        with contained(device.name, f"packing {constant.packing.name}"):
            packed = rooms.of(held.nbytes)
            constant.packing.pack(data, packed)
        source.release()
        data = packed
    if held.nbytes:
        with writing, contained(device.name, "write"):
            device.write(held.buffer, held.offset, data)
    source.release()


def tensor_of(constant: Constant) -> Tensor:
    assert constant.value.tensor is not None
    return constant.value.tensor


def source_of(constant: Constant) -> Source:
    source = tensor_of(constant).source
    assert source is not None
    return source


def release(constants: Iterable[Constant]) -> None:
    """Once more, for all: reading one tensor of a file brings back pages of its neighbours."""
    for constant in constants:
        source_of(constant).release()


def check_scales(tensor: Tensor, workers: Executor | None = None) -> None:
    """Raises: GraphError for a weight with a block whose scale is inf, NaN or reserved: a result would be NaN.

    workers: look at a part each; None: the caller looks alone.
    """
    assert tensor.source is not None
    dtype = tensor.spec.dtype
    if not dtype.is_block or not tensor.spec.nbytes:
        return
    raw = np.frombuffer(source_bytes(tensor.source, tensor.spec), np.uint8)
    step = raw.nbytes if workers is None else _LOOK // dtype.block_nbytes * dtype.block_nbytes
    parts = [raw[start : start + step] for start in range(0, raw.nbytes, step)]
    found = (map if workers is None else workers.map)(dtype.first_bad_block, parts)
    bad = next((n * (step // dtype.block_nbytes) + at for n, at in enumerate(found) if at is not None), None)
    if bad is not None:
        row, block = divmod(bad, tensor.spec.units[-1])
        raise GraphError(
            f"constant {tensor.name!r} is {tensor.spec}: block {block} of row {row} has a scale that is no finite "
            "number; the data is damaged, get or convert the file again"
        )


def plain_bytes(tensor: Tensor, window: tuple[int, Spec] | None = None) -> memoryview:
    """A constant's bytes, dense; window: of a strided view of it, copied."""
    assert tensor.source is not None
    data = source_bytes(tensor.source, tensor.spec)
    if window is None:
        return data
    offset, spec = window
    raw = np.frombuffer(data, np.uint8)[offset:]
    item = spec.dtype.block_nbytes
    view = np.lib.stride_tricks.as_strided(raw, (*spec.units, item), (*spec.byte_strides, 1), writeable=False)
    return np.ascontiguousarray(view).reshape(-1).data
