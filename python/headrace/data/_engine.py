"""What a loader has once it runs: the scheduler of its arena, its workers, and the indices under way."""

from __future__ import annotations

import collections
import functools
import os
import pickle
import time
import warnings
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace import _core, errors
from headrace.data._autotune import Tuning, most_workers
from headrace.data._collation import decode_tree, default_collate, dumps
from headrace.data._plan import Indices
from headrace.data._worker import ClaimServer, KeptErrors, SharedDescriptor, WorkerSetup, WorkerTask, decode_error
from headrace.data._worker_pool import MakeSetup, ThreadPool, WorkerPool, describe_exit

if TYPE_CHECKING:
    from headrace.data._dataloader import DataLoader

WaitOutcome = _core.WaitOutcome

# Batches that the consumer can keep before further ones are handed out as copies.
_HELD_SLOTS = 256
# Address space, not memory: a slot takes what its batch needs.
_SLOT_BYTES = 4 << 30
# Of each worker, the newest.
_TRACE_EVENTS = 1 << 14
_MAX_INDEX = (1 << 63) - 1


class Engine:
    """Makes the batches of one iteration of a loader after the other.

    Args:
        epoch, resume: of the first iteration; where an iterable dataset's streams begin must be known early.

    Ended by ``close``, or with the last reference. Belongs to the process that made it; one thread at a time.
    """

    def __init__(self, loader: DataLoader, epoch: int, resume: dict[str, Any]) -> None:
        self._owner = os.getpid()
        self._seed = loader.seed or 0
        self.timeout = loader.timeout if loader.timeout > 0 else -1.0
        self.length = loader._dataset_length()
        self.stream = loader._stream_task(epoch, resume)
        self._order, self._plan = ("stream", None) if self.stream is not None else loader._make_plan(self.length)
        self._batch_size = loader.batch_size or 1
        self._rank, self._world = loader.shard
        self._supplying = False
        self._supplied: collections.OrderedDict[int, Indices] = collections.OrderedDict()
        self._supplied_count = 0
        self._skip: set[int] = set()
        self._failed = False
        in_process = loader.num_workers == 0
        self.workers = loader.num_workers
        self._tuning = Tuning(most_workers()) if loader._auto_workers else None
        self._prefetch = 1 if in_process else loader.prefetch_factor
        producers = max(1, loader.num_workers * loader.threads_per_worker)
        task = WorkerTask(
            dataset=loader._source,
            collate=_collate_of(loader),
            convert=loader.batch_size is None and loader.batch_sampler is None,
            seed=self._seed,
            seed_records=loader.seed_records,
            num_workers=loader.num_workers,
            worker_init_fn=loader.worker_init_fn,
            stream=self.stream,
        )
        # Streams that the scheduler tells apart; a common one counts as one.
        self.stream_count = loader.num_workers if self.stream is not None and self.stream.own else 1
        self.in_order = loader.in_order or self.stream is not None
        self.scheduler = _core.BatchScheduler(
            order=self._order,
            dataset_length=self.length,
            seed=self._seed,
            batch_size=self._batch_size,
            drop_last=loader.drop_last,
            rank=self._rank,
            world=self._world,
            prefetch=self._prefetch,
            producers=producers,
            collate=_collation(task, producers),
            collators=loader.num_workers_batches * loader.threads_per_worker,
            cross_epochs=not in_process and loader.persistent_workers,
            streams=self.stream_count if self.stream is not None and self.stream.own else 0,
            in_order=self.in_order,
            pin_memory=loader.pin_memory,
            trace_events=_TRACE_EVENTS if loader.trace else 0,
            slot_count=self._prefetch + _HELD_SLOTS,
            slot_bytes=_SLOT_BYTES,
            decode_tree=functools.partial(decode_tree, to=loader._batch_type()),
            # A bound method would make a cycle through C++, which the garbage collector cannot see.
            decode_problem=_weakly(self, Engine._decode_problem),
            unpickle=pickle.loads,
        )
        self._errors = KeptErrors()
        self._local = in_process or loader.workers == "thread"
        self.pool: WorkerPool | ThreadPool | None = None
        self.server: ClaimServer | None = None
        self._make_setup: MakeSetup
        arena, completion = self.scheduler.arena_fd, self.scheduler.completion_fd
        make_server = functools.partial(ClaimServer, task, arena_fd=arena, completion_fd=completion)
        if in_process:
            self.server = make_server(producer_id=0, errors=self._errors)
            self._finalizer = weakref.finalize(self, self.scheduler.shutdown)
            return
        if self._local:
            servers = functools.partial(make_server, errors=self._errors)
            self.pool = ThreadPool(self.scheduler, task, loader.num_workers, servers)
        else:
            shared: dict[str, Any] = {
                "task": task,
                "threads": loader.threads_per_worker,
                "arena": SharedDescriptor(arena),
                "completion": SharedDescriptor(completion),
            }
            self._make_setup = lambda number, main: WorkerSetup(worker_id=number, main_process=main, **shared)
            try:
                self.pool = WorkerPool(
                    self.scheduler, loader.num_workers, loader.threads_per_worker, loader._context, self._make_setup
                )
            except Exception as error:
                _explain_pickling(loader, error)
                raise
        self._finalizer = weakref.finalize(self, self.pool.stop)

    def close(self) -> None:
        """Ends the workers. Batches stay valid."""
        self._finalizer()

    def is_mine(self) -> bool:
        """Whether this process made it, and not one that this is a fork of."""
        return self._owner == os.getpid()

    def usable(self, length: int) -> bool:
        """Whether a new epoch of a dataset of that length can run."""
        return self._finalizer.alive and self.is_mine() and self.length == length

    def start_epoch(self, epoch: int, resume: dict[str, Any]) -> None:
        """Begins an epoch, or goes on with one where the ``position`` of a :class:`Progress` says."""
        self._errors.clear()
        batch, skip = resume.get("batch", 0), resume.get("skip", [])
        self._supplying = False
        if self.stream is not None:
            places = [(batches, ended) for batches, _, ended in resume.get("streams", ())] if self.stream.own else []
            self.scheduler.start_epoch(epoch, batch, streams=places, next_stream=resume.get("next_stream", 0))
        elif self._plan is None:
            self.scheduler.start_epoch(epoch, batch, skip)
        else:
            self.scheduler.start_epoch(epoch, batch, skip)
            self._supplied.clear()
            self._supplied_count = batch
            if "plan" in resume:
                self._plan.restore(resume["plan"])
            self._plan.start(epoch, batch)
            self._skip = set(skip)
            self._supplying = True
            self.supply()

    def last(self) -> Any:
        """Which batch :meth:`next` took last."""
        return self.scheduler.last

    def plan_state(self) -> dict[str, Any]:
        """What the order of the current epoch depends on, beside epoch and seed."""
        return {} if self._plan is None else self._plan.state()

    @property
    def supplying(self) -> bool:
        """Whether batches need :meth:`supply`."""
        return self._supplying

    def next(self) -> Any:
        """The next batch. Raises StopIteration at the epoch's end."""
        while True:
            if self._supplying:
                self.supply()
            if self._tuning is not None and time.monotonic() >= self._tuning.due:
                self.tune()
            if self.server is None:
                result = self.scheduler.next(self.timeout)
            else:
                result = self._next_here(self.server)
            if type(result) is not WaitOutcome:
                return result
            if result == WaitOutcome.END_OF_EPOCH:
                raise StopIteration
            if result == WaitOutcome.PRODUCER_DIED:
                self.replace_dead()
            elif result == WaitOutcome.TIMED_OUT:
                raise errors.Timeout(f"DataLoader timed out after {self.timeout:g} seconds")
            elif result == WaitOutcome.STOPPED:
                raise errors.FailedPrecondition("the loader was shut down during the iteration")

    def took_failed_batch(self) -> bool:
        """Whether the exception that :meth:`next` just raised is that of a batch, which it consumed."""
        failed, self._failed = self._failed, False
        return failed

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
        """Hands the scheduler the index lists that it wants."""
        assert self._plan is not None
        for _ in range(self.scheduler.wanted_supply()):
            while self._supplied_count in self._skip:
                self._plan.next()
                self._supplied_count += 1
            indices = self._plan.next()
            if indices is None:
                self.scheduler.end_supply()
                return
            packed = _pack(indices)
            self.scheduler.supply(len(indices), dumps(list(indices)) if packed is None else packed, packed is None)
            self._supplied[self._supplied_count] = indices
            self._supplied_count += 1
            while len(self._supplied) > self._prefetch + 1:  # in flight, and the one just taken
                self._supplied.popitem(last=False)

    def replace_dead(self) -> None:
        """Starts workers for those that died, with a warning each; if that fails, the engine is closed."""
        if not isinstance(self.pool, WorkerPool):
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

    def tune(self) -> None:
        """Adapts the number of workers to what happened since the last time (``num_workers="auto"``)."""
        if self._tuning is not None and isinstance(self.pool, WorkerPool):
            wanted = self._tuning.propose(self.workers, self.scheduler.stats())
            if wanted != self.workers:
                self.workers = self.pool.resize(wanted, self._make_setup)

    @property
    def tunes(self) -> bool:
        """Whether the number of workers changes while it runs."""
        return self._tuning is not None

    def _index(self, epoch: int, batch: int, row: int) -> Any:
        """The dataset index of a row."""
        if self._plan is not None:
            indices = self._supplied.get(batch)
            if indices is None:
                return None
            index = indices[row]
            return index.item() if isinstance(index, np.generic) else index
        position = (batch * self._batch_size + row) * self._world + self._rank
        if self._order == "shuffled":
            return _core.IndexPermutation(self.length, self._seed, epoch)[position]
        return position

    def _decode_problem(self, problem: _core.ReadyBatch) -> BaseException:
        self._failed = True
        if not problem.killed:
            return self._errors.pop(problem.message) if self._local else decode_error(problem.message)
        self.replace_dead()  # the last death, which says the signal, may not have been looked at yet
        index = self._index(problem.epoch, problem.batch, problem.row)
        exit_text = self.pool.last_exit if isinstance(self.pool, WorkerPool) else describe_exit(None)
        error = errors.WorkerDied(
            f"every worker process that made the sample with index {index!r} died; the last one {exit_text}. "
            "With num_workers=0 the sample is made in this process, where a debugger can see it."
        )
        error.sample_index = index
        return error


def _collation(task: WorkerTask, producers: int) -> str | None:
    """Whether, in the scheduler's words, one worker makes a batch with all its samples, or several make these."""
    if task.stream is not None or task.collate is None:
        return None
    return "adaptive" if producers > 1 and not task.convert else "whole"


def _collate_of(loader: DataLoader) -> Callable[[Any], Any] | None:
    """What makes a batch from all of its samples; None: the default, which writes them row by row."""
    collate = loader.collate_fn
    return None if collate is default_collate else collate  # whose result is the same


def _explain_pickling(loader: DataLoader, error: Exception) -> None:
    """Raises an error that says which of the arguments cannot be sent to workers, if ``error`` comes of that."""
    for name in ("dataset", "collate_fn", "worker_init_fn", "sampler"):
        try:
            pickle.dumps(getattr(loader, name))
        except Exception as reason:
            if str(reason) != str(error):
                continue
            method = loader._context.get_start_method()
            raise pickle.PicklingError(
                f'{name} cannot be pickled, as it must be for worker processes that "{method}" starts: {reason}. '
                'Define it at the top level of a module, or use multiprocessing_context="fork" or workers="thread".'
            ) from error


def _weakly(owner: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(owner)

    def call(*args: Any) -> Any:
        alive = reference()
        if alive is None:
            return RuntimeError("the loader is gone")
        return method(alive, *args)

    return call


def _pack(indices: Indices) -> bytes | None:
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
