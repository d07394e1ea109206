"""What goes wrong between a client and its server: requests and replies that are lost, late, doubled or refused."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymongo
import pytest
from mongo_proxy import FAULTS, WRITES, Fault, Proxy, cut_before, refused

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.keeper import Keeper, run_keeper
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
def place(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """On the server itself; what is there goes at the end."""
    uri, name = request.getfixturevalue("server_uri"), f"headrace_test_{uuid.uuid4().hex[:12]}"
    yield {"DBNAME": name, "MONGOHOST": uri}
    with contextlib.closing(pymongo.MongoClient[dict[str, Any]](uri)) as client:
        client.drop_database(name)


@pytest.fixture
def proxy(place: dict[str, Any]) -> Iterator[Proxy]:
    if "@" in place["MONGOHOST"] or "," in place["MONGOHOST"]:
        pytest.skip("the proxy stands before a single server without users")
    with Proxy(place["MONGOHOST"]) as started:
        yield started


@pytest.fixture
def keys(place: dict[str, Any], proxy: Proxy) -> dict[str, Any]:
    """Through the proxy."""
    return {**place, "MONGOHOST": proxy.uri, "SWAP_CAP": CAP, "TIMEOUT": 20, "LEASE": 10, "CHUNKSIZE": 0.0005}


def sample(value: int) -> tuple[Any, Any]:
    return np.full(300, value), value


def whole(reader: Reader, generation: int, id: int) -> int:
    arrays = reader.read(generation, id)
    value = int(arrays["label"][1])
    assert (arrays["data"][1] == value).all()
    return value


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_each_step_of_a_put_goes_wrong_and_the_sample_is_stored_once(
    keys: dict[str, Any], place: dict[str, Any], proxy: Proxy, fault: Fault
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
    with contextlib.closing(Cache({**keys, **place})) as cache:
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
        keeper = Keeper(cache)
        rules = []
        for generation, (name, collection) in enumerate([("insert", "swaps"), ("insert", "manager"), ("drop", "")], 1):
            for id in range(CAP):
                assert writer.put(sample(generation * 100 + id)) == (generation, id)
            if collection == "manager":
                keeper.close()
                collection = "leases"
            rules.append(proxy.add(fault, name, collection=collection))
            swap = None
            while swap is None:
                keeper._asked = float("-inf")
                swap = keeper.step()
            assert (swap.generation, swap.samples, swap.deleted) == (generation, generation * CAP, 0)
        writer.close()
        keeper._swept = float("-inf")
        keeper.step()
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
        with pytest.raises(StoreUnreachableError, match=r"did not answer within 1 seconds \(TIMEOUT\).*Is it running"):
            store.replace("leases", "a", {})
        assert time.monotonic() - start < 5


def test_a_server_that_has_gone_silent_is_an_error_in_time(keys: dict[str, Any], proxy: Proxy) -> None:
    with contextlib.closing(open_store(Config.load({**keys, "TIMEOUT": 1}))) as store:
        proxy.add(lambda exchange: time.sleep(4), times=1 << 30)
        start = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"did not answer within 1 seconds"):
            store.find("leases", "a")
        assert time.monotonic() - start < 4


def test_anything_may_go_wrong_at_any_time_and_nothing_is_lost_torn_or_doubled(
    keys: dict[str, Any], place: dict[str, Any], proxy: Proxy
) -> None:
    stop = threading.Event()
    values = itertools.count(1)
    acknowledged: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], int] = {}
    problems: list[str] = []

    def guarded(action: Any) -> threading.Thread:
        def run() -> None:
            try:
                with contextlib.closing(Cache(keys)) as cache:
                    action(cache)
            except BaseException as error:
                problems.append(f"{type(error).__name__}: {error}")
                stop.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(cache: Cache) -> None:
        with contextlib.closing(Writer(cache, stop)) as writer:
            while (place := writer.put(sample(value := next(values)))) is not None:
                if place in acknowledged:
                    problems.append(f"{place} was acknowledged twice")
                acknowledged[place] = value

    def read_all(cache: Cache) -> None:
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            while not stop.is_set():
                generation = reader.pin_current(60)
                for id in range(CAP):
                    value = whole(reader, generation, id)
                    if read.setdefault((generation, id), value) != value:
                        problems.append(f"sample {id} of generation {generation} had two contents")

    def keep(cache: Cache) -> None:
        with contextlib.closing(Keeper(cache)) as keeper:
            run_keeper(keeper, stop)

    with contextlib.closing(Cache({**keys, **place})) as cache:
        proxy.chance, proxy.first_batch = 0.04, 5
        threads = [guarded(action) for action in (write, write, keep, keep, read_all)]
        deadline = time.monotonic() + 60
        while (cache.current() < 4 or sum(proxy.happened.values()) < 60) and time.monotonic() < deadline:
            if stop.wait(0.1):
                break
        proxy.chance = 0.0
        stop.set()
        for thread in threads:
            thread.join()
        assert problems == []
        assert cache.current() >= 4
        assert sum(proxy.happened.values()) >= 60
        assert len(cache.store.generations()) <= 3
        for place_, value in read.items():
            assert acknowledged.get(place_, value) == value
        assert len(set(read.values())) == len(read)
        with contextlib.closing(Reader(cache, ("data", "label"))) as reader:
            for (generation, id), value in acknowledged.items():
                if generation >= cache.current():
                    assert whole(reader, generation, id) == value
