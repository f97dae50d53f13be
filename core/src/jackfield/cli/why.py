"""`jackfield why`: whether one device can be used, how far its backend came, and which steps of an op it takes."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from rich.console import Console

from jackfield import registry
from jackfield.backend import Backend, Reason, Step, Target, refusal
from jackfield.conformance.cases import examples
from jackfield.dtypes import DTYPES
from jackfield.errors import BackendError, DeviceError, DeviceNameError, Error, GraphError
from jackfield.graph import Attrs
from jackfield.manifest import Manifest
from jackfield.names import near, parse
from jackfield.op import OPS, Op
from jackfield.stages import BackendStatus, words_of

from .command import Command
from .output import console, document, json_option, shortened, table

__all__ = ["why"]


@click.command(cls=Command, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("device")
@click.argument("op", required=False)
@click.option("--dtype", help="Only cases in which this dtype is the one under test.")
@json_option
@click.pass_context
def why(ctx: click.Context, device: str, op: str | None, dtype: str | None, *, as_json: bool) -> None:
    """Say whether DEVICE can be used, and why not; with OP, which steps of that op it takes.

    Further options are attributes of OP, such as --axis 0. No hardware is needed to ask about an op: every target that
    the backend names answers; of one that can't be loaded here, the claims file of its wheel.
    """
    asked = None if op is None else _asked(ctx, op, dtype)
    if asked is None and (ctx.args or dtype is not None):
        raise click.UsageError("a dtype and attributes belong to an OP; name one after the device", ctx)
    fields = _answer(device)
    if asked is not None:
        fields |= _support(device, *asked, dtype)
        fields["stages"] = _stages(device)  # with what was noted when it was asked
    if as_json:
        document("why", fields)
    else:
        _print(fields)
    fine = fields["answer"] == "ok" if asked is None else any(one["taken"] for one in fields["targets"])
    ctx.exit(0 if fine else 1)


# The device


def _answer(device: str) -> dict[str, Any]:
    """Raises: DeviceNameError for a text that is no selection, or names a kind that no backend has."""
    chosen: Sequence[str] = ()
    error: Error | None = None
    try:
        chosen = [opened.name for opened in registry.select(device).devices]
    except (DeviceNameError, BackendError, DeviceError) as e:
        error = e
    stages = _stages(device)
    if isinstance(error, DeviceNameError) and not stages:
        raise error
    instead = [] if error is None else [opened.name for opened in registry.select("auto").devices]
    status = getattr(error, "status", None)
    return {
        "asked": device,
        "answer": "ok" if error is None else status.state if status is not None else "absent",
        "devices": list(chosen),
        "error": None if error is None else str(error).splitlines()[0],
        "hint": getattr(status, "hint", None),
        "instead": instead,
        "stages": stages,
    }


def _stages(device: str) -> list[dict[str, Any]]:
    """How far each backend came that has a kind or class of these names."""
    kinds = {term.kind for terms in parse(device).sets for term in terms}
    found = (status for status, manifest in registry.listed() if kinds & _kinds(status, manifest))
    return [dataclasses.asdict(status) for status in found]


def _kinds(status: BackendStatus, manifest: Manifest | None) -> set[str]:
    """Kinds and classes of its devices."""
    if manifest is None:
        return {status.name}
    return {word for kind in manifest.kinds for word in (kind.kind, kind.device_class) if word}


# An op


def _asked(ctx: click.Context, op: str, dtype: str | None) -> tuple[Op, dict[str, Any]]:
    """The op and the attributes that the command line gives. Raises: UsageError with the nearest name."""
    if op not in OPS:
        like = near(op, OPS)
        raise click.UsageError(f"no op is called {op!r}" + (f"; did you mean {like}?" if like else ""), ctx)
    if dtype is not None and dtype not in DTYPES:
        raise click.UsageError(f"no dtype is called {dtype!r}; dtypes are: {', '.join(DTYPES)}", ctx)
    declared, attrs, words = OPS[op], {}, list(ctx.args)
    while words:
        name, _, value = words.pop(0).partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if name not in declared.attrs:
            has = ", ".join(declared.attrs) or "none"
            raise click.UsageError(f"{op} has no attribute {name!r}; it has: {has}", ctx)
        if not value and not words:
            raise click.UsageError(f"attribute {name!r} has no value", ctx)
        attrs[name] = _value(value or words.pop(0))
    return declared, attrs


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _support(device: str, op: Op, attrs: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """What the backend says to the declared cases of an op, by target; or what its wheel claims of them.

    takes: a target takes all of them. code, reason: else what the target that takes most says most often.
    """
    kind = parse(device).sets[0][0].kind
    backend, targets = registry.ask(kind)
    steps = list(_steps(op, attrs, dtype))
    rows = [] if backend is None else [_target(backend, target, op, steps) for target in targets]
    if not rows:
        rows = _claimed(registry.claimed(kind), op, attrs, dtype)
    best = max(rows, key=lambda row: row["taken"], default=None)
    nobody = f"nobody answers for {kind}: it names no targets and has no claims"
    operands = {} if backend is None else _operands(backend, op)
    return {
        "op": op.name,
        "takes": best is not None and best["takes"],
        "code": "other" if best is None else best["code"],
        "reason": nobody if best is None else best["reason"],
        "operands": [{"name": name, "dtypes": dtypes} for name, dtypes in operands.items()],
        "targets": rows,
    }


def _operands(backend: Backend, op: Op) -> dict[str, list[str]]:
    """Which dtypes its kernel reads, by operand; none where the table can't be had, which `_reason` tells."""
    try:
        kernel = backend.kernels().get(op.name)
        return {} if kernel is None else {name: sorted(dtypes) for name, dtypes in kernel.operands.items()}
    except (Exception, SystemExit):  # noqa: BLE001 (as in _reason)
        return {}


def _steps(op: Op, attrs: Mapping[str, Any], dtype: str | None) -> Iterator[Step]:
    """Declared cases, dense, with these attributes in place of their own where the op allows that."""
    for example in examples(op):
        if example.layout != "dense" or dtype not in (None, example.dtype.name):
            continue
        full = Attrs({**example.attrs, **attrs})
        try:
            result = op.infer(list(example.specs), full) if attrs else example.result
        except GraphError:
            continue
        yield Step(op.name, example.specs, result, full)


def _target(backend: Backend, target: Target, op: Op, steps: Sequence[Step]) -> dict[str, Any]:
    reasons = Counter(
        (reason.code, str(reason)) for step in steps if (reason := _reason(backend, target, step)) is not None
    )
    none: tuple[str, str] = ("other", f"{op.name} has no declared case of this dtype with these attributes")
    said = [most for most, _ in reasons.most_common(1)] if steps else [none]
    return {
        "arch": target.arch,
        "source": "targets",
        "takes": not said,
        "code": said[0][0] if said else None,
        "reason": said[0][1] if said else None,
        "cases": len(steps),
        "taken": len(steps) - reasons.total(),
        "reasons": [{"code": code, "reason": text, "cases": n} for (code, text), n in reasons.most_common()],
    }


def _claimed(text: str, op: Op, attrs: Mapping[str, Any], dtype: str | None) -> list[dict[str, Any]]:
    """The lines of a claims file about an op, one row a dtype; it knows nothing of attributes."""
    rows = []
    for line in text.splitlines():
        name, of, count = (*line.split(), "", "", "")[:3]
        taken, _, cases = count.partition("/")
        if name == op.name and dtype in (None, of) and taken.isdigit() and cases.isdigit():
            all_ = taken == cases and not attrs
            why = "which attributes it takes" if attrs else "which cases those are"
            rows.append(
                {
                    "arch": of,
                    "source": "claims",
                    "takes": all_,
                    "code": None if all_ else "other",
                    "reason": None if all_ else f"{taken} of {cases} cases of {of}, says its claims file, not {why}",
                    "cases": int(cases),
                    "taken": int(taken),
                    "reasons": [],
                }
            )
    return rows


def _reason(backend: Backend, target: Target, step: Step) -> Reason | None:
    try:
        found = refusal(step, backend.kernels(), target) or backend.why_not(step, target)
        return found if found is None or isinstance(found, Reason) else Reason(str(found))
    except (Exception, SystemExit) as e:  # noqa: BLE001 (a plugin may raise anything; what the other targets say is told)
        return Reason(f"raised {type(e).__name__} when asked: {words_of(e)}")


# Telling


def _print(fields: dict[str, Any]) -> None:
    out = console()
    answer = f"{fields['asked']}: {fields['answer']}"
    answer += f" ({', '.join(fields['devices'])})" if fields["devices"] else ""
    out.print(shortened(answer + (f": {fields['error']}" if fields["error"] else "")), markup=False)
    for title in ("hint", "instead"):
        if fields[title]:
            text = fields[title] if isinstance(fields[title], str) else ", ".join(fields[title])
            out.print(shortened(f"{title}: {text}"), markup=False)
    rows = [(s["name"], s["state"], s["stage"], s["code"], s["error"] or "") for s in fields["stages"]]
    table(["backend", "state", "stage", "code", "reason"], rows)
    if "op" in fields:
        _print_op(out, fields)


def _print_op(out: Console, fields: dict[str, Any]) -> None:
    out.print(f"\n{fields['op']}: {'taken' if fields['takes'] else fields['reason']}", markup=False)
    for one in fields["operands"]:
        out.print(f"  {one['name']}: {' '.join(one['dtypes'])}", markup=False)
    for row in fields["targets"]:
        where = f"on {row['arch']}" if row["source"] == "targets" else f"as {row['arch']}"
        told = f": {row['reason']}" if row["reason"] and not row["reasons"] else ""
        out.print(f"{where}: {row['taken']} of {row['cases']} cases are taken{told}", markup=False)
        for one in row["reasons"]:
            out.print(f"  {one['cases']} refused [{one['code']}]: {one['reason']}", markup=False)
