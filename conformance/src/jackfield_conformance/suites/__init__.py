"""The suites, one module each: a function `trials` from the seed to the trials. A new suite is one more line here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from zlib import crc32

from jackfield.errors import AttributeValueError
from jackfield_conformance.trials import Trial, Trials

from . import (
    block_dtypes,
    buffers,
    claims,
    coverage,
    errors,
    fallback,
    fork,
    free_threading,
    guards,
    lifecycle,
    manifest,
    memory,
    names,
    ops,
    overhead,
    packaging,
    packed,
    registry,
    threads,
    views,
    window,
)

__all__ = ["DEFAULT", "SUITES", "chosen", "sampled", "trials_of"]

SUITES: dict[str, Trials] = {
    "claims": claims.trials,
    "ops": ops.trials,
    "buffers": buffers.trials,
    "lifecycle": lifecycle.trials,
    "errors": errors.trials,
    "views": views.trials,
    "block-dtypes": block_dtypes.trials,
    "packed": packed.trials,
    "memory": memory.trials,
    "threads": threads.trials,
    "guards": guards.trials,
    "packaging": packaging.trials,
    "manifest": manifest.trials,
    "registry": registry.trials,
    "names": names.trials,
    "fork": fork.trials,
    "free-threading": free_threading.trials,
    "fallback": fallback.trials,
    "window": window.trials,
    "overhead": overhead.trials,
    "coverage": coverage.trials,
}

ON_DEMAND = frozenset({"coverage", "overhead"})  # ops that no backend owes anybody; times, which want a quiet machine
DEFAULT = tuple(name for name in SUITES if name not in ON_DEMAND)


def chosen(names: Iterable[str]) -> tuple[str, ...]:
    """Suites by name, in the order they run; none: the default ones; "all": every one.

    Raises: AttributeValueError for a name that is no suite.
    """
    wanted = set(names)
    if unknown := sorted(wanted - SUITES.keys() - {"all"}):
        raise AttributeValueError(f"no suite {unknown[0]!r}; suites are: all, {', '.join(SUITES)}")
    return tuple(SUITES) if "all" in wanted else tuple(n for n in SUITES if n in wanted) if wanted else DEFAULT


def trials_of(suites: Iterable[str], seed: int) -> Iterator[Trial]:
    """All trials of these suites. Ids that come twice get a number, so that each is unique."""
    seen: dict[str, int] = {}
    for suite in suites:
        for trial in SUITES[suite](seed):
            seen[trial.id] = times = seen.get(trial.id, 0) + 1
            yield trial if times == 1 else Trial(f"{trial.id}~{times}", trial.run)


def sampled(ids: Iterable[str], most: int, seed: int) -> list[str]:
    """In their order, at most so many ids of each group: those whose first three parts are equal, such as suite, op
    and dtype. Which ones depends on the seed and their names alone, so few change when cases are added.
    """
    ordered, groups = list(ids), defaultdict(list)
    for name in ordered:
        groups[tuple(name.split("/", 3)[:3])].append((crc32(f"{seed} {name}".encode()), name))
    drawn = {name for group in groups.values() for _, name in sorted(group)[:most]}
    return [name for name in ordered if name in drawn]
