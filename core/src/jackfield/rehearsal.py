"""The child's side of a rehearsal: one plugin goes through its stages, and a pipe hears of each. See `probe`."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Mapping
from typing import Any

from .backend import Usage
from .discovery import Found
from .errors import ManifestError
from .loading import Plugin
from .manifest import read
from .probe import gil_is_on
from .trust import Wishes

__all__ = ["main"]


def main(request: Mapping[str, Any], pipe: int) -> None:
    """Rehearse what `discovery.request_of` describes; the answer goes into the pipe, a line each stage before it runs.

    Ends the process without what runs at exit: a plugin that crashes there does so when its devices are long closed.
    """
    os.set_inheritable(pipe, False)  # what a plugin starts must not hold it open  # noqa: FBT003
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 (as long as the process)
    faulthandler.enable()

    def say(line: str) -> None:
        os.write(pipe, f"{line}\n".encode())

    plugin = Plugin(_found(request), told=lambda stage: say(f"stage {stage}"))
    usual = plugin.found.manifest.probe_depth if plugin.found.manifest is not None else "devices"
    depth = request.get("depth", usual)
    answer, had_gil = "ok", gil_is_on()
    try:
        if depth == "import":
            plugin.only_import()
        else:
            devices = plugin.open(named=True, wishes=Wishes())
        if depth == "alloc":
            say("stage alloc")
            for opened in devices:
                opened.device.free(opened.device.alloc(opened.device.alignment, Usage.COMPUTE))
    except Exception as e:  # noqa: BLE001 (the core's typed error, or what a device raised: the host will meet it, too)
        answer = type(e).__name__
    if not had_gil and gil_is_on():
        say("gil on")
    say(f"answer {answer}")
    os._exit(0)


def _found(request: Mapping[str, Any]) -> Found:
    text, name = request["manifest"], request["name"]
    manifest = read(text)[name] if text is not None else None
    if isinstance(manifest, ManifestError):
        raise manifest
    return Found(name, request["dist"], request["version"], "", request["value"], manifest)
