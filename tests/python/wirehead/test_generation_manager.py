"""What keeping costs a store, counted in requests."""

from __future__ import annotations

import collections
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import LEASES


def counted(cache: Cache) -> collections.Counter[str]:
    """Requests to the store from now on, by their names."""
    store: Any = cache.store
    counts: collections.Counter[str] = collections.Counter()

    def counting(name: str, method: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            counts[f"{name} {args[0]}" if name == "scan" else name] += 1
            return method(*args, **keywords)

        return call

    for name in ("find", "scan", "insert", "replace", "remove", "generations", "now"):
        setattr(store, name, counting(name, getattr(store, name)))
    return counts


@pytest.mark.parametrize("dead", [1, 40])
def test_many_dead_generators_are_swept_by_looking_once(
    tmp_path: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "_renew", lambda lease: None)  # lest its requests be counted, too
    clock = [1000.0]
    config = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1000, "LEASE": 30}
    cache = Cache(config, clock=lambda: clock[0])
    writer = Writer(cache)
    for value in range(3):
        assert writer.put((value, value)) is not None
    for number in range(dead):
        lease = {"role": "generator", "process": f"host:{number}", "generations": [1], "number": 0}
        cache.store.insert(LEASES, f"generator-{number:016x}", {**lease, "time": 0})
    manager = GenerationManager(cache)
    assert manager.step() is None
    for _ in range(2):
        clock[0] += 20
        assert writer._lease is not None
        writer._lease.tick(is_new=True)
        counts = counted(cache)
        assert manager.step() is None
    samples = [count for request, count in counts.items() if request.startswith("scan 000000000001.samples")]
    assert max(samples) <= 1  # to verify
    assert counts["scan leases"] <= 2  # once more when they are buried
    assert counts["find"] <= 8  # for none of the dead
    assert set(cache.store.scan(LEASES)) == {writer._lease.key, "manager"}
    writer.close()
    manager.close()


def test_a_writer_that_waits_for_long_asks_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "_renew", lambda lease: None)
    clock = [1000.0]
    config = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1, "LEASE": 3600}
    cache = Cache(config, clock=lambda: clock[0])
    stop = threading.Event()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock[0] += seconds
        if sum(waits) > 600:
            stop.set()
        return stop.is_set()

    writer = Writer(cache, stop)
    monkeypatch.setattr(stop, "wait", wait)
    for value in range(2):  # the second goes into the generation after the full one
        assert writer.put((value, value)) is not None
    counts = counted(cache)
    assert writer.put((2, 2)) is None  # nobody swaps
    assert sum(counts.values()) <= 600  # one a second
    assert max(waits) <= 4
    writer.close()
