"""What a plugin's objects say of themselves: read where the plugin is isolated, and what is wrong with it as a stop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .backend import Device, Kernel
from .errors import DeviceNameError, Error, Unavailable
from .names import Term, parse
from .numbering import numbered
from .opened import FIELDS, OpenDevice
from .stages import Stop, said, words_of
from .variables import setting

__all__ = ["Stopped", "disagrees", "fields_of", "is_hidden", "number", "open_error", "order_of", "table_of", "term_of"]


class Stopped(Exception):
    """A stage that failed."""

    def __init__(self, stop: Stop, cause: BaseException | None = None) -> None:
        super().__init__(stop.error)
        self.stop, self.cause = stop, cause


def disagrees(text: str) -> Stopped:
    return Stopped(Stop("contract", "refused", "disagrees", text, "a mistake of the plugin: report it to its vendor"))


def open_error(e: BaseException) -> Stop:
    if isinstance(e, Unavailable):
        return Stop("open", "absent", "no-device", words_of(e))
    text = words_of(e) if isinstance(e, Error) else said(e)
    return Stop("open", "failed", "open-error", text)


def term_of(device: str) -> Term:
    """A device's name as a term with its index filled in. Raises DeviceNameError for what is no name of one device."""
    ((term, *more), *sets) = parse(device).sets
    if more or sets or term.every or term.is_auto:
        raise DeviceNameError(f"{device!r} does not name one device")
    return term if term.variant or term.index is not None else replace(term, index=0)


def number(devices: Sequence[OpenDevice]) -> None:
    """Each device gets the name that its card's place gives it; the driver's order has no say."""
    terms = [term_of(one.name) for one in devices]
    for one, old, new in zip(devices, terms, numbered(terms, [d.card or d.id for d in devices]), strict=True):
        if new != old:
            try:
                one.device.name = str(new)
            except AttributeError:
                text = f"{one.name} is {new} by where its card is plugged, and its name can't be set"
                raise disagrees(text) from None
            one.known["name"] = str(new)


def fields_of(device: Device) -> dict[str, Any]:
    """Each of FIELDS. Raises: Stopped for one that is missing, raises, or is of another type."""
    found: dict[str, Any] = {}
    for given, cls in FIELDS:
        try:
            value = getattr(device, given)
        except KeyboardInterrupt:
            raise
        except Unavailable as e:
            raise Stopped(open_error(e), e) from e
        except AttributeError as e:
            raise Stopped(disagrees(f"a device has no {given}: {words_of(e)}").stop, e) from e
        except BaseException as e:  # as in _call
            raise Stopped(Stop("open", "failed", "open-error", f"a device's {given} raised {said(e)}"), e) from e
        if not isinstance(value, cls):
            raise disagrees(f"a device's {given} is a {type(value).__name__}, must be a {cls.__name__}")
        found[given] = value
    return found


def table_of(kernels: object) -> dict[str, Kernel]:
    """A copy, which no longer runs anything of the plugin's."""
    if isinstance(kernels, Mapping):
        copied = dict(kernels)
        if all(isinstance(op, str) and isinstance(kernel, Kernel) for op, kernel in copied.items()):
            return copied
    raise disagrees("kernels() must give a mapping of op names to Kernel")


def is_hidden(device: OpenDevice) -> bool:
    """Whether JACKFIELD_HIDE, a list of ids and addresses or of their beginnings, names its card."""
    hidden = [word.strip().lower() for word in (setting("JACKFIELD_HIDE") or "").split(",") if word.strip()]
    return any(text.lower().startswith(word) for text in (device.id, device.card) if text for word in hidden)


def order_of(device: str) -> tuple[str, str, int, int]:
    term = term_of(device)
    return term.kind, term.variant, term.index or 0, term.part or 0
