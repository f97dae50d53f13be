"""JACKFIELD_CHECK=promises: what callers say about data is looked at before the step that relies on it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from fakes import Minimal, Picky, registered
from hypothesis import given
from hypothesis import strategies as st
from presence import opens

import jackfield as jf
from jackfield import ops
from jackfield.backend import Group, Packing, PlacedStep
from jackfield.dtypes import DTYPES
from jackfield.errors import KernelError, PlanError
from jackfield.op import OPS, spec_of

INF, NAN = np.inf, np.nan
LIMIT = 5


@pytest.fixture(params=["reference", "sim", "cpu"])
def device(request):
    return opens(request.param)


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setenv("JACKFIELD_CHECK", "promises")


def mask_with(count, shape=(1, 1, 3, 9), at=(0, 0, 1), dtype=np.float32):
    """Every row opens one column, but this one so many."""
    mask = np.full(shape, -INF, dtype)
    mask[..., 4] = 0.5
    mask[at] = np.where(np.arange(shape[-1]) < count, 0.25, -INF)
    return mask


def operands(T=3, N=9, streams=1, heads=2):
    rng = np.random.default_rng(T)
    shapes = {"q": (streams, heads, T, 8), "k": (streams, 1, N, 8), "v": (streams, 1, N, 8)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def leaf(name, array):
    return jf.input(name, array.shape, spec_of(array).dtype)


def compiled(arrays, on, op=ops.attention, **attrs):
    if op is ops.attention:
        attrs = {"scale": 0.3, "kv_limit": LIMIT} | attrs
    return jf.compile(op(**{name: leaf(name, array) for name, array in arrays.items()}, **attrs), on)


# kv_limit


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_one_column_too_many_is_told(device, checked, dtype):
    """Pitfall 25: one less, as many, one more; a plan that raised goes on with data that keeps the promise."""
    arrays = operands() | {"mask": mask_with(LIMIT, dtype=dtype)}
    plan = compiled(arrays, device)
    text = (
        f"[attention] attention.0 on {plan.devices[0]}: row [0, 0, 1] of mask opens 6 columns, "
        "kv_limit promises at most 5: give a larger kv_limit, or close columns with -inf"
    )
    for count in (LIMIT - 1, LIMIT, LIMIT + 1, LIMIT):
        given = arrays | {"mask": mask_with(count, dtype=dtype)}
        if count > LIMIT:
            with pytest.raises(KernelError) as told:
                plan(**given)
            assert str(told.value) == text
        else:
            want = ops.attention.run(*given.values(), scale=0.3)
            np.testing.assert_allclose(plan(**given), want, atol=1e-5)


def test_without_the_variable_nothing_is_looked_at(monkeypatch):
    """Not a byte is read for it, and a word of another check changes nothing."""
    arrays = operands() | {"mask": mask_with(LIMIT + 1)}
    reads = {}
    for words in ("", "memory", "promises"):
        monkeypatch.setenv("JACKFIELD_CHECK", words)
        counted = Minimal("one:0")
        with registered(Picky([counted])):
            plan = compiled(arrays | {"mask": mask_with(LIMIT)}, "one")
            before = counted.counts["read"]
            plan(**arrays | {"mask": mask_with(LIMIT)})
            reads[words] = counted.counts["read"] - before
            if words != "promises":
                plan(**arrays)
    assert reads[""] == 1
    assert reads["promises"] == 2


def test_words_add_up(device, monkeypatch):
    """With guards and poison the operands are still whole when they are looked at, and each check finds its own."""
    monkeypatch.setenv("JACKFIELD_CHECK", " memory, nan,promises")
    arrays = operands() | {"mask": mask_with(LIMIT)}
    mask, bias = leaf("mask", arrays["mask"]), leaf("bias", arrays["mask"])
    y = ops.attention(*(leaf(n, arrays[n]) for n in "qkv"), ops.add(mask, bias), scale=0.3, kv_limit=LIMIT)
    plan = jf.compile(ops.scale(y, scale=2.0), device)
    zeros = np.zeros_like(arrays["mask"])
    want = 2 * ops.attention.run(*arrays.values(), scale=0.3)
    np.testing.assert_allclose(plan(**arrays, bias=zeros), want, atol=1e-5)
    with pytest.raises(KernelError, match=r"attention.0 on .*: row \[0, 0, 1\] of mask opens 6 columns"):
        plan(**arrays | {"mask": mask_with(LIMIT + 1)}, bias=zeros)
    with pytest.raises(KernelError, match=r"add.0 on .* results are NaN"):
        plan(**arrays, bias=np.full_like(zeros, NAN))
    np.testing.assert_allclose(plan(**arrays, bias=zeros), want, atol=1e-5)


def test_of_a_word_that_is_none_the_name_is_told(monkeypatch):
    monkeypatch.setenv("JACKFIELD_CHECK", "memory,promise,nan")
    with pytest.raises(PlanError, match="names 'promise'; it is a list of memory, nan, promises"):
        compiled(operands() | {"mask": mask_with(1)}, "reference")


def test_all_columns_count_whatever_hides_them(checked):
    """A device may gather by the mask alone, so kv_len, causal and window excuse no column that it opens."""
    arrays = operands() | {"mask": mask_with(LIMIT + 1, at=(0, 0, 0)), "kv_len": np.array([2], np.int32)}
    with pytest.raises(KernelError, match="opens 6 columns"):
        compiled(arrays, "reference", causal=True, window=1)(**arrays)


def test_rows_without_a_query_count_nothing(checked):
    mask = mask_with(LIMIT + 3, shape=(1, 1, 5, 9), at=(0, 0, 3))
    arrays = operands() | {"mask": mask}
    compiled(arrays, "reference")(**arrays)
    empty = operands(T=0) | {"mask": mask}
    assert compiled(empty, "reference")(**empty).shape == (1, 0, 2, 8)


def test_what_is_empty_breaks_no_promise(device, checked):
    """No column, and no result: then nothing runs, whatever the mask holds."""
    none = operands(N=0) | {"mask": np.zeros((3, 0), np.float32)}
    assert not compiled(none, device)(**none).any()
    arrays = operands() | {"v": np.zeros((1, 1, 9, 0), np.float32), "mask": mask_with(LIMIT + 1)}
    assert compiled(arrays, device)(**arrays).shape == (1, 3, 2, 0)


def test_without_a_promise_every_mask_is_fine(checked):
    arrays = operands() | {"mask": np.zeros((3, 9), np.float32)}
    compiled(arrays, "reference", kv_limit=0)(**arrays)
    arrays.pop("mask")
    compiled(arrays, "reference", kv_limit=0)(**arrays)


def counted_by_hand(mask, queries):
    """(row, columns) of each row of a query, in order."""
    lead = [range(n) for n in mask.shape[:-2]] + [range(queries)] * (mask.ndim > 1)
    for at in itertools.product(*lead):
        yield list(at), sum(1 for entry in mask[at].tolist() if entry != -INF)


@given(st.data())
def test_the_fullest_row_is_named(data):
    """Masks of every rank and period, with extra rows, NaN, infinities and everything that hides columns."""

    def pick(*choices):
        return data.draw(st.sampled_from(choices))

    S, H, T, N = pick(1, 2), pick(1, 4), pick(0, 1, 3), pick(0, 1, 7)
    shape = (pick(1, S), pick(1, 2, H) if H > 1 else 1, T + pick(0, 2), N)
    shape = shape[pick(*(i for i in range(4) if all(n == 1 for n in shape[:i]))) :]
    entries = st.sampled_from([-INF, -INF, 0.0, -0.0, 1.5, NAN, INF, -65504.0])
    flat = data.draw(st.lists(entries, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    mask = np.array(flat, pick(np.float16, np.float32)).reshape(shape)
    limit = data.draw(st.integers(1, 8))
    arrays = operands(T, N, S, H)
    lengths = np.full(S, N // 2, np.int32) if pick(False, True) else None
    attrs = {"scale": 1.0, "kv_limit": limit, "causal": pick(False, True), "window": pick(0, 2)}
    given = [*arrays.values(), mask, None, None, lengths]
    call = ops.attention.call([None if a is None else spec_of(a) for a in given], attrs)
    told = ops.attention.broken("mask", mask, call)
    rows = [(at, n) for at, n in counted_by_hand(mask, T) if n > limit]
    if not rows:
        assert told is None
        return
    at, most = max(rows, key=lambda row: row[1])  # the first of them
    name = f"row {at} of mask" if at else "the row of mask"
    assert told is not None
    assert told.startswith(f"{name} opens {most} columns, kv_limit promises at most {limit}: ")


# shares


def shares(*rows):
    return np.array(rows, np.float32)


KEPT = [shares([0.5, 0.5], [1, 0]), shares([0.25, 0.7499], [0.5, 0.5002]), shares([NAN, 0.5], [1, NAN])]
OVER = "sums to 1.01, "
UNDER = "holds -0.25, "


def backward(op, data):
    grad = {"grad": np.ones(data.shape if op is ops.softmax_backward else (), np.float32)}
    if op is ops.softmax_backward:
        return grad | {"y": data}
    return grad | {"logits": np.ones(data.shape, np.float32), "labels": data}


@pytest.mark.parametrize("op", [ops.softmax_backward, ops.cross_entropy_backward], ids=lambda op: op.name)
@pytest.mark.parametrize("data", KEPT, ids=["plain", "rounded", "nan"])
def test_shares_are_taken(op, data, checked):
    arrays = backward(op, data)
    np.testing.assert_allclose(compiled(arrays, "reference", op)(**arrays), op.run(*arrays.values()))


BROKEN = [
    (ops.softmax_backward, shares([0.5, 0.5], [0.5, 0.51]), f"row [1] of y {OVER}softmax makes shares of 0 to 1"),
    (ops.softmax_backward, shares([-0.25, 1.25], [1, 0]), f"row [0] of y {UNDER}softmax makes shares of 0 to 1"),
    (ops.softmax_backward, np.float32([3, 0]), "the row of y sums to 3, softmax makes shares of 0 to 1"),
    (ops.softmax_backward, shares([[1, 0]], [[2, INF]]), "row [1, 0] of y sums to inf, softmax"),
    (ops.cross_entropy_backward, shares([0.5, 0.5], [0.5, 0.51]), f"row [1] of labels {OVER}labels are shares of 0"),
    (ops.cross_entropy_backward, shares([0, 0], [1, 0]), "row [0] of labels sums to 0, labels are shares of 0 to 1"),
    (ops.cross_entropy_backward, shares([1, 0], [1.25, -0.25]), f"row [1] of labels {UNDER}labels are shares of 0"),
]


@pytest.mark.parametrize(("op", "data", "text"), BROKEN)
def test_what_are_no_shares_is_told(device, checked, op, data, text):
    arrays = backward(op, data)
    plan = compiled(arrays, device, op)
    with pytest.raises(KernelError) as told:
        plan(**arrays)
    assert str(told.value).startswith(f"[{op.name}] {op.name}.0 on {plan.devices[0]}: {text}")


def test_what_softmax_left_to_sinks_or_to_nobody_is_a_share(checked):
    rows = np.array([[0, 1], [-INF, -INF]], np.float32).reshape(1, 1, 2, 2)
    y = ops.softmax.run(rows, None, np.zeros(1, np.float32))
    arrays = backward(ops.softmax_backward, y)
    compiled(arrays, "reference", ops.softmax_backward)(**arrays)
    with pytest.raises(KernelError, match=r"of y sums to -inf|of y holds -inf"):
        compiled(arrays, "reference", ops.softmax_backward)(**arrays | {"y": rows})


# where the operand lies


def test_views_and_states_and_constants_are_looked_at(device, checked):
    """A mask that is every other column of a turned state, one stretched over streams, and one that is a constant."""
    q, k, v = (leaf(n, a) for n, a in operands(streams=2).items())
    wide = jf.state("wide", (18, 3), jf.f32)
    turned = wide.T[:, ::2]
    stretched = ops.broadcast_to(jf.input("one", (1, 1, 1, 9), jf.f32), shape=(2, 1, 3, 9))
    fixed = jf.constant(mask_with(LIMIT + 1))
    session = jf.Session(device)
    arrays = operands(streams=2)

    plan = session.compile(ops.attention(q, k, v, turned, scale=0.3, kv_limit=LIMIT))
    state = np.full((18, 3), -INF, np.float32)
    state[: 2 * LIMIT, 2] = 0  # the odd columns are not those of the mask
    session.states["wide"].write(state)
    plan(**arrays)
    state[: 2 * LIMIT + 1, 2] = 0
    session.states["wide"].write(state)
    with pytest.raises(KernelError, match=r"row \[2\] of mask opens 6 columns"):
        plan(**arrays)

    plan = session.compile(ops.attention(q, k, v, stretched, scale=0.3, kv_limit=LIMIT))
    plan(**arrays, one=mask_with(LIMIT, (1, 1, 1, 9), (0, 0, 0)))
    with pytest.raises(KernelError, match=r"row \[0, 0, 0\] of mask opens 6 columns"):
        plan(**arrays, one=mask_with(LIMIT + 1, (1, 1, 1, 9), (0, 0, 0)))

    with pytest.raises(KernelError, match=r"row \[0, 0, 1\] of mask opens 6 columns"):
        session.compile(ops.attention(q, k, v, fixed, scale=0.3, kv_limit=LIMIT))(**arrays)
    session.close()


class MaskPacker(Picky):
    """Packs a constant mask of attention by turning every byte round."""

    def kernels(self):
        table = dict(super().kernels())
        kernel = table["attention"]
        packed = {"mask": frozenset({"turned"})}
        return table | {"attention": type(kernel)(kernel.operands, kernel.results, kernel.attributes, packed)}

    def pack(self, constant, users, target):
        def turn(source, result):
            np.frombuffer(result, np.uint8)[:] = ~np.frombuffer(source, np.uint8)

        return Packing("turned", constant.nbytes, turn, turn)


class Turner(Minimal):
    """Runs on plain copies of what is packed."""

    packed = 0

    def plain(self, place):
        if place is None or not place.spec.layout:
            return place
        self.packed += 1
        buffer = type(place.buffer)(place.spec.nbytes)
        buffer.bytes[:] = ~place.buffer.bytes[place.offset : place.offset + place.spec.nbytes]
        spec = type(place.spec)(place.spec.dtype, place.spec.shape, place.spec.strides)
        return type(place)(buffer, 0, spec)

    def compile(self, run, scratch):
        steps = [PlacedStep(s.step, tuple(self.plain(p) for p in s.operands), s.result) for g in run for s in g.steps]
        return super().compile([Group((step,)) for step in steps], scratch)


@pytest.mark.parametrize("count", [LIMIT, LIMIT + 1])
def test_a_packed_constant_is_read_as_it_was_given(checked, count):
    """Also where it is packed from a strided view: every other column of a wider one."""
    turner = Turner("one:0")
    q, k, v = (leaf(n, a) for n, a in operands().items())
    wide = np.zeros((1, 1, 3, 18), np.float32)
    wide[..., ::2] = mask_with(count)
    for mask in (jf.constant(mask_with(count)), jf.constant(wide)[..., ::2]):
        with registered(MaskPacker([turner])):
            plan = jf.compile(ops.attention(q, k, v, mask, scale=0.3, kv_limit=LIMIT), "one")
            if count <= LIMIT:
                want = ops.attention.run(*operands().values(), mask_with(count), scale=0.3)
                np.testing.assert_allclose(plan(**operands()), want, atol=1e-6)
            else:
                with pytest.raises(KernelError, match=r"on one:0: row \[0, 0, 1\] of mask opens 6 columns"):
                    plan(**operands())
    assert turner.packed


def test_a_device_that_reads_dense_gets_a_copy_that_is_looked_at(checked):
    counted = Minimal("one:0")
    wide = jf.input("wide", (3, 18), jf.f32)
    arrays = operands()
    q, k, v = (leaf(n, a) for n, a in arrays.items())
    with registered(Picky([counted])):
        plan = jf.compile(ops.attention(q, k, v, wide[:, ::2], scale=0.3, kv_limit=LIMIT), "one")
        assert "copy.0: inserted" in str(plan.explain())
        given = np.zeros((3, 18), np.float32)
        given[:, ::2] = mask_with(LIMIT, (3, 9), (1,))
        plan(**arrays, wide=given)
        given[0, ::2] = 0
        with pytest.raises(KernelError, match=r"row \[0\] of mask opens 9 columns"):
            plan(**arrays, wide=given)


def test_a_promise_that_breaks_after_a_change_of_a_state_marks_it(checked):
    """The step before has written already, as with any call that ends early."""
    arrays = operands() | {"mask": mask_with(LIMIT)}
    q, k, v, mask = (leaf(n, a) for n, a in arrays.items())
    kept = jf.state("kept", (9, 8), jf.f32)
    cache = ops.put_rows(kept, ops.reshape(v, shape=(9, 8)), jf.constant(np.arange(9, dtype=np.int32)))
    with jf.Session("reference") as session:
        plan = session.compile(
            ops.attention(q, k, ops.reshape(cache, shape=(1, 1, 9, 8)), mask, scale=0.3, kv_limit=LIMIT)
        )
        plan(**arrays)
        with pytest.raises(KernelError, match="opens 6 columns"):
            plan(**arrays | {"mask": mask_with(LIMIT + 1)})
        with pytest.raises(PlanError, match="state 'kept' is incomplete"):
            plan(**arrays)


# declarations


def test_what_is_promised_is_what_an_op_takes():
    promising = {name: set(OPS[name].declared.promises) for name in ops.__all__ if OPS[name].declared.promises}
    assert promising == {"attention": {"mask"}, "softmax_backward": {"y"}, "cross_entropy_backward": {"labels"}}


def test_every_op_goes_on_as_without(checked, monkeypatch):
    """Operands that are block-coded, absent or strided are no stumbling block for steps that promise nothing."""
    x, w = jf.input("x", (2, 64), jf.f32), jf.constant(np.ones((4, 64), np.float32))
    coded = ops.cast(x, dtype="q8_0")
    y = ops.softmax(ops.linear(ops.cast(coded, dtype="f32"), w))
    given = np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32)
    got = jf.compile(y, "reference")(x=given)
    monkeypatch.delenv("JACKFIELD_CHECK")
    np.testing.assert_array_equal(got, jf.compile(y, "reference")(x=given))
    assert coded.dtype is DTYPES["q8_0"]
