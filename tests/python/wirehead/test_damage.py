"""Stored samples and documents that are damaged."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from damage import remove_chunk, table
from numbered import fill, numbered, swaps

from headrace.wirehead import CorruptSampleError, MongoTupleheadDataset, StoreError
from headrace.wirehead import WireheadGenerator as Generator
from headrace.wirehead._command_line.commands import main
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import LEASES, SETTINGS, SWAPS, key, samples_table


def test_damaged_samples_are_thrown_away_before_a_swap(cache: Cache) -> None:
    writer, manager = Writer(cache), GenerationManager(cache)
    for sample in numbered(0, 5):
        writer.put(sample)
    of_block = samples_table(1, 0)
    broken = cache.store.scan(of_block)
    lost = next(document for document in broken.values() if document["number"] == 1)
    assert remove_chunk(cache, 1, chunk_names(lost, [0])[0])
    wrong = {k: v for k, v in broken["000000000003"].items() if k != "_id"}
    wrong["kinds"][0]["length"] -= 1
    cache.store.remove(of_block, "000000000003")
    cache.store.insert(of_block, "000000000003", wrong)
    swaps = [manager.step() for _ in range(5)]
    assert not any(swaps)
    again = Writer(cache)
    thread = threading.Thread(target=lambda: [again.put(sample) for sample in numbered(50, 2)])
    thread.start()
    swap = None
    while swap is None:
        swap = manager.step()
        time.sleep(0.01)
    thread.join()
    assert swap.deleted == 2
    reader = Reader(cache, ("label",))
    assert sorted(int(reader.read(1, id)["label"][1][0]) for id in range(5)) == [0, 2, 4, 50, 51]
    for lease in (writer, again, reader):
        lease.close()


def damage(cache: Cache, generation: int, id: int) -> None:
    """Changes one bit of a stored sample."""
    description = cache.sample(generation, id)
    assert description is not None
    (name,) = chunk_names(description, [0])
    (found,) = cache.store.read_chunks(generation, [name])
    assert found is not None
    data = bytearray(found)
    data[5] ^= 1
    remove_chunk(cache, generation, name)
    cache.store.write_chunks(generation, {name: data})


def test_a_corrupted_chunk_is_named_skipped_or_raised(config: dict[str, Any], cache: Cache) -> None:
    Generator(numbered(0, 5), config).run()
    damage(cache, 1, 2)
    with MongoTupleheadDataset(config) as dataset:
        with pytest.raises(
            CorruptSampleError, match="sample 2 of generation 1 is corrupt: data has checksum"
        ) as caught:
            dataset[2]
        assert (caught.value.generation, caught.value.id) == (1, 2)
        assert dataset[3][1][0] == 3
    with MongoTupleheadDataset(config, on_corrupt="skip") as dataset:
        assert dataset[2][1][0] == 3
        assert [int(label[0]) for _, label in dataset[[1, 2, 3]]] == [1, 3]
    with MongoTupleheadDataset(config, sample=["label"]) as dataset:
        assert dataset[2][0][0] == 2  # that array is whole


def test_a_chunk_that_was_cut_off_is_found_before_a_swap(tmp_path: Path) -> None:
    cache = Cache({"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 5})
    fill(cache, 0)
    description = cache.sample(1, 2)
    assert description is not None
    (name,) = chunk_names(description, [0])
    os.truncate(next(tmp_path.rglob(name)), 10)
    assert GenerationManager(cache).step() is None
    assert cache.sample(1, 2) is None


def test_documents_that_a_crash_of_the_machine_has_torn(tmp_path: Path) -> None:
    config = {"DBNAME": "test", "DIRECTORY": str(tmp_path / "cache"), "SWAP_CAP": 5}
    cache = Cache(config)
    swaps(cache, 0, 1)
    fill(cache, 10)
    for folder, name in ((table(cache, samples_table(2, 0)), key(3)), (table(cache, SWAPS), key(1))):
        os.truncate(folder / name, 5)
    (table(cache, LEASES) / "reader-1").write_bytes(b"")
    assert cache.current() == 1
    manager, writer = GenerationManager(cache), Writer(cache)
    assert manager.step() is None
    assert writer.put(next(numbered(20, 1))) == (2, 3)
    swap = manager.step()
    assert swap is not None
    assert swap.deleted == 1
    writer.close()
    manager.close()
    os.truncate(tmp_path / "cache" / "test.wirehead" / SETTINGS / "settings", 5)
    with pytest.raises(StoreError, match="clean"):
        Cache(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["clean", "--config", str(tmp_path / "config.json")]) == 0
    Cache(config).close()


def test_a_replacement_does_not_begin_the_next_pass(config: dict[str, Any], cache: Cache) -> None:
    """Of a damaged sample: the one that comes in its place has not been asked for."""
    Generator(numbered(0, 5), config).run()
    damage(cache, 1, 2)
    with MongoTupleheadDataset(config, on_corrupt="skip") as dataset:
        read = []
        for id in range(5):
            if id == 3:
                Generator(numbered(50, 5), config).run()
            read.append(int(dataset[id][1][0]))
            assert dataset.generation == 1
        assert read == [0, 1, 3, 3, 4]
        assert dataset[0][1][0] == 50


@pytest.mark.parametrize(
    ("what", "value"), [("shape", [-1, -2]), ("dtype", "no_such_dtype"), ("dtype", ")("), ("dtype", None)]
)
def test_a_description_of_an_impossible_array_is_damage(
    config: dict[str, Any], cache: Cache, what: str, value: object
) -> None:
    """It ends no manager, and a reader names the sample."""
    Generator(numbered(0, 4), config).run()
    of_block = samples_table(1, 0)
    wrong = {k: v for k, v in cache.store.scan(of_block)["000000000003"].items() if k != "_id"}
    wrong["kinds"][0][what] = value
    wrong["kinds"][0]["compression"] = "none"
    cache.store.remove(of_block, "000000000003")
    cache.store.insert(of_block, "000000000003", wrong)
    # Goes on until it has come back from the second generation for the sample that was thrown away in the first.
    generator = Generator(numbered(50, 1000), config)
    thread = threading.Thread(target=generator.run)
    thread.start()
    manager, deadline = GenerationManager(cache), time.monotonic() + 60
    try:
        while cache.current() == 0:
            manager.step()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        generator.stop()
        thread.join()
    with MongoTupleheadDataset(config, on_corrupt="skip") as dataset:
        assert len(dataset[[0, 1, 2, 3, 4]]) >= 4


@pytest.mark.parametrize("ids", [2, [1, 2]])
def test_a_process_that_is_too_slow_is_told_so(
    ids: Any, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Reader, generation: int, id: int, *others: Any) -> Any:
        raise CorruptSampleError(generation, id, "it is gone", True)

    Generator(numbered(0, 5), config).run()
    monkeypatch.setattr(Reader, "read", read)
    monkeypatch.setattr(Reader, "is_certain", lambda self, generation: False)
    with (
        MongoTupleheadDataset(config, on_corrupt="skip") as dataset,
        pytest.raises(StoreError, match="generations come faster than this process reads"),
    ):
        dataset[ids]
