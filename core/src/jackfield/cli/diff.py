"""`jackfield diff`: every node of a saved graph on two devices, and the first one that differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import click
import numpy as np

from jackfield.diff import Difference, NodeResult
from jackfield.diff import diff as run_both
from jackfield.errors import GraphError, PlanError
from jackfield.graph import Tensor, toposort
from jackfield.saved import Outputs, load_graph

from .command import Command
from .output import console, document, json_option, shortened, table

__all__ = ["diff"]

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(cls=Command)
@click.argument("a")
@click.argument("b")
@click.argument("graph", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--chained", is_flag=True, help="Each side goes on with its own results, so that errors grow.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For inputs that no file is given for."
)
@click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help="The value of an input or a state.")
@click.option("--repro", type=_FILE, help="Where the first node that differs goes; default: GRAPH.NODE.npz, here.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context,
    a: str,
    b: str,
    graph: Path,
    *,
    chained: bool,
    seed: int,
    given: tuple[str, ...],
    repro: Path | None,
    as_json: bool,
) -> None:
    """Compare two devices, A and B, node by node on a GRAPH.

    GRAPH is a file written by jackfield.save. Both get the same inputs for every node. A node that a side refuses is
    told, not compared. The first node that differs is written to a graph file of its own. The class of an op says how
    near is near enough, from E (equal bits) to Q (products with quantised weights). Exit code: 0 equal, 1 something
    differs, 2 wrong use.
    """
    try:
        outputs = load_graph(graph)
    except GraphError as e:
        raise click.BadParameter(str(e), ctx, param_hint="GRAPH") from e
    arrays = {name: _array(file) for name, file in map(_pair, given)}
    try:
        found = run_both(outputs, a, b, chained=chained, inputs=arrays, seed=seed, repro=_place(outputs, graph, repro))
    except PlanError as e:
        raise click.BadParameter(str(e), ctx, param_hint="--input") from e
    fields = found.to_dict() | {"repro": _repro(found, graph)}
    if as_json:
        document("diff", fields)
    else:
        _print(found, fields["repro"])
    ctx.exit(1 if found.first is not None else 0)


def _pair(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not name or not equals or not file:
        raise click.UsageError(f"--input is {text!r}, must be NAME=FILE.npy")
    return name, Path(file)


def _array(file: Path) -> Any:
    try:
        with file.open("rb") as raw:
            array = np.load(raw, allow_pickle=False)
    except MemoryError as e:
        raise click.UsageError(f"--input: {file} says it is larger than memory") from e
    except (OSError, ValueError, EOFError, SyntaxError, RecursionError, TokenError, BadZipFile) as e:
        raise click.UsageError(f"--input: {file}: {e}") from e
    if not isinstance(array, np.ndarray):
        raise click.UsageError(f"--input: {file} holds several arrays; give a .npy file of one")
    return array


def _place(outputs: Outputs, graph: Path, repro: Path | None) -> Callable[[str], Path | None]:
    """Where the first node that differs goes; nowhere when the graph is such a file already."""

    def place(node: str) -> Path | None:
        if repro is None and _is_minimal(outputs):
            return None
        return repro if repro is not None else Path(f"{graph.stem}.{node}.npz")

    return place


def _is_minimal(outputs: Outputs) -> bool:
    """One node on constants; copies of constants, which stand for states, don't count."""
    if not isinstance(outputs, Tensor):
        return False
    tensors = toposort([outputs])
    nodes = [t for t in tensors if t.kind == "node"]
    copies = [t for t in nodes if t is not outputs and t.op == "contiguous"]
    return len(nodes) - len(copies) == 1 and all(t.kind == "constant" for t in tensors if t.is_leaf)


def _repro(found: Difference, graph: Path) -> str | None:
    if found.first is None:
        return None
    return found.repro if found.repro is not None else str(graph)


def _print(found: Difference, repro: str | None) -> None:
    table(["node", "op", "result", "class", "max abs", "max ulp", "", "what"], [_row(n) for n in found.nodes])
    counts = {v: sum(n.verdict == v for n in found.nodes) for v in ("equal", "differs", "refused")}
    inputs = "each side its own results" if found.mode == "chained" else "the same inputs for both"
    sums = f"{counts['equal']} equal, {counts['differs']} differ, {counts['refused']} not compared"
    lines = [f"a = {found.a}, b = {found.b}, {inputs}: {len(found.nodes)} nodes, {sums}"]
    if found.first is not None:
        option = " --chained" if found.chained_repro else ""
        lines += [f"first: {found.first.node}", f"again: jackfield diff {found.a} {found.b} {repro}{option}"]
    console().print(shortened("\n".join(lines)), markup=False, soft_wrap=True)


def _row(node: NodeResult) -> tuple[str, ...]:
    size = "" if node.max_abs is None else f"{node.max_abs:.3g}"
    ulps = "" if node.max_ulp is None else str(node.max_ulp)
    return node.node, node.op, node.result, node.tolerance, size, ulps, node.verdict, node.text
