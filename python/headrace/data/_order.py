"""Which samples make up which batch.

The C++ scheduler computes sequential and seeded random orders; every other order is a plan, from which Python supplies
the scheduler with indices.
"""

from __future__ import annotations

import abc
import base64
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union

import numpy as np

from headrace import _core, errors
from headrace.data._arguments import integer
from headrace.data._config import LoaderConfig
from headrace.data._grain import grain_batch_count, grain_positions
from headrace.data._sampler import BatchSampler, SeekableSampler

Indices = Union[Sequence[Any], "np.ndarray[Any, np.dtype[np.int64]]"]


class BatchPlan(abc.ABC):
    """The index lists of an epoch's batches. One iteration at a time.

    A signal handler may raise at any moment; asking for the same batch again then gives what it would have given.

    A subclass whose order depends on more than epoch and batch overrides ``state``, ``check`` and ``restore``.
    """

    @abc.abstractmethod
    def start(self, epoch: int, batch: int) -> None:
        """Begins ``epoch`` at ``batch``, counted from 0."""

    @abc.abstractmethod
    def take(self, batch: int) -> Indices | None:
        """The list of a batch, never empty; None after the last one. Batches are asked for in ascending order."""

    def state(self) -> dict[str, Any]:
        """What this epoch's order depends on, besides epoch and batch; JSON can hold it."""
        return {}

    def check(self, state: dict[str, Any]) -> None:
        """Raises TypeError or ValueError unless :meth:`restore` accepts ``state``. Changes nothing."""
        _check_keys(state)

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Makes the next :meth:`start` begin the epoch in which ``state`` was taken."""


class _SamplerPlan(BatchPlan):
    """A plan whose state is that of a sampler."""

    def __init__(self, state_of: SeekableSampler) -> None:
        self._state_of = state_of

    def state(self) -> dict[str, Any]:
        return {"sampler": self._state_of.state_dict()}

    def check(self, state: dict[str, Any]) -> None:
        _check_keys(state, "sampler")
        self._state_of.check_state(state["sampler"])

    def restore(self, state: dict[str, Any]) -> None:
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
        self._length = 0

    def start(self, epoch: int, batch: int) -> None:
        self._sampler.begin_epoch(epoch)
        self._length = len(self._sampler)

    def take(self, batch: int) -> Indices | None:
        size = self._batch_size * self._world
        start = batch * size
        stop = min(start + size, self._length)
        if stop - start < (size if self._drop_last else 1):
            return None
        indices = self._sampler.take(start, stop)[self._rank :: self._world]
        return indices if len(indices) else None


class SeekingBatchPlan(_SamplerPlan):
    """Like :class:`SeekingPlan`, for a batch sampler whose sampler is seekable."""

    def __init__(self, sampler: BatchSampler) -> None:
        assert isinstance(sampler.sampler, SeekableSampler)
        super().__init__(sampler.sampler)
        self._sampler = sampler

    def start(self, epoch: int, batch: int) -> None:
        self._sampler.begin_epoch(epoch)

    def take(self, batch: int) -> Indices | None:
        return self._sampler.take(batch, batch + 1)[0] if batch < len(self._sampler) else None


class ReplayPlan(BatchPlan):
    """Batches of anything that gives indices when it is iterated over.

    To begin in the middle of an epoch, the indices before are drawn and dropped.

    Args:
        sampler: iterated over once per epoch.
        batch_size, drop_last, rank, world: as in :class:`SeekingPlan`.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool, rank: int = 0, world: int = 1) -> None:
        self._sampler = sampler
        self._group_size = batch_size * world
        self._drop_last = drop_last
        self._rank, self._world = rank, world
        self._indices: Iterator[Any] = iter(())
        # The position of the first of these, and those drawn from it on: replaced at once, and only extended else, so
        # that an interrupt leaves nothing half done.
        self._drawn: tuple[int, list[Any]] = (0, [])
        self._broken_off = False

    def start(self, epoch: int, batch: int) -> None:
        self._indices = iter(self._sampler)
        first = batch * self._group_size
        if first:
            next(itertools.islice(self._indices, first - 1, first), None)
        self._drawn = (first, [])
        self._broken_off = False

    def take(self, batch: int) -> Indices | None:
        first, drawn = self._drawn
        begin = batch * self._group_size
        self._draw(drawn, begin + self._group_size - first - len(drawn))
        group = drawn[begin - first : begin - first + self._group_size]
        if len(group) < (self._group_size if self._drop_last else 1):
            return None
        self._drawn = (begin, group)
        return group[self._rank :: self._world] or None

    def _draw(self, drawn: list[Any], count: int) -> None:
        if count <= 0:
            return
        before = len(drawn)
        # An exception, the sampler's or an interrupt, may end the iterator: a generator does not survive one.
        was_broken_off, self._broken_off = self._broken_off, True
        drawn.extend(itertools.islice(self._indices, count))
        if was_broken_off and len(drawn) == before and getattr(self._indices, "gi_frame", self) is None:
            raise errors.FailedPrecondition(
                "the sampler was interrupted while it was at work, and gives nothing more: go on with the state that "
                "state_dict() gives now, or iterate anew"
            )
        self._broken_off = False


class ReplayBatchPlan(ReplayPlan):
    """As :class:`ReplayPlan`, of anything that gives lists of indices."""

    def __init__(self, batch_sampler: Iterable[Any]) -> None:
        super().__init__(batch_sampler, 1, False)

    def take(self, batch: int) -> Indices | None:
        drawn = super().take(batch)
        if drawn is None:
            return None
        indices = drawn[0]
        if not isinstance(indices, Iterable) or isinstance(indices, (str, bytes)):
            raise TypeError(f"batch_sampler must give lists of indices, got {indices!r:.200}")
        indices = list(indices)
        if not indices:
            raise ValueError("batch_sampler gave an empty list of indices")
        return indices


class TorchShufflePlan(BatchPlan):
    """The order in which torch's own loader would shuffle, drawn from torch's generator in the same way.

    Args:
        generator: a ``torch.Generator``; None: the global one.
    """

    def __init__(self, length: int, batch_size: int, drop_last: bool, generator: Any) -> None:
        self._length, self._batch_size, self._drop_last = length, batch_size, drop_last
        self._generator = generator
        self._state: dict[str, Any] = {}
        self._restored: dict[str, Any] | None = None
        self._order: Any = None
        self._at_end: Any = None  # the generator, until the end was reached

    def start(self, epoch: int, batch: int) -> None:
        torch = importlib.import_module("torch")
        restored, self._restored = self._restored, None
        if self._generator is None:
            seed = restored["torch_seed"] if restored is not None else draw_torch_seed(None)
            self._state = {"torch_seed": seed}
            generator = torch.Generator()
            generator.manual_seed(seed)
        else:
            generator = self._generator
            if restored is not None:
                raw = base64.b64decode(restored["torch_generator"])
                generator.set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
            raw = bytes(generator.get_state().numpy())
            self._state = {"torch_generator": base64.b64encode(raw).decode("ascii")}
        self._order = torch.randperm(self._length, generator=generator).numpy()
        self._at_end = generator

    def take(self, batch: int) -> Indices | None:
        start = batch * self._batch_size
        indices: Indices = self._order[start : start + self._batch_size]
        if len(indices) >= (self._batch_size if self._drop_last else 1):
            return indices
        generator, self._at_end = self._at_end, None
        if generator is not None:  # torch's sampler draws once more at its end
            importlib.import_module("torch").randperm(self._length, generator=generator)
        return None

    def state(self) -> dict[str, Any]:
        return dict(self._state)

    def check(self, state: dict[str, Any]) -> None:
        if not {"torch_seed", "torch_generator"} & set(state):
            raise ValueError("the state was not taken of a loader with torch's shuffling; give this one the same seed")
        if self._generator is None:
            _check_keys(state, "torch_seed")
            integer("torch_seed of the state", state["torch_seed"], -(1 << 63), (1 << 63) - 1)
            return
        _check_keys(state, "torch_generator")
        try:
            raw = base64.b64decode(state["torch_generator"], validate=True)
            torch = importlib.import_module("torch")
            torch.Generator().set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
        except Exception as error:
            raise ValueError(f"torch_generator of the state is not a state of torch's generator: {error}") from None

    def restore(self, state: dict[str, Any]) -> None:
        self._restored = state


class GrainPlan(BatchPlan):
    """Batches in the order in which Grain's workers would make them; see :mod:`headrace.data._grain`.

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


def _check_keys(state: dict[str, Any], *expected: str) -> None:
    if set(state) != set(expected):
        raise ValueError(
            f"plan of the state must have the keys {sorted(expected)}, got {sorted(map(str, state))!r:.200}"
        )


def draw_torch_seed(generator: Any) -> int:
    """The int64 that torch's loader draws from its generator for each epoch."""
    torch = importlib.import_module("torch")
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def _same(epoch: int, positions: np.ndarray[Any, Any]) -> Indices:
    return positions


def _permuted(length: int, seed: int) -> Callable[[int, np.ndarray[Any, Any]], Indices]:
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


def order_name(config: LoaderConfig) -> str:
    """What a state calls the order that it was taken of."""
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


def make_plan(config: LoaderConfig, seed: int) -> tuple[str, BatchPlan | None]:
    """The order that the scheduler is told, and the plan that supplies the indices if that is "explicit"."""
    size, drop_last = config.batch_size or 1, config.drop_last
    rank, world = config.shard
    sampler, batch_sampler = config.index_sampler, config.batch_sampler
    if isinstance(batch_sampler, BatchSampler) and batch_sampler.seekable:
        return "explicit", SeekingBatchPlan(batch_sampler)
    if batch_sampler is not None:
        return "explicit", ReplayBatchPlan(batch_sampler)
    if config.order == "grain":
        return "explicit", _grain_plan(config, seed)
    if sampler is None:
        if config.shuffle and config.follows_torch:
            length = config.dataset_length()
            return "explicit", TorchShufflePlan(length, size, drop_last, config.torch_generator)
        return "shuffled" if config.shuffle else "sequential", None
    if isinstance(sampler, SeekableSampler) and sampler.seekable:
        return "explicit", SeekingPlan(sampler, size, drop_last, rank, world)
    return "explicit", ReplayPlan(sampler, size, drop_last, rank, world)


def _positions(config: LoaderConfig) -> int:
    """Samples per epoch, of all loaders of the group together."""
    sampler = config.index_sampler
    return config.dataset_length() if sampler is None else len(sampler)


def _grain_plan(config: LoaderConfig, seed: int) -> GrainPlan:
    length, size = _positions(config), config.batch_size
    assert size is not None
    if isinstance(config.index_sampler, SeekableSampler):
        index_at = _sampled(config.index_sampler)
    else:
        index_at = _permuted(length, seed) if config.shuffle else _same
    return GrainPlan(length, size, config.drop_last, max(1, config.num_workers), *config.shard, index_at)
