"""Samplers: the order in which the samples of a dataset are read.

They have the names and arguments of those of ``torch.utils.data``, and need no lists: the index at any position of any
epoch is computed from the seed on its own, so that a loader can start in the middle of an epoch at no cost.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import operator
import os
import sys
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from headrace import _core
from headrace.data._arguments import MAX_SEED, integer, is_torch_generator, number, positive

Index = TypeVar("Index", covariant=True)
Int64Array = npt.NDArray[np.int64]

# Indices that are computed at once while iterating.
_BLOCK = 1024
_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)


class Sampler(Generic[Index]):
    """The order of an epoch: yields dataset indices, or, as a ``batch_sampler``, lists of them.

    Any iterable will do as a loader's sampler; it need not inherit from this class. With a ``__len__``, the loader has
    a length, too. A sampler whose order can be computed at any position is a :class:`SeekableSampler`.
    """

    @property
    def seekable(self) -> bool:
        """Whether ``take`` gives any part of any epoch without what comes before it."""
        return False

    def __iter__(self) -> Iterator[Index]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def set_epoch(self, epoch: int) -> None:
        """Makes ``epoch``, counted from 0, the next iteration's."""


class SeekableSampler(Sampler[int]):
    """A sampler whose order is a function of the seed, the epoch and the position.

    A subclass defines ``__len__`` and :meth:`order`.

    Each iteration is the next epoch. :meth:`set_epoch` selects one; iterators that have begun are not affected.

    Thread-safety: reading is safe from several threads, ``set_epoch`` and ``iter`` are not.
    """

    _seed: int | None = 0  # None: not drawn yet
    _epoch = 0
    _begun = False
    _chosen: int | None = None
    # torch's own sampler, if one of torch's generators decides the order; and that of this epoch, once it is needed.
    _delegate: Any = None
    _listed: Int64Array | None = None

    @property
    def seekable(self) -> bool:
        """Whether ``take`` gives any part of any epoch without what comes before it: not with a torch generator."""
        return self._delegate is None

    def __len__(self) -> int:
        raise NotImplementedError(f"{type(self).__name__} must define __len__")

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        """The indices at positions ``start`` to ``stop`` of an epoch, ``0 <= start <= stop <= len(self)``."""
        raise NotImplementedError(f"{type(self).__name__} must define order")

    @property
    def seed(self) -> int:
        """Determines the order, together with the epoch. Without a generator it is drawn when first needed."""
        if self._seed is None:
            self._seed = fresh_seed()
        return self._seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._seed = _checked_seed(seed)
        self._listed = None

    @property
    def seed_is_chosen(self) -> bool:
        """Whether there is a seed already, so that none will be drawn."""
        return self._seed is not None

    def set_epoch(self, epoch: int) -> None:
        """Makes ``epoch``, counted from 0, that of the next iteration and of :meth:`take`.

        With a torch generator, the next epoch is whatever the generator draws next.
        """
        self.begin_epoch(epoch)
        self._chosen = self._epoch

    def chosen_epoch(self) -> int | None:
        """The epoch selected with :meth:`set_epoch` since the last call of this method; None if there was none.

        For loaders, whose own epoch follows it.
        """
        chosen, self._chosen = self._chosen, None
        return chosen

    def begin_epoch(self, epoch: int) -> None:
        """Like :meth:`set_epoch`, for loaders: does not count as the user's choice."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        if epoch != self._epoch or self._begun:
            self._listed = None
        self._epoch = epoch
        self._begun = False

    def take(self, start: int, stop: int) -> Int64Array:
        """The indices at positions ``start`` to ``stop`` of the current epoch, in time proportional to their number.

        Raises:
            IndexError: there are no such positions.
        """
        start, stop = _range(start, stop, len(self))
        if self._delegate is None:
            return self.order(self._epoch, start, stop)
        if self._listed is None:
            self._listed = np.array(list(self._delegate), dtype=np.int64)
        return self._listed[start:stop]

    def __iter__(self) -> Iterator[Any]:
        if self._delegate is not None:
            return iter(self._delegate)
        if self._begun:
            self._epoch += 1
        self._begun = True
        return self._iterate(self._epoch, len(self))

    def _iterate(self, epoch: int, length: int) -> Iterator[Any]:
        for start in range(0, length, _BLOCK):
            yield from self.order(epoch, start, min(start + _BLOCK, length)).tolist()

    def state_dict(self) -> dict[str, Any]:
        """What the order depends on besides the epoch and the arguments; JSON can hold it."""
        return {"seed": self.seed, "length": len(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Adopts the order of the sampler that ``state`` was taken from.

        Raises:
            TypeError, ValueError: ``state`` is not a sampler's state, or that of a sampler of another length.
        """
        self.seed = _checked_state(state, len(self))

    def check_state(self, state: Any) -> None:
        """Raises what :meth:`load_state_dict` would raise, unless a subclass overrides that."""
        if type(self).load_state_dict is SeekableSampler.load_state_dict:
            _checked_state(state, len(self))


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
            return _scale(_words(self.seed, epoch, start, stop), length).astype(np.int64)
        parts = []
        while start < stop:
            number, position = divmod(start, length)
            count = min(stop - start, length - position)
            parts.append(_permuted(length, pass_seed(self.seed, number), epoch, position, position + count))
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
            raise TypeError(f"take() returns integers, and this sampler has indices such as {chosen[0]!r}")
        return array.astype(np.int64, copy=False)

    def _positions(self, epoch: int, start: int, stop: int) -> list[int]:
        positions: list[int] = []
        if start < stop:
            positions = _permuted(len(self.indices), self.seed, epoch, start, stop).tolist()
        return positions

    def _iterate(self, epoch: int, length: int) -> Iterator[Any]:
        # The indices themselves, which need not be integers.
        for start in range(0, length, _BLOCK):
            for position in self._positions(epoch, start, min(start + _BLOCK, length)):
                yield self.indices[position]


class WeightedRandomSampler(SeekableSampler):
    """Indices of ``weights``, drawn with probabilities in proportion to these.

    With replacement, each index is drawn independently, by the alias method (Walker, "An Efficient Method for
    Generating Discrete Random Variables with General Distributions", 1977). Without, the order is that of exponentially
    distributed keys (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006), computed once per
    epoch.

    Args:
        weights: one per index; they need not add up to one.
        num_samples: indices per epoch.
        replacement: whether an index may come several times.
        generator: as in :class:`RandomSampler`.

    Raises:
        ValueError: weights are negative, not finite, all zero or not one-dimensional; ``num_samples`` is not positive
            or, without replacement, greater than the number of positive weights.
    """

    def __init__(
        self,
        weights: Sequence[float] | npt.NDArray[Any],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        self.num_samples = positive("num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement must be True or False, got {replacement!r}")
        self.weights = np.asarray(weights, dtype=np.float64).copy()
        if self.weights.ndim != 1:
            raise ValueError(f"weights must be a sequence of numbers, got an array of shape {self.weights.shape}")
        if not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise ValueError("weights must be finite and not negative")
        possible = int(np.count_nonzero(self.weights))
        if possible == 0:
            raise ValueError("at least one weight must be positive")
        if not replacement and num_samples > possible:
            raise ValueError(f"cannot draw {num_samples} indices without replacement from {possible} positive weights")
        self.replacement = replacement
        self.generator = generator
        self._table: tuple[npt.NDArray[np.float64], Int64Array] | None = None
        self._keyed: tuple[tuple[int, int], Int64Array] | None = None
        if is_torch_generator(generator):
            self._delegate = import_torch_data().WeightedRandomSampler(weights, num_samples, replacement, generator)
        else:
            self._seed = seed_of(generator)

    def __len__(self) -> int:
        return self.num_samples

    def order(self, epoch: int, start: int, stop: int) -> Int64Array:
        if not self.replacement:
            return self._without_replacement(epoch)[start:stop]
        if self._table is None:
            self._table = _alias_table(self.weights)
        kept, alias = self._table
        words = _words(self.seed, epoch, 2 * start, 2 * stop)
        bucket = _scale(words[::2], len(kept)).astype(np.int64)
        return np.where(_unit(words[1::2]) < kept[bucket], bucket, alias[bucket])

    def _without_replacement(self, epoch: int) -> Int64Array:
        keyed = self._keyed  # read once: another thread may replace it
        if keyed is None or keyed[0] != (self.seed, epoch):
            positive = np.flatnonzero(self.weights)
            exponential = -np.log1p(-_unit(_words(self.seed, epoch, 0, len(self.weights))))[positive]
            with np.errstate(over="ignore"):
                first = np.argsort(exponential / self.weights[positive], kind="stable")[: self.num_samples]
            self._keyed = keyed = ((self.seed, epoch), positive[first].astype(np.int64))
        return keyed[1]


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
            raise TypeError(f"{type(self.sampler).__name__} has no take(): its indices come only one after the other")
        start, stop = _range(start, stop, len(self))
        size, count = self.batch_size, len(self.sampler)  # type: ignore[arg-type]
        indices = take(min(start * size, count), min(stop * size, count))
        return [indices[begin : begin + size] for begin in range(0, (stop - start) * size, size)]

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
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


class PermutedRange(Sequence[int]):
    """Part of a pseudo-random permutation of ``range(length)``, as a sequence that takes no memory.

    Args:
        length: of the whole permutation.
        seed: determines the permutation, together with ``epoch``.
        epoch: see ``seed``.
        part: the positions in the permutation. Default: all.
    """

    def __init__(self, length: int, seed: int, epoch: int = 0, part: range | None = None) -> None:
        self._parameters = (length, seed, epoch, range(length) if part is None else part)
        self._part = self._parameters[3]
        self._permutation = _core.IndexPermutation(max(1, length), seed, epoch)

    def __reduce__(self) -> Any:
        return type(self), self._parameters

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            length, seed, epoch, part = self._parameters
            return PermutedRange(length, seed, epoch, part[position])
        return self._permutation[self._part[position]]

    def __iter__(self) -> Iterator[int]:
        for start in range(0, len(self._part), _BLOCK):
            part = self._part[start : start + _BLOCK]
            positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
            yield from self._permutation.take(positions).tolist()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PermutedRange) and self._parameters == other._parameters

    def __hash__(self) -> int:
        return hash(self._parameters)

    def __repr__(self) -> str:
        return f"PermutedRange{self._parameters}"


def _range(start: int, stop: int, length: int) -> tuple[int, int]:
    start, stop = operator.index(start), operator.index(stop)
    if not 0 <= start <= stop <= length:
        raise IndexError(f"positions {start} to {stop} are not within 0 to {length}")
    return start, stop


def import_torch_data() -> Any:
    return importlib.import_module("torch.utils.data")


def seed_of(generator: Any) -> int | None:
    """The seed that a ``generator`` argument stands for; None: a fresh one is to be drawn."""
    if generator is None:
        return None
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(0, 1 << 63))
    return _checked_seed(generator)


def _checked_seed(seed: Any) -> int:
    checked = number(seed)
    if checked is None:
        raise TypeError(f"generator must be a seed, a NumPy generator or a torch generator, got {type(seed).__name__}")
    return integer("a seed", checked, 0, MAX_SEED)


def _checked_state(state: Any, length: int) -> int:
    """The seed that the state of a sampler of that length has."""
    if not isinstance(state, dict) or set(state) != {"seed", "length"}:
        raise TypeError(f"the state of a sampler has the keys 'seed' and 'length', got {state!r:.200}")
    theirs = integer("the length in a sampler's state", state["length"])
    if theirs != length:
        raise ValueError(f"the state is of a sampler of {theirs} indices, this one has {length}")
    return integer("the seed in a sampler's state", state["seed"], 0, MAX_SEED)


def fresh_seed() -> int:
    """A fresh seed; in a program that has imported torch it is drawn from torch, so that ``torch.manual_seed``
    determines it.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_().item())
    return int.from_bytes(os.urandom(8), "little") >> 1


def _of_group(name: str, function: str, variable: str) -> int:
    """What torch.distributed or the environment says about the processes that train together."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, function)())
    if variable in os.environ:
        return int(os.environ[variable])
    raise RuntimeError(f"{name} is not given, torch.distributed is not running and {variable} is not set")


def _permuted(length: int, seed: int, epoch: int, start: int, stop: int) -> Int64Array:
    return _core.IndexPermutation(length, seed, epoch).take(np.arange(start, stop, dtype=np.int64))


def pass_seed(seed: int, number: int) -> int:
    """The seed of an epoch's ``number``-th permutation; the first has the sampler's own."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed},{number}".encode(), digest_size=8).digest(), "little")


def _words(seed: int, epoch: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """Words ``start`` to ``stop`` of the random 64-bit words of an epoch: Philox 4x64, four words per counter."""
    key = np.frombuffer(hashlib.blake2b(f"sampler,{seed},{epoch}".encode(), digest_size=16).digest(), np.uint64)
    first = start // 4
    return np.random.Philox(key=key, counter=first).random_raw(stop - 4 * first)[start - 4 * first :]


def _scale(words: npt.NDArray[np.uint64], length: int) -> npt.NDArray[np.uint64]:
    """Words as numbers below ``length``: the upper 64 bits of the product, which favours no number by more than
    2**-64.
    """
    low, high = np.uint64(length & 0xFFFF_FFFF), np.uint64(length >> 32)
    words_low, words_high = words & _LOW, words >> _HALF
    cross = words_high * low
    middle = (words_low * low >> _HALF) + (cross & _LOW) + words_low * high
    product: npt.NDArray[np.uint64] = words_high * high + (cross >> _HALF) + (middle >> _HALF)
    return product


def _unit(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Words as numbers from 0 to less than 1."""
    numbers: npt.NDArray[np.float64] = (words >> np.uint64(11)) * 2.0**-53
    return numbers


def _alias_table(weights: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Int64Array]:
    """For each bucket: the share of its own index, and the index that has the rest.

    Buckets that are too full give their excess to those with room, in order. Prefix sums tell who gives to whom, so no
    loop is needed (after Hübschle-Schneider and Sanders, "Parallel Weighted Random Sampling", 2019).
    """
    count = len(weights)
    share = weights / weights.max()
    share *= count / share.sum()
    full = share >= 1
    if not full.any():  # only by rounding
        full[share.argmax()] = True
    small, large = np.flatnonzero(~full), np.flatnonzero(full)
    room = np.concatenate([[0.0], np.cumsum(1 - share[small])])  # in the first i small buckets
    excess = np.cumsum(share[large] - 1)  # of the first i + 1 large ones
    kept, alias = np.ones(count), np.arange(count, dtype=np.int64)
    kept[small] = share[small]
    alias[small] = large[np.minimum(np.searchsorted(excess, room[:-1], side="right"), len(large) - 1)]
    # A large bucket that gave away more than its excess is filled up by the next one.
    filled = np.searchsorted(room, excess, side="left")
    last = len(large) - 1
    given = filled[:last]
    kept[large[:last]] = 1 + excess[:last] - room[np.minimum(given, len(room) - 1)]
    alias[large[:last]] = large[1:]
    kept[large[:last][given >= len(room)]] = 1.0
    return kept, alias
