"""Constants on their way to a device: looked through for damage, packed, written; several at once where it pays.

They go in pieces that fit a core's cache: a piece is read from memory once, packed straight to its place where the
host can write there, and no second copy of a constant is needed. Pieces are handed out in batches, large ones first: a
device that brings a batch in one native call leaves the interpreter to whatever else the caller has to do.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import index
from threading import Lock, local

import numpy as np

from .backend import Buffer, Device, Packing
from .containment import contained
from .crew import Crew
from .errors import DeviceError, GraphError, OutOfMemory
from .graph import Source, Tensor, source_bytes
from .packing import Constant
from .prints import heard, room_of_thread
from .spec import Spec

__all__ = ["Held", "check_scales", "fill", "plain_bytes", "release", "source_of", "tensor_of"]

_WORTH_THREADS = 1 << 22  # bytes; below that starting threads costs more than they save
_MOST_THREADS = 8  # a few saturate the memory
_PIECE = 1 << 20  # plain bytes that are brought in one go
_LEAST = 1 << 21  # bytes on the device that one thread brings before it asks for more, at least
_MOST = 1 << 26  # and at most: the pages of a file behind a batch are in memory until it is there
_SHARE = 6  # a batch is this part of what is left, so that threads end together, with little of the file in memory
_LARGE = 1 << 23  # bytes of a packed form that must be made as a whole, beside the place where it goes
_SMALL_ROOM = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Held:
    """A constant on a device. borrowed: host memory used in place."""

    buffer: Buffer
    offset: int
    nbytes: int
    borrowed: bool = False


@dataclass(eq=False, slots=True)
class _Job:
    """One constant to be brought. inside: its place, where the host can write it; left: pieces not there yet."""

    constant: Constant
    held: Held
    inside: memoryview | None
    left: int = 0
    data: memoryview | None = None

    def plain(self) -> memoryview:
        """Its plain bytes, asked for when the first piece is due."""
        if self.data is None:
            value = self.constant.value
            if value.window is not None:
                check_scales(tensor_of(self.constant))
            self.data = plain_bytes(tensor_of(self.constant), value.window)
        return self.data


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of a constant: `nbytes` plain bytes from `start` on become `packed` bytes at `at` of its place."""

    job: _Job
    start: int
    nbytes: int
    at: int
    packed: int
    is_last: bool


def fill(
    device: Device, places: Sequence[tuple[Constant, Held]], meanwhile: Callable[[], object] | None = None
) -> Generator[tuple[Constant, Held]]:
    """Bring each constant to its place; yields them in their order, each as soon as it and those before are there.

    Several threads do it, the caller among them: what takes the time (reading, packing, the system clearing fresh
    pages) is one thread's. A device that is not the host's own memory is written to by one at a time.
    meanwhile: what the caller does before it helps; where it raises, those not begun are left.
    Raises: GraphError for a damaged one, what the device raises; those not begun are left.
    """
    bringing = _Bringing(device)
    batches = list(_batches([piece for place in places for piece in bringing.pieces(*place)]))
    worth = sum(held.nbytes for _, held in places) >= _WORTH_THREADS
    threads = min(_cores(), _MOST_THREADS) if worth else 1
    # While the caller is busy it wants the interpreter too: two threads that wait for it in turn keep one core at work.
    crew = Crew(batches, bringing.all)
    try:
        crew.start(threads + (meanwhile is not None and threads > 1))
        if meanwhile is not None:
            meanwhile()
        for batch, (done, error) in zip(batches, crew.results(), strict=True):
            for piece in batch[:done]:
                if piece.is_last:
                    yield piece.job.constant, piece.job.held
            if error is not None:
                raise error
    finally:
        crew.dismiss()


def _batches(pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces that lie side by side on the device, so that two threads seldom meet in one page of it."""
    left = sum(piece.packed for piece in pieces)
    batch: list[_Piece] = []
    nbytes = 0
    for piece in pieces:
        batch.append(piece)
        nbytes += piece.packed
        if nbytes >= min(max(left // _SHARE, _LEAST), _MOST):
            yield batch
            left -= nbytes
            batch, nbytes = [], 0
    if batch:
        yield batch


class _Bringing:
    """What the threads that fill one device share."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rooms = _Rooms()
        self.prints = room_of_thread()  # of who asked for all this: the threads that help print there as well
        self.lock = Lock()
        self.failed = False  # what is begun later will not be asked for: batches are begun in their order
        self.alone = Lock()  # held by who has a plain and a packed copy of a large constant beside its place
        self.together = type(device).fill is not Device.fill
        self.writing: AbstractContextManager[object] = Lock()
        if "host_visible" in device.target.features:
            self.writing = nullcontext()

    def pieces(self, constant: Constant, held: Held) -> list[_Piece]:
        """One constant in pieces, in their order."""
        packing = constant.packing
        inside = _inside(self.device, held) if packing is not None or self.together else None
        job = _Job(constant, held, inside)
        spec = tensor_of(constant).spec
        total, block = held.nbytes if packing is None else spec.nbytes, spec.dtype.block_nbytes
        unit = (block, block) if packing is None else packing.part
        if constant.value.window is not None or unit is None or total <= _PIECE:
            pieces = [_Piece(job, 0, total, 0, held.nbytes, is_last=True)]
        else:
            plain, packed = (max(1, _PIECE // unit[0]) * n for n in unit)
            pieces = [
                _Piece(
                    job,
                    n * plain,
                    min(plain, total - n * plain),
                    n * packed,
                    min(packed, held.nbytes - n * packed),
                    is_last=(n + 1) * plain >= total,
                )
                for n in range(-(-total // plain))
            ]
        job.left = len(pieces)
        return pieces

    def all(self, batch: Sequence[_Piece]) -> tuple[int, Exception | None]:
        """Bring them one after the other: how many are there, and what came in the way of the next."""
        if self.failed:
            return 0, None
        with heard(self.prints) if self.prints is not None else nullcontext():
            at_once = self.together and all(map(_is_simple, batch))
            done, error = self._at_once(batch) if at_once else self._in_turn(batch)
        if error is not None:
            self.failed = True
        return done, error

    def _in_turn(self, batch: Sequence[_Piece]) -> tuple[int, Exception | None]:
        for done, piece in enumerate(batch):
            try:
                self.one(piece)
            except Exception as e:  # noqa: BLE001 (raised by the caller, when those before it are there)
                return done, e
        return len(batch), None

    def _at_once(self, batch: Sequence[_Piece]) -> tuple[int, Exception | None]:
        """By one call of the device, up to the first piece whose bytes can't be had."""
        ready: list[tuple[Packing | None, memoryview, memoryview]] = []
        error: Exception | None = None
        for piece in batch:
            try:
                ready.append((piece.job.constant.packing, self._plain(piece), _place(piece)))
            except Exception as e:  # noqa: BLE001 (raised by the caller, when those before it are there)
                error = e
                break
        done = len(ready)
        try:
            with contained(self.device.name, "fill"):
                bad = self.device.fill(ready)
                found = None if bad is None else (index(bad[0]), index(bad[1]))
        except Exception as e:  # noqa: BLE001 (likewise; which of them are there is not known)
            return 0, e
        del ready
        if found is not None:
            done, block = found
            error = _damaged(tensor_of(batch[done].job.constant), batch[done].start, block)
        for piece in batch[:done]:
            self._arrived(piece.job)
        return done, error

    def one(self, piece: _Piece) -> None:
        """Bring one."""
        job = piece.job
        packing = job.constant.packing
        data = self._plain(piece)
        if packing is None:
            self._write(piece, data)
        elif job.inside is not None:
            self._pack(piece, data, _place(piece))
        else:
            with self.alone if piece.packed >= _LARGE else nullcontext():
                room = self.rooms.of(piece.packed)
                self._pack(piece, data, room)
                self._write(piece, room)
        self._arrived(job)

    def _plain(self, piece: _Piece) -> memoryview:
        """Its plain bytes, looked through for damage unless the packing does that."""
        job = piece.job
        data = job.plain()
        if job.constant.value.window is None:
            data = data[piece.start : piece.start + piece.nbytes]
            packing = job.constant.packing
            if packing is None or not packing.looks:
                check_scales(tensor_of(job.constant), data, piece.start)
        return data

    def _arrived(self, job: _Job) -> None:
        """The source of a constant may drop its bytes with the last piece."""
        with self.lock:
            job.left -= 1
            is_there = not job.left
        if is_there:
            job.data = None
            source_of(job.constant).release()

    def _pack(self, piece: _Piece, data: memoryview, room: memoryview) -> None:
        packing = piece.job.constant.packing
        assert packing is not None
        with contained(self.device.name, f"packing {packing.name}"):
            bad = packing.pack(data, room)
            if bad is not None:
                bad = index(bad)
        if bad is not None and packing.looks:
            raise _damaged(tensor_of(piece.job.constant), piece.start, bad)

    def _write(self, piece: _Piece, data: memoryview) -> None:
        held = piece.job.held
        if piece.packed:
            with self.writing, contained(self.device.name, "write"):
                self.device.write(held.buffer, held.offset + piece.at, data)


def _is_simple(piece: _Piece) -> bool:
    """Whether the device's `fill` may bring it."""
    packing = piece.job.constant.packing
    return (packing is None or packing.looks) and (piece.job.inside is not None or not piece.packed)


def _place(piece: _Piece) -> memoryview:
    """Where it goes, which the host can write."""
    inside = piece.job.inside
    return memoryview(bytearray()) if inside is None else inside[piece.at : piece.at + piece.packed]


def _inside(device: Device, held: Held) -> memoryview | None:
    """The place itself, where the host can write it."""
    if not held.nbytes:
        return None
    with contained(device.name, "host_bytes"):
        found = device.host_bytes(held.buffer, held.offset, held.nbytes)
        if found is not None and (found.readonly or found.nbytes != held.nbytes or not found.c_contiguous):
            raise DeviceError(
                f"{device.name}: host_bytes gives {found.nbytes} bytes{' to be read only' if found.readonly else ''}: "
                f"it must give the {held.nbytes} asked for, writable and without gaps, or None"
            )
    return None if found is None else found.cast("B")


class _Rooms(local):
    """Memory for a packed form on its way, one a thread: fresh memory for each would cost its clearing.

    A mapping of its own, since a C library keeps what threads give back to it.
    """

    room: mmap.mmap | None = None

    def of(self, nbytes: int) -> memoryview:
        """The last one again, unless it is too small, or large enough to matter and twice what is needed.

        Raises: OutOfMemory.
        """
        held = 0 if self.room is None else len(self.room)
        if held < nbytes or held > max(2 * nbytes, _SMALL_ROOM):
            self.room = None  # first give back, then take
            private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
            try:
                self.room = mmap.mmap(-1, nbytes, **private)
            except OSError as e:  # not a device's: contained would call it one
                raise OutOfMemory(f"packing: no {nbytes} bytes of host memory for a constant on its way") from e
        return memoryview(b"" if self.room is None else self.room)[:nbytes]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def check_scales(tensor: Tensor, data: memoryview | None = None, start: int = 0) -> None:
    """Raises: GraphError for a weight with a block whose scale is inf, NaN or reserved: a result would be NaN.

    data: whole blocks of it from byte `start` on; None: all of them.
    """
    dtype = tensor.spec.dtype
    if not dtype.is_block or not tensor.spec.nbytes:
        return
    if data is None:
        data = plain_bytes(tensor)
    bad = dtype.first_bad_block(np.frombuffer(data, np.uint8))
    if bad is not None:
        raise _damaged(tensor, start, bad)


def _damaged(tensor: Tensor, start: int, bad: int) -> GraphError:
    """bad: the number of a block, counted from byte `start` of the tensor."""
    row, block = divmod(start // tensor.spec.dtype.block_nbytes + bad, tensor.spec.units[-1])
    return GraphError(
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
