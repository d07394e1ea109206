"""Base classes of samplers: :class:`Sampler`, and :class:`SeekableSampler`, which needs no replay to resume."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from headrace.data._argument_checks import MAX_SEED, integer
from headrace.data._samplers.permuted_range import BLOCK, Int64Array, checked_range
from headrace.data._samplers.seeds import checked_seed, fresh_seed
from headrace.data._short_repr import short_repr

Index = TypeVar("Index", covariant=True)


class Sampler(Generic[Index]):
    """The order of an epoch: yields dataset indices, or, as a ``batch_sampler``, lists of them.

    Any iterable will do as a loader's sampler; it need not inherit from this class. With a ``__len__``, the loader has
    a length, too. A sampler whose order can be computed at any position is a :class:`SeekableSampler`.
    """

    @property
    def seekable(self) -> bool:
        """Whether ``take`` gives any part of any epoch without computing the part before it."""
        return False

    def __iter__(self) -> Iterator[Index]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    __repr__ = short_repr

    def set_epoch(self, epoch: int) -> None:
        """Makes ``epoch``, counted from 0, the next iteration's."""


class SeekableSampler(Sampler[int]):
    """A sampler whose order is a function of the seed, the epoch and the position.

    A subclass defines ``__len__`` and :meth:`order`.

    Each iteration is the next epoch. :meth:`set_epoch` selects one; iterators that have already started are not
    affected.

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
        """Whether ``take`` gives any part of any epoch on its own: not with a torch generator."""
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
        self._seed = checked_seed(seed)
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
        start, stop = checked_range(start, stop, len(self))
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
        for start in range(0, length, BLOCK):
            yield from self.order(epoch, start, min(start + BLOCK, length)).tolist()

    def state_dict(self) -> dict[str, Any]:
        """The state on which the order depends, except the epoch and the arguments; JSON can hold it."""
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


def _checked_state(state: Any, length: int) -> int:
    """The seed that the state of a sampler of that length has."""
    if not isinstance(state, dict) or set(state) != {"seed", "length"}:
        raise TypeError(f"the state of a sampler has the keys 'seed' and 'length', got {state!r:.200}")
    theirs = integer("the length in a sampler's state", state["length"])
    if theirs != length:
        raise ValueError(f"the state was saved with a sampler of {theirs} indices, but this one has {length}")
    return integer("the seed in a sampler's state", state["seed"], 0, MAX_SEED)
