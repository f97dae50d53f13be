"""How far one model's predictions are from another's, in numbers. Logits in, figures out; nothing here knows a model.

P is the distribution of the model compared with (the base), Q that of the model judged, t the token that came next:

* KL divergence at a position: sum of P (log P - log Q) over the vocabulary, in nats
* change of probability at a position: Q(t) - P(t); its RMS over positions is what llama.cpp calls "RMS Δp"
* perplexity: exp of the mean of -log P(t), or of -log Q(t)
* agreement: the share of positions where both have the same likeliest token

Logits are f32; everything after them is float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jackfield_llm.errors import EvaluationError

__all__ = ["Estimate", "Figures", "Positions", "compare", "figures", "log_softmax"]

F64 = NDArray[np.float64]
_ROWS = 16  # positions taken together: of 150,000 tokens, 20 MB in float64


@dataclass(frozen=True)
class Positions:
    """Figures of single positions, each f64 (positions,), `same` bool. nll: minus the log-probability of what came."""

    kl: F64
    nll: F64
    base_nll: F64
    change: F64
    same: NDArray[np.bool_]


@dataclass(frozen=True)
class Estimate:
    """A mean, or a function of one, and its standard error over the positions."""

    value: float
    error: float


@dataclass(frozen=True)
class Figures:
    """What two models' predictions say of each other over `positions` tokens.

    kl: mean. kl_99, kl_max: the 99th percentile of the positions, and the largest. rms: of the change of probability.
    agreement: 0 to 1. perplexity: of the model judged; ratio: of the two perplexities, from paired positions.
    """

    positions: int
    kl: Estimate
    kl_99: float
    kl_max: float
    rms: Estimate
    agreement: Estimate
    perplexity: Estimate
    base_perplexity: Estimate
    ratio: Estimate


def log_softmax(logits: NDArray[np.float32]) -> F64:
    """Log-probabilities along the last axis, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def compare(base: NDArray[np.float32], judged: NDArray[np.float32], targets: Sequence[int]) -> Positions:
    """Figures of each position.

    base, judged: logits f32 [positions, vocabulary]. targets: the token that came after each.
    Raises: EvaluationError for shapes that differ, or logits that are not finite.
    """
    if base.shape != judged.shape or base.ndim != 2 or len(targets) != len(base):
        raise EvaluationError(
            f"logits are {list(base.shape)} and {list(judged.shape)} for {len(targets)} tokens: "
            "both must be [tokens, vocabulary]"
        )
    parts = [
        _compare(base[at : at + _ROWS], judged[at : at + _ROWS], np.asarray(targets[at : at + _ROWS], np.int64))
        for at in range(0, len(base), _ROWS)
    ]
    return joined(parts)


def _compare(base: NDArray[np.float32], judged: NDArray[np.float32], targets: NDArray[np.int64]) -> Positions:
    for logits in (base, judged):
        if not np.isfinite(logits).all():
            raise EvaluationError("the logits hold NaN or infinities: nothing can be compared; is the file damaged?")
    log_p, log_q = log_softmax(base), log_softmax(judged)
    p_next = np.take_along_axis(log_p, targets[:, None], axis=1)[:, 0]
    q_next = np.take_along_axis(log_q, targets[:, None], axis=1)[:, 0]
    kl = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
    return Positions(
        kl=np.maximum(kl, 0.0),  # rounding may leave a little less than the 0 of equal distributions
        nll=-q_next,
        base_nll=-p_next,
        change=np.exp(q_next) - np.exp(p_next),
        same=base.argmax(axis=1) == judged.argmax(axis=1),
    )


def joined(parts: Sequence[Positions]) -> Positions:
    """All positions of all parts, in order."""
    empty = np.empty(0)
    return Positions(
        kl=np.concatenate([empty, *(part.kl for part in parts)]),
        nll=np.concatenate([empty, *(part.nll for part in parts)]),
        base_nll=np.concatenate([empty, *(part.base_nll for part in parts)]),
        change=np.concatenate([empty, *(part.change for part in parts)]),
        same=np.concatenate([np.empty(0, bool), *(part.same for part in parts)]),
    )


def figures(at: Positions) -> Figures:
    """The figures over all positions. Raises: EvaluationError for fewer than two, of which there is no error."""
    count = len(at.kl)
    if count < 2:
        raise EvaluationError(f"{count} tokens to judge by: must be at least 2; give a longer text")
    agreement = float(at.same.mean())
    return Figures(
        positions=count,
        kl=_mean(at.kl),
        kl_99=float(np.percentile(at.kl, 99)),
        kl_max=float(at.kl.max()),
        rms=_root(_mean(at.change**2)),
        agreement=Estimate(agreement, math.sqrt(agreement * (1 - agreement) / (count - 1))),
        perplexity=_exp(_mean(at.nll)),
        base_perplexity=_exp(_mean(at.base_nll)),
        ratio=_exp(_mean(at.nll - at.base_nll)),
    )


def _mean(values: F64) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values)))


def _exp(mean: Estimate) -> Estimate:
    """exp of a mean; its error to first order."""
    try:
        value = math.exp(mean.value)
    except OverflowError:
        value = math.inf
    return Estimate(value, value * mean.error)


def _root(mean: Estimate) -> Estimate:
    """Square root of a mean; its error to first order, 0 where all is 0."""
    value = math.sqrt(mean.value)
    return Estimate(value, mean.error / (2 * value) if value else 0.0)
