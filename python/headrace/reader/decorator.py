"""Readers made of other readers."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from headrace import errors
from headrace.reader._checks import check_function, check_positive, check_readers
from headrace.reader._pipe_reader import PipeReader
from headrace.reader._readahead import LOOK_EVERY, Passes, Readahead

__all__ = [
    "ComposeNotAligned",
    "Fake",
    "PipeReader",
    "Reader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]

Reader = Callable[[], Iterable[Any]]

# Samples of a headrace.DataLoader.
_MOST_AHEAD = 512


class ComposeNotAligned(ValueError):
    """Of readers that :func:`compose` joins, one has more samples than another."""


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """A reader of lists of ``batch_size`` samples of ``reader``; the last one may be shorter unless ``drop_last``."""
    check_readers(reader)
    check_positive("batch_size", batch_size)

    def batches() -> Iterator[list[Any]]:
        samples: list[Any] = []
        for sample in reader():
            samples.append(sample)
            if len(samples) == batch_size:
                yield samples
                samples = []
        if samples and not drop_last:
            yield samples

    return batches


def shuffle(reader: Reader, buf_size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of ``reader``, shuffled (by Python's ``random``) within runs of ``buf_size``."""
    check_readers(reader)
    check_positive("buf_size", buf_size)

    def shuffled() -> Iterator[Any]:
        for run in batch(reader, buf_size)():
            random.shuffle(run)
            yield from run

    return shuffled


def map_readers(func: Callable[..., Any], *readers: Reader) -> Callable[[], Iterator[Any]]:
    """A reader of the results of ``func``, called with one sample of each reader; it ends with the shortest."""
    check_function("func", func)
    check_readers(*readers)
    return lambda: map(func, *[reader() for reader in readers])


def chain(*readers: Reader) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of the first reader, then those of the second, and so on."""
    check_readers(*readers)
    return lambda: itertools.chain.from_iterable(reader() for reader in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Callable[[], Iterator[tuple[Any, ...]]]:
    """A reader of tuples of one sample of each reader; a sample that is a tuple is joined, not nested.

    Args:
        check_alignment: raise :class:`ComposeNotAligned` if one ends before another, rather than end with the
            shortest.
    """
    check_readers(*readers)

    def composed() -> Iterator[tuple[Any, ...]]:
        missing = object()
        for samples in itertools.zip_longest(*[reader() for reader in readers], fillvalue=missing):
            ended = [number for number, sample in enumerate(samples) if sample is missing]
            if ended and check_alignment:
                raise ComposeNotAligned(f"reader {ended[0]} has ended, and others have more samples")
            if ended:
                return
            yield tuple(itertools.chain.from_iterable(s if isinstance(s, tuple) else (s,) for s in samples))

    return composed


def firstn(reader: Reader, n: int) -> Callable[[], Iterator[Any]]:
    """A reader of the first ``n`` samples of ``reader``."""
    check_readers(reader)
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise errors.InvalidArgument(f"n has to be a number of samples, got {n!r}")
    return lambda: itertools.islice(iter(reader()), n)


def cache(reader: Reader) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of ``reader``, which is read once, to its end, when it is first needed. They stay in
    memory.

    Thread-safe. If ``reader`` raises, the next call reads it again.
    """
    check_readers(reader)
    lock = threading.Lock()
    samples: list[tuple[Any, ...]] = []

    def cached() -> Iterator[Any]:
        with lock:
            if not samples:
                samples.append(tuple(reader()))
        return iter(samples[0])

    return cached


class Fake:
    """Repeats one sample, for measuring without the cost of reading.

    ``Fake()(reader, 1000)`` is a reader of a thousand samples.
    """

    def __init__(self) -> None:
        self._sample: list[Any] = []

    def __call__(self, reader: Reader, data_num: int) -> Callable[[], Iterator[Any]]:
        """A reader of ``data_num`` times the first sample of ``reader``.

        Raises:
            InvalidArgument: when it is read, if ``reader`` has no sample.
        """
        check_readers(reader)
        check_positive("data_num", data_num)

        def fake() -> Iterator[Any]:
            if not self._sample:
                for sample in reader():
                    self._sample.append(sample)
                    break
                else:
                    raise errors.InvalidArgument("the reader has no first sample to repeat")
            return itertools.repeat(self._sample[0], data_num)

        return fake


def buffered(reader: Reader, size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of ``reader``, which a thread reads ahead, up to ``size`` samples.

    After a pass that was left early, the next one waits until ``reader`` has returned the sample that it was making;
    after five seconds it begins with a warning.
    """
    check_readers(reader)
    check_positive("size", size)
    passes = Passes("buffered", reader)

    def ahead() -> Iterator[Any]:
        passes.await_earlier()
        readahead: Readahead[Any] = Readahead(size)
        with passes.threads([readahead], [lambda: readahead.make(reader)]):
            yield from readahead.read(1)

    return ahead


def xmap_readers(
    mapper: Callable[[Any], Any], reader: Reader, process_num: int, buffer_size: int, order: bool = False
) -> Callable[[], Iterator[Any]]:
    """A reader of the results of ``mapper``, applied to the samples of ``reader`` in ``process_num`` threads.

    An exception of ``reader`` or ``mapper`` is raised in place of a sample, after all that were taken before that one,
    and ends the reader. After a pass that was left early, the next one waits until ``reader`` and ``mapper`` have
    returned the samples that they were making; after five seconds it begins with a warning.

    Args:
        buffer_size: number of samples that may be ahead on either side of the threads.
        order: samples come in the order of ``reader``; otherwise in the order in which they are ready.
    """
    check_readers(reader)
    check_positive("process_num", process_num)
    check_positive("buffer_size", buffer_size)
    check_function("mapper", mapper)
    passes = Passes("xmap_readers", reader, mapper)

    def mapped() -> Iterator[Any]:
        passes.await_earlier()
        samples: Readahead[tuple[int, Any]] = Readahead(buffer_size)
        results: Readahead[tuple[int, Any]] = Readahead(buffer_size)
        source = samples.read(1)
        lock, failed = threading.Lock(), threading.Event()
        # Results wait for those before them: so many samples may have been taken that were not yet given out.
        room = threading.Semaphore(buffer_size + process_num)

        def has_room() -> bool:
            while not room.acquire(timeout=LOOK_EVERY):
                if failed.is_set() or results.abandoned.is_set():
                    return False
            return True

        def take() -> Iterator[tuple[int, Any]]:
            try:
                while not order or has_room():
                    with lock:  # a generator is one thread's at a time
                        taken = None if failed.is_set() else next(source, None)
                    if taken is None:
                        return
                    number, sample = taken
                    yield number, mapper(sample)
            except BaseException:
                failed.set()
                raise

        def feed() -> None:
            samples.make(lambda: enumerate(reader()))

        def work() -> None:
            results.make(take)

        with passes.threads([samples, results], [feed, *[work] * process_num]):
            if not order:
                yield from (result for _, result in results.read(process_num))
                return
            waiting: dict[int, Any] = {}
            following = 0
            for number, result in results.read(process_num):
                waiting[number] = result
                while following in waiting:
                    yield waiting.pop(following)
                    following += 1
                    room.release()

    return mapped


class _Readers:
    """An iterable dataset whose worker number k of W reads the readers k, k + W, …"""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers

    def __iter__(self) -> Iterator[Any]:
        from headrace.data import get_worker_info

        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for reader in self._readers[first::step]:
            yield from reader()


def _as_it_is(sample: Any) -> Any:
    """A ``collate_fn``, whose results arrive unchanged; the samples of a loader without one are converted."""
    return sample


def multiprocess_reader(
    readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000
) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of all ``readers``, one of each in turn; a separate process runs each reader.

    Samples arrive as they are, through shared memory, see :class:`headrace.DataLoader`: arrays are not pickled. An
    exception of a reader is raised in place of its sample.

    Args:
        use_pipe: makes no difference.
        queue_size: number of samples that may be ahead, up to 512.
    """
    if not isinstance(readers, Iterable):
        raise errors.TypeMismatch(f"multiprocess_reader: readers has to be a list, got {type(readers).__name__}")
    readers = list(readers)
    if not readers:
        raise errors.InvalidArgument("multiprocess_reader needs a reader")
    check_readers(*readers)
    check_positive("queue_size", queue_size)

    def read() -> Iterator[Any]:
        from headrace.data import DataLoader

        loader = DataLoader(
            _Readers(readers),
            batch_size=None,
            num_workers=len(readers),
            collate_fn=_as_it_is,
            iterable_sharding="dataset",
            prefetch_factor=min(max(queue_size, len(readers)), _MOST_AHEAD),
        )
        try:
            yield from loader
        finally:
            loader.shutdown()

    return read
