"""Cards in a made-up /sys: what is seen, which wheel is hinted at, and that nothing else depends on it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from jackfield import hardware, registry
from jackfield.cli.app import app
from jackfield.errors import DeviceNameError
from jackfield.hardware import Card

OWN_TABLE, ROOT = hardware.TABLE, Path(__file__).parents[2]
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
    monkeypatch.setattr(registry, "scan", lambda wishes, *, anew=False: ([], True))
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


# Made-up machines: (vendor, device, class) of what is plugged, or a SoC.
MACHINES = {
    "nvidia": (("10de", "2335", "030200"),),
    "nvidia_display": (("10de", "1eb8", "030000"),),
    "amd": (("1002", "74a1", "038000"),),
    "intel": (("8086", "56a0", "030000"),),
    "network_of_nvidia": (("10de", "a2dc", "020000"),),  # a vendor of cards makes others as well
    "sound_of_amd": (("1002", "ab28", "040300"),),
    "server": (("1a03", "2000", "030000"), ("8086", "1237", "060000")),  # shows text
    "virtual": (("1234", "1111", "030000"), ("1af4", "1050", "038000")),
}
GRAPHICS = {"nvidia", "nvidia_display", "amd", "intel"}


def plugged(folder, *cards):
    for number, (vendor, device, of_class) in enumerate(cards):
        place = folder / f"bus/pci/devices/0000:{number:02x}:00.0"
        place.mkdir(parents=True)
        for name, text in (("vendor", vendor), ("device", device), ("class", of_class)):
            (place / name).write_text(f"0x{text}\n")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_cores_own_table_hints_at_graphics_cards_alone(machine, sys_, monkeypatch):
    """With the table as it is shipped, on a machine of which nothing is run: only files are read."""
    monkeypatch.setattr(hardware, "TABLE", OWN_TABLE)
    monkeypatch.setattr(hardware, "SYS", sys_ / machine)
    plugged(sys_ / machine, *MACHINES[machine])
    expected = {"wgpu": [f"pci-0000:{0:02x}:00.0"]} if machine in GRAPHICS else {}
    assert {wheel.kind: [card.id for card in cards] for wheel, cards in hardware.missing(["cpu"])} == expected
    assert hardware.missing(["cpu", "wgpu"]) == []
    fields, code = doctor()
    hints = [hint for hint in fields["hints"] if hint["code"] == "wheel-missing"]
    assert code == 0
    assert [hint["install"] for hint in hints] == (["jackfield-wgpu"] if expected else [])
    with pytest.raises(DeviceNameError) as caught:
        registry.select("wgpu")
    text = "this machine has a graphics card (pci-0000:00:00.0)" if expected else "no backend for wgpu is installed"
    assert text in str(caught.value)
    assert "`pip install 'jackfield-wgpu'`" in str(caught.value)


# What rows of wheels to come will look like; none is in the core's table before its wheel is there.
TO_COME = [
    {
        "kind": "cuda",
        "text": "an NVIDIA card",
        "install": "jackfield[cuda]",
        "hardware": [
            {"bus": "pci", "model": "10de:*", "class": "0300*"},
            {"bus": "pci", "model": "10de:*", "class": "0302*"},
        ],
    },
    {
        "kind": "metal",
        "text": "an Apple GPU",
        "install": "jackfield[metal]",
        "hardware": [{"bus": "soc", "model": "apple/arm64"}],
    },
    {
        "kind": "hexagon",
        "text": "a Hexagon",
        "install": "jackfield[hexagon]",
        "hardware": [{"bus": "soc", "model": "snapdragon/*"}],
    },
]


@pytest.mark.parametrize(
    ("machine", "kinds"),
    [
        ("nvidia", {"cuda", "wgpu"}),
        ("network_of_nvidia", set()),
        ("amd", {"wgpu"}),
        ("phone", {"hexagon"}),
        ("mac", {"metal", "wgpu"}),
    ],
)
def test_several_wheels_may_drive_one_card(machine, kinds, sys_, monkeypatch):
    table = sys_ / "table.json"
    table.write_text(json.dumps({"wheels": [*json.loads(OWN_TABLE.read_text())["wheels"], *TO_COME]}))
    monkeypatch.setattr(hardware, "SYS", sys_ / machine)
    plugged(sys_ / machine, *MACHINES.get(machine, ()))
    if machine == "phone":
        soc = sys_ / machine / "devices/soc0"
        soc.mkdir(parents=True)
        (soc / "family").write_text("Snapdragon\n")
        (soc / "machine").write_text("SM8650\n")
    if machine == "mac":
        monkeypatch.setattr(hardware.sys, "platform", "darwin")
        monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert {wheel.kind for wheel, _ in hardware.missing(["cpu"])} == kinds
    assert {wheel.kind for wheel, _ in hardware.missing(["cpu", "wgpu"])} == kinds - {"wgpu"}


def test_the_table_of_the_core_is_right():
    document = json.loads(OWN_TABLE.read_text())
    assert document["schema"] == "jackfield.hardware/1"
    assert len(hardware.wheels()) == len(document["wheels"]) > 0


def test_the_table_of_the_core_names_wheels_that_exist():
    """A hint at a wheel that nobody can get is worse than none."""
    projects = [tomllib.loads(path.read_text("utf-8"))["project"] for path in ROOT.glob("*/*/pyproject.toml")]
    names = {project["name"] for project in projects}
    kinds = {kind for project in projects for kind in project.get("entry-points", {}).get("jackfield.backends", {})}
    extras = tomllib.loads((ROOT / "core/pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for row in json.loads(OWN_TABLE.read_text())["wheels"]:
        assert row["kind"] in kinds
        assert row["install"] in names or row["install"] in {f"jackfield[{extra}]" for extra in extras}, row
