"""Arrays of different lengths in one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace import _core


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of different lengths, concatenated in one array. A sequence of its rows.

    Attributes:
        values: the rows, joined along the first axis; an array or a torch tensor.
        offsets: int64, one more than there are rows: row i is ``values[offsets[i]:offsets[i + 1]]``.
    """

    values: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """Row ``row``, a view; negative numbers count from the end."""
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")
        row += count if row < 0 else 0
        return self.values[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def rows(self) -> list[Any]:
        """The rows, as views."""
        bounds = self.offsets.tolist()
        return [self.values[begin:end] for begin, end in zip(bounds, bounds[1:])]

    def lengths(self) -> list[int]:
        """The length of each row."""
        bounds = self.offsets.tolist()
        return [end - begin for begin, end in zip(bounds, bounds[1:])]

    def to_lod_tensor(self) -> _core.LoDTensor:
        """A copy as a tensor with a level of detail, for programs."""
        tensor = _core.LoDTensor.from_numpy(np.asarray(self.values))
        tensor.set_recursive_sequence_lengths([self.lengths()])
        return tensor

    def _check(self, offsets: np.ndarray[Any, Any]) -> None:
        rows = len(self.values) if not hasattr(self.values, "shape") else self.values.shape[0]
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ValueError("the offsets of a Ragged must start with 0 and never decrease")
        if offsets[-1] != rows:
            raise ValueError(f"the offsets of a Ragged end with {offsets[-1]}, but it has {rows} values")
