"""What goes wrong between a client and its server: requests and replies that are lost, late, doubled or refused."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from crew import Crew, sample, whole
from mongo_proxy import FAULTS, WRITES, Fault, Proxy, cut_before, refused

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import key
from headrace.wirehead.config import Config
from headrace.wirehead.errors import StoreError, StoreUnreachableError

CAP = 12
OF_READS = [name for name in FAULTS if not any(word in name for word in ("done", "oncern", "doubled"))]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client looks for a server again at once, and not half a second later."""
    monkeypatch.setattr("pymongo.common.MIN_HEARTBEAT_INTERVAL", 0.01)


@pytest.fixture
def location(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """On the server itself; what is there goes at the end."""
    uri, name = request.getfixturevalue("server_uri"), f"headrace_test_{uuid.uuid4().hex[:12]}"
    yield {"DBNAME": name, "MONGOHOST": uri}
    with contextlib.closing(pymongo.MongoClient[dict[str, Any]](uri)) as client:
        client.drop_database(name)


@pytest.fixture
def proxy(location: dict[str, Any]) -> Iterator[Proxy]:
    if "@" in location["MONGOHOST"] or "," in location["MONGOHOST"]:
        pytest.skip("the proxy stands before a single server without users")
    with Proxy(location["MONGOHOST"]) as started:
        yield started


@pytest.fixture
def keys(location: dict[str, Any], proxy: Proxy) -> dict[str, Any]:
    """Through the proxy."""
    return {**location, "MONGOHOST": proxy.uri, "SWAP_CAP": CAP, "TIMEOUT": 20, "LEASE": 10, "CHUNKSIZE": 0.0005}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_step_of_a_put_goes_wrong_and_the_sample_is_stored_once(
    keys: dict[str, Any], location: dict[str, Any], proxy: Proxy, fault: Fault
) -> None:
    with contextlib.closing(Cache(keys)) as cache, contextlib.closing(Writer(cache)) as writer:
        assert writer.put(sample(0)) == (1, 0)
        rules = []
        for value, (name, collection) in enumerate(
            [("insert", "chunks"), ("insert", "samples"), ("insert", "samples"), ("update", "leases")], 1
        ):
            rules.append(proxy.add(fault, name, collection=collection))
            assert writer._lease is not None
            if name == "update":
                writer._lease._write()
            assert writer.put(sample(value)) == (1, value)
        assert [rule.happened for rule in rules] == [1] * len(rules)
        time.sleep(0.35 if fault is FAULTS["late"] else 0)
    with contextlib.closing(Cache({**keys, **location})) as cache:
        assert sorted(cache.samples(1, 0)) == list(range(5))
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            assert [whole(reader, 1, id) for id in range(5)] == list(range(5))


@pytest.mark.parametrize("fault", [FAULTS[name] for name in OF_READS], ids=OF_READS)
def test_each_kind_of_read_goes_wrong_and_finds_what_is_there(keys: dict[str, Any], proxy: Proxy, fault: Fault) -> None:
    with contextlib.closing(Cache(keys)) as cache:
        writer, reader = Writer(cache), Reader(cache, ("data", "label"))
        assert writer.put(sample(7)) == (1, 0)
        description = cache.sample(1, 0)
        assert description is not None
        rules = [proxy.add(fault, "find", collection=collection) for collection in ("samples", "chunks")]
        assert whole(reader, 1, 0) == 7
        rules += [proxy.add(fault, name) for name in ("listCollections", "ismaster")]
        assert cache.store.generations() == [1]
        cache.store.now()
        assert [rule.happened for rule in rules] == [1] * 4
        writer.close()
        reader.close()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_step_of_a_swap_goes_wrong_and_there_is_one_swap(keys: dict[str, Any], proxy: Proxy, fault: Fault) -> None:
    with contextlib.closing(Cache(keys)) as cache, contextlib.closing(Writer(cache)) as writer:
        manager = GenerationManager(cache)
        rules = []
        for generation, (name, collection) in enumerate([("insert", "swaps"), ("insert", "manager"), ("drop", "")], 1):
            for id in range(CAP):
                assert writer.put(sample(generation * 100 + id)) == (generation, id)
            if collection == "manager":
                manager.close()
                collection = "leases"
            rules.append(proxy.add(fault, name, collection=collection))
            swap = None
            while swap is None:
                manager._asked = float("-inf")
                swap = manager.step()
            assert (swap.generation, swap.samples, swap.deleted) == (generation, generation * CAP, 0)
        writer.close()
        manager._swept = float("-inf")
        manager.step()
        assert [rule.happened for rule in rules] == [1] * len(rules)
        assert cache.store.generations() == [3]
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            assert [whole(reader, 3, id) for id in range(CAP)] == list(range(300, 300 + CAP))


def test_a_cursor_that_is_lost_begins_anew(keys: dict[str, Any], proxy: Proxy) -> None:
    with contextlib.closing(Cache(keys)) as cache:
        for number in range(20):
            assert cache.store.insert("rounds", key(number), {"k": number})
        proxy.first_batch = 3
        assert [found["k"] for found in cache.store.scan("rounds").values()] == list(range(20))
        rules = [
            proxy.add(fault, "getMore")
            for fault in (refused(43, "CursorNotFound"), refused(10107, "NotWritablePrimary"), cut_before)
        ]
        assert [found["k"] for found in cache.store.scan("rounds").values()] == list(range(20))
        assert [rule.happened for rule in rules] == [1, 1, 1]


def test_what_a_server_refuses_says_what_to_do(keys: dict[str, Any], proxy: Proxy) -> None:
    with contextlib.closing(open_store(Config.load(keys))) as store:
        for fault, text in (
            (refused(13, "Unauthorized"), "refused: Unauthorized"),
            (refused(14031, "OutOfDiskSpace"), r"the disk of the database at 127\.0\.0\.1:\d+ is full.*lower SWAP_CAP"),
            (refused(18, "AuthenticationFailed"), "refused user and password.*WIREHEAD_PASSWORD"),
        ):
            rule = proxy.add(fault, "insert")
            with pytest.raises(StoreError, match=text):
                store.insert("rounds", "a", {})
            assert rule.happened == 1
        assert store.insert("rounds", "a", {})


@pytest.mark.parametrize("fault", [cut_before, FAULTS["NotWritablePrimary"], FAULTS["WriteConcernFailed"]])
def test_what_does_not_get_better_is_an_error_in_time(keys: dict[str, Any], proxy: Proxy, fault: Fault) -> None:
    with contextlib.closing(open_store(Config.load({**keys, "TIMEOUT": 1}))) as store:
        proxy.add(fault, *WRITES, times=1 << 30)
        start = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"did not answer within 1 second \(TIMEOUT\).*Is it running"):
            store.replace("leases", "a", {})
        assert time.monotonic() - start < 20  # PyMongo itself would wait for 30


def test_a_server_that_has_gone_silent_is_an_error_in_time(keys: dict[str, Any], proxy: Proxy) -> None:
    with contextlib.closing(open_store(Config.load({**keys, "TIMEOUT": 1}))) as store:
        ended = threading.Event()
        proxy.add(lambda exchange: ended.wait(60), times=1 << 30)
        start = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"did not answer within 1 second"):
            store.find("leases", "a")
        assert time.monotonic() - start < 20
        ended.set()


def test_anything_may_go_wrong_at_any_time_and_nothing_is_lost_torn_or_doubled(
    keys: dict[str, Any], location: dict[str, Any], proxy: Proxy
) -> None:
    with contextlib.closing(Cache({**keys, **location})) as cache:
        proxy.chance, proxy.first_batch = 0.04, 5
        crew = Crew(keys)
        deadline = time.monotonic() + 200
        while (cache.current() < 4 or sum(proxy.happened.values()) < 60) and time.monotonic() < deadline:
            if crew.stop.wait(0.1):
                break
        proxy.chance = 0.0
        crew.end()
        crew.check(cache)
        assert cache.current() >= 4
        assert sum(proxy.happened.values()) >= 60
        assert len(cache.store.generations()) <= 3
