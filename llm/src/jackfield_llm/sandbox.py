"""Where a chat template runs: jinja2's sandbox, with bounds on the time and on the size of what operations make.

A template is a stranger's program. jinja2 keeps it away from Python's inside, but lets it count to the end of time and
double a text until the memory is full. Here every loop, call, filter and operation that makes larger texts is counted
or measured before it is done. What is not measured: a list that holds itself many times over, written out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

__all__ = ["LETTERS", "Sandbox"]

LETTERS = 1 << 24  # of one text, and of a prompt beyond what the messages hold themselves
_STEPS = 200_000  # turns of loops and calls of macros, one rendering
_SECONDS = 20.0  # of one rendering; a template of a real model takes milliseconds
_REPEATS = 1 << 20  # entries that "*" may make, columns that a text may be padded to
_SIZED = ("batch", "center", "format", "indent", "round", "slice", "wordwrap")  # filters with such a number
_WIDTH = re.compile(r"[0-9]{7}|\*|\{[^{}]*\{")  # a field so wide, or of a width that is only known later


class Sandbox(ImmutableSandboxedEnvironment):
    """One template's environment. `begin` starts the count of a rendering."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.begin()
        del self.globals["lipsum"]  # a maker of long texts that no template for messages needs
        self.filters |= {name: self._measured(name, self.filters[name]) for name in (*_SIZED, "join", "replace")}

    def begin(self) -> None:
        self._steps = 0
        self._end = time.monotonic() + _SECONDS

    def step(self) -> str:
        """Called by every turn of a loop and every call of a macro."""
        self._steps += 1
        if self._steps > _STEPS:
            raise SecurityError(f"it takes more than {_STEPS:,} steps")
        self._in_time()
        return ""

    def joined(self, *values: Any) -> str:
        """The operator "~"."""
        texts = [str(value) for value in values]
        _check_size(map(len, texts))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._in_time()
        if operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
            _check_size((len(left), len(right)))
        elif operator == "%" and isinstance(left, str):
            _check_width(left)
        elif operator == "*":
            _check_repeats(left, right)
        elif operator == "**":
            _check_power(left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **keywords: Any) -> Any:
        """Calls; methods of texts that pad, join or replace are measured first."""
        self._in_time()
        method = getattr(called, "__wrapped__", called)  # what jinja2 wraps is `format`
        text, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(text, str):
            if name == "join" and args:
                args = ([*args[0]], *args[1:])
            _check_method(name, text, args, keywords)
        return super().call(context, called, *args, **keywords)

    def _measured(self, name: str, filter_: Callable[..., Any]) -> Callable[..., Any]:
        """The filter behind its checks. `wraps` keeps the mark by which jinja2 hands over its context first."""
        given = 1 if hasattr(filter_, "jinja_pass_arg") else 0

        @wraps(filter_)
        def checked(*args: Any, **keywords: Any) -> Any:
            self._in_time()
            value, rest = args[given], args[given + 1 :]
            if name == "join":
                value = [*value]
                glue = str(rest[0] if rest else keywords.get("d", ""))
                _check_size((sum(len(str(part)) for part in value), len(glue) * len(value)))
            elif name == "format":
                _check_width(str(value))
            else:
                _check_method(name, str(value) if name == "replace" else "", rest, keywords)
            return filter_(*args[:given], value, *rest, **keywords)

        return checked

    def _in_time(self) -> None:
        if time.monotonic() > self._end:
            raise SecurityError(f"it takes more than {_SECONDS:.0f} seconds")

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The syntax tree with a call of `step` in front of each body; a name could be hidden by the template."""
        tree = super()._parse(source, name, filename)
        _Joins().visit(tree)
        repeated: list[nodes.For | nodes.Macro | nodes.CallBlock] = [*tree.find_all(nodes.For)]
        repeated += [*tree.find_all(nodes.Macro), *tree.find_all(nodes.CallBlock)]
        for node in repeated:
            node.body.insert(0, nodes.ExprStmt(_own("step", [])).set_lineno(node.lineno))
        tree.set_environment(self)
        return tree


class _Joins(NodeTransformer):
    """Every "~" becomes a call that measures first."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:  # noqa: N802 (jinja2's name)
        self.generic_visit(node)
        call = _own("joined", node.nodes)
        call.set_lineno(node.lineno)
        return call


def _own(method: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None)


class _Generation(Extension):
    """Parses {% generation %}, which marks the assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _check_repeats(left: Any, right: Any) -> None:
    for value, count in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(count, int) and len(value) * count > _REPEATS:
            raise SecurityError(f"{len(value)} entries times {count} is too much")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _REPEATS:
        raise SecurityError("the power is too large")


def _check_size(parts: Iterable[int]) -> None:
    if (size := sum(parts)) > LETTERS:
        raise SecurityError(f"it makes a text or list of {size:,}, at most {LETTERS:,} are allowed")


def _check_width(pattern: str) -> None:
    if _WIDTH.search(pattern):
        raise SecurityError("a field of a format is too wide")


def _check_method(name: str, text: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """What a method of a text, or a filter, may be asked for."""
    if name in ("format", "format_map"):
        return _check_width(text)
    if name == "join":
        return _check_size((sum(len(str(part)) for part in args[0]), len(text) * len(args[0]))) if args else None
    if name == "replace" and len(args) > 1:
        old, new = str(args[0]), str(args[1])
        times = text.count(old)
        _check_size((len(text), times * max(0, len(new) - len(old))))
    for value in (*args, *keywords.values()):
        if isinstance(value, int) and abs(value) > _REPEATS:
            raise SecurityError(f"{name} by {value} is too much")
    return None
