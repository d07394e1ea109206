"""What runs in a worker: claims rows, makes samples, writes them in place."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import random
import signal
import sys
import traceback
import types
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

import numpy as np

from headrace import _core
from headrace.data.collation import collate_in_place, describe, dumps, flatten_batch
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
    """Makes the rows of claims. One per worker thread.

    Args:
        local: the consumer is in this process: it gets exceptions as they are.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        seed: int,
        worker_id: int,
        arena_fd: int,
        completion_fd: int,
        local: bool = False,
    ) -> None:
        self._fetcher = Fetcher(dataset, seed)
        self._collate_fn = collate_fn
        self._init_error: BaseException | None = None
        self._init_traceback: types.TracebackType | None = None
        self._local = local
        self._kept_errors: dict[int, BaseException] = {}
        # Whether an exception is the fault of the sample at hand, and else of what.
        self._culprit: str | None = None
        self.producer = _core.BatchProducer(arena_fd, worker_id, completion_fd, describe, dumps)

    def fail_all_with(self, error: BaseException) -> None:
        """Every claim from now on fails with ``error``, which ``worker_init_fn`` raised."""
        self._init_error = error
        self._init_traceback = error.__traceback__.tb_next if error.__traceback__ is not None else None

    def serve(self, claim: _core.Claim) -> None:
        """Makes the rows of a claim; an exception becomes the batch's."""
        try:
            self._serve(claim)
        except BaseException as error:  # whatever it is, it is the batch's affair, not the worker's
            if self._local and isinstance(error, KeyboardInterrupt):
                raise  # not the sample's doing
            self.producer.fail(claim, self._encode(error, claim))

    def _serve(self, claim: _core.Claim) -> None:
        producer = self.producer
        if self._init_error is not None:
            self._culprit = "worker_init_fn failed"
            raise self._init_error.with_traceback(self._init_traceback)
        self._culprit = None
        self._fetcher.set_epoch(claim.epoch)
        if not claim.whole and self._fetcher.bulk is None:
            keys = producer.indices(claim, pickle.loads) if producer.has_pickled_indices(claim) else None
            producer.fill(claim, self._fetcher.getitem, keys)
            return
        indices = producer.indices(claim, pickle.loads)
        samples = self._make(claim, indices)
        if claim.whole:
            self._culprit = f"The batch of the samples with indices {_shorten(indices)} could not be collated"
            batch = collate_in_place(samples, indices) if self._collate_fn is None else self._collate_fn(samples)
            producer.write_batch(claim, *flatten_batch(batch))
        else:
            producer.fill_from(claim, samples)

    def _make(self, claim: _core.Claim, indices: list[Any]) -> list[Any]:
        producer = self.producer
        producer.begin_row(claim, claim.begin)
        if self._fetcher.bulk is not None:
            self._culprit = f"The samples with indices {_shorten(indices)} could not be made"
            samples = self._fetcher.bulk(indices)
            if len(samples) != len(indices):
                raise ValueError(f"__getitems__ was asked for {len(indices)} samples and gave {len(samples)}")
            self._culprit = None
            return samples
        samples = []
        for row, index in enumerate(indices, claim.begin):
            producer.begin_row(claim, row)
            samples.append(self._fetcher.getitem(index))
        return samples

    def _encode(self, error: BaseException, claim: _core.Claim) -> bytes:
        index, culprit = None, self._culprit
        if culprit is None:
            try:
                index = self.producer.indices(claim, pickle.loads)[self.producer.row - claim.begin]
                culprit = f"The sample with index {index!r} could not be made"
            except Exception:  # the indices may be what cannot be read
                culprit = "A sample could not be made"
        if self._local:
            if hasattr(error, "add_note"):
                error.add_note(culprit + ".")
            self._kept_errors[id(error)] = error
            return dumps(id(error))
        return encode_error(error, culprit, index)

    def decode_error(self, message: bytes) -> BaseException:
        """The exception behind a message of ``local`` serving."""
        return self._kept_errors.pop(int(pickle.loads(message)))

    def forget_errors(self) -> None:
        """Drops the exceptions of batches that nobody wants any more."""
        self._kept_errors.clear()


def _shorten(indices: list[Any]) -> str:
    return repr(indices) if len(indices) <= 8 else f"[{', '.join(map(repr, indices[:7]))}, … ({len(indices)} in all)]"


def encode_error(error: BaseException, culprit: str, index: Any) -> bytes:
    """An exception, its traceback as text and what it befell, for :func:`decode_error` in another process."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        description = f"{type(error).__qualname__}: {error}"
    except Exception:
        description = type(error).__qualname__
    try:
        pickled = dumps(error)
        pickle.loads(pickled)
    except Exception:  # some exceptions cannot travel: their text still does
        pickled = None
    try:
        return dumps((pickled, description, culprit, text, index))
    except Exception:  # an index that cannot travel back
        return dumps((pickled, description, culprit, text, None))


class WorkerTraceback(Exception):
    """Stands as the cause of an exception that was raised in a worker, and shows where.

    Attributes:
        text: the worker's traceback.
        sample_index: the index of the sample that could not be made; None if it was not one sample.
    """

    def __init__(self, culprit: str, text: str, sample_index: Any) -> None:
        super().__init__(culprit, text, sample_index)
        self.culprit = culprit
        self.text = text
        self.sample_index = sample_index

    def __str__(self) -> str:
        return f"\n\n{self.culprit}:\n\n{self.text}"


def decode_error(message: bytes) -> BaseException:
    """The exception that a worker met, with :class:`WorkerTraceback` as its cause."""
    if not message:
        return RuntimeError("a worker failed to make a sample, and there was no room in the slot to say why")
    pickled, description, culprit, trace, index = pickle.loads(message)
    error: BaseException = RuntimeError(description)
    if pickled is not None:
        # What the worker can import this process may not be able to.
        with contextlib.suppress(Exception):
            unpickled = pickle.loads(pickled)
            error = unpickled if isinstance(unpickled, BaseException) else error
    error.__cause__ = WorkerTraceback(culprit, trace, index)
    return error


def _seed_generators(seed: int, worker_id: int) -> None:
    """Forked workers would otherwise all draw the same numbers from the global generators."""
    words = np.random.SeedSequence([seed, worker_id]).generate_state(4)
    random.seed(words[:2].tobytes())
    np.random.seed(words[2:])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int(words[0]))
        # As torch's own workers: each is one of many, and a forked one must not use the parent's OpenMP threads.
        torch.set_num_threads(1)


def worker_main(setup: WorkerSetup) -> None:
    """The whole life of a worker process."""
    global _worker_info
    # Ctrl-C reaches every process of the terminal; the main process decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler that the main process installed would run its clean-up here, and only once the sample is made.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _core.exit_with(setup.main_process.fd)
    _seed_generators(setup.seed, setup.worker_id)
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
