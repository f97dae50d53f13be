"""The reference device: strided operands, in-place results, caches of constants, faults, bounds."""

from __future__ import annotations

import numpy as np
import pytest

from jackfield import ops
from jackfield.backend import Group, Place, PlacedStep, Spec, Step, Usage, refusal
from jackfield.conformance import examples
from jackfield.dtypes import DTYPES, f32, i32, q8_0
from jackfield.errors import BadIndex, DeviceError, KernelError, OutOfMemory
from jackfield.op import OPS
from jackfield.reference import ReferenceBackend, ReferenceDevice


@pytest.fixture
def device():
    return ReferenceDevice()


def put(device, array, spec=None, usage=Usage.COMPUTE):
    buffer = device.alloc(array.nbytes, usage)
    device.write(buffer, 0, memoryview(np.ascontiguousarray(array)))
    return Place(buffer, 0, spec or Spec.of(array))


def get(device, place):
    out = np.empty(place.spec.shape, place.spec.dtype.numpy)
    device.read(place.buffer, place.offset, memoryview(out))
    return out


def program(device, op, operands, result, **attrs):
    step = Step(op.name, tuple(p and p.spec for p in operands), result.spec, op.complete(attrs))
    return device.compile([Group((PlacedStep(step, tuple(operands), result),))], None)


def test_it_takes_every_example():
    backend = ReferenceBackend()
    (device,) = backend.devices()
    assert device.name == "reference:0"
    assert backend.targets() == (device.target,)
    kernels = backend.kernels()
    for name, op in OPS.items():
        assert (name in kernels) != op.is_view
        for example in examples(op):
            step = Step(name, example.specs, example.result, example.attrs)
            if not op.is_view:
                assert refusal(step, kernels, device.target) is None
                assert backend.why_not(step, device.target) is None
                assert backend.reads(step, device.target) == ("any",) * len(op.operands)


def test_results_go_through_strides_and_over_operands(device):
    a = put(device, np.arange(12, dtype=np.float32))
    x = Place(a.buffer, 4, Spec(f32, (2, 3), (16, 4)))
    device.compile([], None).run()
    program(device, ops.square, [x], x).run()
    assert get(device, a).tolist() == [0, 1, 4, 9, 4, 25, 36, 49, 8, 9, 10, 11]
    y = Place(a.buffer, 0, Spec(f32, (2, 2), (8, 24)))
    program(device, ops.add, [Place(a.buffer, 0, Spec(f32, (2, 2))), Place(a.buffer, 0, Spec(f32, (2, 2)))], y).run()
    assert get(device, a)[[0, 6, 2, 8]].tolist() == [0, 2, 8, 18]


def test_an_update_elsewhere_copies_the_old_value_first(device):
    target, x = put(device, np.ones((3, 2), np.float32)), put(device, np.full((1, 2), 5, np.float32))
    rows = put(device, np.array([1], np.int32))
    result = put(device, np.zeros((3, 2), np.float32))
    program(device, ops.put_rows, [target, x, rows], result).run()
    assert get(device, result).tolist() == [[1, 1], [5, 5], [1, 1]]
    assert get(device, target).tolist() == [[1, 1], [1, 1], [1, 1]]
    program(device, ops.put_rows, [target, x, rows], target).run()
    assert get(device, target).tolist() == [[1, 1], [5, 5], [1, 1]]


def test_faults_are_told_once_and_the_first_one_first(device):
    x, rows = put(device, np.ones((3, 2), np.float32)), put(device, np.array([0, 9], np.int32))
    y = put(device, np.empty((2, 2), np.float32))
    run = program(device, ops.take_rows, [x, rows], y)
    run.run()
    run.run()
    with pytest.raises(BadIndex, match=r"^\[take_rows\] rows holds the index 9, which lies outside its axis$"):
        run.check()
    run.check()
    assert get(device, y).tolist() == [[1, 1], [0, 0]]
    device.write(rows.buffer, 4, memoryview(np.array([1], np.int32)))
    run.run()
    run.check()


def test_what_no_block_can_hold_is_a_kernel_error(device):
    x = put(device, np.full((1, 32), np.nan, np.float32))
    y = Place(device.alloc(34, Usage.COMPUTE), 0, Spec(q8_0, (1, 32)))
    run = program(device, ops.cast, [x], y, dtype="q8_0")
    run.run()
    with pytest.raises(KernelError, match=r"^\[cast\] x holds inf, NaN or too large a value in block 0"):
        run.check()


def test_decoded_constants_are_kept_until_their_bytes_change(device, monkeypatch):
    from jackfield import reference

    decodes = []
    real = reference.decoded
    monkeypatch.setattr(reference, "decoded", lambda a: decodes.append(1) or real(a))
    weight = np.ones((2, 32), np.float32)
    spec = Spec(q8_0, (2, 32), role="constant")
    w = put(device, q8_0.encode(weight), spec, Usage.CONSTANT)
    x, y = put(device, np.ones((1, 32), np.float32)), put(device, np.empty((1, 2), np.float32))
    first, second = (program(device, ops.linear, [x, w], y) for _ in range(2))
    first.run()
    second.run()
    assert len(decodes) == 1
    np.testing.assert_allclose(get(device, y), [[32, 32]], rtol=1e-3)
    device.write(w.buffer, 0, memoryview(q8_0.encode(2 * weight)))
    first.run()
    assert len(decodes) == 2
    np.testing.assert_allclose(get(device, y), [[64, 64]], rtol=1e-3)
    monkeypatch.setattr(reference, "CACHE_NBYTES", 0)
    device.free(w.buffer)
    first.run()
    first.run()
    assert len(decodes) == 4


def test_borrowed_memory_is_read_in_place(device):
    data = np.arange(4, dtype=np.float32)
    buffer = device.borrow(memoryview(data).toreadonly())
    y = put(device, np.empty(4, np.float32))
    run = program(device, ops.square, [Place(buffer, 0, Spec(f32, (4,)))], y)
    data[0] = 3
    run.run()
    assert get(device, y).tolist() == [9, 1, 4, 9]
    assert device.borrow(memoryview(b"")) is not None


def test_empty_tensors_and_bounds(device):
    nothing = put(device, np.zeros((0, 3), np.float32))
    program(device, ops.square, [nothing], nothing).run()
    device.read(nothing.buffer, 0, memoryview(bytearray()))
    with pytest.raises(DeviceError, match="bytes 0 to 8 of a buffer of 4: must lie inside"):
        device.write(device.alloc(4, Usage.COMPUTE), 0, memoryview(bytes(8)))
    short = Place(device.alloc(4, Usage.COMPUTE), 0, Spec(i32, (2,)))
    with pytest.raises(DeviceError, match="ends at byte 8 of a buffer of 4"):
        program(device, ops.contiguous, [short], short)
    with pytest.raises(OutOfMemory, match="reference:0: no"):
        device.alloc(2**60, Usage.STATE)


def test_every_dtype_is_listed():
    kernel = ReferenceBackend().kernels()["contiguous"]
    assert kernel.operands["x"] == kernel.results == frozenset(DTYPES)
