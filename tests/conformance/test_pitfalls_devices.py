"""What a device must not keep, share or guess: lists it was shown, other instances, marks in data, old bytes."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from recipes import BLOCKS, RUNNING, examples_of, examples_with

import jackfield as jf
from jackfield import ops
from jackfield.backend import DTYPES, Group, Place, PlacedStep, Step, Usage
from jackfield.errors import DeviceError
from jackfield.graph import ArraySource
from jackfield.op import Case, rand, values
from jackfield.spec import Spec
from jackfield_conformance import Refused, mistakes
from jackfield_conformance.direct import bind, packed

PART = 3  # see thorough.py


def path(on):
    backend, device = on
    return f"{device.name}+reference" if backend.name != "reference" else "reference"


# what was shown


class Forgetful:
    """A device as it is, but every list it is shown is emptied as soon as the call is over."""

    def __init__(self, device):
        self.device = device

    def __getattr__(self, name):
        return getattr(self.device, name)

    def scratch(self, group):
        shown = list(group)
        nbytes = self.device.scratch(shown)
        shown.clear()
        return nbytes

    def compile(self, run, scratch):
        shown = [Group(tuple(PlacedStep(s.step, tuple(s.operands), s.result) for s in g.steps)) for g in run]
        wish = self.device.groups(steps := [s.step for g in shown for s in g.steps])
        assert sorted(i for group in wish.groups for i in group) == list(range(len(steps)))
        steps.clear()
        program = self.device.compile(shown, scratch)
        shown.clear()
        _churn = [bytes([0xFF]) * 64 for _ in range(1000)]  # what was freed is written over
        return program


@pytest.mark.parametrize("name", RUNNING)
def test_no_device_needs_the_list_of_steps_after_the_call(name, on):
    """Item 55: a Program holds what it needs; the list it was made from is gone when it runs."""
    backend, device = on
    tried = list(examples_with(name))
    for example in [next((e for e in tried if e.layout == layout), None) for layout in ("dense", "constant", "sliced")]:
        try:
            assert example is None or mistakes(example, backend, Forgetful(device)) == []
        except Refused as reason:
            assert name in str(reason)


def test_a_plan_outlives_its_graph(on):
    """Item 55: tensors, arrays and steps are garbage before the first call; only the plan is left."""

    def made():
        x = jf.input("x", (3, 64))
        w = jf.constant(np.full((5, 64), 0.5, np.float32))
        coded = jf.constant(ArraySource(DTYPES["q4_0"].encode(np.ones((7, 64), np.float32)), DTYPES["q4_0"], (7, 64)))
        h = ops.linear(x, w)
        for _ in range(20):
            h = ops.add(ops.relu(h), ops.scale(h, scale=0.5))
        return jf.compile({"h": h, "coded": ops.linear(x, coded)}, device=path(on))

    plan = made()
    gc.collect()
    _churn = [np.full(256, np.nan, np.float32) for _ in range(200)]
    got = plan(x=np.ones((3, 64), np.float32))
    np.testing.assert_allclose(got["h"], np.full((3, 5), 32 * 1.5**20), rtol=1e-5)
    np.testing.assert_allclose(got["coded"], np.full((3, 7), 64), rtol=1e-2)


# two of a kind


@pytest.fixture
def twins(on):
    """Two backends of one kind, each with its first device; neither is the one that the process opened."""
    kind = type(on[0])
    both = kind(), kind()
    return [(backend, backend.devices()[0]) for backend in both]


@pytest.mark.parametrize("name", ["linear", "softmax", "take_rows", "argsort", "put_rows", "attention"])
def test_two_instances_of_a_backend_work_side_by_side(name, twins):
    """Item 59: programs of both are alive, run in turns, and each finds its own memory; one ends, the other goes on."""
    example = next(e for e in examples_with(name) if e.layout == "dense")
    first, second = (bind(example, *twin) for twin in twins)
    want = first.run()
    for _ in range(2):
        for bound in (second, first):
            bound.reset()
            outcome = bound.run()
            np.testing.assert_array_equal(outcome.result, want.result)
            assert (outcome.damage, str(outcome.fault)) == ("", str(want.fault))
    first.free()
    del first, twins[0]
    gc.collect()
    second.reset()
    np.testing.assert_array_equal(second.run().result, want.result)
    second.free()


def test_memory_of_another_instance_is_right_or_refused(twins):
    """Item 59: "is it mine" is not asked of a global; a buffer of the twin works, or is told to be another's."""
    (_, one), (_, two) = twins
    spec = Spec(DTYPES["f32"], (8,))
    data = np.arange(8, dtype=np.float32)
    theirs, mine = one.alloc(32, Usage.COMPUTE), two.alloc(32, Usage.COMPUTE)
    one.write(theirs, 0, data.view(np.uint8).data)
    x, out = Place(theirs, 0, spec), Place(mine, 0, spec)
    step = Step("square", (spec,), spec, ops.square.complete({}))
    got = np.zeros(8, np.float32)
    try:
        program = two.compile([Group((PlacedStep(step, (x,), out),))], None)
        program.run()
        program.check()
        two.read(mine, 0, got.view(np.uint8).data)
        np.testing.assert_array_equal(got, data * data)
    except DeviceError as reason:
        assert "was used here" in str(reason)
    one.read(theirs, 0, got.view(np.uint8).data)
    np.testing.assert_array_equal(got, data)
    one.free(theirs)
    two.free(mine)


@pytest.mark.parametrize("name", ["f32", *BLOCKS])
def test_what_one_instance_packs_the_other_reads(name, twins):
    """Item 59: a packing is its name and its bytes, and not the object that made it."""
    columns = max(64, DTYPES[name].block)
    case = Case({"x": rand(3, columns), "weight": rand(5, columns, dtype=DTYPES[name])})
    example = next((e for e in examples_of("linear", case) if e.layout == "constant"), None)
    if example is None:
        pytest.skip(f"no constant of {name} is drawn")
    (packer, _), (backend, device) = twins

    class Borrowing:
        """The second backend with the packer of the first."""

        pack = staticmethod(packer.pack)

        def __getattr__(self, attribute):
            return getattr(backend, attribute)

    try:
        assert mistakes(example, Borrowing(), device) == []
    except Refused as reason:
        pytest.skip(str(reason))


# constants


MARKS = {  # with which files, containers and packings begin
    "container": (0x4B4C4149).to_bytes(4, "little") + bytes([1, 0, 1, 0]),
    "gguf": b"GGUF\3\0\0\0",
    "npy": b"\x93NUMPY\1\0",
}


def harmless(nbytes, seed=0):
    """Random bytes of which no two are an f16 that is not finite."""
    return np.random.default_rng(seed).integers(0, 0x3C, nbytes).astype(np.uint8)


def products(on, raws, dtype, shape, x):
    """linear of x with a constant of each of these bytes, all in one plan."""
    weights = [jf.constant(ArraySource(raw, dtype, shape)) for raw in raws]
    rows = jf.input("x", x.shape)
    return jf.compile([ops.linear(rows, weight, precision="f32") for weight in weights], device=path(on))(x=x)


def assert_near(got, x, raw, dtype, shape):
    wide = dtype.decode(raw.reshape(shape[0], -1)).astype(np.float64)
    want, size = x.astype(np.float64) @ wide.T, np.abs(x.astype(np.float64)) @ np.abs(wide.T)
    assert (np.abs(got - want) <= 1e-5 * size + 1e-30).all()


@pytest.mark.parametrize("name", ["f32", "f16", *BLOCKS])
def test_weights_that_begin_like_something_else(name, on):
    """Item 63: whether a constant is packed stands in its Spec; no byte of the data says so, whatever it looks like.

    The last weight is the packed form of the one before: taken for packed, it would be that one.
    """
    backend, device = on
    dtype = DTYPES[name]
    shape = (32, 2 * max(dtype.block, 64))
    spec = Spec(dtype, shape, role="constant")
    x = np.random.default_rng(1).standard_normal((3, shape[1])).astype(np.float32)
    looks = [harmless(spec.nbytes)]
    for mark in MARKS.values():
        looks.append(harmless(spec.nbytes))
        looks[-1][: len(mark)] = np.frombuffer(mark, np.uint8)
    step = Step("linear", (Spec(DTYPES["f32"], x.shape), spec), Spec(DTYPES["f32"], (3, 32)), ops.linear.complete({}))
    packing = backend.pack(spec, [step], device.target)
    if packing is not None and packing.nbytes == spec.nbytes:
        looks.append(packed(packing, looks[0]))
    for raw in looks:
        if packing is not None and packing.unpack is not None:
            back = np.zeros(spec.nbytes, np.uint8)
            packing.unpack(packed(packing, raw).data, back.data)
            np.testing.assert_array_equal(back, raw)
    # No session takes a weight whose scales are not finite.
    looks = [raw for raw in looks if not dtype.is_block or dtype.first_bad_block(raw) is None]
    for raw, got in zip(looks, products(on, looks, dtype, shape, x), strict=True):
        assert_near(got, x, raw, dtype, shape)


@pytest.mark.parametrize("name", ["f32", "f16", *BLOCKS])
def test_bytes_written_into_a_constants_buffer_are_the_constant(name, on):
    """Item 67: the device sees every write, so nothing it made of the former bytes may answer for the new ones."""
    backend, device = on
    dtype = DTYPES[name]
    shape = (19, 2 * max(dtype.block, 32))
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, shape[1])).astype(np.float32)
    old, new = (harmless(Spec(dtype, shape).nbytes, seed) for seed in (3, 4))

    case = Case({"x": values(x, DTYPES["f32"]), "weight": rand(*shape, dtype=dtype)}, {"precision": "f32"})
    example = next(e for e in examples_of("linear", case) if e.layout == "constant")
    try:
        bound = bind(example, backend, device)
    except Refused as reason:
        pytest.skip(str(reason))
    try:
        bound.run()
        (fence,) = [f for f in bound.fences if "constant" in f.what]
        spec = replace(example.views["weight"].spec, role="constant")
        packing = backend.pack(spec, [Step("linear", example.specs, example.result, example.attrs)], device.target)
        for raw in (old, new, old):
            kept = raw if packing is None else packed(packing, raw)
            device.write(fence.buffer, fence.inside.start, kept.data)
            fence.image[fence.inside.start : fence.inside.start + kept.nbytes] = kept
            bound.reset()
            outcome = bound.run()
            assert outcome.damage == ""
            assert_near(outcome.result, x, raw, dtype, shape)
    finally:
        bound.free()


@pytest.mark.parametrize("on", ["cpu"], indirect=True)  # the others pack nothing
def test_a_packed_constant_is_made_of_the_bytes_at_compile(on):
    """Item 67: what is written into the array behind a packed constant later does not get round the packing."""
    raw = DTYPES["q8_0"].encode(np.ones((32, 64), np.float32))
    x = np.ones((2, 64), np.float32)
    weight = jf.constant(ArraySource(raw, DTYPES["q8_0"], (32, 64)))
    with jf.Session(path(on)) as session:
        plan = session.compile(ops.linear(jf.input("x", x.shape), weight))
        assert plan.explain().to_dict()["packed"]
        before = plan(x=x)
        raw[...] = DTYPES["q8_0"].encode(np.full((32, 64), 3, np.float32))
        np.testing.assert_array_equal(plan(x=x), before)
        again = session.compile(ops.scale(ops.linear(jf.input("x", x.shape), weight), scale=1.0))
        np.testing.assert_array_equal(again(x=x), before)
