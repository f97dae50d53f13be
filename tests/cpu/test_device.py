"""The device itself: memory, threads, parts, faults in data, and a forked child."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import jackfield as jf
from jackfield import ops
from jackfield.backend import Usage
from jackfield.errors import BadIndex, OutOfMemory
from jackfield_cpu import _native
from jackfield_cpu.backend import CpuBackend
from jackfield_cpu.system import default_threads, host_memory


def python(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=os.environ | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_memory_is_aligned_zeroed_and_refused_when_absurd():
    (device,) = CpuBackend().devices()
    for nbytes in (0, 1, 63, 4096, 1 << 20, (1 << 22) + 5):
        for usage in Usage:
            buffer = device.alloc(nbytes, usage)
            assert buffer.nbytes == nbytes and buffer.address % 64 == 0
            out = np.ones(nbytes, np.uint8)
            device.read(buffer, 0, memoryview(out))
            assert not out.any()
            device.free(buffer)
    with pytest.raises(OutOfMemory, match=r"cpu:0: no \d+ bytes of host memory for constant"):
        device.alloc(1 << 61, Usage.CONSTANT)


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 4), (61, 4), (64, 1), (1 << 62, 4)])
def test_a_copy_outside_a_buffer_is_refused(offset, nbytes):
    (device,) = CpuBackend().devices()
    buffer = device.alloc(64, Usage.COMPUTE)
    with pytest.raises(ValueError, match="of a buffer of 64"):
        device.write(buffer, offset, memoryview(bytes(nbytes)))
    with pytest.raises(ValueError, match="of a buffer of 64"):
        device.read(buffer, offset, memoryview(bytearray(nbytes)))


def test_a_freed_buffer_is_not_touched():
    (device,) = CpuBackend().devices()
    buffer = device.alloc(64, Usage.COMPUTE)
    device.free(buffer)
    device.free(buffer)
    with pytest.raises(ValueError, match="of a buffer of 0"):
        device.write(buffer, 0, memoryview(b"x"))


def test_more_workers_than_work_give_the_same_bits():
    code = """
        import numpy as np, jackfield as jf
        from jackfield import ops
        rng = np.random.default_rng(1)
        x = jf.input("x", (3, 96))
        w = jf.constant(rng.standard_normal((300, 96)).astype(np.float32))
        y = ops.softmax(ops.reshape(ops.linear(x, w), shape=(1, 1, 3, 300)))
        out = jf.compile(y, device="cpu")(x=rng.standard_normal((3, 96)).astype(np.float32))
        print(out.tobytes().hex())
    """
    results = {python(code, JACKFIELD_CPU_THREADS=str(n)) for n in (1, 2, 3, 7)}
    assert len(results) == 1


def test_a_bad_index_is_reported_and_the_plan_goes_on():
    table = jf.constant(np.arange(12, dtype=np.float32).reshape(4, 3))
    plan = jf.compile(ops.take_rows(table, jf.input("ids", (2,), jf.i32)), device="cpu", policy="strict")
    with pytest.raises(BadIndex, match=r"\[take_rows\] rows holds the index 9, which lies outside its axis"):
        plan(ids=np.array([1, 9], np.int32))
    np.testing.assert_array_equal(plan(ids=np.array([1, 3], np.int32)), [[3, 4, 5], [9, 10, 11]])


def test_parts_have_their_own_memory_and_threads():
    out = python(
        """
        from jackfield_cpu.backend import CpuBackend
        for d in CpuBackend().devices():
            print(d.name, d.threads)
        """,
        JACKFIELD_CPU_PARTS="2",
        JACKFIELD_CPU_THREADS="4",
    )
    assert out.splitlines() == ["cpu:0:0 2", "cpu:0:1 2"]


def test_work_crosses_between_parts():
    out = python(
        """
        import numpy as np, jackfield as jf
        from jackfield import ops
        x = jf.input("x", (4, 8))
        a = ops.add(x, x)
        b = ops.multiply(a, a)
        plan = jf.compile(b, device="cpu:0:0+cpu:0:1", pins=[(a, "cpu:0:0"), (b, "cpu:0:1")])
        print(plan(x=np.full((4, 8), 3, np.float32))[0, 0], ",".join(sorted(plan.devices)))
        """,
        JACKFIELD_CPU_PARTS="2",
    )
    assert out == "36.0 cpu:0:0,cpu:0:1"


def test_the_default_is_at_most_the_cores_this_process_may_use():
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))


def test_a_container_quota_caps_the_threads(monkeypatch):
    from jackfield_cpu import system

    monkeypatch.setattr(system.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(system, "_siblings", lambda cpu: f"{cpu // 2}")
    monkeypatch.setattr(system, "_quota", lambda: None)
    assert default_threads() == 4  # two hardware threads a core count once
    monkeypatch.setattr(system, "_quota", lambda: 3)
    assert default_threads() == 3


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "249000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "300000"}, 3),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
        ({"cpu.cfs_quota_us": "350000", "cpu.cfs_period_us": "100000"}, 3),
        ({}, None),
    ],
)
def test_control_groups_of_both_versions_are_read(monkeypatch, tmp_path, files, cpus):
    from jackfield_cpu import system

    (tmp_path / "inner").mkdir()
    for name, text in files.items():
        (tmp_path / "inner" / name).write_text(text + "\n")
    (tmp_path / "cpu.max").write_text("700000 100000\n")  # the parent allows more
    monkeypatch.setattr(system, "_group_folders", lambda _: [tmp_path / "inner", tmp_path])
    assert system._quota() == (7 if cpus is None else cpus)


def test_threads_that_cannot_start_are_an_error_and_end_cleanly():
    out = python(
        """
        import resource
        import jackfield as jf
        from jackfield_cpu.backend import CpuBackend
        CpuBackend()
        grown = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (grown + (200 << 20), -1))
        try:
            CpuBackend().devices()
        except jf.errors.DeviceError as e:
            print(e)
        """,
        JACKFIELD_CPU_THREADS="1024",
    )
    assert out.startswith("cpu:0: 1024 threads could not be started") and out.endswith("lower JACKFIELD_CPU_THREADS")


def test_free_memory_is_that_of_now_and_within_a_container():
    memory = host_memory()
    assert 0 < memory.free <= memory.total
    (device,) = CpuBackend().devices()
    assert device.memory.total == memory.total


def test_an_isolated_interpreter_ignores_the_environment():
    code = "from jackfield_cpu.settings import read_settings; print(read_settings().threads)"
    env = os.environ | {"JACKFIELD_CPU_THREADS": "77"}
    done = subprocess.run([sys.executable, "-I", "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() != "77"


def test_a_forked_child_is_told_so():
    out = python(
        """
        import os, numpy as np, jackfield as jf
        x = jf.input("x", (4,))
        plan = jf.compile(jf.ops.add(x, x), device="cpu")
        plan(x=np.ones(4, np.float32))
        pid = os.fork()
        if pid == 0:
            try:
                plan(x=np.ones(4, np.float32))
            except jf.errors.ForkedError as e:
                print("told:", e, flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        print(plan(x=np.ones(4, np.float32)))
        """
    )
    told, result = out.splitlines()
    assert told.startswith("told:") and "spawn" in told
    assert result == "[2. 2. 2. 2.]"


def test_a_forked_child_drops_a_pool_whose_workers_sleep():
    """Freeing the parent's pool in the child must not wait for workers that do not exist there."""
    out = python(
        """
        import os, time
        from jackfield_cpu import _native
        pools = [_native.Pool(4) for _ in range(3)]
        time.sleep(0.2)  # all workers asleep
        pid = os.fork()
        if pid == 0:
            pools.clear()
            os._exit(7)
        for _ in range(200):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                break
            time.sleep(0.05)
        else:
            os.kill(pid, 9)
        print(done == pid and os.waitstatus_to_exitcode(status))
        """
    )
    assert out == "7"


def test_the_interpreter_runs_on_during_a_long_kernel():
    """The GIL is given up: another thread counts while a product runs."""
    rng = np.random.default_rng(0)
    x = jf.input("x", (256, 2048))
    w = jf.constant(rng.standard_normal((2048, 2048)).astype(np.float32))
    plan = jf.compile(ops.linear(x, w), device="cpu")
    a = rng.standard_normal((256, 2048)).astype(np.float32)
    plan(x=a)
    ticks, done = 0, threading.Event()

    def work():
        plan(x=a)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    while not done.is_set():
        ticks += 1
    thread.join()
    assert ticks > 100


def test_threads_beside_each_other_never_mix_results():
    (device,) = CpuBackend().devices()
    assert device.threads >= 1
    x = jf.input("x", (64, 64))
    plan = jf.compile(ops.multiply(ops.add(x, x), x), device="cpu")
    wrong = []

    def work(clone, value):
        a = np.full((64, 64), value, np.float32)
        wrong.extend(value for _ in range(50) if not (clone(x=a) == 2 * value * value).all())

    threads = [threading.Thread(target=work, args=(plan.clone(), float(i))) for i in range(1, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_pools_come_and_go():
    for _ in range(200):
        assert _native.Pool(3).size == 3
