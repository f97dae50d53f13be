"""`jackfield devices`: what can be used, and what a selection would choose."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import click

from jackfield import registry
from jackfield.errors import Error

from .command import Command
from .output import document, json_option, nbytes, table

__all__ = ["device_fields", "devices"]


def device_fields(info: registry.DeviceInfo) -> dict[str, Any]:
    """A device as JSON has it."""
    words = {"device_class": "class"}
    return {words.get(name, name): value for name, value in dataclasses.asdict(info).items()}


@click.command(cls=Command)
@click.argument("selection", required=False)
@json_option
def devices(selection: str | None, *, as_json: bool) -> None:
    """List devices in the order `auto` takes them.

    A star marks what SELECTION, such as sim+reference, chooses.
    """
    names: list[str] = []
    wrong: Error | None = None
    try:
        names = [d.name for d in registry.select(selection).devices]
    except Error as e:
        if selection is not None:
            raise
        wrong = e  # of the environment: what is there must be told all the same
    infos = registry.devices()
    if as_json:
        error = None if wrong is None else str(wrong)
        document("devices", {"devices": [device_fields(i) for i in infos], "chosen": names, "error": error})
    else:
        _print(infos, names)
    if wrong is not None:
        raise wrong


def _print(infos: Sequence[registry.DeviceInfo], names: Sequence[str]) -> None:
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
