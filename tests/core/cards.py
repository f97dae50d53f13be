"""Cards in slots, as a driver lists them, and backends that offer them."""

from __future__ import annotations

from jackfield.backend import Backend, Kernel, Memory, Target, Unavailable
from jackfield.reference import ReferenceDevice

GIB = 2**30
F32 = frozenset({"f32"})


class Card(ReferenceDevice):
    def __init__(self, name, gib, flags, card, **more):
        super().__init__()
        self.name, self.memory, self.card = name, Memory(gib * GIB, gib * GIB // 2), card
        self.id, self.driver, self.model = more.get("id", ""), more.get("driver", ""), more.get("model", "")
        self.target = Target(kind=name.split(":")[0], arch=more.get("arch", "a1"), features=frozenset(flags))


class Cards(Backend):
    api = (0, 1)

    def __init__(self, name, *cards):
        self.name, self.cards = name, cards

    def devices(self):
        if not self.cards:
            raise Unavailable("no driver")
        return list(self.cards)

    def kernels(self):
        return {"add": Kernel({"a": F32, "b": F32}, F32)}
