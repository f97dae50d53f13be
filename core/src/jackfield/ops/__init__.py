"""The ops: each one is its declaration and, called on tensors, its builder."""

from __future__ import annotations

from jackfield.ops.attention import attention
from jackfield.ops.copies import cast, concatenate, contiguous, tile, write
from jackfield.ops.elementwise import (
    add,
    clip,
    divide,
    gelu,
    gelu_erf,
    multiply,
    relu,
    scale,
    sigmoid,
    silu,
    square,
    subtract,
    tanh,
)
from jackfield.ops.gated import geglu, geglu_erf, swiglu
from jackfield.ops.norms import l2_norm, norm, rms_norm, softmax
from jackfield.ops.position import rope
from jackfield.ops.products import linear, linear_experts, matmul
from jackfield.ops.reduce import argmax, argsort, mean, sum, top_k
from jackfield.ops.rows import put_rows, take_rows
from jackfield.ops.views import broadcast_to, reshape, slice, transpose

__all__ = [
    "add",
    "argmax",
    "argsort",
    "attention",
    "broadcast_to",
    "cast",
    "clip",
    "concatenate",
    "contiguous",
    "divide",
    "geglu",
    "geglu_erf",
    "gelu",
    "gelu_erf",
    "l2_norm",
    "linear",
    "linear_experts",
    "matmul",
    "mean",
    "multiply",
    "norm",
    "put_rows",
    "relu",
    "reshape",
    "rms_norm",
    "rope",
    "scale",
    "sigmoid",
    "silu",
    "slice",
    "softmax",
    "square",
    "subtract",
    "sum",
    "swiglu",
    "take_rows",
    "tanh",
    "tile",
    "top_k",
    "transpose",
    "write",
]
