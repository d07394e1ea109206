"""The order in which a loader reads generations."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.data import RandomSampler, SeekableSampler
from headrace.wirehead._datasets.ranks import checked_shard, warn_of_same_samples

# Indices from a GenerationSampler: FIRST_ROUND + code of the round * SWAP_CAP + id. Loaders take indices up to 2^62.
FIRST_ROUND = 1 << 60
_ROUNDS_PER_EPOCH = 1 << 32  # of an infinite sampler
# Of how many rounds before it, in its epoch, a round's code tells.
_MOST_BEFORE = 15
# The numbers of rounds that are yet to begin, by the group of the dataset: all its samplers, and copies of them, draw
# from the same.
_numbers: dict[str, itertools.count[int]] = {}
# Rounds whose numbers a sampler remembers: many more than a loader has in flight.
_REMEMBERED = 4096


class Round(NamedTuple):
    """A pass over one generation.

    Attributes:
        number: among all rounds of a dataset, whichever of its samplers they are of, in the order in which they begin.
        before: how many rounds of its epoch come before it; :data:`_MOST_BEFORE`: so many, or more.
    """

    number: int
    before: int

    @property
    def code(self) -> int:
        return self.number * (_MOST_BEFORE + 1) + self.before

    @classmethod
    def of_code(cls, code: int) -> Round:
        return cls(*divmod(code, _MOST_BEFORE + 1))


class GenerationSampler(SeekableSampler):
    """Indices that say in which round of a loader, and so from which generation, a sample is; see
    :meth:`MongoheadDataset.sampler`.

    Args:
        swap_cap: samples per generation.
        shuffle: a random order, a different one in each round.
        seed: of that.
        infinite: one endless epoch.
        shard: see :meth:`MongoheadDataset.sampler`.
        group: of the dataset whose rounds they are; None: of none.

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
        group: str | None = None,
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
        self._group = uuid.uuid4().hex if group is None else group
        #: Of rounds that have begun, by epoch and place in it. A loader may ask again for part of one.
        self._begun_rounds: dict[int, Round] = {}

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
            parts.append(ids + (FIRST_ROUND + self._begin(round, within).code * self._cap))
            start += last - first
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _begin(self, round: int, before: int) -> Round:
        begun = self._begun_rounds.get(round)
        if begun is None:
            begun = self._begun_rounds.setdefault(round, Round(self._number(), min(before, _MOST_BEFORE)))
            while len(self._begun_rounds) > _REMEMBERED:
                del self._begun_rounds[next(iter(self._begun_rounds))]
        return begun

    def _number(self) -> int:
        return next(_numbers.setdefault(self._group, itertools.count()))

    def _ids(self, round: int, first: int, last: int) -> npt.NDArray[np.int64]:
        """Those at some places of a round's order."""
        ids = np.arange(first, last) if self._shuffled is None else self._shuffled.order(round, first, last)
        return np.asarray(ids, np.int64)
