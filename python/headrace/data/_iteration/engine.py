"""The engine of a running loader: the scheduler of its arena, its workers, and the indices in progress."""

from __future__ import annotations

import dataclasses
import os
import pickle
import reprlib
import time
import weakref
from collections.abc import Callable
from typing import Any

from headrace import _core, errors
from headrace.data._config import LoaderConfig
from headrace.data._datasets.datasets import has_state
from headrace.data._iteration.index_supply import IndexSupply
from headrace.data._iteration.setup import (
    is_forked,
    scheduler_options,
    stream_starts,
    stream_task,
    tree_decoder,
    worker_task,
)
from headrace.data._iteration.state import Position
from headrace.data._order.choose_order import make_plan
from headrace.data._order.replay import Opened
from headrace.data._reports.stats import summarize
from headrace.data._samples.device_copies import DeviceCopies
from headrace.data._samples.in_process_batches import HandOver
from headrace.data._system.interpreter_exit import rest_if_interpreter_exits
from headrace.data._untold_state import UntoldState
from headrace.data._workers.dataset_snapshot import Snapshot
from headrace.data._workers.errors import KeptErrors, add_note, decode_error
from headrace.data._workers.group import WorkerGroup
from headrace.data._workers.sample_maker import SampleMaker
from headrace.data._workers.stalls import stall_watch

WaitOutcome = _core.WaitOutcome


@dataclasses.dataclass(frozen=True)
class Failed:
    """Takes the place of a batch that could not be made.

    Attributes:
        error: why.
        counts: whether a batch has failed, rather than the sampler after the last one.
    """

    error: BaseException
    counts: bool = True


class Engine:
    """Makes the batches of a loader, one epoch after the other.

    Ended by ``close``, or with the last reference. Belongs to the process that made it.

    Thread-safety: one thread at a time, except ``close``, which any thread may call.

    Args:
        seed: of the order and of the records' generators.
        base_seed: of the global generators of the workers, to which each adds its number.
        position: where the first epoch begins, which workers that read iterable datasets learn as they start.
        try_snapshot: whether a snapshot of the workers' task may succeed.
        initial: the state of an iterable dataset before anyone read it, if that is known.

    Attributes:
        length: of the dataset.
        stateful: whether it reads a stream that has a state of its own.
        stream_count: how many streams the scheduler tells apart; one that workers share counts as one.
        in_order: whether batches arrive in their order.
        scheduler: opens batches and gives them to the consumer, as which this object acts.
        supply: the indices of the batches.
        workers: make the batches.
        stall: the reaction when no batch arrives for long.
        comparable: whether it can tell if the dataset and the functions that the workers have are still the program's.
        lasts: whether it is good for more than one epoch.
        refreshed: how often ``refresh`` of the loader had been called when it started.
    """

    def __init__(
        self,
        config: LoaderConfig,
        seed: int,
        base_seed: int,
        position: Position,
        refreshed: int = 0,
        try_snapshot: bool = True,
        feeds: bool = False,
        initial: Any = None,
    ) -> None:
        self._config = config
        self.feeds = feeds
        self.refreshed = refreshed
        self._owner = os.getpid()
        self.length = config.dataset_length()
        self._stream = stream_task(config, position, initial) if config.iterable else None
        self.stateful = self._stream is not None and has_state(config.dataset)
        self.stream_count = 0 if self._stream is None else config.num_workers if self._stream.own else 1
        # Of one common stream the next batch is known only when the one before is.
        self.in_order = config.in_order or (config.iterable and not config.own_streams)
        # The problem that `next` met last, until it is acknowledged, and its exception.
        self._problem: _core.ReadyBatch | None = None
        self._failure: BaseException | None = None
        self._errors = KeptErrors()
        self._device = None if config.device is None else DeviceCopies(config.device)
        self._hand_over = HandOver(config.batch_type, self._device) if config.num_workers == 0 else None
        # Whether this process has to make the next batch, since the one before has arrived.
        self._is_due = False
        task = worker_task(config, seed, base_seed, self._stream, feeds)
        roots = (config.source, config.collate_fn, config.worker_init_fn)
        forked = is_forked(config)
        needed = config.persistent_workers or not forked
        snapshot = Snapshot.take(roots, forked) if needed and try_snapshot and config.num_workers else None
        self.comparable = snapshot is not None
        self.lasts = config.num_workers == 0 or (
            config.persistent_workers
            and (self.comparable or config.always_persistent or config.workers == "thread")
            and not config.read_once  # by these workers; others have the program's, which is unread
        )
        # What is shared may change before the next epoch begins, and so may what cannot be compared.
        cross_epochs = self.lasts and snapshot is not None and not snapshot.shares
        order, plan = ("stream", None) if config.iterable else make_plan(config, seed)
        prefetch = config.prefetch_factor if config.num_workers else 1
        self.scheduler = _core.BatchScheduler(
            dataset_length=self.length,
            seed=seed,
            decode_tree=tree_decoder(config, self._device, self._hand_over),
            # A bound method would make a cycle through C++, which the garbage collector cannot see.
            decode_problem=_weakly(self, Engine._decode_problem),
            unpickle=pickle.loads,
            **scheduler_options(config, order, prefetch),
            cross_epochs=cross_epochs,
            in_order=self.in_order,
        )
        self.supply = IndexSupply(config, order, plan, self.scheduler, self.length, seed, prefetch)
        self.workers = WorkerGroup(
            config, self.scheduler, task, self._errors, self._hand_over, self.supply.index_at, roots, snapshot
        )
        self.stall = stall_watch(config.timeout, self.scheduler, self.workers)
        # Kept at hand, since each batch needs them.
        top_up = self.supply.top_up if self.supply.needed else None
        self._before = top_up if self.supply.waits else None
        self._after = top_up if self.supply.ahead else None
        self._tuning = self.workers.tuning
        self._maker, self._serving = self.workers.maker, self.workers.serving
        self._patience = self.stall.seconds

    def close(self) -> None:
        """Ends the workers. Batches stay valid."""
        self.workers.close()

    def is_mine(self) -> bool:
        """Whether this process made it, rather than one that this is a fork of."""
        return self._owner == os.getpid()

    def usable(self, length: int) -> bool:
        """Whether a new epoch of a dataset of that length can run."""
        return self.workers.alive and self.is_mine() and self.length == length

    def follow(self, position: Position) -> bool:
        """Has the epoch that starts next, at ``position``, made of the dataset as it is now.

        Returns:
            Whether that is possible; if not, this engine is of no further use.
        """
        if self._maker is not None:
            if not position.streams and self._maker.reader is not None:
                self._maker.reader.forget_start()
            return not position.streams
        # Workers that have not told where a stream has ended go on there.
        told = not any(isinstance(stream.state, UntoldState) for stream in position.streams)
        return self.workers.follow(stream_starts(position) if position.streams and told else None)

    def start_epoch(self, position: Position, opened: Opened | None = None) -> None:
        """Begins an epoch, or continues one; ``opened``: its sampler's iteration, if that has begun."""
        self._errors.start_epoch(position.epoch)
        self._is_due = False
        if self._maker is not None:
            self._maker.hands_over = True
        epoch, batch = position.epoch, position.batch
        revision = self.workers.revision
        if self._stream is not None:
            positions = [(stream.batches, stream.ended) for stream in position.streams] if self._stream.own else []
            self.scheduler.start_epoch(
                epoch, batch, streams=positions, next_stream=position.next_stream, revision=revision
            )
            return
        self.scheduler.start_epoch(epoch, batch, position.skip, revision=revision)
        self.supply.start_epoch(position, opened)

    def let_go(self) -> None:
        """Drops the iterators of the sampler and of the dataset: their epoch is over, and they may have files open."""
        self.supply.let_go()
        if self._maker is not None and self._maker.reader is not None:
            self._maker.reader.let_go()

    def stream_ends(self) -> list[bytes]:
        """At the end of an epoch: the workers' reports of the ends of the streams, for :func:`decode_place`."""
        return [self.scheduler.stream_end(stream) for stream in range(self.stream_count)]

    def last(self) -> Any:
        """The batch that :meth:`next` took last."""
        return self.scheduler.last

    @property
    def source(self) -> tuple[_core.BatchScheduler, float] | None:
        """The scheduler and its timeout, if all that :meth:`next` does with its batches is to return them."""
        others = (self._maker, self._before, self._after, self._tuning, self._device)
        return (self.scheduler, self._patience) if all(other is None for other in others) else None

    def next(self, first: list[Any] | None = None) -> Any:
        """The next batch, or a :class:`Failed` one: the same again until :meth:`acknowledge` is called.

        The sampler's error comes after the batches before it.

        Args:
            first: what the scheduler's ``next`` has given or raised already; is emptied.

        Raises:
            StopIteration: the epoch has ended.
        """
        undecoded: BaseException | None = None
        while True:
            if self._before is not None:
                self._before()
            if self._tuning is not None and time.monotonic() >= self._tuning.due:
                self.workers.tune()
            try:
                if first:
                    if isinstance(first[0], BaseException):
                        raise first.pop()
                    result = first.pop()
                elif self._maker is None:
                    result = self.scheduler.next(self._patience)
                else:
                    result = self._next_here(self._maker)
            except BaseException as error:
                if error is self._failure:
                    if self._after is not None:
                        self._after()
                    return Failed(error)
                if not self.scheduler.undecoded or isinstance(error, KeyboardInterrupt):
                    raise
                undecoded = error
            if undecoded is not None:
                try:
                    failed = self._decode_again()
                    if failed is None:
                        raise undecoded
                    if self._after is not None:
                        self._after()
                    return failed
                finally:
                    undecoded = None  # it refers to this frame
            if type(result) is not WaitOutcome:
                if self._after is not None:
                    self._after()
                return result if self._device is None else self._device.deliver(result)
            if result == WaitOutcome.END_OF_EPOCH:
                if self.supply.error is not None:
                    return Failed(self.supply.error, counts=False)
                raise StopIteration
            if result == WaitOutcome.PRODUCER_DIED:
                rest_if_interpreter_exits()  # multiprocessing ends workers then
                self.workers.replace_dead()
                if self._after is not None:
                    self._after()  # batches may have been skipped, which are never taken
            elif result == WaitOutcome.TIMED_OUT:
                self.stall.note()
            elif result == WaitOutcome.STOPPED:
                raise errors.FailedPrecondition("the loader was shut down during the iteration")

    def _decode_again(self) -> Failed | None:
        """Decodes a batch once more: the exception that the first try met may be a signal handler's.

        Returns:
            None if it was: the batch is decoded now, and the next call of :meth:`next` returns it.
        """
        try:
            self.scheduler.next(0)
        except BaseException as error:
            if not self.scheduler.undecoded or isinstance(error, KeyboardInterrupt):
                raise
            return Failed(self._undecodable(error))
        return None

    def _undecodable(self, error: BaseException) -> BaseException:
        """The exception for a batch that cannot be decoded because of ``error``."""
        batch = self.scheduler.last
        assert batch is not None
        if isinstance(error, errors.DataLoss):
            self._accuse(batch)
        # Without the frames of this package, which refer to the engine.
        error = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ is not None else None)
        if isinstance(error, StopIteration):  # which would end the consumer's loop
            cause, error = error, RuntimeError("a sample raised StopIteration when it was unpickled")
            error.__cause__ = cause
        add_note(error, f"Batch {batch.batch} of epoch {batch.epoch}{self._samples_of(batch)} could not be decoded.")
        return error

    def _samples_of(self, batch: _core.ReadyBatch) -> str:
        """The indices of its samples, in words; empty if they are not known."""
        if self._stream is not None or self.workers.deaths()["skipped_samples"]:
            return ""
        indices = [self.supply.index_at(batch.epoch, batch.batch, row) for row in range(batch.rows)]
        return "" if any(index is None for index in indices) else f", with the samples {reprlib.repr(indices)},"

    def _accuse(self, batch: _core.ReadyBatch) -> None:
        """Has the worker replaced that wrote what cannot be read."""
        if batch.author is not None:
            self.scheduler.accuse(batch.author)

    @property
    def last_batch(self) -> Callable[[], int]:
        """Returns the number of the batch that :meth:`next` took last."""
        return self.scheduler.last_batch

    @property
    def acknowledge(self) -> Callable[[], None]:
        """To be called for each batch, when what :meth:`next` gave has arrived: the scheduler's, if that will do."""
        return self.scheduler.acknowledge if self._hand_over is None else self._acknowledge_here

    def _acknowledge_here(self) -> None:
        assert self._hand_over is not None
        self.scheduler.acknowledge()
        self._hand_over.batch = None
        self._is_due = True

    def forget_failure(self) -> None:
        """The consumer is about to hear of what :class:`Failed`."""
        self.supply.error = None
        if self._problem is not None:
            if self.workers.in_process and not (self._problem.killed or self._problem.corrupt):
                self._errors.drop(self._problem.message)
            self._problem = self._failure = None

    def _next_here(self, maker: SampleMaker) -> Any:
        """As the scheduler's ``next``, in a process that makes its batches itself."""
        if self._is_due:  # asking the scheduler for what is not made takes longer than making it
            self._is_due = False
            claim = maker.producer.try_claim()
            if claim is not None:
                with self._serving:
                    maker.serve(claim)
        while True:
            result = self.scheduler.next(0)
            if type(result) is not WaitOutcome or result != WaitOutcome.TIMED_OUT:
                return result
            claim = maker.producer.try_claim()
            if claim is None:
                # An interrupt came between a claim and its end, and the user continued.
                self.scheduler.reclaim(0)
            else:
                with self._serving:
                    maker.serve(claim)

    def stats(self) -> dict[str, Any]:
        """The workers' statistics since they started; see ``DataLoader.stats``."""
        counters = {**self.scheduler.stats(), **self.workers.deaths()}
        return summarize(counters, self.workers.count, self._config.threads_per_worker)

    def _decode_problem(self, problem: _core.ReadyBatch) -> BaseException:
        self._problem = problem
        self._failure = self._error_of(problem)
        return self._failure

    def _error_of(self, problem: _core.ReadyBatch) -> BaseException:
        if problem.corrupt:
            return errors.DataLoss(problem.message.decode())
        if problem.killed:
            return self.workers.death_error(problem)
        in_process = self.workers.in_process
        read = self._errors.get if in_process else decode_error
        try:
            error = read(problem.message)
        except Exception as failure:
            if not _fails(read, problem.message):
                raise  # a signal handler's: the next call reads the report again
            self._accuse(problem)
            return errors.DataLoss(
                f"the shared memory of batch {problem.batch} of epoch {problem.epoch} is corrupt: the report of what "
                f"failed in it cannot be read ({type(failure).__name__}: {failure})"
            )
        rephrases = self._config.rephrases
        return error if in_process or rephrases is None else rephrases(error)


def _fails(function: Callable[[bytes], Any], argument: bytes) -> bool:
    try:
        function(argument)
    except Exception:
        return True
    return False


def _weakly(owner: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    reference = weakref.ref(owner)

    def call(*args: Any) -> Any:
        alive = reference()
        if alive is None:
            return RuntimeError("the loader no longer exists")
        return method(alive, *args)

    return call
