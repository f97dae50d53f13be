"""An op is declared once: signature, rules, meaning and conformance cases in one decorated numpy function.

The function's name is the op's name, positional parameters are operands (`| None = None`: optional), keyword-only
parameters are attributes, the docstring is the documentation and the body is the meaning. Everything else derives from
it: the builder, the checks, the reference device, the oracle and the conformance cases.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .attributes import Stamp, plain, stamp
from .draws import Case, Draw, UnboundCase, case, ints, rand, values
from .dtypes import DType, by_name
from .dtypes.arrays import dtype_of, widened
from .errors import AttributeValueError, DTypeError, GraphError, ShapeError
from .findings import Fault, bad_index, collect, passing, recast
from .graph import Attr, Attrs, Tensor, node, view
from .spec import Shape, Spec, View

__all__ = [
    "OPS",
    "Array",
    "Call",
    "Case",
    "Draw",
    "Fault",
    "Op",
    "Work",
    "bad_index",
    "case",
    "collect",
    "ints",
    "op",
    "passing",
    "rand",
    "recast",
    "values",
]

Array = np.ndarray[Any, Any]
Priority = Literal["P0", "P1", "P2"]
Tolerance = Literal["E", "A", "T", "R", "M", "N"]

OPS: dict[str, Op] = {}


@dataclass(frozen=True)
class Work:
    """What one step costs on any device.

    multiply_adds: scalar multiply-adds. nbytes: bytes read once plus bytes written once.
    """

    multiply_adds: int
    nbytes: int


class Call:
    """One use of an op, as its rules see it: Specs by operand name (None when absent) and complete attributes."""

    def __init__(self, op: Op, specs: Sequence[Spec | None], attrs: Attrs) -> None:
        self.op = op
        self.specs = dict(zip(op.operands, specs, strict=True))
        self.attrs = attrs

    def __getitem__(self, name: str) -> Spec:
        """The Spec of an operand that is present."""
        spec = self.specs[name]
        assert spec is not None
        return spec

    def get(self, name: str) -> Spec | None:
        return self.specs[name]

    def present(self) -> list[tuple[str, Spec]]:
        return [(name, spec) for name, spec in self.specs.items() if spec is not None]

    def attr(self, name: str) -> Any:
        return self.attrs[name]

    def shape_error(self, text: str) -> ShapeError:
        return ShapeError(f"[{self.op.name}] {text}")

    def dtype_error(self, text: str) -> DTypeError:
        return DTypeError(f"[{self.op.name}] {text}")

    def attr_error(self, text: str) -> AttributeValueError:
        return AttributeValueError(f"[{self.op.name}] {text}")


ShapeRule = Callable[[Call], Shape]
DTypeRule = Callable[[Call], DType]
WorkRule = Callable[[Call, Spec], Work]
Check = Callable[[Call], None]
ViewRule = Callable[[Call], View | None]
Slack = Callable[[Mapping[str, Array | None], Mapping[str, Attr]], Any]
Promise = Callable[[Call, Array], str | None]


Specs = tuple[Spec | None, ...]

_REMEMBERED = 256  # uses of one op that are worth keeping: a model has a few tens


class _Made(NamedTuple):
    """What one use of an op gives: complete attributes and the result; for a view its window, on a copy or not."""

    attrs: Attrs
    spec: Spec
    window: View | None = None
    copies: bool = False


class Op:
    """One declared op. Calling it builds a node (or a view) and raises a user's mistakes on that line."""

    def __init__(self, body: Callable[..., Any], *, declared: Declared) -> None:
        signature = inspect.signature(body)
        parameters = signature.parameters.values()
        self.name: str = body.__name__
        self.doc: str = inspect.getdoc(body) or ""
        self.__doc__, self.__name__, self.__signature__ = self.doc, self.name, signature  # what help() shows
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.operands: tuple[str, ...] = tuple(p.name for p in positional)
        self.optional: frozenset[str] = frozenset(p.name for p in positional if p.default is None)
        keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        self.defaults: dict[str, Attr] = {p.name: p.default for p in keywords if p.default is not p.empty}
        self.attrs: tuple[str, ...] = tuple(p.name for p in keywords)
        self.types: dict[str, str] = {p.name: str(p.annotation) for p in keywords}
        self.body = body
        self.declared = declared
        self.priority, self.tolerance = declared.priority, declared.tolerance
        self.inplace = declared.inplace
        self.updates = declared.updates
        self.targets: tuple[int, ...] = _targets(self.operands, declared)
        self.is_of_the_host = "Function" in self.types.values()
        self.stored = declared.stored
        self.is_view = declared.view is not None
        self._names = frozenset(self.operands)
        self._known: dict[tuple[Specs, Stamp], _Made] = {}
        self.cases: tuple[Case, ...] = tuple(self._bind(c) for c in declared.cases)

    def _bind(self, raw: UnboundCase) -> Case:
        named = dict(zip(self.operands, raw.args, strict=False))
        named |= {k: v for k, v in raw.kwargs.items() if k in self.operands}
        attrs = {k: v for k, v in raw.kwargs.items() if k not in self.operands}
        return Case({k: v for k, v in named.items() if v is not None}, attrs, raw.raises)

    def complete(self, attrs: Mapping[str, Any]) -> Attrs:
        """All attributes, defaults filled in, values made plain.

        Raises: AttributeValueError for an unknown or missing one, a value of another type, or a float that is inf or
            NaN where the op gives these no meaning.
        """
        if unknown := sorted(attrs.keys() - set(self.attrs)):
            has = ", ".join(self.attrs) or "none"
            raise AttributeValueError(f"[{self.name}] has no attribute {unknown[0]!r}; it has: {has}")
        full = dict(self.defaults)
        for name, value in attrs.items():
            try:
                full[name] = plain(value, self.types[name])
            except AttributeValueError as e:
                raise AttributeValueError(f"[{self.name}] {name} {e}") from None
            self._check_finite(name, full[name])
        if missing := [name for name in self.attrs if name not in full]:
            raise AttributeValueError(f"[{self.name}] needs the attribute {missing[0]!r}")
        return Attrs(full)

    def _check_finite(self, name: str, value: Attr) -> None:
        if isinstance(value, float) and not math.isfinite(value) and name not in self.declared.infinite:
            raise AttributeValueError(f"[{self.name}] {name} is {value}, must be finite")

    def call(self, specs: Sequence[Spec | None], attrs: Mapping[str, Attr]) -> Call:
        """Checked operands and attributes. Raises GraphError's kin that name this op."""
        if len(specs) > len(self.operands):
            raise GraphError(f"[{self.name}] takes at most {len(self.operands)} operands, got {len(specs)}")
        specs = (*specs, *[None] * (len(self.operands) - len(specs)))
        for name, spec in zip(self.operands, specs, strict=True):
            if spec is None and name not in self.optional:
                raise GraphError(f"[{self.name}] needs the operand {name!r}")
        call = Call(self, specs, self.complete(attrs))
        for name, spec in call.present():
            accepted = self.declared.accepts.get(name)
            if accepted is not None and spec.dtype not in accepted:
                takes = ", ".join(d.name for d in accepted)
                why = " (rounded activations, no type for stored numbers)" if spec.dtype.is_activation else ""
                raise DTypeError(f"[{self.name}] {name} is {spec.dtype}{why}, must be one of {takes}")
        if self.declared.check is not None:
            self.declared.check(call)
        return call

    def infer(self, specs: Sequence[Spec | None], attrs: Mapping[str, Attr]) -> Spec:
        """The Spec of the result. Pure; raises what building the node would raise."""
        return self._result(self.call(specs, attrs))

    def _result(self, call: Call) -> Spec:
        try:
            return Spec(self.declared.dtype(call), self.declared.shape(call))
        except ShapeError as e:
            raise e if str(e).startswith("[") else ShapeError(f"[{self.name}] {e}") from None

    def work(self, specs: Sequence[Spec | None], attrs: Mapping[str, Attr]) -> Work:
        """Declared work of a step, from Specs and attributes alone."""
        call = self.call(specs, attrs)
        return self.declared.work(call, self._result(call))

    def evaluate(self, arrays: Sequence[Array | None], attrs: Mapping[str, Attr], result: DType) -> Array:
        """What the body makes of these arrays, cast once to the result's dtype: the oracle.

        arrays: one an operand, None where absent; block dtypes as arrays of blocks (`dtypes.arrays`). An updating op
            changes its first array and returns it, and changes its other targets as well.
        attrs: complete. Faults go to the list of the `collect` that is open. Never warns.
        """
        given = arrays if self.stored else [None if a is None else widened(a) for a in arrays]
        with np.errstate(all="ignore"):
            # A block that can't be coded is blamed on the last operand: what is added to blocks, which are finite.
            return recast(np.asarray(self.body(*given, **attrs)), result, *self.operands[-1:])

    def broken(self, operand: str, array: Array, call: Call) -> str | None:
        """How an operand's data breaks what the caller promised of it, and what to do; None where it keeps it.

        array: as stored.
        """
        with np.errstate(all="ignore"):
            return self.declared.promises[operand](call, array if self.stored else widened(array))

    def run(self, *operands: Array | None, **keywords: Any) -> Array:
        """The oracle by hand: checks like the builder, then `evaluate`. Operands by position or name.

        The arrays that an updating op would change are copied, not changed. Raises what building the node would raise.
        """
        arrays, attrs = self._split(operands, keywords)
        given = list(arrays)
        call = self.call([None if a is None else spec_of(a) for a in given], attrs)
        for i in self.targets:
            target = given[i]
            assert target is not None
            given[i] = target.copy()
        return self.evaluate(given, call.attrs, self._result(call).dtype)

    def __call__(self, *operands: Tensor | None, **keywords: Any) -> Tensor:
        """A tensor that this op will make; operands by position or by name."""
        given, attrs = self._split(operands, keywords)
        for position, tensor in enumerate(given):
            if type(tensor) is not Tensor:
                self._check_absent(position, tensor)
        specs = tuple([None if t is None else t.spec for t in given])
        mark = stamp(attrs)
        made = self._known.get((specs, mark)) if mark is not None else None
        if made is None:
            made = self._made(specs, attrs)
            if mark is not None:
                self._remember(specs, mark, made)
        if made.window is None:
            return node(self.name, given, made.attrs, made.spec)
        base = given[0]
        assert base is not None
        if made.copies:
            base = OPS["contiguous"](base)
        return view(self.name, base, made.attrs, made.window)

    def _check_absent(self, position: int, value: object) -> None:
        if value is not None:
            hint = "wrap arrays in jf.constant" if isinstance(value, np.ndarray) else "operands are Tensors"
            raise DTypeError(f"[{self.name}] {self.operands[position]} is a {type(value).__name__}: {hint}")

    def _remember(self, specs: Specs, mark: Stamp, made: _Made) -> None:
        """Models use the same op on the same Specs in every layer: one answer, one Spec and one Attrs for all."""
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[specs, mark] = made

    def _made(self, specs: Specs, attrs: Mapping[str, Any]) -> _Made:
        call = self.call(specs, attrs)
        spec = self._result(call)
        if self.declared.view is not None:
            return self._window(call, spec)
        if self.updates:
            target = specs[0]
            assert target is not None
            spec = Spec(spec.dtype, spec.shape, target.strides)
        return _Made(call.attrs, spec)

    def _window(self, call: Call, spec: Spec) -> _Made:
        attrs, window = call.attrs, self._declared_view(call)
        if window is not None:
            return _Made(attrs, spec, View(window.spec.with_role("temporary"), window.offset))
        base, *rest = call.specs.values()  # no strides express it: a dense copy first
        assert base is not None
        window = self._declared_view(Call(self, [base.dense().with_role("temporary"), *rest], call.attrs))
        assert window is not None, f"{self.name} of a dense tensor is always a view"
        return _Made(attrs, spec, window, copies=True)

    def _declared_view(self, call: Call) -> View | None:
        assert self.declared.view is not None
        return self.declared.view(call)

    def _split(self, operands: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        absent = len(self.operands) - len(operands)
        if absent < 0:
            raise GraphError(f"[{self.name}] takes at most {len(self.operands)} operands, got {len(operands)}")
        if self._names.isdisjoint(keywords):
            return (operands + (None,) * absent if absent else operands), keywords
        named = dict(zip(self.operands, operands, strict=False))
        for name in keywords.keys() & set(self.operands):
            if name in named:
                raise GraphError(f"[{self.name}] operand {name!r} is given twice")
            named[name] = keywords[name]
        attrs = {k: v for k, v in keywords.items() if k not in self.operands}
        return tuple(named.get(name) for name in self.operands), attrs

    def __repr__(self) -> str:
        return f"<op {self.name}({', '.join([*self.operands, *self.attrs])})>"


def _targets(operands: Sequence[str], declared: Declared) -> tuple[int, ...]:
    """Which operands an op changes, by position."""
    return (0, *map(operands.index, declared.also_updates)) if declared.updates else ()


@dataclass(frozen=True)
class Declared:
    """What the decorator was told; see `op`."""

    shape: ShapeRule
    dtype: DTypeRule
    work: WorkRule
    cases: Sequence[UnboundCase]
    accepts: Mapping[str, tuple[DType, ...]]
    check: Check | None
    view: ViewRule | None
    inplace: tuple[str, ...]
    updates: bool
    also_updates: tuple[str, ...]
    tolerance: Tolerance
    slack: Slack | None
    nan_too: Slack | None
    priority: Priority
    stored: bool
    promises: Mapping[str, Promise]
    infinite: tuple[str, ...]
    rare: Mapping[str, tuple[Attr, ...]]


def op(
    *,
    shape: ShapeRule,
    dtype: DTypeRule,
    work: WorkRule,
    cases: Sequence[UnboundCase],
    accepts: Mapping[str, Sequence[DType]],
    tolerance: Tolerance,
    check: Check | None = None,
    view: ViewRule | None = None,
    inplace: Sequence[str] = (),
    updates: bool = False,
    also_updates: Sequence[str] = (),
    slack: Slack | None = None,
    nan_too: Slack | None = None,
    priority: Priority = "P0",
    stored: bool = False,
    promises: Mapping[str, Promise] | None = None,
    infinite: Sequence[str] = (),
    rare: Mapping[str, Sequence[Attr]] | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Declare an op.

    shape, dtype: rules from a Call to the result's shape and dtype.
    work: rule from a Call and the result's Spec to Work.
    accepts: dtypes each operand may have; the first one is the default of the conformance cases.
    check: what else must hold; raises through `call.shape_error` and its kin.
    view: the op never runs; its window on the first operand, or None when a copy must come first.
    inplace: operands whose memory the result may take over when they die there.
    updates: the first operand is a target: the result is its new value, and a state is changed where it lies.
    also_updates: further operands that an updating op changes. Of a state, or a view of one, the new value stays; of
        anything else a copy is changed and dropped.
    tolerance: how near a device must come: a class of `conformance.check`, E A T R M or N.
    slack: absolute error allowed besides the class, from the operands (f64) and attributes: a number or an array that
        broadcasts to the result.
    nan_too: from the same, where NaN and an infinity are equally good: an array of bool that broadcasts to the result.
    stored: the body gets elements as they are stored (block dtypes as arrays of blocks), for ops that copy, select or
        convert. Else it gets floats as f64, decoded.
    promises: by operand, what its data must be and no device looks for: a pure function of the Call and the operand's
        array, as the body gets it, that says how the data breaks it and what to do, or None. JACKFIELD_CHECK=promises
        asks it before every step.
    infinite: float attributes that may be inf or NaN, unless a rule refuses that; all others must be finite.
    rare: values of attributes that are P2 in an op that is not: nobody asks for a kernel that takes them.
    """

    def declare(body: Callable[..., Any]) -> Op:
        frozen = {name: tuple(dtypes) for name, dtypes in accepts.items()}
        new = Op(
            body,
            declared=Declared(
                shape=shape,
                dtype=dtype,
                work=work,
                cases=tuple(cases),
                accepts=frozen,
                check=check,
                view=view,
                inplace=tuple(inplace),
                updates=updates,
                also_updates=tuple(also_updates),
                tolerance=tolerance,
                slack=slack,
                nan_too=nan_too,
                priority=priority,
                stored=stored,
                promises=dict(promises or {}),
                infinite=tuple(infinite),
                rare={name: tuple(found) for name, found in (rare or {}).items()},
            ),
        )
        assert new.name not in OPS, f"op {new.name} is declared twice"
        assert set(new.declared.promises) <= set(new.operands), f"op {new.name} promises what it does not take"
        assert {*new.declared.infinite, *new.declared.rare} <= set(new.attrs), f"op {new.name} has no such attribute"
        OPS[new.name] = new
        return new

    return declare


def spec_of(array: Array) -> Spec:
    """The dense Spec of an array; blocks count as their elements."""
    dtype = dtype_of(array)
    shape = array.shape if dtype.block == 1 else (*array.shape[:-1], array.shape[-1] * dtype.block)
    return Spec(dtype, shape)


def dtype_attr(call: Call, name: str = "dtype") -> DType:
    """A dtype named by an attribute. Raises DTypeError that names the op."""
    try:
        return by_name(call.attr(name))
    except DTypeError as e:
        raise call.dtype_error(str(e)) from None
