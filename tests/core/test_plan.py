"""Plans against plain numpy, on the reference and on devices that are hard to please."""

from __future__ import annotations

import numpy as np
from fakes import Minimal, Picky, Poisoner, registered
from graphs import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

import jackfield as jf


def check(built, device, **keywords):
    plan = jf.compile(built.tensors(), device, **keywords)
    for _ in range(2):
        names = plan.inputs
        got = plan(**{name: built.inputs[name] for name in names})
        for value, expected in zip(got, built.expected(), strict=True):
            np.testing.assert_array_equal(value, expected)
    plan.session.close()


@given(graphs())
@settings(max_examples=80)
def test_random_graphs_on_the_reference(built):
    check(built, "reference")


@given(graphs())
@settings(max_examples=80)
def test_random_graphs_where_every_result_is_spoiled_first(built):
    with registered(Picky([Poisoner("poison:0")])):
        check(built, "poison", policy="strict")


@given(
    graphs(),
    st.lists(st.sampled_from(["add", "multiply", "contiguous", "concatenate", "write", "put_rows"])),
    st.data(),
)
@settings(max_examples=80)
def test_random_graphs_over_three_devices(built, refused, data):
    one = Picky([Poisoner("one:0")], without=refused)
    two = Picky([Minimal("two:0"), Poisoner("two:1")], reads="any")
    pins = [
        (f"{op}.{i}", data.draw(st.sampled_from(["one:0", "two:0", "two:1"])))
        for op in ("add", "write", "contiguous")
        for i in (0, 1)
    ]
    with registered(one, two):
        check(built, "one:0+two:0+two:1", pins=pins)


@given(graphs())
@settings(max_examples=60)
def test_random_graphs_on_the_simulated_device(built):
    check(built, "sim+reference")
