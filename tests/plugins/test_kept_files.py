"""Whatever stands in a file that the core keeps for itself: nothing raises, and what can't be ours is read anew."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest
from fake_dists import good, install
from hypothesis import given, settings
from hypothesis import strategies as st

from jackfield import discovery
from jackfield.probe import SCHEMA, Proof, Verdict
from jackfield.registry import Registry

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=6)
    | st.sampled_from(["\0", "\ud800", "", "/", "9" * 5000, "ok", "crashed", "a.b:c", "..", "jackfield_one"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def kept(folder, tmp_path, monkeypatch):
    """The file in which the one backend of the folder is kept, and a good row of it."""
    monkeypatch.setenv("JACKFIELD_CACHE", str(tmp_path / "cache"))
    install(folder, "one", good("one"))
    assert [s.state for s in Registry().status() if s.name == "one"] == ["pending"]
    (place,) = (tmp_path / "cache" / "backends").glob("installed-*.json")
    (row,) = (row for row in json.loads(place.read_text()) if row["name"] == "one")
    return place, row


ROW = st.fixed_dictionaries({}, optional={f.name: VALUES for f in fields(discovery._Entry)})


@settings(max_examples=150)
@given(value=VALUES | st.lists(ROW, max_size=2), replaced=ROW)
def test_any_list_of_installed_backends(kept, value, replaced):
    place, row = kept
    for rows in (value, [row | replaced], [row, value]):
        place.write_text(json.dumps(rows))
        found = Registry().status()
        assert [s.name for s in found][-2:] == ["reference", "sim"]
        for status in found:
            str(status).encode()
    place.write_text(json.dumps([row]))


@pytest.mark.parametrize(
    "replaced",
    [{"folder": 3}, {"record": [1]}, {"record": 7}, {"version": None}, {"name": []}, {"manifest": {}}],
    ids=str,
)
def test_what_is_no_list_of_ours_is_read_anew(kept, replaced):
    place, row = kept
    place.write_text(json.dumps([row | replaced]))
    assert [s.state for s in Registry().status() if s.name == "one"] == ["pending"]
    assert row in json.loads(place.read_text())


GOOD = json.loads(json.dumps({"schema": SCHEMA, **asdict(Verdict("ok"))}))


@given(value=VALUES, replaced=st.fixed_dictionaries({}, optional=dict.fromkeys(GOOD, VALUES)))
def test_any_verdict(tmp_path_factory, value, replaced):
    proof = Proof(tmp_path_factory.getbasetemp(), "acme-1")
    place = proof.folder / "acme-1.json"
    for document in (value, GOOD | replaced):
        place.write_text(json.dumps(document))
        found = proof._read()
        if found is None:
            assert proof.found(lambda deep: Verdict("ok")) == Verdict("ok")
            continue
        assert found.state in ("ok", "crashed", "hung", "unknown")
        again = Verdict(**{**asdict(found), "proven": tuple(found.proven), "died": tuple(found.died)})
        assert again == found or found.seconds != found.seconds
