"""A command whose errors name the option, argument or variable that is wrong, and whose document stands alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from jackfield.errors import DeviceNameError
from jackfield.variables import setting

from .output import JsonOption, led_away

__all__ = ["Command"]

VARIABLE = "JACKFIELD_DEVICE"


class Command(click.Command):
    """With `--json` stdout has the document alone. Raises: click.BadParameter in place of a DeviceNameError."""

    def invoke(self, ctx: click.Context) -> Any:
        is_json = any(isinstance(p, JsonOption) and ctx.params.get(p.name or "") for p in self.params)
        try:
            with led_away() if is_json else nullcontext():
                return super().invoke(ctx)
        except DeviceNameError as e:
            raise self._named(ctx, e) from e

    def _named(self, ctx: click.Context, error: DeviceNameError) -> click.UsageError:
        for param in self.params:
            if param.name is not None and error.text and ctx.params.get(param.name) == error.text:
                return click.BadParameter(str(error), ctx, param)
        if error.text and setting(VARIABLE) == error.text:
            return click.BadParameter(str(error), ctx, param_hint=VARIABLE)
        return click.UsageError(str(error), ctx)
