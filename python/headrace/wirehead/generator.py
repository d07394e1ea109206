"""Generators: they store the samples that they yield in the cache."""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import logging
import operator
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from headrace._next_items import next_items
from headrace._wording import counted
from headrace.wirehead._format.compression import require_library
from headrace.wirehead._format.sample import NamedArray
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager, manage_generations
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import ConfigError, StoreError, StoreUnreachableError

log = logging.getLogger("headrace.wirehead")

_PATIENCE = 3.0  # seconds; other generators release a generation within one


class WireheadGenerator:
    """Stores the samples of a generator in the cache until it ends, ``n_samples`` are stored or the process is asked to
    stop.

    A thread stores a sample while the generator makes the next one. It stores a copy: the generator may use its arrays
    again. When a ``yield`` returns, all samples before the one that it has yielded are stored. While no manager runs,
    the generators manage the swaps themselves, one of them at a time.

    Args:
        generator: yields samples: tuples of NumPy arrays, torch tensors, numbers, strings or ``np.datetime64``, one
            for each name in SAMPLE; or dicts with these names as keys.
        config_path: path of ``config.yaml``, or a mapping with its keys.
        n_samples: maximum number of samples to store, in all calls of :meth:`run` together; None: no limit.

    Raises:
        FileNotFoundError, ConfigError: the configuration does not exist or is invalid.
        ImportError: the library for its COMPRESSION is not installed.
        TypeError: ``generator`` cannot be iterated over.
        ValueError: ``n_samples`` is not a number of samples.

    Attributes:
        stored: samples stored so far.
    """

    def __init__(
        self,
        generator: Iterable[Any],
        config_path: ConfigSource = "config.yaml",
        n_samples: int | None = None,
    ) -> None:
        self.config = Config.load(config_path)
        require_library(self.config.compression)
        try:
            self.generator = iter(generator)
        except TypeError:
            what = "a generator function; call it and pass the result" if callable(generator) else repr(generator)
            raise TypeError(f"generator must yield samples; got {what}") from None
        self.n_samples = None if n_samples is None else _checked_number(n_samples)
        self.stored = 0
        self._name = "the generator"  # in messages
        self._wrong: tuple[int, Exception] | None = None  # the number of a sample that cannot be stored, and why
        self._stop = threading.Event()

    def run(self, verbose: bool = False) -> int:
        """Generates and stores; returns how many samples were stored. Once stopped, a generator stays so.

        In the main thread, SIGTERM and SIGINT stop it after the current sample; a second one terminates the process.

        Args:
            verbose: print a line for each sample.

        Raises:
            ConfigError: a command imports the module that calls this.
            StoreError: the store failed for longer than TIMEOUT.
            TypeError, ValueError: a sample does not match SAMPLE.
            Exception: the exception of the generator.
        """
        refuse_while_importing("a generator")
        before = self.stored
        if self._stop.is_set():
            return 0
        with ending_on_signals(self._stop), contextlib.ExitStack() as stack:
            cache = stack.enter_context(contextlib.closing(Cache(self.config)))
            leases = stack.enter_context(contextlib.ExitStack())
            writer, manager = Writer(cache, self._stop), GenerationManager(cache)
            leases.callback(_end_leases, cache, manager, writer)
            try:
                try:
                    with keeping(manager, self._stop):
                        self._put_all(writer, verbose)
                except (StoreError, SecondSignal):
                    raise
                except BaseException:  # of the generator, or of a sample of another form
                    with contextlib.suppress(StoreError):
                        self._finish(cache, manager, writer)
                    raise
                self._finish(cache, manager, writer, self.stored - before)
            except (StoreUnreachableError, SecondSignal):
                self._stop.set()  # a sample may be on its way
                leases.pop_all()  # no other process needs to know that they end
                writer.abandon()
                raise
        return self.stored - before

    def run_generator(self) -> int:
        """The same as :meth:`run`."""
        return self.run()

    def stop(self) -> None:
        """Makes :meth:`run` return; from any thread. A generation that has just become full may be left for another
        process to swap.
        """
        self._stop.set()

    def _report(self, generation: int, index: int) -> None:
        print(f"stored sample {index} of generation {generation} of {self.config.dbname}", flush=True)

    def _put_all(self, writer: Writer, verbose: bool) -> None:
        def store(arrays: list[NamedArray]) -> bool:
            stored = writer.store(arrays)
            if stored is None:
                return False
            self.stored += 1
            if verbose:
                self._report(*stored)
            return True

        with _StoringThread(store) as thread:
            left = None if self.n_samples is None else self.n_samples - self.stored
            for number, sample in enumerate(next_items(self.generator, left)):
                try:
                    taken = writer.take(sample)
                except (TypeError, ValueError) as error:
                    self._wrong = number, error
                    raise
                arrays = [dataclasses.replace(named, array=named.array.copy()) for named in taken]
                if not thread.hand_over(arrays) or self._stop.is_set():
                    return

    def _finish(self, cache: Cache, manager: GenerationManager, writer: Writer, stored: int | None = None) -> None:
        """Waits until generations that are full have been swapped: this may be the last generator. But not for slow
        readers, nor if it was stopped.

        Args:
            stored: samples, to be logged with those that no reader sees yet; None: the generator did not end by itself.
        """
        if self._stop.is_set():
            return
        writer.close()  # or the swaps would wait for its lease
        now = time.monotonic()
        deadline, patience = now + 2 * self.config.lease, now + _PATIENCE
        cap = self.config.swap_cap
        while (fill := cache.fill(cache.current() + 1)) == cap and now < deadline:
            if manager.blocked is not None and now >= patience:
                break
            now = time.monotonic()
            if manager.step() is None:
                time.sleep(0.01)
        if stored is None:
            return
        rest = f"; the next generation has {fill} of {cap}, and readers do not see it until it is full"
        text = f"{self._name} ended after {counted(stored, 'sample')}"
        log.info("%s%s", text, rest if fill < cap and (fill > 0 or stored == 0) else "")


def _checked_number(n_samples: Any) -> int:
    try:
        number = -1 if isinstance(n_samples, bool) else operator.index(n_samples)
    except TypeError:
        number = -1
    if not 0 <= number <= sys.maxsize:
        raise ValueError(f"n_samples must be a whole number from 0 to {sys.maxsize}, or None, got {n_samples!r}")
    return number


class _StoringThread:
    """Stores one sample at a time; the context ends when the last one is stored, unless a second signal ends it.

    ``store`` is called by this thread alone, the methods by the one that made it. An error of ``store`` is raised by
    the next call, or at the end of the context, and nothing is stored after it.

    Args:
        store: stores a sample, unless there is no room and the generator is to stop; whether it did.
    """

    def __init__(self, store: Callable[[list[NamedArray]], bool]) -> None:
        self._store = store
        self._samples: queue.SimpleQueue[tuple[Future[bool], list[NamedArray]] | None] = queue.SimpleQueue()
        self._last: Future[bool] | None = None  # of the last sample
        self._thread = threading.Thread(target=self._run, name="headrace-wirehead-storing", daemon=True)

    def __enter__(self) -> _StoringThread:
        self._thread.start()
        return self

    def hand_over(self, arrays: list[NamedArray]) -> bool:
        """Waits until the sample before is stored. False: it was not, and nor will this one be."""
        if self._last is not None and not self._last.result():
            return False
        self._last = Future()
        self._samples.put((self._last, arrays))
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._samples.put(None)
        if isinstance(error, SecondSignal):
            return
        self._thread.join()
        if self._last is not None:
            self._last.result()

    def _run(self) -> None:
        while (sample := self._samples.get()) is not None:
            done, arrays = sample
            try:
                done.set_result(self._store(arrays))
            except BaseException as error:
                done.set_exception(error)
            del sample, done, arrays  # or they would stay until the next one comes


_importing: str | None = None  # the module that a command imports now


@contextlib.contextmanager
def importing(module: str) -> Iterator[None]:
    """Within this context a command imports a module for one of its functions; it is not to run anything."""
    global _importing
    before, _importing = _importing, module
    try:
        yield
    finally:
        _importing = before


def refuse_while_importing(what: str) -> None:
    """
    Raises:
        ConfigError: a command imports the program, which would run here and in each of the command's processes, with
            neither their seeds nor their numbers.
    """
    if _importing is None:
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_name != "<module>" or str(frame.f_globals.get("__name__")).partition(".")[0] == "headrace"
    ):
        frame = frame.f_back
    # The outermost frame is the command's: then it is a thread of the module that runs it.
    file = frame.f_code.co_filename if frame.f_back is not None else f"the module {_importing}"
    raise ConfigError(f'{file} runs {what} when it is imported: put that under `if __name__ == "__main__":`')


class SecondSignal(SystemExit):
    """A process that was asked to end was asked again. The store may not answer: nothing waits for it any more."""


def _end_leases(cache: Cache, manager: GenerationManager, writer: Writer) -> None:
    """If the store does not answer, or a second signal comes, they expire."""
    cache.begin_close()
    try:
        manager.close()
        writer.close()
    except StoreUnreachableError as error:
        log.warning("the leases of this generator were not ended, and expire by themselves: %s", error)
    finally:
        writer.abandon()


@contextlib.contextmanager
def keeping(manager: GenerationManager, stop_all: threading.Event) -> Iterator[None]:
    """A thread manages the cache within this context. If it fails, it sets ``stop_all``, and the error is raised on
    exit. A second signal does not wait for it: the store may not answer.
    """
    stop = threading.Event()
    errors: list[BaseException] = []

    def keep() -> None:
        try:
            manage_generations(manager, stop)
        except BaseException as error:
            errors.append(error)
            stop_all.set()

    thread = threading.Thread(target=keep, name="headrace-wirehead-manager", daemon=True)
    thread.start()
    try:
        yield
    except SecondSignal:
        stop.set()
        raise
    except BaseException:
        stop.set()
        thread.join()
        raise
    stop.set()
    thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def ending_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop``; a second one raises SecondSignal. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked or stop.is_set():
            raise SecondSignal(128 + number)
        asked = True
        # Beside: this thread may be at work on the event, and hold its lock for as long as this function runs.
        _thread.start_new_thread(stop.set, ())

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
