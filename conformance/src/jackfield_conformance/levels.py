"""Bronze, silver and gold: which suites a level asks for, and which level a report reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jackfield.errors import AttributeValueError

from .results import Result

__all__ = ["LEVELS", "judged", "suites_of"]

_ADDED: Mapping[str, tuple[str, ...]] = {
    "bronze": (*("packaging", "manifest", "registry", "lifecycle", "names", "buffers", "errors", "claims", "ops"),),
    "silver": ("views", "block-dtypes", "packed", "memory", "threads", "guards"),
    "gold": ("fork", "free-threading", "fallback", "window", "overhead", "coverage"),
}
LEVELS = tuple(_ADDED)


def suites_of(level: str) -> tuple[str, ...]:
    """All suites that a level asks for, those of the levels below it first. Raises: AttributeValueError."""
    if level not in _ADDED:
        raise AttributeValueError(f"no level {level!r}; levels are: {', '.join(LEVELS)}")
    below = LEVELS[: LEVELS.index(level) + 1]
    return tuple(suite for one in below for suite in _ADDED[one])


def judged(asked: str | None, suites: Sequence[str], results: Iterable[Result], *, whole: bool) -> dict[str, Any]:
    """What a report says of levels: the one asked for, the highest reached, whether it is clean, and what blocks it.

    whole: every case was run; a sample reaches no level. A level is reached where no case of its suites is bad, and at
    least one of `ops` passed: a backend that refuses everything is none. Known failures do not block a level, but it is
    not clean.
    """
    all_results = list(results)
    wrong = {one.suite for one in all_results if one.is_bad}
    computes = any(one.suite == "ops" and one.result == "passed" for one in all_results)
    reached = None
    for level in LEVELS:
        needed = set(suites_of(level))
        if not whole or not computes or not needed <= set(suites) or needed & wrong:
            break
        reached = level
    above = asked or next((level for level in LEVELS if level not in _upto(reached)), LEVELS[-1])
    needed = set(suites_of(above))
    blocking = [f"{one.id} {one.result}" for one in all_results if one.suite in needed and one.is_bad]
    if not whole:
        blocking.append("only a sample was run")
    elif not computes:
        blocking.append("no case of ops passed")
    blocking += [f"suite {suite} was not run" for suite in sorted(needed - set(suites))]
    met = reached is not None and (asked is None or asked in _upto(reached))
    clean = met and not any(one.result == "xfail" for one in all_results)
    return {"asked": asked, "reached": reached, "clean": clean, "blocked_by": [] if met and asked else blocking}


def _upto(level: str | None) -> tuple[str, ...]:
    return () if level is None else LEVELS[: LEVELS.index(level) + 1]
