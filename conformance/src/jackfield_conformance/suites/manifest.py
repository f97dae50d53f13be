"""Suite `manifest`: what backend.json says is what the code is."""

from __future__ import annotations

from collections.abc import Iterator

from jackfield.loading import term_of
from jackfield.manifest import Manifest, this_platform
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named
from jackfield_conformance.wheel import installed

__all__ = ["trials"]


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {
        "name": name_agrees,
        "contract": contract_agrees,
        "kinds": kinds_agree,
        "platform": platform_is_listed,
        "claims": claims_are_there,
        "known-keys": keys_are_known,
    }
    yield from named("manifest", seed, checks)


def _manifest(subject: Subject) -> Manifest:
    found = installed(subject).manifest
    if found is None:
        raise Refused("there is no manifest, which `packaging` says", "other")
    return found


def name_agrees(seed: int, subject: Subject) -> list[str]:
    del seed
    said = _manifest(subject).name
    return [] if said == subject.backend.name else [f"name is {said!r}, the object's {subject.backend.name!r}"]


def contract_agrees(seed: int, subject: Subject) -> list[str]:
    del seed
    said = _manifest(subject).contract[1]
    return [] if said == subject.backend.api else [f"contract.max is {said}, the object's api {subject.backend.api}"]


def kinds_agree(seed: int, subject: Subject) -> list[str]:
    """The device's kind is listed, with its class or as simulated."""
    del seed
    term = term_of(subject.device.name)
    kinds = _manifest(subject).kinds
    if any(kind.kind == term.kind and kind.variant == term.variant for kind in kinds):
        return []
    return [f"{subject.device.name} is of no kind that is listed: {', '.join(map(str, kinds))}"]


def platform_is_listed(seed: int, subject: Subject) -> list[str]:
    del seed
    listed = _manifest(subject).platforms
    here = this_platform()
    return [] if not listed or here in listed else [f"platforms are {', '.join(listed)}, and it runs on {here}"]


def claims_are_there(seed: int, subject: Subject) -> list[str]:
    """The file it names lies beside it; whether it is true is asked by the suite `claims`."""
    del seed
    wheel = installed(subject)
    name = _manifest(subject).claims
    if not name:
        raise Refused("no file of claims is named", "other")
    there = any(wheel.dist.read_text(place + name) for place in ("", "extra_metadata/"))
    return [] if there else [f"claims is {name!r}, which is not beside backend.json"]


def keys_are_known(seed: int, subject: Subject) -> list[str]:
    """A key that nobody reads is most often a mistyped one; one's own start with x-."""
    del seed
    return list(_manifest(subject).notes)
