"""Suite `threads`: several threads on one device, each with its own work, get what they would get alone."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from jackfield.backend import PlacedStep, Reason, Step, Usage, work_of
from jackfield.conformance.cases import Example, examples
from jackfield.dtypes import f32
from jackfield.errors import Busy
from jackfield.graph import input as graph_input
from jackfield.op import OPS
from jackfield_conformance.build import Bench, filled, simple_op, vector_step
from jackfield_conformance.direct import bind, refused, step_of
from jackfield_conformance.plans import chain, strict_session
from jackfield_conformance.trials import Refused, Subject, Trial, named
from jackfield_conformance.verdicts import verdict

from .claims import RUNNING, kernel_of

__all__ = ["trials"]

THREADS = 4
CALLERS = 8  # threads on one plan, and clones
RUNS = 40
LONG_ENOUGH = 0.3  # seconds of one run, so that another thread has something to wait for
MOST_STEPS = 4096
TRIES = 5
TICK = 0.001
LONGEST_SILENCE = 0.5  # of a run; a held GIL silences other threads for nearly all of it


def trials(seed: int) -> Iterator[Trial]:
    for name in RUNNING:
        yield Trial(f"threads/op/{name}", partial(side_by_side, name, seed))
    checks = {
        "buffers": buffers_side_by_side,
        "compiles": compiles_side_by_side,
        "clones": clones_side_by_side,
        "one-plan": one_plan_is_busy_or_right,
        "gil": gil_is_released,
    }
    yield from named("threads", seed, checks)


def together(works: Sequence[Callable[[], list[str]]]) -> list[str]:
    """All at once, one thread each; what went wrong in any of them."""
    found: list[str] = []
    start = threading.Barrier(len(works))

    def run(number: int, work: Callable[[], list[str]]) -> None:
        start.wait()
        try:
            found.extend(f"thread {number}: {text}" for text in work())
        except Exception as e:  # noqa: BLE001 (told by the main thread)
            found.append(f"thread {number}: raised {type(e).__name__}: {e}")

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def side_by_side(name: str, seed: int, subject: Subject) -> list[str]:
    """The largest declared case of an op, on other numbers in each thread, many times: scratch is nobody else's."""
    kernel_of(name, subject.backend)
    example = _largest(name, subject)
    drawn = [replace(example, seed=seed + 1 + number) for number in range(THREADS)]
    return together([partial(_repeated, one, subject) for one in drawn])


def _largest(name: str, subject: Subject) -> Example:
    """Raises: Refused where every case is."""
    best: tuple[int, Example] | None = None
    reason: object = ""
    for example in examples(OPS[name]):
        if example.layout != "dense" or not example.result.size:
            continue
        reason = refused(step_of(example), subject.backend, subject.device)
        work = work_of(step_of(example))
        size = work.multiply_adds + work.nbytes
        if reason is None and (best is None or size > best[0]):
            best = size, example
    if best is None:
        raise Refused(reason)
    return best[1]


def _repeated(example: Example, subject: Subject) -> list[str]:
    bound = bind(example, subject.backend, subject.device)
    try:
        first = bound.run()
        wrong = list(verdict(example, first).mistakes)
        for number in range(RUNS):
            bound.reset()
            again = bound.run()
            if again.result.tobytes() != first.result.tobytes() or again.damage:
                wrong += [f"run {number + 2}: {text}" for text in verdict(example, again).mistakes]
        return [f"{example}: {text}" for text in wrong[:1]]
    finally:
        bound.free()


def buffers_side_by_side(seed: int, subject: Subject) -> list[str]:
    """Allocate, write, read and free in every thread at once."""
    device = subject.device

    def work(number: int) -> list[str]:
        for turn in range(RUNS):
            image = filled(100 + 37 * turn, seed + number * RUNS + turn)
            buffer = device.alloc(image.nbytes, Usage.COMPUTE)
            device.write(buffer, 0, image.data)
            got = np.zeros_like(image)
            device.read(buffer, 0, got.data)
            device.free(buffer)
            if (got != image).any():
                return [f"buffer {turn} of this thread holds other bytes"]
        return []

    return together([partial(work, number) for number in range(THREADS)])


def compiles_side_by_side(seed: int, subject: Subject) -> list[str]:
    simple_op(subject, (99,))

    def work(number: int) -> list[str]:
        found = []
        for turn in range(RUNS // 2):
            with Bench(subject, seed) as bench:
                found += bench.vector(99 + turn, mark=number).mistakes()
        return found

    return together([partial(work, number) for number in range(THREADS)])


def clones_side_by_side(seed: int, subject: Subject) -> list[str]:
    """A plan and its clones at once, each on its own input: the bytes that the plan gives alone."""
    data = [np.random.default_rng((seed, n)).uniform(0, 1, 4099).astype(np.float32) for n in range(CALLERS)]
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (4099,), f32), 20))
        want = [plan(x=one).tobytes() for one in data]
        plans = [plan, *(plan.clone() for _ in range(CALLERS - 1))]

        def work(number: int) -> list[str]:
            wrong = sum(plans[number](x=data[number]).tobytes() != want[number] for _ in range(RUNS))
            return [f"{wrong} of {RUNS} calls of a clone give other bytes"] if wrong else []

        return together([partial(work, number) for number in range(CALLERS)])


def one_plan_is_busy_or_right(seed: int, subject: Subject) -> list[str]:
    """Threads that share one plan get the right result, or Busy."""
    data = [np.random.default_rng((seed, n)).uniform(0, 1, 4099).astype(np.float32) for n in range(CALLERS)]
    with strict_session(subject) as session:
        plan = session.compile(chain(subject, graph_input("x", (4099,), f32), 20))
        want = [plan(x=one).tobytes() for one in data]

        def work(number: int) -> list[str]:
            for _ in range(RUNS):
                try:
                    if plan(x=data[number]).tobytes() != want[number]:
                        return ["a call gives the result of another thread"]
                except Busy:
                    continue
            return []

        return together([partial(work, number) for number in range(CALLERS)])


# The GIL


def gil_is_released(seed: int, subject: Subject) -> list[str]:
    """While a long program runs, a thread that only counts goes on counting."""
    step = vector_step(simple_op(subject, (1 << 18,)), (1 << 18,))
    with Bench(subject, seed) as bench:
        steps = 16
        while True:
            run = _long_run(bench, step, steps)
            began = time.perf_counter()
            run()
            if time.perf_counter() - began >= LONG_ENOUGH:
                break
            steps *= 2
            if steps > MOST_STEPS:
                raise Refused(Reason(f"{MOST_STEPS} steps take less than {LONG_ENOUGH:g} s: too short to see", "other"))
        silences = [_silence_during(run) for _ in range(TRIES)]
    if median(silences) < LONGEST_SILENCE:  # of a few, because on a busy machine each may be off to either side
        return []
    share = ", ".join(f"{silence:.0%}" for silence in silences)
    return [f"a thread that wakes every {TICK:g} s waits for {share} of runs of {steps} steps: the GIL is held"]


def _long_run(bench: Bench, step: Step, steps: int) -> Callable[[], None]:
    x = bench.hold(bench.floats(step.result.size))
    y = bench.room(step.result)
    operands = tuple(None if spec is None else x for spec in step.operands)
    program = bench.compile([PlacedStep(step, operands, y)] * steps)

    def run() -> None:
        program.run()
        bench.device.synchronize()

    return run


def _silence_during(run: Callable[[], None]) -> float:
    """The longest time in which another thread did not wake up while this ran, as a share of the run.

    Not a count of how often: on a busy machine it wakes now and then behind the native call, too.
    """
    ticks: list[float] = []
    over = threading.Event()

    def count() -> None:
        while not over.is_set():
            ticks.append(time.perf_counter())
            time.sleep(TICK)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    while not ticks:
        time.sleep(TICK)
    began = time.perf_counter()
    run()
    ended = time.perf_counter()
    over.set()
    thread.join()
    moments = [began, *(tick for tick in ticks if began < tick < ended), ended]
    return max(b - a for a, b in itertools.pairwise(moments)) / (ended - began)
