"""The report of a run as a document, and the comparison of two of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jackfield.errors import Error

from .levels import judged
from .results import BAD, KINDS, Result

__all__ = ["SCHEMA", "ReportError", "counts", "digest", "document", "load", "regressions", "text"]

SCHEMA = "jackfield.conformance/1"


class ReportError(Error, ValueError):
    """A file that is no report, or was changed after it was written."""


def counts(results: Iterable[Result], suites: Sequence[str]) -> dict[str, dict[str, int]]:
    """Results by suite and kind."""
    found: dict[str, dict[str, int]] = {suite: dict.fromkeys(KINDS, 0) for suite in suites}
    for one in results:
        found[one.suite][one.result] += 1
    return found


def document(
    about: Mapping[str, Any],
    suites: Sequence[str],
    seed: int,
    results: Sequence[Result],
    sample: int | None = None,
    level: str | None = None,
) -> dict[str, Any]:
    """The document of one run. level: the one that was asked for. sample: of the request; null: all cases."""
    fields = {
        "schema": SCHEMA,
        **about,
        "seed": seed,
        "sample": sample,
        "level": judged(level, suites, results, whole=sample is None),
        "suites": counts(results, suites),
        "cases": [one.to_dict() for one in results],
    }
    return {**fields, "digest": digest(fields)}


def digest(fields: Mapping[str, Any]) -> str:
    """Of the document without its digest; spaces and the order of keys don't count."""
    rest = {k: v for k, v in fields.items() if k != "digest"}
    plain = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(plain.encode()).hexdigest()


def text(fields: Mapping[str, Any]) -> str:
    """JSON with one case a line, so that two reports can be read side by side."""
    cases = ",\n".join(f"  {json.dumps(one)}" for one in fields["cases"])
    head = json.dumps({k: v for k, v in fields.items() if k not in ("cases", "digest")}, indent=1)[:-2]
    return f'{head},\n "cases": [\n{cases}\n ],\n "digest": {json.dumps(fields["digest"])}\n}}\n'


def load(path: Path) -> dict[str, Any]:
    """A report from its file. Raises: ReportError, also where digest or counts don't agree with the cases."""
    try:
        return _checked(path)
    except RecursionError as e:
        raise ReportError(f"{path}: it is nested too deeply for a report") from e


def _checked(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as e:
        raise ReportError(f"{path}: {e}") from e
    if not isinstance(fields, dict) or fields.get("schema") != SCHEMA:
        raise ReportError(
            f"{path}: schema is {fields.get('schema') if isinstance(fields, dict) else None!r}, must be {SCHEMA!r}"
        )
    if fields.get("digest") != digest(fields):
        raise ReportError(f"{path}: the digest does not fit: it was changed after it was written")
    if (wrong := _miscounted(fields)) is not None:
        raise ReportError(f"{path}: {wrong}; the counts must be those of its cases")
    return fields


def _miscounted(fields: Mapping[str, Any]) -> str | None:
    """The first suite whose counts are not those of its cases, or what else is no list of cases."""
    suites, cases = fields.get("suites"), fields.get("cases")
    if not isinstance(suites, dict) or not isinstance(cases, list):
        return "it has no suites, or no cases"
    found: dict[str, dict[str, int]] = {suite: dict.fromkeys(KINDS, 0) for suite in suites}
    seen: set[object] = set()
    for case in cases:
        name, kind = (case.get("id"), case.get("result")) if isinstance(case, dict) else (None, None)
        suite = name.partition("/")[0] if isinstance(name, str) else None
        if suite not in found or kind not in KINDS:
            return f"the case {name!r} is {kind!r}, and of no suite that it counts"
        if name in seen:
            return f"the case {name!r} is listed twice"
        seen.add(name)
        found[suite][kind] += 1
    wrong = next((suite for suite, row in suites.items() if row != found[suite]), None)
    return None if wrong is None else f"{wrong} counts {suites[wrong]}, its cases are {found[wrong]}"


def regressions(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What was right, or honestly refused, and is no more; one line each.

    Cases that were not to be run anew don't count: those of other suites, and what a sample left out.
    Raises: ReportError where no case of the old report was to be run for the new one.
    """
    now = {case["id"]: case for case in new["cases"]}
    lines, asked = [], False
    whole = new.get("sample") is None
    for case in old["cases"]:
        was, name = case["result"], case["id"]
        if name.partition("/")[0] not in new["suites"]:
            continue
        after = now.get(name)
        if after is None and not whole:
            continue
        asked = True
        became = "missing" if after is None else after["result"]
        if _is_worse(was, became):
            reason = f": {after['reason']}" if after is not None and after.get("reason") else ""
            lines.append(f"{name}: {was} -> {became}{reason}")
    if not asked:
        suites = " and ".join(", ".join(report["suites"]) or "none" for report in (old, new))
        raise ReportError(f"the reports have no case in common; suites of the one and the other: {suites}")
    return lines


def _is_worse(was: str, became: str) -> bool:
    if was == "passed":
        return became not in ("passed", "xpass")
    return was in ("unsupported", "xfail") and became in BAD - {"xpass"}
