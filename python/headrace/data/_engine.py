"""What a loader has once it runs: the scheduler of its arena, its workers, and the indices under way."""

from __future__ import annotations

import atexit
import collections
import dataclasses
import functools
import os
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace import _core, errors
from headrace.data._arguments import start_context
from headrace.data._autotune import Tuning, most_workers
from headrace.data._batch_tree import decode_tree
from headrace.data._collation import default_collate, is_in_place
from headrace.data._config import LoaderConfig
from headrace.data._dataset import bulk_method, wants_out
from headrace.data._device import DeviceCopies
from headrace.data._hand_over import HandOver
from headrace.data._order import Indices, States, as_integers, make_plan
from headrace.data._sample_pickle import dumps
from headrace.data._state import Position
from headrace.data._stats import summarize
from headrace.data._stream import StreamPlace, StreamTask
from headrace.data._worker import ClaimServer, KeptErrors, SharedDescriptor, WorkerSetup, WorkerTask, decode_error
from headrace.data._worker_pool import DeathPolicy, MakeSetup, ThreadPool, WorkerPool

WaitOutcome = _core.WaitOutcome

# Batches that the consumer can keep before further ones are handed out as copies.
_HELD_SLOTS = 256
# Address space, not memory: a slot takes what its batch needs.
_SLOT_BYTES = 4 << 30
# Seconds without a batch, and without a limit to that, after which somebody is told.
_SILENCE = 60.0
# Of each worker, the newest.
_TRACE_EVENTS = 1 << 14


_interpreter_exits = False


def _note_exit() -> None:
    global _interpreter_exits
    _interpreter_exits = True


# atexit runs the newest function first. weakref registers the one that runs all finalizers with the first of them,
# which this makes sure of: the exit is noted before a finalizer below ends an engine.
weakref.finalize(_note_exit, lambda: None)
atexit.register(_note_exit)


def rest_if_interpreter_exits() -> None:
    """Never returns to a daemon thread once the interpreter exits: its workers are gone, and nobody is left to tell.

    CPython treats such threads alike as soon as they want its lock; the C++ side does so from its own exit handler on,
    which runs after the finalizers.
    """
    if _interpreter_exits and threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


@dataclasses.dataclass(frozen=True)
class Failed:
    """Takes the place of a batch that could not be made.

    Attributes:
        error: why.
    """

    error: BaseException


class Engine:
    """Makes the batches of a loader, one epoch after the other.

    Ended by ``close``, or with the last reference. Belongs to the process that made it.

    Thread-safety: one thread at a time, except ``tune``, ``replace_dead`` and ``close``, which any thread may call.
    What they share is the pool of workers, which only one thread at a time may change: ``_pool_lock`` is held while
    workers are started, let go or ended.

    Args:
        seed: of the order and of the records' generators.
        base_seed: of the global generators of the workers, to which each adds its number.
        position: where the first epoch begins, which workers that read iterable datasets learn as they start.

    Attributes:
        sampler_error: what the sampler raised, which ends the epoch; to be set to None once the consumer hears of it.
    """

    def __init__(self, config: LoaderConfig, seed: int, base_seed: int, position: Position) -> None:
        self._config = config
        self._owner = os.getpid()
        self._seed = seed
        # What a wait lasts: in the middle of the time there is a look at what the workers do, to compare with.
        self.half_timeout = config.timeout / 2 if config.timeout > 0 else _SILENCE
        # The batches taken and the claims held at that look.
        self._last_look: tuple[int, list[_core.HeldClaim]] | None = None
        # Without a limit: the batches taken when a wait became long, and how often it was found so since.
        self._silence = (-1, 0)
        self.length = config.dataset_length()
        self._stream = _stream_task(config, position) if config.iterable else None
        self._order, self._plan = ("stream", None) if config.iterable else make_plan(config, seed)
        self._batch_size = config.batch_size or 1
        self._supplying = False
        self._supplied: collections.OrderedDict[int, Indices] = collections.OrderedDict()
        self._begin = position
        self.sampler_error: Exception | None = None
        # The exception that a batch's failure was turned into last, and what the errors are kept under.
        self._failure: BaseException | None = None
        self._failed: _core.ReadyBatch | None = None
        in_process = config.num_workers == 0
        self.workers = config.num_workers
        self._tuning = Tuning(most_workers()) if config.auto_workers else None
        self._prefetch = 1 if in_process else config.prefetch_factor
        producers = max(1, config.num_workers * config.threads_per_worker)
        task = WorkerTask(
            dataset=config.source,
            collate=None if config.collate is default_collate else config.collate,  # the default writes row by row
            convert=not config.batches_samples,
            seed=seed,
            seed_records=config.seed_records,
            num_workers=config.num_workers,
            worker_init_fn=config.worker_init_fn,
            base_seed=base_seed,
            stream=self._stream,
        )
        # Streams that the scheduler tells apart; a common one counts as one.
        self.stream_count = 0 if self._stream is None else config.num_workers if self._stream.own else 1
        # Of one common stream the next batch is known only when the one before is.
        self.in_order = config.in_order or (config.iterable and not config.own_streams)
        self._device = None if config.device is None else DeviceCopies(config.device)
        decode: Callable[[bytes], Any] = functools.partial(decode_tree, to=config.batch_type)
        if self._device is not None:
            decode = self._device.decoder(decode_tree)
        self._hand_over = HandOver(config.batch_type, self._device) if in_process else None
        self.scheduler = _core.BatchScheduler(
            order=self._order,
            dataset_length=self.length,
            seed=seed,
            batch_size=self._batch_size,
            drop_last=config.drop_last,
            rank=config.shard[0],
            world=config.shard[1],
            prefetch=self._prefetch,
            producers=producers,
            collate=_collation(task, producers, self._prefetch, in_process),
            collators=config.num_workers_batches * config.threads_per_worker,
            cross_epochs=not in_process and config.persistent_workers,
            streams=config.num_workers if config.own_streams else 0,
            in_order=self.in_order,
            pin_memory=config.pin_memory,
            fence_device=self._device is None,  # else it keeps each batch until its copies have ended
            look_ahead=self._device is not None,
            trace_events=_TRACE_EVENTS if config.trace else 0,
            slot_count=self._prefetch + _HELD_SLOTS,
            slot_bytes=_SLOT_BYTES,
            decode_tree=decode if self._hand_over is None else self._hand_over.decoder(decode),
            # A bound method would make a cycle through C++, which the garbage collector cannot see.
            decode_problem=_weakly(self, Engine._decode_problem),
            unpickle=pickle.loads,
        )
        self._errors = KeptErrors()
        self._local = in_process or config.workers == "thread"
        self._pool_lock = threading.RLock()
        self.pool: WorkerPool | ThreadPool | None = None
        self.server: ClaimServer | None = None
        self._serving = threading.Lock()  # held while samples are made in this process, at the consumer's request
        self._make_setup: MakeSetup
        self._finalizer: weakref.finalize[..., Engine]
        arena, completion = self.scheduler.arena_fd, self.scheduler.completion_fd
        make_server = functools.partial(ClaimServer, task, arena, completion)
        # None of the finalizers below refers to the task: what the user gave may refer to the loader, and such a cycle
        # could never be collected.
        if in_process:
            self.server = make_server(0, errors=self._errors, hand_over=self._hand_over)
            self._finalizer = weakref.finalize(self, _stop_here, self.scheduler, self._serving, self._owner)
            return
        if self._local:
            self._servers = [make_server(number, errors=self._errors) for number in range(config.num_workers)]
            self.pool = ThreadPool(self.scheduler, self._servers)
        else:
            shared: dict[str, Any] = {
                "task": task,
                "threads": config.threads_per_worker,
                "arena": SharedDescriptor(arena),
                "completion": SharedDescriptor(completion),
            }
            self._make_setup = functools.partial(WorkerSetup, **shared)
            context = start_context(config.multiprocessing_context)
            try:
                self.pool = WorkerPool(
                    self.scheduler,
                    config.num_workers,
                    config.threads_per_worker,
                    context,
                    self._make_setup,
                    DeathPolicy(config.max_deaths_per_sample, config.on_worker_death == "skip"),
                )
            except Exception as error:
                _explain_pickling(config, context.get_start_method(), error)
                raise
        self._finalizer = weakref.finalize(self, _stop_pool, self.pool, self._pool_lock, self._owner)

    def close(self) -> None:
        """Ends the workers. Batches stay valid."""
        self._finalizer()

    def is_mine(self) -> bool:
        """Whether this process made it, rather than one that this is a fork of."""
        return self._owner == os.getpid()

    def usable(self, length: int) -> bool:
        """Whether a new epoch of a dataset of that length can run."""
        return self._finalizer.alive and self.is_mine() and self.length == length

    def start_epoch(self, position: Position) -> None:
        """Begins an epoch, or goes on with one."""
        self._errors.clear()
        if self.server is not None:
            self.server.hands_over = True
        epoch, batch = position.epoch, position.batch
        self._supplying = False
        if self._stream is not None:
            places = [(stream.batches, stream.ended) for stream in position.streams] if self._stream.own else []
            self.scheduler.start_epoch(epoch, batch, streams=places, next_stream=position.next_stream)
            return
        self.scheduler.start_epoch(epoch, batch, position.skip)
        self._begin = position
        self.sampler_error = None
        if self._plan is not None:
            self._supplied.clear()
            if position.plan:
                self._plan.restore(dict(position.plan))
            self._plan.start(epoch, batch)
            self._supplying = True
            self.supply()

    def last(self) -> Any:
        """The batch that :meth:`next` took last."""
        return self.scheduler.last

    def plan_states(self) -> States | None:
        """What the order of the current epoch depends on from a batch on, besides epoch and seed; None: on nothing."""
        return None if self._plan is None else self._plan.states()

    @property
    def supplying(self) -> bool:
        """Whether batches need :meth:`supply`."""
        return self._supplying

    def next(self) -> Any:
        """The next batch, or a :class:`Failed` one: the same again until :meth:`acknowledge` is called.

        Raises:
            StopIteration: the epoch has ended.
            Exception: ``sampler_error``, after the batches before it.
        """
        while True:
            if self._supplying:
                self.supply()
            if self._tuning is not None and time.monotonic() >= self._tuning.due:
                self.tune()
            try:
                result = self.scheduler.next(self.half_timeout) if self.server is None else self._next_here(self.server)
            except BaseException as error:
                if error is self._failure:
                    return Failed(error)
                raise
            if type(result) is not WaitOutcome:
                return result if self._device is None else self._device.deliver(result)
            if result == WaitOutcome.END_OF_EPOCH:
                if self.sampler_error is not None:
                    raise self.sampler_error
                raise StopIteration
            if result == WaitOutcome.PRODUCER_DIED:
                self.replace_dead()
            elif result == WaitOutcome.TIMED_OUT:
                self.note_half_timeout()
            elif result == WaitOutcome.STOPPED:
                raise errors.FailedPrecondition("the loader was shut down during the iteration")

    def acknowledge(self) -> None:
        """What :meth:`next` gave last has arrived."""
        self.scheduler.acknowledge()
        if self._hand_over is not None:
            self._hand_over.batch = None
        if self._failed is not None:
            if self._local and not (self._failed.killed or self._failed.corrupt):
                self._errors.drop(self._failed.message)
            self._failed = self._failure = None

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
                with self._serving:
                    server.serve(claim)

    def supply(self) -> None:
        """Hands the scheduler the index lists that it wants. An error of the sampler ends the supply.

        The scheduler counts what it was handed, so that an interrupt at any moment leaves out no list.
        """
        assert self._plan is not None
        for _ in range(self.scheduler.wanted_supply()):
            batch = self._begin.batch_after(self.scheduler.supplied)
            try:
                indices = self._plan.take(batch)
            except Exception as error:
                self.sampler_error = error  # raised once the batches before it have been taken
                indices = None
            if indices is None:
                self.scheduler.end_supply()
                return
            integers = as_integers(indices)
            self._supplied[batch] = indices
            packed = dumps(list(indices)) if integers is None else integers.tobytes()
            self.scheduler.supply(len(indices), packed, integers is None)
            while len(self._supplied) > self._prefetch + 2:  # in flight, the one just taken, and one handed over twice
                self._supplied.popitem(last=False)

    def supply_or_raise(self) -> None:
        """As :meth:`supply`, for a feed, which asks once more at the end of the epoch: the sampler's error, if any."""
        if self.sampler_error is not None:
            raise self.sampler_error
        self.supply()

    def replace_dead(self) -> None:
        """Starts workers for those that died, with a warning each; if that fails, the engine is closed."""
        if not isinstance(self.pool, WorkerPool):
            return
        with self._pool_lock:
            try:
                reports = self.pool.replace_dead(
                    self.scheduler.take_deaths(),
                    self._make_setup,
                    self._index_of,
                )
            except BaseException:
                self.close()
                raise
        for report in reports:
            warnings.warn(report, RuntimeWarning, stacklevel=4)

    def note_half_timeout(self) -> None:
        """Half of the time that a batch may take is over; without such a limit, a long time.

        The second time for one batch, workers that are still at the same sample count as hung, and are replaced.
        Without a limit, a warning says what the workers are at.

        Raises:
            errors.Timeout: it was the second half.
        """
        taken = self.scheduler.stats()["batches"]
        if self._config.timeout == 0:
            self._note_silence(taken)
            return
        if self._last_look is None or self._last_look[0] != taken:
            self._last_look = (taken, self.scheduler.claims())
            return
        held, self._last_look = self._last_look[1], None
        with self._pool_lock:
            text = self.explain_stall()
            if isinstance(self.pool, WorkerPool):
                self.pool.end_hung(held)
        raise errors.Timeout(f"DataLoader timed out after {self._config.timeout:g} seconds. {text}")

    def _note_silence(self, taken: int) -> None:
        before, times = self._silence
        times = times + 1 if before == taken else 1
        self._silence = (taken, times)
        with self._pool_lock:
            text = self.explain_stall()
        warnings.warn(
            f"no batch has come for {times * _SILENCE:g} seconds; with timeout= that would be an error. {text}",
            RuntimeWarning,
            stacklevel=5,
        )

    def explain_stall(self) -> str:
        """What keeps the next batch: which worker is at which sample, and the stack of each."""
        if self.pool is None:
            return ""
        claims = self.scheduler.claims()
        # Of the batch that is waited for, if anybody is at work on it.
        return self.pool.explain([claim for claim in claims if claim.sequence == claims[0].sequence], self._index_of)

    def _index_of(self, claim: _core.HeldClaim) -> Any:
        return self._index(claim.epoch, claim.batch, claim.row)

    def tune(self) -> None:
        """Adapts the number of workers to what happened since the last time (``num_workers="auto"``)."""
        if self._tuning is None or not isinstance(self.pool, WorkerPool):
            return
        with self._pool_lock:
            if not self._finalizer.alive:
                return
            wanted = self._tuning.propose(self.workers, self.scheduler.stats())
            if wanted != self.workers:
                self.workers = self.pool.resize(wanted, self._make_setup)

    def stats(self) -> dict[str, Any]:
        """What the workers have done since they started; see ``DataLoader.stats``."""
        counters = self.scheduler.stats()
        pool = self.pool if isinstance(self.pool, WorkerPool) else None
        counters["worker_deaths"] = 0 if pool is None else pool.deaths
        counters["skipped_samples"] = 0 if pool is None else pool.skipped
        return summarize(counters, self.workers, self._config.threads_per_worker)

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
        rank, world = self._config.shard
        position = (batch * self._batch_size + row) * world + rank
        if self._order == "shuffled":
            return _core.IndexPermutation(self.length, self._seed, epoch)[position]
        return position

    def _decode_problem(self, problem: _core.ReadyBatch) -> BaseException:
        self._failed = problem
        self._failure = self._error_of(problem)
        return self._failure

    def _error_of(self, problem: _core.ReadyBatch) -> BaseException:
        if problem.corrupt:
            return errors.DataLoss(problem.message.decode())
        if not problem.killed:
            return self._errors.get(problem.message) if self._local else decode_error(problem.message)
        assert isinstance(self.pool, WorkerPool)  # which gave the sample up
        index = self._index(problem.epoch, problem.batch, problem.row)
        exit_text, hint = self.pool.exit_at(problem.epoch, problem.stream_batch)
        error = errors.WorkerDied(
            f"every worker process that made the sample with index {index!r} died; the last one {exit_text}. {hint}"
            "With num_workers=0 the sample is made in this process, where a debugger can see it."
        )
        error.sample_index = index
        return error


def _collation(task: WorkerTask, producers: int, prefetch: int, in_process: bool) -> str | None:
    """Whether, in the scheduler's words, one worker makes a batch with all its samples, or several make these."""
    if task.stream is not None:
        return None
    if not task.convert and bulk_method(task.dataset) is not None and producers <= prefetch:
        return "whole"  # a call for many samples costs little more than one for a few
    if task.collate is None or is_in_place(task.collate):
        return "whole" if in_process and not wants_out(task.dataset) else None
    return "adaptive" if producers > 1 and not task.convert else "whole"


def _stream_task(config: LoaderConfig, position: Position) -> StreamTask:
    places = {
        number: StreamPlace(position.epoch, *stream)
        for number, stream in enumerate(position.streams)
        if stream.ended or stream.state is not None  # else the worker reads up to there
    }
    size, tells_epoch = config.batch_size or 1, config.tells_epoch
    return StreamTask(config.own_streams, size, *config.shard, config.drop_last, places, tells_epoch)


def _explain_pickling(config: LoaderConfig, start_method: str, error: Exception) -> None:
    """Raises an error that names the argument that cannot be sent to workers, if that caused ``error``."""
    for name in ("dataset", "collate_fn", "worker_init_fn", "sampler"):
        try:
            pickle.dumps(getattr(config, name))
        except Exception as reason:
            if str(reason) != str(error):
                continue
            raise pickle.PicklingError(
                f'{name} cannot be pickled, which the start method "{start_method}" requires: {reason}. Define it at '
                'the top level of a module, or use multiprocessing_context="fork" or workers="thread".'
            ) from error


def _stop_here(scheduler: _core.BatchScheduler, serving: threading.Lock, owner: int) -> None:
    """Ends an engine without workers.

    At the interpreter's exit a daemon thread may be in a dataset that C++ has called. Python before 3.13 would end it
    there by unwinding the stack, which C++ answers with abort(): so it is given time to come out.
    """
    scheduler.shutdown()
    if _interpreter_exits and os.getpid() == owner and serving.acquire(timeout=1.0):
        serving.release()


def _stop_pool(pool: WorkerPool | ThreadPool, lock: threading.RLock, owner: int) -> None:
    if os.getpid() == owner:  # in a forked child the lock may be held by a thread that is not there
        with lock:
            pool.stop()


def _weakly(owner: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(owner)

    def call(*args: Any) -> Any:
        alive = reference()
        if alive is None:
            return RuntimeError("the loader is gone")
        return method(alive, *args)

    return call
