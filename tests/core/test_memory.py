"""Offsets against a brute-force picture of memory, and the laws of groups, keeps, sizes and scratch."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import Liar, Minimal, Picky, registered
from hypothesis import given
from hypothesis import strategies as st

import jackfield as jf
from jackfield import ops
from jackfield.backend import Grouping, Limits
from jackfield.errors import DeviceError, OutOfMemory
from jackfield.memory import Life, pack

lives = st.lists(
    st.builds(
        lambda n, start, long: Life(n, start, start + long), st.integers(0, 40), st.integers(0, 90), st.integers(0, 70)
    ),
    max_size=40,
)


@given(lives, st.sampled_from([1, 4, 16]), st.sampled_from([None, 48, 64]))
def test_no_byte_has_two_owners(found, alignment, max_buffer):
    """One cell for every moment, chunk and byte; each may be taken once."""
    arena = pack(found, alignment=alignment, max_buffer=max_buffer)
    cells = np.zeros((170, len(arena.chunks) or 1, max(arena.chunks, default=0)), bool)
    alive = np.zeros(170, int)
    for life, (chunk, offset) in zip(found, arena.places, strict=True):
        assert offset % alignment == 0
        if life.nbytes:
            assert offset + life.nbytes <= arena.chunks[chunk]
            part = cells[life.start : life.end + 1, chunk, offset : offset + life.nbytes]
            assert not part.any()
            part[:] = True
            alive[life.start : life.end + 1] += -(-life.nbytes // alignment) * alignment
    assert arena.lower_bound == alive.max()
    assert arena.lower_bound <= arena.nbytes
    if max_buffer is not None:
        assert all(n <= max_buffer for n in arena.chunks)
    assert pack(found, alignment=alignment, max_buffer=max_buffer) == arena


@given(st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_a_chain_needs_two_neighbours_at_most(sizes):
    chain = [Life(n, i, i + 1) for i, n in enumerate(sizes)]
    arena = pack(chain)
    assert arena.nbytes >= arena.lower_bound
    if len(set(sizes)) == 1:
        assert arena.nbytes == arena.lower_bound


def test_largest_first_lowest_fit():
    arena = pack([Life(4, 0, 1), Life(8, 1, 2), Life(4, 2, 3), Life(2, 0, 0)])
    assert arena.places == ((8, 0)[::-1], (0, 0), (0, 8), (0, 0))
    assert arena.chunks == (12,)


def test_a_life_larger_than_a_chunk():
    with pytest.raises(OutOfMemory, match="one tensor takes 64 bytes, an allocation at most 48"):
        pack([Life(49, 0, 0)], alignment=16, max_buffer=60)


def compiled(y, device, **keywords):
    with registered(Picky([device], **keywords)):
        return jf.compile(y, device.name, policy="strict")


def chain(n=4):
    x = y = jf.input("x", (16,))
    for _ in range(n):
        y = ops.add(y, x)
    return y


def test_results_take_over_operands_that_die():
    x = jf.input("x", (16,))
    y = ops.multiply(ops.add(x, x), x)
    plan = compiled(ops.add(y, x), Minimal("one:0"))
    assert plan.explain().to_dict()["summary"]["in_place"] == 2
    assert plan.memory()["one:0"]["temporaries"] == 2 * 64
    np.testing.assert_array_equal(plan(x=np.full(16, 3, np.float32)), np.full(16, 21))


def test_no_result_takes_over_what_is_still_needed():
    x = jf.input("x", (16,))
    a = ops.add(x, x)
    b = ops.multiply(a, a)  # a occurs twice
    c = ops.add(b, a)
    plan = compiled((a, ops.add(c, b)), Minimal("one:0"))
    first, second = plan(x=np.full(16, 1, np.float32))
    np.testing.assert_array_equal(first, np.full(16, 2))
    np.testing.assert_array_equal(second, np.full(16, 10))


def test_an_operand_that_occurs_twice_is_not_taken_over():
    x = jf.input("x", (16,))
    a = ops.add(x, x)
    plan = compiled(ops.multiply(a, a), Minimal("one:0"))
    assert plan.explain().to_dict()["summary"]["in_place"] == 0


def test_views_keep_their_base_alive():
    x = jf.input("x", (4, 4))
    a = ops.add(x, x)
    b = ops.multiply(a[1:3], x[1:3])  # a view: a is not taken over
    plan = compiled(ops.add(b, a[2:4]), Minimal("one:0"))
    np.testing.assert_array_equal(plan(x=np.ones((4, 4), np.float32)), np.full((2, 4), 4))


def test_arenas_in_chunks():
    device = Minimal("one:0", limits=Limits(max_buffer=128))
    x = jf.input("x", (16,))
    parts = [ops.multiply(x, jf.constant(np.float32(i))) for i in range(5)]
    y = parts[0]
    for part in reversed(parts):
        y = ops.add(y, part)
    plan = compiled((*parts, y), device)
    *_, total = plan(x=np.ones(16, np.float32))
    np.testing.assert_array_equal(total, np.full(16, 10))
    assert max(device.live.values()) <= 128
    assert len(device.live) > 2


def test_a_tensor_no_allocation_holds_is_refused():
    device = Minimal("one:0", limits=Limits(max_buffer=60))
    with pytest.raises(jf.errors.PlacementError, match="takes 64 bytes, an allocation at most 60"):
        compiled(chain(), device)


def test_empty_tensors_take_nothing():
    x = jf.input("x", (0, 4))
    device = Minimal("one:0")
    plan = compiled((ops.add(x, x), ops.reshape(x, shape=(4, 0))), device)
    a, b = plan(x=np.zeros((0, 4), np.float32))
    assert a.shape == (0, 4)
    assert b.shape == (4, 0)
    assert device.counts["run"] == device.counts["write"] == device.counts["read"] == 0


# What devices may ask for


def test_scratch_is_one_block_a_run():
    device = Liar("liar:0", scratch=lambda group: 1000 if group[0].op == "add" else 10)
    x = jf.input("x", (16,))
    plan = compiled(ops.multiply(ops.add(x, x), x), device)
    (scratch,) = device.scratches
    assert scratch.spec.nbytes == 1000
    assert plan.memory()["liar:0"]["temporaries"] >= 1000 + 128
    np.testing.assert_array_equal(plan(x=np.ones(16, np.float32)), np.full(16, 2))


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (Grouping(((0,), (1,), (2,))), "must name each of the 4 steps"),
        (Grouping(((0,), (1,), (2,), (2,))), "must name each of the 4 steps"),
        (Grouping(((1,), (0,), (2,), (3,))), "put step 1 before step 0"),
        (Grouping(((0,), (1,), (2, 3), ())), "a group is empty"),
        (Grouping(((0,), (1,), (2,), (3,)), keeps=((0, 9),)), r"keep \(0, 9\)"),
        (Grouping(((0,), (1,), (2,), (3,)), keeps=((2, 1),)), r"keep \(2, 1\)"),
    ],
)
def test_wishes_that_break_a_law(groups, text):
    with pytest.raises(DeviceError, match=text):
        compiled(chain(), Liar("liar:0", groups=lambda steps: groups))


def test_fusing_away_what_is_needed():
    x = jf.input("x", (16,))
    a = ops.add(x, x)
    fused = Grouping(((0, 1),))
    with pytest.raises(DeviceError, match=r"fuse add.0 away, but its result is an output"):
        compiled((ops.multiply(a, a), a), Liar("liar:0", groups=lambda steps: fused))
    three = Grouping(((0, 1), (2,)))
    with pytest.raises(DeviceError, match=r"fuse add.0 away, but its result is used outside the group"):
        compiled(ops.add(ops.multiply(a, a), a), Liar("liar:0", groups=lambda steps: three))
    plan = compiled(ops.multiply(a, a), Liar("liar:0", groups=lambda steps: fused))
    np.testing.assert_array_equal(plan(x=np.ones(16, np.float32)), np.full(16, 4))


def test_a_group_makes_what_none_of_its_steps_reads():
    """Two results of one group, both outputs; a device that has none of it fused away."""
    x = jf.input("x", (16,))
    a, b = ops.add(x, x), ops.multiply(x, x)
    plan = compiled((a, b), Liar("liar:0", fuse=lambda steps, links: Grouping(((0, 1),))))
    for got, want in zip(plan(x=np.full(16, 3, np.float32)), (6, 9), strict=True):
        np.testing.assert_array_equal(got, np.full(16, want))


def test_what_is_fused_away_and_never_written_has_only_an_address():
    """a and b are; the two results that the addition outside the group reads are not."""
    x = jf.input("x", (1000,))
    a = ops.add(x, x)
    b = ops.multiply(a, x)
    y = ops.add(ops.subtract(b, x), ops.multiply(b, x))
    arenas = []
    for unwritten in (False, True):
        wish = Grouping(((0, 1, 2, 3), (4,)), unwritten=unwritten)
        with registered(Picky([Liar("liar:0", fuse=lambda steps, links, wish=wish: wish)])):
            memory = jf.Session("liar:0").draw(y).memory
        arenas.append(memory.arenas[0])
        together = [place for life, place, _ in memory.reserved[0] if life.start == 0]
        assert len(set(together)) == len(together) == 5  # x, and four results
    assert [arena.nbytes > 5 * 4000 for arena in arenas] == [True, False]
    assert arenas[1].nbytes > 3 * 4000


def test_what_a_step_of_the_group_changes_keeps_its_memory():
    """It is read by the step that changes it, and has another name afterwards: no more is fused away than without."""
    x, at = jf.input("x", (100, 4)), jf.input("at", (4,), jf.i32)
    cache = ops.add(x, x)
    graph = [ops.put_rows(cache, x[:4], at), ops.tanh(x)]
    wish = Grouping(((0,), (1, 2)), unwritten=True)
    with registered(Picky([Liar("liar:0", fuse=lambda steps, links: wish)])):
        drawn = jf.Session("liar:0").draw(graph)
    assert [value.nbytes for value in drawn.memory.places if value.kind == "temporary"] == [1600, 1600]


def test_links_tell_which_memory_steps_share():
    x, y, s = jf.input("x", (16,)), jf.input("y", (16,)), jf.state("s", (16,))
    a = ops.add(x, y)
    b = ops.multiply(a[4:8], x[:4])
    steps, shown = [], []

    def watch(steps_, links):
        steps.extend("part" if step.op == "tanh" and step.result.shape == (8,) else step.op for step in steps_)
        shown.extend(links)
        return Grouping(tuple((i,) for i in range(len(links))))

    compiled((b, ops.tanh(ops.write(s, a, start=(0,))), ops.tanh(a[8:])), Liar("liar:0", fuse=watch))
    add, multiply, write, tanh, part = (shown[steps.index(op)] for op in ("add", "multiply", "write", "tanh", "part"))
    x_number, y_number = add.operands
    assert len({x_number, y_number, add.result, multiply.result, write.result, tanh.result, part.result}) == 7
    assert multiply.operands == (add.result, x_number)
    assert multiply.offsets == (16, 0)
    assert write.operands == (write.result, add.result)
    assert tanh.operands == (write.result,)
    assert (part.operands, part.offsets) == ((add.result,), (32,))
    assert [link.outside for link in (add, multiply, write, tanh, part)] == [False, True, True, True, True]


def test_what_a_later_run_reads_is_not_fused_away():
    """b alone reads a in its run, but a run after the visit to another device reads it too."""
    x = jf.input("x", (16,))
    a = ops.add(x, x)
    b = ops.multiply(a, x)
    y = ops.add(ops.tanh(b), a)
    told = []

    def fuse(steps, links):
        told.append([link.outside for link in links])
        return Grouping((tuple(range(len(steps))),))

    liar = Liar("liar:0", fuse=fuse)
    other = Picky([Minimal("other:0")], refuse=lambda step, target: None if step.op == "tanh" else "no")
    with (
        registered(Picky([liar], refuse=lambda step, target: "no" if step.op == "tanh" else None), other),
        pytest.raises(DeviceError, match=r"fuse add.0 away, but its result is used outside the group"),
    ):
        jf.compile(y, "liar:0+other:0", policy="strict")
    assert told[0] == [True, True]


def test_kept_tensors_stay():
    def keep_first(steps):
        return Grouping(tuple((i,) for i in range(len(steps))), keeps=((0, 3),))

    free, kept = compiled(chain(), Minimal("one:0")), compiled(chain(), Liar("liar:0", groups=keep_first))
    assert free.memory()["one:0"]["temporaries"] == 128
    assert kept.memory()["liar:0"]["temporaries"] == 192


def test_sizes_that_break_a_law():
    with pytest.raises(DeviceError, match=r"liar:0: result_nbytes of add is 1 bytes for f32\[16\] of 64"):
        compiled(chain(), Liar("liar:0", result_nbytes=lambda step: 1))
    with pytest.raises(DeviceError, match="more only as row padding"):
        compiled(chain(), Liar("liar:0", result_nbytes=lambda step: step.result.nbytes + 64))
    with pytest.raises(DeviceError, match="scratch of add is -1"):
        compiled(chain(), Liar("liar:0", scratch=lambda group: -1))


def test_row_padding_of_block_dtypes_is_reserved():
    x = jf.input("x", (2, 32))
    device = Liar("liar:0", result_nbytes=lambda step: step.result.nbytes + (500 if step.result.dtype.is_block else 0))
    y = ops.cast(ops.cast(x, dtype="q8_0"), dtype="f32")
    assert compiled(y, device).memory()["liar:0"]["temporaries"] >= 256 + 568


class Overrunner(Minimal):
    """Writes one byte past each result."""

    def compile(self, run, scratch):
        program = super().compile(run, scratch)
        plain = program.run

        def run_too_far():
            plain()
            for placed in program.placed:
                result = placed.result
                result.buffer.bytes[result.offset + result.spec.nbytes] = 1

        program.run = run_too_far
        return program


def test_guards_catch_what_writes_too_far(monkeypatch):
    monkeypatch.setenv("JACKFIELD_CHECK", "memory")
    plan = compiled(chain(), Overrunner("over:0"))
    with pytest.raises(DeviceError, match=r"over:0: add.0 wrote past the end"):
        plan(x=np.ones(16, np.float32))


def test_dead_memory_is_spoiled(monkeypatch):
    """A device that keeps an operand's bytes for later without saying so reads NaN."""

    class Hoarder(Minimal):
        def compile(self, run, scratch):
            program = super().compile(run, scratch)
            plain, placed = program.run, program.placed[0]
            self.first = getattr(self, "first", placed)

            def run_late():
                plain()
                self.seen = np.frombuffer(
                    self.first.result.buffer.bytes.tobytes(), np.float32, 64, self.first.result.offset
                )

            program.run = run_late
            return program

    monkeypatch.setenv("JACKFIELD_CHECK", "memory")
    device = Hoarder("hoard:0")
    x = jf.input("x", (64,))
    y = ops.sum(ops.add(x, x), axis=0, keepdims=True)
    plan = compiled(ops.add(y, y), device)
    plan(x=np.ones(64, np.float32))
    assert np.isnan(device.seen[40:]).all()  # the last result lies in front of that


def test_results_that_hold_nan_are_told(monkeypatch):
    x = jf.input("x", (4,))
    y = ops.add(ops.multiply(x, x), x)
    bad = np.array([1, np.inf, 0, 2], np.float32)
    assert not np.isnan(jf.compile(y, "reference")(x=bad)).any()
    monkeypatch.setenv("JACKFIELD_CHECK", "nan")
    plan = jf.compile(y, "reference")
    plan(x=bad)
    with pytest.raises(jf.errors.KernelError, match=r"\[multiply\] multiply.0 on reference:0: 1 of 4 results are NaN"):
        plan(x=np.array([1, np.nan, 0, 2], np.float32))
    monkeypatch.setenv("JACKFIELD_CHECK", "nam")
    with pytest.raises(jf.errors.PlanError, match="JACKFIELD_CHECK names 'nam'"):
        jf.compile(y, "reference")
