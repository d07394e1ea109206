"""Writers share the ids of a generation out among themselves."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import headrace.wirehead._protocol.writer as writing
import headrace.wirehead._stores.store as stores
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer

SAMPLE = np.zeros(10, np.uint8), np.uint8(0)
READS = ("find", "scan", "now", "missing_chunks", "generations", "read_chunks")


@pytest.fixture
def cache(location: dict[str, Any]) -> Iterator[Cache]:
    cache = Cache({**location, "SWAP_CAP": 40, "TIMEOUT": 30})
    yield cache
    cache.close()


@pytest.fixture
def calls(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How often each operation of the store was called; not by the threads that renew leases."""
    counter: collections.Counter[str] = collections.Counter()

    def counted(name: str) -> Any:
        method = getattr(cache.store, name)

        def call(*arguments: Any) -> Any:
            counter[name] += threading.current_thread() is threading.main_thread()
            return method(*arguments)

        return call

    for name in (*READS, "insert", "replace", "remove", "write_chunks"):
        monkeypatch.setattr(cache.store, name, counted(name))
    return counter


def test_a_put_is_two_writes_and_asks_nothing(cache: Cache, calls: collections.Counter[str]) -> None:
    writer = Writer(cache)
    assert writer.put(SAMPLE) == (1, 0)
    calls.clear()
    assert [writer.put(SAMPLE) for _ in range(39)] == [(1, id) for id in range(1, 40)]
    assert calls["write_chunks"] == calls["insert"] == 39
    assert not any(calls[name] for name in READS)
    writer.close()


def test_several_writers_do_not_ask_which_ids_are_free(cache: Cache, calls: collections.Counter[str]) -> None:
    writers = [Writer(cache) for _ in range(4)]
    stored = [writer.put(SAMPLE) for _ in range(4) for writer in writers]
    calls.clear()
    rounds = [[writer.put(SAMPLE) for writer in writers] for _ in range(5)]
    assert calls["insert"] == 20
    assert not any(calls[name] for name in READS)
    stored += [one for round in rounds for one in round]
    stored += [writer.put(SAMPLE) for writer in writers]
    assert sorted(stored) == [(1, id) for id in range(40)]
    for writer in writers:
        writer.close()


def test_one_writer_fills_what_others_have_left(cache: Cache) -> None:
    writers = [Writer(cache) for _ in range(3)]
    stored = [writer.put(SAMPLE) for _ in range(3) for writer in writers]
    stored += [writers[1].put(SAMPLE) for _ in range(31)]
    assert sorted(stored) == [(1, id) for id in range(40)]
    assert GenerationManager(cache).step() is not None
    assert writers[0].put(SAMPLE)[0] == 2
    for writer in writers:
        writer.close()


def test_a_generation_is_full_before_the_next_is_begun(cache: Cache) -> None:
    first, second = Writer(cache), Writer(cache)
    stored = [first.put(SAMPLE) for _ in range(5)]
    stored += [writer.put(SAMPLE) for _ in range(10) for writer in (second, first)]
    stored += [second.put(SAMPLE) for _ in range(15)]
    assert sorted(stored) == [(1, id) for id in range(40)]
    assert [first.put(SAMPLE)[0], second.put(SAMPLE)[0]] == [2, 2]
    first.close()
    second.close()


@pytest.fixture
def looks(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Of which generation and block the descriptions were read. No time passes, after which writers look back."""
    now = cache.clock()
    monkeypatch.setattr(cache, "clock", lambda: now)
    found: list[tuple[int, int]] = []
    samples = cache.samples
    monkeypatch.setattr(cache, "samples", lambda g, block, v: [found.append((g, block)), samples(g, block, v)][1])
    return found


def take_own_ids(writers: list[Writer], looks: list[Any]) -> list[Any]:
    """What three writers put until the first one has used up its own ids, and looked which others are free."""
    stored = [writer.put(SAMPLE) for _ in range(3) for writer in writers]
    looks.clear()
    while not looks:
        stored.append(writers[0].put(SAMPLE))
    return stored


def test_where_an_id_was_taken_the_next_one_is_tried_without_another_look(
    cache: Cache, looks: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # First one that the others do not come to, then those that they take.
    monkeypatch.setattr(writing.random, "shuffle", lambda ids: ids.sort(key=lambda id: (id != 38, id)))
    writers = [Writer(cache) for _ in range(3)]
    stored = take_own_ids(writers, looks)
    stored += [writer.put(SAMPLE) for _ in range(3) for writer in writers[1:]]  # six of those that it has seen free
    stored += [writers[0].put(SAMPLE) for _ in range(40 - len(stored))]
    assert sorted(stored) == [(1, id) for id in range(40)]
    assert looks == [(1, 0)]
    assert writers[0].put(SAMPLE) == (2, 0)  # as it knows that the other one is full
    assert looks == [(1, 0)]
    for writer in writers:
        writer.close()


def test_after_eight_misses_it_looks_again(
    cache: Cache, calls: collections.Counter[str], looks: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing.random, "shuffle", lambda ids: ids.sort())
    writers = [Writer(cache) for _ in range(3)]
    stored = take_own_ids(writers, looks)
    while len(stored) < 38:
        stored += [writer.put(SAMPLE) for writer in writers[1:]]
    assert looks == [(1, 0)]
    calls.clear()
    stored.append(writers[0].put(SAMPLE))
    assert looks == [(1, 0)] * 2
    assert calls["insert"] == 9
    assert sorted(set(stored)) == sorted(stored)
    for writer in writers:
        writer.close()


def test_what_others_have_left_is_taken_where_three_generations_are_not_enough(cache: Cache) -> None:
    manager, first = GenerationManager(cache), Writer(cache)
    for _ in range(40):
        assert first.put(SAMPLE) is not None
    assert manager.step() is not None
    reader = Reader(cache, ("label",))
    reader.pin_current(1)
    for _ in range(40):
        assert first.put(SAMPLE) is not None
    assert manager.step() is not None
    second = Writer(cache)
    stored = [first.put(SAMPLE), *(second.put(SAMPLE) for _ in range(39))]  # generation 1 is read
    assert sorted(stored) == [(3, id) for id in range(40)]
    for user in (first, second, reader):
        user.close()


class _Waits(threading.Event):
    """Is set once it has been waited for so often, without any time passing."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        if self._left == 0:
            self.set()
        return self.is_set()


def test_waiting_for_an_old_generation_to_be_dropped_is_one_request_a_look(
    cache: Cache, calls: collections.Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = cache.clock()
    monkeypatch.setattr(cache, "clock", lambda: now)
    manager, writer, reader = GenerationManager(cache), Writer(cache, _Waits(20)), Reader(cache, ("label",))
    for generation in (1, 2, 3):
        assert [writer.put(SAMPLE) for _ in range(40)] == [(generation, id) for id in range(40)]
        if generation < 3:
            assert manager.step() is not None
            if generation == 1:
                reader.pin_current(1)
    calls.clear()
    assert writer.put(SAMPLE) is None
    assert calls["generations"] == 20
    assert sum(calls[name] for name in READS) <= 22
    for user in (writer, reader, manager):
        user.close()


def test_several_writers_look_at_most_blocks_before_a_generation_is_full(
    location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_SMALLEST_BLOCK", 10)
    cache = Cache({**location, "SWAP_CAP": 60, "TIMEOUT": 30})
    writers = [Writer(cache) for _ in range(2)]
    for _ in range(30):
        for writer in writers:
            assert writer.put(SAMPLE)[0] == 1
    looks = []
    samples = cache.samples
    monkeypatch.setattr(cache, "samples", lambda g, block, v: [looks.append((g, block)), samples(g, block, v)][1])
    assert writers[0].put(SAMPLE) == (2, 0)
    assert looks == [(1, 5)]
    for writer in writers:
        writer.close()
    cache.close()


def test_a_generation_of_many_blocks(location: dict[str, Any]) -> None:
    cap = 300
    cache = Cache({**location, "SWAP_CAP": cap, "TIMEOUT": 30})
    assert [cache.ids_of(block) for block in cache.blocks] == [range(128), range(128, 256), range(256, 300)]
    assert [cache.block_of(id) for id in (0, 127, 128, 299)] == [0, 0, 1, 2]
    first, second, manager = Writer(cache), Writer(cache), GenerationManager(cache)
    stored = [writer.put(SAMPLE) for _ in range(10) for writer in (first, second)]
    assert manager.step() is None
    second.close()
    stored += [first.put(SAMPLE) for _ in range(cap - 20)]
    assert sorted(stored) == [(1, id) for id in range(cap)]
    assert cache.fill(1) == cap
    swap = manager.step()
    assert swap is not None
    assert swap.samples == cap
    first.close()
    cache.close()
