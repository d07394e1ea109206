"""What runs in a worker: makes the samples of the rows that it claims, and writes them in place.

The claiming is C++: ``reader/shared_memory/batch_producer.cc``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pickle
import threading
import time
import types
from collections.abc import Callable
from typing import Any

from headrace import _core, errors
from headrace.data._datasets.fetcher import Fetcher
from headrace.data._randomness.global_generators import global_generators
from headrace.data._randomness.sample_seeds import (
    COLLATION_ROW,
    epoch_key,
    generators_restored,
    position_key,
    seed_generators,
)
from headrace.data._samples.collation import (
    DefaultCollate,
    InPlaceCollate,
    KnownCollate,
    collate_in_place,
    default_collate,
)
from headrace.data._samples.containers import circle_in
from headrace.data._samples.describe import Description, describe, describe_whole, sample_prototype
from headrace.data._samples.flatten import Flattener
from headrace.data._samples.in_process_batches import HandOver, describe_as_is
from headrace.data._samples.pickling import dumps_from, dumps_sample, loads_sample
from headrace.data._samples.tensor_columns import TensorColumns, tensor_columns
from headrace.data._workers.blame import pause_before_retry
from headrace.data._workers.dataset_updates import UpdateError, UpdateReader, started_at
from headrace.data._workers.errors import (
    KeptErrors,
    add_note,
    caused_by,
    copied_error,
    described_error,
    encode_error,
    shortened_indices,
)
from headrace.data._workers.info import WorkerInfo, get_worker_info
from headrace.data._workers.stream_reader import StreamReader
from headrace.data._workers.task import WorkerTask

# Seconds between two looks whether a batch on trial has been made.
_LOOK_EVERY = 0.01


def _no_worker() -> errors.FailedPrecondition:
    """Of a child that the user's code has forked and that returns from it; C++ says so after each sample."""
    return errors.FailedPrecondition("a forked child is no worker: it has to end with os._exit")


class SampleMaker:
    """Makes the rows of claims. One per worker thread.

    Args:
        arena_fd, completion_fd: of the scheduler.
        producer_id: unique among the makers of the arena.
        errors: where the consumer, which is in this process, finds exceptions; None: they are pickled.
        hand_over: the consumer is this thread and finds there what would not leave a slot as it is; None: whatever it
            is, it is written to a slot.
        updates: of the task of this process; None: its dataset is the program's own.
        revision: of the task.

    Attributes:
        task: the task that it was given, or sent later.
        producer: claims rows.
        info: what get_worker_info says in its thread, if it is one of the main process.
        hands_over: whether ``hand_over`` is used: not while C++ moves the batches.
        reader: of an iterable dataset; None for any other.
    """

    def __init__(
        self,
        task: WorkerTask,
        arena_fd: int,
        completion_fd: int,
        producer_id: int,
        errors: KeptErrors | None = None,
        hand_over: HandOver | None = None,
        updates: UpdateReader | None = None,
        revision: int = 0,
    ) -> None:
        self.task = task
        self._updates, self._revision = updates, revision
        self._sent: WorkerTask | None = None
        self.info: WorkerInfo | None = None
        self._number = producer_id
        self._process = os.getpid()
        self._errors = errors
        self.reader: StreamReader | None = None
        self._hand_over = hand_over
        collate: Any = task.collate
        known = isinstance(collate, KnownCollate)
        self._in_place = collate is None or isinstance(collate, InPlaceCollate)
        self._own_collate = not (self._in_place or isinstance(collate, DefaultCollate))
        self._takes_any_number = self._own_collate or (known and collate.takes_any_number)
        # Says whether the batches have no owner but the consumer; None: nobody knows.
        self._makes_new: Callable[[], bool] | None = collate.makes_new if known else None
        self._begin()
        self._epoch = 0
        self._init_error: BaseException | None = None
        self._init_traceback: types.TracebackType | None = None
        # The origin of an exception; None: the current sample.
        self._culprit: str | None = None
        self.hands_over = hand_over is not None
        describe_sample = describe if hand_over is None else describe_as_is
        if isinstance(collate, InPlaceCollate):
            describe_sample = self._describe_in_place
        flattener = Flattener(task.feeds)
        # Batches that do not feed programs arrive with the strides and shared memory that their arrays have.
        self._take_apart = flattener.result if self._own_collate and not task.feeds else flattener.collated
        dumps_object = dumps_from("collate_fn" if self._own_collate else "the dataset")
        describe_sample = functools.partial(_described, describe_sample)
        self.producer = _core.BatchProducer(arena_fd, producer_id, completion_fd, describe_sample, dumps_object)

    def _begin(self) -> None:
        """Begins with a dataset."""
        task = self.task
        if task.stream is not None:
            interruptible = self._errors is not None
            self.reader = StreamReader(task.dataset, task.stream, self._number, interruptible=interruptible)
        self._prepare()
        self._spec = getattr(task.dataset, "sample_spec", None) if self._fetcher.wants_out else None

    def _describe_in_place(self, sample: Any) -> Any:
        collate: Any = self.task.collate
        return collate.describe(sample)

    def _prepare(self) -> None:
        """Looks up the methods of the dataset as it is now."""
        task = self.task
        self._fetcher = Fetcher([] if task.stream is not None else task.dataset, task.seed)
        # The producer seeds rows; not in this process, whose consumer draws from the same generators.
        self._seeds_rows = task.seed_records == "position" and self._errors is None
        seeds = task.seed_records and not self._seeds_rows
        self._getitem = self._seeded_getitem if seeds else self._fetcher.getitem
        # Each record has a seed of its own, unless it is that of its position.
        single = task.convert or task.seed_records is True
        self._bulk = None if single else self._fetcher.bulk
        self._columns = None if task.convert else tensor_columns(task.dataset, task.collate)
        # Whether claims of plain rows need only getitem, and whole batches only collate_fn in addition.
        self._plain = self.reader is None and self._bulk is None
        whole = self._own_collate and self._hand_over is None and self._columns is None
        self._collates_plain = self._plain and whole and not (seeds or task.convert)

    def initialize(self, worker_id: int) -> None:
        """Calls ``worker_init_fn``. If that raises, every claim fails with its exception."""
        if self.task.worker_init_fn is None:
            return
        try:
            self.task.worker_init_fn(worker_id)
            if os.getpid() != self._process:
                raise _no_worker()
        except BaseException as error:  # SystemExit, too: the consumer must hear of it
            self._raise_in_child(error)
            self._init_error = error
            self._init_traceback = error.__traceback__.tb_next if error.__traceback__ is not None else None

    def share_failure(self, other: SampleMaker) -> None:
        """Fails as ``other`` does, if its ``worker_init_fn`` has raised."""
        self._init_error, self._init_traceback = other._init_error, other._init_traceback

    def run(self) -> None:
        """Serves claims until the loader is shut down."""
        producer = self.producer
        claim = producer.wait()
        while claim is not None:
            self.serve(claim)
            claim = self._serve_plain() if self._plain and self._init_error is None else producer.wait()

    def _serve_plain(self) -> _core.Claim | None:
        """Serves plain claims of the epoch at hand. Returns the next other claim, or None, as ``producer.wait``."""
        producer = self.producer
        try:
            if self._collates_plain:
                collate: Any = self.task.collate
                return producer.collate_plain(self._getitem, collate, self._take_apart, self._epoch, self._revision)
            return producer.fill_plain(self._getitem, self._epoch, self._fetcher.wants_out, self._revision)
        except BaseException as error:
            failed = producer.failed_claim
            if failed is None:
                raise
            self._culprit = _COLLATION if producer.failed_collation else None
            self._fail(failed, error)
        return producer.wait()

    def serve(self, claim: _core.Claim) -> None:
        """Makes the rows of a claim; an exception becomes the batch's."""
        try:
            self._serve(claim)
        except BaseException as error:
            self._fail(claim, error)

    def _fail(self, claim: _core.Claim, error: BaseException) -> None:
        """Ends a claim because of an exception: whatever it is, it fails the batch, not the worker."""
        self._raise_in_child(error)
        here = self._errors is not None and threading.current_thread() is threading.main_thread()
        if here and isinstance(error, KeyboardInterrupt):
            raise error  # not the sample's doing
        if isinstance(error, StopIteration) or not (here or isinstance(error, Exception)):
            # The consumer's loop, or its program, would end without a word and with status 0.
            error = caused_by(
                RuntimeError(f"a dataset, collate_fn or worker_init_fn raised {described_error(error)}"), error
            )
        # A stream that does not begin ends with this batch, whichever workers try to begin it meanwhile.
        ended = self.reader is not None and self.reader.is_broken
        self.producer.fail(claim, self._encode(error, claim), ended)

    def _raise_in_child(self, error: BaseException) -> None:
        """In a child that the user's code has forked, raises what is to end it: it does not serve claims."""
        if os.getpid() != self._process:
            raise error

    def _serve(self, claim: _core.Claim) -> None:
        producer = self.producer
        if self._init_error is not None:
            self._culprit = "worker_init_fn failed"
            # One for each batch: what catches it in this process must not be kept alive by the worker.
            raise copied_error(self._init_error).with_traceback(self._init_traceback)
        self._culprit = None
        if claim.revision != self._revision:
            self._catch_up(claim.revision)
        if self.reader is not None:
            self._serve_stream(claim, self.reader)
            return
        if self._errors is None:
            self._pause(claim)
        self._epoch = claim.epoch
        self._fetcher.set_epoch(self._epoch)
        if self._seeds_rows:
            producer.seed_rows(global_generators(), epoch_key(self.task.seed, self._epoch))
        kind = claim.kind
        if kind == "collate":
            self._serve_collation(claim)
            return
        if kind == "rows" and self._bulk is None:
            keys = self._keys(claim)
            self._expect_spec()
            producer.fill(claim, self._getitem, keys, self._fetcher.wants_out)
            return
        if kind == "whole" and self._columns is not None and self._look_up(claim, self._columns):
            return
        if kind == "whole" and self._in_place and self._bulk is None:
            samples = producer.make_whole(claim, self._getitem, self._keys(claim))
            if samples is not None:
                self._write_batch(claim, [samples])
            return
        begin = time.perf_counter_ns()
        made = [self._make(claim)]
        spent_ns = time.perf_counter_ns() - begin
        if kind == "whole" and not self._in_place:
            self._write_batch(claim, made, spent_ns)
            return
        producer.add_time(dataset_ns=spent_ns)
        if kind == "whole":
            if len(made[0]) != claim.end - claim.begin or not producer.fill_from(claim, made[0]):
                self._write_batch(claim, made)
        elif kind == "items":
            self._keep(claim, made[0])
        else:
            producer.fill_from(claim, made[0])

    def _keys(self, claim: _core.Claim) -> list[Any] | None:
        """The indices of a claim, unless the producer knows them."""
        return self.producer.indices(claim, pickle.loads) if self.producer.has_pickled_indices(claim) else None

    def _catch_up(self, revision: int) -> None:
        """Continues with another revision of the task."""
        self._revision = revision
        if self._updates is None:
            self._prepare()
            return
        try:
            self._updates.catch_up(revision)
        except UpdateError:
            os._exit(OUTDATED)  # a new worker takes the place of this one, and the claim
        starts, sent = self._updates.starts, self._updates.task
        if sent is not None and sent is not self._sent:
            self._sent = sent
            self.task = started_at(dataclasses.replace(self.task, dataset=sent.dataset, collate=sent.collate), starts)
            self._begin()
        elif self.reader is not None:
            self.reader.begin_anew(starts)

    def _look_up(self, claim: _core.Claim, columns: TensorColumns) -> bool:
        """Makes a batch of rows of tensors; False if its samples have to be made one by one."""
        self.producer.begin_row(claim, claim.begin)
        indices = self.producer.indices(claim, pickle.loads)
        batch = columns.batch(indices, planned=self._hand_over is None or not self.hands_over)
        if batch is None:
            return False
        self._culprit = f"The samples with indices {_INDICES} could not be looked up"
        self.producer.write_batch(claim, *self._written([batch], is_new=True))
        return True

    def _pause(self, claim: _core.Claim) -> None:
        """Waits, in a worker process, before it starts rows at which others have died (``deaths``)."""
        if claim.deaths == 0:
            return
        deadline = time.monotonic() + pause_before_retry(claim.deaths)
        while (left := deadline - time.monotonic()) > 0 and not self.producer.stopped:
            time.sleep(min(left, 0.1))

    def _may_pass(self, claim: _core.Claim) -> bool:
        """Whether to read the elements of a batch before the claim's. In a stream that workers share, waits as long as
        these may kill workers (``blame.py``): the death of one that waits has another cause. False if nobody needs the
        claim's batch any more.
        """
        assert self.task.stream is not None
        if self.task.stream.own or not self.producer.has_trial_before(claim):
            return True
        while self.producer.has_trial_before(claim) and not self.producer.stopped:
            time.sleep(_LOOK_EVERY)
        return self.producer.is_open(claim) and not self.producer.stopped

    def _keep(self, claim: _core.Claim, samples: list[Any]) -> None:
        """Stores samples in the slot for the worker that collates the batch."""
        try:
            kept = [dumps_sample(sample) for sample in samples]
        except Exception:  # what cannot be pickled, one worker makes and collates
            self.producer.mismatch(claim)
            return
        for row, (data, buffers) in enumerate(kept, claim.begin):
            self.producer.keep(claim, row, data, buffers)
        self.producer.complete(claim)

    def _serve_collation(self, claim: _core.Claim) -> None:
        self._culprit = f"The samples with indices {_INDICES} could not be unpickled"
        self.producer.begin_row(claim, 0)
        # A collate_fn of the user's may keep samples beyond this call, after which others take their place in the slot.
        samples = [
            loads_sample(data, map(bytearray, buffers) if self._own_collate else buffers)
            for data, buffers in self.producer.kept(claim)
        ]
        self._write_batch(claim, [samples])

    def _write_batch(self, claim: _core.Claim, made: list[list[Any]], dataset_ns: int = 0) -> None:
        """Collates the samples that are in ``made``, which has taken ``dataset_ns``, and writes the batch."""
        self._culprit = _COLLATION
        holder = [self._collate(made.pop(), lambda: self._names_of(claim), dataset_ns)]
        self.producer.write_batch(claim, *self._written(holder))

    def _names_of(self, claim: _core.Claim) -> list[Any]:
        """What messages call the samples of a claim."""
        indices = self.producer.indices(claim, pickle.loads)
        name_of = getattr(self.task.dataset, "name_of", None)
        return indices if name_of is None else [name_of(index) for index in indices]

    def _serve_stream(self, claim: _core.Claim, reader: StreamReader) -> None:
        producer = self.producer
        self._culprit = "The iterable dataset could not be read"
        begin = time.perf_counter_ns()
        # Before the batch is started: catching up may take long, and a death meanwhile is not the batch's doing.
        if not reader.seek(claim.epoch, claim.stream_batch, lambda: self._may_pass(claim)):
            producer.complete(claim)
            return
        if self._errors is None:
            self._pause(claim)
        producer.begin_row(claim, claim.begin)
        samples, ended = reader.read()
        if os.getpid() != self._process:
            raise _no_worker()
        spent_ns = time.perf_counter_ns() - begin
        report = reader.report()
        if self._in_place or not samples:
            producer.add_time(dataset_ns=spent_ns)
            spent_ns = 0
        if not samples:
            producer.end_stream(claim, report)
            return
        self._culprit = f"Batch {claim.batch} of the iterable dataset could not be collated"
        if not self._in_place or not producer.fill_from(claim, samples, ended, report):
            rows = len(samples)
            made = [samples]
            del samples
            holder = [self._collate(made.pop(), lambda: list(range(rows)), spent_ns)]
            producer.write_batch(claim, *self._written(holder), ended, report, rows=rows)

    def _written(self, holder: list[Any], is_new: bool = False) -> tuple[bytes, list[Any]]:
        """The value to write to the slot for a collated batch, to which ``holder`` has this class's only reference:
        objects with other references do not belong to the consumer yet, unless their memory ``is_new``.
        """
        if self._hand_over is not None and self.hands_over:
            return self._hand_over.put(holder, is_new or (self._makes_new is not None and self._makes_new()))
        batch = holder.pop()
        return self._take_apart(batch)

    def _make(self, claim: _core.Claim) -> Any:
        producer = self.producer
        if self._bulk is not None and (claim.kind == "whole" or not self.task.seed_records):
            producer.begin_row(claim, claim.begin)
            self._culprit = f"The samples with indices {_INDICES} could not be made"
            indices = producer.indices(claim, pickle.loads)
            seeds = self.task.seed_records
            made = self._seeded(position_key(claim.batch, 0), self._bulk, indices) if seeds else self._bulk(indices)
            if os.getpid() != self._process:
                raise _no_worker()
            if claim.kind == "whole" and self._own_collate and not isinstance(made, (list, tuple)):
                return made  # a batch already, in a form that is between the dataset and its collate_fn
            if not hasattr(made, "__len__"):
                raise TypeError(f"__getitems__ must return a list of samples, got {type(made).__name__}")
            if len(made) != len(indices) and not (claim.kind == "whole" and self._takes_any_number):
                raise ValueError(f"__getitems__ was asked for {len(indices)} samples and gave {len(made)}")
            self._culprit = None
            return made
        return producer.make(claim, self._getitem, self._keys(claim))

    def _collate(self, samples: list[Any], names: Callable[[], list[Any]], dataset_ns: int = 0) -> Any:
        """The result of the collate function for the samples; ``names`` gives what messages call them. Notes its time,
        and ``dataset_ns``.
        """
        begin = time.perf_counter_ns()
        producer, collate = self.producer, self.task.collate
        try:
            if collate is None or isinstance(collate, DefaultCollate):
                stack = default_collate if self.hands_over else collate_in_place
                batch = stack(samples, names(), None if collate is None else collate.ragged)
            else:
                argument = samples[0] if self.task.convert else samples
                if self.task.seed_records and self.task.stream is None:
                    # The function draws the same numbers in any worker, and after any samples.
                    batch = self._seeded(position_key(producer.batch, COLLATION_ROW), collate, argument)
                else:
                    batch = collate(argument)
                if os.getpid() != self._process:
                    raise _no_worker()
        except RecursionError:
            circles = map(circle_in, samples) if _is_default(collate) else ()
            for name, where in zip(names(), circles):
                if where is not None:
                    raise ValueError(
                        f"sample {name!r} cannot be collated: its element {where} contains itself. Return samples "
                        "without circles, or pass a collate_fn"
                    ) from None
            raise
        producer.add_time(dataset_ns=dataset_ns, collate_ns=time.perf_counter_ns() - begin)
        return batch

    def _expect_spec(self) -> None:
        """Passes the dataset's ``sample_spec`` on, once, so that even the first sample has a place."""
        if self._spec is not None:
            self._culprit = "The dataset's sample_spec is invalid"
            self.producer.expect(sample_prototype(self._spec))
            self._culprit = self._spec = None

    def _seeded_getitem(self, index: Any, *out: Any) -> Any:
        by_position = self.task.seed_records == "position"
        key = position_key(self.producer.batch, self.producer.row) if by_position else index
        return self._seeded(key, self._fetcher.getitem, index, *out)

    def _seeded(self, key: Any, function: Callable[..., Any], *args: Any) -> Any:
        """What ``function`` gives while the global generators are seeded by ``key``."""
        if self._errors is None:
            seed_generators(self.task.seed, self._epoch, key)
            return function(*args)
        with generators_restored():  # the consumer draws from them, too
            seed_generators(self.task.seed, self._epoch, key)
            return function(*args)

    def _encode(self, error: BaseException, claim: _core.Claim) -> bytes:
        index, culprit = None, self._culprit
        if culprit is not None and _INDICES in culprit:
            with contextlib.suppress(Exception):  # the indices may be what cannot be read
                culprit = culprit.replace(_INDICES, shortened_indices(self.producer.indices(claim, pickle.loads)))
        if culprit is None:
            try:
                index = self.producer.indices(claim, pickle.loads)[self.producer.row - claim.begin]
                culprit = f"The sample with index {index!r} could not be made"
            except Exception:  # the indices may be what cannot be read
                culprit = "A sample could not be made"
        if self._errors is not None:
            add_note(error, culprit + ".")
            return self._errors.keep(error, claim.epoch)
        # Half of the room: another thread or process may fail at the same time.
        info = get_worker_info()
        worker = None if info is None else info.id
        return encode_error(error, culprit, index, self.producer.message_room(claim) // 2, worker)


def _described(describe: Callable[[Any], Description], sample: Any) -> Description:
    """What ``describe`` says of a sample; one that contains itself is left to the collate function."""
    try:
        return describe(sample)
    except RecursionError:
        return describe_whole(sample)


def _is_default(collate: Any) -> bool:
    """Whether a collate function, None included, is not the user's own."""
    module = getattr(collate, "__module__", None)
    return collate is None or module == "torch.utils.data._utils.collate" or str(module).startswith("headrace.")


# A placeholder for the indices of a claim in messages: few claims fail.
_INDICES = "{indices}"
_COLLATION = f"The batch of the samples with indices {_INDICES} could not be collated"
# The status of a worker that could not follow a change of the dataset.
OUTDATED = 108
