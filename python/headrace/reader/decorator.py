"""Readers made of other readers."""

from __future__ import annotations

import codecs
import contextlib
import functools
import itertools
import queue
import random
import shlex
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from headrace import errors
from headrace._warnings import warn

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
Item = TypeVar("Item")

# Samples of a headrace.DataLoader.
_MOST_AHEAD = 512
# Seconds between two checks whether the reader is still used.
_LOOK_EVERY = 0.05
# Seconds in which threads that only look stop.
_STOP_WITHIN = 4 * _LOOK_EVERY
# Seconds that a pass waits for a mapper or a reader of the one before.
_PATIENCE = 5.0


class ComposeNotAligned(ValueError):
    """Of readers that :func:`compose` joins, one has more samples than another."""


def batch(reader: Reader, batch_size: int, drop_last: bool = False) -> Callable[[], Iterator[list[Any]]]:
    """A reader of lists of ``batch_size`` samples of ``reader``; the last one may be shorter unless ``drop_last``."""
    _check_readers(reader)
    _positive("batch_size", batch_size)

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
    _check_readers(reader)
    _positive("buf_size", buf_size)

    def shuffled() -> Iterator[Any]:
        for run in batch(reader, buf_size)():
            random.shuffle(run)
            yield from run

    return shuffled


def map_readers(func: Callable[..., Any], *readers: Reader) -> Callable[[], Iterator[Any]]:
    """A reader of the results of ``func``, called with one sample of each reader; it ends with the shortest."""
    _check_readers(*readers)
    return lambda: map(func, *[reader() for reader in readers])


def chain(*readers: Reader) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of the first reader, then those of the second, and so on."""
    _check_readers(*readers)
    return lambda: itertools.chain.from_iterable(reader() for reader in readers)


def compose(*readers: Reader, check_alignment: bool = True) -> Callable[[], Iterator[tuple[Any, ...]]]:
    """A reader of tuples of one sample of each reader; a sample that is a tuple is joined, not nested.

    Args:
        check_alignment: raise :class:`ComposeNotAligned` if one ends before another, rather than end with the
            shortest.
    """
    _check_readers(*readers)

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
    _check_readers(reader)
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise errors.InvalidArgument(f"n has to be a number of samples, got {n!r}")
    return lambda: itertools.islice(iter(reader()), n)


def cache(reader: Reader) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of ``reader``, which is read once, to its end, when it is first needed. They stay in
    memory.

    Thread-safe. If ``reader`` raises, the next call reads it again.
    """
    _check_readers(reader)
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
        _check_readers(reader)
        _positive("data_num", data_num)

        def fake() -> Iterator[Any]:
            if not self._sample:
                for sample in reader():
                    self._sample.append(sample)
                    break
                else:
                    raise errors.InvalidArgument("the reader has no first sample to repeat")
            return itertools.repeat(self._sample[0], data_num)

        return fake


class _Ended:
    """Comes after the last item of a queue.

    Attributes:
        error: the exception that ended it; None: there are no more items.
    """

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Readahead(Generic[Item]):
    """A bounded queue between threads that make items and one that reads them, which may go away at any moment.

    A maker puts through :meth:`put`, which gives up once the reader is no longer used. An exception of a maker reaches
    the reader after the items of all makers: the others have to end, too. Thread-safe.
    """

    def __init__(self, size: int) -> None:
        self._items: queue.Queue[Item | _Ended] = queue.Queue(size)
        self.abandoned = threading.Event()  # set once the reader is no longer used

    def put(self, item: Item | _Ended) -> bool:
        """Whether it may still be read."""
        while not self.abandoned.is_set():
            with contextlib.suppress(queue.Full):
                self._items.put(item, timeout=_LOOK_EVERY)
                return True
        return False

    def make(self, items: Callable[[], Iterable[Item]]) -> None:
        """Puts all items, and how they end."""
        error: BaseException | None = None
        try:
            iterator = iter(items())
            try:
                for item in iterator:
                    if not self.put(item):
                        return
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
        except BaseException as raised:
            error = raised
        self.put(_Ended(error))

    def read(self, makers: int) -> Iterator[Item]:
        """The items, until this many makers have finished, or the reader is no longer used."""
        error: BaseException | None = None
        while makers > 0:
            try:
                item = self._items.get(timeout=_LOOK_EVERY)
            except queue.Empty:
                if self.abandoned.is_set():
                    return
                continue
            if isinstance(item, _Ended):
                error = error or item.error
                makers -= 1
            else:
                yield item
        if error is not None:
            raise error


class _Passes:
    """The threads of all passes of a reader, of which each pass has its own.

    Args:
        owner, *functions: names the reader, and the functions of the user that its threads call.
    """

    def __init__(self, owner: str, *functions: Callable[..., Any]) -> None:
        self._owner, self._functions = owner, functions
        # Threads of earlier passes that may not have stopped yet.
        self._earlier: set[threading.Thread] = set()

    def await_earlier(self) -> None:
        """Waits for the threads of earlier passes: the functions of the user may share state between passes."""
        threads = tuple(self._earlier)
        _join(threads, _PATIENCE)
        self._earlier.difference_update(threads)
        if any(thread.is_alive() for thread in threads):
            names = " or ".join(getattr(each, "__qualname__", None) or repr(each) for each in self._functions)
            warn(
                f"{self._owner}: {names} has not returned for {_PATIENCE:.0f} s to a pass that was left early. The "
                "next one begins all the same, and runs it in another thread meanwhile"
            )

    @contextlib.contextmanager
    def threads(self, readahead: Sequence[_Readahead[Any]], targets: Sequence[Callable[[], None]]) -> Iterator[None]:
        """Runs ``targets`` in threads within this context; at the end, tells them to stop. One that is in a function of
        the user is not waited for, since it may never return: it stops at its next item.
        """
        threads: list[threading.Thread] = []
        try:
            for target in targets:
                thread = threading.Thread(target=target, name="headrace reader", daemon=True)
                thread.start()
                threads.append(thread)
            yield
        finally:
            for each in readahead:
                each.abandoned.set()
            self._earlier.update(threads)
            _join(threads, _STOP_WITHIN)


def _join(threads: Iterable[threading.Thread], seconds: float) -> None:
    """Waits for threads, but no longer than that for all of them."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def buffered(reader: Reader, size: int) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of ``reader``, which a thread reads ahead, up to ``size`` samples.

    After a pass that was left early, the next one waits until ``reader`` has returned the sample that it was making;
    after five seconds it begins with a warning.
    """
    _check_readers(reader)
    _positive("size", size)
    passes = _Passes("buffered", reader)

    def ahead() -> Iterator[Any]:
        passes.await_earlier()
        readahead: _Readahead[Any] = _Readahead(size)
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
    _check_readers(reader)
    _positive("process_num", process_num)
    _positive("buffer_size", buffer_size)
    passes = _Passes("xmap_readers", reader, mapper)

    def mapped() -> Iterator[Any]:
        passes.await_earlier()
        samples: _Readahead[tuple[int, Any]] = _Readahead(buffer_size)
        results: _Readahead[tuple[int, Any]] = _Readahead(buffer_size)
        source = samples.read(1)
        lock, failed = threading.Lock(), threading.Event()
        # Results wait for those before them: so many samples may have been taken that were not yet given out.
        room = threading.Semaphore(buffer_size + process_num)

        def has_room() -> bool:
            while not room.acquire(timeout=_LOOK_EVERY):
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


def multiprocess_reader(
    readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000
) -> Callable[[], Iterator[Any]]:
    """A reader of the samples of all ``readers``, one of each in turn; a separate process runs each reader.

    Samples come through shared memory, see :class:`headrace.DataLoader`: arrays are not pickled. An exception of a
    reader is raised in place of its sample.

    Args:
        use_pipe: makes no difference.
        queue_size: number of samples that may be ahead, up to 512.
    """
    readers = list(readers)
    if not readers:
        raise errors.InvalidArgument("multiprocess_reader needs a reader")
    _check_readers(*readers)
    _positive("queue_size", queue_size)

    def read() -> Iterator[Any]:
        from headrace.data import DataLoader

        loader = DataLoader(
            _Readers(readers),
            batch_size=None,
            num_workers=len(readers),
            iterable_sharding="dataset",
            prefetch_factor=min(max(queue_size, len(readers)), _MOST_AHEAD),
            to="numpy",
        )
        try:
            yield from loader
        finally:
            loader.shutdown()

    return read


class PipeReader:
    """Reads the lines that a command writes, such as ``PipeReader("hadoop fs -cat /path/part-*")``.

    Args:
        command: a program and its arguments, split as a shell splits words; no shell runs.
        bufsize: number of bytes to read at a time.
        file_type: "plain" or "gzip".

    Raises:
        InvalidArgument: one of these is out of range.
        IoError: there is no such program.
    """

    def __init__(self, command: str, bufsize: int = 8192, file_type: str = "plain") -> None:
        if not isinstance(command, str) or not command.strip():
            raise errors.InvalidArgument(f"command has to be a text, got {command!r}")
        if file_type not in ("plain", "gzip"):
            raise errors.InvalidArgument(f'file_type has to be "plain" or "gzip", got {file_type!r}')
        _positive("bufsize", bufsize)
        self.command, self.bufsize, self.file_type = command, bufsize, file_type
        try:
            self.process = subprocess.Popen(shlex.split(command), bufsize=bufsize, stdout=subprocess.PIPE)
        except OSError as error:
            raise errors.IoError(f"cannot run {command!r}: {error.strerror}") from error

    def get_line(self, cut_lines: bool = True, line_break: str = "\n") -> Iterator[str]:
        """The lines that it writes, in UTF-8, without their ends.

        Args:
            cut_lines: yield lines; otherwise chunks of at most ``bufsize`` bytes before decompression.
            line_break: the separator of lines.

        Raises:
            IoError: in the end, if the command has failed.
            DataLoss: what it writes is cut off, or not compressed by gzip.
        """
        output = self.process.stdout
        assert output is not None
        chunks: Iterator[bytes] = iter(functools.partial(output.read, self.bufsize), b"")
        if self.file_type == "gzip":
            chunks = _decompressed(chunks, self.command)
        damage: errors.DataLoss | None = None
        try:
            yield from _lines(chunks, line_break) if cut_lines else _texts(chunks)
        except errors.DataLoss as error:
            damage = error
        finally:
            output.close()
            code = self.process.wait()
        if damage is not None and code in (0, -signal.SIGPIPE):  # it was not read to its end
            raise damage
        if code != 0:
            raise errors.IoError(f"{self.command!r} exited with status {code}") from damage


def _lines(chunks: Iterable[bytes], line_break: str) -> Iterator[str]:
    rest, mark = b"", line_break.encode()
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(mark)
        for line in lines:
            yield line.decode()
    if rest:
        yield rest.decode()


def _texts(chunks: Iterable[bytes]) -> Iterator[str]:
    """The text of chunks, which may end within a character: it is then part of the next."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for chunk in chunks:
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _decompressed(chunks: Iterable[bytes], command: str) -> Iterator[bytes]:
    """What gzip has compressed, in one file or several, one after the other. DataLoss if it is damaged, or cut off."""
    member, is_first = None, True
    try:
        for chunk in chunks:
            while chunk:
                if member is None and not is_first:
                    chunk = chunk.lstrip(b"\0")  # files may be padded
                    if not chunk:
                        break
                member, is_first = member or zlib.decompressobj(zlib.MAX_WBITS | 16), False
                yield member.decompress(chunk)
                chunk = member.unused_data
                if member.eof:
                    member = None
    except zlib.error as error:
        raise errors.DataLoss(f"what {command!r} writes is not compressed by gzip, or is damaged: {error}") from error
    if member is not None:
        raise errors.DataLoss(f"what {command!r} writes is cut off: it ends within a compressed file")


def _check_readers(*readers: Any) -> None:
    for reader in readers:
        if not callable(reader):
            raise errors.TypeMismatch(
                f"a reader is a function that returns an iterable, got {type(reader).__name__}"
                + (": pass the function, without calling it" if isinstance(reader, Iterator) else "")
            )


def _positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise errors.InvalidArgument(f"{name} has to be a positive number, got {value!r}")
