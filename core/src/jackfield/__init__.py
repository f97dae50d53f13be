"""A tensor runtime for quantised models: build a graph, choose devices, compile a plan, call it.

Importing jackfield reads no plugin; a backend is looked for when a device is first asked for.
"""

from __future__ import annotations

from . import errors, gguf, ops
from .discovery import CORE_VERSION as __version__  # noqa: N811 - the name Python users look for
from .dtypes import (
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    q4_0,
    q4_1,
    q4_K,
    q5_0,
    q5_1,
    q5_K,
    q6_K,
    q8_0,
    u8,
)
from .errors import Error
from .graph import Tensor, constant, input, state  # noqa: A004 - pinned names
from .plan import Plan
from .registry import devices, refresh, register_backend, sim, status
from .saved import load_graph, save
from .session import Session, compile  # noqa: A004 - pinned names
from .spec import Spec

__all__ = [
    "DType",
    "Error",
    "Plan",
    "Session",
    "Spec",
    "Tensor",
    "__version__",
    "bf16",
    "bool_",
    "compile",
    "constant",
    "devices",
    "errors",
    "f16",
    "f32",
    "f64",
    "gguf",
    "i8",
    "i16",
    "i32",
    "i64",
    "input",
    "load_graph",
    "ops",
    "q4_0",
    "q4_1",
    "q4_K",
    "q5_0",
    "q5_1",
    "q5_K",
    "q6_K",
    "q8_0",
    "refresh",
    "register_backend",
    "save",
    "sim",
    "state",
    "status",
    "u8",
]
