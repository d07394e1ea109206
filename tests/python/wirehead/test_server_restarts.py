"""A real server that is stopped and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chunked_samples import sample, whole
from ferretdb_server import Server

from headrace import DataLoader
from headrace.wirehead import Config, MongoTupleheadDataset, StoreUnreachableError
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store


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
        value = 0
        with contextlib.closing(Writer(cache, stop)) as writer:
            while (stored := writer.put(sample(value))) is not None:
                assert stored not in acknowledged
                acknowledged[stored] = value
                value += 1

    def restart() -> None:
        own_server.stop()
        time.sleep(0.2)
        own_server.start()

    def manage(cache: Cache) -> None:
        manager, insert = GenerationManager(cache), cache.store.insert

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
            manager.step()
            time.sleep(0.005)

    def get(cache: Cache) -> None:
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            while not stop.is_set():
                generation = reader.pin_current(60)
                for id in range(cap):
                    value = whole(reader, generation, id)
                    assert read.setdefault((generation, id), value) == value

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
    complete = {sample for sample in acknowledged if sample[0] <= max(g for g, _ in read)}
    assert all(read[sample] == acknowledged[sample] for sample in complete if sample in read)
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
            if number > 0:  # the sample before was stored before this one was taken
                print("acknowledged", number - 1, flush=True)
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
        assert process.wait(100) == 0, path.read_text()
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
                (tmp_path / f"stopped-{number}").touch()  # the next sample is made now
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


def test_a_store_says_once_an_outage_that_it_waits(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    config = Config.load({"DBNAME": "test", "MONGOHOST": own_server.uri, "SWAP_CAP": 5, "TIMEOUT": 60})

    def said() -> list[str]:
        return [message for message in caplog.messages if "does not answer" in message]

    def start(outages: int) -> None:
        deadline = time.monotonic() + 40
        while len(said()) < outages and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(3)  # in which it could say so again
        own_server.start()

    with contextlib.closing(open_store(config)) as store:
        for outages in (1, 2):
            own_server.stop()
            starting = threading.Thread(target=start, args=(outages,))
            starting.start()
            store.scan("leases")
            store.scan("leases")
            starting.join()
            assert len(said()) == outages
    assert re.fullmatch(
        r"the database at 127\.0\.0\.1:\d+ does not answer \(Connection refused\); trying for 60 s \(TIMEOUT\)",
        said()[0],
    )


def test_a_store_that_has_never_found_its_server_says_so_without_the_password(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIREHEAD_PASSWORD", "swordfish")
    monkeypatch.setattr("headrace.wirehead._stores.mongo_store._FIRST_WORD", 0.5)  # long before the end
    config = Config.load({"DBNAME": "test", "MONGOHOST": "mongodb://me@127.0.0.1:1", "SWAP_CAP": 5, "TIMEOUT": 4})
    with pytest.raises(StoreUnreachableError):
        open_store(config)
    assert caplog.messages == [
        "the database at 127.0.0.1:1 does not answer (Connection refused); trying for 4 s (TIMEOUT)"
    ]
