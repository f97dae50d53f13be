"""From a row of logits to the next token, and from a stream of text to where it must stop. Plain numpy, no device."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jackfield_llm.errors import SamplingError

__all__ = ["Sampler", "StopStrings"]

# Sizes in which the likeliest tokens are looked for before a whole vocabulary is sorted.
_NUCLEUS_SIZES = (64, 1024, 16384)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Draws one token from a row of logits.

    The order is llama.cpp's: penalty, top-k, top-p, min-p, temperature; so top-p and min-p look at the
    probabilities of the model itself, before the temperature.

    temperature: 0 takes the largest logit, the lowest id where several are equal.
    top_k: only the k largest logits; 0 = all.
    top_p: only the likeliest tokens that together reach this mass; 1 = all.
    min_p: only tokens at least this fraction as likely as the likeliest; 0 = all.
    repetition_penalty: above 1, tokens seen lately become less likely (positive logits are divided, others multiplied).
    repeat_last: how many tokens count as lately; 0 = none, -1 = all.
    seed: the same seed gives the same draws; None = another one each time.
    Raises: SamplingError.
    Source: nucleus sampling, Holtzman et al. 2019; penalty, Keskar et al. 2019, section 4.1; min-p, Nguyen et al. 2024.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repeat_last: int = 64
    seed: int | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, lowest=0.0)
        _check_number("top_p", self.top_p, above=0.0, highest=1.0)
        _check_number("min_p", self.min_p, lowest=0.0, highest=1.0)
        _check_number("repetition_penalty", self.repetition_penalty, above=0.0)
        _check_integer("top_k", self.top_k, lowest=0)
        _check_integer("repeat_last", self.repeat_last, lowest=-1)
        if self.seed is not None:
            _check_integer("seed", self.seed, lowest=0)
        object.__setattr__(self, "_random", np.random.default_rng(self.seed))

    def draw(self, logits: NDArray[Any], history: Sequence[int] = ()) -> int:
        """The next token.

        logits: [vocabulary], any float dtype; not changed.
        history: the tokens so far, prompt included, oldest first; read only by the penalty.
        """
        if self.temperature == 0.0:
            return self._greedy(logits, history)
        ids, probabilities = self.distribution(logits, history)
        return int(ids[_draw(probabilities, self._random.random())])

    def distribution(
        self, logits: NDArray[Any], history: Sequence[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """What `draw` draws from: the ids that are left, ascending, and their probabilities, which sum to one."""
        if self.temperature == 0.0:
            return np.array([self._greedy(logits, history)], np.int64), np.ones(1)
        row = self._penalised(_checked(logits), history)
        ids = _largest(row, self.top_k) if 0 < self.top_k < row.size else np.arange(row.size)
        if self.top_p < 1.0:
            ids = ids[_nucleus(_softmax(row[ids]), self.top_p)]
        if self.min_p > 0.0:
            ids = ids[row[ids] >= row[ids].max() + math.log(self.min_p)]
        left = row[ids]
        with np.errstate(over="ignore"):  # -inf is right where a tiny temperature shuts a token out
            return ids, _softmax((left - left.max()) / self.temperature)

    def _greedy(self, logits: NDArray[Any], history: Sequence[int]) -> int:
        row = np.asarray(logits)
        if self.repetition_penalty != 1.0 and self.repeat_last != 0 and len(history):
            row = self._penalised(_checked(logits), history)
        _check_row(row)
        best = int(np.argmax(row))  # the first NaN counts as largest, so one look at the winner finds it
        if not math.isfinite(row[best]):
            raise _bad_value(row)
        return best

    def _penalised(self, row: NDArray[np.float64], history: Sequence[int]) -> NDArray[np.float64]:
        if self.repetition_penalty == 1.0 or self.repeat_last == 0 or not len(history):
            return row
        lately = history if self.repeat_last < 0 else history[-self.repeat_last :]
        try:
            seen = np.unique([operator.index(token) for token in lately])
        except TypeError:
            raise SamplingError(f"[sample] history is {lately!r:.60}: must be a list of whole numbers") from None
        if seen[0] < 0 or seen[-1] >= row.size:
            wrong = seen[0] if seen[0] < 0 else seen[-1]
            raise SamplingError(f"[sample] history holds token {wrong}: must be below {row.size}")
        old = row[seen]
        row[seen] = np.where(old > 0, old / self.repetition_penalty, old * self.repetition_penalty)
        return row


class StopStrings:
    """Finds the first of several texts in a stream, and holds back what may be the beginning of one.

    What comes out does not depend on how the stream was cut: the match that ends first wins, of two that end
    together the longer.

    stops: texts, none of them empty; an empty list stops nowhere.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise SamplingError(f"[stop] {stops!r} is one text: must be a list of texts")
        if not isinstance(stops, Iterable):
            raise SamplingError(f"[stop] stop is {stops!r}: must be a list of texts, which may be empty")
        for stop in stops:
            if not isinstance(stop, str) or not stop:
                raise SamplingError(f"[stop] {stop!r}: must be a text that is not empty")
        self.stops = tuple(stops)
        self.stopped: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """What of the stream may be shown after `text` arrived; nothing more once `stopped` is set."""
        if self.stopped is not None:
            return ""
        held = self._held + text
        found = [(at + len(stop), at, stop) for stop in self.stops if (at := held.find(stop)) >= 0]
        if found:
            _, at, self.stopped = min(found)
            self._held = ""
            return held[:at]
        keep = max((_overlap(held, stop) for stop in self.stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """What was held back, when the stream has ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, and not all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def _check_number(
    name: str, value: float, *, lowest: float = -math.inf, above: float = -math.inf, highest: float = math.inf
) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SamplingError(f"[sample] {name} is {value!r}: must be a finite number")
    if value < lowest or value <= above or value > highest:
        lower = f"above {above:g}" if above > -math.inf else f"at least {lowest:g}"
        upper = f" and at most {highest:g}" if highest < math.inf else ""
        raise SamplingError(f"[sample] {name} is {value!r}: must be {lower}{upper}")


def _check_integer(name: str, value: int, *, lowest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise SamplingError(f"[sample] {name} is {value!r}: must be a whole number, at least {lowest}")


def _checked(logits: NDArray[Any]) -> NDArray[np.float64]:
    """A fresh float64 row from which something can be drawn; -inf is a token that is shut out."""
    given = np.asarray(logits)
    _check_row(given)
    row = given.astype(np.float64)
    if not math.isfinite(row.max()):  # NaN and +inf come out of max as they are; -inf means all are shut out
        raise _bad_value(row)
    return row


def _check_row(row: NDArray[Any]) -> None:
    if row.ndim != 1 or row.size == 0:
        raise SamplingError(f"[sample] logits are {list(row.shape)}: must be one row, [vocabulary]")
    if row.dtype.kind in "OSUbcMm":  # a float of ml_dtypes is of kind V
        raise SamplingError(f"[sample] logits are of {row.dtype}: must be floats")


def _bad_value(row: NDArray[Any]) -> SamplingError:
    wrong = np.flatnonzero(np.isnan(row) | np.isposinf(row))
    if not wrong.size:
        return SamplingError("[sample] all logits are -inf: at least one must be finite")
    return SamplingError(f"[sample] logit {wrong[0]} is {row[wrong[0]]}: must be finite or -inf ({wrong.size} are not)")


def _softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(row - row.max())
    return weights / weights.sum()


def _largest(row: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ids of the `count` largest, ascending; of equal values the lowest ids."""
    least = np.partition(row, row.size - count)[row.size - count]
    above = np.flatnonzero(row > least)
    equal = np.flatnonzero(row == least)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _nucleus(probabilities: NDArray[np.float64], mass: float) -> NDArray[np.int64]:
    """Places of the fewest likeliest tokens that together reach `mass`, ascending; never none."""
    for size in (*_NUCLEUS_SIZES, probabilities.size):
        if size > probabilities.size:
            continue
        places = _largest(probabilities, size)
        order = places[np.argsort(-probabilities[places], kind="stable")]
        total = np.cumsum(probabilities[order])
        if total[-1] >= mass:
            return np.sort(order[: int(np.searchsorted(total, mass)) + 1])
    return np.arange(probabilities.size)  # rounding kept the sum of all just below the mass


def _draw(probabilities: NDArray[np.float64], chance: float) -> int:
    """Place drawn by `chance` in [0, 1); never one of probability zero."""
    total = np.cumsum(probabilities)
    return int(np.searchsorted(total / total[-1], chance, side="right"))  # the last is 1 exactly, so above chance
