"""What commands print: a table for people, one JSON document with `--json`. Nothing else goes to stdout."""

from __future__ import annotations

import getpass
import json
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "document", "json_option", "nbytes", "shortened", "table"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")

_NOBODY = {"localhost", "root"}  # on every machine
_PLACES = re.compile(r"\S*[/\\@]\S*")  # paths and addresses; elsewhere such a word is likely to be another one
_WIDE = 160  # columns when the output is no terminal


def shortened(value: Any) -> Any:
    """The same data as anybody may read it: in every text the user's home folder is ~, and neither the user nor the
    machine is named.
    """
    if isinstance(value, str):
        return _anonymous(value)
    if isinstance(value, dict):
        return {k: shortened(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(v) for v in value]
    return value


def _anonymous(text: str) -> str:
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    return _PLACES.sub(_without_names, text)


def _without_names(place: re.Match[str]) -> str:
    text = place[0]
    if "://" in text and "file://" not in text:  # an address of the web names nobody here
        return text
    for name, instead in _names():
        text = re.sub(rf"(?<![a-zA-Z0-9]){re.escape(name)}(?![a-zA-Z0-9])", instead, text)
    return text


@lru_cache(maxsize=1)
def _names() -> tuple[tuple[str, str], ...]:
    """Names that are left out, and what stands for them."""
    found = [(platform.node().partition(".")[0], "<host>")]
    with suppress(OSError, KeyError, ImportError):  # a user without an entry, or a system without users
        found.append((getpass.getuser(), "<user>"))
    return tuple((name, instead) for name, instead in found if len(name) > 1 and name not in _NOBODY)


def document(command: str, fields: dict[str, Any]) -> None:
    """Print the document of a command; its schema comes first."""
    click.echo(json.dumps(shortened({"schema": f"jackfield.{command}/1", **fields}), indent=2))


def console() -> Console:
    made = Console(highlight=False)
    if not made.is_terminal:
        made.width = _WIDE
    return made


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows under headings; long cells wrap."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(str(shortened(str(cell)))) for cell in row))
    console().print(made)


def nbytes(count: int) -> str:
    """Bytes in the largest unit that keeps a digit in front of the point; "" for 0, which means unknown."""
    if not count:
        return ""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"
