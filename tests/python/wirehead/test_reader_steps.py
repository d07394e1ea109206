"""What comes between two steps of a reader: a swap, a drop, a backup, another thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from damage import bury
from numbered import fill

import headrace.wirehead._protocol.cache as caches
from headrace.wirehead._protocol.cache import Cache, entry_key
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._stores.store import SWAPS, VERIFIED
from headrace.wirehead.errors import CacheGoneError

LEASE = 30.0

pytestmark = pytest.mark.usefixtures("steps")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 2, "LEASE": LEASE}


def swap(cache: Cache, manager: GenerationManager) -> None:
    fill(cache, 0)
    assert manager.step() is not None


def test_a_generation_that_is_dropped_before_it_is_pinned_is_not_read(cache: Cache) -> None:
    manager, reader, wait = GenerationManager(cache), Reader(cache, ("label",)), cache.wait_for_data
    swap(cache, manager)

    def suspended(timeout: float) -> int:
        cache.wait_for_data = wait  # type: ignore[method-assign]
        found = wait(timeout)
        swap(cache, manager)
        assert manager._retire() == []
        return found

    cache.wait_for_data = suspended  # type: ignore[method-assign]
    assert reader.pin_current(1) == 2
    assert reader.is_certain(2)
    assert reader.read(2, 0)


def test_a_generation_that_another_process_tells_of_is_certain_unless_it_is_dropped(cache: Cache) -> None:
    manager, reader = GenerationManager(cache), Reader(cache, ("label",))
    swap(cache, manager)
    reader.pin(1)
    assert reader.is_certain(1)
    late = Reader(cache, ("label",))
    pin = late._lease.pin

    def suspended(generations: Any) -> bool:
        reader.close()
        swap(cache, manager)
        assert manager._retire() == []
        return pin(generations)

    late._lease.pin = suspended  # type: ignore[method-assign]
    late.pin(1)
    assert late.is_pinned(1)
    assert not late.is_certain(1)


def test_a_reader_that_stood_still_pins_the_same_generation_again(cache: Cache, clock: list[float]) -> None:
    reader = Reader(cache, ("label",))
    swap(cache, GenerationManager(cache))
    assert reader.pin_current(1) == 1
    key = reader._lease.key
    clock[0] += 10 * LEASE
    bury(cache, [key])
    assert not reader.is_pinned(1)
    assert reader.pin_current(1) == 1
    assert reader._lease.key != key
    assert reader.is_certain(1)


def test_a_description_that_a_backup_lacks_is_noticed(cache: Cache) -> None:
    manager, reader = GenerationManager(cache), Reader(cache, ("label",))
    for _ in range(2):
        swap(cache, manager)
    assert reader.pin_current(1) == 2
    cache.store.remove(SWAPS, entry_key(2, 0))
    cache.store.drop(2)
    with pytest.raises(CacheGoneError, match="went back from generation 2 to 1"):
        reader.read(2, 0)


def test_threads_read_while_another_one_forgets(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(cache, ("label",))
    swap(cache, GenerationManager(cache))
    assert reader.pin_current(1) == 1
    assert reader.read(1, 0)

    class Pinned(list[int]):
        def __contains__(self, generation: object) -> bool:
            of = 100 + len(reader._versions)
            reader._versions[of], reader._descriptions[of] = {}, {}  # as of another thread
            return super().__contains__(generation)

    monkeypatch.setattr(Lease, "generations", Pinned([1]))
    reader._forget()
    assert reader._versions.keys() & reader._descriptions.keys() == {1}


def test_swaps_and_removals_during_a_look_for_the_current_generation_are_no_backup(cache: Cache) -> None:
    manager, scan = GenerationManager(cache), cache.store.scan
    for _ in range(2):
        swap(cache, manager)
    assert cache.current() == 2

    def suspended(table: str) -> dict[str, Any]:
        """Each entry is gone when it is looked at; there are others by then."""
        cache.store.scan = scan  # type: ignore[method-assign]
        return {}

    cache.store.scan = suspended  # type: ignore[method-assign]
    assert cache.current() == 2


def test_the_note_of_a_whole_block_counts_until_one_of_its_samples_is_annulled(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches, "block_size", lambda swap_cap: 1)
    two = Cache(cache.config)
    void: list[dict[str, Any]] = [{"void": [[0, 0]]}, {"void": [[1, 0]]}]
    for block, entries in ((0, 1), (1, 0)):
        two.store.insert(VERIFIED, entry_key(1, block), {"entries": entries})
    assert [two.verified_blocks(1, void[:count]) for count in range(3)] == [{0, 1}, {0, 1}, {0}]
