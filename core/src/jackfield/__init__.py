"""A tensor runtime for quantised models: build a graph, choose devices, compile a plan, call it.

Importing jackfield reads no plugin; a backend is looked for when a device is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors, ops
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
    iq1_m,
    iq1_s,
    iq2_s,
    iq2_xs,
    iq2_xxs,
    iq3_s,
    iq3_xxs,
    iq4_nl,
    iq4_xs,
    mxfp4,
    nvfp4,
    q1_0,
    q2_0,
    q2_K,
    q3_K,
    q4_0,
    q4_1,
    q4_K,
    q5_0,
    q5_1,
    q5_K,
    q6_K,
    q8_0,
    q8_1,
    q8_K,
    tq1_0,
    tq2_0,
    u8,
)
from .errors import Error
from .graph import Tensor, constant, input, state  # noqa: A004 - pinned names
from .spec import Spec

if TYPE_CHECKING:
    from . import gguf
    from .discovery import CORE_VERSION as __version__  # noqa: N811 - the name Python users look for
    from .plan import Plan
    from .registry import devices, refresh, register_backend, sim, status
    from .saved import load_graph, save
    from .session import Session, compile  # noqa: A004 - pinned names

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
    "iq1_m",
    "iq1_s",
    "iq2_s",
    "iq2_xs",
    "iq2_xxs",
    "iq3_s",
    "iq3_xxs",
    "iq4_nl",
    "iq4_xs",
    "load_graph",
    "mxfp4",
    "nvfp4",
    "ops",
    "q1_0",
    "q2_0",
    "q2_K",
    "q3_K",
    "q4_0",
    "q4_1",
    "q4_K",
    "q5_0",
    "q5_1",
    "q5_K",
    "q6_K",
    "q8_0",
    "q8_1",
    "q8_K",
    "refresh",
    "register_backend",
    "save",
    "sim",
    "state",
    "status",
    "tq1_0",
    "tq2_0",
    "u8",
]

# What is found by looking at devices or files is imported when it is first named: more than half of the import's time.
_LATE = {
    "Plan": ("plan", "Plan"),
    "Session": ("session", "Session"),
    "__version__": ("discovery", "CORE_VERSION"),
    "compile": ("session", "compile"),
    "devices": ("registry", "devices"),
    "gguf": ("gguf", ""),
    "load_graph": ("saved", "load_graph"),
    "refresh": ("registry", "refresh"),
    "register_backend": ("registry", "register_backend"),
    "save": ("saved", "save"),
    "sim": ("registry", "sim"),
    "status": ("registry", "status"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'jackfield' has no attribute {name!r}")
    place, attribute = _LATE[name]
    module = import_module(f"jackfield.{place}")
    value = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
