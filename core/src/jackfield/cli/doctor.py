"""`jackfield doctor`: every installed backend, how far it came and what to do."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import Any

import click

from jackfield import hardware, registry
from jackfield.backend import API
from jackfield.discovery import CORE_VERSION
from jackfield.errors import Error
from jackfield.manifest import Manifest, this_platform
from jackfield.names import HOST_CLASS
from jackfield.pins import wrong_pins
from jackfield.probe import gil_is_on, wrong_settings
from jackfield.session import POLICIES
from jackfield.stages import BackendStatus
from jackfield.variables import PREFIX, VARIABLES, ignored, setting, unknown

from .command import Command
from .devices import device_fields
from .output import console, document, json_option, shortened, table

__all__ = ["doctor"]

WRONG = ("failed", "crashed", "hung", "refused")


@click.command(cls=Command)
@click.option("--static", "static", is_flag=True, help="Read files only; run no line of any plugin.")
@click.option("--fresh", is_flag=True, help="Forget what is known of installed backends, and try each anew.")
@click.option("--deep", is_flag=True, help="Let plugins look longer.")
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, static: bool, fresh: bool, deep: bool, as_json: bool) -> None:
    """Say what is installed, what works, and why the rest does not. Exits with 1 when something is wrong."""
    if static and fresh:
        raise click.UsageError("--static runs nothing, --fresh tries everything: give one of them", ctx)
    if fresh:
        registry.fresh()
    found = [] if static else registry.devices()
    listed = registry.listed()
    settings = [] if static else _wrong_settings(listed)
    fields = {
        "core": _core(),
        "environment": _environment([m for _, m in listed if m is not None]),
        "backends": [_backend(status, manifest) for status, manifest in listed],
        "devices": [device_fields(info) for info in found],
        "cards": _cards([m for _, m in listed if m is not None]),
        "hints": [{"code": s.code, "text": f"{s.name}: {s.hint}", "install": ""} for s, _ in listed if s.hint]
        + [{"code": "setting", "text": text, "install": ""} for text in settings]
        + _wheels([m for _, m in listed if m is not None]),
        "notes": _ignored()
        + [f"{s.name}: {note}" for s, _ in listed for note in s.notes]
        + [f"{name}: {f.text}" + (f"; {f.hint}" if f.hint else "") for name, f in registry.findings(deep=deep)],
    }
    if as_json:
        document("doctor", fields)
    else:
        _print(fields, [s for s, _ in listed])
    ctx.exit(1 if any(s.state in WRONG for s, _ in listed) or settings else 0)


def _wrong_settings(listed: list[tuple[BackendStatus, Manifest | None]]) -> list[str]:
    """Variables of the user that can't be honoured, in words. A host always has its CPU: where its backend finds no
    device, a variable of that backend is wrong.
    """
    wrong = []
    try:
        registry.select(None)
    except Error as e:
        wrong.append("JACKFIELD_DEVICE: " + str(e).partition("\n")[0])  # without the line that points
    wrong += [*wrong_settings(), *wrong_pins()]
    policy = setting("JACKFIELD_POLICY")
    if policy and policy not in POLICIES:
        wrong.append(f"JACKFIELD_POLICY={policy}: must be one of {', '.join(POLICIES)}")
    for status, manifest in listed:
        classes = {kind.device_class for kind in manifest.kinds} if manifest else set()
        if status.state == "absent" and HOST_CLASS in classes and status.error:
            wrong.append(status.error)
    return wrong


def _core() -> dict[str, Any]:
    import sysconfig  # noqa: PLC0415 (slow to load, and only this line needs it)

    return {
        "version": CORE_VERSION,
        "contract": f"{API[0]}.{API[1]}",
        "python": platform.python_version(),
        "platform": this_platform(),
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "gil": gil_is_on(),
    }


def _environment(manifests: list[Manifest]) -> list[dict[str, str]]:
    known = VARIABLES | {name: text for manifest in manifests for name, text in manifest.env}
    mistyped = {name: "unknown" + (f"; did you mean {like}?" if like else "") for name, like in unknown(known)}
    return [
        {"name": name, "value": value, "effect": (known | mistyped)[name] if setting(name) is not None else "ignored"}
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIX)
    ]


def _ignored() -> list[str]:
    names = [name for name in sorted(os.environ) if name.startswith(PREFIX)]
    return [f"ignored, because {ignored()}: {', '.join(names)}"] if names and ignored() else []


def _backend(status: BackendStatus, manifest: Manifest | None) -> dict[str, Any]:
    return {**dataclasses.asdict(status), "manifest": dataclasses.asdict(manifest) if manifest else None}


def _cards(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """Cards that manifests speak of, or that hooks see, and who does."""
    cards: dict[str, list[str]] = {}
    for manifest in manifests:
        for card in hardware.seen_by(manifest.hardware):
            cards.setdefault(card.id, []).append(manifest.name)
    for backend, seen in registry.seen():
        if backend not in cards.setdefault(seen.card, []):
            cards[seen.card].append(backend)
    return [{"id": card, "seen_by": names} for card, names in sorted(cards.items())]


def _wheels(manifests: list[Manifest]) -> list[dict[str, str]]:
    """Wheels whose hardware is here, and that nobody installed. The core only suggests."""
    kinds = {kind.kind for manifest in manifests for kind in manifest.kinds}
    return [
        {
            "code": "wheel-missing",
            "text": f"this machine has {wheel.text} ({', '.join(card.id for card in cards)}), and no backend drives "
            f"it; `pip install '{wheel.install}'` brings one",
            "install": wheel.install,
        }
        for wheel, cards in hardware.missing(kinds)
    ]


def _print(fields: dict[str, Any], statuses: list[BackendStatus]) -> None:
    core = fields["core"]
    out = console()
    out.print(
        f"jackfield {core['version']}, contract {core['contract']}, Python {core['python']}, {core['platform']}\n"
    )
    rows = [(s.name, f"{s.dist} {s.version}".strip(), s.state, s.stage, s.code, s.error or "") for s in statuses]
    table(["backend", "from", "state", "stage", "code", "reason"], rows)
    if fields["devices"]:
        out.print("\ndevices: " + ", ".join(d["name"] for d in fields["devices"]))
    for title in ("environment", "hints", "notes"):
        if fields[title]:
            out.print(f"\n{title}:")
        for line in fields[title]:
            text = (
                line
                if isinstance(line, str)
                else line.get("text") or f"{line['name']}={line['value']}: {line['effect']}"
            )
            out.print(f"  {shortened(text)}", markup=False)
