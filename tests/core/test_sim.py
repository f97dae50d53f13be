"""The simulated device: what it hides, what it delays, what it refuses, and that it computes what the ops mean."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import registry
from jackfield.backend import Group, Place, PlacedStep, Spec, Step, Usage, refusal
from jackfield.dtypes import DTYPES
from jackfield.errors import (
    AttributeValueError,
    BadIndex,
    DeviceError,
    DeviceLost,
    ForkedError,
    KernelError,
    OutOfMemory,
)
from jackfield.faults import Shape
from jackfield.op import OPS
from jackfield.simulated import POISON, SimBackend

F32 = jf.f32


def device(**shape):
    return SimBackend(Shape.of(**shape)).devices()[0]


def put(dev, array, usage=Usage.COMPUTE):
    array = np.ascontiguousarray(array)
    buffer = dev.alloc(array.nbytes, usage)
    dev.write(buffer, 0, memoryview(array.reshape(-1).view(np.uint8)))
    return Place(buffer, 0, Spec.of(array))


def room(dev, shape, dtype=F32):
    spec = Spec(dtype, shape)
    return Place(dev.alloc(spec.nbytes, Usage.COMPUTE), 0, spec)


def get(dev, place):
    out = np.empty(place.spec.shape, place.spec.dtype.numpy)
    dev.read(place.buffer, place.offset, memoryview(out.reshape(-1).view(np.uint8)))
    return out


def step(op, operands, result, **attrs):
    specs = tuple(None if p is None else p.spec for p in operands)
    return PlacedStep(Step(op, specs, result.spec, OPS[op].complete(attrs)), tuple(operands), result)


def program(dev, *steps):
    return dev.compile([Group((s,)) for s in steps], None)


X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_it_computes_what_the_op_means():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    program(dev, step("softmax", [x, None, None], out, scale=0.5)).run()
    wanted = np.exp(0.5 * X.astype(np.float64))
    np.testing.assert_allclose(get(dev, out), wanted / wanted.sum(-1, keepdims=True), rtol=1e-6)


def test_runs_are_late_and_in_order():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    run = program(dev, step("add", [x, x], out))
    run.run()
    assert dev.steps == 0
    dev.write(x.buffer, 0, memoryview(bytes(x.spec.nbytes)))  # behind the run: the run still sees the old bytes
    assert dev.steps == 0
    np.testing.assert_array_equal(get(dev, out), X + X)
    np.testing.assert_array_equal(get(dev, x), 0 * X)
    assert dev.steps == 1


def test_write_takes_the_bytes_at_once():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    program(dev, step("add", [x, x], out)).run()
    mine = X.copy() + 1
    dev.write(x.buffer, 0, memoryview(mine.reshape(-1).view(np.uint8)))
    mine[:] = -1
    np.testing.assert_array_equal(get(dev, x), X + 1)


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64", "i16", "i32", "i64"])
def test_fresh_memory_is_poison(name):
    dtype = DTYPES[name]
    dev = device()
    fresh = get(dev, room(dev, (64,), dtype))
    if dtype.is_float:
        assert np.isnan(fresh.astype(np.float64)).all()
    else:
        assert (fresh.astype(np.int64) >= 32767).all()


def test_freed_memory_is_poison():
    dev = device()
    x = put(dev, X)
    window = dev.window(x)
    dev.free(x.buffer)
    assert np.isnan(window).all()
    with pytest.raises(DeviceError, match="was freed before"):
        get(dev, x)
    with pytest.raises(DeviceError, match="was freed before"):
        dev.free(x.buffer)
    assert POISON == b"\xff\x7f"


@pytest.mark.parametrize(
    ("offset", "says"), [(-1, "1 bytes before its start"), (48, "0 bytes behind its end"), (50, "2 bytes behind")]
)
@pytest.mark.parametrize("check", ["read", "synchronize", "free"])
def test_an_overrun_is_found(offset, says, check):
    dev = device()
    x = put(dev, X)
    raw = _around(dev, x)
    raw[64 + offset] ^= 1
    with pytest.raises(DeviceError, match=says):
        {"read": lambda: get(dev, x), "synchronize": dev.synchronize, "free": lambda: dev.free(x.buffer)}[check]()


def _around(dev, place):
    """The bytes of a buffer with its guards, as a native kernel that runs too far would reach them."""
    import ctypes

    address = dev.window(place).ctypes.data
    return (ctypes.c_uint8 * 200).from_address(address - 64)


def test_the_host_sees_no_bytes():
    dev = device()
    x = put(dev, X)
    with pytest.raises(TypeError):
        memoryview(x.buffer)
    with pytest.raises((TypeError, ValueError)):
        np.asarray(x.buffer).astype(np.float32)
    assert dev.borrow(memoryview(bytes(8))) is None


def test_memory_is_counted_and_bounded():
    dev = device(mem="100B", max_buffer=64)
    a = dev.alloc(60, Usage.COMPUTE)
    assert (dev.allocated, dev.peak, dev.memory.total, dev.memory.free) == (60, 60, 100, 40)
    with pytest.raises(OutOfMemory, match=r"41 bytes asked for, 60 of 100 bytes are in use: 1 bytes short"):
        dev.alloc(41, Usage.STATE)
    with pytest.raises(OutOfMemory, match="at most 64"):
        dev.alloc(65, Usage.STATE)
    b = dev.alloc(40, Usage.STATE)
    dev.free(a)
    assert (dev.allocated, dev.peak) == (40, 100)
    dev.free(b)
    assert dev.allocated == 0
    empty = dev.alloc(0, Usage.COMPUTE)
    dev.write(empty, 0, memoryview(b""))
    dev.read(empty, 0, memoryview(bytearray(0)))
    dev.free(empty)
    with pytest.raises(DeviceError, match="0 or more"):
        dev.alloc(-1, Usage.COMPUTE)


def test_places_outside_and_foreign_buffers():
    dev, other = device(), device()
    x, theirs = put(dev, X), put(other, X)
    with pytest.raises(DeviceError, match="reach outside buffer"):
        dev.write(x.buffer, 1, memoryview(bytes(48)))
    with pytest.raises(DeviceError, match="reach outside buffer"):
        dev.read(x.buffer, -1, memoryview(bytearray(4)))
    with pytest.raises(DeviceError, match="a buffer of sim:0 was used here"):
        dev.read(theirs.buffer, 0, memoryview(bytearray(4)))
    with pytest.raises(DeviceError, match="a buffer of bytes was used here"):
        dev.free(b"")
    with pytest.raises(DeviceError, match="a buffer of sim:0 was used here"):
        program(dev, step("add", [x, theirs], room(dev, (3, 4))))
    with pytest.raises(DeviceError, match="reach outside"):
        program(dev, step("add", [Place(x.buffer, 4, x.spec), x], room(dev, (3, 4))))


def test_a_strided_operand_needs_a_copy_unless_it_reads_any():
    strided = Spec(F32, (4, 3), (4, 16))
    for reads, fine in [("dense", False), ("any", True)]:
        dev = device(reads=reads)
        x = Place(put(dev, X).buffer, 0, strided)
        out = room(dev, (4, 3))
        placed = step("add", [x, x], out)
        assert SimBackend(Shape(reads=reads)).reads(placed.step, dev.target) == (reads, reads)
        if fine:
            program(dev, placed).run()
            np.testing.assert_array_equal(get(dev, out), X.T * 2)
        else:
            with pytest.raises(DeviceError, match="a is strided and no copy made it dense"):
                program(dev, placed)


def test_a_copy_makes_dense():
    dev = device()
    x = Place(put(dev, X).buffer, 0, Spec(F32, (4, 3), (4, 16)))
    out = room(dev, (4, 3))
    placed = step("contiguous", [x], out)
    assert SimBackend().reads(placed.step, dev.target) == ("any",)
    program(dev, placed).run()
    np.testing.assert_array_equal(get(dev, out), X.T)


def test_a_result_may_lie_over_an_operand_only_where_the_op_says_so():
    dev = device()
    x = put(dev, X)
    inside = Place(x.buffer, 0, Spec(F32, (4,)))
    with pytest.raises(DeviceError, match="the result lies over x"):
        program(dev, step("mean", [x], Place(x.buffer, 0, Spec(F32, (3, 1))), axis=-1, keepdims=True))
    shifted = Place(x.buffer, 16, Spec(F32, (4,)))
    with pytest.raises(DeviceError, match="the result lies over"):
        program(dev, step("add", [inside, shifted], Place(x.buffer, 8, Spec(F32, (4,)))))
    assert "a" in OPS["add"].inplace
    program(dev, step("add", [inside, shifted], inside)).run()
    np.testing.assert_array_equal(get(dev, inside), X[0] + X[1])


def test_a_result_among_constants():
    dev = device()
    x = put(dev, X, Usage.CONSTANT)
    with pytest.raises(DeviceError, match="among the constants"):
        program(dev, step("add", [x, x], Place(x.buffer, 0, x.spec)))


def test_places_that_differ_from_the_step():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    placed = step("add", [x, x], out)
    flat = Place(x.buffer, 0, Spec(F32, (12,)))
    with pytest.raises(DeviceError, match=r"a is f32\[3, 4\] in the step, f32\[12\] in its place"):
        program(dev, PlacedStep(placed.step, (flat, x), out))
    with pytest.raises(DeviceError, match="not in both"):
        program(dev, PlacedStep(placed.step, (None, x), out))


def test_an_update_changes_its_strided_target_where_it_lies():
    dev = device()
    state = put(dev, np.zeros((4, 3), np.float32), Usage.STATE)
    target = Place(state.buffer, 0, Spec(F32, (3, 4), (4, 12)))
    rows, x = put(dev, np.array([2, -1], np.int32)), put(dev, X[:2])
    placed = step("put_rows", [target, x, rows], target)
    assert SimBackend().reads(placed.step, dev.target) == ("any", "dense", "dense")
    program(dev, placed).run()
    wanted = np.zeros((4, 3), np.float32)
    wanted[:, 2] = X[0]
    np.testing.assert_array_equal(get(dev, state), wanted)


def test_what_kernels_find_is_raised_once_at_read_or_synchronize():
    dev = device()
    x, rows, out = put(dev, X), put(dev, np.array([0, 9], np.int32)), room(dev, (2, 4))
    run = program(dev, step("take_rows", [x, rows], out))
    run.run()
    run.check()  # nothing has run yet
    with pytest.raises(BadIndex, match="9"):
        get(dev, out)
    np.testing.assert_array_equal(get(dev, out)[0], X[0])
    run.run()
    with pytest.raises(BadIndex, match=r"\[take_rows\]"):
        dev.synchronize()
    dev.synchronize()
    run.check()


def test_a_body_that_fails_is_a_kernel_error(monkeypatch):
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    run = program(dev, step("add", [x, x], out))
    monkeypatch.setattr(OPS["add"], "evaluate", lambda *_: 1 / 0)
    run.run()
    with pytest.raises(KernelError, match=r"\[add\] sim:0: ZeroDivisionError"):
        dev.synchronize()


def test_a_program_of_freed_memory():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    run = program(dev, step("add", [x, x], out))
    dev.free(x.buffer)
    run.run()
    with pytest.raises(DeviceError, match="was freed before"):
        dev.synchronize()


def test_free_waits_for_queued_work():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    program(dev, step("add", [x, x], out)).run()
    dev.free(x.buffer)
    np.testing.assert_array_equal(get(dev, out), X + X)


def test_two_queues_are_ordered_by_events_only():
    one, two = SimBackend(Shape(parts=2)).devices()
    assert (one.name, two.name) == ("sim:0:0", "sim:0:1")
    x, out, there = put(one, X), room(one, (3, 4)), room(two, (3, 4))
    run = program(one, step("add", [x, x], out))
    run.run()
    assert two.copy(out, there)
    assert np.isnan(get(two, there)).all()  # nobody waited
    run.run()
    two.wait(one.record())
    assert two.copy(out, there)
    np.testing.assert_array_equal(get(two, there), X + X)


def test_a_queue_that_waits_works_the_other_off_up_to_the_event_only():
    one, two = SimBackend(Shape(parts=2)).devices()
    x = put(one, X)
    run = program(one, step("add", [x, x], room(one, (3, 4))))
    run.run()
    event = one.record()
    run.run()
    two.wait(event)
    assert one.steps == 0
    two.synchronize()
    assert one.steps == 1


def test_a_source_that_changes_before_the_copy_ran():
    one, two = SimBackend(Shape(parts=2)).devices()
    x, there = put(one, X), room(two, (3, 4))
    two.copy(x, there)
    one.write(x.buffer, 0, memoryview(bytes(48)))  # needs one.wait(two.record()) first
    np.testing.assert_array_equal(get(two, there), 0 * X)
    x = put(one, X)
    two.copy(x, there)
    one.wait(two.record())
    one.write(x.buffer, 0, memoryview(bytes(48)))
    one.synchronize()
    np.testing.assert_array_equal(get(two, there), X)


def test_copies_that_go_by_way_of_the_host():
    one, two = SimBackend(Shape(parts=2, direct=False)).devices()
    assert not two.copy(put(one, X), room(two, (3, 4)))
    assert not one.copy(Place(b"host", 0, Spec(F32, (1,))), room(one, (1,)))
    one.wait(None)
    with pytest.raises(DeviceError, match="can't wait for a str"):
        one.wait("event")


def test_a_long_queue_is_worked_off():
    dev = device()
    x, out = put(dev, X), room(dev, (3, 4))
    run = program(dev, step("add", [x, x], out))
    for _ in range(5000):
        run.run()
    assert 4000 < dev.steps < 5000


def test_lost_after_so_many_steps():
    for k in range(5):
        dev = device(lost_after=k)
        x, out = put(dev, X), room(dev, (3, 4))
        run = program(dev, step("add", [x, x], out), step("add", [x, out], room(dev, (3, 4))))
        done = 0
        with pytest.raises(DeviceLost, match=f"was lost after {k} steps"):
            for _ in range(4):
                run.run()
                dev.synchronize()
                done += 2
        assert done == k - k % 2
        for use in (
            lambda d=dev: d.alloc(1, Usage.COMPUTE),
            run.run,
            dev.synchronize,
            lambda d=dev, o=out: get(d, o),
            dev.record,
        ):
            with pytest.raises(DeviceLost):
                use()
        dev.free(x.buffer)
        assert dev.lost


def test_a_lost_device_is_told_to_the_queue_that_waits():
    one, two = SimBackend(Shape.of(parts=2, lost_after=0)).devices()
    x = put(one, X)
    program(one, step("add", [x, x], room(one, (3, 4)))).run()
    two.wait(one.record())
    with pytest.raises(DeviceLost, match="sim:0:0"):
        two.synchronize()


def test_delay():
    dev = device(delay="30ms")
    x = put(dev, X)
    run = program(dev, step("add", [x, x], room(dev, (3, 4))))
    run.run()
    began = time.perf_counter()
    dev.synchronize()
    assert time.perf_counter() - began >= 0.03


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_has_no_device():
    dev = device()
    x = put(dev, X)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs dies, and the test fails
        code = 1
        try:
            dev.free(x.buffer)
            get(dev, x)
        except ForkedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(get(dev, x), X)


def test_limits_of_ops_dtypes_and_size():
    backend = SimBackend(Shape.of(refuse="softmax+mean", dtypes="f32+f16", max_operand="48B"))
    kernels, target = backend.kernels(), backend.devices()[0].target
    assert {"softmax", "mean"}.isdisjoint(kernels)
    assert kernels.keys() | {"softmax", "mean"} == SimBackend().kernels().keys()
    assert kernels["take_rows"].operands["x"] == {"f32", "f16", "i32"}
    assert kernels["take_rows"].operands["rows"] == {"i32", "i64"}

    def why(op, *specs, **attrs):
        result = OPS[op].infer(specs, OPS[op].complete(attrs))
        return refusal(Step(op, specs, result, OPS[op].complete(attrs)), kernels, target)

    assert why("add", Spec(F32, (3, 4)), Spec(F32, (3, 4))) is None
    assert why("add", Spec(F32, (3, 5)), Spec(F32, (3, 5))).code == "size"
    assert why("add", Spec(jf.bf16, (3, 4)), Spec(jf.bf16, (3, 4))).code == "dtype"
    assert why("softmax", Spec(F32, (3, 4)), None, None).code == "op"
    dev = backend.devices()[0]
    x = room(dev, (3, 4))
    with pytest.raises(DeviceError, match="a step was compiled that it refuses: no kernel for softmax"):
        program(dev, step("softmax", [x, None, None], room(dev, (3, 4))))


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", Shape()),
        ("mem=64MiB", Shape(mem=64 << 20)),
        (" mem = 1.5KiB , parts=2 ", Shape(mem=1536, parts=2)),
        ("refuse=softmax+add", Shape(refuse=frozenset({"softmax", "add"}))),
        ("dtypes=f32+q4_0,lost_after=12", Shape(dtypes=frozenset({"f32", "q4_0"}), lost_after=12)),
        ("delay=1ms,reads=any,direct=no", Shape(delay=0.001, reads="any", direct=False)),
        ("max_buffer=1MB,max_operand=0B", Shape(max_buffer=10**6, max_operand=0)),
    ],
)
def test_shapes(text, shape):
    assert Shape.parse(text) == shape


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mem", "'mem' has no value"),
        ("mem=", "'mem' has no value"),
        ("mem=64", "mem is '64', must be a size with its unit"),
        ("mem=64mib", "mem is '64mib'"),
        ("mem=-1MiB", "mem is '-1MiB'"),
        ("mem=999999999999GiB", "mem is"),
        ("mem=1MiB,mem=2MiB", "mem is given twice"),
        ("men=1MiB", "no key 'men'; did you mean mem?"),
        ("lost_after=-1", "lost_after is '-1', must be a whole number"),
        ("lost_after=1.5", "lost_after is '1.5'"),
        ("parts=0", "parts is '0', must be a whole number from 1 to 64"),
        ("delay=1", "delay is '1', must be a time with its unit"),
        ("refuse=sofmax", "refuse: there is no op called 'sofmax'; did you mean softmax?"),
        ("dtypes=f33", "dtypes: there is no dtype called 'f33'"),
        ("reads=rows", "reads is 'rows', must be dense or any"),
        ("direct=maybe", "direct is 'maybe', must be yes or no"),
    ],
)
def test_malformed_shapes(text, says, monkeypatch):
    with pytest.raises(AttributeValueError) as caught:
        Shape.parse(text)
    assert says in str(caught.value)
    monkeypatch.setenv("JACKFIELD_SIM", text)
    fresh = registry.Registry()
    with pytest.raises(DeviceError) as named:
        fresh.select("sim")
    assert says in str(named.value)
    assert [d.name for d in fresh.select("reference").devices] == ["reference:0"]


odd_values = st.integers() | st.floats() | st.text(max_size=6) | st.none() | st.lists(st.text(max_size=3), max_size=2)


@given(st.dictionaries(st.sampled_from(list(Shape.__dataclass_fields__)), odd_values))
def test_any_keyword_gives_a_shape_or_an_error_that_names_it(values):
    try:
        Shape.of(**values)
    except AttributeValueError as e:
        assert any(f"[sim] {key}" in str(e) for key in values)


def test_the_public_function_and_its_block(monkeypatch):
    monkeypatch.setenv("JACKFIELD_SIM", "parts=3")
    registry.refresh()
    try:
        assert len(registry.select("sim").devices) == 3
        with jf.sim(mem="1MiB", refuse=["softmax"]) as use:
            assert use.device.memory.total == 1 << 20
            assert registry.select("sim").devices[0].device is use.device
            with jf.sim(parts=2) as inner:
                assert [d.name for d in inner.devices] == ["sim:0:0", "sim:0:1"]
            assert registry.select("sim:0").devices[0].device.memory.total == 1 << 20
        assert len(registry.select("sim").devices) == 3
        with pytest.raises(AttributeValueError, match="mem"):
            jf.sim(mem="a lot")
        assert len(registry.select("sim").devices) == 3
    finally:
        monkeypatch.delenv("JACKFIELD_SIM")
        registry.refresh()


# What the collector does in the middle


def test_what_is_freed_inside_a_call_waits_for_its_end():
    """The collector may drop a Session while an entry runs; the entries behind that one must not overtake it."""
    first, second = SimBackend(Shape.of(parts=2)).devices()
    dropped, order = [d.alloc(8, Usage.COMPUTE) for d in (first, second)], []

    def entry() -> None:
        for d, buffer in zip((first, second), dropped, strict=True):
            d.free(buffer)
        order.append("first")

    first.enqueue(entry)
    first.enqueue(lambda: order.append("second"))
    second.wait(first.record())
    second.enqueue(lambda: order.append("third"))
    first.synchronize()
    second.synchronize()
    assert order == ["first", "second", "third"]
    assert first.allocated == second.allocated == 0
    with pytest.raises(DeviceError, match="was freed before"):
        first.free(dropped[0])


def test_an_error_of_a_late_free_is_logged(caplog):
    one = device()
    buffer = one.alloc(8, Usage.COMPUTE)
    one.enqueue(lambda: (one.free(buffer), one.free(buffer)))
    one.synchronize()
    assert f"buffer {buffer.number} of 8 bytes was freed before" in caplog.text
