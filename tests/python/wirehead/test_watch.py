"""Clocks that are set, processes that stand still, managers that wake up late, and caches that are cleaned."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import remove_chunk
from simulated_threads import Threading

import headrace.wirehead._protocol.lease as leases
from headrace.wirehead import MongoTupleheadDataset, WireheadGenerator, WireheadManager
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.process import boot_clock, whose
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.watch import MANAGER, Watch
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import GRAVES, LEASES, SETTINGS, SWAPS
from headrace.wirehead.errors import CacheGoneError


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 4, "LEASE": 30}


def fill(writer: Writer, count: int = 4, start: int = 0) -> list[Any]:
    return [writer.put((start + value, value)) for value in range(count)]


@pytest.mark.parametrize("step", [-3600, 3600])
def test_a_step_of_the_wall_clock_kills_nobody(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    wall = [0.0]
    monkeypatch.setattr("headrace.wirehead._stores.local_store.LocalStore.now", lambda self: time.time() + wall[0])
    cache = Cache(keys)
    manager, writer, reader = GenerationManager(cache), Writer(cache), Reader(cache, ("data",))
    fill(writer)
    assert manager.step() is not None
    assert reader.pin_current(1) == 1
    fill(writer)
    assert manager.step() is not None
    wall[0] = step
    manager._swept = float("-inf")
    assert manager.step() is None
    assert cache.store.generations() == [1, 2]
    assert int(reader.read(1, 3)["data"][1]) == 3
    reader.close()
    writer.close()
    assert manager._retire() == []  # nor does it keep what nobody uses


def test_a_suspended_machine_counts_as_standstill_for_holder_and_watcher_alike(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(keys, clock=lambda: clock[0])
    lease, watch = Lease(cache, "reader"), Watch(cache)
    lease.pin([1])
    assert lease.key in watch.look()
    clock[0] += 3600
    assert not lease.is_alive()
    assert lease.key not in watch.look()
    lease.abandon()


def test_the_clock_counts_on_in_a_suspended_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read.append(clock) or 7.0)
    assert boot_clock() == 7.0
    assert read == [time.CLOCK_BOOTTIME]


def test_a_renewal_that_was_on_its_way_when_the_grave_was_dug(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(keys, clock=lambda: clock[0])
    lease, watch, store = Lease(cache, "reader"), Watch(cache), cache.store
    lease.pin([1])
    lease.abandon()
    watch.look()
    clock[0] += 26  # alive, and renewed just before it would not be any more
    sent, replace, insert, find = clock[0], store.replace, store.insert, store.find
    document = find(LEASES, lease.key)
    assert document is not None

    def renewed(table: str, key: str, new: Any) -> bool:
        done = insert(table, key, new)
        if table == GRAVES:
            clock[0] = sent
            replace(LEASES, lease.key, {**document, "beat": 2})
            clock[0] = sent + 5
        return done

    clock[0] += 5
    store.insert = renewed  # type: ignore[method-assign]
    assert lease.key in watch.look()  # it lives, so what it pins stays
    lease._write()
    assert lease.has_lapsed()  # but goes on under another name
    assert not lease.pin([1])
    assert lease.is_alive()


def test_a_renewal_that_arrives_after_its_holder_was_declared_dead(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(keys, clock=lambda: clock[0])
    lease, watch = Lease(cache, "reader"), Watch(cache)
    lease.pin([1])
    lease.abandon()
    assert lease.is_alive()
    watch.look()
    replace = cache.store.replace

    def late(table: str, key: str, document: Any) -> None:
        now = clock[0]
        clock[0] += 31
        assert lease.key not in watch.look()
        replace(table, key, document)
        clock[0] = now  # as if this machine's clock had stood
        assert lease.key not in watch.look()

    cache.store.replace = late  # type: ignore[method-assign]
    lease._write()
    assert lease.has_lapsed()


def test_a_look_that_takes_long_does_not_count_from_its_beginning(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(keys, clock=lambda: clock[0])
    lease, watch, scan = Lease(cache, "reader"), Watch(cache), cache.store.scan
    lease.pin([1])
    lease.abandon()

    def slow(table: str) -> Any:
        clock[0] += 20
        lease._write()
        return scan(table)

    cache.store.scan = slow  # type: ignore[method-assign]
    watch.look()
    cache.store.scan = scan  # type: ignore[method-assign]
    clock[0] += 15
    assert lease.is_alive()
    assert lease.key in watch.look()


def test_what_a_process_has_sent_to_a_server_before_its_end_may_arrive_later(location: dict[str, Any]) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with contextlib.closing(Cache({**location, "SWAP_CAP": 4, "TIMEOUT": 30})) as cache:
        cache.store.replace(LEASES, "reader-1", {**whose(), "pid": ended.pid, "beat": 1, "generations": [1]})
        assert ("reader-1" in Watch(cache).look()) == (not cache.config.is_local)


def test_a_lease_lasts_as_long_as_its_holder_says_whatever_lease_the_watcher_has(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    caches = [Cache({**keys, "LEASE": lease}, clock=lambda: clock[0]) for lease in (3600, 30)]
    lease, watch = Lease(caches[0], "reader"), Watch(caches[1])
    lease.pin([1])
    lease.abandon()
    watch.look()
    clock[0] += 3000
    assert lease.is_alive()
    assert lease.key in watch.look()
    clock[0] += 601
    assert not lease.is_alive()
    assert lease.key not in watch.look()
    for passed, graves in ((0, [lease.key]), (7000, [lease.key]), (201, [])):
        clock[0] += passed
        watch.clear()
        watch.look()
        assert list(caches[1].store.scan(GRAVES)) == graves


def test_renewals_come_in_time_from_a_store_that_takes_a_seventh_of_lease_for_each_request(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, lapsed, waits = [1000.0], [False], 0
    cache = Cache({**keys, "LEASE": 7}, clock=lambda: clock[0])

    def passed(seconds: float) -> None:
        clock[0] += seconds
        lapsed[0] |= lease.has_lapsed()

    def wait(seconds: float | None, is_set: bool) -> None:
        nonlocal waits
        passed(0 if is_set else seconds or 0)
        waits += 1
        if waits == 20:
            lease.abandon()

    def slow(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            passed(1)
            return method(*arguments)

        return call

    monkeypatch.setattr(leases, "threading", Threading(wait, threading.RLock, lambda action: None))
    lease = Lease(cache, "reader")
    store: Any = cache.store
    for name in ("replace", "find", "scan"):
        setattr(store, name, slow(getattr(store, name)))
    lease.pin([1])
    lease._renew()
    assert clock[0] > 1000 + 3 * cache.config.lease
    assert not lapsed[0]


def test_a_manager_renews_its_lease_and_goes_on(location: dict[str, Any]) -> None:
    clock = [1000.0]
    with contextlib.closing(Cache({**location, "SWAP_CAP": 4, "TIMEOUT": 30}, clock=lambda: clock[0])) as cache:
        first, second = GenerationManager(cache), GenerationManager(cache)
        if cache.config.is_local:
            cache.has_ended = lambda lease: False  # type: ignore[method-assign]
        for _ in range(12):  # of LEASE / 2.5
            assert first._leads()
            assert not second._leads()
            clock[0] += 12
        found = cache.store.find(LEASES, MANAGER)
        assert found is not None
        assert found["beat"] == 12


def test_a_managers_renewal_that_arrives_after_another_one_has_taken_over_is_no_backup(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(keys, clock=lambda: clock[0])
    cache.has_ended = lambda lease: False  # type: ignore[method-assign]
    first, second = GenerationManager(cache), GenerationManager(cache)
    assert first._leads()
    late = cache.store.find(LEASES, MANAGER)
    assert late is not None
    clock[0] += 12
    assert first._leads()
    assert not second._leads()
    clock[0] += 31
    assert second._leads()
    cache.store.replace(LEASES, MANAGER, late)
    first._generation = 7
    assert first._leads()
    assert first._generation == 0  # it begins anew


def test_a_manager_whose_step_takes_longer_than_lease_keeps_its_turn(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache, other = (Cache(keys, clock=lambda: clock[0]) for _ in range(2))
    other.has_ended = lambda lease: False  # type: ignore[method-assign]
    first, second = GenerationManager(cache), GenerationManager(other)
    assert first.step() is None
    assert not second._leads()
    store: Any = cache.store

    def slow(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            result = method(*arguments)
            clock[0] += 4
            assert not second._leads()
            return result

        return call

    for name in ("find", "scan", "generations", "incarnations"):
        setattr(store, name, slow(getattr(store, name)))
    clock[0] += 15
    before = clock[0]
    assert first.step() is None
    assert clock[0] - before > cache.config.lease + 5
    assert not second._leads()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_a_later_renewal_is_not_replaced_by_an_earlier_one(location: dict[str, Any]) -> None:
    with contextlib.closing(Cache({**location, "SWAP_CAP": 4, "TIMEOUT": 30})) as cache:
        for beat in (1, 3, 2):
            cache.store.replace(LEASES, "reader-1", {"beat": beat, "generations": [beat]})
        found = cache.store.find(LEASES, "reader-1")
        assert found is not None
        assert (found["beat"], found["generations"]) == (3, [3])


@pytest.fixture
def two(location: dict[str, Any]) -> Any:
    """Two managers that both believe to lead, and a writer."""
    with contextlib.closing(Cache({**location, "SWAP_CAP": 4, "TIMEOUT": 30})) as cache:
        managers = [GenerationManager(cache) for _ in range(2)]
        for manager in managers:
            manager._leads = manager._holds = lambda **_: True  # type: ignore[method-assign]
        writer = Writer(cache)
        yield cache, managers, writer
        writer.close()


def damage(cache: Cache, id: int) -> None:
    description = cache.sample(1, id)
    assert description is not None
    assert remove_chunk(cache, 1, chunk_names(description, [0])[0])


def values(cache: Cache) -> list[int]:
    with contextlib.closing(Reader(cache, ("data",))) as reader:
        return [int(reader.read(1, id)["data"][1]) for id in range(4)]


def test_a_manager_that_stood_still_before_it_annuls_throws_nothing_away(two: Any) -> None:
    cache, (late, other), writer = two
    fill(writer, 3)
    damage(cache, 1)
    insert = cache.store.insert

    def stand_still(table: str, key: str, document: Any) -> bool:
        if table != SWAPS or cache.store.insert == insert:
            return insert(table, key, document)
        cache.store.insert = insert
        assert other.step() is None
        again = Writer(cache)
        assert sorted(fill(again, 2, 100)) == [(1, 1), (1, 3)]
        again.close()
        assert other.step() is not None
        return insert(table, key, document)

    cache.store.insert = stand_still
    assert late.step() is None
    assert late.step() is None
    assert cache.current() == 1
    assert sorted(values(cache)) == [0, 2, 100, 101]


def test_a_manager_that_stood_still_before_it_swaps_swaps_nothing_that_was_annulled(two: Any) -> None:
    cache, (late, other), writer = two
    fill(writer, 4)
    insert = cache.store.insert

    def stand_still(table: str, key: str, document: Any) -> bool:
        if table != SWAPS or cache.store.insert == insert:
            return insert(table, key, document)
        cache.store.insert = insert
        damage(cache, 2)
        assert other.step() is None
        assert cache.current() == 0
        return insert(table, key, document)

    cache.store.insert = stand_still
    assert late.step() is None
    assert cache.current() == 0
    again = Writer(cache)
    assert again.put((100, 0)) == (1, 2)
    again.close()
    swap = late.step()
    assert swap is not None
    assert swap.deleted == 1
    assert values(cache) == [0, 1, 100, 3]


def test_looking_for_chunks_leaves_nothing_that_could_be_taken_for_one(two: Any) -> None:
    cache, (first, second), writer = two
    fill(writer, 4)
    damage(cache, 2)
    missing, ready = cache.store.missing_chunks, threading.Barrier(2)

    def both(generation: int, lengths: Any) -> list[str]:
        found: list[str] = missing(generation, lengths)
        with contextlib.suppress(threading.BrokenBarrierError):
            ready.wait(5)
        return found

    cache.store.missing_chunks = both
    threads = [threading.Thread(target=manager.step) for manager in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.current() == 0
    assert cache.sample(1, 2) is None


def test_after_clean_a_writer_stops_and_the_new_cache_begins_anew(location: dict[str, Any]) -> None:
    keys = {**location, "SWAP_CAP": 4, "TIMEOUT": 30}
    started: list[float] = []  # when the clock began to go on

    def clock() -> float:
        return 1000 + (time.monotonic() - started[0] if started else 0)

    with (
        contextlib.closing(Cache({**keys, "LEASE": 0.9}, clock=clock)) as old,
        contextlib.closing(Cache(keys, create=False)) as cleaner,
    ):
        writer, manager = Writer(old), GenerationManager(old)
        for _ in range(3):
            fill(writer)
            while manager.step() is None:
                time.sleep(0.01)
        assert cleaner.store.clean() == []
        started.append(time.monotonic())
        with contextlib.closing(Cache(keys)) as new:
            with pytest.raises(CacheGoneError, match=r"was removed .* start this process again"):
                while True:
                    fill(writer, 1)
            with pytest.raises(CacheGoneError):
                while True:
                    manager.step()
            again, new_manager = Writer(new), GenerationManager(new)
            assert fill(again) == [(1, id) for id in range(4)]
            swap = new_manager.step()
            assert swap is not None
            assert swap.generation == 1
            new_manager.step()
            assert new.store.incarnations() == [new.incarnation]
            again.close()


def test_after_clean_a_writer_that_waits_for_the_first_swap_stops(keys: dict[str, Any]) -> None:
    cleaner = Cache(keys, create=False)
    with contextlib.closing(Cache({**keys, "LEASE": 0.3})) as cache:
        writer = Writer(cache)
        fill(writer, 8)
        cleaner.store.clean()
        with contextlib.closing(Cache(keys)), pytest.raises(CacheGoneError):
            writer.put((8, 8))
        writer.abandon()


def test_after_clean_a_reader_that_waits_for_the_first_generation_stops(keys: dict[str, Any]) -> None:
    with contextlib.closing(Cache({**keys, "LEASE": 0.3})) as cache:
        reader = Reader(cache, ("data",))
        current = cache.current

        def cleaned() -> int:
            if cache.current == cleaned:
                cache.current = current  # type: ignore[method-assign]
                cache.store.clean()
                Cache(keys).close()
            return current()

        cache.current = cleaned  # type: ignore[method-assign]
        with pytest.raises(CacheGoneError):
            reader.pin_current(60)


def test_after_clean_readers_generators_and_managers_say_so(location: dict[str, Any]) -> None:
    keys = {**location, "SWAP_CAP": 4, "TIMEOUT": 30, "LEASE": 0.9}
    samples = ((1, time.sleep(0.01) or 1) for _ in itertools.count())
    errors: list[str] = []

    def guarded(run: Any) -> None:
        try:
            run()
        except CacheGoneError as error:
            errors.append(str(error))

    runs = WireheadGenerator(samples, keys).run, WireheadManager(keys).run_manager
    threads = [threading.Thread(target=guarded, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    with MongoTupleheadDataset(keys, timeout=30) as dataset:
        assert int(dataset[0][1]) == 1
        with contextlib.closing(Cache(keys, create=False)) as cache:
            cache.store.clean()
        with pytest.raises(CacheGoneError):
            while True:
                dataset[0]
    for thread in threads:
        thread.join(100)
    assert len(errors) == 2


def test_a_backup_that_was_restored_is_noticed(location: dict[str, Any]) -> None:
    with contextlib.closing(Cache({**location, "SWAP_CAP": 4, "TIMEOUT": 30})) as cache:
        writer, manager = Writer(cache), GenerationManager(cache)
        for _ in range(2):
            fill(writer)
            assert manager.step() is not None
        assert cache.current() == 2
        cache.store.remove(SWAPS, f"{2:012d}")
        with pytest.raises(CacheGoneError, match="went back from generation 2 to 1"):
            cache.current()
        writer.close()


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_reader_that_misses_a_sample_after_a_backup_was_restored(location: dict[str, Any], on_corrupt: str) -> None:
    keys = {**location, "SWAP_CAP": 4, "TIMEOUT": 30}
    with contextlib.closing(Cache(keys)) as cache:
        writer, manager = Writer(cache), GenerationManager(cache)
        for _ in range(2):
            fill(writer)
            assert manager.step() is not None
        with MongoTupleheadDataset(keys, timeout=30, on_corrupt=on_corrupt) as dataset:
            assert dataset[0] is not None
            cache.store.remove(SWAPS, f"{2:012d}")
            cache.store.drop(2)
            with pytest.raises(CacheGoneError, match="went back from generation 2 to 1"):
                dataset[1]
        writer.close()


def restore(folder: Path, backup: Path) -> None:
    """As a server does: the folder stays the one that it was."""
    for table in folder.iterdir():
        if table.is_dir():
            shutil.rmtree(table)
    shutil.copytree(backup, folder, dirs_exist_ok=True)


def test_nothing_is_stored_in_a_backup_that_has_taken_the_place_of_a_folder(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    folder, backup = tmp_path / "test.wirehead", tmp_path / "backup"
    with contextlib.closing(Cache(keys)) as cache:
        writer = Writer(cache)
        fill(writer, 2)
        shutil.copytree(folder, backup)
        fill(writer, 2)
        folder.rename(tmp_path / "away")
        backup.rename(folder)
        before = sorted(folder.rglob("*"))
        with pytest.raises(CacheGoneError):
            fill(writer, 1)
        assert sorted(folder.rglob("*")) == before
        writer.abandon()


@pytest.mark.parametrize("has_its_leases", [True, False])
def test_a_backup_of_the_same_generation_that_was_restored_is_noticed(
    keys: dict[str, Any], tmp_path: Path, has_its_leases: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a manager would swap what it has verified and is not there any more."""
    monkeypatch.setattr(Lease, "_renew", lambda lease: None)  # nobody writes while files are copied; see renew
    clock = [1000.0]
    with contextlib.closing(Cache(keys, clock=lambda: clock[0])) as cache:
        writer, manager, reader = Writer(cache), GenerationManager(cache), Reader(cache, ("data",))
        fill(writer)
        assert manager.step() is not None
        assert reader.pin_current(1) == 1
        fill(writer, 1)
        assert manager.step() is None
        folder, backup = tmp_path / "test.wirehead", tmp_path / "backup"
        shutil.copytree(folder, backup)
        fill(writer, 2)
        assert writer._lease is not None
        of_both = writer._lease, reader._lease

        def renew() -> None:
            clock[0] += 11
            for lease in of_both:
                lease.tick()

        renew()
        assert manager.step() is None
        assert len(manager._verified) == 3
        restore(folder, backup)
        if not has_its_leases:
            shutil.rmtree(folder / f"{cache.incarnation}.leases")
        assert sorted(cache.samples(2, 0)) == [0]
        renew()
        for use in (lambda: writer.put((1, 1)), lambda: reader.read(1, 0)):
            with pytest.raises(CacheGoneError, match=r"has lost a lease of this process \(a backup restored\?\)"):
                use()
        assert manager.step() is None
        assert set(manager._verified) == {0}
        for lease in of_both:
            lease.abandon()


@pytest.fixture
def almost_full(keys: dict[str, Any], tmp_path: Path) -> Iterator[Any]:
    """A manager that has verified samples 0 to 2 of four, the writer, and a function that restores a backup of a moment
    in which only sample 0 was there, but the manager's lease as it is.
    """
    clock = [1000.0]
    with contextlib.closing(Cache(keys, clock=lambda: clock[0])) as cache:
        writer, manager = Writer(cache), GenerationManager(cache)
        fill(writer, 1)
        assert manager.step() is None
        folder, backup = tmp_path / "test.wirehead", tmp_path / "backup"
        shutil.copytree(folder, backup)
        fill(writer, 2)
        assert manager.step() is None
        assert set(manager._verified) == {0, 1, 2}

        yield cache, manager, writer, lambda: restore(folder, backup)
        writer.abandon()


def test_a_backup_restored_before_a_swap_is_counted_again(almost_full: Any) -> None:
    cache, manager, writer, restore = almost_full
    restore()
    fill(writer, 1)  # as long as it does not know
    assert sorted(cache.samples(1, 0)) == [0, 3]
    assert manager.step() is None
    assert set(manager._verified) == {0, 3}
    with contextlib.closing(Writer(cache)) as another:
        fill(another, 2)
        assert manager.step() is not None
    assert sorted(cache.samples(1, 0)) == [0, 1, 2, 3]


def test_a_sample_that_another_one_has_replaced_since_is_verified_again(almost_full: Any) -> None:
    cache, manager, _, restore = almost_full
    restore()
    with contextlib.closing(Writer(cache)) as another:
        fill(another, 3)
    damage(cache, 1)
    assert manager.step() is None
    assert manager.step() is None
    assert 1 not in manager._verified


def test_a_backup_restored_just_before_a_swap_is_noticed_by_the_lease(almost_full: Any) -> None:
    cache, manager, writer, restore = almost_full
    fill(writer, 1)
    holds = manager._holds

    def restored() -> bool:
        restore()
        return holds()

    manager._holds = restored
    assert manager.step() is None
    manager._holds = holds
    assert manager.step() is None
    assert set(manager._verified) == {0}
    assert cache.swaps() == []


def test_a_generation_that_a_restored_backup_has_made_the_current_one_again_is_not_dropped(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    folder, backup = tmp_path / "test.wirehead", tmp_path / "backup"
    with contextlib.closing(Cache(keys)) as cache:
        manager = GenerationManager(cache)
        for _ in range(2):
            with contextlib.closing(Writer(cache)) as writer:
                fill(writer)
            assert manager.step() is not None
            if not backup.exists():
                shutil.copytree(folder, backup)
        look = manager._watch.look

        def restored() -> Any:
            restore(folder, backup)
            manager._watch.look = look  # type: ignore[method-assign]
            return look()

        manager._watch.look = restored  # type: ignore[method-assign]
        with pytest.raises(CacheGoneError):
            manager.step()
        assert sorted(cache.samples(1, 0)) == [0, 1, 2, 3]


def test_a_lease_that_was_declared_dead_is_no_backup(keys: dict[str, Any]) -> None:
    cache = Cache(keys)
    lease = Lease(cache, "reader")
    lease.pin([1])
    lease.abandon()
    cache.store.insert(GRAVES, lease.key, {})
    cache.store.remove(LEASES, lease.key)
    lease._stop.clear()
    lease._write_again(checks=True)
    assert lease.has_lapsed()
    lease.abandon()


def test_a_lease_that_gets_a_new_key_while_its_thread_looks_for_it_is_no_backup(keys: dict[str, Any]) -> None:
    clock = [1000.0]
    cache = Cache(keys, clock=lambda: clock[0])
    lease, find = Lease(cache, "reader"), cache.store.find
    lease.pin([1])
    lease.abandon()

    def suspended(table: str, key: str) -> Any:
        cache.store.find = find  # type: ignore[method-assign]
        clock[0] += 3600
        cache.store.remove(LEASES, key)  # the grave has been there, too
        lease.pin([1])
        return find(table, key)

    cache.store.find = suspended  # type: ignore[method-assign]
    lease._check_is_kept()
    assert lease.is_alive()


def test_a_manager_that_was_replaced_for_a_while_verifies_again(location: dict[str, Any]) -> None:
    clock = [1000.0]
    with contextlib.closing(Cache({**location, "SWAP_CAP": 4, "TIMEOUT": 30}, clock=lambda: clock[0])) as cache:
        writer, manager = Writer(cache), GenerationManager(cache)
        fill(writer, 3)
        assert manager.step() is None
        assert set(manager._verified) == {0, 1, 2}
        cache.store.remove(LEASES, MANAGER)
        damage(cache, 1)
        fill(writer, 1)
        clock[0] += 11
        assert manager.step() is None
        assert set(manager._verified) == {0, 2, 3}
        writer.close()


def test_a_cache_that_is_cleaned_while_it_is_made_is_made_again(keys: dict[str, Any]) -> None:
    from headrace.wirehead._stores.local_store import LocalStore
    from headrace.wirehead.config import Config

    store = LocalStore(Config.load(keys))
    find, cleaned = store.find, []

    def find_none(table: str, key: str) -> Any:
        if table == SETTINGS and len(cleaned) < 2:
            cleaned.append(True)
            store.clean()
        return find(table, key)

    store.find = find_none  # type: ignore[method-assign]
    cache = Cache(keys, store)
    assert cache.incarnation is not None
