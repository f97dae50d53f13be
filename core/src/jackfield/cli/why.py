"""`jackfield why`: whether one device can be used, how far its backend came, and which steps of an op it takes."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from jackfield import registry
from jackfield.backend import Backend, Reason, Step, Target, refusal
from jackfield.conformance.cases import examples
from jackfield.dtypes import DTYPES
from jackfield.errors import BackendError, DeviceError, DeviceNameError, Error, GraphError
from jackfield.graph import Attrs
from jackfield.manifest import Manifest
from jackfield.names import near, parse
from jackfield.op import OPS, Op
from jackfield.stages import BackendStatus

from .output import console, document, json_option, shortened, table

__all__ = ["why"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.argument("device")
@click.argument("op", required=False)
@click.option("--dtype", help="Only cases in which this dtype is the one under test.")
@json_option
@click.pass_context
def why(ctx: click.Context, device: str, op: str | None, dtype: str | None, *, as_json: bool) -> None:
    """Say whether DEVICE can be used, and why not; with OP, which steps of that op it takes.

    Further options are attributes of OP, such as --axis 0. No hardware is needed to ask about an op.
    """
    asked = None if op is None else _asked(ctx, op, dtype)
    if asked is None and (ctx.args or dtype is not None):
        raise click.UsageError("a dtype and attributes belong to an OP; name one after the device", ctx)
    fields = _answer(device)
    if asked is not None:
        fields["op"] = op
        fields["targets"] = _targets(device, *asked, dtype)
    if as_json:
        document("why", fields)
    else:
        _print(fields)
    taken = asked is None or any(target["taken"] for target in fields["targets"])
    ctx.exit(0 if taken and (asked is not None or fields["answer"] == "ok") else 1)


# The device


def _answer(device: str) -> dict[str, Any]:
    """Raises: DeviceNameError for a text that is no selection, or names a kind that no backend has."""
    kinds = {term.kind for terms in parse(device).sets for term in terms}
    chosen: Sequence[str] = ()
    error: Error | None = None
    try:
        chosen = [opened.name for opened in registry.select(device).devices]
    except (DeviceNameError, BackendError, DeviceError) as e:
        error = e
    stages = [status for status, manifest in registry.listed() if kinds & _kinds(status, manifest)]
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
        "stages": [dataclasses.asdict(one) for one in stages],
    }


def _kinds(status: BackendStatus, manifest: Manifest | None) -> set[str]:
    return {kind.kind for kind in manifest.kinds} if manifest is not None else {status.name}


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


def _targets(device: str, op: Op, attrs: Mapping[str, Any], dtype: str | None) -> list[dict[str, Any]]:
    """What each target of the backend says to the declared cases of an op."""
    kind = parse(device).sets[0][0].kind
    backend, targets = registry.ask(kind)
    if backend is None:
        return []
    return [_target(backend, target, op, list(_steps(op, attrs, dtype))) for target in targets]


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
    kernel = backend.kernels().get(op.name)
    operands = {} if kernel is None else {name: sorted(dtypes) for name, dtypes in kernel.operands.items()}
    return {
        "arch": target.arch,
        "cases": len(steps),
        "taken": len(steps) - reasons.total(),
        "reasons": [{"code": code, "reason": text, "cases": n} for (code, text), n in reasons.most_common()],
        "operands": [{"name": name, "dtypes": dtypes} for name, dtypes in operands.items()],
    }


def _reason(backend: Backend, target: Target, step: Step) -> Reason | None:
    found = refusal(step, backend.kernels(), target) or backend.why_not(step, target)
    return found if found is None or isinstance(found, Reason) else Reason(str(found))


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
    for target in fields.get("targets", []):
        out.print(f"\n{fields['op']} on {target['arch']}: {target['taken']} of {target['cases']} cases are taken")
        for one in target["reasons"]:
            out.print(f"  {one['cases']} refused [{one['code']}]: {one['reason']}", markup=False)
        for one in target["operands"]:
            out.print(f"  {one['name']}: {' '.join(one['dtypes'])}", markup=False)
