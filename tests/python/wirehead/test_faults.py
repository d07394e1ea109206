"""Real processes that are killed, a real server that is stopped, a disk that is full."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ferretdb_server import BINARY, SKIPPED, Server
from stored import table

from headrace import DataLoader
from headrace.wirehead import MongoTupleheadDataset, StoreError, WireheadGenerator, WireheadManager
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.keeper import Keeper
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import Store

FORK: Any = multiprocessing.get_context("fork")
CAP = 4


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


def sample(value: int) -> tuple[Any, Any]:
    return np.full((3, 50), value), np.full(2, value)


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
    keeper = Keeper(Cache(config, killing))
    while True:
        keeper.step()


@pytest.fixture
def config(place: dict[str, Any]) -> dict[str, Any]:
    return {**place, "SWAP_CAP": CAP, "TIMEOUT": 30, "CHUNKSIZE": 0.0005}


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
            writer, keeper = Writer(cache), Keeper(cache)
            generation = cache.current() + 1
            threads = threading.Thread(target=fill, args=(cache, writer))
            threads.start()
            while keeper.step() is None:
                time.sleep(0.002)
            keeper.close()
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


def whole(reader: Reader, generation: int, id: int) -> int:
    """The value of a sample in which all is of one piece."""
    arrays = reader.read(generation, id)
    value = int(arrays["label"][1][0])
    assert (arrays["data"][1] == value).all()
    assert (arrays["label"][1] == value).all()
    return value


@pytest.mark.parametrize("after", [False, True])
def test_a_generator_killed_on_its_way_into_the_next_generation(config: dict[str, Any], after: bool) -> None:
    # Nobody swaps before it is dead: of eight samples, the last four go into the generation after the full one.
    with contextlib.closing(Cache(config)) as cache:
        killed, operation, went_on = 0, 0, 0
        while killed == operation:
            operation += 1
            keeper = Keeper(cache)
            while (old := cache.store.generations()) and old[0] < cache.current():
                keeper.step()
            generation = cache.current() + 1
            was_killed, acknowledged = put_until_killed(cache, config, 8 + operation, after, 2 * CAP)
            killed += was_killed
            went_on += cache.fill(generation + 1) > 0
            writer = Writer(cache)
            thread = threading.Thread(target=fill, args=(cache, writer, generation + 1))
            thread.start()
            while not cache.is_swapped(generation + 1):
                keeper.step()
                assert len(cache.store.generations()) <= 3
                time.sleep(0.002)
            thread.join()
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                places = [(g, id) for g in (generation, generation + 1) for id in range(CAP)]
                values = [whole(reader, *place) for place in places]
            assert len(set(values) - {-1}) + values.count(-1) == 2 * CAP
            assert acknowledged <= set(values)
            assert cache.swaps()[-1].samples == (generation + 1) * CAP
            writer.close()
            keeper.close()
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
            keeper = Keeper(cache)
            while process.is_alive() and not (cache.is_swapped(generation) and operation > 6):
                time.sleep(0.005)
            process.kill()
            process.join()
            bury(cache, process.pid)
            while not cache.is_swapped(generation):
                keeper.step()
                time.sleep(0.005)
            while any(g < generation for g in cache.store.generations()):
                keeper.step()
                time.sleep(0.005)
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                assert [whole(reader, generation, id) for id in range(CAP)] == list(range(start, start + CAP))
            assert cache.swaps()[-1].samples == generation * CAP
            keeper.close()
        writer.close()


def test_all_generators_die_and_reading_goes_on(config: dict[str, Any]) -> None:
    with contextlib.closing(Cache(config)) as cache:
        writer, keeper = Writer(cache), Keeper(cache)
        for value in range(CAP):
            writer.put(sample(value))
        keeper.step()
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
            while keeper.step() is None:
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


def test_the_server_is_killed_in_the_middle_of_put_get_and_swap(own_server: Server) -> None:
    # Not while collections are made: FerretDB, killed then, cannot ever make one of that name.
    cap = 20
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": cap, "TIMEOUT": 60}
    swaps_to_disturb = [2, 5]
    stop = threading.Event()
    acknowledged: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], int] = {}
    errors: list[BaseException] = []

    def guarded(action: Any) -> threading.Thread:
        def run() -> None:
            try:
                with contextlib.closing(Cache(config)) as cache:
                    action(cache)
            except BaseException as error:
                errors.append(error)
                stop.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(cache: Cache) -> None:
        writer = Writer(cache, stop)
        value = 0
        while (place := writer.put(sample(value))) is not None:
            assert place not in acknowledged
            acknowledged[place] = value
            value += 1

    def restart() -> None:
        own_server.stop()
        time.sleep(0.2)
        own_server.start()

    def manage(cache: Cache) -> None:
        keeper, insert = Keeper(cache), cache.store.insert

        def disturbed(table: str, key: str, document: Any) -> bool:
            if table == "swaps" and int(key) in swaps_to_disturb:
                swaps_to_disturb.remove(int(key))
                while (int(key) + 1, 3) not in acknowledged and not stop.is_set():
                    time.sleep(0.001)  # the writer goes on into the next generation
                own_server.stop()
                timer = threading.Timer(0.2, own_server.start)
                timer.start()
                try:
                    return insert(table, key, document)
                finally:
                    timer.join()
            return insert(table, key, document)

        cache.store.insert = disturbed  # type: ignore[method-assign]
        while not stop.is_set():
            keeper.step()
            time.sleep(0.005)

    def get(cache: Cache) -> None:
        reader = Reader(cache, ("data", "label"))
        while not stop.is_set():
            generation = reader.pin_current(60)
            for id in range(cap):
                value = whole(reader, generation, id)
                assert read.setdefault((generation, id), value) == value
        reader.close()

    threads = [guarded(action) for action in (write, manage, get)]
    for generation in (4, 7, 8):
        while (generation, 3) not in acknowledged and not stop.is_set():
            time.sleep(0.001)
        restart()
    while (9, cap - 1) not in read and not stop.is_set():
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert not swaps_to_disturb
    complete = {place for place in acknowledged if place[0] <= max(g for g, _ in read)}
    assert all(read[place] == acknowledged[place] for place in complete if place in read)
    for generation in {g for g, _ in read}:
        assert [(generation, id) in acknowledged for id in range(cap)] == [True] * cap


COUNTING = """
    import itertools, os, time
    import numpy as np

    def counting():
        for number in itertools.count():
            if number in (50, 110):  # in the middle of generations 3 and 6
                open(f"reached-{number}", "w").close()
                while not os.path.exists(f"stopped-{number}"):
                    time.sleep(0.01)
            yield np.full((3, 50), number), np.full(2, number)
            print("acknowledged", number, flush=True)
"""


@contextlib.contextmanager
def command(folder: Path, *arguments: str) -> Iterator[Path]:
    """A command of headrace.wirehead that runs, with its output in a file; it has to end well when asked to."""
    path = folder / f"{arguments[0]}.log"
    with open(path, "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.wirehead", *arguments],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield path
        process.terminate()
        assert process.wait(60) == 0, path.read_text()
    finally:
        process.kill()
        process.wait()


def test_the_server_is_restarted_while_processes_generate_manage_and_read(own_server: Server, tmp_path: Path) -> None:
    cap = 20
    config = {"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": cap, "TIMEOUT": 60}
    (tmp_path / "functions.py").write_text(textwrap.dedent(COUNTING))
    (tmp_path / "config.json").write_text(json.dumps(config))
    stop = threading.Event()

    def restart() -> None:
        with contextlib.closing(Cache(config)) as cache:
            for number in (50, 110):
                # Until no collection is being made or dropped: FerretDB, killed then, cannot make one of that name.
                while not stop.is_set() and not (
                    (tmp_path / f"reached-{number}").exists()
                    and read
                    and min(cache.store.generations()) == cache.current() == number // cap
                ):
                    stop.wait(0.02)
                own_server.stop()
                (tmp_path / f"stopped-{number}").touch()  # this sample is put now
                stop.wait(0.3)
                own_server.start()

    read: list[int] = []
    options = ("--config", "config.json")
    with command(tmp_path, "manage", *options) as managed:
        while "Manager: manages" not in managed.read_text():  # it logs the swaps from then on
            time.sleep(0.02)
        thread = threading.Thread(target=restart)
        with command(tmp_path, "generate", *options, "functions:counting") as generated:
            thread.start()
            try:
                with MongoTupleheadDataset(config, to="numpy") as dataset:
                    sampler = dataset.sampler(seed=1, infinite=True)
                    loader = DataLoader(dataset, batch_size=cap // 4, num_workers=2, sampler=sampler)
                    numbers: list[int] = []
                    for values, labels in loader:
                        assert (values == labels[:, :1, None]).all()
                        assert (labels == labels[:, :1]).all()
                        numbers += labels[:, 0].tolist()
                        if len(numbers) == cap:  # an epoch: one generation
                            read.append(min(numbers) // cap + 1)
                            assert sorted(numbers) == list(range((read[-1] - 1) * cap, read[-1] * cap))
                            numbers.clear()
                        if read and read[-1] >= 8:
                            break
                    del loader
            finally:
                stop.set()
                thread.join()
    acknowledged = [int(number) for number in re.findall(r"acknowledged (\d+)", generated.read_text())]
    assert acknowledged == list(range(len(acknowledged)))  # it has never been started again
    with contextlib.closing(Cache(config)) as cache, contextlib.closing(Reader(cache, ("data", "label"))) as reader:
        for number in acknowledged[cap * (cache.current() - 1) :]:
            assert whole(reader, number // cap + 1, number % cap) == number
    assert read == sorted(read)
    swaps = re.findall(r"so far: (\d+) Documents deleted: 0 Generation: (\d+)", managed.read_text())
    assert [int(generation) for _, generation in swaps] == list(range(1, len(swaps) + 1))
    assert all(int(samples) == cap * int(generation) for samples, generation in swaps)


def test_the_disk_of_the_server_is_full(tmp_path: Path) -> None:
    if not BINARY.exists():
        pytest.skip(SKIPPED)
    server = Server(tmp_path, pages=1000)
    try:
        config = {"DBNAME": "test", "MONGOHOST": server.uri, "SWAP_CAP": 10, "TIMEOUT": 30, "COMPRESSION": "none"}
        with contextlib.closing(Cache(config)) as cache:
            writer = Writer(cache)
            stored = 0
            with pytest.raises(StoreError, match=r"the disk of the database at 127\.0\.0\.1:\d+ is full.*SWAP_CAP"):
                for value in range(10):
                    writer.put((np.full(100_000, value), value))
                    stored += 1
            assert 0 < stored < 10
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                assert [whole_of(reader, id) for id in range(stored)] == list(range(stored))
    finally:
        server.stop()


def whole_of(reader: Reader, id: int) -> int:
    arrays = reader.read(1, id)
    assert (arrays["data"][1] == arrays["label"][1]).all()
    return int(arrays["label"][1])


def test_a_swap_waits_for_room_on_the_disk_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not BINARY.exists():
        pytest.skip(SKIPPED)
    import pymongo

    from headrace.wirehead._stores.mongo_store import MongoStore

    server = Server(tmp_path, pages=1000)
    config = {"DBNAME": "test", "MONGOHOST": server.uri, "SWAP_CAP": CAP, "TIMEOUT": 30}
    client = pymongo.MongoClient[Any](server.uri)
    manager = WireheadManager(config)
    thread = threading.Thread(target=manager.run_manager, args=(1,))
    insert, refused = MongoStore.insert, []

    def full(store: MongoStore, table: str, key: str, document: Any) -> bool:
        if table == "swaps" and not refused:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(pymongo.errors.PyMongoError):
                    while True:
                        client["test"]["ballast"].insert_one({"data": os.urandom(size)})
        try:
            return insert(store, table, key, document)
        except StoreError:
            refused.append(table)
            raise

    try:
        with contextlib.closing(Cache(config)) as cache:
            with contextlib.closing(Writer(cache)) as writer:
                for value in range(CAP):
                    assert writer.put(sample(value)) == (1, value)
            caplog.set_level(logging.INFO, logger="headrace.wirehead")
            monkeypatch.setattr(MongoStore, "insert", full)
            thread.start()
            while not re.search(r"Manager: the disk of the database at 127\.0\.0\.1:\d+ is full", caplog.text):
                assert thread.is_alive()
                time.sleep(0.01)
            assert (refused[0], cache.current()) == ("swaps", 0)
            client["test"]["ballast"].drop()
            thread.join()
            assert re.search("SWAP!.* so far: 4 Documents deleted: 0 Generation: 1", caplog.text)
            with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
                assert [whole(reader, 1, id) for id in range(CAP)] == list(range(CAP))
    finally:
        manager.stop()
        if thread.is_alive():
            thread.join()
        client.close()
        server.stop()


def test_a_swap_waits_for_room_on_a_local_disk(tmp_path: Path) -> None:
    config = {"DBNAME": "test", "DIRECTORY": str(tmp_path / "cache"), "SWAP_CAP": CAP}
    receiver, sender = FORK.Pipe(False)

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with contextlib.closing(Cache(config)) as cache:
            writer, keeper = Writer(cache), Keeper(cache)
            for value in range(CAP - 1):
                writer.put(sample(value))
            keeper.step()
            writer.put(sample(CAP - 1))
            writer.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
            for _ in range(2):
                try:
                    keeper.step()
                except StoreError as error:
                    sender.send((str(error), cache.current(), os.listdir(table(cache, "swaps"))))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            sender.send(keeper.step())

    process = FORK.Process(target=child)
    process.start()
    sender.close()
    for _ in range(2):
        error, current, swaps = receiver.recv()
        assert "cannot hold more: File too large. Make room, or lower SWAP_CAP" in error
        assert (current, swaps) == (0, [])
    assert receiver.recv().samples == CAP
    process.join()
    with contextlib.closing(Cache(config)) as cache, contextlib.closing(Reader(cache, ("data", "label"))) as reader:
        assert [whole(reader, 1, id) for id in range(CAP)] == list(range(CAP))


def test_a_local_disk_is_full(tmp_path: Path) -> None:
    config = {"DBNAME": "test", "DIRECTORY": str(tmp_path / "cache"), "SWAP_CAP": 2}
    receiver, sender = FORK.Pipe(False)

    def child() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        with contextlib.closing(Cache(config)) as cache:
            writer = Writer(cache)
            try:
                writer.put((np.zeros(200_000, np.uint8), 0))
            except StoreError as error:
                sender.send(str(error))
            assert writer.put((np.zeros(10, np.uint8), 0)) is not None
            assert len(os.listdir(table(cache, "000000000001.chunks"))) == 1
            sender.send("stored")

    process = FORK.Process(target=child)
    process.start()
    sender.close()
    assert "cannot hold more: File too large. Make room, or lower SWAP_CAP" in receiver.recv()
    assert receiver.recv() == "stored"
    process.join()
