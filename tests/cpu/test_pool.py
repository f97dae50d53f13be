"""The workers of a device: as many as asked for, asleep when idle, bound to CPUs when told, and never the caller."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from grouped import opened

import jackfield as jf
from jackfield import ops
from jackfield.errors import Unavailable
from jackfield_cpu import _native
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.settings import read_settings

NATIVE = Path(__file__).parents[2] / "plugins" / "cpu" / "src"
CHECK = Path(__file__).with_name("pool_check.cpp")
CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
binds = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system binds no threads")


def steps_of_one_and_all_workers(session):
    """A run in which segments of one worker and of all take turns, and products that share out pieces."""
    rng = np.random.default_rng(0)
    x = y = jf.input("x", (128, 512))
    w = jf.constant(rng.standard_normal((512, 512), np.float32) / 23)
    for _ in range(6):
        y = ops.tanh(ops.linear(ops.add(y, x), w))  # all
        y = ops.add(y, ops.tanh(ops.sum(y[:1], axis=-1, keepdims=True)))  # one, then all
    return session.compile(y)


@pytest.mark.parametrize("threads", sorted({1, 2, 3, 5, 8, 17, CPUS + 1}))
def test_any_number_of_workers_makes_the_same(threads):
    """More than there are CPUs, and more than some steps have pieces; again and again."""
    x = np.random.default_rng(1).standard_normal((128, 512), np.float32)
    with opened(threads=1) as (session, _):
        want = steps_of_one_and_all_workers(session)(x=x)
    with opened(threads=threads) as (session, _):
        plan = steps_of_one_and_all_workers(session)
        for _ in range(20):
            np.testing.assert_array_equal(plan(x=x), want)


@pytest.mark.parametrize("sleep", [[], ["-DJF_SLEEP_ON_CONDITIONS"]], ids=["as here", "as elsewhere"])
@pytest.mark.parametrize("flags", [["-O2"], ["-O1", "-fsanitize=thread"]], ids=["plain", "thread sanitizer"])
def test_random_jobs(flags, sleep, absent, tmp_path):
    """Segments in order, each part once, meetings, no waiting for sleepers. The deadline is for a pool that hangs.

    Workers sleep in the way of this system, and in that of systems without futexes.
    """
    compiler, program = shutil.which("c++"), tmp_path / "check"
    if compiler is None:
        absent("cpu", "c++ is not on PATH")
    options = ["-std=c++17", "-pthread", f"-I{NATIVE}", *flags, *sleep]
    subprocess.run([compiler, *options, CHECK, NATIVE / "pool.cpp", "-o", program], check=True)
    command = [program, "1", "100", str(CPUS + 1)]
    # A sanitizer that this process runs under is not the program's.
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (0, "0 failures\n"), done.stdout[:2000] + done.stderr[:4000]


@pytest.mark.parametrize("threads", [min(2, CPUS), CPUS + 1], ids=["that look first", "more than CPUs"])
def test_idle_workers_sleep(threads):
    """CPU time, which other processes do not lengthen: a worker looks for 20 us, or not at all, before it sleeps."""
    x = np.ones((128, 512), np.float32)
    with opened(threads=threads) as (session, _):
        plan = steps_of_one_and_all_workers(session)
        spent = []
        for _ in range(5):
            plan(x=x)
            start = time.process_time()
            time.sleep(0.2)
            spent.append(time.process_time() - start)
        assert min(spent) < 5e-3


@binds
def test_workers_are_bound_and_the_caller_is_not():
    mine, before = os.sched_getaffinity(0), threads_now()
    cpu = max(mine)
    (device,) = read_device(JACKFIELD_CPU_THREADS="3", JACKFIELD_CPU_AFFINITY=str(cpu))
    assert device.threads == 3
    assert os.sched_getaffinity(0) == mine
    new = threads_now() - before
    assert len(new) == 2
    assert all(os.sched_getaffinity(thread) == {cpu} for thread in new)


def threads_now():
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}


def read_device(**env):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        return CpuBackend().devices()


@binds
def test_lists_of_cpus():
    first, *_ = sorted(os.sched_getaffinity(0))
    assert read_settings({}).cpus == read_settings({"JACKFIELD_CPU_AFFINITY": ""}).cpus == ()
    assert read_settings({"JACKFIELD_CPU_AFFINITY": f"{first},{first}-{first}"}).cpus == (first, first)
    for wrong in ("x", "1-", "-1", "1,", "1--2", "٣"):
        with pytest.raises(Unavailable, match="must be numbers of CPUs like 2,3,8-11"):
            read_settings({"JACKFIELD_CPU_AFFINITY": wrong})
    for far in ("99999", f"{first}-99999999999999999999", "5-4"):
        with pytest.raises(Unavailable, match=r"this process may use the CPUs \["):
            read_settings({"JACKFIELD_CPU_AFFINITY": far})


@binds
def test_a_cpu_that_is_not_there():
    """Asked of the pool itself, past the settings: numbers beyond 32 and 1024 included."""
    for cpu in (1023, 40000):
        with pytest.raises(RuntimeError, match=f"CPU {cpu}"):
            _native.Pool(2, [cpu])
