"""Stores: which part of a generation chunks are kept in."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import _MOST_PARTS, chunk_name, key, part_of, part_of_chunk
from headrace.wirehead.config import Config
from headrace.wirehead.errors import StoreError


@pytest.mark.parametrize("swap_cap", [1, 5, 64, 65, 1000, 10_000, 1_000_000])
@pytest.mark.parametrize("length", [0, 1, 65536, 2**22, 2**24, 2**30])
def test_parts_are_few_and_small(swap_cap: int, length: int) -> None:
    parts = [part_of(id, length, swap_cap) for id in range(0, swap_cap, max(1, swap_cap // 1000))]
    assert parts == sorted(parts)
    assert parts[0] == 0
    assert parts[-1] < _MOST_PARTS
    samples = next((id for id in range(swap_cap) if part_of(id, length, swap_cap)), swap_cap)
    assert samples * length <= 2**20 or samples == -(-swap_cap // _MOST_PARTS)


def test_one_insert_of_several_under_a_key_succeeds_though_their_documents_are_equal(location: dict[str, Any]) -> None:
    with contextlib.closing(Cache({**location, "SWAP_CAP": 5, "TIMEOUT": 30})) as cache:
        assert [cache.store.insert("graves", "a", {"k": 1}) for _ in range(3)] == [True, False, False]


def test_the_part_is_in_the_name() -> None:
    assert part_of_chunk(chunk_name(63, "generator-12", 4, 1)) == "63"
    assert part_of_chunk(chunk_name(0, "generator-12", 4, 1)) == "00"


def test_a_generation_in_several_parts(location: dict[str, Any]) -> None:
    cache = Cache({**location, "SWAP_CAP": 7, "TIMEOUT": 30, "CHUNKSIZE": 0.2, "COMPRESSION": "none"})
    writer, manager, reader = Writer(cache), GenerationManager(cache), Reader(cache, ("data", "label"))
    for value in range(7):  # 391 KiB in two chunks; two samples to a part of 1 MiB
        assert writer.put((np.full(50_000, value), value)) == (1, value)
    descriptions = cache.samples(1, 0)
    assert [descriptions[id]["part"] for id in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    if "MONGOHOST" in location:
        database: Any = cache.store._database  # type: ignore[attr-defined]
        names = [name for name in database.list_collection_names() if "chunks" in name]
        assert sorted(name[-2:] for name in names) == ["00", "01", "02", "03"]
    assert manager.step() is not None
    for id in range(7):
        assert (reader.read(1, id)["data"][1] == id).all()
    cache.store.drop(1)
    assert cache.store.generations() == []
    for lease in (writer, reader):
        lease.close()
    cache.close()


def test_missing_chunks_are_found_in_whichever_part_they_are_and_nothing_changes(location: dict[str, Any]) -> None:
    cache = Cache({**location, "SWAP_CAP": 7, "TIMEOUT": 30})
    names = [chunk_name(part, "generator-1", number, k) for part in (0, 7, 63) for number in (1, 11) for k in range(3)]
    cache.store.write_chunks(1, dict.fromkeys(names[::2], b"bytes"))
    for _ in range(2):
        missing = cache.store.missing_chunks(1, dict.fromkeys(names, len(b"bytes")))
        assert sorted(missing) == sorted(names[1::2])
    cache.close()


@pytest.mark.parametrize("host", ["{}", "mongodb://{}", "mongodb://{}/?retryWrites=false", "mongodb://{}:{}/"])
def test_the_port_counts_unless_the_host_has_one(server_uri: str, host: str) -> None:
    from pymongo.uri_parser import parse_uri

    name, port = parse_uri(server_uri)["nodelist"][0]  # of a replica set, too
    keys = {"MONGOHOST": host.format(name, port), "PORT": port if host.count("{}") < 2 else 1}
    config = Config.load({**keys, "DBNAME": "test", "SWAP_CAP": 1, "TIMEOUT": 30})
    assert config.location.startswith(f"{name}:{port}")
    open_store(config).close()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
@pytest.mark.parametrize(
    "failure",
    [
        {"code": 43, "codeName": "CursorNotFound"},
        {"code": 112, "codeName": "WriteConflict"},
        {"code": 134, "codeName": "ReadConcernMajorityNotAvailableYet"},
        {"code": 11601, "codeName": "Interrupted"},
        {"code": 10107, "codeName": "NotWritablePrimary"},
        {"code": 8000, "errorLabels": ["RetryableWriteError"]},
        {"code": 8000, "errorLabels": ["TransientTransactionError"]},
    ],
)
def test_what_a_server_that_fails_over_reports_is_tried_again(
    location: dict[str, Any], failure: dict[str, Any]
) -> None:
    from pymongo.errors import OperationFailure

    with contextlib.closing(Cache({**location, "SWAP_CAP": 200, "TIMEOUT": 20})) as cache:
        store: Any = cache.store
        for k in range(150):
            assert store.insert("rounds", key(k), {"k": k})
        find = store._collection("rounds").find
        failures = [OperationFailure("stepped down", failure["code"], failure)] * 2

        def fail_twice(*args: Any, **options: Any) -> Any:
            for document in find(*args, **options):
                if failures and document["_id"] == key(120):  # in the middle
                    raise failures.pop()
                yield document

        collection = store._collection("rounds")
        collection.find = fail_twice
        store._collection = lambda table: collection
        assert [found["k"] for found in store.scan("rounds").values()] == list(range(150))
        assert not failures


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_what_a_server_refuses_is_not_tried_again(location: dict[str, Any]) -> None:
    from pymongo.errors import OperationFailure

    with contextlib.closing(Cache({**location, "SWAP_CAP": 5, "TIMEOUT": 20})) as cache:
        store: Any = cache.store
        collection = store._collection("rounds")
        calls = []

        def refuse(**options: Any) -> Any:
            calls.append(options)
            raise OperationFailure("not authorized", 13, {"code": 13})

        collection.find = refuse
        store._collection = lambda table: collection
        with pytest.raises(StoreError, match="refused: not authorized"):
            store.scan("rounds")
        assert len(calls) == 1


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_what_is_read_and_written_is_that_of_a_majority_unless_the_uri_says_otherwise(location: dict[str, Any]) -> None:
    uri = location["MONGOHOST"]
    asking = f"{uri}&" if "?" in uri else f"{uri.rstrip('/')}/?"
    for host, concerns in ((uri, ("majority", "majority")), (f"{asking}readConcernLevel=local&w=1", ("local", 1))):
        config = Config.load({**location, "MONGOHOST": host, "SWAP_CAP": 1, "TIMEOUT": 30})
        with contextlib.closing(open_store(config)) as store:
            collection: Any = store._collection("swaps")  # type: ignore[attr-defined]
            assert (collection.read_concern.level, collection.write_concern.document["w"]) == concerns
            assert store.scan("swaps") == {}
            assert collection.read_preference.name == "Primary"


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_a_cache_that_is_made_during_a_clean_stays(location: dict[str, Any]) -> None:
    keys = {**location, "SWAP_CAP": 2, "TIMEOUT": 30}
    old, made = Cache(keys), []
    store: Any = old.store
    assert store.insert("rounds", "a", {})
    names = store._names

    def look() -> Any:
        if not made:  # the settings are gone
            made.append(Cache(keys))
            with contextlib.closing(Writer(made[0])) as writer:
                assert [writer.put((value, value)) for value in range(2)] == [(1, 0), (1, 1)]
        return names()

    store._names = look
    assert store.clean() == []
    (new,) = made
    assert store.incarnations() == [new.incarnation]
    new.check_is_there()
    with contextlib.closing(GenerationManager(new)) as manager, contextlib.closing(Reader(new, ("label",))) as reader:
        assert manager.step() is not None
        assert int(reader.read(1, 1)["label"][1]) == 1
    for cache in (old, new):
        cache.close()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_a_cache_removes_nothing_of_another_one_with_the_same_write_collection(location: dict[str, Any]) -> None:
    keys = {**location, "SWAP_CAP": 2, "TIMEOUT": 30}
    caches = [Cache({**keys, "COUNTER_COLLECTION": name}) for name in ("first", "second")]
    for value, cache in enumerate(caches):
        with contextlib.closing(Writer(cache)) as writer, contextlib.closing(GenerationManager(cache)) as manager:
            for _ in range(2):
                assert writer.put((value, value)) is not None
            assert manager.step() is not None
            manager._swept = float("-inf")
            assert manager.step() is None  # it sweeps
        assert cache.store.incarnations() == [cache.incarnation]
    first, second = caches
    for value, cache in enumerate(caches):
        with contextlib.closing(Reader(cache, ("label",))) as reader:
            assert [int(reader.read(1, id)["label"][1]) for id in range(2)] == [value] * 2
    assert first.store.clean() == []
    with contextlib.closing(Reader(second, ("label",))) as reader:
        assert int(reader.read(1, 0)["label"][1]) == 1
    assert second.store.clean() == []
    assert second.store._database.list_collection_names() == []  # type: ignore[attr-defined]
    for cache in caches:
        cache.close()
    with (
        contextlib.closing(Cache(keys)),
        pytest.raises(StoreError, match=r"with WRITE_COLLECTION write, .* other"),
    ):
        Cache({**keys, "WRITE_COLLECTION": "other"})


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_the_threads_for_chunks_live_as_long_as_the_store_and_hold_nobody_up(location: dict[str, Any]) -> None:
    from headrace.wirehead._stores.mongo_store import MongoStore

    store = open_store(Config.load({**location, "SWAP_CAP": 2, "TIMEOUT": 30}))
    assert isinstance(store, MongoStore)
    both = threading.Barrier(2, timeout=100)

    def with_the_other(_: int) -> threading.Thread:
        both.wait()
        return threading.current_thread()

    threads = [set(store._map(with_the_other, (1, 2))) for _ in range(3)]
    assert threads[0] == threads[1] == threads[2]
    (helper,) = threads[0] - {threading.current_thread()}

    begun, go_on = threading.Semaphore(0), threading.Event()

    def wait(_: int) -> bool:
        begun.release()
        return go_on.wait(100)

    caller = threading.Thread(target=store._map, args=(wait, (1, 2)))
    caller.start()
    for _ in range(2):
        assert begun.acquire(timeout=100)
    assert store._map(str, (1, 2)) == ["1", "2"]
    go_on.set()
    caller.join(100)
    assert not caller.is_alive()

    def fail(number: int) -> None:
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^[12]$"):
        store._map(fail, (1, 2))
    store.close()
    helper.join(100)
    assert not helper.is_alive()
