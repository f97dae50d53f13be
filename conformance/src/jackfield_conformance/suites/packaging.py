"""Suite `packaging`: one import name, its manifest and its licence in the wheel, and a dependency that can be met.

What the wheel imports of the core besides the contract is told and fails nothing: it works today.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import PackagePath

from jackfield.discovery import GROUP
from jackfield.manifest import FILES
from jackfield_conformance.trials import Check, Refused, Subject, Trial, Verdict, named
from jackfield_conformance.wheel import Installed, installed

__all__ = ["trials"]

CONTRACT = "jackfield.backend"
SHOWN = 3  # imports that are told one by one
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(;.*)?")


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {
        "dependency": dependency,
        "one-import-name": one_import_name,
        "nothing-outside": nothing_outside,
        "manifest": manifest_is_inside,
        "licence": licence_is_inside,
        "entry-point": entry_point_is_its_own,
    }
    yield from named("packaging", seed, checks)
    yield Trial("packaging/imports", partial(contract_alone_is_imported, seed))


def dependency(seed: int, subject: Subject) -> list[str]:
    """It needs jackfield from some version on, and at most below the next major one, under every condition."""
    del seed
    wheel = installed(subject)
    asked = [match for text in wheel.dist.requires or () if (match := _REQUIREMENT.fullmatch(text))]
    bounds = [match[2] for match in asked if match[1].lower() == "jackfield" and not _of_extra(match[3] or "")]
    if not bounds:
        return ["its METADATA does not require jackfield"]
    return [wrong for bound in bounds for wrong in _wrong_bound(bound.strip())]


def _of_extra(condition: str) -> bool:
    """Whether a requirement counts only for who asks for an extra."""
    return re.search(r"\bextra\s*==", condition) is not None and " or " not in condition


def _wrong_bound(bound: str) -> Iterator[str]:
    """What is wrong with one line's versions, such as ">=0.1,<1"."""
    words = [word.strip() for word in bound.split(",") if word.strip()]
    for word in words:
        if word.startswith(("==", "~=")):
            yield f"requires jackfield {word}: no fixed version"
        if word.startswith("<") and not re.fullmatch(r"<\s*[0-9]+(\.0)*", word):
            yield f"requires jackfield {word}: a cap may only be a next major version"
    if not any(word.startswith(">") for word in words):
        yield f"requires jackfield {bound or 'of any version'}: must say from which version on"


def _files(subject: Subject) -> tuple[Installed, list[str]]:
    """Every path of RECORD. Raises: Refused for an editable install, whose record is not the wheel's."""
    wheel = installed(subject)
    if wheel.editable:
        raise Refused("an editable install does not show what the wheel holds", "other")
    return wheel, [str(path) for path in wheel.dist.files or ()]


def _of_package(path: str) -> bool:
    return ".dist-info/" not in path and "__pycache__" not in path and not path.startswith("..")


def one_import_name(seed: int, subject: Subject) -> list[str]:
    """All its files lie below one name, which the entry point names, and in its dist-info."""
    del seed
    _, paths = _files(subject)
    tops = sorted({path.split("/")[0].removesuffix(".py") for path in paths if _of_package(path)})
    return [] if len(tops) == 1 else [f"its files lie below {', '.join(tops) or 'no name'}: must be one"]


def nothing_outside(seed: int, subject: Subject) -> list[str]:
    """It writes to no folder but that of packages; commands aside."""
    del seed
    _, paths = _files(subject)
    outside = [
        path for path in paths if path.startswith(("..", "/")) and "/bin/" not in path and "/Scripts/" not in path
    ]
    return [f"{path} lies outside the folder of packages" for path in outside[:3]]


def manifest_is_inside(seed: int, subject: Subject) -> list[str]:
    """backend.json lies in its dist-info."""
    del seed
    wheel = installed(subject)
    there = any(wheel.dist.read_text(name) for name in FILES)
    return [] if there else ["there is no backend.json in its dist-info"]


def licence_is_inside(seed: int, subject: Subject) -> list[str]:
    """METADATA says the licence, and its text is there."""
    del seed
    wheel = installed(subject)
    fields = wheel.dist.metadata
    said = [*(fields.get_all("License-Expression") or ()), *(fields.get_all("License") or ())]
    files: Sequence[str] = fields.get_all("License-File") or ()
    found = [] if said else ["its METADATA names no licence (License-Expression)"]
    texts = [wheel.dist.read_text(place + name) for name in files for place in ("licenses/", "")]
    return found if any(texts) else [*found, "the text of its licence is not in the wheel (License-File)"]


def entry_point_is_its_own(seed: int, subject: Subject) -> list[str]:
    """The module of each backend's entry point is one of the wheel's. The core loads none that is not; but a wheel may
    have several.
    """
    del seed
    wheel, paths = _files(subject)
    values = [entry.value for entry in wheel.dist.entry_points if entry.group == GROUP]
    tops = {path.split("/")[0].removesuffix(".py") for path in paths if _of_package(path)}
    strange = [value for value in values if value.partition(":")[0].split(".")[0].strip() not in tops]
    return [f"the entry point {value!r} is no module of this wheel" for value in strange]


def contract_alone_is_imported(seed: int, subject: Subject) -> Verdict:
    """A warning for each import of a module of the core but the contract, or of another plugin. What a string names
    while it runs is not seen.
    """
    del seed
    wheel, _ = _files(subject)
    sources = [one for one in wheel.dist.files or () if _of_package(str(one)) and one.suffix == ".py"]
    tops = {one.parts[0].removesuffix(".py") for one in sources}
    found = [text for one in sorted(sources) for text in _strange_imports(one, tops)]
    if not found:
        return Verdict(())
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    why = f"only {CONTRACT} keeps what it promises from one version to the next"
    return Verdict((), note=f"warning: {'; '.join(found[:SHOWN])}{more}: {why}")


def _strange_imports(path: PackagePath, own: set[str]) -> Iterator[str]:
    """What a file imports of jackfield but the contract and these packages, with its line."""
    try:
        tree = ast.parse(path.read_binary())
    except (OSError, SyntaxError, ValueError) as e:
        yield f"{path} can't be read ({type(e).__name__})"
        return
    for node in ast.walk(tree):
        for name in _imported(node):
            top = name.split(".")[0]
            inside = name == CONTRACT or name.startswith(f"{CONTRACT}.") or top in own
            if (top == "jackfield" or top.startswith("jackfield_")) and not inside:
                yield f"{path}:{getattr(node, 'lineno', 0)} imports {name}"


def _imported(node: ast.AST) -> list[str]:
    """Absolute names of modules; what is taken from the core's package itself counts as a module of it."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
        return []
    return [f"{node.module}.{a.name}" for a in node.names] if node.module == "jackfield" else [node.module]
