"""What became of each case, and the list of failures a vendor expects."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from jackfield.errors import Error

__all__ = ["BAD", "KINDS", "Expected", "Kind", "Result", "XfailError", "judge", "read_expected"]

Kind = Literal["passed", "failed", "unsupported", "xfail", "xpass", "crashed", "hung"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BAD: frozenset[Kind] = frozenset({"failed", "xpass", "crashed", "hung"})  # these make a run fail


class XfailError(Error, ValueError):
    """The file of expected failures is not what it must be."""


@dataclass(frozen=True)
class Result:
    """One case. code: of an unsupported one. reason: in words, also what a passed one has to tell.

    issue: where an expected failure is tracked. seconds: how long it took. max_ulp: the worst element, where floats
    were compared.
    """

    id: str
    result: Kind
    reason: str = ""
    code: str = ""
    issue: str = ""
    max_ulp: float | None = None
    seconds: float = 0.0

    @property
    def suite(self) -> str:
        return self.id.partition("/")[0]

    @property
    def is_bad(self) -> bool:
        return self.result in BAD

    def to_dict(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": self.id, "result": self.result}
        fields |= {k: v for k, v in (("code", self.code), ("reason", self.reason), ("issue", self.issue)) if v}
        return fields | {"max_ulp": self.max_ulp, "seconds": round(self.seconds, 4)}


@dataclass(frozen=True)
class Expected:
    """Cases a vendor knows to fail. case: an id, or a pattern with * and ?."""

    case: str
    reason: str
    issue: str


def read_expected(path: Path) -> tuple[Expected, ...]:
    """The [[xfail]] tables of a TOML file: case, reason, issue, all texts. Raises: XfailError that names the table."""
    try:
        rows = tomllib.loads(path.read_text("utf-8")).get("xfail", [])
    except (OSError, ValueError) as e:
        raise XfailError(f"{path}: {e}") from e
    except RecursionError as e:
        raise XfailError(f"{path}: it is nested too deeply for a list of expected failures") from e
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise XfailError(f"{path}: xfail must be an array of tables: write [[xfail]]")
    return tuple(_expected(row, f"{path}: xfail {number}") for number, row in enumerate(rows, 1))


def _expected(row: dict[str, Any], where: str) -> Expected:
    if unknown := sorted(row.keys() - {"case", "reason", "issue"}):
        raise XfailError(f"{where}: unknown key {unknown[0]!r}; it has case, reason and issue")
    for name in ("case", "reason", "issue"):
        if not (isinstance(row.get(name), str) and row[name].strip()):
            raise XfailError(
                f"{where}: {name} is missing; an expected failure needs a case, a reason and an issue link"
            )
    if not row["issue"].startswith(("http://", "https://")):
        raise XfailError(f"{where}: issue is {row['issue']!r}, must be a link")
    return Expected(row["case"], row["reason"], row["issue"])


def judge(result: Result, expected: Sequence[Expected]) -> Result:
    """The result in the light of what was expected: a failure that was is xfail, a success that was not is xpass."""
    known = next((e for e in expected if e.case == result.id or fnmatchcase(result.id, e.case)), None)
    if known is None:
        return result
    if result.result in ("failed", "crashed", "hung"):
        return replace(result, result="xfail", reason=f"{known.reason} ({result.reason})", issue=known.issue)
    if result.result == "passed":
        text = f"passed, but was expected to fail: {known.reason}; take it off the list"
        return replace(result, result="xpass", reason=text, issue=known.issue)
    return result
