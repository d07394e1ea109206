"""Makes LoDTensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid.core import CPUPlace, LoDTensor

__all__ = ["create_lod_tensor", "create_random_int_lodtensor"]


def create_lod_tensor(
    data: np.ndarray | list[Any] | LoDTensor, recursive_seq_lens: Sequence[Sequence[int]], place: CPUPlace | None = None
) -> LoDTensor:
    """A LoDTensor of packed sequences.

    Args:
        data: the packed rows; or a list with one list of numbers for each sequence, which become rows of one, integers
            as int64 and others as float64; or a LoDTensor, whose elements are copied.
        recursive_seq_lens: lengths of the sequences, the outermost level first.

    Raises:
        InvalidArgument: the lengths do not fit the data, or a list has something else than numbers.
    """
    if isinstance(data, LoDTensor):
        data = np.asarray(data)
    if isinstance(data, list):
        lengths = [len(sequence) for sequence in data]
        if not recursive_seq_lens or list(recursive_seq_lens[-1]) != lengths:
            raise errors.InvalidArgument(
                f"the sequences have the lengths {lengths}, but the last level of recursive_seq_lens is "
                f"{list(recursive_seq_lens[-1]) if recursive_seq_lens else 'missing'}"
            )
        filled = [_rows(sequence, index) for index, sequence in enumerate(data) if len(sequence)]
        data = np.concatenate(filled) if filled else np.zeros((0, 1), np.int64)
    tensor = LoDTensor()
    tensor.set(data, place)
    tensor.set_recursive_sequence_lengths([list(level) for level in recursive_seq_lens])
    return tensor


def _rows(sequence: Any, index: int) -> np.ndarray:
    """The items of a sequence, each in a row of its own: whole numbers as int64."""
    try:
        rows = np.asarray(sequence)
    except ValueError:
        rows = np.asarray(None)
    if rows.ndim == 0 or rows.dtype.kind not in "biuf":
        raise errors.InvalidArgument(
            f"sequence {index} of data is {sequence!r}, expected a list of numbers: give others as an array of the "
            "packed rows"
        )
    return rows[..., np.newaxis]


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: CPUPlace | None,
    low: int,
    high: int,
) -> LoDTensor:
    """A LoDTensor of int64 drawn from [low, high], both included, with rows of ``base_shape``."""
    if not recursive_seq_lens:
        raise errors.InvalidArgument("recursive_seq_lens needs a level")
    rows = sum(recursive_seq_lens[-1])
    data = np.random.randint(low, high + 1, size=[rows, *base_shape], dtype=np.int64)
    return create_lod_tensor(data, recursive_seq_lens, place)
