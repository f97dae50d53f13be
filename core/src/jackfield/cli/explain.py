"""`jackfield explain`: where each node of a saved graph would run, and why. Nothing is allocated or uploaded."""

from __future__ import annotations

from pathlib import Path

import click

from jackfield.explain import explain as dry_run
from jackfield.saved import load_graph

from .command import Command
from .output import console, document, json_option, shortened

__all__ = ["explain"]


def _pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[tuple[str, str]]:
    """Pins as compile takes them. Raises: click.BadParameter."""
    pairs = [text.rpartition("=") for text in given]
    for pattern, _, device in pairs:
        if not (pattern and device):
            raise click.BadParameter(f"{pattern + device!r} must be PATTERN=DEVICE, such as softmax.0=cpu", ctx, param)
    return [(pattern, device) for pattern, _, device in pairs]


@click.command(cls=Command)
@click.argument("graph", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", "-d", help="A selection such as sim+reference; the default is JACKFIELD_DEVICE, else auto.")
@click.option(
    "--policy", type=click.Choice(["strict", "prefer", "auto"]), help="What happens to an op that is refused."
)
@click.option(
    "--pin",
    "pins",
    multiple=True,
    metavar="PATTERN=DEVICE",
    callback=_pairs,
    help="Put nodes, or what belongs to constants and states, on a device. May be given again.",
)
@click.option("--max-copies", type=click.IntRange(min=0), help="More copies between devices than these are an error.")
@json_option
def explain(
    graph: Path,
    device: str | None,
    policy: str | None,
    pins: list[tuple[str, str]],
    max_copies: int | None,
    *,
    as_json: bool,
) -> None:
    """Plan a saved graph, and say what goes where and why.

    GRAPH is a file written by jackfield.save. Devices, copies, memory and every reason are printed; nothing runs.
    PATTERN is a regular expression for the whole id of a node, or the name of a constant or state; DEVICE is what
    follows the last =.
    """
    report = dry_run(load_graph(graph), device, policy=policy, pins=pins, max_copies=max_copies)
    if as_json:
        fields = report.to_dict()
        fields.pop("schema")
        document("explain", {**fields, "max_copies": max_copies})
    else:
        console().print(shortened(str(report)), markup=False)
