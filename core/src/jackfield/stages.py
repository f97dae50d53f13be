"""How far a backend came, as data: one record each, and the error it becomes when the user named the device."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Literal

from .errors import (
    BackendError,
    ContractError,
    DeviceError,
    Error,
    ForkedError,
    HookError,
    ImportFailed,
    ManifestError,
    ProbeFailed,
    TrustError,
    Unavailable,
)

__all__ = ["CODES", "BackendStatus", "Stage", "State", "Stop", "error_of", "said", "words_of"]

Stage = Literal["manifest", "trust", "import", "hook", "contract", "probe", "open"]
State = Literal["ok", "off", "absent", "refused", "failed", "crashed", "hung", "pending"]

# Every code: where a backend stops with it, and in which state. Programs and `schemas/doctor-1.json` rely on these.
CODES: dict[str, tuple[Stage, State]] = {
    "manifest-missing": ("manifest", "refused"),
    "manifest-invalid": ("manifest", "refused"),
    "schema-unknown": ("manifest", "refused"),
    "unreadable": ("manifest", "failed"),
    "platform": ("manifest", "absent"),
    "duplicate": ("manifest", "off"),
    "denied": ("trust", "off"),
    "not-listed": ("trust", "off"),
    "outside-site": ("trust", "refused"),
    "shadowed": ("trust", "refused"),
    "unpinned": ("trust", "refused"),
    "tampered": ("trust", "refused"),
    "import-error": ("import", "failed"),
    "gil": ("import", "refused"),
    "hook-unknown": ("hook", "refused"),
    "hook-signature": ("hook", "refused"),
    "no-backend": ("hook", "failed"),
    "too-old": ("contract", "refused"),
    "too-new": ("contract", "refused"),
    "disagrees": ("contract", "refused"),
    "crashed": ("probe", "crashed"),
    "hung": ("probe", "hung"),
    "quit": ("probe", "crashed"),
    "no-device": ("open", "absent"),
    "open-error": ("open", "failed"),
}


@dataclass(frozen=True)
class BackendStatus:
    """One installed backend.

    build: digest of the installed wheel. stage: the one reached last.
    state: ok; off: the user said so; absent: no such hardware or driver; refused: the core's decision; failed: an
        exception; crashed, hung: in a child process; pending: nobody has asked yet.
    code: stable word for programs, of CODES; "" where the state is ok or pending. error, hint: one line each.
    traceback: of the plugin, complete.
    where: what was read ("static"), or which process ran the plugin. seconds: spent in the plugin's code.
    """

    name: str
    dist: str
    version: str
    build: str
    stage: Stage
    state: State
    code: str
    error: str | None
    hint: str | None
    traceback: str | None
    where: Literal["static", "child", "here"]
    seconds: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        text = f"{self.name} ({f'{self.dist} {self.version}'.strip()}): {self.state} at {self.stage}"
        text += f" [{self.code}]" if self.code else ""
        text += f": {self.error}" if self.error else ""
        return text + (f"; {self.hint}" if self.hint else "")


@dataclass(frozen=True)
class Stop:
    """Why a backend goes no further than a stage."""

    stage: Stage
    state: State
    code: str
    error: str
    hint: str = ""

    def on(self, status: BackendStatus, cause: BaseException | None = None) -> BackendStatus:
        """The record of a backend that stopped here; cause: what the plugin raised."""
        return replace(
            status,
            stage=self.stage,
            state=self.state,
            code=self.code,
            error=_one_line(self.error),
            hint=_one_line(self.hint) or None,
            traceback=_printable("".join(traceback.format_exception(cause))) if cause is not None else None,
        )


def _one_line(text: str) -> str:
    return _printable(" ".join(text.split()))


def _printable(text: str) -> str:
    """Half characters, which no file or terminal takes, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def said(error: BaseException) -> str:
    """An exception of a plugin's in words, type first."""
    return f"{type(error).__name__}: {words_of(error)}".removesuffix(": ")


def words_of(error: BaseException) -> str:
    """The text of a plugin's exception, whose making may raise as well."""
    try:
        return str(error)
    except Exception as e:  # noqa: BLE001 (it is the plugin's, too)
        return f"its text raised {type(e).__name__}"


_BY_CODE: dict[str, type[BackendError]] = {"platform": Unavailable, "no-device": Unavailable}
_BY_STAGE: dict[Stage, type[BackendError]] = {
    "manifest": ManifestError,
    "trust": TrustError,
    "import": ImportFailed,
    "hook": HookError,
    "contract": ContractError,
    "probe": ProbeFailed,
}


def error_of(status: BackendStatus, cause: BaseException | None = None) -> Error:
    """The exception for a backend that stopped, when its device was named. It carries `.status`.

    cause: what the plugin raised. Its ForkedError stays one: who forks workers must be able to tell it from a fault.
    """
    reason = status.error or status.code
    text = reason if reason.startswith((f"{status.name} ", f"{status.name}:")) else f"{status.name}: {reason}"
    text += f"; {status.hint}" if status.hint else ""
    cls = _BY_CODE.get(status.code) or _BY_STAGE.get(status.stage)
    if cls is not None:
        return cls(text, status)
    error = (ForkedError if isinstance(cause, ForkedError) else DeviceError)(text)
    error.status = status  # type: ignore[attr-defined]  # every error of a backend carries its record
    return error
