"""Mixtures: several datasets in given proportions, as one.

The proportions are exact at every point: among the first n samples each dataset has n times its weight, to within less
than one sample. The order of the datasets is a fixed, periodic schedule, so that the n-th sample is known without those
before it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace import _core
from headrace.data._datasets.capabilities import passes_on, tell_epoch
from headrace.data._datasets.datasets import ComposedDataset, Part, has_state, in_range, is_concatenation
from headrace.data._datasets.iterable_datasets import IterableDataset, is_iterable_dataset
from headrace.data._datasets.schedule import Schedule
from headrace.data._samplers.permuted_range import Int64Array
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.seeds import pass_seed, seed_of

_END = object()


def _schedule(datasets: Sequence[Any], weights: Sequence[Any] | None) -> Schedule:
    if weights is None:
        weights = [1] * len(datasets)
    if len(weights) != len(datasets):
        raise ValueError(f"a mixture needs a weight for each dataset: got {len(datasets)} and {len(weights)} weights")
    return Schedule(weights)


def _length(schedule: Schedule, lengths: Sequence[int], length: int | str) -> int:
    """How many samples a mixture has, for one of the ways to say it."""
    if any(count == 0 for count in lengths):
        raise ValueError(f"dataset {list(lengths).index(0)} of the mixture is empty")
    if length == "first_exhausted":
        return min(schedule.position_of(number, count) for number, count in enumerate(lengths))
    if length == "all_exhausted":
        return 1 + max(schedule.position_of(number, count - 1) for number, count in enumerate(lengths))
    if isinstance(length, str):
        raise ValueError(f'length must be a number, "first_exhausted" or "all_exhausted", got {length!r}')
    if operator.index(length) < 0:
        raise ValueError(f"length must be at least 0, got {length}")
    return operator.index(length)


class MixtureDataset(ComposedDataset):
    """Map-style datasets mixed in exact proportions.

    Each dataset is read from its beginning, and again whenever it ends. For proportions that are exact at every point,
    read the mixture in order, and let it shuffle by its ``seed``; if the loader shuffles instead, they are exact for
    the epoch as a whole. For a new order in each epoch, see :class:`MixtureSampler`.

    Args:
        datasets: map-style datasets.
        weights: of each dataset, in any unit; see :class:`Schedule`. Default: all the same.
        length: how many samples: a number; "first_exhausted": as many as there are before a dataset would be read a
            second time; "all_exhausted": until all have been read once.
        seed: reads each dataset in a random order, a different one in each pass. Default: in its own order.

    Raises:
        TypeError, ValueError: there are no datasets, one is empty or iterable, or the weights or the length are
            invalid.
    """

    def __init__(
        self,
        datasets: Iterable[Any],
        weights: Sequence[Any] | None = None,
        length: int | str = "first_exhausted",
        seed: int | None = None,
    ) -> None:
        self.datasets = list(datasets)
        for dataset in self.datasets:
            if is_iterable_dataset(dataset):
                raise TypeError(f"{type(dataset).__name__} is iterable; use IterableMixture for iterable datasets")
        self.schedule = _schedule(self.datasets, weights)
        self.seed = seed_of(seed)
        self._lengths = [len(dataset) for dataset in self.datasets]
        self._length = _length(self.schedule, self._lengths, length)
        self._parts = list(map(Part, self.datasets))

    def __len__(self) -> int:
        return self._length

    def locate(self, index: int) -> tuple[int, int]:
        """The dataset that sample ``index`` comes from, and its index there."""
        number, sample = self.schedule[in_range(index, self._length)]
        time, position = divmod(sample, self._lengths[number])
        if self.seed is None:
            return number, position
        permutation = _core.IndexPermutation(self._lengths[number], pass_seed(self.seed, number), time)
        return number, permutation[position]

    @passes_on
    def __getitem__(self, index: Any, *, rng: np.random.Generator | None = None, out: Any = None) -> Any:
        number, inner = self.locate(index)
        return self._parts[number].get(inner, rng, out)

    def _get_many(self, indices: list[Any]) -> list[Any]:
        return self._gather([self.locate(index) for index in indices])


class MixtureSampler(SeekableSampler):
    """Indices of a :class:`ConcatDataset` that mix its parts in exact proportions, in a new order each epoch.

    Args:
        data_source: a :class:`ConcatDataset`, ours or torch's; or the lengths of its parts.
        weights: as in :class:`MixtureDataset`.
        length: indices per epoch, as in :class:`MixtureDataset`.
        shuffle: reads each part in a random order.
        generator: as in :class:`headrace.data.RandomSampler`, except torch's generators.

    Raises:
        TypeError, ValueError: as for :class:`MixtureDataset`.
    """

    def __init__(
        self,
        data_source: Any,
        weights: Sequence[Any] | None = None,
        length: int | str = "first_exhausted",
        shuffle: bool = True,
        generator: Any = None,
    ) -> None:
        self._lengths = _lengths_of(data_source)
        self._starts = np.cumsum([0, *self._lengths[:-1]], dtype=np.int64)
        self.schedule = _schedule(self._lengths, weights)
        self.shuffle = bool(shuffle)
        self._seed = seed_of(generator)
        if self._seed is None and not self.shuffle:
            self._seed = 0  # the order does not depend on it
        self._length = _length(self.schedule, self._lengths, length)

    def __len__(self) -> int:
        return self._length

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        which, sample = self.schedule.at(np.arange(start, stop, dtype=np.int64))
        times, position = np.divmod(sample, np.asarray(self._lengths, np.int64)[which])
        if self.shuffle:
            for number, time in {*zip(which.tolist(), times.tolist())}:
                seed = pass_seed(self.seed, time * len(self._lengths) + number)
                permutation = _core.IndexPermutation(self._lengths[number], seed, epoch)
                rows = np.flatnonzero((which == number) & (times == time))
                position[rows] = permutation.take(position[rows])
        return self._starts[which] + position


def _lengths_of(source: Any) -> list[int]:
    """Of the parts of a concatenation; other datasets with parts, such as a mixture, have other indices."""
    if is_concatenation(source):
        return list(map(len, source.datasets))
    if not isinstance(source, (Sequence, np.ndarray)):
        raise TypeError(
            f"data_source must be a ConcatDataset, or the lengths of its parts, got {type(source).__name__}"
        )
    return list(map(operator.index, source))


class _Progress:
    """The position of an iteration over a mixture of that many datasets."""

    def __init__(self, datasets: int) -> None:
        self.position = 0  # samples given
        self.samples = [0] * datasets  # of each dataset, since its start
        self.times = [0] * datasets  # that each has ended
        self.ended = False
        self.states: list[Any] = [None] * datasets  # that datasets have yet to be put into


class IterableMixture(IterableDataset[Any]):
    """Iterable datasets mixed in exact proportions.

    Its state contains the states of the datasets that have one; the others are read again up to where they were.

    Args:
        datasets: iterable datasets.
        weights: of each dataset, in any unit; see :class:`Schedule`. Default: all the same.
        stop: when to end: "first_exhausted": when a dataset has nothing left at its turn; "all_exhausted": when this
            has happened to each of them; "never". Datasets that end earlier are restarted.

    Raises:
        TypeError, ValueError: there are no datasets, one is not iterable, or the weights are invalid. While iterating,
            ValueError: a dataset to be restarted is empty.
    """

    def __init__(
        self, datasets: Iterable[Any], weights: Sequence[Any] | None = None, stop: str = "first_exhausted"
    ) -> None:
        self.datasets = list(datasets)
        for dataset in self.datasets:
            if not is_iterable_dataset(dataset):
                raise TypeError(f"{type(dataset).__name__} is not iterable; use MixtureDataset for map-style datasets")
        self.schedule = _schedule(self.datasets, weights)
        if stop not in ("first_exhausted", "all_exhausted", "never"):
            raise ValueError(f'stop must be "first_exhausted", "all_exhausted" or "never", got {stop!r}')
        self.stop = stop
        self._resumed: dict[str, Any] | None = None
        self._latest = _Progress(len(self.datasets))

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        progress = self._latest = _Progress(len(self.datasets))
        if resumed is not None:
            progress.position, progress.ended = resumed["position"], resumed["ended"]
            progress.samples, progress.times = list(resumed["samples"]), list(resumed["times"])
            progress.states = list(resumed["states"])
        return self._iterate(progress)

    def _iterate(self, progress: _Progress) -> Iterator[Any]:
        iterators: list[Iterator[Any] | None] = [None] * len(self.datasets)
        while not progress.ended:
            number = self.schedule[progress.position][0]
            iterator = iterators[number]
            if iterator is None:
                iterator = iterators[number] = self._resume(number, progress)
            sample = next(iterator, _END)
            if sample is _END:
                progress.times[number] += 1
                if self.stop == "first_exhausted" or (self.stop == "all_exhausted" and all(progress.times)):
                    progress.ended = True
                elif progress.samples[number] == 0:
                    raise ValueError(f"dataset {number} of the mixture is empty")
                progress.samples[number] = 0
                iterators[number] = iter(self.datasets[number])
                continue
            progress.position += 1
            progress.samples[number] += 1
            yield sample

    def _resume(self, number: int, progress: _Progress) -> Iterator[Any]:
        """A dataset's iterator, past the samples read before."""
        dataset, state = self.datasets[number], progress.states[number]
        if state is None:
            return itertools.islice(dataset, progress.samples[number], None)
        progress.states[number] = None
        dataset.load_state_dict(state)
        return iter(dataset)

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the datasets that have ``set_epoch``."""
        tell_epoch(self.datasets, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest iteration."""
        if self._resumed is not None:
            return self._resumed
        progress = self._latest
        return {
            "position": progress.position,
            "ended": progress.ended,
            "samples": list(progress.samples),
            "times": list(progress.times),
            "states": [self._state_of(number, progress) for number in range(len(self.datasets))],
        }

    def _state_of(self, number: int, progress: _Progress) -> Any:
        dataset, state = self.datasets[number], progress.states[number]
        if state is None and progress.samples[number] and has_state(dataset):
            return dataset.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration resumes where ``state`` was taken.

        Raises:
            ValueError: the state belongs to another number of datasets.
        """
        if len(state["samples"]) != len(self.datasets):
            raise ValueError(
                f"the state was saved with a mixture of {len(state['samples'])} datasets, but this one has "
                f"{len(self.datasets)}"
            )
        self._resumed = dict(state)
