"""`jackfield trust pin`: the pin file of what is installed."""

from __future__ import annotations

import json

import click

from jackfield.discovery import place_stop, scan
from jackfield.errors import Error
from jackfield.pins import SCHEMA, Pin, pin_of
from jackfield.trust import Wishes, plain

__all__ = ["trust"]


@click.group()
def trust() -> None:
    """Say which wheels may load."""


@trust.command()
def pin() -> None:
    """Print names, versions and digests of all files of the installed backends, for a file that JACKFIELD_PINS names.

    Runs no line of a plugin. What lies in the current folder, or is shadowed, would not load and gets no pin.
    """
    pins: dict[str, Pin] = {}
    found, whole = scan(Wishes())
    if not whole:
        raise Error("what is installed could not be read whole; try again")
    for one in found:
        if stop := place_stop(one):
            click.echo(f"not pinned: {one.name}: {stop.error}", err=True)
            continue
        try:
            made = pin_of(one.distribution, one.dist, one.version, one.module)
        except OSError as e:
            raise Error(f"{one.dist} {one.version} can't be pinned: {e}") from e
        known = pins.get(plain(one.dist))  # of a distribution with several backends each may have a package of its own
        files = {**(known.files if known else {}), **made.files}
        pins[plain(one.dist)] = Pin(one.dist, one.version, dict(sorted(files.items())))
    document = {"schema": SCHEMA, "pins": [pins[name].as_json() for name in sorted(pins)]}
    click.echo(json.dumps(document, indent=1))
