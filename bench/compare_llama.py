"""Ours against llama.cpp on one GGUF file: prompt and generation speed, memory; both measured in the same run.

    uv run python bench/compare_llama.py MODEL [--threads 1,2] [--runs 5] [--prompt 512] [--generate 128] [--json FILE]

For each number of threads, `--runs` times in turn: llama-bench on the prompt, ours on the prompt, llama-bench
generating, ours generating. Each measurement is a process of its own with one warm-up before it, as llama-bench does
it: the whole prompt, or one token. Printed are medians in tokens a second, the spread, the ratio of medians, and the
largest resident memory of each side. bench/NOTES.md says what is compared with what, and why.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peer import Peer, PeerError, build, peer_dir

CONTEXT = 1024
MIB = 1024 * 1024
PEER_BYTES = 143_000_000
"""llama.cpp's resident memory with the default model on the reference machine: what the aim counts with."""


@dataclass(frozen=True)
class Task:
    """What is measured: a prompt of so many tokens, or so many generated ones."""

    kind: str
    tokens: int


@dataclass(frozen=True)
class Row:
    """The samples of one task at one number of threads, in tokens a second."""

    task: str
    tokens: int
    threads: int
    peer: tuple[float, ...]
    ours: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.peer)


def peer_command(peer: Peer, model: Path, task: Task, threads: int) -> list[str]:
    """llama-bench once, with its defaults: one warm-up, f16 cache, repacked weights where it can, mapped file."""
    counts = ["-p", str(task.tokens), "-n", "0"] if task.kind == "prompt" else ["-p", "0", "-n", str(task.tokens)]
    return [peer.llama_bench, "-m", str(model), *counts, "-t", str(threads), "-r", "1", "-o", "json"]


def peer_memory_command(peer: Peer, model: Path, threads: int) -> list[str]:
    """llama-bench over a context of CONTEXT tokens: a prompt, then generation, in one sequence."""
    lengths = f"{CONTEXT - 128},128"
    counts = ["-p", "0", "-n", "0", "-pg", lengths]
    return [peer.llama_bench, "-m", str(model), *counts, "-t", str(threads), "-r", "1", "-o", "json"]


def our_command(mode: str, model: Path, tokens: int, device: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--measure", mode, str(tokens), str(model), device]


def environment(threads: int) -> dict[str, str]:
    return {**os.environ, "JACKFIELD_CPU_THREADS": str(threads)}


def run_child(command: Sequence[str], threads: int) -> tuple[str, int]:
    """Run a measurement; its stdout and the largest resident size it had, in bytes.

    Linux counts the parent's size at the fork as the child's own: hence this script imports nothing large.
    """
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(threads))
    assert child.stdout is not None  # asked for above
    with child.stdout as pipe:
        text = pipe.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise PeerError(f"compare: {' '.join(command[:3])} ... ended with {child.returncode}; its output is above")
    return text, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peer_sample(peer: Peer, model: Path, task: Task, threads: int) -> float:
    """Tokens a second of llama-bench."""
    text, _ = run_child(peer_command(peer, model, task, threads), threads)
    return float(json.loads(text)[0]["avg_ts"])


def our_sample(model: Path, task: Task, threads: int, device: str) -> float:
    """Tokens a second of ours, timed inside the child as llama-bench times itself: without loading."""
    text, _ = run_child(our_command(task.kind, model, task.tokens, device), threads)
    return float(json.loads(text)["tokens_per_s"])


def measure(mode: str, tokens: int, model: str, device: str) -> dict[str, float]:
    """The child's side: one warm-up, one timed pass; `imports` only imports, `memory` fills a context of CONTEXT."""
    import jackfield_llm  # noqa: PLC0415 - the parent must stay small, see run_child

    if mode == "imports":  # what a run of ours has imported at its end, late imports and the plugin's module included
        jf = sys.modules["jackfield"]
        jf.Session(device=device).close()
        return {}
    loaded = jackfield_llm.load(model, device=device, context=CONTEXT)
    dice = random.Random(0)
    vocabulary = len(loaded.decode(0))  # also llama-bench's warm-up of a generation: one token
    loaded.reset()
    ids = [dice.randrange(vocabulary) for _ in range(tokens)]
    if mode == "memory":
        loaded.prefill(ids[: CONTEXT - 128])
        seconds = timed_decode(loaded, ids[CONTEXT - 128 :])
    elif mode == "prompt":
        timed_prefill(loaded, ids)
        seconds = timed_prefill(loaded, ids)
    else:
        seconds = timed_decode(loaded, ids)
    return {"tokens_per_s": len(ids) / seconds}


def timed_prefill(loaded: object, ids: list[int]) -> float:
    """Seconds from an empty cache to the logits of the last position."""
    loaded.reset()  # type: ignore[attr-defined]
    start = time.perf_counter()
    loaded.prefill(ids)  # type: ignore[attr-defined]
    return time.perf_counter() - start


def timed_decode(loaded: object, ids: list[int]) -> float:
    """Seconds for one token after the other, logits of each read."""
    start = time.perf_counter()
    for token in ids:
        loaded.decode(token)  # type: ignore[attr-defined]
    return time.perf_counter() - start


def speeds(peer: Peer, chosen: argparse.Namespace) -> list[Row]:
    rows = []
    for threads in chosen.threads:
        samples: dict[tuple[Task, str], list[float]] = {}
        tasks = [Task("prompt", chosen.prompt), Task("generate", chosen.generate)]
        for _ in range(chosen.runs):
            for task in tasks:
                samples.setdefault((task, "peer"), []).append(peer_sample(peer, chosen.model, task, threads))
                if not chosen.peer_only:
                    ours = our_sample(chosen.model, task, threads, chosen.device)
                    samples.setdefault((task, "ours"), []).append(ours)
        for task in tasks:
            sides = [tuple(samples.get((task, side), [])) for side in ("peer", "ours")]
            rows.append(Row(task.kind, task.tokens, threads, *sides))
            print(speed_line(rows[-1]), flush=True)
    return rows


def spread(samples: Sequence[float]) -> str:
    if not samples:
        return f"{'-':>9} {'':<17}"
    return f"{statistics.median(samples):9.1f} ({min(samples):.1f} .. {max(samples):.1f})".ljust(27)


def speed_line(row: Row) -> str:
    ratio = f"{row.ratio:6.2f}" if row.ours else "     -"
    return f"{row.task:<9} {row.tokens:>5} {row.threads:>7}  {spread(row.peer)}  {spread(row.ours)}  {ratio}"


def memory(peer: Peer, chosen: argparse.Namespace) -> dict[str, int]:
    """Largest resident size in bytes: the peer's, ours, and of an interpreter that only imports what ours imports."""
    threads = min(chosen.threads)
    sizes = {"llama.cpp": run_child(peer_memory_command(peer, chosen.model, threads), threads)[1]}
    if not chosen.peer_only:
        sizes["jackfield"] = run_child(our_command("memory", chosen.model, CONTEXT, chosen.device), threads)[1]
        sizes["imports"] = run_child(our_command("imports", chosen.model, 0, chosen.device), threads)[1]
    return sizes


def print_memory(sizes: Mapping[str, int]) -> None:
    print(f"\nlargest resident memory, context {CONTEXT}:")
    for name, size in sizes.items():
        print(f"  {name:<10} {size / MIB:7.1f} MiB  {size / 1e6:7.1f} MB")
    if "jackfield" in sizes:
        here, aim = sizes["llama.cpp"] + sizes["imports"], PEER_BYTES + sizes["imports"]
        print(f"  jackfield is at {sizes['jackfield'] / here:.2f} of llama.cpp here and the imports together,")
        print(f"  at {sizes['jackfield'] / aim:.2f} of the aim: {PEER_BYTES / 1e6:.0f} MB and the imports")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--runs", type=int, default=5, help="samples of each side")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt, below 1024")
    parser.add_argument("--generate", type=int, default=128, help="tokens generated, below 1024")
    parser.add_argument("--device", default="cpu", help="our device")
    parser.add_argument("--peer-only", action="store_true", help="measure llama.cpp alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample there")
    parser.add_argument("--dir", help="where the peer is built, as in peer.py")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parsed(arguments)
    if not chosen.model.is_file():  # told now, not after the minutes that building the peer takes
        print(f"compare: {chosen.model}: no such file; give the path of a GGUF model", file=sys.stderr)
        return 1
    try:
        peer = build(peer_dir(chosen.dir), jobs=os.cpu_count() or 1)
        print(f"{chosen.model.name}; {peer.version}, {' '.join(peer.flags[1:3])}, {peer.compiler}\n")
        print(f"{'task':<9} {'tokens':>5} {'threads':>7}  {'llama.cpp t/s':<27}  {'jackfield t/s':<27}  ratio")
        rows = speeds(peer, chosen)
        sizes = memory(peer, chosen)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print_memory(sizes)
    if chosen.json:
        made_by = {key: value for key, value in asdict(peer).items() if not key.startswith("llama_")}  # no paths
        document = {"peer": made_by, "rows": [asdict(row) for row in rows], "memory_bytes": sizes}
        chosen.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])))
    else:
        sys.exit(main())
