"""Samplers: the order in which the samples of a dataset are read.

They have the names and arguments of those of ``torch.utils.data``, and need no lists: the index at any position of any
epoch is computed from the seed on its own, so that a loader can start in the middle of an epoch at no cost.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import numpy as np

from headrace import _core
from headrace._next_items import next_items
from headrace.data._argument_checks import is_torch_generator, positive
from headrace.data._samplers.draws import random_words, scaled_words
from headrace.data._samplers.permuted_range import BLOCK, Int64Array, checked_range, permuted_indices
from headrace.data._samplers.protocols import Sampler, SeekableSampler
from headrace.data._samplers.seeds import import_torch_data, pass_seed, seed_of


class SequentialSampler(SeekableSampler):
    """0, 1, 2, …

    Args:
        data_source: has a length.
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        return np.arange(start, stop, dtype=np.int64)


class RandomSampler(SeekableSampler):
    """Indices in random order, a new one each epoch.

    Without replacement the order is a permutation, the same as that of ``DataLoader(shuffle=True)`` with the same seed;
    if more samples are wanted than there are, further permutations follow. With replacement, each index is drawn
    independently.

    Args:
        data_source: has a length.
        replacement: whether an index may come several times.
        num_samples: indices per epoch. Default: the length of ``data_source``.
        generator: a seed; or a NumPy generator, from which a seed is drawn; or a torch generator: then the order
            is exactly that of torch's sampler. Default: a fresh seed, readable as ``seed``; in a program that has
            imported torch it comes from torch's global generator, so that ``torch.manual_seed`` determines it.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind or out of range; ``num_samples`` is not positive, or
            omitted with an empty ``data_source``.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement must be True or False, got {replacement!r}")
        if num_samples is not None:
            num_samples = positive("num_samples", num_samples)
        elif len(data_source) == 0:
            raise ValueError("the data source is empty: there is nothing to sample")
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if is_torch_generator(generator):
            self._delegate = import_torch_data().RandomSampler(data_source, replacement, num_samples, generator)
        else:
            self._seed = seed_of(generator)

    @property
    def num_samples(self) -> int:
        """Indices per epoch."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __len__(self) -> int:
        return self.num_samples

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        length = len(self.data_source)
        if self.replacement:
            return scaled_words(random_words(self.seed, epoch, start, stop), length).astype(np.int64)
        parts = []
        while start < stop:
            number, position = divmod(start, length)
            count = min(stop - start, length - position)
            parts.append(permuted_indices(length, pass_seed(self.seed, number), epoch, position, position + count))
            start += count
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


class SubsetRandomSampler(SeekableSampler):
    """The given indices in random order, a new one each epoch.

    Args:
        indices: those to sample from.
        generator: as in :class:`RandomSampler`.
    """

    def __init__(self, indices: Sequence[Any], generator: Any = None) -> None:
        self.indices = indices
        self.generator = generator
        if is_torch_generator(generator):
            self._delegate = import_torch_data().SubsetRandomSampler(indices, generator)
        else:
            self._seed = seed_of(generator)

    def __len__(self) -> int:
        return len(self.indices)

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        chosen = [self.indices[i] for i in self._positions(epoch, start, stop)]
        array = np.asarray(chosen, dtype=np.int64 if not chosen else None)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TypeError(f"take() returns integers, but this sampler has indices such as {chosen[0]!r}")
        return array.astype(np.int64, copy=False)

    def _positions(self, epoch: int, start: int, stop: int) -> list[int]:
        positions: list[int] = []
        if start < stop:
            positions = permuted_indices(len(self.indices), self.seed, epoch, start, stop).tolist()
        return positions

    def _iterate(self, epoch: int, length: int) -> Iterator[Any]:
        # The indices themselves, which need not be integers.
        for start in range(0, length, BLOCK):
            for position in self._positions(epoch, start, min(start + BLOCK, length)):
                yield self.indices[position]


class BatchSampler(Sampler["list[Any]"]):
    """Lists of a sampler's indices, ``batch_size`` each.

    Args:
        sampler: any iterable of indices.
        batch_size: indices per list.
        drop_last: drop a last list that is not full.

    Raises:
        ValueError: the batch size is not a positive integer, or ``drop_last`` is not a bool.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last must be True or False, got {drop_last!r}")
        self.sampler = sampler
        self.batch_size = positive("batch_size", batch_size)
        self.drop_last = drop_last

    @property
    def seekable(self) -> bool:
        """Whether the sampler is."""
        return bool(getattr(self.sampler, "seekable", False))

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the sampler, if that has ``set_epoch``."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def chosen_epoch(self) -> int | None:
        """The sampler's; see :meth:`SeekableSampler.chosen_epoch`."""
        return self.sampler.chosen_epoch() if isinstance(self.sampler, SeekableSampler) else None

    def begin_epoch(self, epoch: int) -> None:
        """The sampler's; see :meth:`SeekableSampler.begin_epoch`."""
        if isinstance(self.sampler, SeekableSampler):
            self.sampler.begin_epoch(epoch)
        else:
            self.set_epoch(epoch)

    def take(self, start: int, stop: int) -> list[Int64Array]:
        """The index lists of batches ``start`` to ``stop`` of the current epoch.

        Raises:
            IndexError: there are no such batches.
            TypeError: the sampler has no ``take``.
        """
        take = getattr(self.sampler, "take", None)
        if take is None:
            raise TypeError(
                f"{type(self.sampler).__name__} has no take(): its indices are available only one after another"
            )
        return self._cut(start, stop, take)

    def order(self, epoch: int, start: int, stop: int) -> list[Int64Array]:
        """The index lists of batches ``start`` to ``stop`` of an epoch, if the sampler is a :class:`SeekableSampler`.

        Raises:
            IndexError: there are no such batches.
        """
        sampler = cast(SeekableSampler, self.sampler)
        return self._cut(start, stop, lambda begin, end: sampler.order(epoch, begin, end))

    def _cut(self, start: int, stop: int, take: Callable[[int, int], Int64Array]) -> list[Int64Array]:
        start, stop = checked_range(start, stop, len(self))
        size, count = self.batch_size, len(self.sampler)  # type: ignore[arg-type]
        indices = take(min(start * size, count), min(stop * size, count))
        return [indices[begin : begin + size] for begin in range(0, (stop - start) * size, size)]

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(next_items(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch


class DistributedSampler(SeekableSampler):
    """One process's share of the indices: every ``num_replicas``-th, from the ``rank``-th on.

    All processes get the same number: unless ``drop_last``, the last processes get indices from the beginning of the
    order again at their end. A loader's own ``shard=(rank, world)`` repeats none.

    As with torch's class, the epoch stays the same until ``set_epoch`` is called, by the user or by a loader of
    headrace. The order of ``shuffle`` is not torch's.

    Args:
        dataset: has a length.
        num_replicas: how many processes there are. Default: as in ``torch.distributed``, if it is running, else the
            environment variable ``WORLD_SIZE``.
        rank: which one this is. Default: likewise, ``RANK``.
        shuffle: a random order for each epoch, shared by all processes, which must have the same seed.
        seed: determines that order.
        drop_last: drop indices at the end of the order instead of repeating some.

    Raises:
        RuntimeError: the number of processes is not known.
        ValueError: the rank is out of range.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None:
            num_replicas = _of_group("num_replicas", "get_world_size", "WORLD_SIZE")
        if rank is None:
            rank = _of_group("rank", "get_rank", "RANK")
        self.num_replicas = positive("num_replicas", num_replicas)
        self.rank = operator.index(rank)
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank must be from 0 to {self.num_replicas - 1}, got {rank}")
        self.dataset = dataset
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.seed = seed

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return self._epoch

    @property
    def num_samples(self) -> int:
        """Indices per epoch of this process."""
        count = len(self.dataset)
        return count // self.num_replicas if self.drop_last else -(-count // self.num_replicas)

    @property
    def total_size(self) -> int:
        """Indices per epoch of all processes."""
        return self.num_samples * self.num_replicas

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        return self._iterate(self._epoch, len(self))

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        positions = np.arange(start, stop, dtype=np.int64) * self.num_replicas + self.rank
        if start < stop:
            positions %= len(self.dataset)
        if not self.shuffle or start >= stop:
            return positions
        return _core.IndexPermutation(len(self.dataset), self.seed, epoch).take(positions)


def _of_group(name: str, function: str, variable: str) -> int:
    """What torch.distributed or the environment says about the processes that train together."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, function)())
    value = os.environ.get(variable)
    if value is None:
        raise RuntimeError(f"{name} is not given, torch.distributed is not running and {variable} is not set")
    if not value.isdecimal():
        raise ValueError(f"{name} is not given, and the variable {variable} is no number: {value!r}")
    return int(value)
