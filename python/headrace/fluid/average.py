"""Averages of fetched values."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace import errors

__all__ = ["WeightedAverage"]


class NoData(errors.FailedPrecondition, ValueError):
    """There is nothing yet to be averaged, for which Fluid raises ValueError."""


class WeightedAverage:
    """The weighted mean of numbers, or of arrays element by element. Not thread-safe."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all values."""
        self._sum: Any = None
        self._weight = 0.0

    def add(self, value: Any, weight: Any) -> None:
        """Takes a value into account.

        Args:
            value: a number, or an array; all of one shape, or with one element each.
            weight: a number, or an array of one.

        Raises:
            InvalidArgument: one of both is no number, or of another shape.
        """
        array, factor = np.asarray(value), np.asarray(weight)
        if array.dtype.kind not in "biuf":
            raise errors.InvalidArgument(f"value has to be a number or an array of numbers, got {value!r}")
        if factor.size != 1 or factor.dtype.kind not in "biuf":
            raise errors.InvalidArgument(f"weight has to be a number, or an array of one, got {weight!r}")
        if self._sum is not None and np.size(self._sum) == array.size == 1:
            array = array.reshape(np.shape(self._sum))
        if self._sum is not None and np.shape(self._sum) != array.shape:
            raise errors.InvalidArgument(
                f"value must have the shape of the earlier values, {list(np.shape(self._sum))}, got {list(array.shape)}"
            )
        weight = float(factor.reshape(-1)[0])
        self._sum = array * weight if self._sum is None else self._sum + array * weight
        self._weight += weight

    def eval(self) -> Any:
        """The mean.

        Raises:
            FailedPrecondition: there is none: nothing was added, or only weights of 0.
        """
        if self._sum is None or self._weight == 0:
            raise NoData("there is nothing to average: call add with a weight above 0 first")
        return self._sum / self._weight
