"""`jackfield explain`: where each node of a saved graph would run, and why. Nothing is allocated or uploaded."""

from __future__ import annotations

from pathlib import Path

import click

from jackfield.explain import explain as dry_run
from jackfield.saved import load_graph

from .command import Command
from .output import console, document, json_option, shortened

__all__ = ["explain"]


@click.command(cls=Command)
@click.argument("graph", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--device", "-d", help="A selection such as sim+reference; the default is JACKFIELD_DEVICE, else auto.")
@click.option(
    "--policy", type=click.Choice(["strict", "prefer", "auto"]), help="What happens to an op that is refused."
)
@json_option
def explain(graph: Path, device: str | None, policy: str | None, *, as_json: bool) -> None:
    """Plan a saved graph, and say what goes where and why.

    GRAPH is a file written by jackfield.save. Devices, copies, memory and every reason are printed; nothing runs.
    """
    report = dry_run(load_graph(graph), device, policy=policy)
    if as_json:
        fields = report.to_dict()
        fields.pop("schema")
        document("explain", fields)
    else:
        console().print(shortened(str(report)), markup=False)
