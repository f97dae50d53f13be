"""A part of many tests: which, and that none is lost where all are asked for."""

from __future__ import annotations

import pytest
import thorough
from hypothesis import given
from hypothesis import strategies as st

FUNCTIONS = st.sampled_from(["test_a", "test_b", "test_c"])
NAMES = st.lists(st.builds(lambda function, n: f"{function}[{n}]", FUNCTIONS, st.integers(0, 10**6)), unique=True)


@pytest.fixture(autouse=True, scope="module")
def _usual():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JACKFIELD_THOROUGH", raising=False)
        yield


@given(NAMES, st.integers(1, 5))
def test_each_function_is_tried(names, part):
    chosen = thorough.tried(names, part)
    assert chosen <= set(names)
    assert {name.partition("[")[0] for name in chosen} == {name.partition("[")[0] for name in names}


def test_a_third_is_about_a_third():
    names = [f"test[{n}]" for n in range(9000)]
    assert 2700 < len(thorough.tried(names, 3)) < 3300
    assert thorough.tried(["test_alone", *names], 3) - set(names) == {"test_alone"}
    assert thorough.tried(names, 3) == thorough.tried(names[::-1], 3)


@given(st.integers(0, 50), st.integers(1, 9))
def test_some_hold_both_ends(count, part):
    many = range(count)
    found = thorough.some(many, part)
    assert [*found[:1], *found[-1:]] == [*many[:1], *many[-1:]]
    assert len(found) <= count // part + 2


def test_all_where_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("JACKFIELD_THOROUGH", "1")
    names = [f"test[{n}]" for n in range(100)]
    assert thorough.tried(names, 3) == set(names)
    assert thorough.some(range(100), 7) == range(100)
