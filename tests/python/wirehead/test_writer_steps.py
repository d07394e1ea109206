"""What comes between two steps of a writer: an error, a standstill, swaps, annulments, a backup."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from damage import bury, remove_chunk
from numbered import fill, numbered

from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import key, samples_table
from headrace.wirehead.errors import StoreError

CAP, LEASE = 3, 30.0

pytestmark = pytest.mark.usefixtures("steps")


@pytest.fixture
def config(location: dict[str, Any]) -> dict[str, Any]:
    return {**location, "SWAP_CAP": CAP, "LEASE": LEASE, "TIMEOUT": 30}


class Waits(threading.Event):
    """Is set once it has been waited for too often. Time passes meanwhile, in which the writer renews its lease, and
    something happens at the first.
    """

    writer: Writer

    def __init__(self, clock: list[float], happen: Callable[[], object]) -> None:
        super().__init__()
        self._clock, self._happen, self._left = clock, happen, 100

    def wait(self, timeout: float | None = None) -> bool:
        self._clock[0] += timeout or 0
        if self._left == 100:
            self._happen()
        self._left -= 1
        if self._left == 0:
            self.set()
        assert self.writer._lease is not None
        self.writer._lease._write_again()
        return self.is_set()


def waiting(cache: Cache, clock: list[float], happen: Callable[[], object]) -> Writer:
    """A writer that does not wait for long."""
    stop = Waits(clock, happen)
    stop.writer = Writer(cache, stop)
    return stop.writer


def put(writer: Writer, count: int) -> list[Any]:
    return [writer.put(sample) for sample in numbered(0, count)]


def damage(cache: Cache, generation: int, id: int) -> None:
    description = cache.sample(generation, id)
    assert description is not None
    assert remove_chunk(cache, generation, chunk_names(description, [0])[0])


@pytest.mark.parametrize("is_done", [False, True])
def test_chunks_of_a_put_that_has_failed_are_no_other_samples(cache: Cache, is_done: bool) -> None:
    writer, insert = Writer(cache), cache.store.insert

    def fail(table: str, name: str, document: Any) -> bool:
        if table != samples_table(1, 0):
            return insert(table, name, document)
        cache.store.insert = insert  # type: ignore[method-assign]
        if is_done:
            insert(table, name, document)
        raise StoreError("no answer")

    cache.store.insert = fail  # type: ignore[method-assign]
    first, second = numbered(5, 2)
    with pytest.raises(StoreError):
        writer.put(first)
    assert writer.put(second) == (1, 1)
    with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
        assert int(reader.read(1, 1)["label"][1][0]) == 6
        if is_done:
            assert int(reader.read(1, 0)["label"][1][0]) == 5
    writer.close()


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_generation_that_is_dropped_before_it_is_pinned_is_not_written_to(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, writer, pin = GenerationManager(cache), Writer(cache), Lease.pin

    def suspended(lease: Lease, generations: Any) -> bool:
        monkeypatch.setattr(Lease, "pin", pin)
        for _ in range(2):
            fill(cache, 0)
            assert manager.step() is not None
        assert manager._retire() == []
        return pin(lease, generations)

    monkeypatch.setattr(Lease, "pin", suspended)
    assert put(writer, 1) == [(3, 0)]
    writer.close()


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_lease_that_lapses_between_two_puts_costs_no_number(cache: Cache, clock: list[float]) -> None:
    writer = Writer(cache)
    assert put(writer, 1) == [(1, 0)]
    assert writer._lease is not None
    clock[0] += 10 * LEASE
    bury(cache, [writer._lease.key])
    assert put(writer, 2) == [(1, 1), (1, 2)]
    writer.close()


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_writer_that_stood_still_does_not_rely_on_what_it_knew(cache: Cache, clock: list[float]) -> None:
    """A backup may have been restored meanwhile."""
    writer = Writer(cache)
    assert put(writer, 2) == [(1, 0), (1, 1)]
    cache.store.remove(samples_table(1, 0), key(0))
    clock[0] += 10 * LEASE
    assert sorted(put(writer, 2)) == [(1, 0), (1, 2)]
    writer.close()


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_writer_that_stands_still_while_it_waits_does_not_rely_on_what_it_knew(
    cache: Cache, clock: list[float]
) -> None:
    def stand_still() -> None:
        clock[0] += 10 * LEASE
        cache.store.remove(samples_table(2, 0), key(1))

    writer = waiting(cache, clock, stand_still)
    assert put(writer, 2 * CAP) == [(g, id) for g in (1, 2) for id in range(CAP)]
    assert put(writer, 1) == [(2, 1)]
    assert not writer._stop.is_set()
    writer.close()


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_writer_that_waits_for_two_swaps_looks_back(cache: Cache, clock: list[float]) -> None:
    manager = GenerationManager(cache)

    def annul() -> None:
        damage(cache, 1, 1)
        assert manager.step() is None

    writer = waiting(cache, clock, annul)
    put(writer, 2 * CAP)
    assert put(writer, 1) == [(1, 1)]
    assert not writer._stop.is_set()
    writer.close()


@pytest.mark.parametrize("location", ["local"], indirect=True)
def test_a_writer_that_waits_for_a_drop_finds_what_is_annulled(cache: Cache, clock: list[float]) -> None:
    manager, reader = GenerationManager(cache), Reader(cache, ("label",))

    def annul() -> None:
        damage(cache, 3, 1)
        reader._lease._write()  # it is there still
        manager.step()

    writer = waiting(cache, clock, annul)
    for generation in (1, 2):
        put(writer, CAP)
        assert manager.step() is not None
        if generation == 1:
            assert reader.pin_current(1) == 1
    put(writer, CAP)
    assert cache.store.generations() == [1, 2, 3]
    assert put(writer, 1) == [(3, 1)]
    assert not writer._stop.is_set()
    for user in (writer, reader):
        user.close()
