"""Drawing indices by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data._argument_checks import is_torch_generator, positive
from headrace.data._samplers.draws import random_words, scaled_words, unit_words
from headrace.data._samplers.permuted_range import Int64Array
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.seeds import import_torch_data, seed_of


class WeightedRandomSampler(SeekableSampler):
    """Indices of ``weights``, drawn with probabilities in proportion to these.

    With replacement, each index is drawn independently, by the alias method (Walker, "An Efficient Method for
    Generating Discrete Random Variables with General Distributions", 1977). Without, the order is that of exponentially
    distributed keys (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006), computed once per
    epoch.

    Args:
        weights: one per index; they need not add up to one.
        num_samples: indices per epoch.
        replacement: whether an index may come several times.
        generator: as in :class:`RandomSampler`.

    Raises:
        ValueError: weights are negative, not finite, all zero or not one-dimensional; ``num_samples`` is not positive
            or, without replacement, greater than the number of positive weights.
    """

    def __init__(
        self,
        weights: Sequence[float] | npt.NDArray[Any],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        self.num_samples = positive("num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement must be True or False, got {replacement!r}")
        self.weights = np.asarray(weights, dtype=np.float64).copy()
        if self.weights.ndim != 1:
            raise ValueError(f"weights must be a sequence of numbers, got an array of shape {self.weights.shape}")
        if not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise ValueError("weights must be finite and not negative")
        possible = int(np.count_nonzero(self.weights))
        if possible == 0:
            raise ValueError("at least one weight must be positive")
        if not replacement and num_samples > possible:
            raise ValueError(f"cannot draw {num_samples} indices without replacement from {possible} positive weights")
        self.replacement = replacement
        self.generator = generator
        self._table: tuple[npt.NDArray[np.float64], Int64Array] | None = None
        self._keyed: tuple[tuple[int, int], Int64Array] | None = None
        if is_torch_generator(generator):
            self._delegate = import_torch_data().WeightedRandomSampler(weights, num_samples, replacement, generator)
        else:
            self._seed = seed_of(generator)

    def __len__(self) -> int:
        return self.num_samples

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        if not self.replacement:
            return self._without_replacement(epoch)[start:stop]
        if self._table is None:
            self._table = _alias_table(self.weights)
        kept, alias = self._table
        words = random_words(self.seed, epoch, 2 * start, 2 * stop)
        bucket = scaled_words(words[::2], len(kept)).astype(np.int64)
        return np.where(unit_words(words[1::2]) < kept[bucket], bucket, alias[bucket])

    def _without_replacement(self, epoch: int) -> Int64Array:
        keyed = self._keyed  # read once: another thread may replace it
        if keyed is None or keyed[0] != (self.seed, epoch):
            positive = np.flatnonzero(self.weights)
            exponential = -np.log1p(-unit_words(random_words(self.seed, epoch, 0, len(self.weights))))[positive]
            with np.errstate(over="ignore"):
                first = np.argsort(exponential / self.weights[positive], kind="stable")[: self.num_samples]
            self._keyed = keyed = ((self.seed, epoch), positive[first].astype(np.int64))
        return keyed[1]


def _alias_table(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Int64Array]:
    """For each bucket: the share of its own index, and the index that has the rest.

    Buckets that are too full give their excess to those with room, in order. Prefix sums tell who gives to whom, so no
    loop is needed (after Hübschle-Schneider and Sanders, "Parallel Weighted Random Sampling", 2019).
    """
    count = len(weights)
    share = weights / weights.max()
    share *= count / share.sum()
    full = share >= 1
    if not full.any():  # only by rounding
        full[share.argmax()] = True
    small, large = np.flatnonzero(~full), np.flatnonzero(full)
    room = np.concatenate([[0.0], np.cumsum(1 - share[small])])  # in the first i small buckets
    excess = np.cumsum(share[large] - 1)  # of the first i + 1 large ones
    kept, alias = np.ones(count), np.arange(count, dtype=np.int64)
    kept[small] = share[small]
    alias[small] = large[np.minimum(np.searchsorted(excess, room[:-1], side="right"), len(large) - 1)]
    # A large bucket that gave away more than its excess is filled up by the next one.
    filled = np.searchsorted(room, excess, side="left")
    last = len(large) - 1
    given = filled[:last]
    kept[large[:last]] = 1 + excess[:last] - room[np.minimum(given, len(room) - 1)]
    alias[large[:last]] = large[1:]
    kept[large[:last][given >= len(room)]] = 1.0
    return kept, alias
