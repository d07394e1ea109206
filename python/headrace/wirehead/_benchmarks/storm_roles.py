"""The processes of a storm, and the records that they keep."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import mmap
import os
import random
import struct
import threading
import time
import unittest.mock
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.wirehead._datasets.datasets import MongoTupleheadDataset
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager, manage_generations
from headrace.wirehead._protocol.process import boot_clock
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, CorruptSampleError

_TWO_NUMBERS = struct.Struct("=dd")
_LINE = 96  # bytes of a line that a process writes down, in one system call
_SEQUENCE_BITS = 28


class Clocks:
    """The offsets of a storm's clocks from the real ones, in seconds; in a file, for all processes.

    Args:
        path: of the file, which is created if it does not exist.
    """

    def __init__(self, path: str) -> None:
        with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
            file.truncate(_TWO_NUMBERS.size)
            self._memory = mmap.mmap(file.fileno(), _TWO_NUMBERS.size)

    @property
    def wall(self) -> float:
        return float(_TWO_NUMBERS.unpack_from(self._memory)[0])

    @property
    def boot(self) -> float:
        return float(_TWO_NUMBERS.unpack_from(self._memory)[1])

    def set(self, wall: float, boot: float) -> None:
        """Not while others read both."""
        _TWO_NUMBERS.pack_into(self._memory, 0, wall, boot)

    def open_cache(self, config: Config, create: bool = True) -> Cache:
        """A cache by these clocks."""
        store: Any = open_store(config, create)
        now = store.now
        store.now = lambda: now() + self.wall
        return Cache(config, store, create, clock=lambda: boot_clock() + self.boot)


@dataclasses.dataclass(frozen=True)
class Note:
    """An observation of a process.

    Attributes:
        what: "put": the sample was acknowledged; "read"; "torn": it was read and is not a sample of a writer;
            "corrupt": it could not be read.
        incarnation: of the cache.
        value: of the sample, see ``sample_of``; 0 if it is not known.
        time: by the monotonic clock, when it was written down.
    """

    what: str
    incarnation: str
    time: float
    generation: int
    id: int
    value: int


class Notebook:
    """Of one process: its records survive its death."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def write(self, what: str, incarnation: str | None, *numbers: int) -> None:
        line = " ".join([what, str(incarnation), f"{time.monotonic():.6f}", *map(str, numbers)])
        os.write(self._file, (line.ljust(_LINE - 1) + "\n").encode())

    @staticmethod
    def count(folder: Path) -> int:
        """Notes of all processes so far."""
        return sum(path.stat().st_size for path in folder.iterdir()) // _LINE

    @staticmethod
    def read(folder: Path) -> Iterator[Note]:
        """The notes of all processes."""
        for path in sorted(folder.iterdir()):
            for line in path.read_text().splitlines():
                what, incarnation, time, *numbers = line.split()
                yield Note(what, incarnation, float(time), *map(int, numbers))


def sample_of(incarnation: str | None, value: int) -> tuple[Any, Any]:
    """A sample that says what it is: bytes that depend on its value, as many as that says; and the cache's incarnation,
    the value, and a checksum.
    """
    chance = random.Random(value)
    data = chance.randbytes(1000 + chance.randrange(3000))
    label = np.array([int(incarnation or "0", 16), value, zlib.crc32(data)], np.uint64)
    return np.frombuffer(data, np.uint8), label


def value_of(incarnation: str | None, sample: tuple[Any, Any]) -> int | None:
    """None if the sample is not one of :func:`sample_of` for that incarnation."""
    data, label = sample
    value = int(label[1])
    expected = sample_of(incarnation, value)
    return value if all(map(np.array_equal, (data, label), expected)) else None


def write(config: Config, number: int, path: str, clocks: Clocks) -> None:
    notes = Notebook(path)
    values = iter(range(number << _SEQUENCE_BITS, (number + 1) << _SEQUENCE_BITS))
    with contextlib.closing(clocks.open_cache(config)) as cache, contextlib.closing(Writer(cache)) as writer:
        for value in values:
            stored = writer.put(sample_of(cache.incarnation, value))
            assert stored is not None
            notes.write("put", cache.incarnation, *stored, value)


def read(config: Config, number: int, path: str, clocks: Clocks) -> None:
    notes, chance = Notebook(path), random.Random(number)
    with (
        unittest.mock.patch("headrace.wirehead._datasets.cache_dataset.Cache", clocks.open_cache),
        MongoTupleheadDataset(config, to="numpy", timeout=300) as dataset,
    ):
        while True:
            for id in chance.sample(range(config.swap_cap), config.swap_cap):
                cache, _ = dataset._open()
                try:
                    value = value_of(cache.incarnation, dataset[id])
                except CorruptSampleError as error:
                    notes.write("corrupt", cache.incarnation, error.generation, id, 0)
                    continue
                notes.write("torn" if value is None else "read", cache.incarnation, dataset.generation, id, value or 0)


def manage(config: Config, number: int, path: str, clocks: Clocks) -> None:
    with contextlib.closing(clocks.open_cache(config)) as cache:
        manage_generations(GenerationManager(cache), threading.Event())


def clean(config: Config, number: int, path: str, clocks: Clocks) -> None:
    with contextlib.closing(Cache(config, create=False, check=False)) as cache:
        cache.store.clean()


def begin_anew(action: Callable[..., None], config: Config, number: int, path: str, clocks_path: str) -> None:
    """Does it, and once more if the cache was cleaned, as a supervisor would."""
    logging.getLogger("headrace.wirehead").setLevel(logging.ERROR)  # processes that were suspended log it
    clocks = Clocks(clocks_path)
    for again in range(1 << 20):
        try:
            action(config, number + again * (1 << 16), path, clocks)
            break
        except CacheGoneError:
            time.sleep(0.01)
