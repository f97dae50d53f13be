"""A report of the kit without its thousands of cases: what is bad, and how many cases of which op were refused.

Usage: python .ci/summary.py REPORT...; prints each one's summary.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = "jackfield.conformance-summary/2"
KEPT = ("core", "contract", "spoken", "device", "seed", "sample", "level", "suites", "digest")
NO_KERNEL = "no kernel for "


def summary(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`unsupported`: by suite and op (or case of a suite that has none), code to number of cases. `no_kernel`: ops that
    the device has not at all, which are left out there, and their cases by suite. `reasons`: by code the commonest one.
    """
    refused = [case for case in fields["cases"] if case["result"] == "unsupported"]
    lacking = {case["reason"].removeprefix(NO_KERNEL) for case in refused if case["reason"].startswith(NO_KERNEL)}
    rows: dict[str, Counter[str]] = {}
    without: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for case in refused:
        suite, of = case["id"].split("/")[:2]
        if of in lacking or case["reason"].removeprefix(NO_KERNEL) in lacking:
            without[suite] += 1
            continue
        rows.setdefault(f"{suite}/{of}", Counter())[case["code"]] += 1
        reasons.setdefault(case["code"], Counter())[case["reason"]] += 1
    return {
        "schema": SCHEMA,
        **{key: fields[key] for key in KEPT},
        "backend": {key: value for key, value in fields["backend"].items() if key != "build"},
        "bad": [case for case in fields["cases"] if case["result"] not in ("passed", "unsupported")],
        "no_kernel": {"ops": sorted(lacking), "cases": dict(sorted(without.items()))},
        "reasons": {code: commonest(found) for code, found in sorted(reasons.items())},
        "unsupported": {at: dict(sorted(row.items())) for at, row in sorted(rows.items())},
    }


def commonest(reasons: Counter[str]) -> dict[str, Any]:
    """Of equally many cases the first by alphabet, so that a run changes no line that it need not."""
    reason, cases = min(reasons.items(), key=lambda row: (-row[1], row[0]))
    return {"reason": reason[:200], "cases": cases, "other_reasons": len(reasons) - 1}


def text(fields: Mapping[str, Any]) -> str:
    """As JSON, with a line for each suite, each bad case and each op, so that changes show as lines."""
    lines = [f" {json.dumps(key)}: {_laid_out(value)}" for key, value in fields.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _laid_out(value: object) -> str:
    """Members of members lie on one line."""
    if isinstance(value, dict) and any(isinstance(one, dict) for one in value.values()):
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items())
        return f"{{\n{rows}\n }}"
    if isinstance(value, list) and value:
        rows = ",\n".join(f"  {json.dumps(one)}" for one in value)
        return f"[\n{rows}\n ]"
    return json.dumps(value)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(text(summary(json.loads(Path(name).read_text("utf-8")))))
