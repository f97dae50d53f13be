"""Freezes the contract as it is: its names and signatures in abc.json, a wheel's digest in wheels.json.

    python tests/frozen/freeze.py abc      the present contract, under its number
    python tests/frozen/freeze.py wheels   RECORD and the digest of wheels that have none yet

What is frozen stays: a change that plugins could notice is refused and needs a new minor version of the contract first
(`API` in core/src/jackfield/backend.py).
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

from contract_record import changes, described

from jackfield.backend import API

HERE = Path(__file__).resolve().parent
CONTRACT, WHEELS = HERE / "abc.json", HERE / "wheels.json"
PRESENT = f"{API[0]}.{API[1]}"


def recorded() -> dict[str, Any]:
    """By minor version: the record of its contract."""
    return json.loads(CONTRACT.read_text("utf-8"))


def frozen_wheels() -> dict[str, dict[str, str]]:
    """By minor version: name of the backend, of its wheel, its sha256, the level that it reaches."""
    return json.loads(WHEELS.read_text("utf-8"))


def tree(minor: str) -> list[Path]:
    """The files of a wheel, in the order of its archive: dist-info last, RECORD at the end."""
    files = (p for p in (HERE / minor).rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return sorted(files, key=lambda p: (".dist-info" in str(p), p.name == "RECORD", p.relative_to(HERE).as_posix()))


def wheel(minor: str, folder: Path) -> Path:
    """Zip the tree of a minor version: the same bytes at all times and on every machine."""
    path = folder / frozen_wheels()[minor]["wheel"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for file in tree(minor):
            entry = zipfile.ZipInfo(file.relative_to(HERE / minor).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # as on Unix, wherever it is made
            archive.writestr(entry, file.read_bytes())
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def record(minor: str) -> str:
    """The text of RECORD for a tree."""
    (info,) = (HERE / minor).glob("*.dist-info")
    lines = []
    for file in tree(minor):
        if file.name != "RECORD":
            data = file.read_bytes()
            sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{file.relative_to(HERE / minor).as_posix()},sha256={sha},{len(data)}")
    return "\n".join([*lines, f"{info.name}/RECORD,,", ""])


def freeze_contract() -> None:
    known = recorded() if CONTRACT.exists() else {}
    present = described()
    if PRESENT in known and (wrong := changes(known[PRESENT], present).forbidden):
        words = "\n  ".join(wrong)
        sys.exit(f"contract {PRESENT} is frozen, and this breaks it:\n  {words}\nraise API to a new version first")
    known[PRESENT] = present
    CONTRACT.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


def freeze_wheels() -> None:
    known = frozen_wheels()
    for minor, fields in known.items():
        if "sha256" in fields:
            continue
        (info,) = (HERE / minor).glob("*.dist-info")
        (info / "RECORD").write_text(record(minor), "utf-8")
        made = wheel(minor, HERE)
        fields["sha256"] = digest(made)
        made.unlink()
    WHEELS.write_text(json.dumps(known, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    tasks = {"abc": freeze_contract, "wheels": freeze_wheels}
    if sys.argv[1:] not in ([name] for name in tasks):
        sys.exit(f"usage: freeze.py {'|'.join(tasks)}")
    tasks[sys.argv[1]]()
