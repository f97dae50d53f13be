"""A child process that meets a backend's code first, and what is remembered of it.

Native code may end the process that imports it, or never come back. So the first time a build of a wheel is met a child
rehearses import, hook, contract and `devices()`; only then does this process run the plugin. The verdict is kept for
the user under a key of everything it may depend on. Files that surround the first open in this process, the first plan
from the first question to its last program, and the first call tell the next one at which of them the process died.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from .manifest import LONGEST_WAIT_S
from .markers import PLANNING, Death, Guard, Marker, guards, taken
from .sweep import sweep, used
from .variables import setting

__all__ = [
    "ALWAYS",
    "FIRST",
    "NEVER",
    "Guarded",
    "Moment",
    "Proof",
    "Verdict",
    "cache_folder",
    "deadline",
    "gil_is_kept_off",
    "gil_is_on",
    "key_of",
    "mode",
    "rehearsed",
    "wrong_settings",
]

FIRST, ALWAYS, NEVER = "first", "always", "never"
SCHEMA = "jackfield.probe/1"
LONGEST_S = 3600  # of a rehearsal
_TAIL = 4000  # characters of what a child wrote on stderr
Moment = Literal["open", "question", "alloc", "write", "compile", "call"]

# The answer has a pipe of its own, which nothing a plugin prints can reach. -I keeps the current folder, PYTHON*
# variables and the user's site out; the search path is the one given.
_CHILD = (
    "import json, sys; request = json.loads(sys.stdin.readline()); sys.path[:] = request['path']; "
    "from jackfield.rehearsal import main; main(request, int(sys.argv[1]))"
)


@dataclass(frozen=True)
class Verdict:
    """What is known of a build.

    state: "ok": a child outlived it; "crashed", "hung"; "unknown": it raised, or has no device, which may have causes
    outside the wheel. stage: at which. where: "child", or "here" for a process that died after the rehearsal. proven:
    the moments that a process outlived; died: those at which one has died, nobody knows why. seconds: the child took.
    gil: the import turned the GIL on, on a Python that runs without.
    """

    state: Literal["ok", "crashed", "hung", "unknown"]
    code: str = ""
    error: str = ""
    stage: str = ""
    where: Literal["child", "here"] = "child"
    traceback: str = ""
    seconds: float = 0.0
    proven: tuple[str, ...] = ()
    gil: bool = False
    died: tuple[str, ...] = ()

    def is_whole(self) -> bool:
        """Whether every field is what it must be, which a file need not keep to."""
        texts = (self.state, self.code, self.error, self.stage, self.where, self.traceback, *self.proven, *self.died)
        return (
            all(isinstance(text, str) for text in texts)
            and self.state in ("ok", "crashed", "hung", "unknown")
            and self.code in (("crashed", "hung", "quit") if self.state in ("crashed", "hung") else ("",))
            and self.where in ("child", "here")
            and type(self.seconds) in (int, float)
            and isinstance(self.gil, bool)
        )


def gil_is_on() -> bool:
    """Whether threads of this process run Python one at a time. Only a free-threaded Python can answer False."""
    asked: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return asked()


def gil_is_kept_off() -> bool:
    """Whether the user forbids any module to turn it on."""
    variable = None if sys.flags.ignore_environment else os.environ.get("PYTHON_GIL")
    return sys._xoptions.get("gil", variable) == "0"  # noqa: SLF001 (documented, though its name is private)


def mode() -> str:
    """JACKFIELD_PROBE: first (a build that is not known), always, or never; what is none of these counts as first."""
    asked = setting("JACKFIELD_PROBE") or FIRST
    return asked if asked in (FIRST, ALWAYS, NEVER) else FIRST


def deadline(manifest_s: float) -> float:
    """Seconds a rehearsal may take: JACKFIELD_PROBE_TIMEOUT, else what the manifest says, up to a bound."""
    return _seconds(setting("JACKFIELD_PROBE_TIMEOUT") or "") or min(manifest_s, LONGEST_WAIT_S)


def _seconds(text: str) -> float:
    """0 for what is no number of seconds."""
    with suppress(ValueError):
        found = float(text)
        return found if 0 < found <= LONGEST_S else 0.0
    return 0.0


def wrong_settings() -> list[str]:
    """Variables of the rehearsal that can't be honoured, in words."""
    asked, seconds = setting("JACKFIELD_PROBE"), setting("JACKFIELD_PROBE_TIMEOUT")
    wrong = []
    if asked and asked not in (FIRST, ALWAYS, NEVER):
        wrong.append(f"JACKFIELD_PROBE={asked}: must be one of {FIRST}, {ALWAYS}, {NEVER}; taken as {FIRST}")
    if seconds and not _seconds(seconds):
        wrong.append(f"JACKFIELD_PROBE_TIMEOUT={seconds}: must be seconds, above 0 and at most {LONGEST_S}; not used")
    return wrong


def cache_folder() -> Path | None:
    """Where verdicts are kept: below JACKFIELD_CACHE, or this user's cache folder; None for JACKFIELD_CACHE=off."""
    chosen = setting("JACKFIELD_CACHE")
    if chosen == "off":
        return None
    if chosen:
        return Path(chosen).expanduser() / "backends"
    import platformdirs  # noqa: PLC0415 (only where a plugin is opened)

    return Path(platformdirs.user_cache_dir("jackfield")) / "backends"


def key_of(name: str, build: str, core: str, files: Sequence[Path], watch: Sequence[str]) -> str:
    """The name, and a digest of the wheel's record, size and time of its files and of those it watches, this Python
    and this core. Bytecode does not count; a file that is not there counts as such.
    """
    python = [sys.implementation.cache_tag, getattr(sys, "abiflags", ""), sys.version, sys.executable]
    seen = [[str(path), *_stamp(path)] for path in (*files, *map(Path, watch))]
    text = json.dumps([build, core, python, sorted(seen)])
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except (OSError, ValueError):  # not there, or no name that a file may have
        return -1, -1
    return found.st_size, found.st_mtime_ns


# The child


def rehearsed(request: Mapping[str, Any], timeout_s: float) -> Verdict | None:
    """What a child process makes of a plugin; None where no child can be had, as in a frozen app.

    request: what `jackfield.rehearsal.main` reads.
    """
    if os.name != "posix" or getattr(sys, "frozen", False) or not sys.executable:
        return None
    reader, writer = os.pipe()
    began = time.perf_counter()
    try:
        child = subprocess.Popen(  # noqa: S603 (this very interpreter)
            [sys.executable, "-I", "-X", "faulthandler", "-c", _CHILD, str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(writer,),
            start_new_session=True,  # so that whatever it starts can be ended with it
        )
    except OSError:
        os.close(reader)
        return None
    finally:
        os.close(writer)
    return _watched(child, request, reader, timeout_s, began)


def _watched(
    child: subprocess.Popen[bytes], request: Mapping[str, Any], reader: int, timeout_s: float, began: float
) -> Verdict:
    """Ends the child at the deadline, or when it has answered."""
    said = _Drain(os.fdopen(reader, "rb"), 1 << 20)
    assert child.stderr is not None  # both asked for above
    assert child.stdin is not None
    wrote = _Drain(child.stderr, _TAIL)
    with suppress(OSError):  # it is gone already: its end tells why
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.close()
    late = False
    try:
        said.ended(timeout_s)  # sooner seen than the end of the process
        child.wait(max(0.0, began + timeout_s - time.perf_counter()))
    except subprocess.TimeoutExpired:
        late = True
    finally:
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    seconds = time.perf_counter() - began
    lines = said.text().splitlines()
    stage = next((line[6:] for line in reversed(lines) if line.startswith("stage ")), "start")
    answer = next((line[7:] for line in lines if line.startswith("answer ")), None)
    if answer is not None:
        return Verdict("ok" if answer == "ok" else "unknown", stage=stage, seconds=seconds, gil="gil on" in lines)
    name = request["name"]
    doing = f"at {stage} of {name} (child)"
    if late:
        return Verdict("hung", "hung", f"longer than {timeout_s:g} s {doing}", stage, seconds=seconds)
    if child.returncode < 0:
        died = f"{_signal(-child.returncode)} {doing}"
        return Verdict("crashed", "crashed", died, stage, traceback=wrote.text(), seconds=seconds)
    error = f"the process ended with code {child.returncode} before it answered, {doing}"
    return Verdict("crashed", "quit", error, stage, traceback=wrote.text(), seconds=seconds)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Drain:
    """Reads a pipe to its end in a thread, and keeps its last bytes: a child that writes much is not held up."""

    def __init__(self, pipe: IO[bytes], keep: int) -> None:
        self._pipe, self._keep, self._tail = pipe, keep, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(OSError, ValueError), self._pipe as pipe:
            while piece := os.read(pipe.fileno(), 1 << 16):
                self._tail = (self._tail + piece)[-self._keep :]

    def ended(self, timeout_s: float) -> None:
        """Wait until nobody can write any more, at most so long."""
        self._thread.join(timeout_s)

    def text(self) -> str:
        """What came. A process that the child left behind may hold the pipe open; nobody waits for that one."""
        self._thread.join(1.0)
        return self._tail.decode("utf-8", "replace")


# What is remembered


@dataclass(eq=False)
class Proof:
    """What is known of one build on this machine, and how that is found out and kept.

    folder: of the verdicts; None: nothing is kept. key: `key_of`.
    """

    folder: Path | None
    key: str
    verdict: Verdict | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def found(self, ask: Callable[[bool], Verdict | None], *, again: bool = False) -> Verdict | None:
        """The verdict: kept, left behind by a process that died, or of `ask`, which one process at a time runs.

        ask: is told whether to go as far as an allocation.
        """
        with self._lock:
            kept = None if again or self._markers() else self._read()
            self.verdict = kept or self._asked(ask, again=again)
            return self.verdict

    def _asked(self, ask: Callable[[bool], Verdict | None], *, again: bool) -> Verdict | None:
        """A process that crashed on it is the verdict. One that died of nobody knows what, as when it was killed, sends
        the build to the child again; a second one at the same moment counts as a crash.
        """
        with self._alone():
            known = self._read()
            kept = None if again else known
            before = known.died if known is not None else ()
            death = self._left_behind()
            if death is not None:
                kept = None
                if death.is_crash or death.moment in before:
                    text = death.text if death.is_crash else f"{death.text}, as one before it did"
                    kept = Verdict("crashed", "crashed", text, death.moment, "here", traceback=death.dump)
                    self._write(kept)
                before = (*before, death.moment)
            if kept is None:
                kept = ask(death is not None)
                if kept is not None and kept.state != "unknown":
                    kept = replace(kept, died=before)
                    self._write(kept)
            return kept

    def unproven(self, moment: str) -> bool:
        """Whether no process is known to have outlived this on this build, and it can be remembered."""
        return self.folder is not None and self.verdict is not None and moment not in self.verdict.proven

    @contextmanager
    def first(self, moment: Moment) -> Iterator[None]:
        """Around the first open or call of a build: a process that dies inside leaves a file that says so."""
        if self.folder is None or not self.unproven(moment):
            yield
            return
        path = self._marker(moment)
        marker: Marker | None = None
        try:
            marker = Marker.made(path)
            if marker is not None:
                marker.mark(moment, moment)
            yield
        finally:
            with suppress(OSError):
                path.unlink()
            if marker is not None:
                marker.end()
        if marker is not None:
            self.prove((moment,))

    def guard(self, moments: Iterable[str]) -> Guard:
        """For plans that are made on the build, where no process is known to have outlived these."""
        return Guard(moments, lambda: Marker.made(self._marker("plan")))

    def _marker(self, what: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.key}.{what}.{os.getpid()}-{threading.get_native_id()}.busy"

    def prove(self, moments: Iterable[str]) -> None:
        """Remember that a process has outlived these."""
        outlived = set(moments)
        with self._lock, self._alone():
            known = self._read() or self.verdict
            if known is not None and known.state in ("ok", "unknown"):
                died = tuple(one for one in known.died if one not in outlived)
                self.verdict = replace(known, proven=tuple(sorted({*known.proven, *outlived})), died=died)
                if known.state == "ok":
                    self._write(self.verdict)

    def _left_behind(self) -> Death | None:
        """How a process died, from the markers that nobody holds, which are taken away; a crash before others."""
        found = []
        for marker in self._markers():
            _, moment, who, _ = marker.name.rsplit(".", 3)
            text = taken(marker)
            if text is not None and (death := Death.read(moment, who.partition("-")[0], text)) is not None:
                found.append(death)
        return max(found, key=lambda death: death.is_crash, default=None)

    def _markers(self) -> list[Path]:
        """Of processes that are in a first moment of this build, or died there."""
        return [] if self.folder is None else sorted(self.folder.glob(f"{self.key}.*.busy"))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process asks or writes about this build meanwhile."""
        if self.folder is None:
            yield
            return
        from filelock import FileLock  # noqa: PLC0415 (a plan on the core's own devices needs none)

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            alone = FileLock(self.folder / f"{self.key}.lock")
            alone.acquire()
        except OSError:  # a folder that can't be written to: then nothing is remembered
            self.folder = None
            yield
            return
        try:
            yield
        finally:
            alone.release()

    def _read(self) -> Verdict | None:
        if self.folder is None:
            return None
        try:
            place = self.folder / f"{self.key}.json"
            fields = json.loads(place.read_text("utf-8"))
            if fields.pop("schema") != SCHEMA:
                return None
            found = Verdict(**{**fields, "proven": tuple(fields["proven"]), "died": tuple(fields["died"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):  # not there, or not ours
            return None
        used(place)
        return found if found.is_whole() else None

    def _write(self, verdict: Verdict) -> None:
        if self.folder is None:
            return
        place = self.folder / f"{self.key}.json"
        part = place.with_suffix(f".{os.getpid()}.part")
        with suppress(OSError):  # a full disk: the next process asks again
            part.write_text(json.dumps({"schema": SCHEMA, **asdict(verdict)}), "utf-8")
            part.replace(place)
            sweep(self.folder, self.key)

    def forget(self) -> None:
        """What was found out is asked again."""
        self.verdict = None
        if self.folder is not None:
            for path in self.folder.glob(f"{self.key}.*"):
                with suppress(OSError):
                    path.unlink()


class Guarded:
    """The builds that are asked while one plan is made, each with its guard where it needs one."""

    _lock = threading.Lock()  # of `guards`: two plans on one build share its guard

    def __init__(self) -> None:
        self._mine: list[tuple[Guard, Proof]] = []

    def add(self, devices: Mapping[str, Proof | None]) -> None:
        """devices: names with what is known of their builds."""
        for name, proof in devices.items():
            moments = [m for m in PLANNING if proof.unproven(m)] if proof is not None else []
            if proof is None or not moments:
                continue
            with self._lock:
                guard = guards.get(name) or next((g for g, p in self._mine if p is proof), None)
                guard = guard or proof.guard(moments)
                guard.users += 1
                self._mine.append((guard, proof))
                guards[name] = guard

    def end(self, *, well: bool) -> None:
        """The plan is made, or (not `well`) it can't be."""
        mine, self._mine = self._mine, []
        for guard, proof in mine:
            with self._lock:
                guard.users -= 1
                if not guard.users:
                    for name in [n for n, g in guards.items() if g is guard]:
                        del guards[name]
                    guard.end()
            if well and any(map(proof.unproven, guard.outlived)):
                proof.prove(guard.outlived)
