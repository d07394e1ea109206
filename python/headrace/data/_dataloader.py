"""The loader: batches of a dataset, made by workers in shared memory, in an order that depends on the seed alone."""

from __future__ import annotations

import functools
import numbers
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np

from headrace import _core, errors
from headrace.data._arguments import (
    function,
    import_tqdm,
    integer,
    is_torch_generator,
    rank_and_world,
    seconds,
    start_context,
)
from headrace.data._collation import DefaultCollate, default_collate, default_convert
from headrace.data._dataset import is_iterable_dataset, is_torch_dataset
from headrace.data._engine import Engine
from headrace.data._feed import Feed
from headrace.data._grain import SampledDataset, is_grain_sampler
from headrace.data._iteration import BatchIterator, Progress, give_back
from headrace.data._plan import (
    BatchPlan,
    GrainPlan,
    ReplayPlan,
    SeekingBatchPlan,
    SeekingPlan,
    TorchShufflePlan,
    checked_batches,
    draw_torch_seed,
    iter_batches,
    permuted,
    sampled,
)
from headrace.data._sampler import BatchSampler, RandomSampler, SeekableSampler, SequentialSampler
from headrace.data._stats import summarize
from headrace.data._stream import StreamPlace, StreamTask
from headrace.data._timeline import write_timeline

_MAX_WORKERS = 512
# Of a dataset: an index is a signed 64-bit number, of which two bits are for the arithmetic.
_MAX_LENGTH = 1 << 62
_STATE_VERSION = 1


# Attributes that say with which arguments a loader was made.
_ARGUMENTS = frozenset(
    (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory"),
        *("drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor"),
        *("persistent_workers", "in_order", "to", "shard", "order", "ragged", "workers", "threads_per_worker"),
        *("num_workers_batches", "seed_records", "iterable_sharding", "trace"),
    )
)


class DataLoader:
    """Iterates over a dataset in batches, with the arguments of ``torch.utils.data.DataLoader``.

    ``num_workers`` processes make the samples of a batch together and write them straight to their final place, in
    memory that they share with this process: batches are not pickled, not copied and not allocated anew. What arrives
    does not depend on the number of workers: the same seed gives the same batches, also with ``num_workers=0``.

    A batch consists of NumPy arrays, or torch tensors, over the shared memory; it is the consumer's own, stays valid
    and unchanged as long as somebody holds it, and may be written to. Lists, tuples, named tuples, dicts and
    dataclasses of arrays, tensors, numbers and strings are collated as PyTorch does.

    Several iterations of one loader may be under way at once; each has workers of its own, which the next one takes
    over. Thread-safety: use a loader, and its iterators, from one thread at a time. After a fork, a loader can be
    iterated over in the child, where it starts anew; batches of the parent must not be used there.

    Args:
        dataset: has ``__len__`` and ``__getitem__``, or ``__iter__``; see :class:`headrace.data.Dataset` and
            :class:`headrace.data.IterableDataset` for what more it may offer.
        batch_size: samples per batch. None: no batches; each sample arrives as ``collate_fn`` (default:
            :func:`headrace.data.default_convert`) makes it.
        shuffle: a new random order each epoch, a function of the seed and the epoch.
        sampler: gives the indices instead; an iterable, iterated anew each epoch. Excludes ``shuffle``.
        batch_sampler: gives lists of indices; excludes ``batch_size``, ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: worker processes; 0 makes the samples in this process, when they are asked for. "auto": begins
            with one and finds a good number while it runs, at most one for each processor.
        collate_fn: makes a batch from a list of samples, in a worker. Default: see
            :func:`headrace.data.default_collate`. The samples may have been made by several workers; then their arrays
            lie in shared memory, and what it wants to keep beyond the call it must copy.
        pin_memory: page-locked memory, for fast asynchronous copies to a GPU; nothing happens where there is none.
        drop_last: leave out a last batch that is not full.
        timeout: seconds that a batch may take; 0: any time.
        worker_init_fn: called with the worker's number in each worker when it starts.
        multiprocessing_context: a start method ("fork", "forkserver", "spawn") or a context of :mod:`multiprocessing`.
        generator: where the seed comes from: a ``torch.Generator``, with which shuffling draws the same numbers, and so
            gives the same order, as in PyTorch; or a :class:`numpy.random.Generator`. Excludes ``seed``.
        prefetch_factor: batches in the making or ready, in all (PyTorch: per worker). Shared memory is bounded by it,
            not by the number of workers. Default: enough for two per worker, at most 8.
        persistent_workers: keep the workers from one epoch to the next, and begin the next while one ends.
        in_order: batches arrive in the order of the plan; False: as they become ready.
        pin_memory_device: accepted as PyTorch does, and ignored.
        seed: of the order and of the records' generators. Default: fresh entropy, readable as ``loader.seed``; in a
            program that has imported torch, torch's global generator, as in PyTorch: then ``torch.manual_seed`` makes
            the loader repeatable, and shuffling gives PyTorch's order.
        to: what the arrays of a batch are: "numpy"; "torch"; or None: torch tensors if the samples held tensors or the
            dataset is one of torch's, else NumPy arrays.
        shard: ``(rank, world)``: this loader is one of ``world`` that share the dataset, one on each host or GPU. A
            global batch has ``batch_size * world`` samples, of which this loader gets every ``world``-th from ``rank``
            on. Nothing is repeated or padded: without ``drop_last``, some may get fewer samples, or batches, at the
            end.
        order: None, or "grain": Grain's order, in which worker w of W makes batches of every W-th record.
        ragged: what to do with arrays whose shapes differ within a batch: None (an error), "pad", ``("pad", value)``,
            "list" or "lod"; see :func:`headrace.data.default_collate`.
        workers: "process" or "thread": what the workers are. Threads suit datasets that release the GIL.
        threads_per_worker: threads that make samples in each worker process, for datasets that wait for files or
            networks. The dataset must allow it.
        num_workers_batches: how many of the workers may run ``collate_fn``; default: all.
        iterable_sharding: who shares an iterable dataset among the workers. "engine": all iterate over the same stream,
            and each batch is made by one of them while the others pass over it; the order is that without workers.
            "dataset": each worker iterates over a stream of its own, which the dataset makes of what
            ``get_worker_info`` says, and makes batches of that; the loader takes a batch from each in turn. Default:
            "dataset" for torch's ``IterableDataset``, else "engine".
        progress: show a progress bar (needs tqdm).
        trace: remember what workers, slots and consumer did when, for :meth:`write_trace`.
        seed_records: seed :mod:`random`, :mod:`numpy.random` and torch for each sample from (seed, epoch, index), so
            that datasets that draw from them do not depend on which worker runs them.

    Raises:
        TypeError, ValueError: arguments that are out of range or exclude one another.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | Any | None = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        to: str | None = None,
        shard: tuple[int, int] = (0, 1),
        order: str | None = None,
        ragged: Any = None,
        workers: str = "process",
        threads_per_worker: int = 1,
        num_workers_batches: int | None = None,
        seed_records: bool = False,
        iterable_sharding: str | None = None,
        progress: bool = False,
        trace: bool = False,
    ) -> None:
        self.dataset = dataset
        self._iterable = is_iterable_dataset(dataset)
        # Whoever says which samples there are need not count them.
        indexed = ("__getitem__",) if sampler is not None or batch_sampler is not None else ("__len__", "__getitem__")
        for method in ("__iter__",) if self._iterable else indexed:
            if not hasattr(dataset, method):
                raise TypeError(
                    f"dataset must have __len__ and __getitem__, or __iter__; {type(dataset).__name__} has no {method}"
                )
        self._auto_workers = num_workers == "auto"
        self.num_workers = 1 if self._auto_workers else integer("num_workers", num_workers, 0, _MAX_WORKERS)
        self._check_order(batch_size, shuffle, sampler, batch_sampler, drop_last, order)
        self.batch_size = (
            None
            if batch_sampler is not None or batch_size is None
            else integer("batch_size", batch_size, 1, (1 << 31) - 1)
        )
        self._sampler = sampler
        # What the workers read: one of Grain's samplers says at which position there is which record.
        grain_sampler = sampler is not None and is_grain_sampler(sampler)
        self._source = SampledDataset(dataset, sampler) if grain_sampler else dataset
        self._order_sampler = None if grain_sampler else sampler
        self._batch_sampler = batch_sampler
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        self.order = order
        self._collate_fn = function("collate_fn", collate_fn)
        self.ragged = ragged
        if ragged is not None and collate_fn is not None:
            raise ValueError("collate_fn excludes ragged: the function decides what a batch is")
        self.worker_init_fn = function("worker_init_fn", worker_init_fn)
        self.timeout = seconds("timeout", timeout)
        self.pin_memory = bool(pin_memory)
        self.pin_memory_device = pin_memory_device
        self.in_order = bool(in_order)
        self.multiprocessing_context = multiprocessing_context
        self._context = start_context(multiprocessing_context)
        self.workers = workers
        self.threads_per_worker = integer("threads_per_worker", threads_per_worker, 1, 256)
        threads = self.num_workers * self.threads_per_worker
        default_prefetch = 8 if self._auto_workers else min(max(2, 2 * threads), 8)
        self.prefetch_factor = (
            default_prefetch if prefetch_factor is None else integer("prefetch_factor", prefetch_factor, 1, 512)
        )
        self._check_workers(
            multiprocessing_context, prefetch_factor, persistent_workers, workers, self.threads_per_worker
        )
        self.persistent_workers = self.num_workers > 0 if persistent_workers is None else bool(persistent_workers)
        # As torch's loader, which draws its workers' seed when it starts them: only once, if they are to stay.
        self._draws_each_epoch = not persistent_workers
        if num_workers_batches is None:
            num_workers_batches = max(1, self.num_workers)
        self.num_workers_batches = integer("num_workers_batches", num_workers_batches, 1, _MAX_WORKERS)
        self.seed_records = bool(seed_records)
        if self.seed_records and self.workers == "thread":
            raise ValueError("seed_records needs worker processes: threads share the global generators")
        if to not in (None, "numpy", "torch"):
            raise ValueError(f'to must be "numpy", "torch" or None, got {to!r}')
        self.to = to
        self.generator = generator
        self._init_seed(seed, generator)
        self.shard = rank_and_world(shard)
        if self.shard[1] > 1:
            if batch_sampler is not None:
                raise ValueError("shard excludes batch_sampler, which makes this loader's own batches")
            if self.seed is None and self.shuffle:
                raise ValueError("shard with shuffle needs a seed, the same in every loader of the group")
        self.iterable_sharding = self._check_stream(iterable_sharding)
        self.trace = bool(trace)
        self.progress = bool(progress)
        if self.progress:
            import_tqdm()
        self._next_epoch = 0
        self._resume: dict[str, Any] | None = None
        self._idle: list[Engine] = []
        self._progress: Progress | None = None
        self._running: weakref.WeakSet[Feed | BatchIterator] = weakref.WeakSet()
        self._made = True

    def __setattr__(self, name: str, value: Any) -> None:
        """What a loader was made with stays: its workers would not notice."""
        if name in _ARGUMENTS and "_made" in self.__dict__:
            raise ValueError(f"{name} cannot be changed once the loader is made: make another one")
        super().__setattr__(name, value)

    @property
    def sampler(self) -> Any:
        """What gives the indices: as given, or one of :mod:`headrace.data` with the same order where it is ours."""
        if self._sampler is not None or self._iterable:
            return self._sampler
        if self.shuffle:
            return RandomSampler(self.dataset, generator=self._torch_generator or self.seed)
        return SequentialSampler(self.dataset)

    @property
    def batch_sampler(self) -> Any:
        """What gives the lists of indices: as given, or made of ``sampler``; None where there are no such lists."""
        if self._batch_sampler is not None or self._iterable or self.batch_size is None:
            return self._batch_sampler
        return BatchSampler(self.sampler, self.batch_size, self.drop_last)

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """What makes a batch of samples."""
        if self._collate_fn is not None:
            return self._collate_fn  # type: ignore[no-any-return]
        if self.batch_size is None and self._batch_sampler is None:
            return default_convert
        return default_collate if self.ragged is None else DefaultCollate(self.ragged)

    def _check_order(
        self,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
        order: str | None,
    ) -> None:
        if self._iterable:
            for name, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
                if value:
                    raise ValueError(
                        f"an iterable dataset decides its own order: {name} must be left out, got {value!r}"
                    )
        if sampler is not None and shuffle:
            raise ValueError("sampler excludes shuffle: the sampler decides the order")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None makes no batches, so that drop_last means nothing: leave it out")
        if order not in (None, "grain"):
            raise ValueError(f'order must be None or "grain", got {order!r}')
        if order is not None and (self._iterable or batch_sampler is not None or batch_size is None):
            raise ValueError('order="grain" needs a map-style dataset and a batch_size')
        seekable = getattr(sampler, "seekable", False) or is_grain_sampler(sampler)
        if order is not None and sampler is not None and not seekable:
            raise ValueError(
                'order="grain" needs a sampler with random access: one of headrace.data, or one of Grain\'s'
            )

    def _check_workers(
        self, context: Any, prefetch_factor: Any, persistent_workers: Any, workers: str, threads: int
    ) -> None:
        if workers not in ("process", "thread"):
            raise ValueError(f'workers must be "process" or "thread", got {workers!r}')
        if self.num_workers == 0:
            for name, given in (
                ("prefetch_factor", prefetch_factor is not None),
                ("multiprocessing_context", context is not None),
                ("persistent_workers=True", bool(persistent_workers)),
                ('workers="thread"', workers == "thread"),
                ("threads_per_worker", threads != 1),
                ("timeout", self.timeout > 0),
            ):
                if given:
                    raise ValueError(f"{name} needs workers: num_workers must be more than 0")
        elif workers == "thread":
            if context is not None:
                raise ValueError('multiprocessing_context is for processes, not for workers="thread"')
            if threads != 1:
                raise ValueError(
                    'with workers="thread" num_workers is the number of threads; leave out threads_per_worker'
                )
        if self._auto_workers and (workers == "thread" or self._iterable or self.order == "grain"):
            raise ValueError(
                'num_workers="auto" is for worker processes and orders that do not depend on their number: not for '
                'workers="thread", iterable datasets and order="grain"'
            )
        if self.num_workers * threads > _MAX_WORKERS:
            raise ValueError(f"num_workers * threads_per_worker must be at most {_MAX_WORKERS}")

    def _check_stream(self, sharding: str | None) -> str | None:
        if sharding not in (None, "engine", "dataset"):
            raise ValueError(f'iterable_sharding must be "engine", "dataset" or None, got {sharding!r}')
        if not self._iterable:
            if sharding is not None:
                raise ValueError("iterable_sharding is for iterable datasets: this one is read by index")
            return None
        if self.workers == "thread" or self.threads_per_worker > 1:
            raise ValueError("an iterable dataset needs worker processes of one thread each: threads would share it")
        if sharding is None:
            sharding = "dataset" if is_torch_dataset(self.dataset) else "engine"
        if sharding == "dataset" and self.shard[1] > 1:
            raise ValueError('shard needs iterable_sharding="engine": the dataset shares itself among the workers only')
        return sharding

    def _init_seed(self, seed: int | None, generator: Any) -> None:
        # Whether the order and the seed come from torch, whose generator is asked when an epoch begins.
        self._torch_generator = None
        self._follows_torch = False
        self._own_seed = seed is not None
        if generator is not None:
            if seed is not None:
                raise ValueError("generator excludes seed: both say where the random numbers come from")
            if isinstance(generator, np.random.Generator):
                seed = int(generator.integers(1 << 63))
            elif isinstance(generator, numbers.Integral):
                seed, self._own_seed = int(generator), True
            elif is_torch_generator(generator):
                self._torch_generator = generator
                self._follows_torch = True
            else:
                raise TypeError(f"generator must be a torch.Generator or a numpy.random.Generator, got {generator!r}")
        elif seed is None:
            self._follows_torch = "torch" in sys.modules
        if seed is None and not self._follows_torch:
            seed = int.from_bytes(os.urandom(8), "little") >> 1  # fits an int64, for those who keep it in one
        self.seed: int | None = None if seed is None else integer("seed", seed, 0, (1 << 64) - 1)

    def __repr__(self) -> str:
        shown = {
            "batch_size": 1,
            "shuffle": False,
            "num_workers": 0,
            "drop_last": False,
            "shard": (0, 1),
            "order": None,
        }
        given = [f"{name}={getattr(self, name)!r}" for name, usual in shown.items() if getattr(self, name) != usual]
        return f"DataLoader({', '.join([type(self.dataset).__name__, *given, f'seed={self.seed}'])})"

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in this process or another, runs on its own."""
        return {**self.__dict__, "_idle": [], "_progress": None, "_running": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._running = weakref.WeakSet()

    # As torch's: type hints may say of what the batches are.
    __class_getitem__: ClassVar[Any] = classmethod(types.GenericAlias)

    def __len__(self) -> int:
        """Batches per epoch; of this loader's own, if it is one of several."""
        if self._batch_sampler is not None:
            return len(self._batch_sampler)  # type: ignore[arg-type]
        samples = len(self.dataset) if self._iterable else self._positions()
        rank, world = self.shard
        size = self.batch_size or 1
        if self.order == "grain":
            return len(self._grain_plan(samples))
        if self.drop_last:
            return samples // (size * world)
        return -(-((samples - rank + world - 1) // world) // size)

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch."""
        engine, progress = self._start_epoch()
        iterator = BatchIterator(self, engine, progress)
        self._running.add(iterator)
        if self.progress:
            total = len(self) if hasattr(self.dataset, "__len__") or not self._iterable else None
            return iter(import_tqdm()(iterator, total=total, initial=progress.batch, unit="batch"))
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of ``epoch``, counted from 0; those after it count on from there."""
        self._next_epoch = integer("epoch", epoch, 0, (1 << 62) - 1)
        self._resume = None

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where the latest iteration stands: a small dict for :meth:`load_state_dict`, of what JSON knows.

        May be taken between any two batches; batches that workers have made ahead do not matter. Restoring takes O(1)
        for the built-in orders and samplers; a foreign sampler is iterated over again up to that place. The number of
        workers may change; so may that of loaders (``shard``) while ``batch_size * world`` stays.

        Args:
            batches: how many batches of the epoch have been consumed, if the caller knows better. Needed while the
                loader feeds a program's reader, which has batches in its queue.
        """
        progress = self._progress
        if batches is not None:
            batches = integer("batches", batches, 0, (1 << 62) - 1)
        if progress is None:
            if self._resume is not None:
                return dict(self._resume)
            position: dict[str, Any] = {"epoch": self._next_epoch, "batch": batches or 0}
        else:
            if progress.feeding and not progress.finished and batches is None:
                raise errors.FailedPrecondition(
                    "while a loader feeds a queue, only the program knows how many batches it has consumed: pass "
                    "state_dict(batches=n), n of this epoch"
                )
            position = progress.position(batches)
        return {
            "version": _STATE_VERSION,
            **position,
            "seed": self.seed,
            "length": None if self._iterable else self._dataset_length(),
            "global_batch_size": None if self.batch_size is None else self.batch_size * self.shard[1],
            "order": self._order_name(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration goes on with the batch after those that ``state`` counts.

        An iteration that is under way ends: its next batch is an error.

        Raises:
            ValueError: the state is that of another dataset, seed, order, batch size or version.
            TypeError: it is no state.
        """
        if not isinstance(state, dict) or not {"version", "epoch", "batch"} <= set(state):
            raise TypeError(f"not a state of a loader: {state!r:.200}")
        if state["version"] != _STATE_VERSION:
            raise ValueError(f"the state has version {state['version']!r}, this headrace reads {_STATE_VERSION}")
        size = None if self.batch_size is None else self.batch_size * self.shard[1]
        for name, mine in (
            ("length", None if self._iterable else self._dataset_length()),
            ("global_batch_size", size),
            ("order", self._order_name()),
            *((("seed", self.seed),) if self._own_seed else ()),
        ):
            if state.get(name) != mine:
                raise ValueError(
                    f"the state was taken of a loader with {name}={state.get(name)!r}, this one has {mine!r}: the "
                    "batches that follow would not be those that are missing"
                )
        epoch = integer("epoch", state["epoch"], 0, (1 << 62) - 1)
        integer("batch", state["batch"], 0, (1 << 62) - 1)
        if not self._own_seed:
            if state["seed"] != self.seed:
                self._close_idle()  # their workers have the other seed
            self.seed = state["seed"]
        self._end_running("the loader was given another state during the iteration; iterate over it anew")
        self._next_epoch = epoch
        self._resume = dict(state)
        self._progress = None

    def stats(self) -> dict[str, Any]:
        """What the workers of the latest iteration have done since they started; empty before.

        Returns:
            Rates (``samples_per_s``, ``bytes_per_s``); totals (``batches``, ``samples``, ``bytes``); seconds that the
            consumer and the workers waited (``consumer_wait_s``, ``worker_wait_s``), that the workers were busy, and
            what with (``worker_busy_s``; ``dataset_s``, ``collate_s``, ``copy_s``), summed over them; slots and memory
            in use (``held_slots``, ``slots_used``, ``resident_bytes``); and ``bottleneck``, a sentence.
        """
        engine = self._progress.engine if self._progress is not None else None
        if engine is None or not engine.is_mine():
            return {}
        return summarize(engine.scheduler.stats(), engine.workers, self.threads_per_worker)

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes what the workers of the latest iteration, the slots and the consumer did when: a JSON file in the
        Trace Event Format, which https://ui.perfetto.dev shows as a timeline.

        Of each worker the newest 16,384 events are there.

        Raises:
            FailedPrecondition: the loader has no ``trace=True``, or has not been iterated over.
        """
        engine = self._progress.engine if self._progress is not None else None
        if not self.trace or engine is None or not engine.is_mine():
            raise errors.FailedPrecondition("a trace needs a loader with trace=True that has been iterated over")
        write_timeline(path, engine.scheduler.trace(), self.threads_per_worker)

    def shutdown(self) -> None:
        """Ends the workers. Batches stay valid; the next iteration starts workers again."""
        self._end_running(
            "the loader was shut down during the iteration", "the loader was shut down while it fed the queue"
        )
        self._close_idle()

    def _end_running(self, reason: str, feed_reason: str | None = None) -> None:
        for running in list(self._running):
            if isinstance(running, Feed):
                running.stop(feed_reason or reason)
            else:
                running.end(reason)
        self._running.clear()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for engine in idle:
            engine.close()

    def _start_epoch(self) -> tuple[Engine, Progress]:
        length = self._dataset_length()
        resume, self._resume = self._resume, None
        if self._follows_torch and (self.seed is None or self._draws_each_epoch):
            drawn = draw_torch_seed(self._torch_generator)
            if self.seed is None:
                self.seed = drawn
        if resume is not None and "streams" in resume:
            self._close_idle()  # workers learn only when they start where their streams begin
        engine = None
        while engine is None and self._idle:
            engine = self._idle.pop()
            if not engine.usable(length):
                engine.close()
                engine = None
        for sampler in (self._sampler, self._batch_sampler):
            # Whoever calls sampler.set_epoch, as with torch's DistributedSampler, means this loader's epochs, too.
            chosen = sampler.chosen_epoch() if isinstance(sampler, (SeekableSampler, BatchSampler)) else None
            if chosen is not None and resume is None:
                self._next_epoch = chosen
        epoch = self._next_epoch
        if engine is None:
            engine = Engine(self, epoch, resume or {})
        self._next_epoch = epoch + 1
        try:
            engine.start_epoch(epoch, resume or {})
        except BaseException:
            engine.close()
            raise
        self._progress = Progress(epoch, engine, resume or {})
        return engine, self._progress

    def release(self, engine: Engine) -> None:
        """Takes an engine back whose iteration is over."""
        if self._auto_workers:
            self.__dict__["num_workers"] = engine.workers
        ends = self.num_workers > 0 and not self.persistent_workers
        if ends or self._idle or not engine.usable(engine.length):
            engine.close()
        else:
            self._idle.append(engine)

    def _feed(self, queue: _core.LoDTensorBlockingQueue) -> Feed:
        """Starts the next epoch and a C++ thread that moves its batches into ``queue``; used by
        ``py_reader.decorate_loader``.
        """
        engine, progress = self._start_epoch()
        progress.feeding = True
        feed = Feed(engine, queue, functools.partial(give_back, weakref.ref(self), engine))
        self._running.add(feed)
        return feed

    def _dataset_length(self) -> int:
        """0, if the dataset does not say; then a sampler does."""
        if self._iterable:
            return _MAX_LENGTH
        return min(len(self._source), _MAX_LENGTH) if hasattr(self._source, "__len__") else 0

    def _positions(self) -> int:
        """Samples per epoch, of all loaders of the group together."""
        return self._dataset_length() if self._order_sampler is None else len(self._order_sampler)  # type: ignore[arg-type]

    def _order_name(self) -> str:
        if self._iterable:
            own = self.iterable_sharding == "dataset" and self.num_workers > 0
            return f"{self.num_workers} streams" if own else "stream"
        if self.order is not None:
            return self.order
        for given in (self._batch_sampler, self._sampler):
            if given is not None:
                return type(given).__name__
        if self.shuffle and self._follows_torch:
            return "torch"
        return "shuffled" if self.shuffle else "sequential"

    def _batch_type(self) -> str | None:
        return "torch" if self.to is None and is_torch_dataset(self.dataset) else self.to

    def _stream_task(self, epoch: int, resume: dict[str, Any]) -> StreamTask | None:
        if not self._iterable:
            return None
        places = {
            number: StreamPlace(epoch, batches, state, ended)
            for number, (batches, state, ended) in enumerate(resume.get("streams", ()))
            if ended or state is not None  # else the worker reads up to there
        }
        own = self.iterable_sharding == "dataset" and self.num_workers > 0
        return StreamTask(own, self.batch_size or 1, *self.shard, self.drop_last, places)

    def _grain_plan(self, length: int) -> GrainPlan:
        size = self.batch_size
        assert size is not None
        if isinstance(self._order_sampler, SeekableSampler):
            index_at = sampled(self._order_sampler)
        elif self.shuffle:
            index_at = permuted(length, self.seed or 0)
        else:
            index_at = _same
        return GrainPlan(length, size, self.drop_last, max(1, self.num_workers), *self.shard, index_at)

    def _make_plan(self, length: int) -> tuple[str, BatchPlan | None]:
        """The order that the scheduler is told, and what supplies the indices if it is "explicit".

        A plan does not refer to the loader, which would keep its workers alive.
        """
        size, drop_last = self.batch_size or 1, self.drop_last
        rank, world = self.shard
        sampler, batch_sampler = self._order_sampler, self._batch_sampler
        if isinstance(batch_sampler, BatchSampler) and batch_sampler.seekable:
            return "explicit", SeekingBatchPlan(batch_sampler)
        if batch_sampler is not None:
            return "explicit", ReplayPlan(lambda epoch: checked_batches(batch_sampler))
        if self.order == "grain":
            return "explicit", self._grain_plan(self._positions())
        if sampler is None:
            if self.shuffle and self._follows_torch:
                return "explicit", TorchShufflePlan(length, size, drop_last, self._torch_generator)
            return "shuffled" if self.shuffle else "sequential", None
        if isinstance(sampler, SeekableSampler) and sampler.seekable:
            return "explicit", SeekingPlan(sampler, size, drop_last, rank, world)
        return "explicit", ReplayPlan(lambda epoch: iter_batches(sampler, size, drop_last, rank, world))


def _same(epoch: int, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return positions


__all__ = ["DataLoader"]
