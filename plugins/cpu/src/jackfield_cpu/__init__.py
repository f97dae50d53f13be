"""The CPU backend of jackfield: quantised kernels, compiled for four instruction-set levels, chosen at load time."""

from __future__ import annotations

from jackfield.backend import Backend, hookimpl

from .backend import CpuBackend

__all__ = ["jackfield_backend"]


@hookimpl
def jackfield_backend() -> Backend:
    return CpuBackend()
