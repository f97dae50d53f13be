"""Suite `buffers`: bytes go in and come out, at any offset, in the order of the queue, and memory has an owner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from jackfield.backend import Buffer, Device, OutOfMemory, Reason, Usage
from jackfield_conformance.build import Bench, filled
from jackfield_conformance.trials import Refused, Subject, Trial, named

__all__ = ["trials"]

Bytes = NDArray[np.uint8]

NBYTES = 1000
OFFSETS = ((0, 1000), (0, 1), (999, 1), (1, 998), (3, 5), (7, 64), (63, 66), (64, 64), (65, 513), (500, 0))
LARGE = 32 << 20
FAR_TOO_LARGE = 1 << 60


def trials(seed: int) -> Iterator[Trial]:
    for usage in Usage:
        yield Trial(f"buffers/usage/{usage.value}", partial(keeps_bytes, usage, seed))
    for offset, nbytes in OFFSETS:
        yield Trial(f"buffers/write/{offset}+{nbytes}", partial(writes_there, offset, nbytes, seed))
        yield Trial(f"buffers/read/{offset}+{nbytes}", partial(reads_there, offset, nbytes, seed))
    checks = {
        "zero-bytes": zero_bytes,
        "read-only-data": takes_read_only_data,
        "data-is-free-on-return": data_is_free,
        "many": many_at_once,
        "large": large_one,
        "out-of-memory": out_of_memory,
        "outside": outside_does_no_harm,
        "double-free": double_free,
        "borrow": borrowed,
        "host-bytes": host_bytes,
        "zeroed": zeroed,
        "memory-told": memory_told,
        "alignment": aligned,
        "queue/read-waits": read_waits,
        "queue/write-in-order": write_in_order,
        "queue/data-is-free-on-return": data_is_free_with_work_queued,
        "queue/free-in-order": free_in_order,
    }
    yield from named("buffers", seed, checks)


class _Memory:
    """Buffers of one trial; freed at its end."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.buffers: list[Buffer] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self.buffers:
            self.device.free(buffer)

    def holding(self, image: Bytes, usage: Usage = Usage.COMPUTE) -> Buffer:
        buffer = self.device.alloc(image.nbytes, usage)
        self.buffers.append(buffer)
        self.device.write(buffer, 0, image.data)
        return buffer


def read(device: Device, buffer: Buffer, offset: int, nbytes: int) -> Bytes:
    """These bytes of a buffer; the guards round the place they are read into must stay."""
    room = np.full(nbytes + 32, 0xA5, np.uint8)
    device.read(buffer, offset, room[16 : 16 + nbytes].data)
    assert (room[:16] == 0xA5).all(), f"read of {nbytes} bytes at {offset} wrote before its target"
    assert (room[16 + nbytes :] == 0xA5).all(), f"read of {nbytes} bytes at {offset} wrote past its target"
    return room[16 : 16 + nbytes]


def differ(got: Bytes, want: Bytes, what: str) -> list[str]:
    """Which byte is wrong, in words; none if all agree."""
    wrong = np.flatnonzero(got != want)
    if not wrong.size:
        return []
    at = int(wrong[0])
    return [f"{what}: {wrong.size} of {want.size} bytes are wrong; byte {at} is {got[at]}, must be {want[at]}"]


# Plain bytes


def keeps_bytes(usage: Usage, seed: int, subject: Subject) -> list[str]:
    image = filled(NBYTES, seed)
    with _Memory(subject.device) as memory:
        return differ(read(subject.device, memory.holding(image, usage), 0, NBYTES), image, f"a {usage.value} buffer")


def writes_there(offset: int, nbytes: int, seed: int, subject: Subject) -> list[str]:
    image, new = filled(NBYTES, seed), filled(nbytes, seed + 1)
    with _Memory(subject.device) as memory:
        buffer = memory.holding(image)
        subject.device.write(buffer, offset, new.data)
        want = image.copy()
        want[offset : offset + nbytes] = new
        return differ(read(subject.device, buffer, 0, NBYTES), want, f"after {nbytes} bytes were written at {offset}")


def reads_there(offset: int, nbytes: int, seed: int, subject: Subject) -> list[str]:
    image = filled(NBYTES, seed)
    with _Memory(subject.device) as memory:
        got = read(subject.device, memory.holding(image), offset, nbytes)
    return differ(got, image[offset : offset + nbytes], f"{nbytes} bytes read at {offset}")


def zero_bytes(seed: int, subject: Subject) -> list[str]:
    """An empty tensor has a buffer, too."""
    del seed
    with _Memory(subject.device) as memory:
        for _ in range(3):
            memory.holding(filled(0, 0))
        read(subject.device, memory.buffers[0], 0, 0)
    return []


def takes_read_only_data(seed: int, subject: Subject) -> list[str]:
    """Weights come from a mapping that nobody may write to."""
    image = filled(NBYTES, seed)
    with _Memory(subject.device) as memory:
        buffer = memory.holding(filled(NBYTES, seed + 1))
        subject.device.write(buffer, 0, memoryview(image.tobytes()))
        return differ(read(subject.device, buffer, 0, NBYTES), image, "read-only data")


def data_is_free(seed: int, subject: Subject) -> list[str]:
    image = filled(NBYTES, seed)
    data = image.copy()
    with _Memory(subject.device) as memory:
        buffer = memory.holding(data)
        data[:] = 0
        subject.device.synchronize()
        return differ(read(subject.device, buffer, 0, NBYTES), image, "the caller's array was changed after the write")


def many_at_once(seed: int, subject: Subject) -> list[str]:
    """200 buffers of odd sizes, freed in random order: no two share bytes."""
    device, rng = subject.device, np.random.default_rng(seed)
    alive: dict[int, tuple[Buffer, Bytes]] = {}
    found: list[str] = []
    for number in range(200):
        image = filled(int(rng.integers(1, 700)), seed + number)
        buffer = device.alloc(image.nbytes, Usage.COMPUTE)
        device.write(buffer, 0, image.data)
        alive[number] = buffer, image
    order = list(alive)
    for number in rng.permutation(order):
        buffer, image = alive.pop(number)
        found += differ(read(device, buffer, 0, image.nbytes), image, f"buffer {number} of 200")
        device.free(buffer)
    return found


def large_one(seed: int, subject: Subject) -> list[str]:
    limit = subject.device.target.limits.max_buffer
    image = filled(min(LARGE, limit) if limit else LARGE, seed)
    try:
        with _Memory(subject.device) as memory:
            return differ(read(subject.device, memory.holding(image), 0, image.nbytes), image, "a large buffer")
    except OutOfMemory as e:
        raise Refused(Reason(str(e), "memory")) from None


# Wrong use


def out_of_memory(seed: int, subject: Subject) -> list[str]:
    device = subject.device
    try:
        device.alloc(FAR_TOO_LARGE, Usage.COMPUTE)
    except OutOfMemory as e:
        if not str(e).strip():
            return ["OutOfMemory without a word"]
    except Exception as e:  # noqa: BLE001 (the class is what is tried)
        return [f"alloc of 2**60 bytes raised {type(e).__name__}: {e}, must be OutOfMemory"]
    else:
        return ["alloc of 2**60 bytes succeeds"]
    return keeps_bytes(Usage.COMPUTE, seed, subject)


def outside_does_no_harm(seed: int, subject: Subject) -> list[str]:
    """Bytes that reach outside a buffer: an exception, or nothing at all; no byte of this or another buffer changes."""
    device, image = subject.device, filled(NBYTES, seed)
    with _Memory(device) as memory:
        buffer, other = memory.holding(image), memory.holding(image)
        for offset, nbytes in ((NBYTES, 1), (NBYTES - 1, 2), (0, NBYTES + 1), (-1, 1), (1 << 40, 1)):
            data = np.zeros(nbytes, np.uint8)
            for use in (device.write, device.read):
                with suppress(Exception):  # any class: the core makes it one of its own
                    use(buffer, offset, data.data)
                    device.synchronize()
        found = differ(read(device, buffer, 0, NBYTES), image, "after reads and writes outside the buffer")
        return found + differ(read(device, other, 0, NBYTES), image, "another buffer after them")


def double_free(seed: int, subject: Subject) -> list[str]:
    """A second free may be an error; it kills nothing and frees nothing of others."""
    device, image = subject.device, filled(NBYTES, seed)
    with _Memory(device) as memory:
        other = memory.holding(image)
        twice = device.alloc(NBYTES, Usage.COMPUTE)
        device.free(twice)
        with suppress(Exception):
            device.free(twice)
        later = [(memory.holding(filled(NBYTES, seed + n)), filled(NBYTES, seed + n)) for n in (1, 2, 3)]
        found = differ(read(device, other, 0, NBYTES), image, "another buffer after a double free")
        for buffer, want in later:
            found += differ(read(device, buffer, 0, NBYTES), want, "a new buffer after a double free")
        return found


def borrowed(seed: int, subject: Subject) -> list[str]:
    image = filled(4096 * 3, seed)
    data = image.copy()
    buffer = subject.device.borrow(data.data)
    if buffer is None:
        raise Refused(Reason("host memory is not borrowed", "other"))
    found = differ(read(subject.device, buffer, 5, 4096), image[5:4101], "borrowed memory")
    subject.device.free(buffer)
    return found + differ(data, image, "the lender's bytes after the borrowed buffer was freed")


def host_bytes(seed: int, subject: Subject) -> list[str]:
    """A constant's bytes, filled by the host where they lie, are the device's; what was written is seen there."""
    device = subject.device
    image, new = filled(NBYTES, seed), filled(NBYTES, seed + 1)
    with _Memory(device) as memory:
        buffer = memory.holding(image, Usage.CONSTANT)
        shown = [device.host_bytes(buffer, offset, nbytes) for offset, nbytes in ((0, NBYTES), (64, 513), (7, 0))]
        views = [view for view in shown if view is not None]
        if not views:
            raise Refused(Reason("the host does not fill the device's memory", "other"))
        if len(views) < len(shown):
            return ["host_bytes gives some bytes of a buffer, and None for others"]
        told = [(view.nbytes, view.readonly, view.c_contiguous) for view in views]
        if told != [(nbytes, False, True) for nbytes in (NBYTES, 513, 0)]:
            return [f"host_bytes gives {told}: it must give the bytes asked for, writable, without gaps"]
        found = differ(np.frombuffer(views[0], np.uint8), image, "a written buffer, looked at through host_bytes")
        views[1].cast("B")[:] = new[64:577].data
        want = image.copy()
        want[64:577] = new[64:577]
        return found + differ(read(device, buffer, 0, NBYTES), want, "after 513 bytes at 64 were filled in place")


def zeroed(seed: int, subject: Subject) -> list[str]:
    """Memory that was used before, and freed, is zeros when it is given out again, whatever it is for."""
    device = subject.device
    if "zeroed" not in device.target.features:
        raise Refused(Reason("new buffers may hold anything", "other"))
    for nbytes in (1, NBYTES, 100_000, 3 << 20):
        for _ in range(3):
            with _Memory(device) as memory:
                for usage in Usage:
                    memory.holding(filled(nbytes, seed), usage)
            for usage in Usage:
                buffer = device.alloc(nbytes, usage)
                used = read(device, buffer, 0, nbytes).any()
                device.free(buffer)
                if used:
                    return [f"a new {usage.value} buffer of {nbytes} bytes is not all zeros, which `zeroed` promises"]
    return []


def memory_told(seed: int, subject: Subject) -> list[str]:
    del seed
    told = subject.device.memory
    if min(told.total, told.free) < 0 or (told.total and told.free > told.total):
        return [f"memory is {told.free} free of {told.total} bytes: 0 is unknown, and free is at most total"]
    return []


def aligned(seed: int, subject: Subject) -> list[str]:
    """Operands and results at every multiple of the alignment that a planner may choose."""
    device, found = subject.device, []
    step = device.alignment
    for at in (0, step, 3 * step, 5 * step):
        with Bench(subject, seed) as bench:
            wrong = bench.vector(33, start=at).mistakes()
            found += [f"tensors at multiples of {step} bytes from byte {at}: {text}" for text in wrong]
    return found


# The queue


def read_waits(seed: int, subject: Subject) -> list[str]:
    """Reading needs no synchronize: 50 runs are done before the bytes come."""
    with Bench(subject, seed) as bench:
        vector = bench.vector(4099)
        for _ in range(50):
            vector.program.run()
        return vector.mistakes(run=False)


def write_in_order(seed: int, subject: Subject) -> list[str]:
    """A write behind a run changes nothing that the run still reads, and the next run sees it."""
    with Bench(subject, seed) as bench:
        vector = bench.vector(4099)
        first = vector.data
        vector.program.run()
        vector.put(bench.floats(4099, 7))
        late = vector.mistakes(run=False, of=first)
        return [f"a write behind a run: {text}" for text in late] + [
            f"a run behind a write: {text}" for text in vector.mistakes()
        ]


def data_is_free_with_work_queued(seed: int, subject: Subject) -> list[str]:
    with Bench(subject, seed) as bench:
        vector = bench.vector(4099)
        for _ in range(20):
            vector.program.run()
        data = bench.floats(4099, 7)
        want = data.copy()
        vector.put(data)
        data[:] = 0
        vector.program.run()
        return vector.mistakes(run=False, of=want)


def free_in_order(seed: int, subject: Subject) -> list[str]:
    """Freeing an operand behind a run takes nothing from that run."""
    with Bench(subject, seed) as bench:
        vector = bench.vector(4099, apart=True)
        vector.program.run()
        bench.free(vector.operands[0].buffer)
        with _Memory(subject.device) as memory:
            for number in range(8):
                memory.holding(filled(4099 * 4, seed + number))
            return vector.mistakes(run=False)
