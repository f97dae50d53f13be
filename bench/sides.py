"""The sides of a comparison as commands: what is run for each measurement, and how its answer is read.

Standard library only, and nothing large: the system counts this process's size at the fork as the child's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer import BENCH, Peer
from peer_sources import IK, LLAMA, PeerError

SINGLES = 32
"""How many ids of the check of output are evaluated one by one."""


@dataclass(frozen=True)
class Task:
    """What is measured: a prompt of so many tokens, or so many generated ones with `depth` in the cache before."""

    kind: str
    tokens: int
    depth: int = 0


@dataclass(frozen=True)
class Side:
    """One way to run a peer. flags: of its llama-bench. pack: whether weights are packed while loading."""

    name: str
    peer: Peer
    flags: tuple[str, ...]
    pack: bool

    def speed(self, model: Path, task: Task, threads: int) -> list[str]:
        """llama-bench with its defaults otherwise: one warm-up, f16 cache, mapped file."""
        counts = ["-p", "0", "-n", str(task.tokens)]
        repeats = "1"
        if task.kind == "prompt":
            counts = ["-p", str(task.tokens), "-n", "0"]
            if self.peer.name == IK.name:
                repeats = "2"  # it warms up with one token only: the second pass counts
        elif task.depth and self.peer.name == IK.name:
            counts = ["-p", "0", "-n", "0", "-gp", f"{task.depth},{task.tokens}"]
        elif task.depth:
            counts += ["-d", str(task.depth)]
        return self._bench(model, threads, counts, repeats)

    def memory(self, model: Path, tokens: int, context: int, threads: int) -> list[str]:
        """llama-bench over a context: a prompt, then `tokens` one by one, in one sequence."""
        return self._bench(model, threads, ["-p", "0", "-n", "0", "-pg", f"{context - tokens},{tokens}"], "1")

    def _bench(self, model: Path, threads: int, counts: list[str], repeats: str) -> list[str]:
        words = [self.peer.llama_bench, "-m", str(model), *counts, "-t", str(threads), *self.flags]
        return [*words, "-r", repeats, "-o", "json"]

    def first(self, model: Path, shorter: int, longer: int, threads: int) -> list[str]:
        return self._probe("first", model, threads, [shorter, longer])

    def score(self, model: Path, ids: Sequence[int], singles: int, threads: int) -> list[str]:
        return self._probe("score", model, threads, [singles, *ids])

    def _probe(self, mode: str, model: Path, threads: int, numbers: Sequence[int]) -> list[str]:
        program = self.peer.programs["peer-probe"]
        return [program, mode, str(model), str(threads), str(int(self.pack)), *map(str, numbers)]


@dataclass(frozen=True)
class Ours:
    """Our side: ours.py on a device."""

    device: str
    name: str = "jackfield"

    def speed(self, model: Path, task: Task, threads: int) -> list[str]:
        depth = [] if task.kind == "prompt" else [task.depth]
        return self._run(task.kind, model, [task.tokens, *depth])

    def memory(self, model: Path, tokens: int, context: int, threads: int) -> list[str]:
        return self._run("memory", model, [tokens, context])

    def first(self, model: Path, shorter: int, longer: int, threads: int) -> list[str]:
        return self._run("first", model, [shorter, longer])

    def score(self, model: Path, ids: Sequence[int], singles: int, threads: int) -> list[str]:
        return self._run("score", model, [singles, *ids])

    def imports(self, model: Path) -> list[str]:
        return self._run("imports", model, [])

    def facts(self, model: Path, count: int) -> list[str]:
        return [sys.executable, str(BENCH / "ours.py"), "facts", str(model), str(count)]

    def _run(self, mode: str, model: Path, numbers: Sequence[int]) -> list[str]:
        return [sys.executable, str(BENCH / "ours.py"), mode, str(model), self.device, *map(str, numbers)]


def sides_of(peers: Sequence[Peer]) -> list[Side]:
    """The ways each peer is run: llama.cpp without and with packed weights, its fork with."""
    found = []
    for peer in peers:
        if peer.name == LLAMA.name:
            found.append(Side(peer.name, peer, ("--repack", "0"), pack=False))
            found.append(Side(f"{peer.name} packed", peer, ("--repack", "1"), pack=True))
        else:
            found.append(Side(peer.name, peer, ("-rtr", "1", "-fa", "1"), pack=True))
    return found


def tokens_per_s(answer: Any) -> float:
    """What llama-bench (a list of tests, each with its samples) or ours.py (one document) says."""
    if isinstance(answer, Mapping):
        return float(answer["tokens_per_s"])
    test = answer[-1]
    samples = test.get("samples_ts") or [test["avg_ts"]]
    return float(samples[-1])


def run_child(command: Sequence[str], threads: int) -> tuple[str, int]:
    """Run a measurement; its stdout and the largest resident size it had, in bytes."""
    environment = {**os.environ, "JACKFIELD_CPU_THREADS": str(threads)}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None  # asked for above
    with child.stdout as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise PeerError(f"compare: {shown(command[:8])} ended with {child.returncode}; its output is above")
    return text, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def answer_of(command: Sequence[str], threads: int) -> Any:
    """The JSON document a measurement prints."""
    text, _ = run_child(command, threads)
    try:
        return json.loads(text)
    except ValueError as error:
        raise PeerError(f"compare: {shown(command[:8])} printed no JSON: {error}") from error


def shown(command: Sequence[str]) -> str:
    """A command line without the machine's paths."""
    return " ".join(Path(word).name if os.sep in word else word for word in command)
