"""The group of commands: the core's own, and those other distributions add under `jackfield.commands`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from jackfield.errors import DeviceNameError, Error

from .devices import devices
from .diff import diff
from .doctor import doctor
from .explain import explain
from .new_backend import new_backend
from .output import led_away, own_process
from .trust import trust
from .why import why

__all__ = ["Commands", "app", "main"]

GROUP = "jackfield.commands"
LED_AWAY = "jackfield.led_away"  # in the `meta` of a context: `led_away`, for commands of other distributions
# Commands people know, by the extra of the core that adds them.
_ELSEWHERE = {
    "conform": "conformance",
    "generate": "llm",
    "chat": "llm",
    "embed": "llm",
    "eval": "llm",
    "quantize": "llm",
}
INTERRUPTED = 130  # the exit code shells give a program that Ctrl-C ended


class Commands(click.Group):
    """Own commands first; a command of another distribution is loaded when it is asked for, and may be broken."""

    def _entries(self) -> dict[str, EntryPoint]:
        found = sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.dist.name if e.dist else "", e.value))
        return {e.name: e for e in reversed(found) if e.name not in self.commands}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self._entries()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        entry = self._entries().get(cmd_name)
        return None if entry is None else _loaded(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            if args and args[0] in _ELSEWHERE:
                text = f"{args[0]} is not installed; `{_brings(_ELSEWHERE[args[0]])}` brings it"
                raise click.UsageError(text, ctx) from e
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Those that are there, and by the way to get them those that are not."""
        super().format_commands(ctx, formatter)
        there = set(self.list_commands(ctx))
        lacking: dict[str, list[str]] = {}
        for name, extra in _ELSEWHERE.items():
            if name not in there:
                lacking.setdefault(extra, []).append(name)
        if lacking:
            with formatter.section("Not installed"):
                formatter.write_dl([(", ".join(names), _brings(extra)) for extra, names in lacking.items()])

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _output():  # --help and --version print here
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> object:
        ctx.meta[LED_AWAY] = led_away
        try:
            with _output():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except DeviceNameError as e:
            raise click.UsageError(str(e), self._invoked(ctx)) from e
        except Error as e:
            raise click.ClickException(str(e)) from e

    def _invoked(self, ctx: click.Context) -> click.Context:
        """The context of the command that ran, whose usage an error shows."""
        name = ctx.invoked_subcommand
        command = self.get_command(ctx, name) if name else None
        return ctx if command is None else click.Context(command, parent=ctx, info_name=name)


def _brings(extra: str) -> str:
    """The command line that installs an extra; shells take [] for a pattern where it is not quoted."""
    return f"pip install 'jackfield[{extra}]'"


@contextmanager
def _output() -> Iterator[None]:
    """What is printed inside has left this process at the end, or its failure, a full disk, is an error in words."""
    try:
        yield
        if sys.stdout is not None:  # None without a standard output, and nothing was printed
            sys.stdout.flush()
    except OSError as e:
        if e.errno == errno.EPIPE:  # click ends without a word where the reader of a pipe has gone
            raise
        _drop_output()
        raise click.ClickException(str(e)) from e


def _open_streams() -> None:
    """Standard streams this process was started without lead nowhere: printing is no error, and no file of ours gets
    their descriptors, into which whatever prints would write.
    """
    flags = {0: os.O_RDONLY, 1: os.O_WRONLY, 2: os.O_WRONLY}
    for descriptor, mode in flags.items():
        try:
            os.fstat(descriptor)
        except OSError:
            nowhere = os.open(os.devnull, mode)
            if nowhere != descriptor:
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - as standard streams are
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _drop_output() -> None:
    """What standard output still holds can't be written: without this Python would try again at exit, and fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _loaded(entry: EntryPoint) -> click.Command:
    """The command, or one that says why it can't be had."""
    try:
        command = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # noqa: BLE001 (another dist's module may raise anything; the other commands must work)
        return _broken(entry, f"{type(e).__name__}: {e}")
    if not isinstance(command, click.Command):
        return _broken(entry, f"{entry.value} is a {type(command).__name__}, must be a click.Command")
    return command


def _broken(entry: EntryPoint, reason: str) -> click.Command:
    dist = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    text = " ".join(f"broken: {reason}".split())

    def fail() -> None:
        raise click.ClickException(f"the command {entry.name!r}{dist} can't be loaded: {reason}")

    lenient = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return click.Command(entry.name, callback=fail, short_help=text, help=text, context_settings=lenient)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="jackfield")
def app() -> None:
    """Run quantised models on whatever hardware is plugged in."""


for _command in (devices, diff, doctor, explain, new_backend, trust, why):
    app.add_command(_command)


def main() -> None:
    """Entry point of the script. Exit codes: 0 fine, 1 something is wrong, 2 wrong use, 130 Ctrl-C."""
    _open_streams()
    own_process()
    app(prog_name="jackfield")
