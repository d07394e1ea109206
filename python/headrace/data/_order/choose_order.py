"""Which order a loader's arguments ask for. ``torch/_arguments.py`` makes them of those of headrace.torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import _core
from headrace.data._config import LoaderConfig
from headrace.data._order.index_plan import IndexPlan, Indices
from headrace.data._order.replay import Opened, ReplayBatchPlan, ReplayPlan
from headrace.data._order.supplied_orders import GrainPlan, SeekingBatchPlan, SeekingPlan, TorchShufflePlan
from headrace.data._randomness.torch_generators import (
    copy_generator,
    draw_torch_seed,
    encode_generator,
    generator_of,
)
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.samplers import BatchSampler


def _same(epoch: int, positions: np.ndarray[Any, Any]) -> Indices:
    return positions


def _permuted_for_grain(length: int, seed: int) -> Callable[[int, np.ndarray[Any, Any]], Indices]:
    """The seeded random order of ``range(length)``, as :class:`GrainPlan` asks for it."""

    def index_at(epoch: int, positions: np.ndarray[Any, Any]) -> Indices:
        return _core.IndexPermutation(length, seed, epoch).take(positions)

    return index_at


def _sampled(sampler: SeekableSampler) -> Callable[[int, np.ndarray[Any, Any]], Indices]:
    """The order of a seekable sampler, as :class:`GrainPlan` asks for it."""

    def index_at(epoch: int, positions: np.ndarray[Any, Any]) -> Indices:
        sampler.begin_epoch(epoch)
        return np.concatenate([sampler.take(int(position), int(position) + 1) for position in positions])

    return index_at


def _listed(sampler: Any) -> Callable[[int, np.ndarray[Any, Any]], Indices]:
    """The order of a list or an array of indices, as :class:`GrainPlan` asks for it."""

    def index_at(epoch: int, positions: np.ndarray[Any, Any]) -> Indices:
        return [sampler[position] for position in positions.tolist()]

    return index_at


def order_name(config: LoaderConfig) -> str:
    """The name of the order in a state."""
    if config.iterable:
        return "worker_streams" if config.own_streams else "stream"
    if config.order is not None:
        return config.order
    for given in (config.batch_sampler, config.sampler):
        if given is not None:
            return type(given).__name__
    if config.shuffle:
        return "torch" if config.follows_torch else "shuffled"
    return "sequential"


def order_workers(config: LoaderConfig) -> int | None:
    """The number of workers, if the order depends on it; else None."""
    if config.own_streams:
        return config.num_workers
    return max(1, config.num_workers) if config.order == "grain" else None


def batches_per_epoch(config: LoaderConfig, seed: int) -> int:
    """How many batches this loader gives in an epoch.

    Raises:
        TypeError: the dataset or sampler that decides it has no length.
    """
    if config.batch_sampler is not None:
        return len(config.batch_sampler)  # type: ignore[arg-type]
    samples = len(config.dataset) if config.iterable else _positions(config)
    rank, world = config.shard
    size = config.batch_size or 1
    if config.order == "grain":
        return len(_grain_plan(config, seed))
    if config.drop_last:
        return samples // (size * world)
    return -(-((samples - rank + world - 1) // world) // size)


def make_plan(config: LoaderConfig, seed: int) -> tuple[str, IndexPlan | None]:
    """The order for the scheduler, and the plan that supplies the indices if that is "explicit"."""
    size, drop_last = config.batch_size or 1, config.drop_last
    rank, world = config.shard
    sampler, batch_sampler = config.index_sampler, config.batch_sampler
    keeps, own, seeds_between = config.keeps_indices, config.sampler_state, _seeds_between(config)
    if isinstance(batch_sampler, BatchSampler) and batch_sampler.seekable:
        return "explicit", SeekingBatchPlan(batch_sampler)
    if batch_sampler is not None:
        return "explicit", ReplayBatchPlan(batch_sampler, keeps, own, seeds_between)
    if config.order == "grain":
        return "explicit", _grain_plan(config, seed)
    if sampler is None:
        if config.shuffle and config.follows_torch:
            length = config.dataset_length()
            return "explicit", TorchShufflePlan(length, size, drop_last, config.torch_generator)
        return "shuffled" if config.shuffle else "sequential", None
    if isinstance(sampler, SeekableSampler) and sampler.seekable:
        return "explicit", SeekingPlan(sampler, size, drop_last, rank, world)
    return "explicit", ReplayPlan(sampler, size, drop_last, rank, world, keeps, own, seeds_between)


def opened(config: LoaderConfig) -> Opened | None:
    """The iteration of the sampler that torch's loader begins before it draws its seed; None: it makes no difference.

    With workers, torch's loader then begins another one, of which it takes the indices.
    """
    sampler = _opened_first(config)
    begun = None if sampler is None else Opened(sampler)
    return begun if config.num_workers == 0 else None


def _seeds_between(config: LoaderConfig) -> bool:
    """Whether the seed is drawn from torch's global generator between :func:`opened` and the first index."""
    return config.num_workers == 0 and config.torch_generator is None and _opened_first(config) is not None


def _opened_first(config: LoaderConfig) -> Any:
    """The sampler of which :func:`opened` begins an iteration, if any: one that gives what the loader takes for a
    batch, and may draw from the generator that the seed is drawn from.

    One with a state of its own is left alone until a batch is requested, see ``IndexSupply``; and so is one that shows
    its generator, of which a state between two epochs tells what follows the seed.
    """
    if not (config.follows_torch and config.keeps_indices) or config.iterable or config.sampler_state:
        return None
    sampler = config.batch_sampler
    if sampler is None and config.batch_size is None:
        sampler = config.index_sampler
    ours = isinstance(sampler, (SeekableSampler, BatchSampler))
    return None if sampler is None or ours or generator_of(sampler) is not None else sampler


def upcoming(config: LoaderConfig, seed: int | None) -> tuple[int | None, dict[str, Any]]:
    """The seed of a loader, and the state of its plan, if it began an epoch now. Draws nothing from the generators.

    Of a sampler that draws from torch's global generator nothing is known before it begins.
    """
    if not config.follows_torch or "torch" not in sys.modules:
        plan = None if config.iterable else make_plan(config, seed or 0)[1]
        return seed, plan.upcoming() if isinstance(plan, ReplayPlan) else {}
    generator = copy_generator(config.torch_generator)
    if seed is None or config.draws_each_epoch:
        drawn = draw_torch_seed(generator)
        seed = drawn if seed is None else seed
    plan = None if config.iterable else make_plan(config, seed)[1]
    if isinstance(plan, TorchShufflePlan):
        if config.torch_generator is None:
            return seed, {"torch_seed": draw_torch_seed(generator)}
        return seed, {"torch_generator": encode_generator(generator)}
    if not isinstance(plan, ReplayPlan):
        return seed, {}
    state = plan.upcoming()
    if plan.generator is not None and plan.generator is config.torch_generator:
        state["torch_generator"] = encode_generator(generator)
    return seed, state


def _positions(config: LoaderConfig) -> int:
    """Samples per epoch, of all loaders of the group together."""
    sampler = config.index_sampler
    return config.dataset_length() if sampler is None else len(sampler)


def _grain_plan(config: LoaderConfig, seed: int) -> GrainPlan:
    length, size = _positions(config), config.batch_size
    assert size is not None
    if isinstance(config.index_sampler, SeekableSampler):
        index_at = _sampled(config.index_sampler)
    elif config.index_sampler is not None:
        index_at = _listed(config.index_sampler)
    else:
        index_at = _permuted_for_grain(length, seed) if config.shuffle else _same
    return GrainPlan(length, size, config.drop_last, max(1, config.num_workers), *config.shard, index_at)
