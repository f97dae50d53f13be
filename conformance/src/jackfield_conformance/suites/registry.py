"""Suite `registry`: an app finds the device by its name, and only by it."""

from __future__ import annotations

from collections.abc import Iterator

from jackfield import registry
from jackfield.errors import DeviceNameError
from jackfield.loading import term_of
from jackfield_conformance.trials import Check, Refused, Subject, Trial, named

__all__ = ["trials"]


def trials(seed: int) -> Iterator[Trial]:
    checks: dict[str, Check] = {
        "status": status_is_ok,
        "named": named_is_chosen,
        "listed": listed_once,
        "index-beyond": index_beyond_is_told,
        "star": star_reaches_it,
        "hooks": only_known_hooks,
    }
    yield from named("registry", seed, checks)


def status_is_ok(seed: int, subject: Subject) -> list[str]:
    del seed
    found = [s for s in registry.status() if s.name == subject.backend.name and s.code != "duplicate"]
    if len(found) != 1:
        return [f"{len(found)} backends are called {subject.backend.name!r}"]
    return [] if (found[0].stage, found[0].state) == ("open", "ok") else [f"its status is: {found[0]}"]


def named_is_chosen(seed: int, subject: Subject) -> list[str]:
    del seed
    name = subject.device.name
    chosen = [opened.name for opened in registry.select(name).devices]
    return [] if chosen == [name] else [f"the name {name!r} chooses {', '.join(chosen)}"]


def listed_once(seed: int, subject: Subject) -> list[str]:
    """In `jf.devices()` as often as it is there."""
    del seed
    count = [info.name for info in registry.devices()].count(subject.device.name)
    return [] if count == 1 else [f"{subject.device.name} is listed {count} times"]


def index_beyond_is_told(seed: int, subject: Subject) -> list[str]:
    """A card that is not there is an error that lists those that are."""
    del seed
    term = term_of(subject.device.name)
    if term.variant:
        raise Refused("a simulated device has no index", "other")
    try:
        registry.select(f"{term.kind}:987654321")
    except DeviceNameError as e:
        return [] if subject.device.name.split(":")[0] in str(e) else [f"the error does not list it: {e}"]
    return [f"{term.kind}:987654321 is chosen"]


def star_reaches_it(seed: int, subject: Subject) -> list[str]:
    """`kind:*` is every device of the kind; no simulated one."""
    del seed
    term = term_of(subject.device.name)
    try:
        names = [opened.name for opened in registry.select(f"{term.kind}:*").devices]
    except DeviceNameError:
        names = []
    simulated = bool(term.variant) or subject.backend.name == "sim"
    if simulated is (subject.device.name in names):
        return [f"{term.kind}:* is {', '.join(names) or 'nothing'}"]
    return []


def only_known_hooks(seed: int, subject: Subject) -> list[str]:
    """What was odd when it was loaded, such as text on stdout or a hook of a later contract."""
    del seed
    notes = [n for s in registry.status() if s.name == subject.backend.name for n in s.notes]
    return [note for note in notes if note.startswith(("printed", "hook "))]
