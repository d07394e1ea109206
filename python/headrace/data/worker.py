"""What runs in a worker: claims rows, makes samples, writes them in place."""

from __future__ import annotations

import dataclasses
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from headrace import _core
from headrace.data.collation import default_collate, describe, dumps, flatten_batch
from headrace.data.dataset import Fetcher


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """Who this worker is; see :func:`get_worker_info`."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """In a worker process: its number, how many there are, the loader's seed and this process's copy of the dataset.

    In the main process: None.
    """
    return _worker_info


class SharedDescriptor:
    """A file descriptor that arrives in a child process however that is started.

    A forked child has it under the same number; for the other start methods pickling duplicates it.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _receive_descriptor, (reduction.DupFd(self.fd),)


def _receive_descriptor(duplicate: Any) -> SharedDescriptor:
    return SharedDescriptor(duplicate.detach())


@dataclasses.dataclass(frozen=True)
class WorkerSetup:
    """All that a worker process is told."""

    dataset: Any
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], None] | None
    worker_id: int
    num_workers: int
    seed: int
    arena: SharedDescriptor
    completion: SharedDescriptor
    main_process: SharedDescriptor


class ClaimServer:
    """Makes the rows of claims. One per worker thread."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        seed: int,
        worker_id: int,
        arena_fd: int,
        completion_fd: int,
    ) -> None:
        self._fetcher = Fetcher(dataset, seed)
        self._collate_fn = collate_fn
        self._init_error: BaseException | None = None
        self.producer = _core.BatchProducer(arena_fd, worker_id, completion_fd, describe, dumps)

    def fail_all_with(self, error: BaseException) -> None:
        """Every claim from now on fails with ``error``."""
        self._init_error = error

    def serve(self, claim: _core.Claim) -> None:
        """Makes the rows of a claim; an exception becomes the batch's."""
        producer = self.producer
        indices: list[Any] | None = None
        try:
            if self._init_error is not None:
                raise self._init_error
            self._fetcher.set_epoch(claim.epoch)
            if not claim.whole and self._fetcher.bulk is None:
                keys = producer.indices(claim, pickle.loads) if producer.has_pickled_indices(claim) else None
                producer.fill(claim, self._fetcher.getitem, keys)
                return
            indices = producer.indices(claim, pickle.loads)
            samples = self._make(claim, indices)
            if claim.whole:
                batch = default_collate(samples, indices) if self._collate_fn is None else self._collate_fn(samples)
                producer.write_batch(claim, *flatten_batch(batch))
            else:
                producer.fill_from(claim, samples)
        except BaseException as error:  # whatever it is, it is the batch's affair, not the worker's
            if indices is None:
                indices = producer.indices(claim, pickle.loads)
            producer.fail(claim, encode_error(error, indices[producer.row - claim.begin]))

    def _make(self, claim: _core.Claim, indices: list[Any]) -> list[Any]:
        producer = self.producer
        bulk = self._fetcher.bulk
        producer.begin_row(claim, claim.begin)
        if bulk is not None:
            samples = bulk(indices)
            if len(samples) != len(indices):
                raise ValueError(f"__getitems__ was asked for {len(indices)} samples and gave {len(samples)}")
            return samples
        samples = []
        for row, index in enumerate(indices, claim.begin):
            producer.begin_row(claim, row)
            samples.append(self._fetcher.getitem(index))
        return samples


def encode_error(error: BaseException, index: Any) -> bytes:
    """An exception, its traceback as text and the sample's index, for :func:`decode_error` in another process."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickled = dumps(error)
        pickle.loads(pickled)
    except Exception:  # some exceptions cannot travel: their text still does
        pickled = None
    return dumps((pickled, type(error).__qualname__, str(error), text, index))


class WorkerTraceback(Exception):
    """Stands as the cause of an exception that was raised in a worker, and shows where."""

    def __init__(self, text: str, sample_index: Any) -> None:
        super().__init__(text)
        self.text = text
        self.sample_index = sample_index

    def __str__(self) -> str:
        return f"\n\nThe sample with index {self.sample_index!r} could not be made:\n\n{self.text}"


def decode_error(message: bytes) -> BaseException:
    """The exception that a worker met, with :class:`WorkerTraceback` as its cause."""
    pickled, name, text, trace, index = pickle.loads(message)
    error: BaseException
    error = RuntimeError(f"{name}: {text}") if pickled is None else pickle.loads(pickled)
    error.__cause__ = WorkerTraceback(trace, index)
    return error


def worker_main(setup: WorkerSetup) -> None:
    """The whole life of a worker process."""
    global _worker_info
    # Ctrl-C reaches every process of the terminal; the main process decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _core.exit_with(setup.main_process.fd)
    _worker_info = WorkerInfo(setup.worker_id, setup.num_workers, setup.seed, setup.dataset)
    server = ClaimServer(
        setup.dataset, setup.collate_fn, setup.seed, setup.worker_id, setup.arena.fd, setup.completion.fd
    )
    if setup.worker_init_fn is not None:
        try:
            setup.worker_init_fn(setup.worker_id)
        except Exception as error:
            server.fail_all_with(error)
    while (claim := server.producer.wait()) is not None:
        server.serve(claim)
