"""Grain's order of records, and its samplers.

Grain 0.2's ``DataLoader`` shares the positions of its sampler among hosts and worker processes before it makes batches:

- Shard ``s`` of ``S`` reads positions ``s, s + S, s + 2S, …``, ``length // S`` of them: the remainder is dropped,
  whatever the shard options say.
- Worker ``w`` of ``W`` takes every ``W``-th of these from the ``w``-th on, and makes batches of them, so that a batch's
  records are ``W * S`` positions apart. Each worker may end with a batch that is not full, or drops it.
- The consumer takes a batch from each worker in turn and skips those that have none left. As a worker never has more
  batches than the one before it, batch ``b`` always belongs to worker ``b % W``.

Without worker processes ``W`` is 1.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.data._argument_checks import integer
from headrace.data._datasets.capabilities import wants_rng


def grain_batch_count(batch_size: int, length: int, workers: int, shard: int, shards: int, drop_last: bool) -> int:
    """Batches per epoch of one shard in Grain's order.

    Args:
        batch_size: records per batch.
        length: positions of the sampler.
        workers: worker processes; 0 counts as 1.
        shard, shards: which shard, of how many.
        drop_last: each worker drops a last batch that is not full.

    Raises:
        ValueError: an argument that is out of range.
    """
    workers, local = _checked(batch_size, length, workers, shard, shards)
    # So many workers have one record more than the others.
    records, longer = divmod(local, workers)
    return longer * _batches(records + 1, batch_size, drop_last) + (workers - longer) * _batches(
        records, batch_size, drop_last
    )


def grain_positions(
    batch: int, batch_size: int, length: int, workers: int, shard: int, shards: int, drop_last: bool
) -> npt.NDArray[np.int64]:
    """The positions in the sampler that batch number ``batch`` of one shard consists of, in Grain's order.

    Args:
        batch: counted from 0.
        batch_size, length, workers, shard, shards, drop_last: as in :func:`grain_batch_count`.

    Raises:
        IndexError: there is no such batch.
        ValueError: an argument that is out of range.
    """
    count = grain_batch_count(batch_size, length, workers, shard, shards, drop_last)
    if not 0 <= batch < count:
        raise IndexError(f"batch {batch} is out of range: there are {count}")
    workers, local = _checked(batch_size, length, workers, shard, shards)
    number, worker = divmod(batch, workers)
    first = worker + number * batch_size * workers
    last = min(first + batch_size * workers, local)
    return np.arange(first, last, workers, dtype=np.int64) * shards + shard


def _checked(batch_size: int, length: int, workers: int, shard: int, shards: int) -> tuple[int, int]:
    """How many workers there are, and how many records the shard has."""
    integer("batch_size", batch_size, 1)
    integer("length", length)
    integer("workers", workers)
    integer("shards", shards, 1)
    integer("shard", shard, 0, shards - 1)
    return max(1, workers), length // shards


def _batches(records: int, batch_size: int, drop_last: bool) -> int:
    return records // batch_size if drop_last else -(-records // batch_size)


@runtime_checkable
class RecordMetadata(Protocol):
    """The record at a position of one of Grain's samplers, and its generator, if any."""

    index: int
    record_key: Any
    rng: np.random.Generator | None


def is_grain_sampler(sampler: Any) -> bool:
    """Whether ``sampler`` is one of Grain's, or like them: indexed, not iterated over, with :class:`RecordMetadata`."""
    if isinstance(sampler, GrainSampler):
        return True
    if not hasattr(type(sampler), "__getitem__") or hasattr(type(sampler), "__iter__"):
        return False
    try:
        return isinstance(sampler[0], RecordMetadata)
    except Exception:  # whatever it is, it has no first position
        return False


class GrainSampler:
    """One of Grain's samplers, as a sequence of record keys.

    Args:
        sampler: ``sampler[i]`` is the :class:`RecordMetadata` of position ``i`` and an IndexError after the last.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        """How many positions there are; ``sys.maxsize`` for an endless sampler."""
        if hasattr(self.sampler, "__len__"):
            return len(self.sampler)
        low, high = 0, sys.maxsize
        while low < high:
            middle = (low + high) // 2
            try:
                self.sampler[middle]
                low = middle + 1
            except IndexError:
                high = middle
        return low

    def __getitem__(self, position: int) -> Any:
        """The key of the record at a position."""
        return self.sampler[position].record_key


class SampledDataset:
    """The records of a data source in the order of one of Grain's samplers: sample i is the record at position i.

    If the data source's ``__getitem__`` has a parameter named ``rng``, it receives the generator that the sampler has
    for the position, and so draws the same numbers as in Grain.

    Args:
        source: has ``__getitem__``, and ``__getitems__`` if it can read many records in one call.
        sampler: ``sampler[i]`` is the :class:`RecordMetadata` of position ``i``, and an IndexError after the last.
    """

    def __init__(self, source: Any, sampler: Any) -> None:
        self.source = source
        self.sampler = sampler if isinstance(sampler, GrainSampler) else GrainSampler(sampler)
        self._wants_rng = wants_rng(source)

    def __len__(self) -> int:
        return len(self.sampler)

    def __getitem__(self, position: int) -> Any:
        metadata = self.sampler.sampler[position]
        if not self._wants_rng:
            return self.source[metadata.record_key]
        if metadata.rng is None:
            raise ValueError("the data source takes rng, but the sampler has no seed to derive it from")
        return self.source.__getitem__(metadata.record_key, rng=metadata.rng)

    @property
    def __getitems__(self) -> Callable[[list[int]], list[Any]] | None:
        """Reads many records in one call; None if the data source cannot."""
        bulk = callable(getattr(self.source, "__getitems__", None))
        return self._get_many if bulk and not self._wants_rng else None

    def _get_many(self, positions: list[int]) -> list[Any]:
        return list(self.source.__getitems__([self.sampler[position] for position in positions]))
