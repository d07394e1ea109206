"""What a loader delivers, independently of the order and of how samples are grouped into batches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

Sample = tuple[Any, ...]


def leaves(batch: Any) -> Iterator[Any]:
    """The arrays or tensors of a batch, in the order of its structure."""
    if isinstance(batch, Mapping):
        for key in batch:
            yield from leaves(batch[key])
    elif isinstance(batch, (list, tuple)):
        for element in batch:
            yield from leaves(element)
    else:
        yield batch


def as_array(leaf: Any) -> np.ndarray[Any, Any]:
    """Without a copy, where the type of the leaf allows it."""
    if isinstance(leaf, np.ndarray):
        return leaf
    # paddle's tensors copy what __array__ returns.
    return np.from_dlpack(leaf) if type(leaf).__module__.startswith("paddle") else np.asarray(leaf)


def touch(batch: Any) -> None:
    """Reads one element of each array."""
    for leaf in leaves(batch):
        as_array(leaf).item(0)


def rows(batch: Any) -> Iterator[Sample]:
    """The samples of a batch: row i of each array."""
    arrays = [as_array(leaf) for leaf in leaves(batch)]
    if len({len(array) for array in arrays}) != 1:
        raise ValueError(f"a batch has arrays of {[len(array) for array in arrays]} rows")
    return zip(*arrays)


def digest(batches: Iterable[Any], samples_of: Callable[[Any], Iterable[Sample]] = rows) -> dict[str, Any]:
    """The number of samples and a sum of their hashes, which values, shapes and dtypes decide."""
    count, total = 0, 0
    for batch in batches:
        for sample in samples_of(batch):
            state = hashlib.blake2b(digest_size=8)
            for element in sample:
                array = np.ascontiguousarray(element)
                state.update(f"{array.dtype.str}{np.shape(element)}".encode())
                state.update(array.data if array.ndim else array.tobytes())
            count += 1
            total += int.from_bytes(state.digest(), "little")
    return {"samples": count, "digest": f"{total % 2**64:016x}"}
