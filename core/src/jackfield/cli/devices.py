"""`jackfield devices`: what can be used, and what a selection would choose."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from jackfield import registry

from .output import document, json_option, nbytes, table

__all__ = ["device_fields", "devices"]


def device_fields(info: registry.DeviceInfo) -> dict[str, Any]:
    """A device as JSON has it."""
    fields = dataclasses.asdict(info)
    fields["class"] = fields.pop("device_class")
    return fields


@click.command()
@click.argument("selection", required=False)
@json_option
def devices(selection: str | None, *, as_json: bool) -> None:
    """List devices in the order `auto` takes them; a star marks those that SELECTION, such as cuda:0+cpu, chooses."""
    chosen = registry.select(selection)
    names = [d.name for d in chosen.devices]
    infos = registry.devices()
    if as_json:
        document("devices", {"devices": [device_fields(i) for i in infos], "chosen": names})
        return
    rows = [
        (
            "*" if i.name in names else "",
            i.name,
            "simulated" if i.simulated else i.device_class,
            i.backend,
            i.arch,
            nbytes(i.memory.total),
            nbytes(i.memory.free),
            " ".join(i.flags),
        )
        for i in infos
    ]
    table(["", "device", "class", "backend", "arch", "memory", "free", "features"], rows)
