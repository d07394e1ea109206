"""Makes LoDTensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._wording import counted
from headrace.fluid._checks import check_integer, check_list
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
        TypeMismatch: ``recursive_seq_lens`` is no list of levels.
        InvalidArgument: the lengths do not fit the data, or a list has something else than numbers.
    """
    levels = _levels(recursive_seq_lens)
    if isinstance(data, LoDTensor):
        data = np.asarray(data)
    if isinstance(data, list):
        sequences = [_rows(sequence, index) for index, sequence in enumerate(data)]
        lengths = [len(sequence) for sequence in sequences]
        if not levels or levels[-1] != lengths:
            raise errors.InvalidArgument(
                f"the sequences have the lengths {lengths}, but the last level of recursive_seq_lens is "
                f"{levels[-1] if levels else 'missing'}{_hint(levels, sum(lengths))}"
            )
        filled = [sequence for sequence in sequences if len(sequence)]
        data = np.concatenate(filled) if filled else np.zeros((0, 1), np.int64)
    tensor = LoDTensor()
    tensor.set(data, place)
    rows = tensor.shape()[0] if levels and tensor.shape() else 0
    if levels and sum(levels[-1]) != rows:
        raise errors.InvalidArgument(
            f"the lengths {levels[-1]} of recursive_seq_lens add up to {sum(levels[-1])}, but there are "
            f"{counted(rows, 'row')}{_hint(levels, rows)}"
        )
    tensor.set_recursive_sequence_lengths(levels)
    return tensor


def _levels(recursive_seq_lens: Any) -> list[list[int]]:
    try:
        levels = [[operator.index(length) for length in level] for level in recursive_seq_lens]
    except TypeError:
        raise errors.TypeMismatch(
            f"recursive_seq_lens is a list of levels, each a list of the lengths of its sequences, such as [[2, 3]]; "
            f"got {recursive_seq_lens!r}"
        ) from None
    if [] in levels:
        raise errors.InvalidArgument(f"level {levels.index([])} of recursive_seq_lens is empty: a length may be 0")
    return levels


def _hint(levels: list[list[int]], rows: int) -> str:
    """For lengths that look like the offsets of ``rows``."""
    offsets = levels[-1] if levels else []
    is_offsets = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == rows
    return ": give lengths, not offsets" if is_offsets else ""


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
    levels = _levels(recursive_seq_lens)
    if not levels:
        raise errors.InvalidArgument("recursive_seq_lens needs a level")
    low = check_integer(low, "create_random_int_lodtensor: low")
    high = check_integer(high, "create_random_int_lodtensor: high")
    if low > high:
        raise errors.InvalidArgument(f"create_random_int_lodtensor: low is {low}, greater than high, {high}")
    row = [check_integer(d, "base_shape: an extent") for d in check_list(base_shape, "base_shape")]
    data = np.random.randint(low, high + 1, size=[sum(levels[-1]), *row], dtype=np.int64)
    return create_lod_tensor(data, recursive_seq_lens, place)
