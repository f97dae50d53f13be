"""The ops: each one is its declaration and, called on tensors, its builder."""

from __future__ import annotations

from jackfield.ops.attention import attention
from jackfield.ops.columns import col2im_1d, im2col, im2col_3d
from jackfield.ops.convolution import (
    conv_1d,
    conv_1d_depthwise,
    conv_2d,
    conv_2d_depthwise,
    conv_3d,
    conv_transpose_1d,
    conv_transpose_2d,
)
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
from jackfield.ops.gradients import (
    im2col_backward,
    pool_2d_backward,
    rms_norm_backward,
    rope_backward,
    silu_backward,
    softmax_backward,
    take_rows_backward,
    tile_backward,
)
from jackfield.ops.host import host_call
from jackfield.ops.images import pad, resize, roll, timestep_embedding
from jackfield.ops.linear_algebra import solve_triangular
from jackfield.ops.norms import l2_norm, norm, rms_norm, softmax
from jackfield.ops.pooling import pool_1d, pool_2d
from jackfield.ops.position import rope
from jackfield.ops.products import linear, linear_experts, matmul
from jackfield.ops.reduce import argmax, argsort, mean, sum, top_k
from jackfield.ops.rows import put_rows, take_rows
from jackfield.ops.training import adamw_step, attention_backward, cross_entropy, cross_entropy_backward, sgd_step
from jackfield.ops.views import broadcast_to, reshape, slice, transpose
from jackfield.ops.windowed import add_relative_positions, relative_positions, window_merge, window_partition

__all__ = [
    "adamw_step",
    "add",
    "add_relative_positions",
    "argmax",
    "argsort",
    "attention",
    "attention_backward",
    "broadcast_to",
    "cast",
    "clip",
    "col2im_1d",
    "concatenate",
    "contiguous",
    "conv_1d",
    "conv_1d_depthwise",
    "conv_2d",
    "conv_2d_depthwise",
    "conv_3d",
    "conv_transpose_1d",
    "conv_transpose_2d",
    "cross_entropy",
    "cross_entropy_backward",
    "divide",
    "geglu",
    "geglu_erf",
    "gelu",
    "gelu_erf",
    "host_call",
    "im2col",
    "im2col_3d",
    "im2col_backward",
    "l2_norm",
    "linear",
    "linear_experts",
    "matmul",
    "mean",
    "multiply",
    "norm",
    "pad",
    "pool_1d",
    "pool_2d",
    "pool_2d_backward",
    "put_rows",
    "relative_positions",
    "relu",
    "reshape",
    "resize",
    "rms_norm",
    "rms_norm_backward",
    "roll",
    "rope",
    "rope_backward",
    "scale",
    "sgd_step",
    "sigmoid",
    "silu",
    "silu_backward",
    "slice",
    "softmax",
    "softmax_backward",
    "solve_triangular",
    "square",
    "subtract",
    "sum",
    "swiglu",
    "take_rows",
    "take_rows_backward",
    "tanh",
    "tile",
    "tile_backward",
    "timestep_embedding",
    "top_k",
    "transpose",
    "window_merge",
    "window_partition",
    "write",
]
