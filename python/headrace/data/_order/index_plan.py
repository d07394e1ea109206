"""The interface of an order of batches, :class:`IndexPlan`: which indices each batch of an epoch has."""

from __future__ import annotations

import abc
import array
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

# A memoryview has the integers of as_integers.
Indices = Union[Sequence[Any], "np.ndarray[Any, np.dtype[np.int64]]", memoryview]
# The state that an epoch's order depends on from a batch on, besides epoch and batch; JSON can hold it.
States = Callable[[int], dict[str, Any]]
_MAX_INDEX = (1 << 63) - 1


class Kept(list[Any]):
    """Indices that reach the dataset as the objects that they are."""


class IndexPlan(abc.ABC):
    """The index lists of an epoch's batches. One iteration at a time.

    A signal handler may raise at any moment; asking for the same batch again then gives the same result.

    A subclass whose order depends on more than epoch and batch overrides ``states``, ``check`` and ``restore``, and
    ``begin_of`` if that depends on the batches.
    """

    @abc.abstractmethod
    def start(self, epoch: int, batch: int) -> None:
        """Begins ``epoch`` at ``batch``, counted from 0."""

    @abc.abstractmethod
    def take(self, batch: int) -> Indices | None:
        """The list of a batch, never empty; None after the last one. Batches are asked for in ascending order."""

    def states(self) -> States:
        """The state that the order of this epoch depends on, from any batch on: a function that stays valid when others
        start.
        """
        return _no_state

    def let_go(self) -> None:  # noqa: B027
        """Drops what was iterated over for an epoch that is over."""

    def check(self, state: dict[str, Any]) -> None:
        """Raises TypeError or ValueError unless :meth:`restore` accepts ``state``. Changes nothing."""
        check_keys(state)

    def begin_of(self, state: dict[str, Any]) -> dict[str, Any]:
        """The part of a state that the order of the whole epoch depends on, however it is divided into batches."""
        return state

    def restore(self, state: dict[str, Any], begun: bool) -> None:  # noqa: B027
        """Makes the next :meth:`start` begin the epoch in which ``state`` was taken.

        Args:
            begun: a batch of it had been taken by then.
        """


def check_keys(state: dict[str, Any], *expected: str) -> None:
    if set(state) != set(expected):
        raise ValueError(
            f"plan of the state must have the keys {sorted(expected)}, got {sorted(map(str, state))!r:.200}"
        )


def plain_integers(indices: list[Any]) -> memoryview | None:
    """What :func:`as_integers` gives, if all are of type ``int``; else None. It takes a fraction of the time."""
    if set(map(type, indices)) != {int}:
        return None
    try:
        integers = array.array("q", indices)
    except OverflowError:
        return None
    return memoryview(integers) if min(indices) >= 0 else None


def as_integers(indices: Indices) -> memoryview | None:
    """The indices as int64, if they are integers that fit, and none is negative or to be kept; else None."""
    if isinstance(indices, memoryview):  # they were found to be that before
        return indices
    if isinstance(indices, Kept):
        return None
    try:
        numbers = np.asarray(indices)
    except ValueError:  # of different lengths
        return None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not numbers.size:
        return None
    integers = numbers.astype(np.int64, copy=False)
    # Those that are negative, or too large for an int64, are the largest as unsigned integers.
    return None if integers.view(np.uint64).max() > _MAX_INDEX else integers.data


def index_checksum(indices: Indices, before: int) -> int:
    """Tells a sequence of lists of indices from others, given that of the lists before."""
    data = indices.tobytes() if isinstance(indices, (memoryview, np.ndarray)) else repr(indices).encode()
    return zlib.crc32(data, zlib.crc32(b"%d" % len(indices), before))


def _no_state(batch: int) -> dict[str, Any]:
    return {}
