"""Draw what compare_llama.py wrote: tokens a second of every side, a panel a task, a group of bars a model.

    uv run --group bench python bench/plot.py FILE.json [FILE.json ...] PICTURE.png

Models of several files of one machine go into one picture. Needs matplotlib, which is in the dependency group `bench`.
Bars of figures that do not count are hollow.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = {
    "llama.cpp": "#b5b5b5",
    "llama.cpp packed": "#7a7a7a",
    "ik_llama.cpp": "#d08a2e",
    "jackfield": "#1f6fb2",
}

Panel = tuple[str, int, int]
"""Task, depth, threads."""


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One document with the models of all, in order. Raises: ValueError where their machines differ."""
    marks = sorted({document["machine"]["mark"] for document in documents})
    if len(marks) > 1:
        raise ValueError(f"files of {len(marks)} machines don't belong in one picture: {'; '.join(marks)}")
    models = [model for document in documents for model in document["models"]]
    return {**documents[0], "quick": any(document["quick"] for document in documents), "models": models}


def panels(document: Mapping[str, Any]) -> dict[Panel, list[tuple[str, Mapping[str, Any]]]]:
    """Model and row of every panel, in the order of the document."""
    found: dict[Panel, list[tuple[str, Mapping[str, Any]]]] = {}
    for model in document["models"]:
        for row in model["rows"]:
            found.setdefault((row["task"], row["depth"], row["threads"]), []).append((model["name"], row))
    return found


def title(panel: Panel) -> str:
    task, depth, threads = panel
    where = f" at depth {depth}" if depth else ""
    return f"{task}{where}, {threads} thread{'s' if threads > 1 else ''}"


def draw(document: Mapping[str, Any], picture: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only this script needs it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of how to draw

    found = panels(document)
    columns = len({threads for _, _, threads in found})
    lines = -(-len(found) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(7 * columns, 3.2 * lines), squeeze=False, layout="constrained")
    order = sorted(found, key=lambda panel: (panel[0] != "prompt", panel[1], panel[2]))
    for axis, panel in zip(axes.flat, order, strict=False):
        draw_panel(axis, found[panel])
        axis.set_title(title(panel), fontsize=10)
        axis.set_ylabel("tokens a second")
    for axis in list(axes.flat)[len(order) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(document["machine"]["cpu"] + (" (quick: figures mean nothing)" if document["quick"] else ""))
    figure.savefig(picture, dpi=110)


def draw_panel(axis: Any, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    sides = list(rows[0][1]["median"])
    width = 0.8 / len(sides)
    for number, side in enumerate(sides):
        places = [at + (number - (len(sides) - 1) / 2) * width for at in range(len(rows))]
        heights = [row["median"].get(side, 0.0) for _, row in rows]
        bars = axis.bar(places, heights, width, label=side, color=COLOURS.get(side), edgecolor=COLOURS.get(side))
        for bar, (_, row) in zip(bars, rows, strict=True):
            bar.set_fill(side not in row["void"])
    axis.set_xticks(range(len(rows)), [name for name, _ in rows], rotation=20, ha="right", fontsize=8)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        print("plot: usage: plot.py FILE.json [FILE.json ...] PICTURE.png", file=sys.stderr)
        return 1
    *sources, picture = map(Path, arguments)
    documents = []
    for source in sources:
        try:
            documents.append(json.loads(source.read_text()))
            panels(documents[-1])
        except (OSError, ValueError, KeyError) as error:
            print(f"plot: {source}: {error!r}; it must be what compare_llama.py writes", file=sys.stderr)
            return 1
    try:
        draw(joined(documents), picture)
    except ImportError:
        print("plot: matplotlib is needed; it comes with `uv run --group bench`", file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError) as error:
        print(f"plot: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
