"""Every exception jackfield raises, as one tree.

* Error
  - GraphError               the graph is wrong; raised on the line that built the node
    - ShapeError             also a ValueError
    - DTypeError             also a TypeError
    - AttributeValueError    also a ValueError
  - GGUFError                a file is not what the format says; also a ValueError
  - DeviceNameError          a device string that names nothing; also a ValueError
  - BackendError             a plugin that cannot be used; carries `.status` where there is one
    - Unavailable            no such hardware, driver or library here
    - ManifestError          backend.json is missing or wrong
    - TrustError             the user, or the place it lies in, forbids to run it
    - ImportFailed           its module raised
    - HookError              its hooks are not those of the contract
    - ContractError          it speaks another version, or contradicts itself
    - ProbeFailed            it died or hung when it was tried in a child process
  - PlanError                a plan can't be made, or can't be called like this
    - Busy                   another call of the same Session is under way
    - PlacementError         no device takes a step, with each device's reason
  - DeviceError              a device failed, or broke a law of the contract
    - OutOfMemory            also a MemoryError
    - BadIndex               an index found in data lies outside; also an IndexError
    - KernelError            a kernel failed, or JACKFIELD_CHECK found NaN or a promise that is broken
    - DeviceLost             the device is gone, with all its buffers
    - StateLost              a state lived on a lost device
    - ForkedError            a device of the parent process was used in a forked child
"""

from __future__ import annotations

__all__ = [
    "AttributeValueError",
    "BackendError",
    "BadIndex",
    "Busy",
    "ContractError",
    "DTypeError",
    "DeviceError",
    "DeviceLost",
    "DeviceNameError",
    "Error",
    "ForkedError",
    "GGUFError",
    "GraphError",
    "HookError",
    "ImportFailed",
    "KernelError",
    "ManifestError",
    "OutOfMemory",
    "PlacementError",
    "PlanError",
    "ProbeFailed",
    "ShapeError",
    "StateLost",
    "TrustError",
    "Unavailable",
]


class Error(Exception):
    """Root of the tree."""


class GraphError(Error):
    """The graph is wrong."""


class ShapeError(GraphError, ValueError):
    """Extents that do not fit."""


class DTypeError(GraphError, TypeError):
    """A dtype the op does not take."""


class AttributeValueError(GraphError, ValueError):
    """An attribute that is unknown or out of its range."""


class GGUFError(Error, ValueError):
    """A malformed GGUF file; the text names the field and the offset in bytes."""


class DeviceNameError(Error, ValueError):
    """A device string that names nothing; the message quotes it and marks the column.

    text: the whole string, "" where what was given is none.
    """

    text: str = ""


class BackendError(Error):
    """A plugin that cannot be used.

    status: the registry's record of how far it came (a BackendStatus), or None.
    """

    def __init__(self, message: str, status: object | None = None) -> None:
        super().__init__(message)
        self.status = status


class Unavailable(BackendError):
    """No such hardware, driver or library on this machine."""


class ManifestError(BackendError):
    """backend.json is missing or wrong."""


class TrustError(BackendError):
    """The user's lists, or the place the wheel lies in, forbid to run it."""


class ImportFailed(BackendError):
    """The plugin's module raised."""


class HookError(BackendError):
    """The plugin's hooks are not those of the contract."""


class ContractError(BackendError):
    """The plugin speaks another version of the contract, or contradicts itself."""


class ProbeFailed(BackendError):
    """The plugin died or hung when it was tried in a child process."""


class PlanError(Error):
    """A plan can't be made, or can't be called like this."""


class Busy(PlanError):
    """Another call of the same Session is under way."""


class PlacementError(PlanError):
    """No device takes a step; the text lists each device's reason."""


class DeviceError(Error):
    """A device failed, or broke a law of the contract."""


class OutOfMemory(DeviceError, MemoryError):
    """An allocation that the device cannot serve."""


class BadIndex(DeviceError, IndexError):
    """An index found in data lies outside its axis; nothing outside the operands was touched."""


class KernelError(DeviceError):
    """A kernel failed, or JACKFIELD_CHECK found NaN in a result or a promise of the caller's that is broken."""


class DeviceLost(DeviceError):
    """The device is gone, with all its buffers."""


class StateLost(DeviceError):
    """A state lived on a lost device; it is never continued with zeros."""


class ForkedError(DeviceError):
    """A device opened by the parent process was used in a forked child."""
