"""Which dataset each position of a mixture belongs to."""

from __future__ import annotations

import fractions
import functools
import heapq
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data._samplers.permuted_range import Int64Array

# The longest period of a schedule. Weights that need a longer one are rounded to multiples of its inverse.
_MAX_PERIOD = 1 << 18
_MAX_DATASETS = 1 << 12


class Schedule:
    """Which of several datasets the n-th sample is from.

    At each step, of the datasets that would not get a whole sample ahead of their share, the one is taken that would
    otherwise be the first to fall a whole sample behind: under this rule no dataset is ever off by a whole sample
    (Tijdeman, "The chairman assignment problem", 1980; Steiner and Yeomans, "Level schedules for mixed-model,
    just-in-time processes", 1993).

    Args:
        weights: positive numbers. Integers and fractions count exactly, floats as the simplest fractions that they may
            have been written for. If the period would exceed 2**18, the shares are rounded to multiples of 2**-18.

    Raises:
        TypeError, ValueError: there are no weights, or too many, or one is not a positive number.

    Attributes:
        counts: how many samples of each dataset a period has.
        period: how many samples a period has.
        weights: the exact shares, as fractions whose sum is 1.
    """

    def __init__(self, weights: Sequence[Any]) -> None:
        self.counts = _whole_shares(weights)
        self.period = sum(self.counts)
        self.weights = tuple(fractions.Fraction(count, self.period) for count in self.counts)

    def __reduce__(self) -> Any:
        return Schedule, (list(self.counts),)  # the table is computed again

    @functools.cached_property
    def _table(self) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint32]]:
        """For each position of a period: the dataset, and how many samples of it came before."""
        counts, period = self.counts, self.period
        which = np.empty(period, np.uint16)
        before = np.empty(period, np.uint32)
        # Sample j of a dataset may be taken once j < (n + 1) * share, and is late if it is not among the first n for
        # n * share >= j + 1. All datasets' first samples may be taken immediately.
        waiting: list[tuple[int, int, int]] = []  # (first position allowed, dataset, j)
        ready = [((period - 1) // count, number, 0) for number, count in enumerate(counts)]
        heapq.heapify(ready)
        for position in range(period):
            while waiting and waiting[0][0] <= position:
                _, number, j = heapq.heappop(waiting)
                heapq.heappush(ready, (((j + 1) * period - 1) // counts[number], number, j))
            _, number, j = heapq.heappop(ready)
            which[position] = number
            before[position] = j
            if j + 1 < counts[number]:
                heapq.heappush(waiting, ((j + 1) * period // counts[number], number, j + 1))
        return which, before

    @functools.cached_property
    def _positions(self) -> list[Int64Array]:
        """The positions of each dataset's samples in a period."""
        order = np.argsort(self._table[0], kind="stable")
        return np.split(order, np.cumsum(self.counts)[:-1])

    def __getitem__(self, position: int) -> tuple[int, int]:
        """The dataset of the sample at ``position``, and the number of samples of that dataset before it."""
        number, rest = divmod(position, self.period)
        dataset = int(self._table[0][rest])
        return dataset, number * self.counts[dataset] + int(self._table[1][rest])

    def at(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """:meth:`__getitem__` of many positions together."""
        number, rest = np.divmod(positions, self.period)
        dataset = self._table[0][rest].astype(np.int64)
        return dataset, number * np.asarray(self.counts, np.int64)[dataset] + self._table[1][rest]

    def position_of(self, dataset: int, sample: int) -> int:
        """The position of a dataset's ``sample``-th sample, counted from 0."""
        number, rest = divmod(sample, self.counts[dataset])
        return number * self.period + int(self._positions[dataset][rest])


def _whole_shares(weights: Sequence[Any]) -> list[int]:
    if not 0 < len(weights) <= _MAX_DATASETS:
        raise ValueError(f"a mixture needs 1 to {_MAX_DATASETS} weights, got {len(weights)}")
    exact = []
    for weight in weights:
        try:
            if isinstance(weight, (bool, str)):
                raise TypeError
            if isinstance(weight, (float, np.floating)):
                # 0.1 means 1/10, not the nearest binary fraction.
                share = fractions.Fraction(float(weight))
                simple = share.limit_denominator(_MAX_PERIOD)
                share = simple if float(simple) == float(weight) else share
            else:
                share = fractions.Fraction(operator.index(weight) if hasattr(weight, "__index__") else weight)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"weights must be positive numbers, got {weight!r}") from None
        if share <= 0:
            raise ValueError(f"weights must be positive, got {weight!r}")
        exact.append(share)
    multiple = math.lcm(*[share.denominator for share in exact])
    counts = [int(share * multiple) for share in exact]
    divisor = math.gcd(*counts)
    counts = [count // divisor for count in counts]
    return counts if sum(counts) <= _MAX_PERIOD else _rounded(counts)


def _rounded(counts: list[int]) -> list[int]:
    """Shares in proportion to ``counts`` whose sum is the longest period; none is zero."""
    total = sum(counts)
    shares = [count * _MAX_PERIOD // total for count in counts]
    lost = sorted(range(len(counts)), key=lambda i: -(counts[i] * _MAX_PERIOD % total))
    for i in lost[: _MAX_PERIOD - sum(shares)]:
        shares[i] += 1
    for i in range(len(shares)):
        if shares[i] == 0:
            shares[shares.index(max(shares))] -= 1
            shares[i] = 1
    return shares
