"""The native backend with one fault. Kernels' own faults are in `kernels.cpp`; those of the Python side stand here.

The names of both are the keys of `MUTANTS`. Nothing in the kit knows them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from mutant_native import (
    KERNELS,
    KIND,
    Library,
    NativeBackend,
    NativeBuffer,
    NativeDevice,
    NativeProgram,
    QueueDevice,
    address,
)

from jackfield.backend import (
    Backend,
    Buffer,
    Device,
    DeviceError,
    Group,
    Kernel,
    OutOfMemory,
    Place,
    Program,
    Reason,
    Spec,
    Step,
    Target,
    Usage,
)

__all__ = ["MUTANTS", "SLOW_QUEUE", "Mutant", "backend"]

FAR = 3  # compiles until it crashes
BORN = os.getpid()
SLOW_QUEUE = "slow_queue"  # no fault: a queue that takes its time


# Memory


class OneByteOff(NativeDevice):
    """Writes start one byte late where they are not the whole buffer."""

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        place = self.inside(buffer, offset, data.nbytes)
        late = 1 if 0 < data.nbytes < buffer.nbytes - offset else 0
        ctypes.memmove(place + late, address(data), data.nbytes)


class KeepsCallersMemory(NativeDevice):
    """Copies what it was given when the bytes are next needed."""

    def __init__(self, library: Library, name: str) -> None:
        super().__init__(library, name)
        self.given: list[tuple[int, memoryview]] = []

    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        self.given.append((self.inside(buffer, offset, data.nbytes), data))

    def synchronize(self) -> None:
        given, self.given = self.given, []
        for place, data in given:
            ctypes.memmove(place, address(data), data.nbytes)

    def start(self, program: NativeProgram) -> None:
        self.synchronize()
        super().start(program)


class RefusesNothing(NativeDevice):
    """Has no buffer of zero bytes."""

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        if not nbytes:
            raise OutOfMemory(f"{self.name}: 0 bytes can't be had")
        return super().alloc(nbytes, usage)


class FreesTwice(NativeDevice):
    """Gives memory back as often as it is told to."""

    def free(self, buffer: Buffer) -> None:
        self.used -= buffer.nbytes
        self.library.buffer_free(buffer.address)


class SlowQueue(QueueDevice):
    """A queue that takes its time, so that who does not wait is seen. Right as it is."""

    def __init__(self, library: Library, name: str) -> None:
        super().__init__(library, name)
        library.set_fault(SLOW_QUEUE.encode())


class ReadsEarly(SlowQueue):
    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        ctypes.memmove(address(out), self.inside(buffer, offset, out.nbytes), out.nbytes)


class WriteOvertakes(SlowQueue):
    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        ctypes.memmove(self.inside(buffer, offset, data.nbytes), address(data), data.nbytes)


class FreesEarly(SlowQueue):
    """Memory goes to its next owner while the queue still reads it."""

    def __init__(self, library: Library, name: str) -> None:
        super().__init__(library, name)
        self.spare: dict[int, list[int]] = {}

    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        if self.spare.get(nbytes):
            return NativeBuffer(self.spare[nbytes].pop(), nbytes)
        return super().alloc(nbytes, usage)

    def free(self, buffer: Buffer) -> None:
        place, buffer.address = buffer.address, 0
        if not place:
            raise DeviceError(f"{self.name}: this buffer was freed before")
        ctypes.memset(place, 0xFF, buffer.nbytes)
        self.spare.setdefault(buffer.nbytes, []).append(place)


class LeaksPlans(NativeDevice):
    """Keeps memory for every program it ever made."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        super().alloc(1 << 16, Usage.COMPUTE)
        return super().compile(run, scratch)


# Programs


class RemembersOperands(NativeDevice):
    """Reads the first operand when a program is made, and never again."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        made = NativeProgram(self, [placed for group in run for placed in group.steps], scratch)
        self.kept: list[ctypes.Array[ctypes.c_char]] = getattr(self, "kept", [])
        for group in run:
            for placed, step in zip(group.steps, made.steps, strict=False):
                place = placed.operands[0]
                assert place is not None
                copy = ctypes.create_string_buffer(
                    ctypes.string_at(step.inputs[0].data, place.spec.extent_nbytes), max(1, place.spec.extent_nbytes)
                )
                self.kept.append(copy)
                step.inputs[0].data = ctypes.addressof(copy)
        return made


class RepeatsFaults(NativeDevice):
    """An error that was told once is told for ever."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        class Repeating(NativeProgram):
            def check(self) -> None:
                kind = self.found.kind
                try:
                    super().check()
                finally:
                    self.found.kind = kind

            def run(self) -> None:
                found = (self.found.kind, self.found.step, self.found.value)
                super().run()
                if found[0]:
                    self.found.kind, self.found.step, self.found.value = found

        return Repeating(self, [placed for group in run for placed in group.steps], scratch)


class OtherErrors(NativeDevice):
    """What is found in data is a ValueError of its own."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        class Other(NativeProgram):
            def check(self) -> None:
                try:
                    super().check()
                except Exception as e:
                    raise ValueError(str(e)) from e

        return Other(self, [placed for group in run for placed in group.steps], scratch)


class Prints(NativeDevice):
    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self.library.say(b"mutant: compiling")
        return super().compile(run, scratch)


class Exits(NativeDevice):
    """Ends the process, as if all was well, where it finds something wrong in data."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        class Exiting(NativeProgram):
            def check(self) -> None:
                if self.found.kind:
                    os._exit(0)

        return Exiting(self, [placed for group in run for placed in group.steps], scratch)


class RaisesSystemExit(NativeDevice):
    """Gives up in its own way where it finds something wrong in data."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        class Raising(NativeProgram):
            def check(self) -> None:
                if self.found.kind:
                    sys.exit(3)

        return Raising(self, [placed for group in run for placed in group.steps], scratch)


class HangsInCompile(NativeDevice):
    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        time.sleep(3600)
        return super().compile(run, scratch)


class CrashesLate(NativeDevice):
    """Dies of the third compile."""

    made = 0

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self.made += 1
        if self.made == FAR:
            self.library.crash()
        return super().compile(run, scratch)


class PadsResults(NativeDevice):
    """Wants room behind results that have no blocks."""

    def result_nbytes(self, step: Step) -> int:
        return step.result.nbytes + 64


# Beside others


class OthersChildren(NativeDevice):
    """Belongs to the process that made the backend; in a child of it something goes wrong."""

    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        self.born()
        return super().compile(run, scratch)

    def born(self) -> None:
        if os.getpid() != BORN:
            self.wrong()

    def start(self, program: NativeProgram) -> None:
        self.born()
        super().start(program)

    def wrong(self) -> None:
        raise NotImplementedError


class ParentsQueue(OthersChildren):
    """Hands its work to the parent's device, where nobody does it."""

    def start(self, program: NativeProgram) -> None:
        if os.getpid() == BORN:
            super().start(program)

    def wrong(self) -> None:
        pass


class DiesInAChild(OthersChildren):
    def wrong(self) -> None:
        self.library.crash()


class RaisesInAChild(OthersChildren):
    """In a class that no caller expects, without saying what to do."""

    def wrong(self) -> None:
        raise RuntimeError("bad context")


class CopiesNothing(NativeDevice):
    """Says that it has brought what another device made."""

    def copy(self, src: Place, dst: Place) -> bool:
        return True


class CopiesHalf(NativeDevice):
    """Brings only the first half of it."""

    def copy(self, src: Place, dst: Place) -> bool:
        half = np.asarray(src.buffer.bytes[src.offset : src.offset + src.spec.nbytes // 2])
        self.write(dst.buffer, dst.offset, half.data)
        return True


# What the backend says


class ClaimsMore(NativeBackend):
    def kernels(self) -> Mapping[str, Kernel]:
        return {**KERNELS, "tanh": KERNELS["relu"]}


class LosesKernel(NativeBackend):
    def kernels(self) -> Mapping[str, Kernel]:
        return {op: kernel for op, kernel in KERNELS.items() if op != "sum"}


class LosesHalves(NativeBackend):
    """Refuses 16-bit floats, honestly."""

    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        if any(spec is not None and spec.dtype.name == "f16" for spec in step.operands):
            return Reason(f"{step.op}: not in f16", "dtype")
        return super().why_not(step, target)


class EmptyReasons(NativeBackend):
    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        return "" if super().why_not(step, target) is not None else None


class FalseReasons(NativeBackend):
    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        return False if super().why_not(step, target) is not None else None  # type: ignore[return-value]


class OpensDriver(NativeBackend):
    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        with Path(os.devnull).open("rb"):
            return super().why_not(step, target)


class ChangesItsMind(NativeBackend):
    asked = 0

    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        self.asked += 1
        reason = super().why_not(step, target)
        return reason and Reason(f"{reason} ({self.asked})")


class Everything(frozenset[str]):
    """A table entry that has whatever it is asked for."""

    def __contains__(self, name: object) -> bool:
        return True


class TakesAnyAttribute(NativeBackend):
    def kernels(self) -> Mapping[str, Kernel]:
        return {op: replace(kernel, attributes=Everything(kernel.attributes)) for op, kernel in KERNELS.items()}


class AnyOperand(dict[str, frozenset[str]]):
    """A table of operands that has whatever it is asked for."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> frozenset[str]:
        return Everything(("f32",))


class TakesAnyOperand(NativeBackend):
    def kernels(self) -> Mapping[str, Kernel]:
        return {op: replace(kernel, operands=AnyOperand(kernel.operands)) for op, kernel in KERNELS.items()}


class PacksTooSmall(NativeBackend):
    """Tells the bytes of its packing without the padding of rows."""

    def packed_nbytes(self, rows: int, row: int, constant: Spec) -> int:
        return constant.nbytes


@dataclass(frozen=True)
class Mutant:
    """suite: the one named for the fault. device: on which it shows. ops: cases of which ops are enough to find it.

    also: other suites that meet the fault on their way, and so may fail. made: a class for the Python side; None: the
    fault is the kernels' own.
    """

    suite: str
    ops: tuple[str, ...] = ()
    also: frozenset[str] = frozenset()
    made: type[NativeDevice | NativeBackend] | None = None
    holds_gil: bool = False

    @property
    def device(self) -> str:
        return f"{KIND}:1" if self.made is not None and issubclass(self.made, QueueDevice) else f"{KIND}:0"


def suites(*names: str) -> frozenset[str]:
    return frozenset(names)


# Suites that run every op and judge its numbers: a kernel that is wrong may fail any of them.
JUDGES = suites("ops", "views", "guards", "claims", "threads")
CODED = JUDGES | suites("block-dtypes", "packed")  # likewise for what decodes or encodes blocks
FOUND = JUDGES | suites("errors")  # likewise for what is found in data
PLANS = suites("lifecycle", "errors", "memory", "threads", "packed")  # that call plans
EVERY = CODED | FOUND | PLANS | suites("buffers")

MUTANTS: dict[str, Mutant] = {
    "tail_dropped": Mutant("ops", ("multiply",), also=JUDGES),
    "copy_off_by_one": Mutant("ops", ("contiguous",), also=JUDGES),
    "middle_broadcast": Mutant("ops", ("multiply",), also=JUDGES),
    "minus_zero_lost": Mutant("ops", ("cast",), also=JUDGES),
    "nan_hidden": Mutant("ops", ("relu",), also=JUDGES),
    "nan_lost_in_max": Mutant("ops", ("argmax",), also=JUDGES),
    "int_overflow_wraps": Mutant("ops", ("cast",), also=JUDGES),
    "negative_axis": Mutant("ops", ("sum",), also=JUDGES),
    "empty_crashes": Mutant("ops", ("sum",), also=JUDGES),
    "f16_accumulator": Mutant("ops", ("sum",), also=JUDGES),
    "length_off_by_one": Mutant("ops", ("attention",), also=JUDGES),
    "state_ignored": Mutant("ops", ("gated_linear_attention",), also=JUDGES),
    "stride_ignored": Mutant("views", ("multiply",), also=JUDGES),
    "target_written_dense": Mutant("views", ("put_rows",), also=JUDGES),
    "alignment_assumed": Mutant("views", ("multiply",), also=JUDGES),
    "whole_vectors_written": Mutant("guards", ("relu",), also=JUDGES),
    "padding_read": Mutant("guards", ("linear",), also=JUDGES),
    "operand_clobbered": Mutant("guards", ("rms_norm",), also=JUDGES),
    "cleared_before_read": Mutant("guards", ("softmax",), also=JUDGES),
    "scratch_overrun": Mutant("guards", ("softmax",), also=JUDGES),
    "nibble_order": Mutant("block-dtypes", ("cast", "take_rows", "linear"), also=CODED),
    "last_block_skipped": Mutant("block-dtypes", ("cast", "take_rows", "linear"), also=CODED),
    "scale_as_f32": Mutant("block-dtypes", ("cast", "take_rows", "linear"), also=CODED),
    "block_rounding": Mutant("block-dtypes", ("cast", "put_rows"), also=CODED),
    "bad_block_kept": Mutant("block-dtypes", ("cast", "put_rows"), also=CODED | FOUND),
    "results_padded": Mutant("block-dtypes", also=PLANS, made=PadsResults),
    "packed_row_slice": Mutant("packed", ("take_rows", "linear"), also=CODED),
    "packed_too_small": Mutant("packed", ("take_rows", "linear"), also=CODED, made=PacksTooSmall),
    "kernel_missing": Mutant("claims", ("tanh",), also=JUDGES, made=ClaimsMore),
    "mask_ignored": Mutant("claims", ("softmax",), also=JUDGES),
    "reason_empty": Mutant("claims", also=EVERY, made=EmptyReasons),
    "reason_false": Mutant("claims", also=EVERY, made=FalseReasons),
    "reason_changes": Mutant("claims", made=ChangesItsMind),
    "driver_opened": Mutant("claims", made=OpensDriver),
    "any_attribute": Mutant("claims", also=JUDGES, made=TakesAnyAttribute),
    "write_one_byte_off": Mutant("buffers", also=EVERY, made=OneByteOff),
    "callers_memory_kept": Mutant("buffers", made=KeepsCallersMemory),
    "read_early": Mutant("buffers", also=EVERY, made=ReadsEarly),
    "write_overtakes": Mutant("buffers", made=WriteOvertakes),
    "freed_early": Mutant("buffers", also=suites("memory"), made=FreesEarly),
    "zero_bytes_refused": Mutant("buffers", made=RefusesNothing),
    "double_free": Mutant("buffers", made=FreesTwice),
    "bad_index_followed": Mutant("errors", ("take_rows",), also=FOUND),
    "fault_swallowed": Mutant("errors", ("take_rows", "put_rows", "attention", "cast"), also=CODED | FOUND),
    "fault_repeated": Mutant("errors", also=CODED | FOUND, made=RepeatsFaults),
    "other_errors": Mutant("errors", also=CODED | FOUND, made=OtherErrors),
    "prints": Mutant("errors", also=suites("lifecycle"), made=Prints),
    "exits": Mutant("errors", also=CODED | FOUND, made=Exits),
    "system_exit": Mutant("errors", also=CODED | FOUND, made=RaisesSystemExit),
    "hangs_in_compile": Mutant("errors", also=EVERY, made=HangsInCompile),
    "crashes_late": Mutant("errors", also=EVERY, made=CrashesLate),
    "operand_remembered": Mutant("lifecycle", also=EVERY, made=RemembersOperands),
    "leak_per_plan": Mutant("memory", made=LeaksPlans),
    "leak_per_call": Mutant("memory"),
    "scratch_shared": Mutant("threads", ("softmax",), also=JUDGES),
    "kernel_lost": Mutant("coverage", ("sum",), made=LosesKernel),
    "f16_lost": Mutant("coverage", ("sum", "add"), made=LosesHalves),
    "gil_held": Mutant("threads", holds_gil=True),
    "any_operand": Mutant("claims", also=JUDGES, made=TakesAnyOperand),
    "parents_queue": Mutant("fork", made=ParentsQueue),
    "dies_in_a_child": Mutant("fork", made=DiesInAChild),
    "raises_in_a_child": Mutant("fork", made=RaisesInAChild),
    "copies_nothing": Mutant("fallback", made=CopiesNothing),
    "copies_half": Mutant("fallback", made=CopiesHalf),
}


def backend(path: str, fault: str = "") -> Backend:
    """The backend with this fault; "" for none, SLOW_QUEUE for one that is right and takes its time."""
    mutant = MUTANTS.get(fault)
    library = Library(path, holds_gil=mutant is not None and mutant.holds_gil)
    made = SlowQueue if fault == SLOW_QUEUE else mutant.made if mutant is not None else None
    if fault and made is None and mutant is not None and not mutant.holds_gil:
        known = library.set_fault(fault.encode())
        assert known, f"no kernel has the fault {fault}"
    if made is not None and issubclass(made, NativeBackend):
        return made(library)
    if made is None:
        return NativeBackend(library)

    class OnItsDevice(NativeBackend):
        def opened(self) -> Sequence[Device]:
            queue = issubclass(made, QueueDevice)
            devices = super().opened()
            return [made(library, d.name) if isinstance(d, QueueDevice) == queue else d for d in devices]

    return OnItsDevice(library)
