"""backend.json: the schema, each way to spoil it, and the arithmetic of contract windows."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import GOOD

from jackfield.errors import ContractError, ManifestError
from jackfield.manifest import DeviceKind, SchemaUnknownError, read, spoken, this_platform, window_text


def spoilt(path, value):
    document = copy.deepcopy(GOOD)
    *outer, last = path
    target = document
    for key in outer:
        target = target[key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return json.dumps(document)


def only(text):
    """The one backend of a manifest, or its error, whichever way it comes."""
    (result,) = read(text).values()
    if isinstance(result, Exception):
        raise result
    return result


def test_the_example():
    acme = only(json.dumps(GOOD))
    assert acme.name == "acme"
    assert acme.contract == ((0, 1), (0, 1))
    assert acme.kinds == (DeviceKind("acme", "npu"), DeviceKind("acme", "", "emu", simulated=True))
    assert acme.needs == (("libacme.so.3", "the Acme driver 3.1 or newer"),)
    assert acme.hardware == (("pci", "1d9b:*"),)
    assert acme.probe_timeout_s == 20.0
    assert (
        acme.supplier("ImportError: libacme.so.3: cannot open")
        == "needs libacme.so.3, part of the Acme driver 3.1 or newer"
    )
    assert acme.supplier("no such thing") == ""
    assert acme.notes == ()


def test_the_smallest():
    smallest = {"name": "xy", "contract": {"min": "0.1", "max": "0.2"}, "kinds": [{"kind": "cpu", "class": "cpu"}]}
    made = only(json.dumps({"schema": "jackfield.backend/1", "backends": [smallest]}))
    assert (made.priority, made.probe_depth, made.platforms, made.vendor) == (50, "devices", (), "")


B = ("backends", 0)


@pytest.mark.parametrize(
    ("path", "value", "names"),
    [
        (("schema",), None, "schema is missing"),
        (("schema",), 1, "schema is 1, must be text"),
        (("schema",), "acme.backend/1", "schema is 'acme.backend/1'"),
        (("backends",), None, "backends is missing"),
        (("backends",), {}, "backends is {}, must be a list"),
        (("backends",), [], "backends is empty"),
        (("backends",), [3], "backends[0] is 3, must be an object"),
        ((*B, "name"), None, "backends[0].name is missing"),
        ((*B, "name"), "Acme", "backends[0].name is 'Acme'"),
        ((*B, "name"), "a", "backends[0].name"),
        ((*B, "contract"), None, "backends[0].contract is missing"),
        ((*B, "contract", "min"), None, "backends[0].contract.min is missing"),
        ((*B, "contract", "min"), "1", "backends[0].contract.min is '1', must be MAJOR.MINOR"),
        ((*B, "contract", "max"), "0.01", "backends[0].contract.max"),
        ((*B, "contract", "max"), "1.0", "backends[0].contract spans two majors"),
        ((*B, "contract", "max"), "0.0", "backends[0].contract min 0.1 is above max 0.0"),
        ((*B, "kinds"), None, "backends[0].kinds is missing"),
        ((*B, "kinds"), [], "backends[0].kinds is empty"),
        ((*B, "kinds", 0, "class"), "gpus", 'backends[0].kinds[0].class is "gpus", one of cpu gpu npu dsp accel'),
        ((*B, "kinds", 0, "class"), None, "backends[0].kinds[0].class is missing"),
        ((*B, "kinds", 0, "kind"), "gpu", "backends[0].kinds[0].kind 'gpu' is a class word"),
        ((*B, "kinds", 0, "kind"), "sim", "belongs to the core"),
        ((*B, "kinds", 0, "kind"), "auto", "belongs to the core"),
        ((*B, "kinds", 0, "variant"), "emu", "backends[0].kinds[0].variant only a simulated kind"),
        ((*B, "kinds", 1, "variant"), None, "backends[0].kinds[1].variant is missing"),
        ((*B, "kinds", 1, "class"), "npu", "backends[0].kinds[1].class a simulated kind has no class"),
        ((*B, "kinds", 1, "simulated"), 1, "backends[0].kinds[1].simulated is 1"),
        ((*B, "kinds", 1), {"kind": "acme", "class": "npu"}, "backends[0].kinds[1] acme is there twice"),
        ((*B, "platforms"), ["linux"], "backends[0].platforms[0] is 'linux'"),
        ((*B, "needs", 0, "from"), None, "backends[0].needs[0].from is missing"),
        ((*B, "hardware", 0), {"isa": "1"}, "backends[0].hardware[0] must have one key"),
        ((*B, "priority"), 101, "backends[0].priority is 101"),
        ((*B, "priority"), True, "backends[0].priority is true"),
        ((*B, "priority"), 1.5, "backends[0].priority is 1.5"),
        ((*B, "priority"), float("nan"), "NaN is no number of JSON"),
        ((*B, "priority"), float("inf"), "Infinity is no number of JSON"),
        (("schema",), "jackfield.backend/01", "schema is 'jackfield.backend/01'"),
        (("schema",), "jackfield.backend/\u0661", "schema is 'jackfield.backend/"),
        ((*B, "probe"), [], "backends[0].probe is []"),
        ((*B, "probe", "depth"), "deep", 'backends[0].probe.depth is "deep"'),
        ((*B, "probe", "timeout_s"), 0, "backends[0].probe.timeout_s is 0"),
        ((*B, "probe", "timeout_s"), "20", "backends[0].probe.timeout_s"),
        ((*B, "probe", "watch"), [1], "backends[0].probe.watch[0] is 1"),
        ((*B, "env"), {"ACME_QUEUES": "x"}, "backends[0].env.ACME_QUEUES must start with JACKFIELD_ACME_"),
        ((*B, "env"), {"JACKFIELD_ACME_X": 1}, "backends[0].env.JACKFIELD_ACME_X is 1"),
        ((*B, "claims"), "../claims.txt", "backends[0].claims is '../claims.txt'"),
        ((*B, "summary"), 1, "backends[0].summary is 1"),
        ((*B, "vendor"), [], "backends[0].vendor is []"),
        ((*B, "issues"), False, "backends[0].issues is false"),
    ],
)
def test_spoilt(path, value, names):
    with pytest.raises(ManifestError) as caught:
        only(spoilt(path, value))
    assert names in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\ud800"])
def test_no_document(text):
    with pytest.raises(ManifestError, match=r"backend\.json"):
        read(text)


def test_a_later_schema_is_told_apart():
    with pytest.raises(SchemaUnknownError, match="known: /1"):
        read(spoilt(("schema",), "jackfield.backend/2"))


def test_unknown_keys_are_notes_and_x_keys_are_free():
    document = copy.deepcopy(GOOD)
    document["later"] = document["backends"][0]["colour"] = document["backends"][0]["probe"]["how"] = 1
    document["x-mine"] = document["backends"][0]["x-mine"] = 2
    notes = only(json.dumps(document)).notes
    assert [n.rsplit(" ", 1)[1] for n in notes] == ["later", "backends[0].colour", "backends[0].probe.how"]


def test_one_wrong_backend_leaves_the_other():
    document = copy.deepcopy(GOOD)
    document["backends"].append({"name": "other"})
    result = read(json.dumps(document))
    assert result["acme"].name == "acme"
    assert "backends[1].contract is missing" in str(result["other"])
    document["backends"][1] = document["backends"][0]
    with pytest.raises(ManifestError, match="there twice"):
        read(json.dumps(document))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(list(GOOD["backends"][0])), json_values)
def test_any_value_gives_a_manifest_or_its_error(key, value):
    document = copy.deepcopy(GOOD)
    document["backends"][0][key] = value
    try:
        only(json.dumps(document))
    except ManifestError as e:
        assert f"backends[0].{key}" in str(e)


versions = st.tuples(st.integers(0, 3), st.integers(0, 9))
windows = st.tuples(versions, versions).map(lambda w: (min(w), max(w)))


@given(windows, windows)
def test_windows_are_spoken_exactly_when_they_meet(core, plugin):
    line = [(major, minor) for major in range(4) for minor in range(10)]
    common = [v for v in line if core[0] <= v <= core[1] and plugin[0] <= v <= plugin[1]]
    if common:
        assert spoken(core, plugin, "acme") == max(common)
        return
    with pytest.raises(ContractError) as caught:
        spoken(core, plugin, "acme")
    message = str(caught.value)
    assert f"acme speaks {window_text(plugin)}" in message
    assert f"jackfield {window_text(core)}" in message
    wanted = plugin[0] if plugin[0] > core[1] else core[0]
    assert f"speaks {wanted[0]}.{wanted[1]}" in message.split(": ")[1]


def test_platform():
    system, machine = this_platform().split("/")
    assert system in {"linux", "macos", "windows"} or system.isalnum()
    assert machine


def texts(value, path=()):
    """The path of every text in a document, keys aside."""
    if isinstance(value, str):
        yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(inner, (*path, key))


@pytest.mark.parametrize("bad", ["\0", "\ud800", "a\udfffb"], ids=ascii)
@pytest.mark.parametrize("path", [p for p in texts(GOOD) if p != ("schema",)], ids=str)
def test_no_text_holds_what_no_name_or_terminal_takes(path, bad):
    with pytest.raises(ManifestError, match=rf"backends\[0\].*{path[-1]}.* holds U\+|is '") as caught:
        only(spoilt(path, bad))
    str(caught.value).encode()


@pytest.mark.parametrize("path", [(), ("backends", 0), ("backends", 0, "env"), ("backends", 0, "probe")], ids=str)
def test_no_key_does_either(path):
    with pytest.raises(ManifestError, match=r"holds U\+D800") as caught:
        only(spoilt((*path, "x-\ud800"), "text"))
    str(caught.value).encode()
