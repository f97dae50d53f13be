"""The declarations hold together: documented, complete, checked on the user's line, and honest about their work."""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jackfield
from jackfield import op as op_module
from jackfield import ops, rules
from jackfield.backend import Step
from jackfield.conformance import examples, expected, wrong_uses
from jackfield.dtypes import DTYPES, f16, f32, i32, q8_0
from jackfield.errors import AttributeValueError, DTypeError, GraphError, ShapeError
from jackfield.graph import Tensor
from jackfield.graph import input as leaf
from jackfield.op import OPS, Fault, Work, case, collect, ints, op, rand, recast, values
from jackfield.spec import Spec

PACKAGE = Path(jackfield.__file__).parent
ALL = [OPS[name] for name in ops.__all__]
PRIORITIES = {  # which model graphs can be written with them: P0 the usual ones, P1 further families, P2 the rest
    "P0": """
        square tanh clip relu sigmoid silu gelu gelu_erf add subtract multiply divide scale swiglu geglu
        geglu_erf sum mean argmax argsort top_k reshape transpose slice broadcast_to contiguous cast tile
        concatenate write take_rows put_rows norm rms_norm l2_norm softmax linear matmul linear_experts rope
        attention
    """,
    "P1": """
        abs negative sqrt log exp expm1 sin cos floor ceil trunc round_away leaky_relu elu hardsigmoid hardswish
        gelu_quick softplus xielu add_rows geglu_quick reglu swiglu_oai swiglu_clamp cumsum strided_view full
        arange diag tril triu causal_mask group_norm hadamard top_k_mask lightning_indexer
        hyper_connection_weights hyper_connection_in hyper_connection_out ssm_conv ssm_scan rwkv_wkv6 rwkv_wkv7
        gated_linear_attention gated_delta_net im2col im2col_3d col2im_1d conv_1d conv_2d conv_3d
        conv_1d_depthwise conv_2d_depthwise conv_transpose_1d conv_transpose_2d pool_1d pool_2d resize pad roll
        timestep_embedding solve_triangular
    """,
    "P2": """
        sign step count_equal accumulate outer_product window_partition window_merge relative_positions
        add_relative_positions silu_backward rms_norm_backward softmax_backward rope_backward tile_backward
        take_rows_backward im2col_backward pool_2d_backward attention_backward cross_entropy
        cross_entropy_backward adamw_step sgd_step host_call
    """,
}
RARELY = {"rope_backward": {"beta_fast", "beta_slow"}}  # as in rope, which tries them
BY_NAME = pytest.mark.parametrize("declared", ALL, ids=lambda o: o.name)


def build(declared, case):
    """The node, from leaves of the case's shapes, in the first dtype each operand takes."""
    accepts = declared.declared.accepts
    given = [
        None if (draw := case.operands.get(name)) is None else leaf(name, draw.shape, draw.dtype or accepts[name][0])
        for name in declared.operands
    ]
    return declared(*given, **case.attrs)


def test_the_package_exports_what_is_declared():
    assert ops.__all__ == sorted(OPS)
    assert all(getattr(ops, name) is OPS[name] for name in ops.__all__)


@pytest.mark.parametrize("priority", PRIORITIES)
def test_each_op_has_its_priority(priority):
    assert {o.name for o in ALL if o.priority == priority} == set(PRIORITIES[priority].split())


@BY_NAME
def test_a_declaration_is_whole(declared):
    assert declared.doc.endswith(".")
    for name in (*declared.operands, *declared.attrs):
        assert f"{name}" in declared.doc, f"the docstring of {declared.name} does not speak of {name}"
    assert set(declared.inplace) <= set(declared.operands)
    assert set(declared.declared.accepts) == set(declared.operands)
    good = [c for c in declared.cases if c.raises is None]
    assert len(good) >= 3
    assert len(declared.cases) > len(good), "at least one case must raise"
    tried = {name for c in good for name in c.operands}
    assert tried == set(declared.operands), "each operand is in some case"
    assert {k for c in good for k in c.attrs} >= set(declared.attrs) - RARELY.get(declared.name, set())


@BY_NAME
def test_every_dtype_is_drawn(declared):
    drawn = {}
    for example in examples(declared):
        for name, view in example.views.items():
            drawn.setdefault(name, set()).add(view.spec.dtype)
    for name, dtypes in declared.declared.accepts.items():
        assert drawn[name] == set(dtypes), f"{name}: {set(dtypes) - drawn[name]} is never tried"


@BY_NAME
def test_bodies_make_what_the_rules_infer(declared):
    for example in examples(declared):
        if example.layout == "dense":
            want, _ = expected(example)
            assert want.shape == example.result.units, str(example)


@BY_NAME
def test_the_same_description_draws_the_same_data(declared):
    example = next(examples(declared))
    for a, b in zip(example.arrays(), next(examples(declared)).arrays(), strict=True):
        assert (a is None and b is None) or a.tobytes() == b.tobytes()


@BY_NAME
def test_building_a_node_agrees_with_infer(declared):
    for c in declared.cases:
        if c.raises is None:
            node = build(declared, c)
            assert isinstance(node, Tensor)
            if not declared.is_view:
                specs = [None if o is None else o.spec for o in node.operands]
                inferred = declared.infer(specs, node.attrs)
                assert (inferred.shape, inferred.dtype) == (node.shape, node.dtype)
                assert declared.infer(specs, node.attrs) == inferred
                hash(Step(node.op, tuple(specs), node.spec, node.attrs))


WRONG = [pytest.param(o, c, id=f"{o.name}-{n}") for o, n, c in wrong_uses()]


@pytest.mark.parametrize(("declared", "case"), WRONG)
def test_wrong_uses_raise_on_the_line_that_builds(declared, case):
    with pytest.raises(case.raises) as e:
        build(declared, case)
    print(e.value)
    assert str(e.value).startswith(f"[{declared.name}] ")
    assert len(str(e.value)) > len(declared.name) + 12


def misuse():
    """Wrong uses that no single case can say."""

    def fails(_):
        raise ShapeError("[mine] nothing to see")

    x, y = leaf("x", (2, 2)), leaf("y", (2, 2))
    strided = leaf("s", (8, 64))[:, ::2]
    yield GraphError, "[add] takes at most 2 operands, got 3", lambda: ops.add(x, y, x)
    yield GraphError, "[add] needs the operand 'b'", lambda: ops.add(x)
    yield GraphError, "[add] operand 'a' is given twice", lambda: ops.add(x, y, a=x)
    yield GraphError, "[linear] takes at most 2 operands, got 3", lambda: ops.linear.infer([x.spec] * 3, {})
    yield DTypeError, "[add] b is a ndarray: wrap arrays in jf.constant", lambda: ops.add(x, np.zeros((2, 2)))
    yield DTypeError, "[add] b is a float: operands are Tensors", lambda: ops.add(x, 2.0)
    yield AttributeValueError, "[scale] has no attribute 'factor'; it has: scale, bias", lambda: ops.scale(x, factor=2)
    yield AttributeValueError, "[relu] has no attribute 'slope'; it has: none", lambda: ops.relu(x, slope=2)
    yield AttributeValueError, "[top_k] needs the attribute 'k'", lambda: ops.top_k(x)
    yield (
        AttributeValueError,
        "[scale] scale is of type dict, must be a number, text, dtype or a tuple of these",
        lambda: ops.scale(x, scale={}),
    )
    yield AttributeValueError, "[scale] scale is True, must be a number", lambda: ops.scale(x, scale=True)
    yield AttributeValueError, "[top_k] k is 1.5, must be a whole number", lambda: ops.top_k(x, k=1.5)
    yield DTypeError, "[tanh] x is i32, must be one of f32, f16, bf16", lambda: ops.tanh(leaf("i", (2,), i32))
    yield (
        ShapeError,
        (
            "[linear] weight is f32[8, 32] strides [256, 8]: its last axis must have no gaps; "
            "use matmul for a transposed one, or contiguous"
        ),
        lambda: ops.linear(leaf("z", (1, 32)), strided),
    )
    yield (
        ShapeError,
        "[linear] weight is [512, 256], x ends in 128: the last axes must be equal",
        lambda: ops.linear(leaf("z", (1, 128)), leaf("w", (512, 256))),
    )
    yield (
        ShapeError,
        "[cast] q8_0 needs a last extent that is a multiple of 32, it is 2",
        lambda: ops.cast(x, dtype=q8_0),
    )
    yield (
        DTypeError,
        "[write] target is u8 and x is f32: there is no conversion, they must be equal",
        lambda: ops.write(leaf("t", (2, 2), DTYPES["u8"]), x, start=(0, 0)),
    )
    yield (
        ShapeError,
        "[write] target is [2, 2], x [2, 2], start [0]: they must have equally many axes",
        lambda: ops.write(x, y, start=(0,)),
    )
    yield (
        ShapeError,
        "[write] target is q8_0: start 0 and extent 16 of the last axis must be multiples of 32",
        lambda: ops.write(leaf("t", (2, 64), q8_0), leaf("v", (2, 16)), start=(0, 0)),
    )
    given = np.zeros((2, 3), np.float32)
    yield (
        ShapeError,
        "[host_call] sum gave [], must give [3]",
        lambda: ops.host_call.run(given, function=np.sum, shape=(3,), dtype="f32"),
    )
    yield (
        DTypeError,
        "[host_call] negative gave float32, must give i32",
        lambda: ops.host_call.run(given, function=np.negative, shape=(2, 3), dtype="i32"),
    )
    yield (
        ShapeError,
        "[mine] nothing to see",
        lambda: ops.host_call.run(given, function=fails, shape=(), dtype="f32"),
    )
    yield (
        ShapeError,
        "[attention] q has 4 heads, k 0: the first must be a multiple of the second",
        lambda: ops.attention(leaf("q", (1, 4, 2, 8)), leaf("k", (1, 0, 2, 8)), leaf("v", (1, 0, 2, 8)), scale=1.0),
    )


@pytest.mark.parametrize(("error", "text", "make"), list(misuse()))
def test_misuse(error, text, make):
    with pytest.raises(error) as e:
        make()
    assert str(e.value) == text


def raise_lines(path):
    tree = ast.parse(path.read_text())
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Raise)}


def test_every_error_of_ops_and_rules_is_raised_by_a_test():
    files = {str(p): raise_lines(p) for p in [*PACKAGE.glob("ops/*.py"), PACKAGE / "rules.py", PACKAGE / "op.py"]}
    hit = {name: set() for name in files}

    def trace(frame, event, _arg):
        lines = files.get(frame.f_code.co_filename)
        if lines is None:
            return None
        if event == "line" and frame.f_lineno in lines:
            hit[frame.f_code.co_filename].add(frame.f_lineno)
        return trace

    uses = [lambda o=o, c=c: build(o, c) for o, _, c in wrong_uses()] + [make for _, _, make in misuse()]
    before = sys.gettrace()
    for use in uses:
        sys.settrace(trace)
        try:
            use()
        except GraphError:
            continue
        finally:
            sys.settrace(before)
        pytest.fail("a wrong use was accepted")
    missed = {Path(name).name: sorted(lines - hit[name]) for name, lines in files.items() if lines - hit[name]}
    assert not missed


@BY_NAME
def test_work_is_counted_from_specs_alone(declared):
    for example in examples(declared):
        if example.layout not in ("dense", "rows"):
            continue
        work = declared.work(example.specs, example.attrs)
        assert isinstance(work, Work)
        assert type(work.multiply_adds) is type(work.nbytes) is int
        assert work.multiply_adds >= 0
        if declared.is_view:
            assert work == Work(0, 0)
            continue
        stored = [s.nbytes for s in example.specs if s is not None]
        if declared.name in ("adamw_step", "sgd_step"):
            written = 3 if declared.name == "adamw_step" else 1
            assert work.nbytes == sum(stored) + written * example.result.nbytes
        elif declared.updates:
            moved = Spec(example.specs[0].dtype, example.specs[1].shape).nbytes
            assert work.nbytes == sum(stored[1:]) + moved
        elif declared.name == "take_rows":
            rows = math.prod(example.specs[1].shape)
            assert work.nbytes == rows * example.specs[0].row_nbytes + stored[1] + example.result.nbytes
        elif declared.name == "add_rows":
            rows = math.prod(example.specs[2].shape)
            assert work.nbytes == stored[0] + rows * example.specs[1].row_nbytes + stored[2] + example.result.nbytes
        elif declared.name == "linear_experts":
            experts = min(math.prod(example.specs[2].shape), example.specs[1].shape[0])
            weight = experts * math.prod(example.specs[1].shape[1:-1]) * example.specs[1].row_nbytes
            assert work.nbytes == stored[0] + stored[2] + weight + example.result.nbytes
        elif declared.name == "ssm_scan":
            state, ids = example.specs[0], example.specs[-1]
            slots = ids.size * math.prod(state.shape[1:]) * 4
            assert work.nbytes == slots + sum(stored[1:]) + example.result.nbytes
        else:
            assert work.nbytes == sum(stored) + example.result.nbytes


def test_multiply_adds_of_products():
    x, w = Spec(f32, (2, 7, 64)), Spec(q8_0, (33, 64))
    assert ops.linear.work([x, w], {}).multiply_adds == 2 * 7 * 33 * 64
    assert ops.matmul.work([x, Spec(f32, (64, 5))], {}).multiply_adds == 2 * 7 * 5 * 64
    ids = Spec(i32, (3, 2))
    assert ops.linear_experts.work([Spec(f32, (3, 1, 64)), Spec(q8_0, (8, 5, 64)), ids], {}).multiply_adds == 6 * 5 * 64


def test_multiply_adds_of_attention():
    q, k, v = Spec(f32, (2, 6, 9, 32)), Spec(f16, (2, 3, 40, 32)), Spec(f16, (2, 3, 40, 16))
    full = 2 * 6 * 9 * 40 * (32 + 16)
    length = Spec(i32, (2,))
    assert ops.attention.work([q, k, v], {"scale": 1.0}).multiply_adds == full
    assert ops.attention.work([q, k, v, None, None, None, length], {"scale": 1.0, "causal": True}).multiply_adds == full
    square = [Spec(f32, (2, 6, 40, 32)), k, v]
    assert ops.attention.work(square, {"scale": 1.0, "causal": True}).multiply_adds == 2 * 6 * 40 * 40 * 48 // 2
    listed = [q, Spec(f16, (1, 3, 99, 32)), Spec(f16, (1, 3, 99, 16)), None, None, Spec(i32, (2, 11)), length]
    assert ops.attention.work(listed, {"scale": 1.0}).multiply_adds == 2 * 6 * 9 * 11 * 48


def test_attributes_are_plain_data_of_one_type():
    attrs = ops.scale.complete({"scale": np.float32(2), "bias": 3})
    assert attrs == {"scale": 2.0, "bias": 3.0}
    assert type(attrs["bias"]) is float
    assert ops.cast.complete({"dtype": f16}) == {"dtype": "f16"}
    assert ops.reshape.complete({"shape": [2, np.int64(3)]}) == {"shape": (2, 3)}
    assert ops.sum.complete({}) == {"axis": -1, "keepdims": False}


def test_an_op_says_what_it_is():
    assert repr(ops.linear) == "<op linear(x, weight, precision)>"
    assert str(ops.top_k.cases[0]) == "x=3x5-k=2"


def test_nothing_can_be_declared_twice():
    def square(x):
        return x

    with pytest.raises(AssertionError, match="op square is declared twice"):
        op(
            shape=rules.same_as("x"),
            dtype=rules.like("x"),
            work=rules.nothing,
            cases=[],
            accepts={"x": (f32,)},
            tolerance="E",
        )(square)


def test_draws_are_what_they_say():
    rng = np.random.default_rng(0)
    assert 0.2 < np.isneginf(rand(100, 10, shut=0.3).draw(rng)).mean() < 0.4
    assert set(np.unique(ints(200, low=-1, high=3).draw(rng))) == {-1, 0, 1, 2}
    assert values([[1, 2]], dtype=i32).draw(rng).tolist() == [[1, 2]]
    assert case(rand(1), None, mask=rand(2), scale=1.0).kwargs["scale"] == 1.0


def test_faults_go_to_the_innermost_list_and_nowhere_without_one():
    outer, inner = [], []
    op_module.bad_index("rows", 7)
    with collect(outer):
        with collect(inner):
            op_module.bad_index("rows", 8)
        recast(np.array([[np.nan] * 32], np.float32), q8_0)
    assert inner == [Fault("index", "rows", 8)]
    assert outer == [Fault("nonfinite", "x", 0)]
    assert inner[0].text("take_rows") == "[take_rows] rows holds the index 8, which lies outside its axis"
    assert outer[0].text("cast") == "[cast] x holds inf, NaN or too large a value in block 0: it must be codable"


def test_docstrings_name_no_dtype_that_is_not_taken():
    for declared in ALL:
        text = inspect.cleandoc(declared.doc)
        assert "f64" not in text, declared.name


FLOATS = [(o, name) for o in ALL for name in o.attrs if "float" in o.types[name]]
BOUNDLESS = {("clip", "min"), ("clip", "max"), ("causal_mask", "fill"), ("full", "value")}


@pytest.mark.parametrize(("declared", "name"), FLOATS, ids=lambda v: v if isinstance(v, str) else v.name)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_float_attributes_are_finite(declared, name, value):
    """All of them in all uses that are right otherwise, but those where inf means something."""
    right = [one for one in declared.cases if one.raises is None]
    assert right
    for one in right:
        wrong = replace(one, attrs={**one.attrs, name: value})
        if (declared.name, name) in BOUNDLESS:
            with contextlib.suppress(AttributeValueError):  # of clip, min above max; of full, an integer dtype
                assert str(build(declared, wrong).attrs[name]) == str(float(value))
            continue
        with pytest.raises(AttributeValueError) as told:
            build(declared, wrong)
        assert str(told.value) == f"[{declared.name}] {name} is {float(value)}, must be finite"


def test_what_may_be_infinite_is_declared():
    assert {(o.name, name) for o in ALL for name in o.declared.infinite} == BOUNDLESS
    assert ("attention", "scale") in [(o.name, name) for o, name in FLOATS]
    x = leaf("x", (2, 3))
    assert ops.clip(x, min=0.0, max=math.inf).attrs["max"] == math.inf
    assert math.isnan(ops.full(shape=(2,), value=math.nan).attrs["value"])


@pytest.mark.parametrize("declared", [o for o in ALL if o.priority != "P2"], ids=lambda o: o.name)
def test_each_attribute_has_cases_with_another_value_than_its_default(declared):
    """Else no suite can ask for it. dtype is asked for by results."""
    for name, default in declared.defaults.items():
        full = [declared.complete(one.attrs)[name] for one in declared.cases if one.raises is None]
        assert any(value != default for value in full), name
        assert name in declared.declared.rare or any(value == default for value in full), name
