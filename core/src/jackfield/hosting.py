"""The host's side of a call: the caller's arrays as plain bytes, and fresh arrays for results. Nothing is ever cast."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import PlanError
from .spec import Spec

__all__ = ["HostType", "array_of", "bytes_of", "fresh", "host_type"]

_DLPACK_HOST = 1  # device type of plain host memory in the DLPack standard


class HostType:
    """What numpy calls a Spec. Block dtypes travel as their bytes: u8 (..., bytes of a row).

    cast: memoryview can show the array as bytes itself; it does not know bf16, rank 0, and empty arrays.
    """

    __slots__ = ("cast", "dtype", "nbytes", "shape", "spec")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        if spec.dtype.numpy is None:
            self.dtype: np.dtype[Any] = np.dtype(np.uint8)
            self.shape = (*spec.shape[:-1], spec.row_nbytes)
        else:
            self.dtype = np.dtype(spec.dtype.numpy)
            self.shape = spec.shape
        self.nbytes = spec.nbytes
        self.cast = self.dtype.kind in "fiub" and bool(self.shape) and self.nbytes > 0

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def host_type(spec: Spec) -> HostType:
    return HostType(spec)


def array_of(value: object, wanted: HostType, name: str, what: str = "input") -> np.ndarray[Any, Any]:
    """The caller's object as a C-contiguous array of exactly the wanted dtype and shape.

    value: a numpy array, or what hands over host memory by DLPack or the buffer protocol (without a copy).
    what: an input or a state. Raises: PlanError that names it, with what it is and what it must be.
    """
    array = value if isinstance(value, np.ndarray) else _shared(value, f"{what} {name!r}")
    if array.dtype != wanted.dtype or array.shape != wanted.shape:
        raise PlanError(f"{what} {name!r} is {array.dtype}{list(array.shape)}, must be {wanted}; nothing is cast here")
    return np.ascontiguousarray(array).reshape(wanted.shape)


def _shared(value: object, name: str) -> np.ndarray[Any, Any]:
    if hasattr(type(value), "__dlpack_device__"):
        try:
            kind, _ = value.__dlpack_device__()  # type: ignore[attr-defined]
            array = np.from_dlpack(value) if kind == _DLPACK_HOST else None  # type: ignore[arg-type]
        except Exception as e:  # whatever a foreign object raises
            raise PlanError(f"{name}: its memory can't be shared: {type(e).__name__}: {e}") from e
        if array is None:
            raise PlanError(f"{name} lies on another device (DLPack type {kind}); hand over host memory")
        return array
    try:
        return np.asarray(memoryview(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError) as e:
        raise PlanError(
            f"{name} is a {type(value).__name__}; hand over a numpy array, or an object with DLPack or a buffer"
        ) from e


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """All bytes of a C-contiguous array, flat."""
    return array.reshape(-1).view(np.uint8).data


def fresh(wanted: HostType) -> tuple[np.ndarray[Any, Any], memoryview]:
    """A new array, and its bytes to be filled."""
    array = np.empty(wanted.shape, wanted.dtype)
    return array, bytes_of(array)
