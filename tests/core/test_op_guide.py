"""docs/adding-an-op.md: its example is an op."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from jackfield.conformance import examples
from jackfield.errors import AttributeValueError
from jackfield.graph import input as leaf
from jackfield.op import OPS
from jackfield.reference import ReferenceBackend
from jackfield_conformance import mistakes

GUIDE = Path(__file__).parents[2] / "docs" / "adding-an-op.md"


@pytest.fixture
def declared():
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names = {"__name__": "guide"}
    exec(compile(code, str(GUIDE), "exec"), names)
    yield names["hardshrink"]
    del OPS["hardshrink"]


def test_the_example_builds_checks_and_computes(declared):
    y = declared(leaf("x", (2, 3)), limit=1.0)
    assert (y.op, y.shape, y.attrs) == ("hardshrink", (2, 3), {"limit": 1.0})
    assert declared.run(np.float32([-2, 1, 3]), limit=1.0).tolist() == [-2, 0, 3]
    with pytest.raises(AttributeValueError, match=r"^\[hardshrink\] limit is -1.0, must be at least 0$"):
        declared(leaf("x", (2,)), limit=-1.0)


def test_its_cases_hold_on_a_device_with_a_kernel(declared, monkeypatch):
    from jackfield import ops

    monkeypatch.setattr(ops, "__all__", sorted([*ops.__all__, "hardshrink"]))
    backend = ReferenceBackend()
    tried = [mistakes(example, backend, backend.devices()[0]) for example in examples(declared)]
    assert len(tried) > 15
    assert not any(tried)
    for case in declared.cases:
        if case.raises is not None:
            with pytest.raises(case.raises):
                declared(
                    *(leaf(n, d.shape, d.dtype or declared.declared.accepts[n][0]) for n, d in case.operands.items()),
                    **case.attrs,
                )
    assert all(name in declared.doc for name in (*declared.operands, *declared.attrs))


def test_the_files_it_speaks_of_are_there():
    root, text = GUIDE.parents[1], GUIDE.read_text()
    spoken = {
        "core/src/jackfield/ops/": "core/src/jackfield/ops/",
        "core/src/jackfield/op.py": "core/src/jackfield/op.py",
        "rules.py": "core/src/jackfield/rules.py",
        "ops/__init__.py": "core/src/jackfield/ops/__init__.py",
        "conformance/check.py": "core/src/jackfield/conformance/check.py",
        "tests/core/test_op_declarations.py": "tests/core/test_op_declarations.py",
        "tests/conformance": "tests/conformance",
        "tests/conformance/recipes.py": "tests/conformance/recipes.py",
        "tests/core/test_ops.py": "tests/core/test_ops.py",
        "changelog.d/": "changelog.d/",
    }
    for name, path in spoken.items():
        assert name in text
        assert (root / path).exists(), path
