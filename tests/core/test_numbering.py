"""Cards are numbered by where they are plugged, whatever order a driver lists them in."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from cards import Card, Cards
from fakes import registered
from hypothesis import given
from hypothesis import strategies as st

from jackfield import registry
from jackfield.errors import ContractError
from jackfield.loading import term_of
from jackfield.names import Term
from jackfield.numbering import numbered

addresses = st.tuples(st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
slots = st.lists(addresses, min_size=1, max_size=4, unique=True)


def written(address):
    domain, bus, device, function = address
    return f"pci-{domain:04x}:{bus:02x}:{device:02x}.{function}"


def by_card(listed):
    """Number by card, where a driver lists these."""
    names = numbered([Term("aa", i) for i in range(len(listed))], listed)
    assert all(name.kind == "aa" for name in names)
    return dict(zip(listed, (name.index for name in names), strict=True))


@given(slots, st.data())
def test_the_order_of_the_driver_has_no_say(found, data):
    by_place = {written(address): i for i, address in enumerate(sorted(found))}
    listed = data.draw(st.permutations([written(address) for address in found]))
    assert by_card(listed) == by_place


@given(slots, addresses)
def test_one_more_card_leaves_the_others_in_their_order(found, more):
    before = by_card([written(address) for address in found])
    after = by_card([written(address) for address in dict.fromkeys([*found, more])])
    assert sorted(before, key=before.get) == [card for card in sorted(after, key=after.get) if card in before]


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        ([("aa:0", ""), ("aa:3", "")], ["aa:0", "aa:3"]),  # nobody tells: the driver's own
        ([("aa:0", ""), ("aa:1", "pci-0000:01:00.0")], ["aa:1", "aa:0"]),
        ([("aa:0", "GPU-bbbbbbbb"), ("aa:1", "GPU-aaaaaaaa")], ["aa:1", "aa:0"]),
        ([("aa:0", "GPU-bbbbbbbb"), ("aa:1", "pci-0000:01:00.0")], ["aa:1", "aa:0"]),
        ([("aa:0", "pci-0000:0a:00.0"), ("aa:1", "PCI-0000:0B:00.0")], ["aa:0", "aa:1"]),
        ([("aa:0", "pci-10000:01:00.0"), ("aa:1", "pci-ffff:01:00.0")], ["aa:1", "aa:0"]),
        ([("aa:0", "pci-0000:01:00.0"), ("aa:1", "pci-0000:01:00.0")], ["aa:0", "aa:1"]),  # two queues of one card
        (
            [("hx:0:0", "pci-0000:09:00.0"), ("hx:1:1", "pci-0000:08:00.0"), ("hx:1:0", "pci-0000:08:00.0")],
            ["hx:1:0", "hx:0:1", "hx:0:0"],
        ),
        ([("aa:emu", ""), ("aa:0", "pci-0000:09:00.0"), ("bb:0", "pci-0000:01:00.0")], ["aa:emu", "aa:0", "bb:0"]),
        ([], []),
    ],
)
def test_words_parts_and_what_is_unknown(devices, named):
    terms = [term_of(name) for name, _ in devices]
    assert [str(t) for t in numbered(terms, [card for _, card in devices])] == named


# A machine


pytestmark = pytest.mark.usefixtures("only_core")


SLOTS = {"pci-0000:65:00.0": "UUID-aaaa0000", "pci-0000:01:00.0": "UUID-bbbb0000", "pci-0000:17:00.0": "UUID-cccc0000"}
FORM = re.compile(r"aa:(0|[1-9][0-9]*)")


def ids(listed):
    """Id by name, on a machine whose driver lists the cards in these slots so."""
    cards = [Card(f"aa:{i}", 8, (), slot, id=SLOTS[slot]) for i, slot in enumerate(listed)]
    with registered(Cards("aa", *cards), device_class="gpu"):
        found = {d.name: d.device.id for d in registry.select("aa:*").devices}
        assert [d.name for d in registry.select("aa").devices] == ["aa:0"]
        assert registry.select("aa").devices == registry.select("aa:0").devices
        assert [info.id for info in registry.devices() if info.kind == "aa"] == list(found.values())
        for name, card in found.items():
            assert [d.name for d in registry.select(f"aa@{card}").devices] == [name]
    return found


def test_every_order_gives_the_same_names():
    for count in (1, 2, 3):
        seen = [ids(order) for order in permutations(list(SLOTS)[:count])]
        assert all(one == seen[0] for one in seen)
        assert all(FORM.fullmatch(name) for name in seen[0])
    assert ids(list(SLOTS)) == {"aa:0": "UUID-bbbb0000", "aa:1": "UUID-cccc0000", "aa:2": "UUID-aaaa0000"}


def test_one_more_card_changes_no_id():
    assert set(ids(list(SLOTS)[:2]).values()) < set(ids(list(SLOTS)).values())


def test_a_hidden_card_has_no_number(monkeypatch):
    monkeypatch.setenv("JACKFIELD_HIDE", "pci-0000:01:00.0")
    assert ids(list(SLOTS)) == {"aa:0": "UUID-cccc0000", "aa:1": "UUID-aaaa0000"}


def test_a_name_that_can_not_be_set_is_the_plugins_mistake():
    first = Card("aa:0", 8, (), "pci-0000:65:00.0")

    class Late(Card):
        def __setattr__(self, key, value):
            if key == "name" and "card" in self.__dict__:
                raise AttributeError(key)
            super().__setattr__(key, value)

    second = Late("aa:1", 8, (), "pci-0000:01:00.0")
    with registered(Cards("aa", first, second)), pytest.raises(ContractError, match="aa:1 is aa:0 by where its card"):
        registry.select("aa")
