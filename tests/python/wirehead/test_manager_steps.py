"""What comes between two steps of a manager: another manager, a reader, a backup, a clean."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import remove_chunk

import headrace.wirehead._protocol.cache as caches
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache, entry_key, is_entry_key
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.watch import MANAGER
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import DROPS, LEASES, SWAPS, VERIFIED, key
from headrace.wirehead.errors import CacheGoneError

CAP, LEASE = 4, 30.0

pytestmark = pytest.mark.usefixtures("steps")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": CAP, "LEASE": LEASE}


@pytest.fixture
def two_blocks(config: dict[str, Any], clock: list[float], monkeypatch: pytest.MonkeyPatch) -> Cache:
    monkeypatch.setattr(caches, "block_size", lambda swap_cap: 2)
    return Cache(config, clock=lambda: clock[0])


def put(cache: Cache, count: int) -> None:
    writer = Writer(cache)
    for value in range(count):
        assert writer.put((value, value)) is not None
    writer.close()


def damage(cache: Cache, generation: int, id: int) -> None:
    description = cache.sample(generation, id)
    assert description is not None
    assert remove_chunk(cache, generation, chunk_names(description, [0])[0])


class Backup:
    """Of a cache's folder, which stays the one that it was."""

    def __init__(self, cache: Cache, tmp_path: Path) -> None:
        self._folder, self._copy = cache.config.local_directory, tmp_path / "backup"
        shutil.copytree(self._folder, self._copy)

    def restore(self) -> None:
        for table in self._folder.iterdir():
            if table.is_dir():
                shutil.rmtree(table)
        shutil.copytree(self._copy, self._folder, dirs_exist_ok=True)


def test_who_closes_ends_no_others_turn(cache: Cache) -> None:
    first, second = GenerationManager(cache), GenerationManager(cache)
    first.step()
    second.close()
    assert cache.store.find(LEASES, MANAGER) is not None
    first.close()
    assert cache.store.find(LEASES, MANAGER) is None


def test_a_backup_in_which_another_one_led_is_noticed_by_the_lease(cache: Cache) -> None:
    manager = GenerationManager(cache)
    put(cache, CAP)
    find = cache.store.find

    def restored(table: str, name: str) -> Any:
        found = find(table, name)
        if table == LEASES and manager._turn > 1:  # the last look: it has renewed its lease for the second one
            return {**(found or {}), "holder": "another", "beat": 1000}
        return found

    cache.store.find = restored  # type: ignore[method-assign]
    manager.step()
    assert cache.swaps() == []


@pytest.mark.parametrize("looks", [1, 2])
def test_a_backup_restored_before_damage_is_annulled_in_which_there_is_none(
    cache: Cache, tmp_path: Path, looks: int
) -> None:
    manager, missing = GenerationManager(cache), cache.store.missing_chunks
    put(cache, 1)
    assert manager.step() is None
    put(cache, 2)
    backup = Backup(cache, tmp_path)
    damage(cache, 1, 1)
    calls = 0

    def restored(generation: int, lengths: Any) -> list[str]:
        nonlocal calls
        calls += 1
        found = missing(generation, lengths)
        if calls == looks:
            backup.restore()
        return found

    cache.store.missing_chunks = restored  # type: ignore[method-assign]
    for _ in range(3):
        assert manager.step() is None
    assert calls > looks
    assert cache.entries(1) == []
    assert manager._verified.keys() == {0, 1, 2}


def test_what_is_damaged_is_not_verified(cache: Cache) -> None:
    manager = GenerationManager(cache)
    put(cache, 3)
    damage(cache, 1, 1)
    manager.step()
    assert manager._verified.keys() == {0, 2}


@pytest.mark.parametrize("others", [0, 2])
def test_with_other_entries_than_it_has_read_a_manager_decides_nothing(two_blocks: Cache, others: int) -> None:
    cache, manager = two_blocks, GenerationManager(two_blocks)
    put(cache, CAP)
    damage(cache, 1, 3)
    manager.step()
    assert len(cache.entries(1)) == manager._entries == 1
    cache.store.remove(VERIFIED, entry_key(1, 0))
    if others == 0:  # of a backup with the same lease
        cache.store.remove(SWAPS, entry_key(1, 0))
    else:
        cache.store.insert(SWAPS, entry_key(1, 1), {"void": [[1, 0]]})
    assert not manager._is_kept([0])
    damage(cache, 1, 2)
    assert manager._found_again({2: "it is damaged"}) == {}
    assert not manager._annul({2: "it is damaged"})
    assert len(cache.store.scan(SWAPS)) == others


def test_a_manager_that_annuls_too_late_annuls_nothing(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    manager, insert = GenerationManager(cache), cache.store.insert
    put(cache, 3)
    damage(cache, 1, 1)

    def late(table: str, name: str, document: Any) -> bool:
        if table == SWAPS:
            assert insert(table, name, {"void": [[2, 0]]})
        return insert(table, name, document)

    cache.store.insert = late  # type: ignore[method-assign]
    manager.step()
    assert manager._entries == 0
    assert "is discarded" not in caplog.text


def test_a_note_says_how_many_entries_there_were(two_blocks: Cache) -> None:
    cache, manager = two_blocks, GenerationManager(two_blocks)
    put(cache, CAP)
    damage(cache, 1, 1)
    for _ in range(2):
        manager.step()
    assert cache.store.scan(VERIFIED) == {entry_key(1, 1): {"entries": 1}}
    put(cache, 1)
    assert manager.step() is not None
    assert cache.store.scan(VERIFIED) == {entry_key(1, block): {"entries": 1} for block in (0, 1)}


def test_entries_that_come_after_the_second_look_prevent_the_swap(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = GenerationManager(cache)
    put(cache, CAP)
    holds = manager._holds

    def annulled() -> bool:
        found = holds()
        cache.store.insert(SWAPS, entry_key(1, 0), {"void": [[1, 0]]})
        return found

    monkeypatch.setattr(manager, "_holds", annulled)
    assert manager.step() is None
    assert cache.current() == 0
    assert len(cache.entries(1)) == 1


def test_a_second_look_at_many_blocks_keeps_the_turn(
    config: dict[str, Any], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "block_size", lambda swap_cap: 1)
    cache, other = (Cache(config, clock=lambda: clock[0]) for _ in range(2))
    other.has_ended = lambda lease: False  # type: ignore[method-assign]
    manager, waiting, scan = GenerationManager(cache), GenerationManager(other), cache.store.scan
    put(cache, CAP)

    def slow(table: str) -> dict[str, Any]:
        found = scan(table)
        if table == VERIFIED:
            return {}  # the notes are lost
        clock[0] += LEASE / 3
        assert not waiting._leads()
        return found

    cache.store.scan = slow  # type: ignore[method-assign]
    assert manager.step() is not None


def test_a_reader_that_pins_before_the_note_of_a_drop_keeps_its_generation(cache: Cache) -> None:
    manager, note = GenerationManager(cache), cache.note_drop
    for _ in range(2):
        put(cache, CAP)
        assert manager.step() is not None
    reader = Reader(cache, ("data",))

    def pinned(generation: int) -> None:
        reader.pin(1)
        assert reader.is_certain(1)
        note(generation)

    cache.note_drop = pinned  # type: ignore[method-assign]
    assert manager._retire() == [1]
    assert reader.read(1, 0)
    reader.close()


def test_nothing_is_dropped_beyond_the_note(cache: Cache) -> None:
    manager, lease, note = GenerationManager(cache), Lease(cache, "reader"), cache.note_drop
    for _ in range(3):
        put(cache, CAP)
        manager._retire()
        assert manager.step() is not None
    assert manager._retire() == []
    for generation in (1, 2):  # of writers that were stopped
        cache.store.write_chunks(generation, {"00-generator-0-0": b"late"})
    lease.pin([2])

    def released(generation: int) -> None:
        note(generation)
        lease.close()

    cache.note_drop = released  # type: ignore[method-assign]
    cache.store.remove(DROPS, key(2))
    assert manager._retire() == [2]
    assert cache.store.generations() == [2, 3]
    assert manager._retire() == []


def test_a_lease_keeps_all_generations_from_its_first_one_on(cache: Cache) -> None:
    manager = GenerationManager(cache)
    for _ in range(3):
        put(cache, CAP)
        manager._retire()
        assert manager.step() is not None
    manager._retire()
    for generation in (1, 2):  # of writers that were stopped
        cache.store.write_chunks(generation, {"00-generator-0-0": b"late"})
    for first, unused in ((1, []), (2, [1]), (3, [1, 2])):
        lease = Lease(cache, "reader")
        lease.pin([first])
        assert manager._old() == ([1, 2], unused)
        lease.close()


def test_a_backup_restored_just_before_a_drop_is_noticed_by_the_lease(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, insert = GenerationManager(cache), cache.store.insert
    look = manager._old
    put(cache, CAP)
    assert manager.step() is not None
    put(cache, CAP)
    backups = []

    def backed_up(table: str, name: str, document: Any) -> bool:
        if table == SWAPS:  # after the last renewal, before the swap
            backups.append(Backup(cache, tmp_path))
        return insert(table, name, document)

    cache.store.insert = backed_up  # type: ignore[method-assign]
    assert manager.step() is not None
    looks = []

    def restored() -> Any:
        looks.append(look())
        if len(looks) == 2:
            backups[0].restore()
        return looks[-1]

    monkeypatch.setattr(manager, "_old", restored)
    assert manager._retire() == [1]
    assert looks == [([1], [1])] * 2
    assert Cache(cache.config).current() == 1
    assert sorted(cache.samples(1, 0, {})) == [0, 1, 2, 3]


def test_a_backup_without_the_note_of_a_drop_is_noticed_by_it(cache: Cache, tmp_path: Path) -> None:
    manager, note = GenerationManager(cache), cache.note_drop
    for _ in range(2):
        put(cache, CAP)
        assert manager.step() is not None
    backup = Backup(cache, tmp_path)

    def restored(generation: int) -> None:
        note(generation)
        backup.restore()
        cache.note_drop = note  # type: ignore[method-assign]

    cache.note_drop = restored  # type: ignore[method-assign]
    assert manager._retire() == [1]
    assert cache.store.generations() == [1, 2]
    assert manager._retire() == []
    assert cache.dropped() == 1


def test_a_backup_with_generations_that_were_dropped_since_prevents_the_swap(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, renew = GenerationManager(cache), cache.store.replace
    for _ in range(2):
        put(cache, CAP)
        assert manager.step() is not None
    put(cache, CAP)
    backup = Backup(cache, tmp_path)
    retire = manager._retire

    def restored(table: str, name: str, document: Any) -> None:
        backup.restore()  # just before the renewal
        monkeypatch.undo()
        renew(table, name, document)

    def retired() -> list[int]:
        left = retire()
        assert left == []
        monkeypatch.setattr(cache.store, "replace", restored)
        return left

    manager._retire()
    monkeypatch.setattr(manager, "_retire", retired)
    assert manager.step() is None
    assert cache.store.generations() == [1, 2, 3]
    assert manager.step() is not None
    assert cache.store.generations() == [2, 3]


def test_the_next_cache_is_not_removed_by_a_manager_of_the_one_before(cache: Cache, config: dict[str, Any]) -> None:
    manager, incarnations, made = GenerationManager(cache), cache.store.incarnations, []

    def listed() -> list[str]:
        if not made:
            assert cache.store.clean() == []
            made.append(Cache(config))
            put(made[0], 2)
        return [*incarnations(), "0" * 16]  # and of one that has not heard of it

    cache.store.incarnations = listed  # type: ignore[method-assign]
    with pytest.raises(CacheGoneError):
        manager.step()
    assert sorted(made[0].samples(1, 0)) == [0, 1]


def test_what_stays_of_swaps_that_are_long_past(two_blocks: Cache, clock: list[float]) -> None:
    cache, manager = two_blocks, GenerationManager(two_blocks)
    for _ in range(6):
        put(cache, CAP)
        clock[0] += LEASE / 2
        while manager.step() is None:
            clock[0] += 1
    assert [swap.generation for swap in cache.swaps()] == [3, 4, 5, 6]
    assert {int(name[:12]) for name in cache.store.scan(VERIFIED)} == {6}
    assert sorted(int(name) for name in cache.store.scan(DROPS) if is_entry_key(name)) == [4]
