"""Suite `claims`: what a backend says of itself is true, complete, in words, and needs no hardware."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, get_args

from jackfield import ops, registry
from jackfield.backend import Attrs, Backend, Kernel, Reason, ReasonCode, Step, Target, refusal
from jackfield.conformance.cases import Example, examples
from jackfield.conformance.claims import claims
from jackfield.dtypes import DTYPES, f32
from jackfield.op import OPS, Op
from jackfield.spec import Spec
from jackfield_conformance.direct import refused, run, step_of
from jackfield_conformance.trials import Refused, Subject, Trial
from jackfield_conformance.verdicts import judged

__all__ = ["RUNNING", "kernel_of", "trials"]

RUNNING = tuple(name for name in ops.__all__ if not OPS[name].is_view)
INVENTED = "invented_by_the_kit"
OWN = ("reference", "sim")  # take what the core has, whatever it is
CODES = frozenset(get_args(ReasonCode))
QUIET_EVENTS = ("open", "ctypes.dlopen", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.")
SOURCE = (".py", ".pyc")  # an import in a function is clumsy, but opens no hardware


def trials(seed: int) -> Iterator[Trial]:
    yield Trial("claims/table", table_is_sound)
    yield Trial("claims/file", file_is_true)
    yield Trial("claims/no-hardware", needs_no_hardware)
    for name in RUNNING:
        yield Trial(f"claims/runs/{name}", partial(claimed_runs, name, seed))
        yield Trial(f"claims/reads/{name}", partial(optional_parts_are_read, name, seed))
        yield Trial(f"claims/unknown/{name}", partial(unknown_is_refused, name))
        yield Trial(f"claims/reasons/{name}", partial(reasons_are_words, name))


@lru_cache(maxsize=2)
def examples_of(name: str, seed: int = 0) -> tuple[Example, ...]:
    """The examples of an op, kept while its trials follow one another."""
    return tuple(examples(OPS[name], seed))


def kernel_of(name: str, backend: Backend) -> Kernel:
    """Its entry for an op. Raises: Refused where there is none."""
    kernel = backend.kernels().get(name)
    if kernel is None:
        raise Refused(Reason(f"no kernel for {name}", "op"))
    return kernel


# The table


def table_is_sound(subject: Subject) -> list[str]:
    table = subject.backend.kernels()
    if not isinstance(table, Mapping):
        return [f"kernels() gives a {type(table).__name__}, must give a mapping"]
    found = [text for name, kernel in table.items() for text in _entry(name, kernel)]
    if dict(subject.backend.kernels()) != dict(table):
        found.append("kernels() gives another table the second time")
    return found


def _entry(name: str, kernel: Kernel) -> Iterator[str]:
    op = OPS.get(name)
    if op is None or op.is_view:
        yield f"{name!r} is listed, which is no op that runs"
        return
    if unknown := sorted(set(kernel.operands) - set(op.operands)):
        yield f"{name}: lists the operand {unknown[0]!r}, which the op does not have"
    if INVENTED in kernel.attributes or (unknown := sorted(set(kernel.attributes) - set(op.attrs))):
        yield f"{name}: lists the attribute {(unknown or [INVENTED])[0]!r}, which the op does not have"
    for what, dtypes in (*kernel.operands.items(), ("its result", kernel.results)):
        if not dtypes:
            yield f"{name}: no dtype is listed for {what}"
        if strange := sorted(set(dtypes) - DTYPES.keys()):
            yield f"{name}: {what} is listed as {strange[0]!r}, which is no dtype"


def claimed_runs(name: str, seed: int, subject: Subject) -> list[str]:
    """A kernel that is listed takes something, and what it takes compiles and runs, once for each set of dtypes."""
    kernel_of(name, subject.backend)
    tried, reasons = set(), set()
    for example in examples_of(name, seed):
        dtypes = tuple(spec and spec.dtype for spec in example.specs)
        if dtypes in tried:
            continue
        try:
            run(example, subject.backend, subject.device)
        except Refused as e:
            reasons.add(str(e))
            continue
        tried.add(dtypes)
    return [] if tried else [f"a kernel for {name} is listed, and every case is refused: {'; '.join(sorted(reasons))}"]


def optional_parts_are_read(name: str, seed: int, subject: Subject) -> list[str]:
    """Each optional operand, and each attribute at another value than its default, changes the result as it must."""
    kernel_of(name, subject.backend)
    found, taken = [], False
    reason: Refused | None = None
    for example in examples_of(name, seed):
        if example.layout != "dense" or not _has_options(OPS[name], example):
            continue
        try:
            found += [f"{example}: {text}" for text in judged(example, subject.backend, subject.device).mistakes]
            taken = True
        except Refused as e:
            reason = e
    if reason is not None and not taken:
        raise reason
    return found


def _has_options(op: Op, example: Example) -> bool:
    given = any(name in op.optional for name in example.views)
    return given or any(value != op.defaults.get(key, object()) for key, value in example.attrs.items())


# Unknown means refused


def unknown_is_refused(name: str, subject: Subject) -> list[str]:
    """An invented attribute, an invented operand, and one that the kernel does not list: refused, with the right code.

    As for a backend that is older than the core: an op may get an optional operand or an attribute at any time.
    """
    kernel = kernel_of(name, subject.backend)
    step = _taken_step(name, subject)
    found = []
    invented = replace(step, attrs=Attrs({**step.attrs, INVENTED: 1}))
    found += _must_refuse(invented, "attribute", "an invented attribute", subject)
    found += _must_refuse_longer(step, subject)
    for example in examples_of(name):
        for operand, spec in zip(OPS[name].operands, example.specs, strict=True):
            if spec is not None and operand not in kernel.operands:
                found += _must_refuse(step_of(example), "", f"the operand {operand!r}", subject)
    return found[:1]


def _must_refuse_longer(step: Step, subject: Subject) -> list[str]:
    """An invented operand, also by a backend that looks up in the core what its kernels read; the core's own may."""
    backend, table = subject.backend, subject.backend.kernels()
    with _one_operand_more(step.op):
        longer = replace(step, operands=(*step.operands, Spec(f32, (1,))))
        table = table if backend.name in OWN else backend.kernels()
        reason: object = refusal(longer, table, subject.device.target)
        if reason is None:
            reason = backend.why_not(longer, subject.device.target)
    return _wrongly_refused(longer, reason, "operand", "an invented operand")


@contextmanager
def _one_operand_more(name: str) -> Iterator[None]:
    """As if a later core had given the op another optional operand."""
    op = OPS[name]
    OPS[name] = longer = copy(op)
    longer.operands, longer.optional = (*op.operands, INVENTED), op.optional | {INVENTED}
    try:
        yield
    finally:
        OPS[name] = op


def _taken_step(name: str, subject: Subject) -> Step:
    """A step of this op that the device takes. Raises: Refused where there is none."""
    reason: Reason | str | None = None
    for example in examples_of(name):
        step = step_of(example)
        reason = refused(step, subject.backend, subject.device)
        if reason is None:
            return step
    raise Refused(reason)


def _must_refuse(step: Step, code: str, what: str, subject: Subject) -> list[str]:
    """code: "" for any, where an operand before it may be refused first."""
    return _wrongly_refused(step, refused(step, subject.backend, subject.device), code, what)


def _wrongly_refused(step: Step, reason: object, code: str, what: str) -> list[str]:
    if reason is None:
        return [f"{step.op}: {what}, which the kernel does not list, is taken"]
    if code and getattr(reason, "code", "other") != code:
        return [f"{step.op}: {what} is refused with code {getattr(reason, 'code', 'other')!r}, must be {code!r}"]
    return []


def reasons_are_words(name: str, subject: Subject) -> list[str]:
    """Every answer of why_not is None or a sentence with a known code, and the same when it is asked again."""
    kernel_of(name, subject.backend)
    steps = [step_of(example) for example in examples_of(name)]
    first = [refused(step, subject.backend, subject.device) for step in steps]
    again = [refused(step, subject.backend, subject.device) for step in reversed(steps)][::-1]
    for step, reason, second in zip(steps, first, again, strict=True):
        if reason is None and second is None:
            continue
        if not isinstance(reason, str) or not reason.strip():
            return [f"{step} is refused by {reason!r}, must be a sentence"]
        if reason != second:
            return [f"{step} is refused by {reason!r}, and by {second!r} when asked again"]
        code = getattr(reason, "code", "other")
        if code not in CODES:
            return [f"{step} is refused with code {code!r}, must be one of {' '.join(sorted(CODES))}"]
    return []


# Without hardware

_heard: list[str] | None = None
_listening = False


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is not None and event.startswith(QUIET_EVENTS) and not str(arguments[0]).endswith(SOURCE):
        _heard.append(f"{event} {arguments[0]}")


def needs_no_hardware(subject: Subject) -> list[str]:
    """`kernels`, `why_not` and `reads` open no file, library, process or device, for any target."""
    global _heard, _listening  # noqa: PLW0603 (an audit hook stays for the life of a process)
    if not _listening:
        sys.addaudithook(_hear)
        _listening = True
    backend = subject.backend
    steps = [step_of(e) for name in RUNNING for e in examples_of(name) if e.layout == "dense"]
    asked: list[str] = []
    heard: list[str] = []
    before = _mapped()
    with suppress(AttributeError):
        backend.devices = lambda: asked.append("devices()") or ()  # type: ignore[method-assign, func-returns-value]
    try:
        _heard = heard
        for target in (*backend.targets(), subject.device.target):
            _ask(backend, steps, target)
    finally:
        _heard = None
        backend.__dict__.pop("devices", None)
    new = sorted(_mapped() - before)
    return [f"why_not, kernels or reads used {text}" for text in dict.fromkeys([*asked, *heard, *new])]


def _ask(backend: Backend, steps: Sequence[Step], target: Target) -> None:
    table = backend.kernels()
    for step in steps:
        if refusal(step, table, target) is None:
            backend.why_not(step, target)
            backend.reads(step, target)


def _mapped() -> set[str]:
    """Files this process has mapped, where the system tells."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    return {os.fspath(line.split()[-1]) for line in lines if "/" in line}


# The file in the wheel


def file_is_true(subject: Subject) -> list[str]:
    """claims.txt of the wheel against what the kit finds at the first target: a lost kernel shows as a changed line."""
    text = _claims_text(subject.backend.name)
    target = next(iter(subject.backend.targets()), subject.device.target)
    written, found = _rows(text), _rows(claims(subject.backend, target))
    wrong = []
    for row in sorted(written.keys() | found.keys()):
        old, new = written.get(row, (0, 0)), found.get(row, (0, 0))
        same_core = old[1] == new[1]  # another core may declare other cases of this op
        if (old[0] != new[0]) if same_core else (bool(old[0]) != bool(new[0])):
            wrong.append(f"{row}: claims.txt says {old[0]}/{old[1]}, it takes {new[0]}/{new[1]}")
    return wrong


def _claims_text(name: str) -> str:
    """Raises: Refused where the backend comes from no wheel."""
    status, manifest = next(((s, m) for s, m in registry.listed() if s.name == name), (None, None))
    if status is None or manifest is None or not manifest.claims:
        raise Refused(Reason(f"{name} comes with no claims file", "other"))
    try:
        dist = distribution(status.dist)
    except PackageNotFoundError:
        raise Refused(Reason(f"{name} is no installed distribution", "other")) from None
    for place in (manifest.claims, f"extra_metadata/{manifest.claims}"):
        if (text := dist.read_text(place)) is not None:
            return text
    return ""


def _rows(text: str) -> dict[str, tuple[int, int]]:
    """Cases taken and declared by "op dtype"."""
    rows = {}
    for line in text.splitlines():
        row, _, count = line.rpartition(" ")
        taken, _, declared = count.partition("/")
        rows[row] = (int(taken), int(declared))
    return rows
