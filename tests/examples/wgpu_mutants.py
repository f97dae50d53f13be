"""The example with one fault in its text, and the suite of the kit that must find it.

As a script: every mutant; exits 1 when one is not found by its suite, or when cases that its fault can't reach fail.
Usage: python wgpu_mutants.py [MUTANT ...]; without names the right backend, then all. It needs an adapter.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jackfield_conformance.results import Result
from jackfield_conformance.runner import Request, Runner
from jackfield_conformance.suites import sampled, trials_of

SOURCE = Path(__file__).parents[2] / "examples/jackfield-wgpu/src/jackfield_wgpu"
SOFTWARE = "wgpu:soft"
DEADLINE = 300.0  # seconds of one case; a child that waits without end is ended by the suite itself
CONTROL = ("ops", "relu")  # cases that no fault here reaches
MODULE = """import sys
sys.path.insert(0, {folder!r})
import jackfield as jf
from jackfield_wgpu.backend import WgpuBackend
jf.register_backend(WgpuBackend(), device_class="gpu")
"""


@dataclass(frozen=True)
class Mutant:
    """file: of the package. old: text that stands there once. suite: that finds it, in cases of `op`, or of none. wide:
    it reaches all ops, so there is no case elsewhere that must pass.
    """

    file: str
    old: str
    new: str
    suite: str
    op: str = ""
    wide: bool = False


BARRIER = "        workgroupBarrier();\n        if (lane < width) {\n            floats[lane]"
ALONE = "    atomicAnd(&$b[at / OUT_PER_WORD], ~(OUT_MASK << shift));\n"
MUTANTS = {
    "wrong_index": Mutant("shaders/binary.wgsl", "p.b_strides", "p.a_strides", "ops", "subtract"),
    "lost_barrier": Mutant("shaders/common.wgsl", BARRIER, BARRIER.split("\n", 1)[1], "ops", "sum"),
    "mask_ignored": Mutant("shaders/softmax.wgsl", "    $mask\n", "", "ops", "softmax"),
    "sees_no_diagonal": Mutant("shaders/attention.wgsl", "i32(j) > here)", "i32(j) >= here)", "ops", "attention"),
    "read_as_dense": Mutant(
        "shaders/norm.wgsl",
        "(x_at(start + j * p.x_strides.w) * shrink - mean) / length",
        "(x_at(start + j) * shrink - mean) / length",
        "views",
        "rms_norm",
    ),
    "base_in_words": Mutant(
        "windows.py", "start // WIDTHS.get(unit[name], 1)", "start // 4", "views", "add", wide=True
    ),
    "neighbour_lost": Mutant(
        "shading.py", ALONE, ALONE.replace("~(OUT_MASK << shift)", "0u"), "guards", "add", wide=True
    ),
    "scale_without_sign": Mutant("shaders/q8_0.wgsl", "* scale.x;", "* abs(scale.x);", "block-dtypes", "linear"),
    "scale_of_the_next_byte": Mutant(
        "shaders/q4_0.wgsl", "w_half(block)", "w_half(block + 1u)", "block-dtypes", "linear"
    ),
    "wrong_nibble_order": Mutant(
        "shaders/q4_0.wgsl", "(4u * (j >> 2u))", "(4u - 4u * (j >> 2u))", "block-dtypes", "linear"
    ),
    "rest_of_a_word_lost": Mutant(
        "device.py", "                self.read_words(into, first, memoryview(image))\n", "", "buffers"
    ),
    "reads_before_the_queue": Mutant(
        "memory.py",
        "        self.gpu.queue.submit([encoder.finish()])\n",
        "        encoder.finish()\n",
        "buffers",
        wide=True,
    ),
    "bad_index_kept_quiet": Mutant("program.py", "if not words[0]:", "if words[0] or True:", "errors", "take_rows"),
    "waits_for_its_parents_threads": Mutant("adapters.py", "if _process != os.getpid():", "if False:", "fork"),
}
SLOW = ("waits_for_its_parents_threads",)  # a minute, after which the suite ends the child


@cache
def ids_of(suite: str) -> tuple[str, ...]:
    return tuple(trial.id for trial in trials_of((suite,), 0))


def ids_about(suite: str, op: str) -> list[str]:
    """The suite's cases of this op; "" for all of them. A sample goes first."""
    ids = [name for name in ids_of(suite) if not op or op in name.split("/")[1:]]
    few = sampled(ids, 2, 0)
    return [*few, *(name for name in ids if name not in few)]


class Bench:
    """Modules in a folder, each of which registers the example with one fault."""

    def __init__(self, folder: Path, device: str = SOFTWARE) -> None:
        self.folder, self.device = folder, device
        path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)  # of the workers

    def module(self, fault: str) -> str:
        """Name of the module. Raises: ValueError where the text that the fault changes is no longer there once."""
        name, place = f"wgpu_with_{fault or 'none'}", self.folder / (fault or "none")
        if not place.exists():
            shutil.copytree(SOURCE, place / SOURCE.name, ignore=shutil.ignore_patterns("__pycache__"))
        if fault:
            changed(place / SOURCE.name / MUTANTS[fault].file, SOURCE / MUTANTS[fault].file, MUTANTS[fault])
        (self.folder / f"{name}.py").write_text(MODULE.format(folder=str(place)))
        return name

    def bad(self, fault: str, suite: str, ids: Sequence[str]) -> Iterator[Result]:
        request = Request(self.device, (suite,), imports=(self.module(fault),), deadline=DEADLINE)
        with Runner(request) as runner:
            yield from (result for result in runner.results(ids) if result.is_bad)

    def found(self, fault: str) -> Result | None:
        """The first case of its suite that does not pass; nothing runs behind it."""
        mutant = MUTANTS[fault]
        return next(self.bad(fault, mutant.suite, ids_about(mutant.suite, mutant.op)), None)

    def strays(self, fault: str) -> list[Result]:
        """What fails where the fault does not reach."""
        if MUTANTS[fault].wide:
            return []
        suite, op = CONTROL
        return list(self.bad(fault, suite, ids_about(suite, op)[:40]))


def changed(target: Path, source: Path, mutant: Mutant) -> None:
    text = source.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file} holds {mutant.old!r} {text.count(mutant.old)} times, must be once")
    target.write_text(text.replace(mutant.old, mutant.new))


def told(bench: Bench, fault: str) -> tuple[bool, str]:
    """Whether a mutant is found where its entry says and nowhere else; of the right backend, whether nothing is."""
    if not fault:
        places = sorted({(m.suite, m.op) for m in MUTANTS.values() if m.suite != "fork"})
        wrong = [result for suite, op in places for result in bench.bad("", suite, ids_about(suite, op))]
        return not wrong, f"no fault: {', '.join(r.id for r in wrong[:5]) or 'nothing fails'}"
    found, strays = bench.found(fault), bench.strays(fault)
    text = f"{found.id} {found.result}: {found.reason[:100]}" if found else f"{MUTANTS[fault].suite} does not find it"
    return found is not None and not strays, "; ".join([f"{fault}: {text}", *(f"and {r.id}" for r in strays[:3])])


def main(names: Sequence[str]) -> int:
    os.environ["JACKFIELD_CACHE"] = "off"
    wrong = 0
    faults = names or ["", *MUTANTS]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        for fault in faults:
            right, text = told(bench, fault)
            print("as told:" if right else "NOT AS TOLD:", text, flush=True)
            wrong += not right
    print(f"{len(faults)} versions of wgpu, {wrong} not as told")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
