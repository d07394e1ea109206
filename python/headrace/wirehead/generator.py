"""Generators: they store the samples that they yield in the cache."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import logging
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.keeper import Keeper, run_keeper
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead.config import Config, ConfigSource
from headrace.wirehead.errors import StoreUnreachableError

log = logging.getLogger("headrace.wirehead")

_PATIENCE = 3.0  # seconds; other generators release a generation within one


class WireheadGenerator:
    """Stores the samples of a generator in the cache until it ends, ``n_samples`` are stored or the process is asked to
    stop.

    While no manager runs, the generators manage the swaps themselves, one of them at a time.

    Args:
        generator: yields samples: tuples of NumPy arrays, torch tensors or numbers, one for each name in SAMPLE; or
            dicts with these names as keys.
        config_path: path of ``config.yaml``, or a mapping with its keys.
        n_samples: maximum number of samples to store; None: no limit.

    Raises:
        FileNotFoundError, ConfigError: the configuration does not exist or is invalid.
        TypeError: ``generator`` cannot be iterated over.
        ValueError: ``n_samples`` is not a number of samples.
    """

    def __init__(
        self,
        generator: Iterable[Any],
        config_path: ConfigSource = "config.yaml",
        n_samples: int | None = None,
    ) -> None:
        self.config = Config.load(config_path)
        try:
            self.generator = iter(generator)
        except TypeError:
            what = "a generator function; call it and pass the result" if callable(generator) else repr(generator)
            raise TypeError(f"generator must yield samples; got {what}") from None
        if n_samples is not None and (not isinstance(n_samples, int) or n_samples < 0):
            raise ValueError(f"n_samples must be a whole number of at least 0, or None, got {n_samples!r}")
        self.n_samples = n_samples
        self.stored = 0
        self._stop = threading.Event()

    def run(self, verbose: bool = False) -> int:
        """Generates and stores; returns how many samples were stored.

        In the main thread, SIGTERM and SIGINT stop it after the current sample; a second one terminates the process.

        Args:
            verbose: log each sample.

        Raises:
            StoreError: the store failed for longer than TIMEOUT.
            TypeError, ValueError: a sample does not match SAMPLE.
            Exception: the exception of the generator.
        """
        with ending_on_signals(self._stop), contextlib.ExitStack() as stack:
            cache = stack.enter_context(contextlib.closing(Cache(self.config)))
            leases = stack.enter_context(contextlib.ExitStack())
            writer, keeper = Writer(cache, self._stop), Keeper(cache)
            leases.callback(_end_leases, keeper, writer)
            try:
                with keeping(keeper, self._stop):
                    self._put_all(writer, verbose)
                if not self._stop.is_set():
                    writer.close()  # or the swaps would wait for its lease
                    self._finish(cache, keeper)
            except (StoreUnreachableError, SystemExit):
                leases.pop_all()  # no other process needs to know that they end
                writer.abandon()
                raise
        return self.stored

    def run_generator(self) -> int:
        """The same as :meth:`run`."""
        return self.run()

    def stop(self) -> None:
        """Makes :meth:`run` return; from any thread."""
        self._stop.set()

    def _put_all(self, writer: Writer, verbose: bool) -> None:
        for sample in itertools.islice(self.generator, self.n_samples):
            stored = writer.put(sample)
            if stored is None:
                return
            self.stored += 1
            if verbose:
                log.info("Generator: sample %d of generation %d of %s", stored[1], stored[0], self.config.dbname)
            if self._stop.is_set():
                return

    def _finish(self, cache: Cache, keeper: Keeper) -> None:
        """Waits until generations that are full have been swapped: this may be the last generator. But not for slow
        readers.
        """
        now = time.monotonic()
        deadline, patience = now + 2 * self.config.lease, now + _PATIENCE
        while cache.fill(cache.current() + 1) == self.config.swap_cap and now < deadline:
            if keeper.blocked is not None and now >= patience:
                break
            now = time.monotonic()
            if keeper.step() is None:
                time.sleep(0.01)


def _end_leases(keeper: Keeper, writer: Writer) -> None:
    """If the store does not answer, or a second signal comes, they expire."""
    try:
        keeper.close()
        writer.close()
    finally:
        writer.abandon()


@contextlib.contextmanager
def keeping(keeper: Keeper, stop_all: threading.Event) -> Iterator[None]:
    """A thread manages the cache within this context. If it fails, it sets ``stop_all``, and the error is raised on
    exit. A second signal does not wait for it: the store may not answer.
    """
    stop = threading.Event()
    errors: list[BaseException] = []

    def keep() -> None:
        try:
            run_keeper(keeper, stop)
        except BaseException as error:
            errors.append(error)
            stop_all.set()

    thread = threading.Thread(target=keep, name="headrace-wirehead-keeper", daemon=True)
    thread.start()
    try:
        yield
    except SystemExit:
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
    """SIGTERM and SIGINT set ``stop``; a second one terminates the process. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked or stop.is_set():
            sys.exit(128 + number)
        asked = True
        # Beside: this thread may be at work on the event, and hold its lock for as long as this function runs.
        _thread.start_new_thread(stop.set, ())

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
