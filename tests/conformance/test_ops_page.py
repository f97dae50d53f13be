"""docs/ops.md is what the declarations and the backends say now, and it can be read with many more dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
from recipes import BLOCKS

from jackfield import ops
from jackfield.backend import Kernel, Reason
from jackfield.op import OPS
from jackfield.reference import ReferenceBackend, kernels_of_all_ops
from jackfield.registry import Registry
from jackfield_conformance import ops_page

PAGE = Path(__file__).parents[2] / "docs/ops.md"
COMMAND = "python -m jackfield_conformance.ops_page cpu > docs/ops.md"


def test_the_committed_page_is_true(absent, capsys):
    if not any(status.name == "cpu" for status in Registry().status()):
        absent("cpu", "the page has a column for cpu, which is not installed")
    assert ops_page.main(["cpu"]) == 0
    fresh = capsys.readouterr().out
    assert COMMAND in fresh
    assert fresh.splitlines() == PAGE.read_text("utf-8").splitlines(), f"out of date: {COMMAND}"


class Choosy(ReferenceBackend):
    """Has no tanh, no block weights, no sinks, and an odd wish of its own."""

    name = "choosy"

    def kernels(self):
        kernels = kernels_of_all_ops()
        del kernels["tanh"]
        floats = frozenset({"f32", "f16", "bf16"})
        kernels["linear"] = Kernel(kernels["linear"].operands | {"weight": floats}, frozenset({"f32"}), frozenset())
        own = kernels["softmax"].operands
        kernels["softmax"] = Kernel({"x": own["x"], "mask": own["mask"]}, frozenset({"f32"}), frozenset({"scale"}))
        return kernels

    def why_not(self, step, target):
        wide = step.op == "argsort" and step.operands[0].shape[-1] > 100
        return f"argsort: {step.operands[0].shape[-1]} columns, limit 100" if wide else None


def rows(text):
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {(op, dtype): cells for op, dtype, *cells in lines if op not in ("op", "---")}


def test_what_a_backend_refuses_stands_there_with_its_reason():
    text = ops_page.page([ReferenceBackend(), Choosy()])
    found = rows(text)
    assert found["tanh", "f32 f16 bf16"][0] == "yes"
    assert found["tanh", "f32 f16 bf16"][1].startswith("no: ")
    assert found["linear", f"all {len(BLOCKS)} block dtypes"][1].startswith("no: ")
    assert found["argsort", "f32"][1].startswith("partly: ")
    for reason in (
        "choosy: no kernel for tanh",
        "choosy: linear takes only f32 f16 bf16 as weight",
        "choosy: operand 'sinks' is not supported",
        "choosy: 257 columns, limit 100",
    ):
        assert f". {reason}\n" in text
    assert "`linear`" not in text and "- `linear(x, weight, *, precision='default')`: " in text


def test_every_op_and_every_dtype_it_takes_has_a_row():
    text = ops_page.page([ReferenceBackend()])
    told = dict(rows(text).keys())
    for name in ops.__all__:
        assert f"- `{name}(" in text
        assert (name in told) == (not OPS[name].is_view)
    assert told["linear"] == f"f32 f16 bf16, all {len(BLOCKS)} block dtypes"


def test_many_dtypes_are_spelled_shortly():
    assert ops_page.spelled(["f16", "f32"]) == "f32 f16"
    assert ops_page.spelled(["f32", *BLOCKS]) == f"f32, all {len(BLOCKS)} block dtypes"
    assert ops_page.spelled(BLOCKS[1:]) == f"block dtypes except {BLOCKS[0]}"
    assert ops_page.spelled(BLOCKS[:2]) == " ".join(BLOCKS[:2])


def test_reasons_lose_the_dtype_they_were_asked_about():
    one, other = (Reason(f"linear: weight is {d}, the kernel reads f16, f32", "dtype") for d in BLOCKS[:2])
    assert ops_page.shortened("linear", one) == ops_page.shortened("linear", other)
    assert ops_page.shortened("linear", one) == "linear takes only f32 f16 as weight"
    assert ops_page.shortened("cast", Reason("cast: result q4_0, the kernel makes f32", "dtype")).endswith("as result")
    assert (
        ops_page.shortened("sum", "sum: weight is q4_0, the kernel reads f32") == "weight is q4_0, the kernel reads f32"
    )


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 2), (["nowhere"], 1)])
def test_wrong_use(arguments, code, capsys):
    assert ops_page.main(arguments) == code
    told = capsys.readouterr().err
    assert told.startswith("usage: " if code == 2 else "Error: ")
