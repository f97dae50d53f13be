"""Cards in a made-up /sys: what is seen, which wheel is hinted at, and that nothing else depends on it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from jackfield import hardware, registry
from jackfield.cli.app import app
from jackfield.errors import DeviceNameError
from jackfield.hardware import Card

ZETA, ETA = {"bus": "usb", "model": "abcd:0001"}, {"bus": "soc", "model": "eta/*"}
TABLE = {
    "wheels": [
        {
            "kind": "acme",
            "text": "an Acme card",
            "install": "jackfield[acme]",
            "hardware": [{"bus": "pci", "model": "1D9B:*", "class": "12*"}],
        },
        {"kind": "zeta", "text": "a Zeta stick", "install": "jackfield-zeta", "hardware": [ZETA]},
        {"kind": "eta", "text": "an Eta chip", "install": "jackfield-eta", "hardware": [ETA]},
    ]
}


@pytest.fixture
def sys_(tmp_path, monkeypatch):
    """Two Acme cards, of which one is a network card, a Zeta stick, and files that no system writes."""

    def put(path, text):
        place = tmp_path / "sys" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())

    for address, vendor, device, of_class in (
        ("0000:65:00.0", "0x1d9b", "0x0001", "0x120000"),
        ("0000:66:00.0", "0x1d9b", "0x0002", "0x020000"),
        ("0000:67:00.0", "0x8086", "0x1237", "0x060000"),
    ):
        put(f"bus/pci/devices/{address}/vendor", vendor + "\n")
        put(f"bus/pci/devices/{address}/device", device + "\n")
        put(f"bus/pci/devices/{address}/class", of_class + "\n")
    put("bus/pci/devices/0000:68:00.0/vendor", b"\xff\xfe")
    put("bus/pci/devices/0000:69:00.0/class", "0x120000")
    put("bus/usb/devices/1-1/idVendor", "abcd\n")
    put("bus/usb/devices/1-1/idProduct", "0001\n")
    put("bus/usb/devices/usb1/speed", "480\n")
    table = tmp_path / "table.json"
    table.write_text(json.dumps(TABLE))
    monkeypatch.setattr(hardware, "SYS", tmp_path / "sys")
    monkeypatch.setattr(hardware, "TABLE", table)
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    monkeypatch.setattr(registry, "scan", lambda wishes: ([], True))
    registry.refresh()
    yield tmp_path
    registry.refresh()


def doctor():
    done = CliRunner().invoke(app, ["doctor", "--json"])
    return json.loads(done.stdout), done.exit_code


def test_cards_are_read_from_files(sys_):
    assert hardware.cards() == (
        Card("pci", "1d9b:0001", "0000:65:00.0", "120000"),
        Card("pci", "1d9b:0002", "0000:66:00.0", "020000"),
        Card("pci", "8086:1237", "0000:67:00.0", "060000"),
        Card("usb", "abcd:0001", "1-1"),
    )
    assert hardware.cards()[0].id == "pci-0000:65:00.0"


def test_a_missing_wheel_is_hinted_at_where_its_card_is(sys_):
    found = {wheel.kind: [card.address for card in cards] for wheel, cards in hardware.missing(())}
    assert found == {"acme": ["0000:65:00.0"], "zeta": ["1-1"]}
    assert [wheel.kind for wheel, _ in hardware.missing(["acme"])] == ["zeta"]
    fields, code = doctor()
    assert code == 0  # a hint is no fault
    hints = {hint["install"]: hint for hint in fields["hints"] if hint["code"] == "wheel-missing"}
    assert set(hints) == {"jackfield[acme]", "jackfield-zeta"}
    assert "this machine has an Acme card (pci-0000:65:00.0)" in hints["jackfield[acme]"]["text"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("acme", "this machine has an Acme card (pci-0000:65:00.0): `pip install 'jackfield[acme]'` brings it"),
        ("eta", "no backend for eta is installed; `pip install 'jackfield-eta'` brings it; installed: reference, sim"),
        ("theta", "no kind of device is called 'theta'"),
    ],
)
def test_a_name_of_what_is_not_installed(kind, says, sys_):
    with pytest.raises(DeviceNameError) as caught:
        registry.select(kind)
    assert says in str(caught.value)


@pytest.mark.parametrize("table", [None, "", "{", "[]", '{"wheels": [{}]}', '{"wheels": 3}'], ids=repr)
def test_the_table_changes_hints_only(table, sys_, monkeypatch):
    path = sys_ / "table.json"
    if table is None:
        path.unlink()
    else:
        path.write_text(table)
    before, code = doctor()
    assert code == 0
    assert [hint for hint in before["hints"] if hint["code"] == "wheel-missing"] == []
    with pytest.raises(DeviceNameError, match="no kind of device"):
        registry.select("acme")
    assert registry.select("auto").devices[-1].name == "reference:0"


def test_a_system_without_such_files(sys_, monkeypatch):
    monkeypatch.setattr(hardware, "SYS", sys_ / "nothing")
    assert hardware.cards() == ()
    assert hardware.missing(()) == []


def test_a_soc_is_named_by_its_files(sys_):
    soc = sys_ / "sys/devices/soc0"
    soc.mkdir(parents=True)
    (soc / "family").write_text("Eta\n")
    (soc / "machine").write_text("E9\n")
    assert Card("soc", "eta/e9") in hardware.cards()
    assert "eta" in {wheel.kind for wheel, _ in hardware.missing(())}


def test_the_table_of_the_core_is_right():
    document = json.loads(hardware.TABLE.read_text())
    assert document["schema"] == "jackfield.hardware/1"
    assert len(hardware.wheels()) == len(document["wheels"]) > 0
