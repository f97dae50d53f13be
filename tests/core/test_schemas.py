"""The published schemas: of backend.json, in agreement with the core's own reader, and of what commands print."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from manifests import ACME

from jackfield.cli.app import app
from jackfield.cli.new_backend import filled
from jackfield.errors import ManifestError
from jackfield.manifest import Manifest, read

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "core/src/jackfield/schemas"
BACKEND = json.loads((SCHEMAS / "backend-1.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(BACKEND)

# What the reader refuses and no schema can: it compares parts of a document with each other.
BEYOND = ("is there twice", "spans two majors", "is above max", "must start with JACKFIELD_", "no character of a text")

WHOLE = {
    "schema": "jackfield.backend/1",
    "backends": [
        ACME,
        {"name": "cpu", "contract": {"min": "0.1", "max": "0.9"}, "kinds": [{"kind": "cpu", "class": "cpu"}]},
    ],
}


def verdict(document):
    """What the reader says: "" for a manifest that is right, else the text of its error."""
    try:
        found = read(json.dumps(document))
    except ManifestError as e:
        return str(e)
    return next((str(one) for one in found.values() if not isinstance(one, Manifest)), "")


def agree(document):
    said, accepted = verdict(document), VALIDATOR.is_valid(json.loads(json.dumps(document)))
    if accepted:
        assert said == "" or any(words in said for words in BEYOND), said
    else:
        errors = [f"{list(e.absolute_path)}: {e.message}" for e in VALIDATOR.iter_errors(document)]
        assert said != "", errors


def manifests():
    """Every backend.json of the tree, of its documents and of what the templates make."""
    for path in sorted(ROOT.glob("**/backend.json")):
        if not {"build", ".venv", "node_modules"} & set(path.relative_to(ROOT).parts):
            yield str(path.relative_to(ROOT)), path.read_text()
    for kind in ("pure", "native"):
        yield f"template {kind}", next(text for path, text in filled("acme", kind).items() if path == "backend.json")
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in page.read_text().split("```json\n")[1:]:
            if '"jackfield.backend/' in (text := block.split("```")[0]):
                yield page.name, text


FOUND = dict(manifests())


@pytest.mark.parametrize("name", FOUND)
def test_every_manifest_of_the_tree(name):
    document = json.loads(FOUND[name])
    VALIDATOR.validate(document)
    assert verdict(document) == ""


def test_those_that_must_be_there():
    assert {"plugins/cpu/backend.json", "template pure", "template native", "adding-a-backend.md"} <= FOUND.keys()
    assert VALIDATOR.is_valid(WHOLE)
    assert verdict(WHOLE) == ""


@pytest.mark.parametrize("path", sorted(SCHEMAS.iterdir()), ids=lambda p: p.name)
def test_schemas_are_schemas(path):
    document = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(document)
    stem, _, major = path.stem.rpartition("-")
    assert document["$id"] == f"jackfield.{stem}/{major}"
    assert document["properties"]["schema"] == {"const": document["$id"]}


def places(document, at=()):
    """Every path into a document, to lists, objects and leaves."""
    yield at
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield from places(value, (*at, key))


PLACES = [path for path in places(WHOLE) if path]
OTHERS = (
    None,
    True,
    False,
    0,
    -1,
    1,
    50.0,
    50.5,
    101,
    1e999,
    "",
    "x",
    "Acme",
    "acme",
    "cpu",
    "0.1",
    "2.0",
    "a/b",
    [],
    ["x"],
    {},
    {"x": 1},
)


def at(document, path):
    for key in path:
        document = document[key]
    return document


def spoilt(path, value):
    document = copy.deepcopy(WHOLE)
    at(document, path[:-1])[path[-1]] = value
    return document


def dotted(path):
    """A path as errors write it."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


@pytest.mark.parametrize("path", PLACES, ids=dotted)
def test_another_value_is_taken_or_refused_by_both_and_names_its_place(path):
    for value in OTHERS:
        if value == 1e999:
            continue  # json writes Infinity, which is no JSON
        document = spoilt(path, value)
        agree(document)
        said = verdict(document)
        if said:
            # Of a wrong object the place is it or a part of it, of some also what hangs on it.
            named = said.removeprefix("backend.json: ").split(" ")[0]
            assert (
                named.startswith(dotted(path)) or dotted(path).startswith(named) or path[-1] in ("name", "simulated")
            ), said


@pytest.mark.parametrize("path", [path for path in PLACES if isinstance(path[-1], str)], ids=dotted)
def test_what_is_missing_is_needed_by_both_or_by_none(path):
    document = copy.deepcopy(WHOLE)
    del at(document, path[:-1])[path[-1]]
    agree(document)
    required = path[-1] in (
        "schema",
        "backends",
        "name",
        "contract",
        "min",
        "max",
        "kinds",
        "kind",
        "class",
        "variant",
        "lib",
        "from",
    )
    said = verdict(document)
    # without `simulated`, the kind that is left is a real one with a variant; without `pci` no card is named
    assert bool(said) == (required or path[-1] in ("simulated", "pci")), said
    if said and required:
        assert said == f"backend.json: {dotted(path)} is missing"


B = ("backends", 0)
GPU, EMU = {"kind": "gpu", "class": "gpu"}, {"kind": "acme", "variant": "emu", "simulated": True}
# place: (values both take, values both refuse)
EDGES = {
    ("schema",): (
        ["jackfield.backend/1"],
        ["jackfield.backend/01", "jackfield.backend/2", "jackfield.backend/1\n", "/1"],
    ),
    (*B, "name"): (["ac", "a" * 32, "a_9"], ["a", "a" * 33, "acme\n", "9x", "Acme", "a-b", ""]),
    (*B, "contract", "min"): (["0.0", "0.1"], ["0.01", "00.1", "0.1\n", "0", ".1", "0.1.0", "0.10000", 0.1]),
    (*B, "kinds"): ([[GPU], [EMU], [GPU, EMU], [{**GPU, "simulated": False}]], [[], GPU, [[]], None]),
    (*B, "kinds", 0): (
        [*({"kind": c, "class": c} for c in ("cpu", "gpu", "npu", "dsp", "accel")), {**GPU, "more": 1}],
        [
            *({"kind": c, "class": "npu" if c != "npu" else "gpu"} for c in ("cpu", "gpu", "npu", "dsp", "accel")),
            {"kind": "auto", "class": "npu"},
            {"kind": "sim", "class": "npu"},
            {"kind": "reference", "class": "cpu"},
            {"kind": "acme", "class": "gpus"},
            {"kind": "acme", "class": None},
            {**GPU, "variant": "emu"},
            {**GPU, "variant": None},
            {**EMU, "class": "npu"},
            {**EMU, "class": None},
            {**EMU, "simulated": 1},
            {**EMU, "variant": "E"},
            {"kind": "acme", "simulated": True},
            {"kind": "acme"},
        ],
    ),
    (*B, "platforms"): (
        [[], ["a/b"], ["linux/x86_64"]],
        [["linux/x\n"], ["Linux/x"], ["linux/"], ["/x"], ["a_b/x"], "a/b"],
    ),
    (*B, "needs"): (
        [[], [{"lib": "", "from": ""}]],
        [[{"lib": "x"}], [{"from": "x"}], [{"lib": 1, "from": "x"}], ["x"]],
    ),
    (*B, "hardware"): (
        [[], [{"pci": "1"}, {"usb": "1"}, {"soc": "1"}]],
        [[{}], [{"isa": "1"}], [{"pci": "1", "usb": "1"}], [{"pci": 1}], {"pci": "1"}],
    ),
    (*B, "priority"): ([0, 100, 50.0], [-1, 101, 50.5, True, "50", None]),
    (*B, "probe"): ([{}, {"depth": "import"}, {"depth": "alloc", "more": 1}], [{"depth": "all"}, [], {"watch": [1]}]),
    (*B, "probe", "timeout_s"): ([1e-9, 0.5, 3600, 3600.0], [0, -1, 3600.1, True, "20", None]),
    (*B, "env"): (
        [{}, {"JACKFIELD_ACME_X": ""}, {"JACKFIELD_ACME_": "x"}],
        [{"JACKFIELD_": ""}, {"JACKFIELD_X": ""}, {"ACME_X": ""}, {"x-JACKFIELD_ACME_X": ""}, {"JACKFIELD_ACME_X": 1}],
    ),
    (*B, "claims"): (["", "a", "A_1.b-c", "a."], [".a", "a/b", "a b", "a\n", "\u00e9", None]),
    **{(*B, key): (["", "x"], [None, 1, []]) for key in ("summary", "vendor", "issues")},
    (*B, "x-mine"): ([None, {}], []),
    (*B, "later"): ([None, {}], []),
}


@pytest.mark.parametrize("path", EDGES, ids=dotted)
def test_both_draw_the_same_lines(path):
    taken, refused = EDGES[path]
    for value in taken:
        document = spoilt(path, value)
        if path[-1] == "name":
            document["backends"][0]["env"] = {}
        VALIDATOR.validate(document)
        assert verdict(document) == "", value
    for value in refused:
        assert not VALIDATOR.is_valid(spoilt(path, value)), value
        assert verdict(spoilt(path, value)) != "", value


NAMES = """
    acme cpu gpu sim auto emu a 9x a_b \u00e9 0.1 0.01 10000.1 1.0 linux/x86_64 linux/ Linux/x import alloc claims.txt
    .claims a/b pci class variant simulated x-mine jackfield.backend/1 jackfield.backend/2 JACKFIELD_ACME_X
    JACKFIELD_ACME_ JACKFIELD_CPU_X
"""
WORDS = st.sampled_from([*NAMES.split(), "x" * 32, "x" * 33, "acme\n", "0.1\n", "linux/x\n", "a\n"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 4000)
    | st.sampled_from([0.0, 1e-9, 20.5, 50.0, 3600.0, 3600.1, -0.0])
    | WORDS
    | st.text(max_size=3)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3), max_leaves=6
)


@settings(max_examples=400)
@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["set", "delete", "add"]), WORDS, VALUES),
        min_size=1,
        max_size=3,
    )
)
@example([(("backends", 0, "priority"), "set", "x", 50.0)])
@example(
    [
        (("backends", 0, "kinds", 0, "class"), "set", "x", "gpu"),
        (("backends", 0, "kinds", 0, "kind"), "set", "x", "gpu"),
    ]
)
def test_reader_and_schema_agree_on_any_change(changes):
    document = copy.deepcopy(WHOLE)
    for path, how, word, value in changes:
        try:
            target = at(document, path[:-1])
            if how == "delete":
                del target[path[-1]]
            elif how == "set":
                target[path[-1]] = value
            else:
                target = target[path[-1]]
                target.append(value) if isinstance(target, list) else target.update({word: value})
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier change took that place away
    agree(document)


@given(VALUES)
def test_reader_and_schema_agree_on_any_document(document):
    agree(document)


def test_what_trust_pin_prints(monkeypatch):
    monkeypatch.setenv("JACKFIELD_CACHE", "off")
    done = CliRunner().invoke(app, ["trust", "pin"])
    jsonschema.validate(json.loads(done.stdout), json.loads((SCHEMAS / "pins-1.json").read_text()))


def test_what_doctor_prints_here(monkeypatch):
    monkeypatch.setenv("JACKFIELD_DEVCE", "x")
    done = CliRunner().invoke(app, ["doctor", "--json"])
    jsonschema.validate(json.loads(done.stdout), json.loads((SCHEMAS / "doctor-1.json").read_text()))
