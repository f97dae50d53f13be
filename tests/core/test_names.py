"""Device strings: the grammar, its errors, and that nothing else ever comes out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jackfield.errors import DeviceNameError
from jackfield.names import KEYS, OPERATORS, SIZES, Condition, Names, Term, no_such_kind, parse

words = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda w: w != "auto")
numbers = st.integers(0, 999_999_999)
terms = st.one_of(
    words.map(Term),
    st.builds(Term, words, numbers),
    st.builds(Term, words, numbers, numbers),
    st.builds(lambda k: Term(k, every=True), words),
    st.builds(lambda k, v: Term(k, variant=v), words, words),
)
flags = st.builds(Condition, st.just(""), st.sampled_from(OPERATORS[:2]), words)
sizes = st.builds(
    lambda key, operator, n: Condition(key, operator, f"{n}MiB", n * 2.0**20),
    st.sampled_from(SIZES),
    st.sampled_from(OPERATORS),
    st.integers(0, 10**6),
)
texts = st.builds(Condition, st.sampled_from(KEYS[len(SIZES) :]), st.sampled_from(OPERATORS[:2]), words)
ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{7,20}", fullmatch=True)
owners = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
conditions = st.lists(st.one_of(flags, sizes, texts), max_size=3).map(tuple)
terms = st.one_of(terms, st.builds(lambda k, i: Term(k, id=i), words, ids))
terms = st.builds(
    lambda term, owner, tests: replace(term, owner=owner, tests=tests), terms, st.just("") | owners, conditions
)
sets = st.one_of(st.lists(terms, min_size=1, max_size=4, unique=True).map(tuple), st.just((Term("auto"),)))
selections = st.lists(sets, min_size=1, max_size=4).map(lambda s: Names(tuple(s)))


@given(selections)
def test_text_of_a_selection_parses_to_it(names):
    assert parse(str(names)) == names
    assert str(parse(str(names))) == str(names)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("cpu", (((Term("cpu")),),)),
        ("cuda:1", ((Term("cuda", 1),),)),
        ("cpu:0:1", ((Term("cpu", 0, 1),),)),
        ("cpu:*", ((Term("cpu", every=True),),)),
        ("cuda:emu", ((Term("cuda", variant="emu"),),)),
        ("cuda:0+cpu", ((Term("cuda", 0), Term("cpu")),)),
        ("cuda+cpu, metal+cpu, cpu", ((Term("cuda"), Term("cpu")), (Term("metal"), Term("cpu")), (Term("cpu"),))),
        (" cpu + sim ", ((Term("cpu"), Term("sim")),)),
        ("auto", ((Term("auto"),),)),
        ("cpu:0:0+cpu:0:1", ((Term("cpu", 0, 0), Term("cpu", 0, 1)),)),
        ("cuda@pci-0000:65:00.0", ((Term("cuda", id="pci-0000:65:00.0"),),)),
        ("acme-fork/acme:0", ((Term("acme", 0, owner="acme-fork"),),)),
        (
            "gpu[ !integrated, mem>=8GiB ], cpu",
            (
                (Term("gpu", tests=(Condition("", "!=", "integrated"), Condition("mem", ">=", "8GiB", 2.0**33))),),
                (Term("cpu"),),
            ),
        ),
        (
            "acme/cuda:*[free<=1.5 GB,vendor!=Acme Inc.]+cpu[f16]",
            (
                (
                    Term(
                        "cuda",
                        every=True,
                        owner="acme",
                        tests=(Condition("free", "<=", "1.5GB", 1.5e9), Condition("vendor", "!=", "Acme Inc.")),
                    ),
                    Term("cpu", tests=(Condition("", "=", "f16"),)),
                ),
            ),
        ),
    ],
)
def test_right(text, meant):
    assert parse(text).sets == meant


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "empty term"),
        ("cpu,,cuda", 5, "empty term"),
        ("+cpu", 1, "empty term"),
        ("cpu+", 5, "empty term"),
        ("CUDA:0", 1, "did you mean cuda:0?"),
        ("cuda-0", 1, "did you mean cuda:0?"),
        ("HTP0", 1, "did you mean htp:0?"),
        ("CPU", 1, "did you mean cpu?"),
        ("cpu+Cuda:1", 5, "did you mean cuda:1?"),
        ("cuda:", 6, "index is a whole number without leading zero"),
        ("cuda:-1", 6, "index is a whole number without leading zero"),
        ("cuda:01", 6, "did you mean cuda:1?"),
        ("cuda:1234567890", 6, "at most 9 digits"),
        ("cuda:EMU", 6, "did you mean cuda:emu?"),
        ("cpu:0:", 7, "part is a whole number"),
        ("cpu:0:x", 7, "part is a whole number"),
        ("cpu:0:00", 7, "did you mean cpu:0:0?"),
        ("cpu:0:1:2", 8, "a name ends at its part"),
        ("cpu:*:1", 5, "index is a whole number"),
        ("auto+cpu", 1, "auto stands alone"),
        ("cpu+auto", 5, "auto stands alone"),
        ("auto:0", 1, "auto has no index"),
        ("cpu+cpu", 1, "stands twice"),
        ("cuda@GPU-8f", 6, "shorter than 8 characters"),
        ("cuda@", 6, "an id is"),
        ("@GPU-8f3a11c2", 1, "lower-case word"),
        ("cuda@GPU-8f3a11c2:0+", 21, "empty term"),
        ("gpu[mem>=8]", 10, "'8' has no unit"),
        ("gpu[mem>8GiB]", 8, "operators are = != >= <="),
        ("gpu[colour=red]", 5, "keys are mem free arch vendor driver class"),
        ("gpu[vendor>=x]", 11, "its operators are = !="),
        ("gpu[vendor=]", 12, "compared with something"),
        ("gpu[]", 5, "a condition is"),
        ("gpu[f16,]", 9, "a condition is"),
        ("gpu[mem>=8GiB", 13, "']' is missing"),
        ("gpu]", 4, "without its other bracket"),
        ("gpu[a[b]]", 6, "without its other bracket"),
        ("gpu[f16]:0", 9, "nothing may follow"),
        ("auto[f16]", 1, "auto stands alone"),
        ("acme/auto", 1, "auto stands alone"),
        ("/acme", 1, "an owner is"),
        ("a b/acme", 1, "an owner is"),
        ("cpu:٣", 5, "index is a whole number"),
        ("ünit", 1, "lower-case word"),
        ("cp u", 3, "lower-case word"),
        ("cpu\n", 4, "lower-case word"),
        ("x" * 1001, None, "1001 characters"),
    ],
)
def test_wrong(text, column, says):
    with pytest.raises(DeviceNameError) as caught:
        parse(text)
    message = str(caught.value)
    assert says in message
    if column is not None:
        assert f"{text!r}, column {column}:" in message
        if text and text.isprintable():
            assert message.splitlines()[-1] == "  " + " " * (column - 1) + "^"


def test_no_string():
    with pytest.raises(DeviceNameError, match="not int"):
        parse(3)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("cuad", "near: cuda; installed: cpu, cuda"),
        ("cuda0", "did you mean cuda:0?"),
        ("gpu", "no installed backend has a device of class gpu"),
        ("zzzz", "no kind of device is called 'zzzz'; installed: cpu, cuda"),
    ],
)
def test_kinds_that_are_not_there(kind, says):
    error = no_such_kind(f"cpu+{kind}", Term(kind, column=5), ["cpu", "cuda"])
    assert says in str(error)
    assert "column 5" in str(error)
    assert isinstance(error, ValueError)


def test_mutants_give_a_selection_or_a_name_error():
    rng = random.Random(7)
    seeds = [
        "cuda:0+cpu",
        "cuda+cpu, metal+cpu, cpu",
        "auto",
        "cpu:0:0+cpu:0:1",
        "hexagon:emu",
        "sim",
        "gpu[mem>=8GiB,!integrated]",
        "a@pci-0000:65:00.0",
        "acme-fork/acme:0",
    ]
    letters = "cpuda0123456789:+,*[]@/!<>= -_XYZ\t\n\x00éß٣"
    good = 0
    for _ in range(10_000):
        chars = list(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(chars) + 1)
            what = rng.random()
            if what < 0.4:
                chars.insert(at, rng.choice(letters))
            elif what < 0.7 and at < len(chars):
                chars[at] = rng.choice(letters)
            elif at < len(chars):
                del chars[at]
        text = "".join(chars)
        try:
            names = parse(text)
        except DeviceNameError as e:
            assert repr(text) in str(e)
        else:
            good += 1
            assert parse(str(names)) == names
    assert 500 < good < 9_500
