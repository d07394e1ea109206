"""The store on a server, step by step: what it asks a replica set's stub for, and what it makes of the answers."""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo.errors import (
    AutoReconnect,
    DuplicateKeyError,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    WaitQueueTimeoutError,
)
from replica_set import Refused, ReplicaSet

import headrace.wirehead._stores.mongo_store as mongo_stores
from headrace.wirehead._stores.mongo_store import MongoStore
from headrace.wirehead.config import Config
from headrace.wirehead.errors import ConfigError, StoreError, StoreUnreachableError

INCARNATION = "0" * 16


@pytest.fixture
def stub() -> Iterator[ReplicaSet]:
    started = ReplicaSet(lag=0.0)
    yield started
    started.close()


@pytest.fixture
def asked(stub: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The commands that the stub has got, without those of PyMongo's own."""
    run, commands = stub._run, list[dict[str, Any]]()

    def note(member: Any, command: dict[str, Any]) -> Any:
        if next(iter(command)).lower() not in ("hello", "ismaster", "ping", "endsessions"):
            commands.append(command)
        return run(member, command)

    monkeypatch.setattr(stub, "_run", note)
    return commands


def wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def opened(stub: ReplicaSet, options: str = "", **keys: Any) -> MongoStore:
    store = MongoStore(
        Config.load({"MONGOHOST": stub.uri + options, "DBNAME": "test", "SWAP_CAP": 5, "TIMEOUT": 20, **keys})
    )
    store.use(INCARNATION)
    return store


@pytest.fixture
def store(stub: ReplicaSet) -> Iterator[MongoStore]:
    with contextlib.closing(opened(stub)) as made:
        yield made


class Unconnected(MongoStore):
    """One that has asked no server."""

    def __init__(self, **keys: Any) -> None:
        self.config = Config.load({"MONGOHOST": "127.0.0.1:1", "DBNAME": "test", "SWAP_CAP": 5, **keys})


MANY = [f"00-a-{number}-0" for number in range(9)]
READS = {
    "find": lambda store: store.find("swaps", "a"),
    "scan": lambda store: store.scan("swaps"),
    "read_chunks": lambda store: list(store.read_chunks(1, ["00-a"])),
    "missing_chunks": lambda store: store.missing_chunks(1, {"00-a": 1}),
    "missing_chunks, many": lambda store: store.missing_chunks(1, dict.fromkeys(MANY, 1)),
    "incarnations": lambda store: store._others(["other.settings"]),
    "chunk that is there": lambda store: store.write_chunks(1, {"00-there": b"a"}),
    "lease that is there": lambda store: store.replace("leases", "there", {"beat": 1}),
}
WRITES = {
    "insert": lambda store: store.insert("swaps", "a", {}),
    "replace": lambda store: store.replace("leases", "a", {"beat": 1}),
    "remove": lambda store: store.remove("leases", "there"),
    "write_chunks": lambda store: store.write_chunks(1, {"00-a": b"a"}),
    "drop": lambda store: store.drop(1),
    "drop_incarnation": lambda store: store.drop_incarnation(INCARNATION),
    "clean": lambda store: store.clean(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_sees_what_was_seen_before_it_and_what_a_majority_has(
    store: MongoStore, asked: list[dict[str, Any]], read: Any
) -> None:
    store.write_chunks(1, {"00-there": b"a"})
    store.replace("leases", "there", {"beat": 1})
    seen = store._seen
    asked.clear()
    read(store)
    (command,) = (command for command in asked if "find" in command)
    assert command["readConcern"] == {"level": "majority", "afterClusterTime": seen}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_waits_for_a_majority_and_is_seen_by_the_next_read(
    stub: ReplicaSet, store: MongoStore, asked: list[dict[str, Any]], write: Any
) -> None:
    store.write_chunks(1, {"00-there": b"a"})
    store.replace("leases", "there", {"beat": 1})
    store.insert("settings", "settings", {})
    asked.clear()
    write(store)
    writes = [command for command in asked if next(iter(command)) not in ("find", "listCollections")]
    assert writes
    assert all(command["writeConcern"] == {"w": "majority"} for command in writes)
    assert store._seen >= stub._stamp(stub.primary.log[-1].time)
    asked.clear()
    store.find("swaps", "b")
    assert asked[0]["readConcern"]["afterClusterTime"] >= stub._stamp(stub.primary.log[-1].time)


def test_clean_sees_that_the_settings_are_gone(
    stub: ReplicaSet, store: MongoStore, asked: list[dict[str, Any]]
) -> None:
    """Else it would keep what they name."""
    store.insert("settings", "settings", {"incarnation": INCARNATION})
    store.clean()
    (dropped,) = (entry.time for entry in stub.primary.log if entry.operation == ("drop", "test.counter.settings"))
    (look,) = (command for command in asked if "find" in command)
    assert look["readConcern"]["afterClusterTime"] >= stub._stamp(dropped)


def test_an_operation_that_fails_has_seen_what_the_server_had(stub: ReplicaSet, store: MongoStore) -> None:
    with contextlib.closing(opened(stub)) as other:
        assert other.insert("swaps", "a", {})
    before = store._seen
    with pytest.raises(StoreError, match="refused: no"):
        store._retried(lambda session: failing_find(store, session))
    assert before is None or store._seen > before
    assert store._seen >= stub._stamp(stub.primary.log[-1].time)


def failing_find(store: MongoStore, session: Any) -> None:
    store._collection("swaps").find_one({"_id": "a"}, session=session)
    raise OperationFailure("no", 13)


def test_listing_collections_and_what_is_seen_of_it(stub: ReplicaSet, store: MongoStore) -> None:
    with contextlib.closing(opened(stub)) as other:
        assert other.insert("swaps", "a", {})
    store.generations()
    assert store._seen >= stub._stamp(stub.primary.log[-1].time)


def test_what_threads_see_never_goes_back(store: MongoStore, stub: ReplicaSet) -> None:
    assert store.insert("swaps", "a", {})
    latest = store._seen

    def look(session: Any) -> None:
        store.find("swaps", "a")
        session._operation_time = stub._stamp(1)  # an answer that is older than what another thread has seen

    store._retried(look)
    assert store._seen >= latest
    store._retried(lambda session: setattr(session, "_operation_time", None))  # or none
    assert store._seen >= latest


@pytest.mark.parametrize("is_ours", [True, False])
def test_an_insert_whose_answer_was_lost_knows_its_document(
    stub: ReplicaSet, store: MongoStore, monkeypatch: pytest.MonkeyPatch, asked: list[dict[str, Any]], is_ours: bool
) -> None:
    insert, attempts = mongo_stores._packed({"by": "this"}), []
    if not is_ours:
        with contextlib.closing(opened(stub)) as other:
            assert other.insert("swaps", "a", {"by": "another"})
    run = stub._run

    def lose(member: Any, command: dict[str, Any]) -> Any:
        reply = run(member, command)
        if "insert" in command and len(attempts) < 3:
            attempts.append(command["documents"])
            raise Refused(64, "WriteConcernFailed")
        return reply

    monkeypatch.setattr(stub, "_run", lose)
    assert store.insert("swaps", "a", {"by": "this"}) == is_ours
    assert attempts[0] == [{"_id": "a", **insert}]
    (look,) = (command for command in asked if "find" in command)
    assert look["readConcern"]["afterClusterTime"] >= stub._stamp(1)


def test_a_lease_without_a_beat_is_replaced_by_one_with_a_beat(store: MongoStore) -> None:
    assert store.insert("leases", "a", {"by": "this"})
    store.replace("leases", "a", {"beat": 1})
    found = store.find("leases", "a")
    assert found is not None
    assert found["beat"] == 1


def test_what_never_reaches_a_majority_is_an_error_in_time(stub: ReplicaSet) -> None:
    with contextlib.closing(opened(stub, TIMEOUT=0.5)) as store:
        calls = []

        def write(session: Any) -> None:
            calls.append(session)
            raise DuplicateKeyError("there is one")

        with pytest.raises(StoreUnreachableError, match=r"within 0\.5 seconds \(TIMEOUT\): .* not reached a majority"):
            store._store(write, lambda session: False)
        assert 0 < len(calls) < 20  # with pauses


@pytest.mark.parametrize(
    ("document", "found"), [({"beat": 2}, None), ({"beat": 2}, {}), ({"beat": 2}, {"beat": 1}), ({}, {"beat": 1})]
)
def test_a_lease_that_is_gone_or_older_when_it_is_looked_up_is_written_again(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], found: Any
) -> None:
    collection = SimpleNamespace(calls=[], find_one=lambda which, session: found)

    def update_one(*arguments: Any, **options: Any) -> None:
        collection.calls.append(arguments)
        if len(collection.calls) < 3:
            raise DuplicateKeyError("there is one")

    collection.update_one = update_one
    monkeypatch.setattr(store, "_collection", lambda table: collection)
    store.replace("leases", "a", document)
    assert len(collection.calls) == 3


def test_for_their_names_alone_a_few_chunks_are_asked_one_by_one_and_many_at_once(
    store: MongoStore, asked: list[dict[str, Any]]
) -> None:
    for names, filters in ((MANY[:8], [{"_id": name} for name in MANY[:8]]), (MANY, [{"_id": {"$in": MANY}}])):
        asked.clear()
        assert store.missing_chunks(1, dict.fromkeys(names, 1)) == names
        assert [command["filter"] for command in asked] == filters
        assert all(command["projection"] == {"_id": 1} for command in asked)


def test_after_an_error_no_further_chunk_is_tried(store: MongoStore) -> None:
    """Each would take TIMEOUT where the server does not answer."""
    tried = []

    def fail(number: int) -> None:
        tried.append(number)
        raise StoreError("no")

    with pytest.raises(StoreError):
        store._map(fail, range(10))
    assert len(tried) <= store.parallel


def test_a_large_table_comes_in_one_reply(store: MongoStore, asked: list[dict[str, Any]]) -> None:
    store.scan("swaps")
    store.missing_chunks(1, dict.fromkeys(MANY, 1))
    assert all(command["batchSize"] >= 15_625 for command in asked)  # a block of a million samples


@pytest.mark.parametrize("data", [3, "text", {}, None])
def test_a_chunk_that_holds_no_bytes_is_missing(store: MongoStore, data: Any) -> None:
    collection = store._chunks(1, "00-a")
    collection.insert_one({"_id": "00-a", "data": data})
    collection.insert_one({"_id": "00-b"})
    assert list(store.read_chunks(1, ["00-a", "00-b", "00-none"])) == [None] * 3


@pytest.mark.parametrize("stored", [{}, {"document": 3}, {"document": "{"}, {"document": "[1]"}, {"document": None}])
def test_a_document_that_is_damaged_is_an_empty_one(store: MongoStore, stored: dict[str, Any]) -> None:
    store._collection("rounds").insert_one({"_id": "a", **stored})
    assert store.find("rounds", "a") == {}
    assert store.scan("rounds") == {"a": {}}


def test_names_of_collections_are_no_patterns(stub: ReplicaSet) -> None:
    keys = {"WRITE_COLLECTION": "w.x", "COUNTER_COLLECTION": "c.x"}
    with contextlib.closing(opened(stub, **keys)) as store:
        others = [f"{name}.{INCARNATION}.{rest}" for name, rest in (("wax", f"{1:012d}.chunks.00"), ("cax", "swaps"))]
        for name in others:
            store._database[name].insert_one({"_id": "a"})
        assert store.generations() == store.incarnations() == []
        assert store.clean() == []
        assert store._database.list_collection_names() == others


def test_clean_removes_what_earlier_formats_have_left_and_nothing_else(store: MongoStore) -> None:
    earlier = ["counter.swaps", "counter.leases", f"write.{1:012d}.samples.00", f"write.{1:012d}.chunks.63"]
    foreign = ["write", "counter", "counter.swaps.old", f"write.{1:012d}.notes.00", f"counter.{'G' * 16}.swaps"]
    foreign += [f"write.{INCARNATION}0.{1:012d}.chunks.00", "write.1.chunks.00", "counter.other.swaps", "settings"]
    for name in (*earlier, *foreign):
        store._database[name].insert_one({"_id": "a"})
    store.insert("settings", "settings", {"format": 2})
    assert store.incarnations() == []
    assert store.clean() == []
    assert sorted(store._database.list_collection_names()) == sorted(foreign)


def test_a_collection_called_settings_that_holds_none_is_in_nobodys_way(store: MongoStore) -> None:
    assert store.insert("swaps", "a", {})
    store._database["other.settings"].insert_one({"_id": "a"})
    store._database["mysettings"].insert_one({"_id": "settings", **mongo_stores._packed({"incarnation": INCARNATION})})
    assert store.incarnations() == [INCARNATION]
    assert store.clean() == []
    assert sorted(store._database.list_collection_names()) == ["mysettings", "other.settings"]


TEXTS = {
    "user": (OperationFailure("bad auth", 18), "refused user and password: bad auth.*WIREHEAD_PASSWORD"),
    "user, by text": (OperationFailure("Authentication failed.", 8000), "refused user and password"),
    "disk": (OperationFailure("no", 14031), r"the disk of .* is full: no\..*SWAP_CAP"),
    "disk of SQLite": (OperationFailure("database or disk is full (13)", 1), r"the disk of .* is full"),
    "disk of Linux": (OperationFailure("write: No space left on device", 1), r"the disk of .* is full"),
    "other": (OperationFailure("not authorized", 13), "^the database at 127.0.0.1:1 refused: not authorized$"),
    "without a code": (PyMongoError("what"), "^the database at 127.0.0.1:1 refused: what$"),
}


@pytest.mark.parametrize(("error", "text"), TEXTS.values(), ids=TEXTS)
def test_a_refusal_says_what_to_do(error: Any, text: str) -> None:
    with pytest.raises(StoreError, match=text):
        raise Unconnected()._refused(error)


CODES = {
    "HostUnreachable": 6,
    "HostNotFound": 7,
    "CursorNotFound": 43,
    "WriteConcernTimeout": 64,
    "NetworkTimeout": 89,
    "ShutdownInProgress": 91,
    "WriteConflict": 112,
    "FailedToSatisfyReadPreference": 133,
    "ReadConcernMajorityNotAvailableYet": 134,
    "QueryPlanKilled": 175,
    "PrimarySteppedDown": 189,
    "CursorKilled": 237,
    "ExceededTimeLimit": 262,
    "SocketException": 9001,
    "NotWritablePrimary": 10107,
    "InterruptedAtShutdown": 11600,
    "Interrupted": 11601,
    "InterruptedDueToReplStateChange": 11602,
    "NotPrimaryNoSecondaryOk": 13435,
    "NotPrimaryOrSecondary": 13436,
}


def done_at_second_try(store: MongoStore, failure: PyMongoError) -> bool:
    failures = [failure]

    def operation(session: Any) -> bool:
        if failures:
            raise failures.pop()
        return True

    return store._retried(operation)


@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_what_a_server_reports_that_ends_or_fails_over_is_tried_again(code: int) -> None:
    """Some also as the error of a write concern, which PyMongo does not take for a lost connection."""
    assert mongo_stores._is_transient(OperationFailure("the primary steps down", code, {}))


@pytest.mark.parametrize(
    "text",
    [
        "context canceled",
        "[Insert.go:42 db.insert] interrupted (9)",
        "database is locked (5) (SQLITE_BUSY)",
        "sql: database is closed",
        "SQL logic error: no such table: write_6a (1)",
    ],
)
def test_what_ferretdb_says_when_it_ends_or_drops_is_tried_again(store: MongoStore, text: str) -> None:
    assert done_at_second_try(store, OperationFailure(text, 1, {}))


def test_what_has_taken_too_long_is_tried_again(store: MongoStore) -> None:
    assert done_at_second_try(store, ExecutionTimeout("operation exceeded time limit", 50, {}))
    assert done_at_second_try(store, NetworkTimeout("late"))
    assert done_at_second_try(store, WaitQueueTimeoutError("no connection is free"))


def test_a_document_that_is_too_large_is_refused(store: MongoStore) -> None:
    for put in (store.insert, store.replace):
        with pytest.raises(StoreError, match=r"^127\.0\.0\.1:\d+.* cannot hold the document: "):
            put("rounds", "a", {"text": "x" * (17 << 20)})


def test_an_error_of_the_programs_own_is_not_the_servers(store: MongoStore) -> None:
    def operation(session: Any) -> None:
        raise InvalidOperation("Cannot use MongoClient after close")

    with pytest.raises(StoreError, match="refused: Cannot use") as caught:
        store._retried(operation)
    assert not isinstance(caught.value, StoreUnreachableError)
    store.begin_close()
    with pytest.raises(StoreUnreachableError, match="when it was closed"):
        store._retried(operation)


def test_who_waits_when_it_begins_to_close_tries_no_longer_than_that(store: MongoStore) -> None:
    tries = []

    def operation(session: Any) -> None:
        tries.append(time.monotonic())
        if len(tries) == 2:
            store.begin_close()
        raise AutoReconnect("gone")

    with pytest.raises(StoreUnreachableError, match=r"within 0\.75 seconds when it was closed: gone"):
        store._retried(operation)
    assert tries[-1] - tries[0] < 15  # of TIMEOUT's 20
    ends = store.ends
    store.begin_close()
    assert store.ends == ends


def test_pauses_grow_and_stay_short(store: MongoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, now = list[float](), [0.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(mongo_stores, "time", clock)
    monkeypatch.setattr(mongo_stores.random, "uniform", lambda low, high: high)

    def operation(session: Any) -> None:
        raise AutoReconnect("gone")

    with pytest.raises(StoreUnreachableError):
        store._retried(operation)
    assert pauses[:4] == [0.02, 0.04, 0.08, 0.16]
    assert max(pauses) == 2.0
    assert 17 < sum(pauses) < 20  # TIMEOUT, and no pause that would end after it


def test_an_operation_gets_what_is_left_of_the_time(store: MongoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    limits, now = [], [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None)
    monkeypatch.setattr(mongo_stores, "time", clock)

    def operation(session: Any) -> None:
        limits.append(pymongo._csot.remaining())
        now[0] += 6
        if now[0] < 1018:
            raise AutoReconnect("gone")

    store._retried(operation)
    assert limits == pytest.approx([20, 14, 8], abs=1)
    store.begin_close()
    store._retried(operation)
    assert limits[-1] < 0.76
    store._retried(operation)  # which has a chance in any case
    assert 0 < limits[-1] <= 0.05


def test_an_attempt_that_fails_after_the_store_has_closed_is_the_last(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = [1000.0], []
    monkeypatch.setattr(mongo_stores, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=tries.append))

    def operation(session: Any) -> None:
        store.begin_close()
        now[0] += 1
        raise AutoReconnect("gone")

    with pytest.raises(StoreUnreachableError, match="when it was closed"):
        store._retried(operation)
    assert tries == []


def test_the_reason_is_the_operating_systems_in_few_words() -> None:
    store = Unconnected()
    for text, reason in (
        ("127.0.0.1:1: [Errno 111] Connection refused (configured timeouts: 1 s), Timeout: 2s", "Connection refused"),
        ("x:1: [Errno -2] Name or service not known (configured …)", "Name or service not known"),
        ("x:1: [Errno 113] No route to host, Timeout: 30s, Topology Description: <…>", "No route to host"),
        ("No servers found yet, Timeout: 30s, Topology Description: <…>", "No servers found yet"),
    ):
        assert store._reason(PyMongoError(text)) == reason


@pytest.mark.parametrize(
    ("host", "variable", "secrets"),
    [
        ("mongodb://me:p%2Fw@h/", "", ["p%2Fw", "p/w"]),
        ("mongodb+srv://me:p%2Fw@h.example/", "", ["p%2Fw", "p/w"]),
        ("mongodb://me@h/", "swordfish", ["swordfish"]),
        ("mongodb://me:@h/", "", []),
        ("h", "", []),
    ],
)
def test_no_message_shows_a_password_in_whatever_way_it_is_written(
    host: str, variable: str, secrets: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIREHEAD_PASSWORD", variable)
    store = Unconnected(MONGOHOST=host)
    text = "with " + ", ".join(secrets)
    assert store._without_password(PyMongoError(text)) == "with " + ", ".join("***" for _ in secrets)
    for message in (store._refused(PyMongoError(text)), store._reason(PyMongoError(text))):
        assert not any(secret in str(message) for secret in secrets)


def test_an_error_after_timeout_shows_no_password(stub: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WIREHEAD_PASSWORD", "swordfish")

    def operation(session: Any) -> None:
        raise AutoReconnect("of swordfish, Timeout: 30s, Topology Description: <…>")

    with (
        contextlib.closing(opened(stub, TIMEOUT=0.1)) as store,
        pytest.raises(StoreUnreachableError, match=r"\(TIMEOUT\): of \*\*\*\. Is it running"),
    ):
        store._retried(operation)


@pytest.mark.parametrize(
    ("timeout", "heartbeat", "connect"), [(0.5, 0.5, 0.5), (6, 1, 2), (20, 20 / 6, 5), (600, 10, 10)]
)
def test_a_silent_server_is_given_up_in_time_for_the_next(
    stub: ReplicaSet, monkeypatch: pytest.MonkeyPatch, timeout: float, heartbeat: float, connect: float
) -> None:
    monkeypatch.setattr(stub, "uri", stub.uri.partition("&")[0])  # which says how often
    with contextlib.closing(opened(stub, TIMEOUT=timeout)) as store:
        options = store._client.options
        assert options.pool_options.connect_timeout == pytest.approx(connect)
        assert store._client._topology_settings.heartbeat_frequency == pytest.approx(heartbeat, abs=0.001)


def test_options_of_the_uri_take_the_place_of_ours_however_they_are_written(stub: ReplicaSet) -> None:
    options = "&ReadConcernLevel=local&W=1&connectTimeoutMS=3000"
    with contextlib.closing(opened(stub, options, TIMEOUT=60)) as store:
        assert store._database.read_concern.level == "local"
        assert store._database.write_concern.document == {"w": 1}
        assert store._client.options.pool_options.connect_timeout == 3
        assert store._client._topology_settings.heartbeat_frequency == 0.5
    assert store._client.options.pool_options.appname == "headrace.wirehead"


@pytest.mark.parametrize("zone", ["XXX-9", "XXX+5"])
def test_the_servers_times_do_not_depend_on_the_time_zone_of_this_machine(
    stub: ReplicaSet, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with contextlib.closing(opened(stub)) as store:
            store.replace("leases", "a", {"beat": 1})
            found = store.find("leases", "a")
            assert found is not None
            assert abs(mongo_stores.seconds(found["time"]) - time.time()) < 1000
            assert abs(store.now() - time.time()) < 1000
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_store_that_cannot_be_opened_leaves_no_thread() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    before = set(threading.enumerate())
    keys = {"MONGOHOST": f"127.0.0.1:{port}", "DBNAME": "test", "SWAP_CAP": 5, "TIMEOUT": 0.2}
    with pytest.raises(StoreUnreachableError) as caught:  # which keeps all that was made
        MongoStore(Config.load(keys))
    wait_until(lambda: not [t for t in set(threading.enumerate()) - before if "server_monitor" in t.name])
    assert "Connection refused" in str(caught.value)


def test_a_closed_store_is_forgotten_with_its_threads(stub: ReplicaSet) -> None:
    store = opened(stub)
    store.write_chunks(1, {"00-a": b"a", "00-b": b"b"})
    closed = weakref.ref(store)
    assert store in mongo_stores._opened
    store.close()
    assert store not in mongo_stores._opened
    future = store._chunk_threads.submit(lambda: None)
    assert not future.done()  # nobody is there to do it, and nobody is started
    client, threads = store._client, store._chunk_threads
    with pytest.raises(InvalidOperation):
        client.admin.command("ping")
    assert threads._started == threads._count
    del store
    wait_until(lambda: closed() is None)


def test_a_store_that_is_closed_starts_no_thread_for_chunks(stub: ReplicaSet) -> None:
    before = set(threading.enumerate())
    store = opened(stub)
    store.close()
    store._chunk_threads.submit(lambda: None)
    assert not [t for t in set(threading.enumerate()) - before if t.name == "headrace-wirehead-chunks"]


def test_the_threads_for_chunks_keep_no_store(stub: ReplicaSet) -> None:
    store = opened(stub)
    store.write_chunks(1, {"00-a": b"a", "00-b": b"b"})
    forgotten = weakref.ref(store)
    del store
    wait_until(lambda: gc.collect() >= 0 and forgotten() is None)


def test_closing_does_not_wait_for_a_server_that_has_gone_silent(stub: ReplicaSet) -> None:
    store = opened(stub, TIMEOUT=600)
    assert store.insert("rounds", "a", {})
    for member in stub.members:
        member.is_frozen = True
    begin = time.monotonic()
    store.close()  # it tells the server that its sessions end
    assert time.monotonic() - begin < 8  # FAREWELL; PyMongo would give it up after ten


def test_at_exit_stores_are_closed_before_pymongo_waits_for_its_threads() -> None:
    program = """
import atexit
names, register = [], atexit.register
atexit.register = lambda function, *rest, **options: names.append(function) or register(function, *rest, **options)
import headrace.wirehead._stores.mongo_store
print([f"{getattr(function, '__module__', '')}: {getattr(function, '__name__', '')}" for function in names])
"""
    text = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True).stdout
    registered = ast.literal_eval(text)  # which are called in the opposite order
    ours = registered.index("headrace.wirehead._stores.mongo_store: _close_unanswered")
    assert any(name.startswith("pymongo") for name in registered)
    assert not any(name.startswith("pymongo") for name in registered[ours:])


def test_a_child_closes_no_store_of_its_parent(store: MongoStore) -> None:
    assert store in mongo_stores._opened
    child = os.fork()
    if child == 0:
        os._exit(len(mongo_stores._opened))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_of_stores_whose_server_answers_none_is_closed_at_exit(stub: ReplicaSet, store: MongoStore) -> None:
    mongo_stores._close_unanswered()
    assert store in mongo_stores._opened
    assert store.insert("rounds", "a", {})


def test_the_exit_waits_for_stores_to_close_but_not_for_one_that_hangs(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, hangs = [], threading.Event()
    monkeypatch.setattr(mongo_stores, "FAREWELL", 2.0)

    def close() -> None:
        time.sleep(0.1)
        closed.append(store.ends)
        hangs.wait(100)

    monkeypatch.setattr(store, "_has_server", lambda: False)
    monkeypatch.setattr(store, "close", close)
    begin = time.monotonic()
    mongo_stores._close_unanswered()
    assert time.monotonic() - begin < 50  # FAREWELL
    hangs.set()
    (ends,) = closed
    assert ends <= time.monotonic()  # who waits for the server gives up


def test_where_no_thread_can_be_started_stores_are_closed_one_by_one_at_exit(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(store, "_has_server", lambda: False)
    monkeypatch.setattr(mongo_stores.threading.Thread, "start", refuse)
    mongo_stores._close_unanswered()
    assert store not in mongo_stores._opened


def test_an_outage_is_said_when_the_oldest_has_waited_long_enough_and_none_answers(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error, now = PyMongoError("127.0.0.1:1: [Errno 111] Connection refused (…)"), time.monotonic()
    monkeypatch.setattr(store, "_has_server", lambda: False)
    store._say_outage(error)  # nobody waits
    store._waiting[0] = now
    store._say_outage(error)  # nobody has for long
    monkeypatch.setattr(store, "_has_server", lambda: True)
    store._waiting[1] = now - 4
    store._say_outage(error)  # another server answers
    assert caplog.messages == []
    monkeypatch.setattr(store, "_has_server", lambda: False)
    store._say_outage(error)
    store._say_outage(error)  # it has been said
    (message,) = caplog.messages
    assert message.endswith("does not answer (Connection refused); trying for 20 s (TIMEOUT)")
    waiting = store._retried(lambda session: dict(store._waiting))
    assert abs(max(waiting.values()) - time.monotonic()) < 100
    assert [*store._waiting] == [0, 1]  # the others wait no more
    store._say_outage(error)  # of the next outage
    assert len(caplog.messages) == 2
    store._waiting.clear()


def test_the_user_of_a_uri_has_its_password_or_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(host: str) -> Config:
        return Config.load({"MONGOHOST": host, "DBNAME": "test", "SWAP_CAP": 5, "TIMEOUT": 0.1})

    monkeypatch.delenv("WIREHEAD_PASSWORD", raising=False)
    for scheme in ("mongodb", "mongodb+srv"):
        with pytest.raises(ConfigError, match=r"names the user m/e and no password: set .* WIREHEAD_PASSWORD"):
            MongoStore(config(f"{scheme}://m%2Fe@db.example.org/"))
    monkeypatch.setenv("WIREHEAD_PASSWORD", "swordfish")
    for user, credentials in (("m%2Fe", ("m/e", "swordfish")), ("me:own", ("me", "own"))):
        client = mongo_stores._connect(config(f"mongodb://{user}@127.0.0.1:1/"), Listener())
        found: Any = client.options.pool_options._credentials
        assert (found.username, found.password) == credentials
        client.close()


class Listener(mongo_stores._Heartbeats):
    def __init__(self) -> None:
        super().__init__(Unconnected())  # which is gone at once


def test_a_store_that_is_gone_says_no_outage() -> None:
    Listener().failed(SimpleNamespace(reply=PyMongoError("gone")))  # type: ignore[arg-type]
