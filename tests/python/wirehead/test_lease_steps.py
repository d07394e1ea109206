"""What comes between two steps of a lease: an error, a standstill, another thread, a swap."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from damage import bury
from numbered import fill

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.watch import MANAGER, Watch
from headrace.wirehead._stores.store import GRAVES, LEASES
from headrace.wirehead.errors import CacheGoneError, StoreError

LEASE = 30.0

pytestmark = pytest.mark.usefixtures("steps")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 2, "LEASE": LEASE}


def test_a_holder_whose_clock_is_a_tenth_slower_does_not_outlive_its_lease(config: dict[str, Any]) -> None:
    time = [0.0]
    of_holder, of_watcher = (
        Cache(config, clock=lambda speed=speed: 1000 + speed * time[0]) for speed in (0.955, 1.045)
    )
    lease, watch = Lease(of_holder, "reader"), Watch(of_watcher)
    lease.pin([1])
    while lease.key in watch.look():
        time[0] += 0.1
    assert not lease.is_alive()


def test_the_lease_of_who_leads_is_not_buried(cache: Cache, clock: list[float]) -> None:
    watch = Watch(cache)
    cache.store.replace(LEASES, MANAGER, {"holder": "a", "beat": 1, "generations": []})
    for _ in range(3):
        watch.look()
        watch.clear()
        clock[0] += 2 * LEASE
    assert cache.store.scan(LEASES).keys() == {MANAGER}
    assert cache.store.scan(GRAVES) == {}


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_after_a_renewal_without_an_answer_the_store_may_have_either(
    cache: Cache, before: int, after: int, is_done: bool
) -> None:
    lease, replace = Lease(cache, "reader"), cache.store.replace

    def fail(table: str, key: str, document: Any) -> None:
        if is_done:
            replace(table, key, document)
        raise StoreError("no answer")

    assert not lease.pin([before])
    cache.store.replace = fail  # type: ignore[method-assign]
    if after < before:
        with pytest.raises(StoreError):
            lease.pin([after])
    else:
        assert lease.pin([after])
        lease.tick(is_new=True)
    cache.store.replace = replace  # type: ignore[method-assign]
    assert lease.pin([2])
    assert not lease.pin([1])
    found = cache.store.find(LEASES, lease.key)
    assert found is not None
    assert found["generations"] == [1]


def test_a_renewal_under_the_key_before_says_nothing_about_the_new_one(cache: Cache, clock: list[float]) -> None:
    lease, replace = Lease(cache, "reader"), cache.store.replace
    lease.pin([1])
    key = lease.key

    def suspended(table: str, name: str, document: Any) -> None:
        cache.store.replace = replace  # type: ignore[method-assign]
        clock[0] += 10 * LEASE
        bury(cache, [key])
        assert not lease.pin([1])
        replace(table, name, document)

    cache.store.replace = suspended  # type: ignore[method-assign]
    lease._write()
    assert lease.key != key
    assert lease.is_alive()


def test_a_lease_whose_new_key_is_not_stored_yet_is_no_backup(cache: Cache, clock: list[float]) -> None:
    lease, replace = Lease(cache, "reader"), cache.store.replace
    lease.pin([1])
    clock[0] += 10 * LEASE

    def checked(table: str, key: str, document: Any) -> None:
        lease._check_is_kept()  # as its thread does, which was suspended before
        replace(table, key, document)

    cache.store.replace = checked  # type: ignore[method-assign]
    assert not lease.pin([1])
    assert lease.is_alive()


def test_a_lease_that_lapses_while_its_thread_looks_for_it_is_no_backup(cache: Cache, clock: list[float]) -> None:
    lease, find = Lease(cache, "reader"), cache.store.find
    lease.pin([1])

    def suspended(table: str, key: str) -> Any:
        clock[0] += 10 * LEASE
        cache.store.remove(LEASES, key)  # the grave has been there, too
        return find(table, key)

    cache.store.find = suspended  # type: ignore[method-assign]
    lease._check_is_kept()
    assert lease.has_lapsed()


@pytest.mark.parametrize("other", ["pin", "thread"])
def test_renewals_of_two_threads_arrive_one_after_the_other(cache: Cache, other: str) -> None:
    """A store need not tell which is the later one."""
    lease, replace, calls = Lease(cache, "reader"), cache.store.replace, []
    lease.pin([2])
    begun, second = threading.Event(), threading.Event()

    def slow(table: str, key: str, document: Any) -> None:
        calls.append(document["generations"])
        if len(calls) == 1:
            begun.set()
            second.wait(0.1)
        replace(table, key, document)
        second.set()

    cache.store.replace = slow  # type: ignore[method-assign]
    steps = [lambda: lease._write_again(), lambda: lease.pin([1])]
    thread = threading.Thread(target=steps[other == "pin"])
    thread.start()
    assert begun.wait(10)
    steps[other != "pin"]()
    thread.join()
    found = cache.store.find(LEASES, lease.key)
    assert found is not None
    assert (len(calls), found["beat"], lease._acknowledged) == (2, 3, 3)
    assert found["generations"] == [1]


def swap(cache: Cache, manager: GenerationManager) -> None:
    fill(cache, 0)
    assert manager.step() is not None


@pytest.mark.parametrize("role", ["reader", "generator"])
def test_an_idle_process_lets_go_what_it_cannot_use_any_more(cache: Cache, clock: list[float], role: str) -> None:
    lease, manager = Lease(cache, role), GenerationManager(cache)
    kept = []

    def idle() -> None:
        lease.rest()
        for _ in range(6):
            clock[0] += LEASE / 4
            lease.tick()
        kept.append(lease.generations)

    lease.pin([1])
    idle()
    for _ in range(2):
        swap(cache, manager)
        idle()
    assert kept == ([[1], [1], []] if role == "reader" else [[1], [], []])
    found = cache.store.find(LEASES, lease.key)
    assert found is not None
    assert found["generations"] == []


def test_a_generation_that_is_written_to_stays_pinned(cache: Cache) -> None:
    lease, manager, current = Lease(cache, "generator"), GenerationManager(cache), cache.current
    lease.pin([1])
    swap(cache, manager)
    lease.tick(is_new=True)
    assert lease.generations == [1]
    lease.rest()

    def used_meanwhile() -> int:
        assert lease.use(1)
        return current()

    cache.current = used_meanwhile  # type: ignore[method-assign]
    lease.tick(is_new=True)
    assert lease.generations == [1]
    lease.rest()
    cache.current = current  # type: ignore[method-assign]
    lease.tick(is_new=True)
    assert not lease.use(1)


def test_a_renewal_that_is_late_notices_a_clean(location: dict[str, Any], clock: list[float]) -> None:
    keys = {**location, "SWAP_CAP": 2, "LEASE": LEASE, "TIMEOUT": 30}
    cache = Cache(keys, clock=lambda: clock[0])
    lease = Lease(cache, "reader")
    lease.pin([1])
    cleaner = Cache(keys)
    assert cleaner.store.clean() == []
    Cache(keys).close()
    clock[0] += 0.7 * LEASE
    lease.tick()
    with pytest.raises(CacheGoneError):
        lease.use(1)
    for opened in (cleaner, cache):
        opened.close()
