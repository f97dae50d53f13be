"""A command whose errors name the option, argument or variable that is wrong."""

from __future__ import annotations

from typing import Any

import click

from jackfield.errors import DeviceNameError
from jackfield.variables import setting

__all__ = ["Command"]

VARIABLE = "JACKFIELD_DEVICE"


class Command(click.Command):
    """Raises: click.BadParameter in place of a DeviceNameError."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
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
