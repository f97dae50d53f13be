"""What device strings choose among backends that are there: classes, conditions, cards, owners."""

from __future__ import annotations

import pytest
from cards import Card, Cards
from fakes import registered

import jackfield as jf
from jackfield import registry
from jackfield.backend import Unavailable
from jackfield.errors import DeviceNameError
from jackfield.explain import explain


@pytest.fixture
def machine(monkeypatch):
    """Of class gpu: kind aa with an integrated and a discrete card, bb with another, and cc without hardware."""
    monkeypatch.delenv("JACKFIELD_DEVICE", raising=False)
    monkeypatch.setattr(registry, "scan", lambda wishes, *, anew=False: ([], True))
    registry.refresh()
    small = Card("aa:0", 2, {"integrated", "f16"}, "pci-0000:01:00.0", id="GPU-11111111-aaaa", driver="3.1")
    large = Card("aa:1", 16, {"f16", "bf16"}, "pci-0000:65:00.0", id="GPU-22222222-bbbb", driver="3.1", arch="a2")
    other = Card("bb:0", 8, {"f16"}, "pci-0000:66:00.0", id="GPU-22222222-cccc")
    with registered(Cards("aa", small, large), Cards("bb", other), Cards("cc"), device_class="gpu"):
        yield
    registry.refresh()


def chosen(text):
    return [opened.name for opened in registry.select(text).devices]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("aa", ["aa:0"]),
        ("aa:*", ["aa:0", "aa:1"]),
        ("gpu", ["aa:0"]),
        ("gpu:*", ["aa:0", "aa:1", "bb:0"]),
        ("gpu[!integrated]", ["aa:1"]),
        ("gpu[!integrated,mem>=8GiB]", ["aa:1"]),
        ("gpu[mem<=8GiB,!integrated]", ["bb:0"]),
        ("gpu:*[mem>=8GiB]", ["aa:1", "bb:0"]),
        ("gpu:*[free=4GiB]", ["bb:0"]),
        ("gpu:*[mem!=16GiB]", ["aa:0", "bb:0"]),
        ("aa[bf16]", ["aa:1"]),
        ("aa[arch=A2]", ["aa:1"]),
        ("aa:*[arch!=a2]", ["aa:0"]),
        ("gpu[driver!=3.1]", ["bb:0"]),
        ("aa:*[class=gpu]", ["aa:0", "aa:1"]),
        ("aa@GPU-22222222", ["aa:1"]),
        ("aa@gpu-2222", ["aa:1"]),
        ("aa@pci-0000:01:00.0", ["aa:0"]),
        ("aa:1[bf16]", ["aa:1"]),
        ("<registered>/bb", None),
        ("bb/bb", ["bb:0"]),
        ("cc, gpu:*[bf16]+reference", ["aa:1", "reference:0"]),
        ("aa:7, bb", ["bb:0"]),
        ("gpu[mem>=99GiB], reference", ["reference:0"]),
    ],
)
def test_what_is_chosen(text, names, machine):
    if names is None:
        with pytest.raises(DeviceNameError, match="an owner is"):
            chosen(text)
    else:
        assert chosen(text) == names
        assert chosen(str(registry.parse(text))) == names


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("gpu:0", 1, "gpu is a class, which has no gpu:0: an index would move when a backend is installed"),
        ("aa+gpu:1", 4, "devices: aa:0, aa:1, bb:0"),
        ("npu", 1, "no installed backend has a device of class npu"),
        ("gpu[mem>=99GiB]", 1, "no device fits gpu[mem>=99GiB]; there are: aa:0 (arch a1, mem 2.0GiB, f16 integrated)"),
        ("aa:0[bf16]", 1, "no device fits aa:0[bf16]"),
        ("aa@pci-0000", 1, "pci-0000 fits 2 cards: pci-0000:01:00.0, pci-0000:65:00.0"),
        ("aa@GPU-99999999", 1, "there are: aa:0 (GPU-11111111-aaaa), aa:1 (GPU-22222222-bbbb)"),
        ("bb/aa", 1, "no kind of device is called 'aa'; installed: bb"),
        ("zz/aa", 1, "no backend of 'zz'"),
        ("gpu+aa", 5, "aa:0 stands twice in one set"),
        ("sim[f16]", 1, "no device fits sim[f16]"),
    ],
)
def test_what_cannot_be_chosen(text, column, says, machine):
    with pytest.raises(DeviceNameError) as caught:
        chosen(text)
    assert says in str(caught.value)
    assert f"column {column}:" in str(caught.value)


def test_a_class_without_hardware_says_why(machine):
    with registered(Cards("dd"), device_class="dsp"), pytest.raises(Unavailable, match="no driver"):
        chosen("dsp")


def test_listings_tell_what_the_conditions_ask(machine):
    found = {info.name: info for info in jf.devices()}
    one = found["aa:1"]
    assert (one.id, one.card, one.driver, one.device_class) == ("GPU-22222222-bbbb", "pci-0000:65:00.0", "3.1", "gpu")


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_one_string_means_the_same_everywhere(way, machine, monkeypatch):
    text = "gpu[!integrated,mem>=8GiB]+reference"
    x = jf.input("x", (2,))
    if way == "variable":
        monkeypatch.setenv("JACKFIELD_DEVICE", text)
    session = jf.Session() if way == "variable" else jf.Session(device=text)
    with session:
        plan = session.compile(jf.ops.add(x, x), pins={"add.0": "aa:1"})
        assert plan.devices == ("aa:1",)


# ---- one card, several backends


@pytest.fixture
def shared(machine):
    """Kind ee offers the discrete card of aa a second time."""
    twin = Card("ee:0", 16, (), "pci-0000:65:00.0", id="EE-00000000")
    with registered(Cards("ee", twin), device_class="gpu"):
        yield


def test_a_card_is_used_once(shared, caplog):
    caplog.set_level("INFO")
    assert chosen("gpu:*") == ["aa:0", "aa:1", "bb:0"]
    assert chosen("auto")[:3] == ["aa:1", "bb:0", "aa:0"], "discrete cards come first"
    assert caplog.text.count("ee:0 is not used: it is the card pci-0000:65:00.0, as aa:1 is") == 1
    assert chosen("ee") == ["ee:0"]  # by name
    with pytest.raises(DeviceNameError, match=r"are both the card pci-0000:65:00\.0; choose one"):
        chosen("aa:1+ee")
    assert chosen("aa:0+ee") == ["aa:0", "ee:0"]


@pytest.mark.parametrize("text", ["gpu:*+reference", "auto"])
def test_the_report_says_through_which_backend_a_card_is_used(text, shared):
    x = jf.input("x", (2,))
    report = explain(jf.ops.add(x, x), text)
    said = "ee:0 is not used: it is the card pci-0000:65:00.0, as aa:1 is"
    assert said in report.to_dict()["notes"]
    assert f"note: {said}" in str(report).splitlines()


@pytest.mark.parametrize("hidden", ["pci-0000:65", "GPU-2222,EE-0", " pci-0000:65:00.0 , zz"])
def test_a_hidden_card_is_hidden_from_all(hidden, shared, monkeypatch):
    monkeypatch.setenv("JACKFIELD_HIDE", hidden)
    registry.refresh()
    gone = {"aa:1", "ee:0"} | ({"bb:0"} if "GPU-2222" in hidden else set())
    assert set(chosen("auto")) == {"aa:0", "aa:1", "bb:0", "ee:0", "reference:0"} - gone
    with pytest.raises(Unavailable, match="JACKFIELD_HIDE hides all its cards"):
        chosen("ee")
