"""The order in which a loader reads generations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from headrace.data import RandomSampler, SeekableSampler
from headrace.wirehead._datasets.ranks import checked_shard, warn_of_same_samples

# Indices from a GenerationSampler: FIRST_ROUND + round * SWAP_CAP + id. Loaders take indices up to 2^62.
FIRST_ROUND = 1 << 60
_ROUNDS_PER_EPOCH = 1 << 32  # of an infinite sampler


class GenerationSampler(SeekableSampler):
    """Indices that say in which round of a loader, and so from which generation, a sample is; see
    :meth:`MongoheadDataset.sampler`.

    Args:
        swap_cap: samples per generation.
        shuffle: a random order, a different one in each round.
        seed: of that.
        infinite: one endless epoch.
        shard: see :meth:`MongoheadDataset.sampler`.

    Attributes:
        rank, num_replicas: of the share; present only if there is one, so that loaders see that samples are divided.
    """

    rank: int
    num_replicas: int

    def __init__(
        self,
        swap_cap: int,
        shuffle: bool = True,
        seed: int | None = None,
        infinite: bool = False,
        shard: tuple[int, int] | str | None = None,
    ) -> None:
        if seed is not None and not isinstance(seed, (int, np.integer)):
            raise TypeError(f"seed must be a whole number, or None, got {seed!r}")
        self._cap = swap_cap
        rank, world = (0, 1) if shard is None else checked_shard(shard)
        if world > swap_cap:
            raise ValueError(f"shard: a generation has {swap_cap} samples (SWAP_CAP), too few for {world} processes")
        if world > 1:
            if shuffle and seed is None:
                raise ValueError("shard: pass the same seed= in all processes, or each would divide another order")
            self.rank, self.num_replicas = rank, world
        self._first, self._step = rank, world
        self._share = swap_cap // world  # samples of a round
        self._shuffled = RandomSampler(range(swap_cap), generator=seed) if shuffle else None
        self._rounds = _ROUNDS_PER_EPOCH if infinite else 1

    def __len__(self) -> int:
        return self._share * self._rounds

    def __iter__(self) -> Iterator[int]:
        """For PyTorch's loader. Warns, as Headrace's loader would, if several processes read the same samples."""
        if self._step == 1:
            warn_of_same_samples('sampler(shard="environment", seed=…)')
        return super().__iter__()

    def order(self, epoch: int, start: int, stop: int) -> npt.NDArray[np.int64]:
        parts = []
        while start < stop:
            within, first = divmod(start, self._share)
            last = min(self._share, first + stop - start)
            round = epoch * self._rounds + within
            ids = self._ids(round, first * self._step, last * self._step)[self._first :: self._step]
            parts.append(ids + (FIRST_ROUND + round * self._cap))
            start += last - first
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _ids(self, round: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Those at some places of a round's order."""
        ids = np.arange(first, last) if self._shuffled is None else self._shuffled.order(round, first, last)
        return np.asarray(ids, np.int64)
