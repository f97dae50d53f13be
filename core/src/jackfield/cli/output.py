"""What commands print: a table for people, one JSON document with `--json`. Nothing else goes to stdout."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "JsonOption",
    "console",
    "document",
    "json_option",
    "led_away",
    "nbytes",
    "own_process",
    "raw",
    "shortened",
    "table",
]


class JsonOption(click.Option):
    """`--json` of a command that prints by `document`; see `led_away`."""


json_option = click.option("--json", "as_json", is_flag=True, cls=JsonOption, help="Print one JSON document.")


class _Out:
    """Where the document goes; None: to stdout. is_own: this process is there for one command."""

    kept: TextIO | None = None
    is_own = False


def own_process() -> None:
    """From now on this process does nothing but run one command, and ends with it."""
    _Out.is_own = True


@contextmanager
def led_away() -> Iterator[TextIO]:
    """What is printed in here goes to stderr, by native code too; stdout still has `document`, and what is written into
    the stream that this gives.

    A process that ends with its command never gets its stdout back: what a library holds in buffers of its own comes
    when the process ends, and would follow the document.
    """
    out, copy = sys.stdout, -1
    with suppress(AttributeError, OSError, ValueError):  # no file, as in a test: then no native code writes into it
        if out.fileno() == 1:
            out.flush()
            copy = os.dup(1)
            os.dup2(2, 1)
    kept = out if copy < 0 else open(copy, "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115 (closed below)
    sys.stdout, _Out.kept = sys.stderr, kept
    try:
        yield kept
    finally:
        sys.stdout, _Out.kept = out, None
        if copy >= 0:
            with suppress(OSError):  # it could not be written, which has been told
                kept.close()
            if not _Out.is_own:
                os.dup2(copy, 1)
            os.close(copy)


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
    text = text.encode("utf-8", "backslashreplace").decode()  # half characters, which no terminal takes
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
    click.echo(json.dumps(shortened({"schema": f"jackfield.{command}/1", **fields}), indent=2), file=_Out.kept)


def raw(text: str) -> None:
    """Print a document that is a text already."""
    click.echo(text, nl=False, file=_Out.kept)


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
