"""Which of two versions is the higher: as the library `packaging` has it, which the core does without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from jackfield import discovery
from jackfield.backend import API
from jackfield.discovery import CORE_VERSION, CORE_WINDOW, Found
from jackfield.manifest import window_text
from jackfield.versions import RELEASES, cure, lower_bound, precedence

few = st.integers(0, 12).map(str)
maybe = few | st.just("")
dash = st.sampled_from(["", ".", "-", "_"])
RELEASE = st.lists(few | st.just("0"), min_size=1, max_size=4).map(".".join)
PRE = st.tuples(
    dash, st.sampled_from(["a", "b", "c", "rc", "alpha", "beta", "pre", "preview", "RC", "Alpha"]), dash, maybe
).map("".join)
POST = st.tuples(dash, st.sampled_from(["post", "rev", "r", "POST"]), dash, maybe).map("".join) | few.map("-{}".format)
DEV = st.tuples(dash, st.sampled_from(["dev", "DEV"]), dash, maybe).map("".join)
LOCAL = st.lists(few | st.sampled_from(["abc", "A1", "ubuntu", "cu12", "0a"]), min_size=1, max_size=3)
VERSIONS = st.tuples(
    st.sampled_from(["", "v", " "]),
    st.just("") | few.map("{}!".format),
    RELEASE,
    st.just("") | PRE,
    st.just("") | POST,
    st.just("") | DEV,
    st.just("") | LOCAL.map(lambda words: "+" + ".".join(words)),
).map("".join)
LIKE_VERSIONS = VERSIONS | st.text("0123456789.-_+!abcrdevpost v", max_size=12)


def known(text):
    try:
        return Version(text)
    except InvalidVersion:
        return None


@given(LIKE_VERSIONS, LIKE_VERSIONS)
def test_two_versions_stand_as_the_library_has_them(one, other):
    keys = precedence(one), precedence(other)
    versions = known(one), known(other)
    assert [key == () for key in keys] == [version is None for version in versions]
    if None not in versions:
        assert (keys[0] < keys[1], keys[0] == keys[1]) == (versions[0] < versions[1], versions[0] == versions[1])
    elif versions != (None, None):
        assert keys[versions.index(None)] < keys[1 - versions.index(None)]


@given(st.lists(VERSIONS, max_size=12))
def test_many_are_sorted_alike(texts):
    assert [Version(t) for t in sorted(texts, key=precedence)] == sorted(map(Version, texts))


@pytest.mark.parametrize("text", ["", "one", "1.0.", "1..0", "1.0+", "1!", "9" * 5000, "1.0 2"])
def test_what_is_no_version_is_below_all(text):
    assert precedence(text) == ()
    assert precedence(text) < precedence("0.dev0")


@given(st.lists(st.tuples(st.sampled_from([">=", ">", "==", "~="]), few, few), min_size=1, max_size=4), st.booleans())
def test_the_least_that_is_required(rows, extra):
    needs = [f"jackfield{sign}{a}.{b},<99" for sign, a, b in rows]
    least = max(Version(f"{a}.{b}") for _, a, b in rows)
    if extra:
        needs.append("jackfield[cpu]>=98; extra == 'all'")
    assert all(Requirement(need) for need in needs)
    assert Version(lower_bound(needs)) == least


def test_nothing_is_required():
    assert lower_bound([]) == lower_bound(["jackfield", "jackfield<2", "jackfield; python_version >= '3.11'"]) == ""


def installs(text):
    """The requirements that a hint tells to install; each must be one."""
    return [Requirement(part.partition("'")[0]) for part in text.split("pip install '")[1:]]


CURES = {
    "required": (((0, 1), (0, 1)), ((0, 4), (0, 6)), "0.3", ["jackfield>=0.9,<1"], "jackfield>=0.9 acme<0.3"),
    "not told": (((0, 1), (0, 1)), ((0, 4), (0, 6)), "0.3", ["jackfield>=0.1"], "jackfield>0.1.0 acme<0.3"),
    "no need": (((0, 1), (0, 1)), ((1, 0), (1, 0)), "2!1.0rc1", [], "jackfield>0.1.0 acme<2!1.0rc1"),
    "local": (((0, 1), (0, 1)), ((0, 2), (0, 2)), "0.3+cu12", [], "jackfield>0.1.0 acme<0.3"),
    "no version": (((0, 1), (0, 1)), ((0, 2), (0, 2)), "unknown", [], "jackfield>0.1.0 acme"),
    "too old": (((0, 3), (0, 3)), ((0, 1), (0, 2)), "0.3", ["jackfield>=0.1"], "acme>0.3"),
    "once spoken": (((0, 3), (0, 3)), ((0, 1), (0, 1)), "0.3", [], "acme>0.3 jackfield==0.0.7"),
}


@pytest.mark.parametrize("case", CURES)
def test_what_to_install_is_told_as_far_as_it_is_known(case):
    core, wheel, version, needs, expected = CURES[case]
    told = cure(core, wheel, "0.1.0", "acme", version, needs, {(0, 1): "0.0.7"})
    assert " ".join(map(str, installs(told))) == expected
    first = wheel[0] if wheel[0] > core[1] else core[0]
    assert f"speaks {first[0]}.{first[1]}" in told


CONTRACTS = st.tuples(st.integers(0, 2), st.integers(0, 5))
WINDOWS = st.tuples(CONTRACTS, CONTRACTS).map(sorted).map(tuple)


@given(WINDOWS, WINDOWS, st.sampled_from(["", "jackfield>=0.9,<1"]))
def test_a_refusal_holds_both_windows_and_what_to_install(core, plugin, need):
    found = Found("acme", "jackfield-acme", "0.3", "", "jackfield_acme", distribution=object(), needs=(need,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discovery, "CORE_WINDOW", core)
        agreed = discovery.agreed_contract(found, plugin)
    if max(core[0], plugin[0]) <= min(core[1], plugin[1]):
        assert agreed == min(core[1], plugin[1])
        return
    assert agreed.error == f"acme speaks {window_text(plugin)}, jackfield {window_text(core)}"
    wanted = {str(one) for one in installs(agreed.hint)}
    if plugin[0] > core[1]:
        assert (agreed.code, wanted) == (
            "too-new",
            {"jackfield>=0.9" if need else f"jackfield>{CORE_VERSION}", "jackfield-acme<0.3"},
        )
    else:
        assert agreed.code == "too-old"
        assert "jackfield-acme>0.3" in wanted
        assert ("jackfield==0.1.0" in wanted) == (plugin[1] == (0, 1))


def test_the_record_of_releases_has_the_present_contract():
    assert max(RELEASES) == API
    assert set(RELEASES) >= set(CORE_WINDOW)
    assert all(precedence(first) <= precedence(CORE_VERSION) for first in RELEASES.values())
    assert sorted(RELEASES.values(), key=precedence) == [RELEASES[contract] for contract in sorted(RELEASES)]
