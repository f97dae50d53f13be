"""The contract between the core and a backend wheel. A plugin imports this module and itself, nothing else.

Only Python objects cross: buffers are opaque, bytes travel as memoryviews, so wheels built years and compilers apart
work together. A backend writes `devices` and `kernels`; a device `alloc free write read compile`; all else has a
default that makes a minimal backend correct.

A long file, and better whole: it is the one page a vendor reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal, Self

import pluggy

from .dtypes import DTYPES, DType
from .errors import (
    BadIndex,
    ContractError,
    DeviceError,
    DeviceLost,
    Error,
    ForkedError,
    KernelError,
    OutOfMemory,
    Unavailable,
)
from .graph import Attr, Attrs
from .op import OPS, Work
from .spec import Spec

__all__ = [
    "API",
    "DTYPES",
    "Attr",
    "Attrs",
    "Backend",
    "BadIndex",
    "Buffer",
    "Communicator",
    "ContractError",
    "DType",
    "Device",
    "DeviceError",
    "DeviceLost",
    "Error",
    "Event",
    "Finding",
    "ForkedError",
    "Group",
    "Grouping",
    "Kernel",
    "KernelError",
    "Limits",
    "Link",
    "Memory",
    "OutOfMemory",
    "Packing",
    "Place",
    "PlacedStep",
    "Program",
    "Rates",
    "Reads",
    "Reason",
    "ReasonCode",
    "Seen",
    "Span",
    "Spec",
    "Step",
    "Target",
    "Unavailable",
    "Usage",
    "Work",
    "hookimpl",
    "operand_names",
    "refusal",
    "work_of",
]

API = (0, 1)  # 0.x until the scheduler and one asynchronous GPU backend have used it

hookimpl = pluggy.HookimplMarker("jackfield")

Buffer = Any  # one allocation of a device; opaque to the core
Event = Any  # a point in a device's queue; opaque to the core
Reads = Literal["any", "rows", "dense"]
ReasonCode = Literal["op", "dtype", "rank", "shape", "layout", "operand", "attribute", "size", "memory", "other"]

MAX_RANK = 4


class Reason(str):
    """Why a device does not take a step, in words, with a stable code."""

    __slots__ = ("code",)
    code: ReasonCode

    def __new__(cls, text: str, code: ReasonCode = "other") -> Self:
        reason = super().__new__(cls, text)
        reason.code = code
        return reason


@dataclass(frozen=True)
class Step:
    """One op on Specs; nothing is placed yet. Plain data: it prints, pickles and hashes.

    operands: in the order of the op's declaration, None for an absent optional one.
    attrs: all attributes of the op, defaults filled in.
    """

    op: str
    operands: tuple[Spec | None, ...]
    result: Spec
    attrs: Attrs = field(default_factory=Attrs)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.op, self.operands, self.result, self.attrs))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Without the hash: that of text differs between processes."""
        return Step, (self.op, self.operands, self.result, self.attrs)

    def __str__(self) -> str:
        parts = [str(o) if o is not None else "-" for o in self.operands]
        return f"{self.op}({', '.join(parts + [f'{k}={v}' for k, v in self.attrs.items()])}) -> {self.result}"


@dataclass(frozen=True)
class Limits:
    """Bounds of a device as data. None: no bound.

    max_buffer: bytes of one allocation; max_operand: bytes of one operand a kernel can address.
    max_steps, max_operands: steps, and distinct outside operands, of one run.
    offload_rows: from this many rows on, streaming host constants to this device pays; this version does not read it.
    min_rows: by op name, fewer rows are refused.
    """

    max_buffer: int | None = None
    max_operand: int | None = None
    max_steps: int | None = None
    max_operands: int | None = None
    offload_rows: int | None = None
    min_rows: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """Shipped figures of a device for the default cost: multiply-adds and bytes a second, seconds a launch, and for
    crossings to the host bytes a second and seconds each.
    """

    multiply_adds: float = 2e9
    nbytes: float = 5e9
    launch: float = 1e-6
    copy_nbytes: float = 5e9
    copy_launch: float = 5e-6


@dataclass(frozen=True)
class Target:
    """What decides support and kernels, as data: needs no hardware.

    features: words. The core knows `host_visible` (buffers are the host's own memory), `reads_host` (kernels may read
        host memory) and `zeroed` (a new buffer holds zeros).
    stamp: changes when an answer of `why_not`, `scratch`, `result_nbytes` or `pack` may change.
    """

    kind: str
    arch: str
    features: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)
    rates: Rates = field(default_factory=Rates)
    stamp: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes of a device, or 0 for unknown."""

    total: int = 0
    free: int = 0


class Usage(Enum):
    """What an allocation is for."""

    CONSTANT = "constant"
    STATE = "state"
    COMPUTE = "compute"
    STAGING = "staging"


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: a buffer of one device, and the byte its element [0, ..., 0] starts at."""

    buffer: Buffer
    offset: int
    spec: Spec


@dataclass(frozen=True)
class PlacedStep:
    """A Step with every address known. operands: None for an absent optional one."""

    step: Step
    operands: tuple[Place | None, ...]
    result: Place


@dataclass(frozen=True)
class Group:
    """Placed steps that one kernel makes together; mostly one."""

    steps: tuple[PlacedStep, ...]


@dataclass(frozen=True)
class Link:
    """Which memory a step of a run reads and writes. Values are numbered, run by run: equal numbers, same memory.

    operands: the value each operand lies in, None for an absent one. offsets: the byte of the value each starts at.
    result: the value it makes; one of the operands' where the step changes that in place.
    outside: the result is read after the run: by a later one, by a copy, or as an output.
    """

    operands: tuple[int | None, ...]
    offsets: tuple[int, ...]
    result: int
    outside: bool


@dataclass(frozen=True)
class Grouping:
    """A device's wish for one run.

    groups: indices of the shown steps in execution order; together a permutation that keeps makers before users. A
        result that a step of the same group reads is fused away: nothing else may read it. All others are made.
    keeps: (step, until): the result of `step` stays untouched until step `until` is done.
    unwritten: what is fused away is never written or read. It gets no memory then, only an address that no other value
        has at that time; False: memory of its size, as room for whoever makes the group.
    """

    groups: tuple[tuple[int, ...], ...]
    keeps: tuple[tuple[int, int], ...] = ()
    unwritten: bool = False


@dataclass(frozen=True)
class Packing:
    """A packed layout of a constant.

    name: becomes `Spec.layout`. nbytes: bytes of the packed form.
    pack(plain, packed): fills `packed` (writable, nbytes) from the plain bytes; releases the GIL where it takes long.
    unpack(packed, plain): the way back, bit for bit, which conformance tries; None for a one-way packing.
    part: plain and packed bytes of the smallest part that `pack` takes by itself, whole blocks. Both forms are such
        parts one after the other; the last may have fewer plain bytes. `pack` is given any number of neighbours, and is
        called by several threads at once. None: the constant is packed as a whole.
    looks: `pack` gives the number of the first block in `plain` whose scale is no finite number, as
        `DType.first_bad_block` does, or None; it packs all the same. False: the core looks.
    """

    name: str
    nbytes: int
    pack: Callable[[memoryview, memoryview], int | None]
    unpack: Callable[[memoryview, memoryview], object] | None
    part: tuple[int, int] | None = None
    looks: bool = False


@dataclass(frozen=True)
class Kernel:
    """What one op's kernel reads. What is present in a step and not listed here is refused by the core.

    operands: names of dtypes by operand name. results: names of dtypes of the result.
    attributes: names it honours; one it does not know may be present at its default value only.
    layouts: names of packings by operand name, besides plain bytes.
    """

    operands: Mapping[str, frozenset[str]]
    results: frozenset[str]
    attributes: frozenset[str] = frozenset()
    layouts: Mapping[str, frozenset[str]] = field(default_factory=dict)


class Program(ABC):
    """One run, compiled: all addresses are final."""

    @abstractmethod
    def run(self) -> None:
        """Execute with one native call that releases the GIL; on an asynchronous device, enqueue.

        A driver that takes a recorded run only once is told it anew each time, without waiting or allocating.
        """

    def check(self) -> None:
        """Raise what kernels found in data (BadIndex and kin) since the last check. Called at read and synchronize."""


class Communicator(ABC):
    """Collectives over devices of one backend; each answers False for "not this time, use the generic way"."""

    @abstractmethod
    def all_reduce(self, places: Sequence[Place]) -> bool: ...

    @abstractmethod
    def all_gather(self, places: Sequence[Place], results: Sequence[Place]) -> bool: ...

    @abstractmethod
    def broadcast(self, places: Sequence[Place]) -> bool: ...

    @abstractmethod
    def free(self) -> None: ...


class Device(ABC):
    """One queue of work and its memory.

    name: "kind:index" or "kind:index:part"; the core sets another index where cards lie in another order than the
        driver lists them (by `card`, else by `id`), so nothing may be read from it. alignment: bytes, a power of two;
        every Place starts at a multiple.
    id: what stays with this very card, as "GPU-8f3a11c2-..."; card: where it is plugged, as "pci-0000:65:00.0", for
        every backend that offers it the same; model, driver: for people. "" where the backend does not tell.
    """

    name: str
    target: Target
    alignment: int = 64
    memory: Memory = Memory()
    id: str = ""
    card: str = ""
    model: str = ""
    driver: str = ""

    @abstractmethod
    def alloc(self, nbytes: int, usage: Usage) -> Buffer:
        """A buffer of at least nbytes (0 is legal), or OutOfMemory."""

    @abstractmethod
    def free(self, buffer: Buffer) -> None:
        """Give the buffer back, after all queued work."""

    @abstractmethod
    def write(self, buffer: Buffer, offset: int, data: memoryview) -> None:
        """Host to device, in queue order. `data` may be reused on return."""

    @abstractmethod
    def read(self, buffer: Buffer, offset: int, out: memoryview) -> None:
        """Device to host, after all queued work."""

    @abstractmethod
    def compile(self, run: Sequence[Group], scratch: Place | None) -> Program:
        """A Program for these placed groups. scratch: one block of the largest `scratch(group)`, or None."""

    def groups(self, steps: Sequence[Step]) -> Grouping:
        """Order, fusion and keeps of one run. Default: one by one."""
        return Grouping(tuple((i,) for i in range(len(steps))))

    def fuse(self, steps: Sequence[Step], links: Sequence[Link]) -> Grouping:
        """`groups` for a device that must know which steps share memory; this is what the core asks."""
        return self.groups(steps)

    def scratch(self, group: Sequence[Step]) -> int:
        """Bytes of work memory a group needs."""
        return 0

    def result_nbytes(self, step: Step) -> int:
        """Bytes to reserve for a result; more than its nbytes only for row padding of block dtypes."""
        return step.result.nbytes

    def borrow(self, data: memoryview) -> Buffer | None:
        """Host memory (a file mapping) as a buffer without a copy, or None. The caller keeps `data` alive."""
        return None

    def host_bytes(self, buffer: Buffer, offset: int, nbytes: int) -> memoryview | None:
        """These bytes of a buffer for constants, writable, good until `free`; None where the host can't write there.

        The core packs into them in place of a `write`: several threads at once, before a Program that reads them is
        compiled.
        """
        return None

    def fill(self, pieces: Sequence[tuple[Packing | None, memoryview, memoryview]]) -> tuple[int, int] | None:
        """Constants to bytes that `host_bytes` gave: each piece packed, or where there is no packing copied, in order.

        Packings are those that `looks`. The core asks this where a device overrides it, with pieces of many constants:
        one native call that gives up the GIL once, so that Python goes on beside it. Several threads call it at once.
        Returns: the number of the first piece with a bad block and the block's number in it; later pieces may be
        missing then. None: all are there.
        """
        for number, (packing, plain, packed) in enumerate(pieces):
            if packing is None:
                packed[:] = plain
            elif (bad := packing.pack(plain, packed)) is not None:
                return number, bad
        return None

    def copy(self, src: Place, dst: Place) -> bool:
        """Direct transfer from another device's Place to one of this device; False: go by way of the host."""
        return False

    def synchronize(self) -> None:
        """Wait for all queued work."""

    def record(self) -> Event:
        """A point in the queue; None on a synchronous device."""
        return None

    def wait(self, event: Event) -> None:
        """Later work of this device starts after the event."""

    def comm(self, peers: Sequence[Device]) -> Communicator | None:
        """A collectives object over this device and its peers, or None for the generic way."""
        return None


class Backend(ABC):
    """A kind of hardware. `api` is the newest contract version the code was written for, as a literal."""

    name: str
    api: tuple[int, int]
    spoken: tuple[int, int] = API  # set by the core before `devices()`

    @abstractmethod
    def devices(self) -> Sequence[Device]:
        """The devices of this machine, or raise Unavailable with what was looked for and where it comes from."""

    @abstractmethod
    def kernels(self) -> Mapping[str, Kernel]:
        """By op name: what its kernel reads. Needs no hardware."""

    def why_not(self, step: Step, target: Target) -> Reason | str | None:
        """Further limits, in words; None: it runs. Pure, needs no hardware; asked after the core's own refusals."""
        return None

    def targets(self) -> Sequence[Target]:
        """Named targets, so that support can be asked without hardware."""
        return ()

    def reads(self, step: Step, target: Target) -> tuple[Reads, ...]:
        """How each operand may arrive: "any" strides, dense "rows", or "dense"; else the planner copies."""
        dense: Reads = "dense"
        return (dense,) * len(step.operands)

    def pack(self, constant: Spec, users: Sequence[Step], target: Target) -> Packing | None:
        """A packed layout that all these users read, or None for plain bytes."""
        return None

    def cost(self, step: Step, target: Target) -> float | None:
        """Seconds of one step, finite and at least 0; default from the op's declared work and the target's rates."""
        work = work_of(step)
        rates = target.rates
        return rates.launch + max(work.multiply_adds / rates.multiply_adds, work.nbytes / rates.nbytes)


@dataclass(frozen=True)
class Finding:
    """One extra line for doctor, from the hook `jackfield_diagnose`."""

    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True)
class Seen:
    """A card visible without its driver, from `jackfield_hardware`. card: bus address or UUID."""

    card: str
    text: str


@dataclass(frozen=True)
class Span:
    """Device-side time of one piece of work, such as a kernel, from `jackfield_spans`.

    start: seconds on the clock of `time.perf_counter()`, to which the device brings its own.
    """

    name: str
    start: float
    seconds: float


def operand_names(op: str) -> tuple[str, ...]:
    """Names of an op's operands in declaration order. Raises KeyError for an op this core does not have."""
    return OPS[op].operands


def work_of(step: Step) -> Work:
    """Declared work of a step."""
    return OPS[step.op].work(step.operands, step.attrs)


def refusal(step: Step, kernels: Mapping[str, Kernel], target: Target) -> Reason | None:
    """The core's own law: what a kernel does not list is refused, whatever the plugin would say."""
    kernel = kernels.get(step.op)
    if kernel is None:
        return Reason(f"no kernel for {step.op}", "op")
    declared = OPS[step.op]
    for name, spec in zip(declared.operands, step.operands, strict=True):
        if spec is not None and (reason := _operand_refusal(step.op, name, spec, kernel, target)):
            return reason
    for name, value in step.attrs.items():
        if name not in kernel.attributes and (name not in declared.defaults or value != declared.defaults[name]):
            return Reason(f"{step.op}: attribute {name!r} is not supported", "attribute")
    if step.result.dtype.name not in kernel.results:
        return Reason(f"{step.op}: result {step.result.dtype}, the kernel makes {_names(kernel.results)}", "dtype")
    if step.result.rank > MAX_RANK:
        return Reason(f"{step.op}: result of rank {step.result.rank}, at most {MAX_RANK}", "rank")
    return None


def _operand_refusal(op: str, name: str, spec: Spec, kernel: Kernel, target: Target) -> Reason | None:
    if name not in kernel.operands:
        return Reason(f"{op}: operand {name!r} is not supported", "operand")
    if spec.dtype.name not in kernel.operands[name]:
        return Reason(f"{op}: {name} is {spec.dtype}, the kernel reads {_names(kernel.operands[name])}", "dtype")
    if spec.rank > MAX_RANK:
        return Reason(f"{op}: {name} has rank {spec.rank}, at most {MAX_RANK}", "rank")
    if spec.layout and spec.layout not in kernel.layouts.get(name, ()):
        return Reason(f"{op}: {name} is packed as {spec.layout}, which the kernel does not read", "layout")
    limit = target.limits.max_operand
    if limit is not None and spec.extent_nbytes > limit:
        return Reason(f"{op}: {name} spans {spec.extent_nbytes} bytes, the limit is {limit}", "size")
    return None


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))
