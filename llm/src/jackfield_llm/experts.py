"""The router: which experts a token takes, and with what weights."""

from __future__ import annotations

import numpy as np

import jackfield as jf
from jackfield import ops
from jackfield_llm.graph_parts import Parts
from jackfield_llm.hyperparameters import Experts

__all__ = ["choose"]

_SMALLEST_SUM = 2.0**-14  # the smallest normal number of f16; llama.cpp divides by no smaller one


def choose(parts: Parts, scores: jf.Tensor, bias: jf.Tensor | None, experts: Experts) -> tuple[jf.Tensor, jf.Tensor]:
    """Experts i32 [rows, used] and their weights f32 [rows, used, 1].

    scores: f32 [rows, experts]. bias: [experts], added for the choice only.
    """
    rows = scores.shape[0]
    probabilities = ops.softmax(scores) if experts.gating == "softmax" else ops.sigmoid(scores)
    preferred = probabilities if bias is None else ops.add(probabilities, bias)
    ids = _within_groups(parts, preferred, experts) if experts.groups > 1 else ops.top_k(preferred, k=experts.used)
    weights = ops.take_rows(ops.reshape(probabilities, shape=(rows, experts.count, 1)), ids)
    if experts.normed:
        total = ops.sum(weights, axis=1, keepdims=True)
        weights = ops.divide(weights, ops.clip(total, min=_SMALLEST_SUM, max=float("inf")))
    return ids, weights if experts.scale == 1.0 else ops.scale(weights, scale=experts.scale)


def _within_groups(parts: Parts, preferred: jf.Tensor, experts: Experts) -> jf.Tensor:
    """The best experts of the groups whose two best sum to most: i32 [rows, used]."""
    rows, size, left = preferred.shape[0], experts.count // experts.groups, experts.groups_used
    grouped = ops.reshape(preferred, shape=(rows, experts.groups, size))
    two = ops.take_rows(ops.reshape(grouped, shape=(rows, experts.groups, size, 1)), ops.top_k(grouped, k=2))
    groups = ops.top_k(ops.sum(ops.reshape(two, shape=(rows, experts.groups, 2)), axis=2), k=left)
    numbers = parts.table("expert_ids", np.arange(experts.count, dtype=np.int32).reshape(1, experts.groups, size))
    everywhere = ops.broadcast_to(numbers, shape=(rows, experts.groups, size))
    candidates = ops.reshape(ops.take_rows(everywhere, groups), shape=(rows, left * size, 1))
    best = ops.top_k(ops.reshape(ops.take_rows(grouped, groups), shape=(rows, left * size)), k=experts.used)
    return ops.reshape(ops.take_rows(candidates, best), shape=(rows, experts.used))
