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
from jackfield.ops.hyper_connections import hyper_connection_in, hyper_connection_out, hyper_connection_weights
from jackfield.ops.linear_attention import gated_delta_net, gated_linear_attention, rwkv_wkv6, rwkv_wkv7
from jackfield.ops.norms import l2_norm, norm, rms_norm, softmax
from jackfield.ops.position import rope
from jackfield.ops.products import linear, linear_experts, matmul
from jackfield.ops.reduce import argmax, argsort, mean, sum, top_k
from jackfield.ops.rows import put_rows, take_rows
from jackfield.ops.sparse_attention import lightning_indexer, top_k_mask
from jackfield.ops.state_space import ssm_conv, ssm_scan
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
    "gated_delta_net",
    "gated_linear_attention",
    "geglu",
    "geglu_erf",
    "gelu",
    "gelu_erf",
    "hyper_connection_in",
    "hyper_connection_out",
    "hyper_connection_weights",
    "l2_norm",
    "lightning_indexer",
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
    "rwkv_wkv6",
    "rwkv_wkv7",
    "scale",
    "sigmoid",
    "silu",
    "slice",
    "softmax",
    "square",
    "ssm_conv",
    "ssm_scan",
    "subtract",
    "sum",
    "swiglu",
    "take_rows",
    "tanh",
    "tile",
    "top_k",
    "top_k_mask",
    "transpose",
    "write",
]
