"""Datasets for the loader's tests, in a module that spawned workers can import."""

from __future__ import annotations

import collections
import ctypes
import multiprocessing
import os
import random
import signal
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from headrace.data import get_worker_info


def same(left: Any, right: Any) -> bool:
    """Whether two batches are equal in types, dtypes, shapes and values."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.dtype.kind == "V" and left.dtype.names:  # whose padding may hold anything
            return all(same(np.array(left[name]), np.array(right[name])) for name in left.dtype.names)
        return left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


class Point(NamedTuple):
    x: Any
    y: Any


class Ints:
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index


class Vectors(Ints):
    """Sample i is an array full of i, and i."""

    def __init__(self, length: int, shape: tuple[int, ...] = (3, 4)) -> None:
        super().__init__(length)
        self.shape = shape

    def __getitem__(self, index: int) -> Any:
        return np.full(self.shape, index, np.float32), index


class Samples:
    """The samples of a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Everything(Ints):
    """Samples that contain something of every kind."""

    def __getitem__(self, i: int) -> Any:
        return {
            "image": np.arange(24, dtype=np.uint8).reshape(2, 3, 4) + np.uint8(i),
            "numbers": (i, i * 0.5, i % 2 == 0),
            "name": f"sample {i}",
            "point": Point(np.float32(i), {"deep": [np.int16(i), b"bytes" * (i % 3)]}),
            "transposed": np.arange(12, dtype=np.int32).reshape(3, 4).T + np.int32(i),
            "sliced": np.arange(20, dtype=np.float64)[::2] * i,
            "empty": np.zeros((0, 3), np.float32),
            "scalar": np.array(i, np.int64),
            "none": None,
            "nothing": (),
        }


DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "longdouble", "complex64", "complex128"),
    *("datetime64[ns]", "timedelta64[s]", "S5", "U3", ">f4", ">i8", "V7"),
    [("a", "i4"), ("b", "f8", (2,)), ("c", "S3")],
]


class OfDtype(Ints):
    """Arrays and scalars of one dtype."""

    def __init__(self, length: int, dtype: Any) -> None:
        super().__init__(length)
        self.dtype = np.dtype(dtype)

    def __getitem__(self, index: int) -> Any:
        raw = (np.arange(6 * self.dtype.itemsize) * 7 + index) % 64
        if self.dtype.kind == "U":
            array = np.array(["a", "bcd", str(index)] * 2, self.dtype).reshape(2, 3)
        elif self.dtype == bool:
            array = (np.arange(6) % 2 == index % 2).reshape(2, 3)
        else:
            array = np.frombuffer(raw.astype(np.uint8).tobytes(), self.dtype).reshape(2, 3)
        return array, array[1, 2], array[0, 0:0]


class Random(Ints):
    """Draws from the record's generator."""

    def __getitem__(self, index: int, rng: np.random.Generator) -> Any:  # type: ignore[override]
        return rng.integers(0, 1 << 30, 3), rng.random()


class GloballyRandom(Ints):
    """Draws from the process's global generators."""

    def __getitem__(self, index: int) -> Any:
        return random.random(), np.random.random()


class Bulk(Ints):
    """Makes many samples in one call, but cannot make a single one."""

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("not one by one")

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(np.full(2, index), index) for index in indices]


class BrokenBulk(Bulk):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        if 7 in indices:
            raise OSError("no bulk today")
        return super().__getitems__(indices)


class ShortBulk(Bulk):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[1:]


class PickyError(Exception):
    """Its constructor does not take its ``args``, so pickle cannot restore it."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"picky {one + two}")
        self.one = one


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = threading.Lock()


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Raising(Ints):
    """Raises at some indices."""

    def __init__(self, length: int, *bad: int, kind: str = "key") -> None:
        super().__init__(length)
        self.bad = bad
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            if self.kind == "unpicklable":
                raise UnpicklableError
            if self.kind == "picky":
                raise PickyError(index, 1)
            if self.kind == "unprintable":
                raise UnprintableError
            if self.kind == "exit":
                raise SystemExit(3)
            raise KeyError(f"no sample {index}")
        return index


class Deadly(Ints):
    """Kills its worker at some indices: always, or, with ``memory``, once for each."""

    def __init__(self, length: int, *bad: int, memory: str = "", how: int = signal.SIGKILL) -> None:
        super().__init__(length)
        self.bad = bad
        self.memory = memory
        self.how = how

    def __getitem__(self, index: int) -> Any:
        if index in self.bad and get_worker_info() is not None:
            if self.memory:
                path = os.path.join(self.memory, str(index))
                if not os.path.exists(path):
                    with open(path, "w"):
                        pass
                    os.kill(os.getpid(), self.how)
            else:
                os.kill(os.getpid(), self.how)
        return index


class Slow(Ints):
    """Sleeps at some indices."""

    def __init__(self, length: int, seconds: float, *slow: int) -> None:
        super().__init__(length)
        self.seconds = seconds
        self.slow = slow

    def __getitem__(self, index: int) -> Any:
        if index in self.slow or not self.slow:
            time.sleep(self.seconds)
        return index


class Stuck(Ints):
    """Hangs from index 20 on; with ``in_c``, it holds the interpreter's lock meanwhile."""

    def __init__(self, length: int, in_c: bool) -> None:
        super().__init__(length)
        self.in_c = in_c

    def __getitem__(self, index: int) -> Any:
        if index >= 20:
            if self.in_c:
                ctypes.PyDLL(None).sleep(1000)
            time.sleep(1000)
        return index


class Who(NamedTuple):
    """Tells who made a sample, and what get_worker_info says there."""

    index: Any
    pid: Any
    thread: Any
    worker: Any
    workers: Any
    seed: Any
    has_dataset: Any


class Meeting(Ints):
    """Sample i is a :class:`Who`. The first ``parties`` samples are made all at the same time, or never.

    With ``batch_size=1``, and in the very first batch, each of them is a claim of its own, so that as many workers, or
    threads of workers, take part. Works for forked processes and for threads.
    """

    def __init__(self, length: int, parties: int) -> None:
        super().__init__(length)
        self.parties = parties
        self.barrier = multiprocessing.get_context("fork").Barrier(max(1, parties))

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        here = os.getpid(), threading.get_ident()
        if info is None:
            return Who(index, *here, -1, -1, 0, True)
        if index < self.parties:
            self.barrier.wait()
        return Who(index, *here, info.id, info.num_workers, info.seed, info.dataset is not None)


class Gated(Ints):
    """Some samples are not ready until ``gate`` is set, in any process."""

    def __init__(self, length: int, *held: int) -> None:
        super().__init__(length)
        self.held = held
        self.gate = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> Any:
        if index in self.held:
            self.gate.wait()
        return index


class Unpicklable(Ints):
    def __reduce__(self) -> Any:
        raise TypeError("this dataset stays where it is")


class Unloadable(Ints):
    """Cannot be unpickled, unless there is a certain file."""

    def __init__(self, length: int, allowed: Any = "/nowhere") -> None:
        super().__init__(length)
        self.allowed = allowed

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if not os.path.exists(self.allowed):
            raise ImportError("no codec")


class Memory:
    """Arrays of a fixed number of bytes."""

    def __init__(self, length: int, size: int) -> None:
        self.length = length
        self.size = size

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.full(self.size, index % 251, np.uint8)


class KeyOrder(Ints):
    """Equal dicts whose keys come in varying order."""

    def __getitem__(self, index: int) -> Any:
        keys = ["a", "b"] if index % 3 else ["b", "a"]
        return {key: np.full(2, index if key == "a" else -index) for key in keys}


class Mappings(Ints):
    def __getitem__(self, index: int) -> Any:
        return collections.UserDict(x=np.full(2, index), y=index)


def raise_at_start(worker_id: int) -> None:
    raise ConnectionError(f"worker {worker_id} has no connection")


def die_at_start(worker_id: int) -> None:
    os._exit(7)


def add_up(samples: list[Any]) -> Any:
    return {"sum": np.sum(samples), "items": np.array(samples), "text": "x" * len(samples), "pair": (1, [2.5, None])}


def raise_in_collate(samples: list[Any]) -> Any:
    if 5 in samples:
        raise ArithmeticError("does not add up")
    return samples
