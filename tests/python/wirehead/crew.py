"""Threads that write, read and manage one cache, and what they have seen of it."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager, manage_generations
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer


def sample(value: int) -> tuple[Any, Any]:
    return np.full(300, value), value


def whole(reader: Reader, generation: int, id: int) -> int:
    """The value of a sample, which must be one of :func:`sample`."""
    arrays = reader.read(generation, id)
    value = int(arrays["label"][1])
    assert (arrays["data"][1] == value).all()
    return value


class Crew:
    """Two writers, two managers and a reader, from the beginning on. One that fails ends all.

    Args:
        keys: of the cache.
        pause: seconds between two puts of a writer.

    Attributes:
        stop: set when they are to end, or one has failed.
        problems: what must not happen, in words; errors of a thread, too.
    """

    def __init__(self, keys: dict[str, Any], pause: float = 0.0) -> None:
        self._keys, self._pause = keys, pause
        self.stop = threading.Event()
        self.problems: list[str] = []
        self._values = itertools.count(1)
        self._acknowledged: dict[tuple[int, int], int] = {}
        self._read: dict[tuple[int, int], int] = {}
        actions = (self._write, self._write, self._keep, self._keep, self._read_all)
        self._threads = [threading.Thread(target=self._guarded, args=(action,)) for action in actions]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def check(self, cache: Cache) -> None:
        """Nothing went wrong, and what was acknowledged is there, once and as it was. After the end."""
        assert self.problems == []
        assert len(set(self._read.values())) == len(self._read)
        assert all(self._acknowledged.get(stored, value) == value for stored, value in self._read.items())
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            for (generation, id), value in self._acknowledged.items():
                if generation >= cache.current():
                    assert whole(reader, generation, id) == value

    def _guarded(self, action: Callable[[Cache], None]) -> None:
        try:
            with contextlib.closing(Cache(self._keys)) as cache:
                action(cache)
        except BaseException as error:
            self.problems.append(f"{type(error).__name__}: {error}")
            self.stop.set()

    def _write(self, cache: Cache) -> None:
        with contextlib.closing(Writer(cache, self.stop)) as writer:
            while (stored := writer.put(sample(value := next(self._values)))) is not None:
                if stored in self._acknowledged:
                    self.problems.append(f"{stored} was acknowledged twice")
                self._acknowledged[stored] = value
                self.stop.wait(self._pause)

    def _keep(self, cache: Cache) -> None:
        with contextlib.closing(GenerationManager(cache)) as manager:
            manage_generations(manager, self.stop)

    def _read_all(self, cache: Cache) -> None:
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            while not self.stop.is_set():
                generation = reader.pin_current(60)
                for id in range(cache.config.swap_cap):
                    value = whole(reader, generation, id)
                    if self._read.setdefault((generation, id), value) != value:
                        self.problems.append(f"sample {id} of generation {generation} had two contents")
