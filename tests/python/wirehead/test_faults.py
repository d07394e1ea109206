"""Real processes that are killed, a real server that is stopped, a disk that is full."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from chunked_samples import CAP, sample, whole

from headrace.wirehead import MongoTupleheadDataset, WireheadGenerator
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import Store

FORK: Any = multiprocessing.get_context("fork")


class KillingStore:
    """Kills its process at one operation of a store: before it, or after it."""

    def __init__(self, store: Store, operation: int, after: bool) -> None:
        self._store, self._left, self._after = store, itertools.count(operation - 1, -1), after
        self._is_dying = False
        self.config, self.parallel = store.config, store.parallel

    def die(self) -> None:
        """Waits for the end, if another thread is at that operation."""
        while self._is_dying:
            time.sleep(0.01)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name in ("close", "now", "find", "scan", "generations"):
            return method

        def call(*arguments: Any) -> Any:
            is_last = next(self._left) == 0  # others' threads count on meanwhile
            if is_last:
                self._is_dying = True
            if is_last and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(*arguments)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def write_until_killed(config: dict[str, Any], operation: int, after: bool, acknowledged: Any, count: int = 3) -> None:
    from headrace.wirehead import Config

    killing: Any = KillingStore(open_store(Config.load(config)), operation, after)
    writer = Writer(Cache(config, killing))
    for value in range(count):
        assert writer.put(sample(operation * 100 + value)) is not None
        acknowledged.send(operation * 100 + value)
    killing.die()


def manage_until_killed(config: dict[str, Any], operation: int, after: bool) -> None:
    from headrace.wirehead import Config

    killing: Any = KillingStore(open_store(Config.load(config)), operation, after)
    manager = GenerationManager(Cache(config, killing))
    while True:
        manager.step()


@pytest.fixture
def config(location: dict[str, Any]) -> dict[str, Any]:
    return {**location, "SWAP_CAP": CAP, "TIMEOUT": 30, "CHUNKSIZE": 0.0005}


def bury(cache: Cache, pid: int) -> None:
    """Ends the leases of a dead process, as time would; short leases would end those of the slow, too."""
    for key, lease in cache.store.scan("leases").items():
        if lease["process"].endswith(f":{pid}"):
            cache.store.remove("leases", key)


def put_until_killed(
    cache: Cache, config: dict[str, Any], operation: int, after: bool, count: int = 3
) -> tuple[bool, set[int]]:
    """Lets a process write, and buries it. Whether it was killed before its end, and what it was told is stored."""
    receiver, sender = FORK.Pipe(False)
    process = FORK.Process(target=write_until_killed, args=(config, operation, after, sender, count))
    process.start()
    sender.close()
    acknowledged = set()
    with contextlib.suppress(EOFError):
        while True:
            acknowledged.add(receiver.recv())
    receiver.close()
    process.join()
    bury(cache, process.pid)
    return process.exitcode == -signal.SIGKILL, acknowledged


@pytest.mark.parametrize("after", [False, True])
def test_a_generator_killed_at_any_step_of_put(config: dict[str, Any], after: bool) -> None:
    with contextlib.closing(Cache(config)) as cache:
        killed, operation = 0, 0
        while killed == operation:
            operation += 1
            was_killed, acknowledged = put_until_killed(cache, config, operation, after)
            killed += was_killed
            writer, manager = Writer(cache), GenerationManager(cache)
            generation = cache.current() + 1
            threads = threading.Thread(target=fill, args=(cache, writer))
            threads.start()
            while manager.step() is None:
                time.sleep(0.002)
            manager.close()
            threads.join()
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                values = [whole(reader, generation, id) for id in range(CAP)]
            assert len(set(values) - {-1}) + values.count(-1) == CAP
            assert acknowledged <= set(values)
            writer.close()
        assert operation > 8  # settings, lease, chunks, description, ...


def fill(cache: Cache, writer: Writer, last: int | None = None) -> None:
    """Puts samples until the generation that is being filled, or the last one, is full."""
    generation = cache.current() + 1 if last is None else last
    while not cache.is_swapped(generation) and cache.fill(generation) < CAP:
        assert writer.put(sample(-1)) is not None


@pytest.mark.parametrize("after", [False, True])
def test_a_generator_killed_on_its_way_into_the_next_generation(config: dict[str, Any], after: bool) -> None:
    # Nobody swaps before it is dead: of eight samples, the last four go into the generation after the full one.
    with contextlib.closing(Cache(config)) as cache:
        killed, operation, went_on = 0, 0, 0
        while killed == operation:
            operation += 1
            manager = GenerationManager(cache)
            while (old := cache.store.generations()) and old[0] < cache.current():
                manager.step()
            generation = cache.current() + 1
            was_killed, acknowledged = put_until_killed(cache, config, 8 + operation, after, 2 * CAP)
            killed += was_killed
            went_on += cache.fill(generation + 1) > 0
            writer = Writer(cache)
            thread = threading.Thread(target=fill, args=(cache, writer, generation + 1))
            thread.start()
            while not cache.is_swapped(generation + 1):
                manager.step()
                assert len(cache.store.generations()) <= 3
                time.sleep(0.002)
            thread.join()
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                samples = [(g, id) for g in (generation, generation + 1) for id in range(CAP)]
                values = [whole(reader, g, id) for g, id in samples]
            assert len(set(values) - {-1}) + values.count(-1) == 2 * CAP
            assert acknowledged <= set(values)
            assert cache.swaps()[-1].samples == (generation + 1) * CAP
            writer.close()
            manager.close()
        assert operation > 8
        assert went_on >= 4


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("after", [False, True])
def test_a_manager_killed_at_any_step_of_a_swap(config: dict[str, Any], after: bool, ahead: int) -> None:
    with contextlib.closing(Cache(config)) as cache:
        writer = Writer(cache)
        start = 0
        for operation in range(1, 9):
            if cache.store.scan("swaps").keys() or operation == 1:
                start += 10
            generation = cache.current() + 1
            for id in range(CAP):
                if cache.sample(generation, id) is None:
                    assert writer.put(sample(start + id)) == (generation, id)
            for id in range(ahead):
                assert writer.put(sample(start + 10 + id)) == (generation + 1, id)
            writer._lease.rest()  # type: ignore[union-attr]
            process = FORK.Process(target=manage_until_killed, args=(config, operation, after))
            process.start()
            manager = GenerationManager(cache)
            while process.is_alive() and not (cache.is_swapped(generation) and operation > 6):
                time.sleep(0.005)
            process.kill()
            process.join()
            bury(cache, process.pid)
            while not cache.is_swapped(generation):
                manager.step()
                time.sleep(0.005)
            while any(g < generation for g in cache.store.generations()):
                manager.step()
                time.sleep(0.005)
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                assert [whole(reader, generation, id) for id in range(CAP)] == list(range(start, start + CAP))
            assert cache.swaps()[-1].samples == generation * CAP
            manager.close()
        writer.close()


def test_all_generators_die_and_reading_goes_on(config: dict[str, Any]) -> None:
    with contextlib.closing(Cache(config)) as cache:
        writer, manager = Writer(cache), GenerationManager(cache)
        for value in range(CAP):
            writer.put(sample(value))
        manager.step()
        receiver, sender = FORK.Pipe(False)
        process = FORK.Process(target=write_until_killed, args=(config, 6, False, sender))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        bury(cache, process.pid)
        with MongoTupleheadDataset(config, to="numpy") as dataset:
            for _ in range(3):
                assert [int(dataset[id][1][0]) for id in range(CAP)] == list(range(CAP))
            again = Writer(cache)
            thread = threading.Thread(target=fill, args=(cache, again))
            thread.start()
            while manager.step() is None:
                time.sleep(0.005)
            thread.join()
            assert dataset[0] is not None
            assert dataset.generation == 2
        again.close()
        sender.close()
        receiver.close()


def test_on_one_machine_the_dead_hold_nobody_up(tmp_path: Path) -> None:
    config = {"DBNAME": "test", "DIRECTORY": str(tmp_path / "cache"), "SWAP_CAP": CAP, "LEASE": 3600}
    with contextlib.closing(Cache(config)) as cache:
        receiver, sender = FORK.Pipe(False)
        # A generator in the middle of a put, and a manager that has just begun.
        processes = [
            FORK.Process(target=write_until_killed, args=(config, 4, False, sender)),
            FORK.Process(target=manage_until_killed, args=(config, 2, True)),
        ]
        for process in processes:
            process.start()
            process.join()
            assert process.exitcode == -signal.SIGKILL
        roles = {lease["role"] for lease in cache.store.scan("leases").values()}
        assert roles == {"generator", "manager"}
        assert cache.leases() == {}
        assert WireheadGenerator((sample(value) for value in range(4 * CAP)), config).run() == 4 * CAP
        assert cache.current() >= 4
        sender.close()
        receiver.close()
