"""A replica set whose primary is killed, steps down, is cut off or stands still.

The set is the stub of replica_set.py; or, with HEADRACE_TEST_REPLICA_SET, a real one: that names a command, such as
mongodb_set.sh, which prints its URI when called with "uri", does to its primary what its argument says, and with "heal"
makes it whole again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from crew import Crew
from replica_set import ReplicaSet

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.mongo_store import MongoStore
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead.config import Config

CAP = 12
COMMAND = shlex.split(os.environ.get("HEADRACE_TEST_REPLICA_SET", ""))


class RealSet:
    """What the command of HEADRACE_TEST_REPLICA_SET does."""

    def __init__(self) -> None:
        self.uri = self._call("uri").strip()

    def _call(self, what: str) -> str:
        return subprocess.run([*COMMAND, what], check=True, stdout=subprocess.PIPE, text=True, timeout=240).stdout

    def disturb(self, what: str) -> None:
        self._call(what)

    def heal(self) -> None:
        self._call("heal")

    def close(self) -> None:
        self.heal()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client looks for a primary again soon."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.05)


@pytest.fixture
def stub() -> Iterator[ReplicaSet]:
    started = ReplicaSet()
    yield started
    started.close()


@pytest.fixture
def replica_set() -> Iterator[Any]:
    started: Any = RealSet() if COMMAND else ReplicaSet()
    yield started
    started.close()


def keys_for(uri: str) -> dict[str, Any]:
    name = f"headrace_test_{uuid.uuid4().hex[:12]}"
    timeout, lease = (60, 30) if COMMAND else (10, 4)
    return {"MONGOHOST": uri, "DBNAME": name, "SWAP_CAP": CAP, "TIMEOUT": timeout, "LEASE": lease, "CHUNKSIZE": 0.0005}


def opened(uri: str) -> Any:
    store: Any = open_store(Config.load(keys_for(uri)))
    store.config = Config.load({**keys_for(uri), "DBNAME": store.config.dbname})
    store.use("0" * 16)
    return store


@pytest.mark.parametrize("what", ["kill", "step_down", "partition", "freeze"])
def test_all_go_on_with_the_next_primary_and_nothing_is_lost_torn_or_doubled(replica_set: Any, what: str) -> None:
    keys = keys_for(replica_set.uri)
    with contextlib.closing(Cache(keys)) as cache:
        crew = Crew(keys, pause=0.01)
        for _ in range(1 if what == "freeze" else 2):  # which takes a client some seconds to notice
            replica_set.disturb(what)
            wait_for_swaps(cache, 2, crew.stop)
            replica_set.heal()
            wait_for_swaps(cache, 2, crew.stop)
        crew.end()
        crew.check(cache)


def wait_for_swaps(cache: Cache, count: int, stop: threading.Event) -> None:
    last, deadline = cache.current() + count, time.monotonic() + 10 * cache.config.timeout
    while cache.current() < last and not stop.wait(0.02):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("lag", [0.0, 0.3])
def test_nobody_sees_what_only_a_primary_has_that_was_cut_off(stub: ReplicaSet, lag: float) -> None:
    stub.lag = lag
    first, second, local = opened(stub.uri), opened(stub.uri), opened(stub.uri + "&readConcernLevel=local")
    second.config = local.config = first.config
    for store in (second, local):
        store._database = store._client[first.config.dbname]
    assert first.insert("swaps", "a", {"k": 0})
    assert second.scan("swaps") == local.scan("swaps") == {"a": {"k": 0}}
    old, stub.linger = stub.primary, 60
    stub.disturb("partition")
    done: list[bool] = []
    thread = threading.Thread(target=lambda: done.append(first.insert("swaps", "b", {"k": 1})))
    thread.start()
    space = f"{first.config.dbname}.counter.{'0' * 16}.swaps"
    while "b" not in old.all.collections[space]:  # unless its client has heard of the next one already
        if done:
            break
        time.sleep(0.001)
    if not done:
        assert "b" not in second.scan("swaps")
        assert old.of_majority.collections[space].keys() == {"a"}
    stub.heal()
    thread.join()
    assert done == [True]
    assert second.scan("swaps").keys() == {"a", "b"}
    for store in (first, second, local):
        store.close()


@pytest.mark.parametrize("what", ["chunk", "lease"])
def test_what_is_there_already_is_there_for_a_majority(stub: ReplicaSet, what: str) -> None:
    """Not only at a primary that was cut off, where an attempt before this one has left it."""
    store = opened(stub.uri)
    database, incarnation = store.config.dbname, "0" * 16
    store.write_chunks(1, {"00-a": b"a"})
    store.replace("leases", "a", {"beat": 1})
    old, stub.linger, stub.lag = stub.primary, 60, 0.0
    stub.disturb("partition")
    with stub._changed:
        if what == "chunk":
            document: dict[str, Any] = {"_id": "00-b", "data": b"b"}
            stub._append(old, ("put", f"{database}.write.{incarnation}.{1:012d}.chunks.00", document))
        else:
            document = {"_id": "a", "document": '{"beat": 2}', "beat": 2}
            stub._append(old, ("put", f"{database}.counter.{incarnation}.leases", document))
    again = (store.write_chunks, 1, {"00-b": b"b"}) if what == "chunk" else (store.replace, "leases", "a", {"beat": 2})
    thread = threading.Thread(target=again[0], args=again[1:])
    thread.start()
    thread.join(0.5)  # it waits for a majority at the old one, or has heard of the next one already
    stub.heal()
    thread.join()
    if what == "chunk":
        assert store.missing_chunks(1, {"00-a": 1, "00-b": 1}) == []
    else:
        assert store.find("leases", "a")["beat"] == 2
    store.close()


def test_two_who_insert_under_one_key_at_two_primaries(stub: ReplicaSet) -> None:
    stores = [opened(stub.uri) for _ in range(2)]
    stores[1]._database = stores[1]._client[stores[0].config.dbname]
    results: list[tuple[int, bool]] = []

    def insert(number: int) -> None:
        results.append((number, stores[number].insert("swaps", "a", {"k": number})))

    threads = [threading.Thread(target=insert, args=(0,))]
    old, space = stub.primary, f"{stores[0].config.dbname}.counter.{'0' * 16}.swaps"
    stub.linger = stub.lag = 2.0
    stub.disturb("partition")
    threads[0].start()
    while space not in old.all.collections and not results:  # it asks the old one first
        time.sleep(0.001)
    threads.append(threading.Thread(target=insert, args=(1,)))
    threads[1].start()
    for thread in threads:
        thread.join()
    stub.heal()
    (winner,) = (number for number, won in results if won)
    assert stores[0].scan("swaps") == stores[1].scan("swaps") == {"a": {"k": winner}}
    assert old.all.collections == stub.primary.all.collections
    for store in stores:
        store.close()


@pytest.mark.parametrize("has_sessions", [True, False])
def test_a_new_primary_shows_nothing_older_than_what_was_seen(
    stub: ReplicaSet, monkeypatch: pytest.MonkeyPatch, has_sessions: bool
) -> None:
    store = opened(stub.uri)
    store._has_sessions = has_sessions
    missed = False
    stub.lag = 0.8 if has_sessions else 5.0  # time in which there is something to miss
    for number in range(4):
        assert store.insert("swaps", f"{number:012d}", {})
        stub.disturb("step_down")
        missed = len(store.scan("swaps")) < number + 1
        if missed:
            break
    assert missed != has_sessions
    store.close()


def test_a_primary_that_has_gone_silent_is_given_up_for_the_next(stub: ReplicaSet) -> None:
    store = opened(stub.uri)
    stub.linger = 60
    assert store.insert("swaps", "a", {})
    stub.disturb("freeze")
    store.config = dataclasses.replace(store.config, timeout=50.0)  # it takes three seconds, on an idle machine
    assert store.insert("swaps", "b", {})
    stub.heal()
    store.close()


def test_closing_does_not_wait_for_a_set_that_has_gone(stub: ReplicaSet) -> None:
    store = opened(stub.uri)
    assert store.insert("swaps", "a", {})
    stub.close()
    while store._has_server():
        time.sleep(0.01)
    start = time.monotonic()
    store.close()
    assert time.monotonic() - start < 8  # a second, on an idle machine


def test_stores_of_a_set_are_mongo_stores(stub: ReplicaSet) -> None:
    with contextlib.closing(opened(stub.uri)) as store:
        assert isinstance(store, MongoStore)
        assert store._has_sessions
        assert store._client.options.retry_writes
