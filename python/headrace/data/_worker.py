"""What runs in a worker: claims rows, makes samples, writes them in place."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import multiprocessing.forkserver
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from typing import Any

import numpy as np

from headrace import _core
from headrace.data._batch_tree import describe, flatten_batch, sample_prototype
from headrace.data._collation import DefaultCollate, collate_in_place, default_collate, is_in_place
from headrace.data._dataset import Fetcher
from headrace.data._hand_over import HandOver, describe_as_is
from headrace.data._random import generators_restored, place_key, seed_generators, successor_seed
from headrace.data._sample_pickle import dumps, dumps_from, dumps_sample, loads_sample
from headrace.data._stream import StreamReader, StreamTask
from headrace.data._tensor_dataset import TensorColumns, tensor_columns
from headrace.data._updates import UpdateError, UpdateReader
from headrace.data._worker_deaths import pause_before_retry
from headrace.data._worker_stack import offer_stacks


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """Describes a worker; see :func:`get_worker_info`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_process_info: WorkerInfo | None = None
_thread_info = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """In a worker: its number, the number of workers, its seed and its copy of the dataset. Elsewhere None."""
    info: WorkerInfo | None = getattr(_thread_info, "info", None)
    return info if info is not None else _process_info


class SharedDescriptor:
    """A file descriptor that reaches a child process whatever its start method.

    A forked child has it under the same number; with the other start methods, pickling duplicates it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive_descriptor, (reduction.DupFd(self.fd),)


def _receive_descriptor(duplicate: Any) -> SharedDescriptor:
    return SharedDescriptor(duplicate.detach())


@dataclasses.dataclass(frozen=True)
class WorkerTask:
    """What all workers of a loader do.

    Attributes:
        collate: makes a batch from the list of its samples; None: the default, which writes each sample to its row.
        convert: a batch is one sample; ``collate`` gets it alone.
        seed: of the records' generators.
        base_seed: of the workers' global generators, to which each worker adds its number; see also :func:`own_task`.
        seed_records: seed the global generators for each sample, by its index (True) or its place ("place").
        stream: how to read ``dataset`` if it is an iterable one.
    """

    dataset: Any
    collate: Callable[[Any], Any] | None
    convert: bool
    seed: int
    seed_records: bool | str
    num_workers: int
    worker_init_fn: Callable[[int], None] | None
    base_seed: int
    stream: StreamTask | None = None


@dataclasses.dataclass(frozen=True)
class WorkerSetup:
    """All that a worker process is given.

    Attributes:
        arena, completion: of the scheduler.
        main_process: the pidfd of the process with which it ends.
        stacks: where it writes its Python stacks on request.
        updates: of the dataset, which it reads with :class:`UpdateReader`.
        revision: of ``task.dataset``.
        sockets: a folder to remove if the main process cannot; empty: none.
        delay: seconds to wait before it starts.
        predecessors: how many workers of that number came before it.
    """

    task: WorkerTask
    worker_id: int
    threads: int
    arena: SharedDescriptor
    completion: SharedDescriptor
    main_process: SharedDescriptor
    stacks: SharedDescriptor
    updates: SharedDescriptor
    revision: int
    sockets: str
    delay: float
    predecessors: int


class KeptErrors:
    """Exceptions that stay in this process while their numbers travel through the arena. Any thread."""

    def __init__(self) -> None:
        self._errors: dict[int, BaseException] = {}
        self._numbers = itertools.count()  # the same error may befall several batches

    def keep(self, error: BaseException) -> bytes:
        number = next(self._numbers)
        self._errors[number] = error
        return dumps(number)

    def get(self, message: bytes) -> BaseException:
        return self._errors[int(pickle.loads(message))]

    def drop(self, message: bytes) -> None:
        """Drops the exception of a message that nobody will ask for again."""
        self._errors.pop(int(pickle.loads(message)), None)

    def clear(self) -> None:
        """Drops the exceptions of batches that nobody wants any more."""
        self._errors.clear()


class ClaimServer:
    """Makes the rows of claims. One per worker thread.

    Args:
        arena_fd, completion_fd: of the scheduler.
        producer_id: unique among the servers of the arena.
        errors: where the consumer, which is in this process, finds exceptions; None: they are pickled.
        hand_over: the consumer is this thread and finds there what would not leave a slot as it is; None: whatever it
            is, it is written to a slot.
        updates: of the dataset in this process; None: it is the program's own.
        revision: of the dataset.

    Attributes:
        task: what it was given.
        producer: what it claims rows with.
        info: what get_worker_info says in its thread, if it is one of the main process.
        hands_over: whether ``hand_over`` is used: not while C++ moves the batches.
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
        self.info: WorkerInfo | None = None
        self._reader = (
            None
            if task.stream is None
            else StreamReader(task.dataset, task.stream, producer_id, interruptible=errors is not None)
        )
        self._prepare()
        self._spec = getattr(task.dataset, "sample_spec", None) if self._fetcher.wants_out else None
        self._epoch = 0
        self._init_error: BaseException | None = None
        self._init_traceback: types.TracebackType | None = None
        self._errors = errors
        # What an exception is blamed on; None: on the current sample.
        self._culprit: str | None = None
        self.hands_over = hand_over is not None
        self._hand_over = hand_over
        collate: Any = task.collate
        self._in_place = collate is None or is_in_place(collate)
        self._own_collate = not (self._in_place or isinstance(collate, DefaultCollate))
        describe_sample = describe if hand_over is None else describe_as_is
        if is_in_place(collate):
            describe_sample = collate.describe
        dumps_object = dumps_from("collate_fn" if self._own_collate else "the dataset")
        self.producer = _core.BatchProducer(arena_fd, producer_id, completion_fd, describe_sample, dumps_object)

    def _prepare(self) -> None:
        """Looks up the methods of the dataset as it is now."""
        task = self.task
        self._fetcher = Fetcher([] if task.stream is not None else task.dataset, task.seed)
        self._getitem = self._seeded_getitem if task.seed_records else self._fetcher.getitem
        # Each record has a seed of its own, unless it is that of its place.
        single = task.convert or task.seed_records is True
        self._bulk = None if single else self._fetcher.bulk
        self._columns = None if task.convert else tensor_columns(task.dataset, task.collate)

    def initialize(self, worker_id: int) -> None:
        """Calls ``worker_init_fn``. If that raises, every claim fails with its exception."""
        if self.task.worker_init_fn is None:
            return
        try:
            self.task.worker_init_fn(worker_id)
        except BaseException as error:  # SystemExit, too: the consumer must hear of it
            self._init_error = error
            self._init_traceback = error.__traceback__.tb_next if error.__traceback__ is not None else None

    def share_failure(self, other: ClaimServer) -> None:
        """Fails as ``other`` does, if its ``worker_init_fn`` has raised."""
        self._init_error, self._init_traceback = other._init_error, other._init_traceback

    def run(self) -> None:
        """Serves claims until the loader is shut down."""
        producer = self.producer
        # Whether claims of plain rows need nothing but getitem.
        plain = self._reader is None and self._bulk is None and self._init_error is None
        claim = producer.wait()
        while claim is not None:
            self.serve(claim)
            claim = self._fill_plain() if plain else producer.wait()

    def _fill_plain(self) -> _core.Claim | None:
        """Serves plain claims of the epoch at hand. Returns the next other claim, or None, as ``producer.wait``."""
        try:
            return self.producer.fill_plain(self._getitem, self._epoch, self._fetcher.wants_out, self._revision)
        except BaseException as error:
            failed = self.producer.failed_claim
            if failed is None:
                raise
            self._culprit = None
            self._fail(failed, error)
        return self.producer.wait()

    def serve(self, claim: _core.Claim) -> None:
        """Makes the rows of a claim; an exception becomes the batch's."""
        try:
            self._serve(claim)
        except BaseException as error:
            self._fail(claim, error)

    def _fail(self, claim: _core.Claim, error: BaseException) -> None:
        """Ends a claim because of an exception: whatever it is, it fails the batch, not the worker."""
        here = self._errors is not None and threading.current_thread() is threading.main_thread()
        if here and isinstance(error, KeyboardInterrupt):
            raise error  # not the sample's doing
        if isinstance(error, StopIteration) or not (here or isinstance(error, Exception)):
            # The consumer's loop, or its program, would end without a word and with status 0.
            error = _caused_by(
                RuntimeError(f"a dataset, collate_fn or worker_init_fn raised {_described(error)}"), error
            )
        self.producer.fail(claim, self._encode(error, claim))

    def _serve(self, claim: _core.Claim) -> None:
        producer = self.producer
        if self._init_error is not None:
            self._culprit = "worker_init_fn failed"
            # One for each batch: what catches it in this process must not be kept alive by the worker.
            raise _copied(self._init_error).with_traceback(self._init_traceback)
        self._culprit = None
        if claim.revision != self._revision:
            self._catch_up(claim.revision)
        if self._reader is not None:
            self._serve_stream(claim, self._reader)
            return
        self._pause(claim)
        self._epoch = claim.epoch
        self._fetcher.set_epoch(self._epoch)
        kind = claim.kind
        if kind == "collate":
            self._serve_collation(claim)
            return
        if kind == "rows" and self._bulk is None:
            keys = producer.indices(claim, pickle.loads) if producer.has_pickled_indices(claim) else None
            self._expect_spec()
            producer.fill(claim, self._getitem, keys, self._fetcher.wants_out)
            return
        indices = producer.indices(claim, pickle.loads)
        if kind == "whole" and self._columns is not None and self._look_up(claim, self._columns, indices):
            return
        begin = time.perf_counter_ns()
        samples = self._make(claim, indices)
        producer.add_time(dataset_ns=time.perf_counter_ns() - begin)
        if kind == "whole":
            if not self._in_place or not producer.fill_from(claim, samples):
                self._write_batch(claim, samples, indices)
        elif kind == "items":
            self._keep(claim, samples)
        else:
            producer.fill_from(claim, samples)

    def _catch_up(self, revision: int) -> None:
        """Continues with another revision of the dataset."""
        places: Mapping[int, Any] = {}
        if self._updates is not None:
            try:
                self._updates.catch_up(revision)
            except UpdateError:
                os._exit(OUTDATED)  # a new worker takes the place of this one, and the claim
            places = self._updates.places
        self._revision = revision
        self._prepare()
        if self._reader is not None:
            self._reader.begin_anew(places)

    def _look_up(self, claim: _core.Claim, columns: TensorColumns, indices: list[Any]) -> bool:
        """Makes a batch of rows of tensors; False if its samples have to be made one by one."""
        self.producer.begin_row(claim, claim.begin)
        batch = columns.batch(indices, planned=self._hand_over is None or not self.hands_over)
        if batch is None:
            return False
        self._culprit = f"The samples with indices {_shorten(indices)} could not be looked up"
        self.producer.write_batch(claim, *self._written(batch))
        return True

    def _pause(self, claim: _core.Claim) -> None:
        """Waits before it starts rows at which workers have died (``_worker_deaths``)."""
        if claim.deaths == 0 or self._errors is not None:
            return
        deadline = time.monotonic() + pause_before_retry(claim.deaths)
        while (left := deadline - time.monotonic()) > 0 and not self.producer.stopped:
            time.sleep(min(left, 0.1))

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
        indices = self.producer.indices(claim, pickle.loads)
        self._culprit = f"The samples with indices {_shorten(indices)} could not be unpickled"
        self.producer.begin_row(claim, 0)
        # A collate_fn of the user's may keep samples beyond this call, after which others take their place in the slot.
        samples = [
            loads_sample(data, map(bytearray, buffers) if self._own_collate else buffers)
            for data, buffers in self.producer.kept(claim)
        ]
        self._write_batch(claim, samples, indices)

    def _write_batch(self, claim: _core.Claim, samples: list[Any], indices: list[Any]) -> None:
        self._culprit = f"The batch of the samples with indices {_shorten(indices)} could not be collated"
        self.producer.write_batch(claim, *self._written(self._collate(samples, indices)))

    def _serve_stream(self, claim: _core.Claim, reader: StreamReader) -> None:
        producer = self.producer
        self._culprit = "The iterable dataset could not be read"
        begin = time.perf_counter_ns()
        # Before the batch is begun: catching up may take long, and a death meanwhile is not the batch's doing.
        reader.seek(claim.epoch, claim.stream_batch)
        self._pause(claim)
        producer.begin_row(claim, claim.begin)
        samples, ended = reader.read()
        producer.add_time(dataset_ns=time.perf_counter_ns() - begin)
        place = reader.place()
        if not samples:
            producer.end_stream(claim, place)
            return
        self._culprit = f"Batch {claim.batch} of the iterable dataset could not be collated"
        if not self._in_place or not producer.fill_from(claim, samples, ended, place):
            batch = self._collate(samples, list(range(len(samples))))
            producer.write_batch(claim, *self._written(batch), ended, place, rows=len(samples))

    def _written(self, batch: Any) -> tuple[bytes, list[Any]]:
        """What is written to the slot for a collated batch."""
        return self._hand_over.put(batch) if self._hand_over is not None and self.hands_over else flatten_batch(batch)

    def _make(self, claim: _core.Claim, indices: list[Any]) -> Any:
        producer = self.producer
        producer.begin_row(claim, claim.begin)
        if self._bulk is not None and (claim.kind == "whole" or not self.task.seed_records):
            self._culprit = f"The samples with indices {_shorten(indices)} could not be made"
            seeds = self.task.seed_records
            made = self._seeded(place_key(claim.batch, 0), self._bulk, indices) if seeds else self._bulk(indices)
            if claim.kind == "whole" and self._own_collate and not isinstance(made, (list, tuple)):
                return made  # a batch already, in a form that is between the dataset and its collate_fn
            if not hasattr(made, "__len__"):
                raise TypeError(f"__getitems__ must return a list of samples, got {type(made).__name__}")
            if len(made) != len(indices):
                raise ValueError(f"__getitems__ was asked for {len(indices)} samples and gave {len(made)}")
            self._culprit = None
            return made
        samples: list[Any] = []
        # A sample that kills this process has nobody to be told to.
        if self._hand_over is not None and not self.task.seed_records:
            getitem = self._getitem
            try:
                for index in indices:
                    samples.append(getitem(index))
            except BaseException:
                producer.begin_row(claim, claim.begin + len(samples))
                raise
            return samples
        for row, index in enumerate(indices, claim.begin):
            producer.begin_row(claim, row)
            samples.append(self._getitem(index))
        return samples

    def _collate(self, samples: list[Any], indices: list[Any]) -> Any:
        begin = time.perf_counter_ns()
        producer, collate = self.producer, self.task.collate
        if collate is None or isinstance(collate, DefaultCollate):
            stack = default_collate if self.hands_over else collate_in_place
            batch = stack(samples, indices, None if collate is None else collate.ragged)
        else:
            argument = samples[0] if self.task.convert else samples
            # Whoever collates, and after which samples, what the function draws is the same.
            seeds = self.task.seed_records and self.task.stream is None
            batch = self._seeded(place_key(producer.batch, -1), collate, argument) if seeds else collate(argument)
        producer.add_time(collate_ns=time.perf_counter_ns() - begin)
        return batch

    def _expect_spec(self) -> None:
        """Passes the dataset's ``sample_spec`` on, once, so that even the first sample has a place."""
        if self._spec is not None:
            self._culprit = "The dataset's sample_spec is not one"
            self.producer.expect(sample_prototype(self._spec))
            self._culprit = self._spec = None

    def _seeded_getitem(self, index: Any, *out: Any) -> Any:
        at_place = self.task.seed_records == "place"
        key = place_key(self.producer.batch, self.producer.row) if at_place else index
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
        if culprit is None:
            try:
                index = self.producer.indices(claim, pickle.loads)[self.producer.row - claim.begin]
                culprit = f"The sample with index {index!r} could not be made"
            except Exception:  # the indices may be what cannot be read
                culprit = "A sample could not be made"
        if self._errors is not None:
            if hasattr(error, "add_note"):
                error.add_note(culprit + ".")
            return self._errors.keep(error)
        # Half of the room: another thread or process may fail at the same time.
        return encode_error(error, culprit, index, self.producer.message_room(claim) // 2)


def _caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error.with_traceback(cause.__traceback__)


def _copied(error: BaseException) -> BaseException:
    try:
        return copy.copy(error)
    except Exception:  # its constructor wants something else
        return error


def _shorten(indices: list[Any]) -> str:
    return repr(indices) if len(indices) <= 8 else f"[{', '.join(map(repr, indices[:7]))}, … ({len(indices)} in all)]"


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def encode_error(error: BaseException, culprit: str, index: Any, room: int = 1 << 30) -> bytes:
    """Encodes an exception, its traceback as text and what it is blamed on, for :func:`decode_error` elsewhere.

    Args:
        room: the maximum number of bytes of the result; texts that are too long lose their middle.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    for shortened in (None, room // 8, 64):
        error_text = _shorten_text(_described(error), shortened)
        trace = _shorten_text(text, shortened)
        try:
            pickled = dumps(error if shortened is None else _shortened_error(error, shortened))
            pickle.loads(pickled)
        except Exception:  # some exceptions cannot travel: their text still does
            pickled = None
        for known_index in (index, None):
            try:
                packed_index = dumps(known_index)  # apart: the consumer may be unable to restore it
                message = dumps((pickled, error_text, _shorten_text(culprit, shortened), trace, packed_index))
            except Exception:  # an index that cannot travel back
                continue
            if len(message) <= room:
                return message
    return b""


def _shorten_text(text: str, length: int | None) -> str:
    if length is None or len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]} [… {len(text) - 2 * half:,} characters …] {text[-half:] if half else ''}"


def _shortened_error(error: BaseException, length: int) -> BaseException:
    """An exception of the same type, its arguments shortened and as texts."""
    arguments = [_shorten_text(arg if isinstance(arg, str) else repr(arg), length) for arg in error.args]
    return type(error)(*arguments)


class WorkerTraceback(Exception):
    """The cause of an exception that was raised in a worker; shows where.

    Attributes:
        culprit: what failed, in a sentence.
        text: the worker's traceback.
        sample_index: the index of the sample that could not be made; None if it was not a single sample.
    """

    def __init__(self, culprit: str, text: str, sample_index: Any) -> None:
        super().__init__(culprit, text, sample_index)
        self.culprit = culprit
        self.text = text
        self.sample_index = sample_index

    def __str__(self) -> str:
        return f"\n\n{self.culprit}:\n\n{self.text}"


def decode_error(message: bytes) -> BaseException:
    """The exception that a worker encoded, with :class:`WorkerTraceback` as its cause."""
    if not message:
        return RuntimeError("a worker failed to make a sample, and there was no room in the slot to say why")
    pickled, description, culprit, trace, packed_index = pickle.loads(message)
    error: BaseException = RuntimeError(description)
    index = None
    with contextlib.suppress(Exception):
        index = pickle.loads(packed_index)
    if pickled is not None:
        # What the worker can import this process may not be able to.
        with contextlib.suppress(Exception):
            unpickled = pickle.loads(pickled)
            error = unpickled if isinstance(unpickled, Exception) else error
    error.__cause__ = WorkerTraceback(culprit, trace, index)
    return error


def _seed_generators(seed: int, worker_id: int) -> None:
    """The global generators begin as in PyTorch's workers: forked ones would otherwise all draw the same numbers."""
    own_seed = (seed + worker_id) & _MAX_SEED
    random.seed(own_seed)
    words = [worker_id, seed & 0xFFFF_FFFF, seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(words).generate_state(4))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(own_seed)
        # As torch's own workers: each is one of many, and a forked one must not use the parent's OpenMP threads.
        torch.set_num_threads(1)


def _tell_torch(info: WorkerInfo) -> None:
    """Makes torch's get_worker_info work in this process, for datasets that call it."""
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    if module is not None:
        with contextlib.suppress(Exception):  # an internal of torch's: without it only that question fails
            module._worker_info = module.WorkerInfo(
                id=info.id, num_workers=info.num_workers, seed=info.seed, dataset=info.dataset
            )


def worker_info(task: WorkerTask, worker_id: int) -> WorkerInfo:
    """What :func:`get_worker_info` returns in the worker of that number.

    Where all workers iterate over one stream, each is told that it is the only one: a dataset that shards itself by
    worker must not do so in addition.
    """
    if task.stream is not None and not task.stream.own:
        return WorkerInfo(0, 1, task.base_seed & _MAX_SEED, task.dataset)
    return WorkerInfo(worker_id, task.num_workers, (task.base_seed + worker_id) & _MAX_SEED, task.dataset)


def own_task(setup: WorkerSetup) -> WorkerTask:
    """The task of one worker: one that comes after others of its number has another ``base_seed`` than these, so that
    it does not repeat what they drew. Not for streams: it reads its own from the beginning again, and what the dataset
    shuffles with these numbers must come in the same order.
    """
    task = setup.task
    if setup.predecessors == 0 or task.stream is not None:
        return task
    return dataclasses.replace(task, base_seed=successor_seed(task.base_seed, setup.worker_id, setup.predecessors))


# Of a numpy or torch seed that torch's manual_seed takes.
_MAX_SEED = (1 << 63) - 1


def serve_in_thread(server_of: weakref.ref[ClaimServer], worker_id: int) -> None:
    """The whole life of a worker that is a thread of the main process.

    It refers to the server, and through it to what the user gave, only while it works: otherwise a loader to which its
    own dataset or ``collate_fn`` refers could never be collected.
    """
    claim: _core.Claim | None = None
    while (server := server_of()) is not None:
        if claim is None:
            server.info = worker_info(server.task, worker_id)
        _thread_info.info = server.info
        try:
            if claim is None:
                server.initialize(worker_id)
            else:
                server.serve(claim)
        finally:
            _thread_info.info = None
        producer = server.producer
        del server
        claim = producer.wait()
        if claim is None:
            return


def _let_forkserver_end() -> None:
    """Closes this worker's copy of the forkserver's pipe: a forkserver lives for as long as anybody holds that.

    Otherwise a stopped worker would keep the forkserver alive after the main process has ended, and the forkserver the
    worker, which its end wakes (``exit_with``). Workers have no children, which would need the pipe.
    """
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    descriptor = getattr(server, "_forkserver_alive_fd", None)
    if descriptor is not None and multiprocessing.current_process().daemon:
        os.close(descriptor)
        server._forkserver_alive_fd = None  # type: ignore[union-attr]


def _offer_to_out_of_memory_killer() -> None:
    """If memory runs out, has the kernel end a worker, which can be replaced, rather than the main process."""
    path = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):  # without /proc, or where it is read-only
        with open(path) as file:
            own = int(file.read())
        with open(path, "w") as file:
            file.write(str(min(1000, own + _OOM_SCORE)))


# Of 1000, which stands for all memory.
_OOM_SCORE = 500
# The status of a worker that could not follow a change of the dataset.
OUTDATED = 108


def worker_main(setup: WorkerSetup) -> None:
    """The whole life of a worker process."""
    global _process_info
    _offer_to_out_of_memory_killer()  # first: until then the main process is as good a victim
    _core.exit_with(setup.main_process.fd, setup.sockets)
    # Ctrl-C reaches every process of the terminal; the main process decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler that the main process installed would run its clean-up here, and only once the sample is made.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_forkserver_end()
    offer_stacks(setup.stacks.fd)
    time.sleep(setup.delay)
    task = own_task(setup)
    _seed_generators(task.base_seed, setup.worker_id)
    _process_info = worker_info(task, setup.worker_id)
    _tell_torch(_process_info)
    first = setup.worker_id * setup.threads
    updates = UpdateReader(setup.updates.fd, setup.revision, (task.dataset, task.collate))
    servers = [
        ClaimServer(task, setup.arena.fd, setup.completion.fd, first + thread, updates=updates, revision=setup.revision)
        for thread in range(setup.threads)
    ]
    servers[0].initialize(setup.worker_id)
    for server in servers[1:]:
        server.share_failure(servers[0])
    threads = [threading.Thread(target=server.run, daemon=True) for server in servers[1:]]
    for thread in threads:
        thread.start()
    servers[0].run()
    for thread in threads:  # which may be at a sample, when the worker is let go
        thread.join()
