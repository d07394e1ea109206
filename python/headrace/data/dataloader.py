"""The loader: batches of a dataset, made by worker processes in shared memory, in an order that depends on the seed
alone.
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import numbers
import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import numpy as np

from headrace import _core
from headrace.data.collation import decode_tree, dumps
from headrace.data.worker import ClaimServer, SharedDescriptor, WorkerSetup, decode_error
from headrace.data.worker_pool import MakeSetup, WorkerPool, describe_exit

WaitOutcome = _core.WaitOutcome

_MAX_WORKERS = 512
_MAX_SECONDS = 10**9
_MAX_INDEX = (1 << 63) - 1
# Batches that the consumer can keep before further ones are handed out as copies.
_HELD_SLOTS = 256
# Address space, not memory: a slot takes what its batch needs.
_SLOT_BYTES = 4 << 30


class DataLoader:
    """Iterates over a dataset in batches, with the arguments of ``torch.utils.data.DataLoader``.

    ``num_workers`` processes make the samples of a batch together and write them straight to their final place, in
    memory that they share with this process: batches are not pickled, not copied and not allocated anew. What arrives
    does not depend on the number of workers: the same seed gives the same batches, also with ``num_workers=0``.

    A batch consists of NumPy arrays over the shared memory (``to="torch"``: tensors); it stays valid and unchanged as
    long as somebody holds it. Lists, tuples, named tuples and dicts of arrays, numbers and strings are collated as
    PyTorch does.

    Thread-safety: use a loader, and its iterators, from one thread at a time. After a fork, a loader can be iterated
    over in the child, where it starts anew; batches of the parent must not be used there.

    Args:
        dataset: has ``__len__`` and ``__getitem__``; see :class:`headrace.data.Dataset` for what more it may offer.
        batch_size: samples per batch.
        shuffle: a new random order each epoch, a function of the seed and the epoch.
        sampler: gives the indices instead; an iterable, iterated anew each epoch. Excludes ``shuffle``.
        batch_sampler: gives lists of indices; excludes ``batch_size``, ``shuffle``, ``sampler`` and ``drop_last``.
        num_workers: worker processes; 0 makes the samples in this process, when they are asked for.
        collate_fn: makes a batch from a list of samples, in a worker. Default: see
            :func:`headrace.data.collation.default_collate`.
        drop_last: leave out a last batch that is not full.
        timeout: seconds that a batch may take; 0: any time.
        worker_init_fn: called with the worker's number in each worker process when it starts.
        multiprocessing_context: a start method ("fork", "forkserver", "spawn") or a context of :mod:`multiprocessing`.
        prefetch_factor: batches in the making or ready, in all (PyTorch: per worker). Shared memory is bounded by it,
            not by the number of workers. Default: enough for two per worker, at most 8.
        seed: of the order and of the records' generators. Default: fresh entropy, readable as ``loader.seed``.
        to: "numpy" or "torch": what the arrays of a batch are.

    Raises:
        TypeError, ValueError: arguments that are out of range or exclude one another.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Iterable[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        *,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | Any | None = None,
        prefetch_factor: int | None = None,
        seed: int | None = None,
        to: str = "numpy",
    ) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(dataset, method):
                raise TypeError(f"dataset must have __len__ and __getitem__; {type(dataset).__name__} has no {method}")
        self.dataset = dataset
        self.num_workers = _integer("num_workers", num_workers, 0, _MAX_WORKERS)
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
            self.batch_size = None
        else:
            self.batch_size = _integer("batch_size", batch_size, 1, (1 << 31) - 1)
        if sampler is not None and shuffle:
            raise ValueError("sampler excludes shuffle: the sampler decides the order")
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.shuffle = bool(shuffle)
        self.drop_last = bool(drop_last)
        if collate_fn is not None and not callable(collate_fn):
            raise TypeError(f"collate_fn must be callable, got {type(collate_fn).__name__}")
        self.collate_fn = collate_fn
        self.timeout = _seconds("timeout", timeout)
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise TypeError(f"worker_init_fn must be callable, got {type(worker_init_fn).__name__}")
        self.worker_init_fn = worker_init_fn
        self._context = _context(multiprocessing_context)
        if prefetch_factor is None:
            prefetch_factor = min(max(2, 2 * self.num_workers), 8)
        self.prefetch_factor = _integer("prefetch_factor", prefetch_factor, 1, 512)
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little") >> 1  # fits an int64, for those who keep it in one
        self.seed = _integer("seed", seed, 0, (1 << 64) - 1)
        if to not in ("numpy", "torch"):
            raise ValueError(f'to must be "numpy" or "torch", got {to!r}')
        self.to = to
        self._next_epoch = 0
        self._iteration = 0
        self._engine: _Engine | None = None
        self._feeding: weakref.ref[_Feed] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, in this process or another, runs on its own."""
        return {**self.__dict__, "_engine": None, "_feeding": None}

    def __len__(self) -> int:
        """Batches per epoch."""
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        assert self.batch_size is not None
        samples = len(self.dataset) if self.sampler is None else len(self.sampler)  # type: ignore[arg-type]
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Starts the next epoch. An iteration of the same loader that is under way ends."""
        engine = self._start_epoch()
        return _Iterator(self, engine, self._iteration)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of ``epoch``, counted from 0; those after it count on from there."""
        self._next_epoch = _integer("epoch", epoch, 0, (1 << 62) - 1)

    def stats(self) -> dict[str, float]:
        """What happened so far: batches, samples, seconds that this process and the workers waited, slots and bytes in
        use.
        """
        return {} if self._engine is None or not self._engine.is_mine() else self._engine.scheduler.stats()

    def shutdown(self) -> None:
        """Ends the worker processes. Batches stay valid; the next iteration starts the workers again."""
        self._stop_feeding("the loader was shut down while it fed the queue")
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _start_epoch(self) -> _Engine:
        self._iteration += 1  # what went on before must not take batches away
        self._stop_feeding("the loader began another iteration while it fed the queue")
        length = len(self.dataset)
        if length == 0 and self.sampler is None and self.batch_sampler is None:
            raise ValueError("the dataset is empty: there is nothing to load")
        if self._engine is not None and not self._engine.usable(length):
            self._engine.close()
            self._engine = None
        if self._engine is None:
            self._engine = _Engine(self, length)
        epoch = self._next_epoch
        self._next_epoch += 1
        self._engine.start_epoch(epoch)
        return self._engine

    def _feed(self, queue: _core.LoDTensorBlockingQueue) -> _Feed:
        """Starts the next epoch and a C++ thread that moves its batches into ``queue``; used by
        ``py_reader.decorate_loader``.
        """
        feed = _Feed(self._start_epoch(), queue)
        self._feeding = weakref.ref(feed)
        return feed

    def _stop_feeding(self, reason: str) -> None:
        feed = self._feeding() if self._feeding is not None else None
        if feed is not None:
            feed.stop(reason)
        self._feeding = None


class _Engine:
    """What a loader has once it runs: scheduler, workers, and the indices under way. Ended by close, or with its
    loader.
    """

    def __init__(self, loader: DataLoader, length: int) -> None:
        self._owner = os.getpid()
        self._seed = loader.seed
        self.timeout = loader.timeout if loader.timeout > 0 else -1.0
        self._order = "shuffled" if loader.shuffle else "sequential"
        if loader.batch_sampler is not None or loader.sampler is not None:
            self._order = "explicit"
        self.explicit = self._order == "explicit"
        self._length = length
        self._batch_size = loader.batch_size or 1
        self._make_batches = _index_batches(loader)
        self._batches: Iterator[list[Any]] | None = None
        self._supplied: collections.OrderedDict[int, list[Any]] = collections.OrderedDict()
        self._supplied_count = 0
        self._prefetch = loader.prefetch_factor if loader.num_workers > 0 else 1
        to = loader.to
        self.scheduler = _core.BatchScheduler(
            order=self._order,
            dataset_length=self._length,
            seed=loader.seed,
            batch_size=self._batch_size,
            drop_last=loader.drop_last,
            prefetch=self._prefetch,
            producers=max(1, loader.num_workers),
            whole_batches=loader.collate_fn is not None,
            cross_epochs=loader.num_workers > 0,
            slot_count=self._prefetch + _HELD_SLOTS,
            slot_bytes=_SLOT_BYTES,
            decode_tree=lambda tree: decode_tree(tree, to),
            # A bound method would make a cycle through C++, which the garbage collector cannot see.
            decode_problem=_weakly(self, _Engine._decode_problem),
            unpickle=pickle.loads,
        )
        self.pool: WorkerPool | None = None
        self.server: ClaimServer | None = None
        arena, completion = self.scheduler.arena_fd, self.scheduler.completion_fd
        if loader.num_workers == 0:
            self.server = ClaimServer(loader.dataset, loader.collate_fn, loader.seed, 0, arena, completion, local=True)
            self._finalizer = weakref.finalize(self, self.scheduler.shutdown)
            return
        shared: dict[str, Any] = {
            "dataset": loader.dataset,
            "collate_fn": loader.collate_fn,
            "worker_init_fn": loader.worker_init_fn,
            "num_workers": loader.num_workers,
            "seed": loader.seed,
            "arena": SharedDescriptor(arena),
            "completion": SharedDescriptor(completion),
        }
        self._make_setup: MakeSetup = lambda number, main: WorkerSetup(worker_id=number, main_process=main, **shared)
        self.pool = WorkerPool(self.scheduler, loader.num_workers, loader._context, self._make_setup)
        self._finalizer = weakref.finalize(self, self.pool.stop)

    def close(self) -> None:
        self._finalizer()

    def is_mine(self) -> bool:
        """Whether this process made it, and not one that this is a fork of."""
        return self._owner == os.getpid()

    def usable(self, length: int) -> bool:
        """Whether a new epoch of a dataset of that length can run."""
        return self._finalizer.alive and self.is_mine() and self._length == length

    def start_epoch(self, epoch: int) -> None:
        if self.server is not None:
            self.server.forget_errors()
        self.scheduler.start_epoch(epoch)
        if self.explicit:
            self._supplied.clear()
            self._supplied_count = 0
            self._batches = self._make_batches()
            self.supply()

    def next(self) -> Any:
        """The next batch. Raises StopIteration at the epoch's end."""
        while True:
            if self._batches is not None:
                self.supply()
            if self.server is not None:
                result = self._next_here(self.server)
            else:
                result = self.scheduler.next(self.timeout)
            if type(result) is not WaitOutcome:
                return result
            if result == WaitOutcome.END_OF_EPOCH:
                raise StopIteration
            if result == WaitOutcome.PRODUCER_DIED:
                self.replace_dead()
            elif result == WaitOutcome.TIMED_OUT:
                raise RuntimeError(f"DataLoader timed out after {self.timeout:g} seconds")
            elif result == WaitOutcome.STOPPED:
                raise RuntimeError("the loader was shut down during the iteration")

    def _next_here(self, server: ClaimServer) -> Any:
        while True:
            result = self.scheduler.next(0)
            if type(result) is not WaitOutcome or result != WaitOutcome.TIMED_OUT:
                return result
            claim = server.producer.try_claim()
            if claim is None:
                # An interrupt came between a claim and its end, and the user went on.
                self.scheduler.reclaim(0)
            else:
                server.serve(claim)

    def supply(self) -> None:
        """Explicit order: hands the scheduler the index lists that it wants."""
        for _ in range(self.scheduler.wanted_supply()):
            assert self._batches is not None
            indices = next(self._batches, None)
            if indices is None:
                self.scheduler.end_supply()
                return
            packed = _pack(indices)
            self.scheduler.supply(len(indices), dumps(indices) if packed is None else packed, packed is None)
            self._supplied[self._supplied_count] = indices
            self._supplied_count += 1
            while len(self._supplied) > self._prefetch + 1:  # in flight, and the one just taken
                self._supplied.popitem(last=False)

    def replace_dead(self) -> None:
        """Starts workers for those that died, with a warning each; if that fails, the loader is shut down."""
        if self.pool is None:
            return
        try:
            reports = self.pool.replace_dead(
                self.scheduler.take_deaths(),
                self._make_setup,
                lambda death: self._index(death.epoch, death.batch, death.row),
            )
        except BaseException:
            self.close()
            raise
        for report in reports:
            warnings.warn(report, RuntimeWarning, stacklevel=4)

    def _index(self, epoch: int, batch: int, row: int) -> Any:
        """The dataset index of a row."""
        if self.explicit:
            indices = self._supplied.get(batch)
            return None if indices is None else indices[row]
        position = batch * self._batch_size + row
        if self._order == "shuffled":
            return _core.IndexPermutation(self._length, self._seed, epoch)[position]
        return position

    def _decode_problem(self, problem: _core.BatchProblem) -> BaseException:
        if not problem.killed:
            return decode_error(problem.message) if self.server is None else self.server.decode_error(problem.message)
        self.replace_dead()  # the last death, which says the signal, may not have been looked at yet
        index = self._index(problem.epoch, problem.batch, problem.row)
        exit_text = self.pool.last_exit if self.pool is not None else describe_exit(None)
        return RuntimeError(
            f"every worker process that made the sample with index {index!r} died; the last one {exit_text}. "
            "With num_workers=0 the sample is made in this process, where a debugger can see it."
        )


class _Iterator(Iterator[Any]):
    """One epoch of a loader."""

    def __init__(self, loader: DataLoader, engine: _Engine, iteration: int) -> None:
        self._loader = loader
        self._engine = engine
        self._iteration = iteration
        self._done = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._done:
            raise StopIteration
        if self._loader._iteration != self._iteration:
            raise RuntimeError("this iterator was ended by a newer iteration of the same loader; use a loader for each")
        try:
            return self._engine.next()
        except StopIteration:
            self._done = True
            raise


class _Feed:
    """A loader's epoch on its way into a queue.

    ``stop`` may be called at any time, also twice. Dropping the object stops the feeding, too, and fails the queue.
    """

    def __init__(self, engine: _Engine, queue: _core.LoDTensorBlockingQueue) -> None:
        # The feeder's hooks keep the engine alive while it works.
        on_supply = _hook(engine.supply) if engine.explicit else None
        feeder = engine.scheduler.feed(queue, _hook(engine.replace_dead), on_supply, engine.timeout)
        stopping = threading.Event()
        thread: threading.Thread | None = None
        if engine.server is not None:
            # Without workers a thread of this process makes the samples. It must not refer to this object.
            thread = threading.Thread(
                target=_serve_until, args=(engine.server, stopping), daemon=True, name="headrace-feed"
            )
            thread.start()
        self._parts: _FeedParts | None = (feeder, stopping, thread, os.getpid())
        self._finalizer = weakref.finalize(self, _stop_feed, self._parts, "whoever fed the queue is gone")

    def stop(self, reason: str = "") -> None:
        """Ends the feeding. If the epoch is not over and there is a ``reason``, the queue fails with it."""
        parts, self._parts = self._parts, None
        if parts is not None:
            self._finalizer.detach()
            _stop_feed(parts, reason)


# The feeder, what tells the thread that makes the samples to end, that thread, and the process that they belong to.
_FeedParts = tuple[_core.QueueFeeder, threading.Event, Optional[threading.Thread], int]


def _stop_feed(parts: _FeedParts, reason: str) -> None:
    feeder, stopping, thread, owner = parts
    if os.getpid() != owner:
        return
    stopping.set()
    feeder.stop(reason)
    if thread is not None and thread is not threading.current_thread():
        thread.join()


def _hook(function: Callable[[], None]) -> Callable[[], BaseException | None]:
    """What calls ``function`` and returns its exception, if it raises one, without the frames of this module.

    A queue may keep the exception for long, and must not keep the loader with it.
    """

    def call() -> BaseException | None:
        try:
            function()
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
                trace = trace.tb_next
            return error.with_traceback(trace)
        return None

    return call


def _serve_until(server: ClaimServer, stopping: threading.Event) -> None:
    while not stopping.is_set() and not server.producer.stopped:
        claim = server.producer.wait(0.05)
        if claim is not None:
            server.serve(claim)


def _weakly(owner: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(owner)

    def call(*args: Any) -> Any:
        alive = reference()
        if alive is None:
            return RuntimeError("the loader is gone")
        return method(alive, *args)

    return call


def _integer(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    seconds = float(value)
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(f"{name} must be from 0 to {_MAX_SECONDS} seconds, got {value!r}")
    return seconds


def _context(context: Any) -> Any:
    if context is None or isinstance(context, str):
        try:
            return multiprocessing.get_context(context)
        except ValueError:
            raise ValueError(
                f"multiprocessing_context must be one of {multiprocessing.get_all_start_methods()}, got {context!r}"
            ) from None
    if not hasattr(context, "Process"):
        raise TypeError(f"multiprocessing_context must be a start method's name or a context, got {context!r}")
    return context


def _index_batches(loader: DataLoader) -> Callable[[], Iterator[list[Any]]]:
    """What gives an epoch's index lists, for a sampler or batch sampler. None of them is empty."""
    if loader.batch_sampler is not None:
        batch_sampler = loader.batch_sampler
        return lambda: map(_checked_batch, batch_sampler)
    sampler, batch_size, drop_last = loader.sampler, loader.batch_size, loader.drop_last
    assert batch_size is not None

    def batches() -> Iterator[list[Any]]:
        indices = iter(sampler if sampler is not None else ())
        while batch := list(itertools.islice(indices, batch_size)):
            if len(batch) < batch_size and drop_last:
                return
            yield batch

    return batches


def _checked_batch(batch: Any) -> list[Any]:
    if not isinstance(batch, Iterable) or isinstance(batch, (str, bytes)):
        raise TypeError(f"batch_sampler must give lists of indices, got {batch!r}")
    indices = list(batch)
    if not indices:
        raise ValueError("batch_sampler gave an empty list of indices")
    return indices


def _pack(indices: list[Any]) -> bytes | None:
    """The indices as int64, if that is what they are and none is negative."""
    try:
        array = np.asarray(indices)
    except ValueError:  # of different lengths
        return None
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype.itemsize > 8:
        return None
    if array.dtype.kind == "u" and array.size and int(array.max()) > _MAX_INDEX:
        return None
    packed = array.astype(np.int64)
    return None if (packed < 0).any() else packed.tobytes()


__all__ = ["DataLoader"]
