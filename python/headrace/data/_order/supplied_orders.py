"""Which samples make up which batch: the plans of which ``choose_order`` picks one.

The C++ scheduler computes sequential and seeded random orders (``reader/index_permutation.h``); every other order is a
plan, from which Python supplies the scheduler with indices.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.data._datasets.grain import grain_batch_count, grain_positions
from headrace.data._order.index_plan import IndexPlan, Indices, States, check_keys
from headrace.data._randomness.torch_generators import (
    check_generator_state,
    check_torch_seed,
    copy_generator,
    draw_torch_seed,
    encode_generator,
    set_generator,
)
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.samplers import BatchSampler


class _SamplerPlan(IndexPlan):
    """A plan whose state is that of a sampler."""

    def __init__(self, state_of: SeekableSampler) -> None:
        self._state_of = state_of

    def states(self) -> States:
        state = {"sampler": self._state_of.state_dict()}
        return lambda batch: state

    def check(self, state: dict[str, Any]) -> None:
        check_keys(state, "sampler")
        self._state_of.check_state(state["sampler"])

    def restore(self, state: dict[str, Any], begun: bool) -> None:
        self._state_of.load_state_dict(state["sampler"])


class SeekingPlan(_SamplerPlan):
    """Batches of a sampler that knows the index at any position: starts anywhere in O(1).

    Args:
        rank, world: the share of each global batch of ``batch_size * world`` positions: every ``world``-th, from
            ``rank`` on.
    """

    def __init__(self, sampler: SeekableSampler, batch_size: int, drop_last: bool, rank: int, world: int) -> None:
        super().__init__(sampler)
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._rank, self._world = rank, world
        self._epoch = self._length = 0

    def start(self, epoch: int, batch: int) -> None:
        self._sampler.begin_epoch(epoch)
        self._epoch, self._length = epoch, len(self._sampler)

    def take(self, batch: int) -> Indices | None:
        size = self._batch_size * self._world
        start = batch * size
        stop = min(start + size, self._length)
        if stop - start < (size if self._drop_last else 1):
            return None
        # Not take(), whose epoch another iteration may have started.
        indices = self._sampler.order(self._epoch, start, stop)[self._rank :: self._world]
        return indices if len(indices) else None


class SeekingBatchPlan(_SamplerPlan):
    """Like :class:`SeekingPlan`, for a batch sampler whose sampler is seekable."""

    def __init__(self, sampler: BatchSampler) -> None:
        assert isinstance(sampler.sampler, SeekableSampler)
        super().__init__(sampler.sampler)
        self._sampler = sampler
        self._epoch = 0

    def start(self, epoch: int, batch: int) -> None:
        self._sampler.begin_epoch(epoch)
        self._epoch = epoch

    def take(self, batch: int) -> Indices | None:
        if batch >= len(self._sampler):
            return None
        return self._sampler.order(self._epoch, batch, batch + 1)[0]


class TorchShufflePlan(IndexPlan):
    """The order in which torch's own loader would shuffle, drawn from torch's generator in the same way: when the first
    batch is taken.

    Args:
        generator: a ``torch.Generator``; None: the global one.
    """

    def __init__(self, length: int, batch_size: int, drop_last: bool, generator: Any) -> None:
        self._length, self._batch_size, self._drop_last = length, batch_size, drop_last
        self._generator = generator
        self._state: dict[str, Any] = {}
        self._begun = False  # the generator has given what this epoch draws
        self._restored: tuple[dict[str, Any], bool] = ({}, False)  # (_state, _begun) of the next start
        self._order: Any = None
        self._at_end: Any = None  # the generator, until the end was reached

    def start(self, epoch: int, batch: int) -> None:
        self._state, self._begun = self._restored
        self._restored = ({}, False)
        self._order = None

    def _draw(self) -> None:
        torch = importlib.import_module("torch")
        if not self._begun:  # a restored state has the numbers, which the generator gives nevertheless
            self._state.update({**self._upcoming(draws=True), **self._state})
            self._begun = True
        generator = self._generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(self._state["torch_seed"])
        else:
            set_generator(generator, self._state["torch_generator"])
        self._order = memoryview(torch.randperm(self._length, generator=generator).numpy())
        self._at_end = generator

    def _upcoming(self, draws: bool = False) -> dict[str, Any]:
        """The state of an epoch that was not drawn yet."""
        if self._generator is None:
            return {"torch_seed": draw_torch_seed(None if draws else copy_generator(None))}
        return {"torch_generator": encode_generator(self._generator)}

    def take(self, batch: int) -> Indices | None:
        if self._order is None:
            self._draw()
        start = batch * self._batch_size
        indices: Indices = self._order[start : start + self._batch_size]
        if len(indices) < self._batch_size and self._at_end is not None:
            # Torch's sampler draws once more at its end, which a request beyond the last index has reached.
            generator, self._at_end = self._at_end, None
            importlib.import_module("torch").randperm(self._length, generator=generator)
        return indices if len(indices) >= (self._batch_size if self._drop_last else 1) else None

    def states(self) -> States:
        state = self._state
        return lambda batch: state or self._upcoming()

    def check(self, state: dict[str, Any]) -> None:
        if not {"torch_seed", "torch_generator"} & set(state):
            raise ValueError(
                "the state was not taken from a loader with PyTorch's shuffling; pass the seed of that loader"
            )
        if self._generator is None:
            check_keys(state, "torch_seed")
            check_torch_seed(state["torch_seed"])
        else:
            check_keys(state, "torch_generator")
            check_generator_state("torch_generator", state["torch_generator"])

    def restore(self, state: dict[str, Any], begun: bool) -> None:
        self._restored = state, begun


class GrainPlan(IndexPlan):
    """Batches in the order in which Grain's workers would make them; see :mod:`headrace.data._datasets.grain`.

    Args:
        index_at: the dataset's keys for an array of positions in an epoch.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        drop_last: bool,
        workers: int,
        rank: int,
        world: int,
        index_at: Callable[[int, np.ndarray[Any, Any]], Indices],
    ) -> None:
        self._arguments = (batch_size, length, workers, rank, world, drop_last)
        self._count = grain_batch_count(*self._arguments)
        self._index_at = index_at
        self._epoch = 0

    def __len__(self) -> int:
        return self._count

    def start(self, epoch: int, batch: int) -> None:
        self._epoch = epoch

    def take(self, batch: int) -> Indices | None:
        if batch >= self._count:
            return None
        return self._index_at(self._epoch, grain_positions(batch, *self._arguments))
