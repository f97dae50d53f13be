"""Every row of the tables of device strings, on a machine of two cards; and one string means the same everywhere."""

from __future__ import annotations

import json

import pytest
from cards import Card, Cards
from click.testing import CliRunner
from fakes import registered

import jackfield as jf
from jackfield import hardware, registry
from jackfield.cli.app import app
from jackfield.errors import BackendError, DeviceNameError, Error, Unavailable


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """Kind cuda with a small and a large card, and a simulated one; vulkan offers the small card, too; metal: none."""
    monkeypatch.delenv("JACKFIELD_DEVICE", raising=False)
    monkeypatch.setattr(registry, "scan", lambda wishes, *, anew=False: ([], True))
    monkeypatch.setattr(hardware, "wheels", lambda: (hardware.Wheel("npx", "an NPX", "jackfield[npx]", ()),))
    registry.refresh()
    small = Card("cuda:0", 4, {"integrated"}, "pci-0000:01:00.0", id="GPU-11111111-aaaa", model="Small")
    large = Card("cuda:1", 16, {"f16"}, "pci-0000:65:00.0", id="GPU-8f3a11c2-bbbb", model="Large")
    emu = Card("cuda:emu", 1, (), "")
    again = Card("vulkan:0", 4, {"integrated"}, "pci-0000:01:00.0", id="VK-00000000")
    host = Card("cpu:0", 32, (), "")
    with (
        registered(Cards("cuda", small, large, emu), Cards("vulkan", again), Cards("metal"), device_class="gpu"),
        registered(Cards("cpu", host), device_class="cpu"),
    ):
        yield
    registry.refresh()


def chosen(text):
    return [opened.name for opened in registry.select(text).devices]


MEANS = [
    ("cuda", ["cuda:0"]),
    ("cuda:1", ["cuda:1"]),
    ("cuda@GPU-8f3a11c2", ["cuda:1"]),
    ("cuda@pci-0000:65:00.0", ["cuda:1"]),
    ("cuda:0+cpu", ["cuda:0", "cpu:0"]),
    ("metal+cpu, cuda+cpu, cpu", ["cuda:0", "cpu:0"]),
    ("cuda:7+cpu, metal+cpu, cpu", ["cpu:0"]),
    ("gpu[!integrated,mem>=8GiB]", ["cuda:1"]),
    ("cuda/cuda:0", ["cuda:0"]),
]


@pytest.mark.parametrize(("text", "names"), MEANS)
def test_what_it_means(text, names):
    assert chosen(text) == names


WRONG = [
    ("", 1, "empty term"),
    ("cpu,,cuda", 5, "empty term"),
    ("+cpu", 1, "empty term"),
    ("CUDA:0", 1, "did you mean cuda:0?"),
    ("cuda0", 1, "did you mean cuda:0?"),
    ("cuda-0", 1, "did you mean cuda:0?"),
    ("cuda:", 6, "index is a whole number without leading zero"),
    ("cuda:-1", 6, "index is a whole number without leading zero"),
    ("cuda:01", 6, "index is a whole number without leading zero"),
    ("cuda:x", 1, "index is a whole number without leading zero; variants of cuda: emu"),
    ("cuad", 1, "near: cuda; installed: cpu, cuda, metal, reference, sim, vulkan"),
    ("cuad", 1, "not installed but known: npx (`pip install 'jackfield[npx]'`)"),
    ("npx", 1, "`pip install 'jackfield[npx]'` brings it"),
    ("cuda:7", 1, "2 devices of kind cuda: cuda:0 (Small, 4.0GiB), cuda:1 (Large, 16.0GiB)"),
    ("gpu:0", 1, "an index would move when a backend is installed; devices: cuda:0, cuda:1, vulkan:0"),
    ("cuda@GPU-8f", 6, "shorter than 8 characters"),
    ("cuda@pci-0000", 1, "fits 2 cards: pci-0000:01:00.0, pci-0000:65:00.0"),
    ("gpu[mem>=8]", 10, "has no unit"),
    ("gpu[colour=red]", 5, "keys are mem free arch vendor driver class"),
    ("gpu[mem>8GiB]", 8, "operators are = != >= <="),
    ("vulkan:0+cuda:0", 10, "are both the card pci-0000:01:00.0; choose one of them"),
    ("auto+cpu", 1, "auto stands alone"),
]


@pytest.mark.parametrize(("text", "column", "says"), WRONG)
def test_what_is_wrong(text, column, says):
    with pytest.raises(DeviceNameError) as caught:
        chosen(text)
    assert isinstance(caught.value, ValueError)
    assert caught.value.text == text
    assert says in str(caught.value)
    assert f"{text!r}, column {column}: " in str(caught.value)
    assert str(caught.value).splitlines()[-2:] == ["  " + text, "  " + " " * (column - 1) + "^"]


def test_a_right_name_of_a_backend_that_cannot_be_used_is_no_name_error():
    with pytest.raises(Unavailable, match="no driver") as caught:
        chosen("metal")
    assert isinstance(caught.value, BackendError)
    assert caught.value.status.code == "no-device"


# The same words everywhere

STRINGS = [
    *dict.fromkeys(text for text, *_ in (*MEANS, *WRONG) if text),
    "auto", "gpu", "gpu:*", "sim", "reference", "cuda:*", "cuda:emu", "cpu:0:0", "cuda:1+cuda:0", " cuda + cpu ",
    "cuda:*[f16]", "nix, auto", "gpu[class=gpu]", "npu",
]  # fmt: skip


def by_argument(text):
    with jf.Session(text) as session:
        return session.devices


def by_variable(text, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("JACKFIELD_DEVICE", text)
        with jf.Session() as session:
            return session.devices


def by_command(text):
    done = CliRunner().invoke(app, ["devices", text, "--json"], prog_name="jackfield")
    if done.exit_code:
        assert done.exit_code == 1 or isinstance(done.exception, SystemExit)
        return None
    return tuple(json.loads(done.stdout)["chosen"])


@pytest.mark.parametrize("text", STRINGS)
def test_one_string_means_the_same_everywhere(text, monkeypatch):
    assert len(STRINGS) >= 30
    try:
        devices = by_argument(text)
    except Error as error:
        with pytest.raises(type(error)) as caught:
            by_variable(text, monkeypatch)
        assert str(caught.value) == str(error)
        assert by_command(text) is None
    else:
        assert by_variable(text, monkeypatch) == devices
        assert by_command(text) == devices


# Simulated devices answer to their exact name


@pytest.fixture
def simulated():
    """Nothing but cuda:emu and sim."""
    for name in ("cuda", "vulkan", "metal", "cpu"):
        registry.unregister_backend(name)
    cards = Cards("cuda", Card("cuda:emu", 8, {"f16"}, "pci-0000:01:00.0", id="EMU-00000000"))
    with registered(cards, device_class="gpu"):
        yield


@pytest.mark.parametrize(
    "text", ["gpu", "gpu:*", "npu", "npu:*", "cpu", "cuda", "cuda:0", "cuda:*", "sim:*", "gpu[f16]", "cuda[f16]",
             "sim[f16]", "cuda@EMU-00000000", "cuda@pci-0000:01:00.0", "gpu[mem>=1GiB]"]
)  # fmt: skip
def test_no_other_name_reaches_them(text, simulated):
    with pytest.raises((DeviceNameError, Unavailable)):
        chosen(text)


def test_no_fallback_reaches_them(simulated):
    assert chosen("auto") == chosen("nix, auto") == ["reference:0"]
    assert [d.name for d in registry.fallbacks()] == ["reference:0"]
    assert chosen("cuda:emu+sim") == ["cuda:emu", "sim:0"]
    x = jf.input("x", (2,))
    plan = jf.compile(jf.ops.softmax(jf.ops.add(x, x)), "cuda:emu")
    assert plan.devices == ("cuda:emu", "reference:0")
