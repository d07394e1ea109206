"""The samplers that the drop-in shows where its order is not PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils import data as torch_data

from headrace import _core
from headrace._next_items import next_items
from headrace.data import SeekableSampler


class LoaderSampler(SeekableSampler, torch_data.Sampler[int]):  # type: ignore[misc, unused-ignore]
    """The indices that a loader with ``seed`` or ``shard`` reads, in its order. Libraries make loaders of their own of
    them. Each iteration is the next epoch, from the loader's next one on; ``set_epoch`` selects the loader's, too.

    Args:
        data_source: the loader's dataset.
        shard: the loader's.
        group: how many indices a global batch of all loaders has that must be full; 1: there is none.
    """

    shuffle = True

    def __init__(self, data_source: Any, seed: int | None, shard: tuple[int, int], group: int) -> None:
        self.data_source = data_source
        self.rank, self.num_replicas = shard
        self._group = group
        self._seed = seed or 0

    def __len__(self) -> int:
        count = len(self.data_source) // self._group * self._group
        return max(0, -(-(count - self.rank) // self.num_replicas))

    def order(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        positions = np.arange(start, stop, dtype=np.int64) * self.num_replicas + self.rank
        if not self.shuffle or start >= stop:
            return positions
        return _core.IndexPermutation(len(self.data_source), self.seed, epoch).take(positions)

    def is_of(self, data_source: Any, seed: int | None, shard: tuple[int, int], group: int) -> bool:
        """Whether it would be the same if it were made of these."""
        same = (self.rank, self.num_replicas, self._group) == (*shard, group) and seed in (None, self.seed)
        return same and self.data_source is data_source


class InOrder(LoaderSampler, torch_data.SequentialSampler):  # type: ignore[misc, unused-ignore]
    """The same, for a loader that does not shuffle, which libraries tell by the class."""

    shuffle = False

    __init__ = LoaderSampler.__init__


class Share(torch_data.Sampler[Any]):  # type: ignore[misc, unused-ignore]
    """What a loader with ``shard`` reads of the indices of a sampler that it was given.

    Args:
        shard: the loader's.
        group: how many indices a global batch has; ``drop_last``: whether it must be full.
    """

    def __init__(self, sampler: Any, shard: tuple[int, int], group: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.rank, self.num_replicas = shard
        self._group, self._drop_last = group, drop_last

    def __len__(self) -> int:
        count = len(self.sampler)
        if self._drop_last:
            count -= count % self._group
        return max(0, -(-(count - self.rank) // self.num_replicas))

    def __iter__(self) -> Iterator[Any]:
        indices = iter(self.sampler)
        while group := list(next_items(indices, self._group)):
            if len(group) == self._group or not self._drop_last:
                yield from group[self.rank :: self.num_replicas]

    def set_epoch(self, epoch: int) -> None:
        """Passes it on to the sampler, if that has one."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)


def show_epoch_at(batch_sampler: Any, sampler: LoaderSampler) -> None:
    """Gives a batch sampler ``set_epoch``, where Hugging Face's Trainer looks for it. It stays one of PyTorch's own
    class, which Lightning takes apart.
    """
    if batch_sampler is not None:
        batch_sampler.set_epoch = sampler.set_epoch
