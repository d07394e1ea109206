"""A disk that is full: the server's, and this machine's."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import re
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunked_samples import CAP, sample, whole
from damage import table
from ferretdb_server import BINARY, SKIPPED, Server

from headrace.wirehead import StoreError, WireheadManager
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer

FORK: Any = multiprocessing.get_context("fork")


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
            writer, manager = Writer(cache), GenerationManager(cache)
            for value in range(CAP - 1):
                writer.put(sample(value))
            manager.step()
            writer.put(sample(CAP - 1))
            writer.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, (20, resource.RLIM_INFINITY))
            for _ in range(2):
                try:
                    manager.step()
                except StoreError as error:
                    sender.send((str(error), cache.current(), cache.store.scan("swaps")))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            sender.send(manager.step())

    process = FORK.Process(target=child)
    process.start()
    sender.close()
    for _ in range(2):
        error, current, swaps = receiver.recv()
        assert "cannot hold more: File too large. Make room, or lower SWAP_CAP" in error
        assert (current, swaps) == (0, {})
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
