"""A permutation of a range that is computed index by index."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import _core

Int64Array = npt.NDArray[np.int64]
# Number of indices computed together while iterating.
BLOCK = 1024


class PermutedRange(Sequence[int]):
    """Part of a pseudo-random permutation of ``range(length)``, as a sequence that takes no memory.

    Args:
        length: of the whole permutation.
        seed: determines the permutation, together with ``epoch``.
        epoch: see ``seed``.
        part: the positions in the permutation. Default: all.
    """

    def __init__(self, length: int, seed: int, epoch: int = 0, part: range | None = None) -> None:
        self._parameters = (length, seed, epoch, range(length) if part is None else part)
        self._part = self._parameters[3]
        self._permutation = _core.IndexPermutation(max(1, length), seed, epoch)

    def __reduce__(self) -> Any:
        return type(self), self._parameters

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            length, seed, epoch, part = self._parameters
            return PermutedRange(length, seed, epoch, part[position])
        return self._permutation[self._part[position]]

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self._part), BLOCK):
            part = self._part[start : start + BLOCK]
            positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
            yield from self._permutation.take(positions).tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PermutedRange) and self._parameters == other._parameters

    def __hash__(self) -> int:
        return hash(self._parameters)

    def __repr__(self) -> str:
        return f"PermutedRange{self._parameters}"


def checked_range(start: int, stop: int, length: int) -> tuple[int, int]:
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop <= length:
        raise IndexError(f"positions {start} to {stop} are not within 0 to {length}")
    return start, stop


def permuted_indices(length: int, seed: int, epoch: int, start: int, stop: int) -> Int64Array:
    return _core.IndexPermutation(length, seed, epoch).take(np.arange(start, stop, dtype=np.int64))
