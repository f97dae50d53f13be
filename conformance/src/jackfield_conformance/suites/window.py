"""Suite `window`: the backend knows the contract it was written for, and no later one by hearsay."""

from __future__ import annotations

from collections.abc import Iterator

from jackfield.backend import API
from jackfield.manifest import window_text
from jackfield_conformance.script import ran
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named

__all__ = ["trials"]

# The core of this child speaks one minor more; a plugin that copies its version from the core then claims to, too.
_LATER = """
import jackfield.backend as contract
from jackfield import discovery, loading, registry
contract.API = (contract.API[0], contract.API[1] + 1)
discovery.CORE_WINDOW = loading.CORE_WINDOW = (discovery.CORE_WINDOW[0], contract.API)
try:
    backend = registry.select(device).devices[0].backend
    answer(*backend.api)
except Exception as e:
    answer(type(e).__name__, str(e).splitlines()[0])
"""


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {"spoken": spoken_is_known, "literal": version_is_literal}
    yield from named("window", seed, checks)


def spoken_is_known(seed: int, subject: Subject) -> list[str]:
    """Its version is no later than the core's, and what both speak is set on it."""
    del seed
    api, both = subject.backend.api, getattr(subject.backend, "spoken", None)
    if api > API and both != API:
        return [f"it speaks {window_text((api, api))}, the core {window_text((API, API))}, and spoken is {both}"]
    return [] if both is not None and both <= min(api, API) else [f"spoken is {both}, api {api}"]


def version_is_literal(seed: int, subject: Subject) -> list[str]:
    """Beside a core of a later minor it still says the version it was written for."""
    del seed
    if subject.backend.name in ("reference", "sim"):
        raise Refused("it is the core's own, and speaks what the core does", "other")
    code, line, words = ran(_LATER, subject)
    if code:
        return [f"beside a core of a later minor the process ends with code {code}: {words}"]
    if line == f"{subject.backend.api[0]} {subject.backend.api[1]}":
        return []
    return [f"beside a core of a later minor it says: {line}; the version must be a literal, such as (0, 1)"]
