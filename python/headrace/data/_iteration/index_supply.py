"""The dataset indices of an epoch's rows, on their way to the scheduler."""

from __future__ import annotations

import collections
import pickle
from typing import Any

import numpy as np

from headrace import _core
from headrace.data._config import LoaderConfig
from headrace.data._iteration.state import Position
from headrace.data._order.index_plan import IndexPlan, Indices, States, as_integers
from headrace.data._order.replay import Opened, ReplayPlan
from headrace.data._samples.pickling import dumps


class IndexSupply:
    """Hands the scheduler the index lists of an epoch's batches, where these follow a plan; knows each row's index.

    Thread-safety: one thread at a time.

    Args:
        order: "sequential", "shuffled" or "stream", which the scheduler computes by itself, or "explicit".
        plan: of an "explicit" order; else None.
        length: of the dataset.
        prefetch: batches that are in progress or ready at most.

    Attributes:
        ahead: the sampler is asked for each batch that has been taken, as by torch's loader: the draws of a sampler by
            the time an epoch is abandoned determine the next one. Without workers, it is asked as a batch is requested.
        waits: it is not asked before a batch is requested, rather than as an epoch begins: without workers; and if it
            has a state of its own, so that an iterator that nobody reads costs one that goes on from there nothing.
        error: the exception of the sampler, which ends the epoch; set it to None once it has been raised to the
            consumer.
    """

    def __init__(
        self,
        config: LoaderConfig,
        order: str,
        plan: IndexPlan | None,
        scheduler: _core.BatchScheduler,
        length: int,
        seed: int,
        prefetch: int,
    ) -> None:
        self._order, self._plan = order, plan
        self._scheduler = scheduler
        self._length, self._seed = length, seed
        self._batch_size = config.batch_size or 1
        self._rank, self._world = config.shard
        # In progress or ready, the one taken last, and one that is handed over twice.
        self._most_lists = prefetch + 2
        self._lists: collections.OrderedDict[int, Indices] = collections.OrderedDict()
        self.ahead = config.num_workers > 0
        self.waits = not self.ahead or bool(config.sampler_state)
        self._begin = Position(0)
        self.error: Exception | None = None

    @property
    def needed(self) -> bool:
        """Whether the scheduler needs lists at all."""
        return self._plan is not None

    def start_epoch(self, position: Position, opened: Opened | None = None) -> None:
        """Begins an epoch, or continues one, which the scheduler has started already; ``opened``: its sampler's
        iteration, if that has begun.
        """
        self._begin = position
        self.error = None
        if self._plan is not None:
            self._lists.clear()
            if position.plan:
                self._plan.restore(dict(position.plan), position.begun)
            self._plan.start(position.epoch, position.batch)
            if isinstance(self._plan, ReplayPlan):
                self._plan.opened = opened
            if not self.waits:
                self.top_up()

    def let_go(self) -> None:
        """Drops what was iterated over for an epoch that is over."""
        if self._plan is not None:
            self._plan.let_go()

    def states(self) -> States | None:
        """The state that the order of the current epoch depends on from a batch on, besides epoch and seed; None:
        none.
        """
        return None if self._plan is None else self._plan.states()

    def top_up(self) -> None:
        """Hands over the lists that the scheduler asks for. An error of the sampler ends the supply.

        The scheduler counts the lists that it has received, so an interrupt at any moment leaves none out.
        """
        assert self._plan is not None
        for _ in range(self._scheduler.wanted_supply()):
            batch = self._begin.batch_after(self._scheduler.supplied)
            try:
                indices = self._plan.take(batch)
                packed, pickled = (b"", False) if indices is None else _pack(indices)
            except Exception as error:
                self.error = error  # raised once the batches before it have been taken
                indices = None
            if indices is None:
                self._scheduler.end_supply()
                return
            self._lists[batch] = indices
            self._scheduler.supply(len(indices), packed, pickled)
            while len(self._lists) > self._most_lists:
                self._lists.popitem(last=False)

    def top_up_or_raise(self) -> None:
        """As :meth:`top_up`, for a feed, which asks once more at the end of the epoch: raises the sampler's error."""
        if self.error is not None:
            raise self.error
        self.top_up()

    def index_at(self, epoch: int, batch: int, row: int) -> Any:
        """The dataset index of a row; None if its list is no longer known."""
        if self._plan is not None:
            indices = self._lists.get(batch)
            if indices is None:
                return None
            index = indices[row]
            return index.item() if isinstance(index, np.generic) else index
        position = (batch * self._batch_size + row) * self._world + self._rank
        if self._order == "shuffled":
            return _core.IndexPermutation(self._length, self._seed, epoch)[position]
        return position


def _pack(indices: Indices) -> tuple[bytes, bool]:
    """The bytes for the scheduler for a list of indices, and whether they are a pickle instead of int64s."""
    integers = as_integers(indices)
    if integers is not None:
        return integers.tobytes(), False
    try:
        return dumps(list(indices)), True
    except Exception as error:
        raise pickle.PicklingError(
            f"the sampler gave an index that cannot be sent to a worker ({type(error).__name__}: {error}). Indices may "
            "be numbers, strings, tuples of these, or other objects that can be pickled"
        ) from error
