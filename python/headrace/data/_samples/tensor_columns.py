"""Whole batches of torch's ``TensorDataset``: one look-up per tensor, where single samples take one for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data._samples.collation import KnownCollate
from headrace.data._samples.planned_arrays import Planned
from headrace.data._samples.tensors import (
    EXTENSION_TYPES,
    Array,
    array_of_tensor,
    is_its_memory,
    is_plain_tensor,
)
from headrace.data._samples.torch_collation import stacks_tensor_samples


class TensorColumns:
    """The tensors of a ``TensorDataset``, or of ``Subset`` s of one, that are stacked when its samples are collated.

    Inspects the dataset again for each batch: the program may change it between two epochs.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def batch(self, indices: Sequence[Any], planned: bool) -> list[Any] | None:
        """What PyTorch's default collation makes of the samples at ``indices``; None if it must be asked for it.

        Args:
            planned: in place of tensors, :class:`Planned` ones.
        """
        dataset = self._dataset
        while type(dataset) is sys.modules["torch.utils.data"].Subset:
            subset, length = dataset.indices, len(dataset.indices)
            if not _within(indices, length):
                return None
            indices = [int(subset[index]) for index in indices]
            dataset = dataset.dataset
        tensors = dataset.tensors
        if not all(is_plain_tensor(tensor) and is_its_memory(tensor) for tensor in tensors):
            return None
        if not _within(indices, min(map(len, tensors))):
            return None
        if any(tensor.device.type != "cpu" for tensor in tensors):
            rows = sys.modules["torch"].tensor(indices)
            return None if planned else [tensor[rows.to(tensor.device)] for tensor in tensors]
        columns = [_column(tensor, np.array(indices)) for tensor in tensors]
        return columns if planned else [column.make() for column in columns]


def tensor_columns(dataset: Any, collate: Any) -> TensorColumns | None:
    """The columns of a dataset that looks its samples up in tensors, if that collate function, None: the default one,
    stacks these; else None.
    """
    data: Any = sys.modules.get("torch.utils.data")
    if data is None:
        return None
    stacks = collate is None or (isinstance(collate, KnownCollate) and collate.stacks_tensors)
    stacks = stacks or (collate is data.default_collate and stacks_tensor_samples())
    inner = dataset
    while type(inner) is data.Subset:
        inner = inner.dataset
    return TensorColumns(dataset) if stacks and type(inner) is data.TensorDataset else None


def _within(indices: Sequence[Any], length: int) -> bool:
    """Whether all are integers from 0 to below ``length``: others mean something else, or nothing."""
    return all(type(index) is int for index in indices) and min(indices) >= 0 and max(indices) < length


def _column(tensor: Any, rows: npt.NDArray[Any]) -> Planned:
    """Those rows of a tensor on the CPU. By NumPy: PyTorch takes several threads to look up a few rows."""
    array, form = array_of_tensor(tensor)

    def fill(place: Array) -> None:
        if array.flags.c_contiguous:
            np.take(array, rows, axis=0, out=place, mode="clip")  # any other mode makes a copy first
        else:
            place[...] = array[rows]

    shape = (len(rows), *array.shape[1:])
    return Planned(shape, array.dtype, fill, form, form if form in EXTENSION_TYPES else "")
