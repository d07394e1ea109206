"""Which samples make up which batch.

The C++ scheduler computes sequential and seeded random orders; every other order is a plan, from which Python supplies
the scheduler with indices.
"""

from __future__ import annotations

import abc
import array
import importlib
import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Union

import numpy as np

from headrace import _core, errors
from headrace.data._arguments import integer
from headrace.data._config import LoaderConfig
from headrace.data._grain import grain_batch_count, grain_positions
from headrace.data._sampler import BatchSampler, SeekableSampler
from headrace.data._torch_random import (
    SamplerDraws,
    check_generator_state,
    check_torch_seed,
    copy_generator,
    draw_torch_seed,
    encode_generator,
    set_generator,
)

Indices = Union[Sequence[Any], "np.ndarray[Any, np.dtype[np.int64]]"]
# What an epoch's order depends on from a batch on, besides epoch and batch; JSON can hold it.
States = Callable[[int], dict[str, Any]]

_MAX_INDEX = (1 << 63) - 1


class BatchPlan(abc.ABC):
    """The index lists of an epoch's batches. One iteration at a time.

    A signal handler may raise at any moment; asking for the same batch again then gives what it would have given.

    A subclass whose order depends on more than epoch and batch overrides ``states``, ``check`` and ``restore``.
    """

    @abc.abstractmethod
    def start(self, epoch: int, batch: int) -> None:
        """Begins ``epoch`` at ``batch``, counted from 0."""

    @abc.abstractmethod
    def take(self, batch: int) -> Indices | None:
        """The list of a batch, never empty; None after the last one. Batches are asked for in ascending order."""

    def states(self) -> States:
        """What the order of this epoch depends on, from any batch on: a function that stays valid when others start."""
        return _no_state

    def check(self, state: dict[str, Any]) -> None:
        """Raises TypeError or ValueError unless :meth:`restore` accepts ``state``. Changes nothing."""
        _check_keys(state)

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Makes the next :meth:`start` begin the epoch in which ``state`` was taken."""


class _SamplerPlan(BatchPlan):
    """A plan whose state is that of a sampler."""

    def __init__(self, state_of: SeekableSampler) -> None:
        self._state_of = state_of

    def states(self) -> States:
        state = {"sampler": self._state_of.state_dict()}
        return lambda batch: state

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


class _Drawn:
    """What is known of an epoch of a replayed sampler.

    Attributes:
        generators: the states of torch's generators with which it began.
    """

    def __init__(self, first_batch: int) -> None:
        self._first = first_batch
        self._checksums = array.array("I")
        self.generators: dict[str, str] = {}

    @property
    def begun(self) -> bool:
        """Whether anything was drawn."""
        return len(self._checksums) > 0

    def note(self, batch: int, checksum: int) -> None:
        """Notes, of one batch after the other, the checksum of all indices before it."""
        if batch == self._first + len(self._checksums):
            self._checksums.append(checksum)

    def before(self, batch: int) -> int:
        """The checksum of the indices before a batch."""
        return self._checksums[batch - self._first]

    def state(self, batch: int) -> dict[str, Any]:
        known = 0 <= batch - self._first < len(self._checksums)
        return {**self.generators, **({"drawn": self.before(batch)} if known else {})}


class ReplayPlan(BatchPlan):
    """Batches of anything that gives indices when it is iterated over.

    To begin in the middle of an epoch, the indices before are drawn again and dropped. What torch's samplers draw then
    is what they drew at first; of any other sampler a checksum tells whether it does.

    Args:
        sampler: iterated over once per epoch.
        batch_size, drop_last, rank, world: as in :class:`SeekingPlan`.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool, rank: int = 0, world: int = 1) -> None:
        self._sampler = sampler
        self._group_size = batch_size * world
        self._drop_last = drop_last
        self._rank, self._world = rank, world
        self._draws = SamplerDraws(sampler)
        self._restored: dict[str, Any] = {}
        self._replayed: dict[str, Any] = {}  # what was restored for this epoch
        self._first = 0
        self._begun = False
        self._known = _Drawn(0)
        self._indices: Iterator[Any] = iter(())
        # The position of the first of these, and those drawn from it on: replaced at once, and only extended else, so
        # that an interrupt leaves nothing half done.
        self._drawn: tuple[int, list[Any]] = (0, [])
        self._broken_off = False

    @property
    def generator(self) -> Any:
        """The generator of torch's that the sampler was given; None if it has none."""
        return self._draws.generator

    def start(self, epoch: int, batch: int) -> None:
        self._first, self._begun = batch, False
        self._replayed, self._restored = self._restored, {}
        self._known = _Drawn(batch)

    def states(self) -> States:
        known, generator = self._known, self.generator

        def state(batch: int) -> dict[str, Any]:
            upcoming = {} if generator is None or known.begun else {"torch_generator": encode_generator(generator)}
            return upcoming or known.state(batch)

        return state

    def check(self, state: dict[str, Any]) -> None:
        if not set(state) <= {"drawn", *SamplerDraws.KEYS}:
            _check_keys(state, "drawn", *SamplerDraws.KEYS)
        integer("drawn of the state", state.get("drawn", 0), 0, (1 << 32) - 1)
        self._draws.check(state)

    def restore(self, state: dict[str, Any]) -> None:
        self._restored = state

    def take(self, batch: int) -> Indices | None:
        if not self._begun:
            self._begin()
        first, drawn = self._drawn
        begin = batch * self._group_size
        self._draw(drawn, begin + self._group_size - first - len(drawn))
        group = drawn[begin - first : begin - first + self._group_size]
        if len(group) < (self._group_size if self._drop_last else 1):
            return None
        self._drawn = (begin, group)
        indices = self._checked(group)
        self._known.note(batch + 1, _checksum(indices, self._known.before(batch)))
        return self._share(indices)

    def _share(self, indices: Indices) -> Indices | None:
        """Of a global batch, what is this loader's."""
        share = indices[self._rank :: self._world]
        return share if len(share) else None

    def _checked(self, group: list[Any]) -> Indices:
        """The indices that are in what was drawn."""
        integers = as_integers(group)
        return group if integers is None else integers

    def _begin(self) -> None:
        """Starts the iteration, and draws what comes before the first batch."""
        restored, checksum = self._replayed, 0
        self._broken_off = False
        with self._draws.repeated(restored) as generators:
            self._indices = iter(self._sampler)
            for _ in range(self._first):
                group = list(itertools.islice(self._indices, self._group_size))
                checksum = _checksum(self._checked(group), checksum) if group else checksum
            drawn: list[Any] = []
            self._drawn = (self._first * self._group_size, drawn)
            self._draw(drawn, self._group_size)  # with the first index, torch's samplers draw all that they need
        if restored.get("drawn", checksum) != checksum:
            raise errors.FailedPrecondition(
                f"the sampler ({type(self._sampler).__name__}) gave other indices than before the state was taken, so "
                "the iteration cannot go on there: let it depend on a seed and on its set_epoch alone, or pass a "
                "sampler of headrace.data"
            )
        self._known.generators = generators
        self._known.note(self._first, checksum)
        self._begun = True

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

    def _checked(self, group: list[Any]) -> Indices:
        indices = group[0]
        if not isinstance(indices, Iterable) or isinstance(indices, (str, bytes)):
            raise TypeError(f"batch_sampler must give lists of indices, got {indices!r:.200}")
        indices = list(indices)
        if not indices:
            raise ValueError("batch_sampler gave an empty list of indices")
        return super()._checked(indices)


class TorchShufflePlan(BatchPlan):
    """The order in which torch's own loader would shuffle, drawn from torch's generator in the same way: when the first
    batch is taken.

    Args:
        generator: a ``torch.Generator``; None: the global one.
    """

    def __init__(self, length: int, batch_size: int, drop_last: bool, generator: Any) -> None:
        self._length, self._batch_size, self._drop_last = length, batch_size, drop_last
        self._generator = generator
        self._state: dict[str, Any] = {}
        self._restored: dict[str, Any] = {}
        self._order: Any = None
        self._at_end: Any = None  # the generator, until the end was reached

    def start(self, epoch: int, batch: int) -> None:
        self._state, self._restored = self._restored, {}
        self._order = None

    def _draw(self) -> None:
        torch = importlib.import_module("torch")
        if not self._state:
            self._state.update(self._upcoming(draws=True))
        generator = self._generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(self._state["torch_seed"])
        else:
            set_generator(generator, self._state["torch_generator"])
        self._order = torch.randperm(self._length, generator=generator).numpy()
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
        if len(indices) >= (self._batch_size if self._drop_last else 1):
            return indices
        generator, self._at_end = self._at_end, None
        if generator is not None:  # torch's sampler draws once more at its end
            importlib.import_module("torch").randperm(self._length, generator=generator)
        return None

    def states(self) -> States:
        state = self._state
        return lambda batch: state or self._upcoming()

    def check(self, state: dict[str, Any]) -> None:
        if not {"torch_seed", "torch_generator"} & set(state):
            raise ValueError("the state was not taken of a loader with torch's shuffling; give this one the same seed")
        if self._generator is None:
            _check_keys(state, "torch_seed")
            check_torch_seed(state["torch_seed"])
        else:
            _check_keys(state, "torch_generator")
            check_generator_state("torch_generator", state["torch_generator"])

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


def as_integers(indices: Indices) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """The indices as int64, if they are integers that fit and none is negative; else None."""
    try:
        array = np.asarray(indices)
    except ValueError:  # of different lengths
        return None
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        return None
    if array.min() < 0 or array.max() > _MAX_INDEX:
        return None
    return array.astype(np.int64, copy=False)


def _checksum(indices: Indices, before: int) -> int:
    """Tells a sequence of lists of indices from others, given that of the lists before."""
    data = indices.tobytes() if isinstance(indices, np.ndarray) else repr(indices).encode()
    return zlib.crc32(data, zlib.crc32(b"%d" % len(indices), before))


def _no_state(batch: int) -> dict[str, Any]:
    return {}


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


def _listed(sampler: Any) -> Callable[[int, np.ndarray[Any, Any]], Indices]:
    """The order of a list or an array of indices, as :class:`GrainPlan` asks for it."""

    def index_at(epoch: int, positions: np.ndarray[Any, Any]) -> Indices:
        return [sampler[position] for position in positions.tolist()]

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


def upcoming(config: LoaderConfig, seed: int | None) -> tuple[int | None, dict[str, Any]]:
    """The seed of a loader, and the state of its plan, if it began an epoch now. Draws nothing from the generators.

    Of a sampler that draws from torch's global generator nothing is known before it begins.
    """
    if not config.follows_torch or "torch" not in sys.modules:
        return seed, {}
    generator = copy_generator(config.torch_generator)
    if seed is None or config.draws_each_epoch:
        drawn = draw_torch_seed(generator)
        seed = drawn if seed is None else seed
    plan = None if config.iterable else make_plan(config, seed)[1]
    if isinstance(plan, TorchShufflePlan):
        if config.torch_generator is None:
            return seed, {"torch_seed": draw_torch_seed(generator)}
        return seed, {"torch_generator": encode_generator(generator)}
    if isinstance(plan, ReplayPlan) and plan.generator is not None:
        known = generator if plan.generator is config.torch_generator else plan.generator
        return seed, {"torch_generator": encode_generator(known)}
    return seed, {}


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
        index_at = _permuted(length, seed) if config.shuffle else _same
    return GrainPlan(length, size, config.drop_last, max(1, config.num_workers), *config.shard, index_at)
