"""`jackfield conform`: is a device right? Every case of the conformance kit, in processes of its own."""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from jackfield.cli.command import Command
from jackfield.cli.output import JsonOption, raw, shortened, table
from jackfield.errors import AttributeValueError, DeviceNameError

from .levels import LEVELS, suites_of
from .report import document, load, regressions, text
from .results import KINDS, Result, read_expected
from .runner import DEADLINE, Request, Runner
from .suites import SUITES, chosen

__all__ = ["conform"]

_SUITES = f"Only this one of {', '.join(SUITES)}; or all. May be given several times."
SHOWN = 20  # bad cases, and reasons against a level, that are printed; the report has all


@click.command(cls=Command)
@click.argument("name", required=False)
@click.option("--suite", "-s", "suites", multiple=True, metavar="SUITE", help=_SUITES)
@click.option("--level", type=click.Choice(LEVELS), help="All suites of a level; exits 1 where it is not reached.")
@click.option("--seed", default=0, show_default=True, help="Of the inputs: the same seed gives the same bytes.")
@click.option("--sample", type=int, metavar="N", help="Only so many cases of each suite, op and dtype.")
@click.option("--report", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write the report here.")
@click.option("--json", "as_json", is_flag=True, cls=JsonOption, help="Print the report instead of a table.")
@click.option("--xfail", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML: known failures.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="OLD NEW",
    help="Run nothing: list what got worse between two reports.",
)
@click.option("--deadline", default=DEADLINE, show_default=True, help="Seconds after which a case counts as hung.")
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Import this first: it registers the backend."
)
@click.pass_context
def conform(
    ctx: click.Context,
    name: str | None,
    suites: tuple[str, ...],
    level: str | None,
    seed: int,
    sample: int | None,
    report: Path | None,
    *,
    as_json: bool,
    xfail: Path | None,
    compare: tuple[Path, Path] | None,
    deadline: float,
    imports: tuple[str, ...],
) -> None:
    """Try every case on the device NAME, such as sim or acme:0. Exits 1 when something is wrong."""
    if (name is None) == (compare is None):
        raise click.UsageError("give the NAME of a device, or --compare OLD NEW", ctx)
    if compare is not None:
        ctx.exit(_compared(*compare))
    assert name is not None
    expected = read_expected(xfail) if xfail else ()
    try:
        wanted = chosen((*suites, *(suites_of(level) if level else ())))
    except AttributeValueError as e:
        raise click.BadParameter(str(e), ctx, param_hint="--suite") from e
    try:
        request = Request(name, wanted, seed, imports, deadline, expected, sample)
    except AttributeValueError as e:  # its first word is the option's
        raise click.BadParameter(str(e), ctx, param_hint=f"--{str(e).partition(' ')[0]}") from e
    if report is not None:
        _check_place(report)
    try:
        about, results = _tried(request, quiet=as_json)
    except AttributeValueError as e:  # a module that is not there: nothing was tried
        raise click.BadParameter(str(e), ctx, param_hint="--import") from e
    except DeviceNameError as e:
        raise click.BadParameter(str(e), ctx, param_hint="NAME") from e
    fields = document(about, wanted, seed, results, sample, level)
    if as_json:
        raw(text(fields))
    else:
        _print(fields, results, seed)
    if report is not None:
        _write(report, text(fields))
    missed = level is not None and bool(fields["level"]["blocked_by"])
    ctx.exit(1 if missed or any(one.is_bad for one in results) else 0)


def _tried(request: Request, *, quiet: bool) -> tuple[dict[str, Any], list[Result]]:
    """All results, with a bar on a terminal while they come. The home folder is ~ in them before they get a digest."""
    with Runner(request) as runner:
        ids = runner.ids()
        coming = (replace(one, reason=shortened(one.reason)) for one in runner.results(ids))
        if not quiet and not sys.stderr.isatty():
            click.echo(f"{len(ids)} cases on {request.device}: {', '.join(request.suites)}", err=True)
        if quiet or not sys.stderr.isatty():
            return shortened(runner.about), list(coming)
        with click.progressbar(coming, length=len(ids), label=request.device, file=sys.stderr) as bar:
            return shortened(runner.about), list(bar)


def _check_place(report: Path) -> None:
    """Before a long run: its report can be written there. Raises: click.UsageError."""
    if report.exists() and not report.is_file():
        return  # a pipe or a device, which has no neighbours
    try:
        with tempfile.TemporaryFile(dir=report.resolve().parent):
            pass
    except OSError as e:
        raise click.UsageError(f"--report: {report}: no file can be made there: {e.strerror}") from e


def _write(report: Path, words: str) -> None:
    """The whole report, or what was there before. Raises: click.ClickException."""
    try:
        if report.exists() and not report.is_file():
            report.write_text(words, encoding="utf-8")
            return
        target = report.resolve()
        part = target.with_name(f".report.{os.getpid()}.part")
        try:
            part.write_text(words, encoding="utf-8")
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as e:
        raise click.ClickException(f"--report: {report}: it is not written: {e.strerror}") from e


def _print(fields: dict[str, Any], results: Sequence[Result], seed: int) -> None:
    kinds = [kind for kind in KINDS if kind in ("passed", "failed", "unsupported") or _total(fields, kind)]
    seconds: Counter[str] = Counter()
    for one in results:
        seconds[one.suite] += one.seconds  # type: ignore[assignment]  # a Counter adds floats as well
    rows = [[suite, *(row[k] for k in kinds), f"{seconds[suite]:.1f}"] for suite, row in fields["suites"].items()]
    rows.append(["all", *(_total(fields, k) for k in kinds), f"{sum(seconds.values()):.1f}"])
    table(["suite", *kinds, "seconds"], rows)
    bad = [one for one in results if one.is_bad]
    told = [one for one in results if one.result == "passed" and one.reason]
    if bad or told:
        click.echo()
    for one in told:
        click.echo(f"{one.id}: {one.reason}")
    for one in bad[:SHOWN]:
        click.echo(f"{one.result}: {one.id}: {one.reason}")
    if len(bad) > SHOWN:
        click.echo(f"... and {len(bad) - SHOWN} more; --json and --report FILE have them all")
    device, backend = fields["device"], fields["backend"]
    levels = fields["level"]
    if levels["asked"] is not None:
        click.echo(f"\nlevel asked: {levels['asked']}, reached: {levels['reached'] or 'none'}")
        blocking = levels["blocked_by"]
        for text in blocking[:SHOWN]:
            click.echo(f"  blocked by {text}")
        if len(blocking) > SHOWN:
            click.echo(f"  ... and {len(blocking) - SHOWN} more; --json and --report FILE have them all")
    by = f"{backend['dist']} {backend['version']}".strip()
    click.echo(f"\n{device['name']} ({device['arch']}) of {by}, seed {seed}: {'wrong' if bad else 'nothing is wrong'}")


def _total(fields: dict[str, Any], kind: str) -> int:
    return sum(row[kind] for row in fields["suites"].values())


def _compared(old: Path, new: Path) -> int:
    """Print what got worse; the exit code."""
    lines = regressions(load(old), load(new))
    for line in lines:
        click.echo(line)
    click.echo(f"{len(lines)} regressions" if lines else "nothing got worse")
    return 1 if lines else 0
