"""Samples of every shape and dtype, of which each says its number, while a seed decides what goes wrong: a disk that is
full, a server that fails, chunks that are lost, a cache that is cleaned, readers that come late.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mongo_proxy import Proxy

import headrace.wirehead._stores.local_store as local_stores
from headrace.wirehead import CorruptSampleError, MongoTupleheadDataset, StoreError
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer

DTYPES = ["f4", "i8", ">i4", "?", "c8", "S5", "U3", "M8[s]", "f2", "u1", "m8[ms]"]
SHAPES: list[tuple[int, ...]] = [(0,), (0, 5), (), (1,), (3, 4), (2, 0, 3), (700,), (5000,), (1, 1, 1, 1)]
SECONDS = 1.5


def array_of(number: int) -> Any:
    rng = np.random.default_rng(number)
    shape, dtype = SHAPES[rng.integers(len(SHAPES))], np.dtype(DTYPES[rng.integers(len(DTYPES))])
    numbers = rng.integers(0, 100, shape)
    return numbers.astype("U3").astype(dtype) if dtype.kind in "SU" else numbers.astype(dtype)


class Trouble:
    """Threads that use one cache, each of which starts anew when the store fails.

    Attributes:
        problems: what must not happen, in words.
    """

    def __init__(self, keys: dict[str, Any], rng: random.Random, loses: bool, cleans: bool) -> None:
        self.keys, self.rng, self.loses, self.cleans = keys, rng, loses, cleans
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.swaps = 0
        self._numbers = itertools.count(1)
        self._cleaned: set[str | None] = set()
        self._acknowledged: dict[tuple[str | None, int, int], int] = {}
        self._read: dict[tuple[str | None, int, int], int] = {}

    def run(self, trouble: Callable[[], object]) -> None:
        actions = [self._write, self._write, self._keep, self._keep, self._read_all, self._read_all, self._use]
        threads = [threading.Thread(target=self._guarded, args=(action,)) for action in actions]
        for thread in threads:
            thread.start()
        begin, swaps = time.monotonic(), 0
        while (now := time.monotonic()) < begin + SECONDS or (self.swaps == 0 and now < begin + 100):
            trouble()
            if self.cleans and self.swaps > swaps and self.rng.random() < 0.05:
                swaps = self.swaps
                with contextlib.suppress(StoreError), contextlib.closing(self._cache()) as cache:
                    self._cleaned.add(cache.incarnation)
                    cache.store.clean()
            if self.loses and self.rng.random() < 0.1:
                with contextlib.suppress(StoreError):
                    self._lose_a_chunk()
            time.sleep(0.02)
        self.stop.set()
        for thread in threads:
            thread.join(60)
            if thread.is_alive():
                self.problems.append(f"{thread.name} hangs")

    def check(self) -> None:
        """What was acknowledged is there, and nothing was torn or mixed."""
        assert self.problems == []
        assert self.swaps > 0
        with contextlib.closing(self._cache()) as cache, contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            for (incarnation, generation, id), number in self._acknowledged.items():
                is_kept = incarnation == cache.incarnation and generation >= cache.current()
                if is_kept and incarnation not in self._cleaned and not self.loses:
                    assert reader.read(generation, id)["label"][1] == number

    def _cache(self) -> Cache:
        return Cache(self.keys)

    def _guarded(self, action: Callable[[], None]) -> None:
        while not self.stop.is_set():
            try:
                action()
            except (StoreError, TimeoutError):
                self.stop.wait(0.01)
            except BaseException as error:
                self.problems.append(f"{action.__name__}: {type(error).__name__}: {error}")
                return

    def _write(self) -> None:
        with contextlib.closing(self._cache()) as cache, contextlib.closing(Writer(cache, self.stop)) as writer:
            while (stored := writer.put((array_of(number := next(self._numbers)), number))) is not None:
                key = (cache.incarnation, *stored)
                if key in self._acknowledged and not (self.loses or cache.incarnation in self._cleaned):
                    self.problems.append(f"{key} was acknowledged twice")
                self._acknowledged[key] = number

    def _keep(self) -> None:
        with contextlib.closing(self._cache()) as cache, contextlib.closing(GenerationManager(cache)) as manager:
            while not self.stop.is_set():
                if manager.step() is None:
                    self.stop.wait(manager.pause)
                else:
                    self.swaps += 1

    def _read_all(self) -> None:
        with contextlib.closing(self._cache()) as cache, contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            while not self.stop.is_set():
                generation = reader.pin_current(0.1, keep=self.rng.random() < 0.5)
                if generation > 1 and self.rng.random() < 0.3:
                    generation -= 1
                    reader.pin(generation)
                for id in range(cache.config.swap_cap):
                    try:
                        arrays = reader.read(generation, id)
                    except CorruptSampleError as error:
                        if not reader.is_certain(generation):
                            break
                        cache.check_is_there()
                        self._note_damage(error, cache.incarnation)
                        continue
                    number = self._number(arrays["data"][1], arrays["label"][1])
                    before = self._read.setdefault((cache.incarnation, generation, id), number)
                    if before != number and cache.incarnation not in self._cleaned:
                        self.problems.append(f"sample {id} of generation {generation} had two contents")

    def _use(self) -> None:
        with MongoTupleheadDataset(self.keys, timeout=0.1, to="numpy") as dataset:
            while not self.stop.is_set():
                for ids in (*range(len(dataset)), list(range(len(dataset)))):
                    try:
                        found: Any = dataset[ids]
                    except CorruptSampleError as error:
                        assert dataset._cache is not None
                        self._note_damage(error, dataset._cache.incarnation)
                        continue
                    for sample in found if isinstance(ids, list) else [found]:
                        self._number(*sample)

    def _number(self, array: Any, label: Any) -> int:
        number, expected = int(label), array_of(int(label))
        if (array.dtype, array.shape, array.tobytes()) != (expected.dtype, expected.shape, expected.tobytes()):
            self.problems.append(f"sample {number} is torn: {array.dtype}{array.shape}")
        return number

    def _note_damage(self, error: CorruptSampleError, incarnation: str | None) -> None:
        if not self.loses and incarnation not in self._cleaned:
            self.problems.append(f"there was no damage: {error}")

    def _lose_a_chunk(self) -> None:
        with contextlib.closing(self._cache()) as cache:
            store: Any = cache.store
            for generation in store.generations():
                if cache.config.is_local:
                    with contextlib.suppress(OSError, IndexError):
                        folder = store._chunks(generation)
                        os.unlink(folder / self.rng.choice(sorted(os.listdir(folder))))


@contextlib.contextmanager
def failing_disk(patch: pytest.MonkeyPatch, rng: random.Random) -> Iterator[Callable[[], object]]:
    """Gives a function that has it fail for a while, in a way of its choice, or work again."""
    code = [0]

    def failing(call: Any) -> Any:
        def function(*arguments: Any, **keywords: Any) -> Any:
            if code[0] and rng.random() < 0.5:
                raise OSError(code[0], os.strerror(code[0]))
            return call(*arguments, **keywords)

        return function

    names = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
    broken = {name: failing(getattr(os, name)) for name in ("write", "link", "replace", "mkdir")}
    patch.setattr(local_stores, "os", SimpleNamespace(**{**names, **broken}))

    def trouble() -> None:
        if rng.random() < 0.2:
            code[0] = rng.choice((0, 0, 0, errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT))

    yield trouble
    code[0] = 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("what", ["disk", "loses", "cleans"])
def test_in_a_folder(seed: int, what: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": rng.choice([1, 3, 8]), "LEASE": 1.0}
    keys.update(CHUNKSIZE=rng.choice([0.001, 10]), COMPRESSION=rng.choice(["none", "zlib", "zstd"]))
    world = Trouble(keys, rng, loses=what == "loses", cleans=what == "cleans")
    with failing_disk(monkeypatch, rng) as trouble:
        world.run(trouble if what == "disk" else lambda: None)
    world.check()


@pytest.mark.parametrize("seed", range(2))
def test_on_a_server(seed: int, server_uri: str) -> None:
    import pymongo

    rng = random.Random(seed)
    name = f"headrace_test_{os.getpid()}_trouble_{seed}"
    with Proxy(server_uri, seed) as proxy:
        proxy.chance = 0.05
        keys = {"DBNAME": name, "MONGOHOST": proxy.uri, "SWAP_CAP": 3, "LEASE": 3.0, "TIMEOUT": 10}
        world = Trouble(keys, rng, loses=False, cleans=False)
        world.run(lambda: proxy.cut() if rng.random() < 0.03 else None)
        proxy.chance = 0.0
        world.check()
    with contextlib.closing(pymongo.MongoClient[Any](server_uri)) as client:
        client.drop_database(name)
