"""Stores: which part of a generation chunks are kept in."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import headrace.wirehead.store as stores
from headrace.wirehead.cache import Cache, open_store
from headrace.wirehead.config import Config
from headrace.wirehead.keeper import Keeper
from headrace.wirehead.reader import Reader
from headrace.wirehead.store import _MOST_PARTS, chunk_name, part_of, part_of_chunk
from headrace.wirehead.writer import Writer


@pytest.mark.parametrize("swap_cap", [1, 5, 64, 65, 1000, 10_000, 1_000_000])
@pytest.mark.parametrize("length", [0, 1, 65536, 2**22, 2**24, 2**30])
def test_parts_are_few_and_small(swap_cap: int, length: int) -> None:
    parts = [part_of(id, length, swap_cap) for id in range(0, swap_cap, max(1, swap_cap // 1000))]
    assert parts == sorted(parts)
    assert parts[0] == 0
    assert parts[-1] < _MOST_PARTS
    samples = next((id for id in range(swap_cap) if part_of(id, length, swap_cap)), swap_cap)
    assert samples * length <= 2**24 or samples == -(-swap_cap // _MOST_PARTS)


def test_the_part_is_in_the_name() -> None:
    assert part_of_chunk(chunk_name(63, "generator-12", 4, 1)) == "63"
    assert part_of_chunk(chunk_name(0, "generator-12", 4, 1)) == "00"


def test_a_generation_in_several_parts(place: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_PART_BYTES", 1000)
    cache = Cache({**place, "SWAP_CAP": 7, "TIMEOUT": 30, "CHUNKSIZE": 0.0002})
    writer, keeper, reader = Writer(cache), Keeper(cache), Reader(cache, ("data", "label"))
    for value in range(7):  # 408 bytes in two chunks; two samples to a part
        assert writer.put((np.full(50, value), value)) == (1, value)
    descriptions = cache.samples(1, 0)
    assert [descriptions[id]["part"] for id in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    if "MONGOHOST" in place:
        database: Any = cache.store._database  # type: ignore[attr-defined]
        names = [name for name in database.list_collection_names() if "chunks" in name]
        assert sorted(name[-2:] for name in names) == ["00", "01", "02", "03"]
    assert keeper.step() is not None
    for id in range(7):
        assert (reader.read(1, id)["data"][1] == id).all()
    cache.store.drop(1)
    assert cache.store.generations() == []
    for lease in (writer, reader):
        lease.close()
    cache.close()


def test_a_sample_is_removed_from_whichever_part_it_is_in(place: dict[str, Any]) -> None:
    cache = Cache({**place, "SWAP_CAP": 7, "TIMEOUT": 30})
    names = {
        (part, number): [chunk_name(part, "generator-1", number, k) for k in range(3)]
        for part in (0, 7, 63)
        for number in (1, 11)
    }
    for of_sample in names.values():
        cache.store.write_chunks(1, dict.fromkeys(of_sample, b"bytes"))
    assert cache.store.remove_chunk(1, names[7, 1][0])  # the first of those that were on their way at once
    assert cache.store.remove_sample(1, "generator-1", 1) == 8
    assert cache.store.remove_sample(1, "generator-1", 1) == 0
    assert cache.store.remove_sample(1, "generator-2", 11) == 0
    assert cache.store.remove_sample(2, "generator-1", 11) == 0
    for (_, number), of_sample in names.items():
        lengths = dict.fromkeys(of_sample, len(b"bytes"))
        assert cache.store.missing_chunks(1, lengths) == (of_sample if number == 1 else [])
    cache.close()


@pytest.mark.parametrize("host", ["{}", "mongodb://{}", "mongodb://{}/?retryWrites=false", "mongodb://{}:{}/"])
def test_the_port_counts_unless_the_host_has_one(server_uri: str, host: str) -> None:
    server = urlsplit(server_uri)
    keys = {"MONGOHOST": host.format(server.hostname, server.port), "PORT": server.port if host.count("{}") < 2 else 1}
    config = Config.load({**keys, "DBNAME": "test", "SWAP_CAP": 1, "TIMEOUT": 30})
    assert config.place.startswith(f"{server.hostname}:{server.port}")
    open_store(config).close()
