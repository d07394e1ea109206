"""Put, get and swap, on each kind of store."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored import bury, remove_chunk, table

import headrace.wirehead._protocol.writer as writing
from headrace.wirehead import Config, CorruptSampleError, MongoheadDataset, MongoTupleheadDataset, StoreError
from headrace.wirehead import WireheadGenerator as Generator
from headrace.wirehead._command_line.commands import main
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.keeper import Keeper
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.process import whose
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.watch import Watch
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import GRAVES, LEASES, SETTINGS, SWAPS, chunk_name, key, samples_table


@pytest.fixture
def cache(config: dict[str, Any]) -> Iterator[Cache]:
    cache = Cache(config)
    yield cache
    cache.close()


def numbered(start: int, count: int) -> Iterator[tuple[Any, Any]]:
    """Samples that say their number everywhere."""
    for number in range(start, start + count):
        yield np.full((4, 3), number, np.float32), np.full(7, number, np.int16)


def fill(cache: Cache, start: int, writer: Writer | None = None) -> None:
    """A generation of numbered samples."""
    writer = writer or Writer(cache)
    for sample in numbered(start, cache.config.swap_cap):
        assert writer.put(sample) is not None
    writer.close()


def test_a_swap_makes_what_was_put_readable(config: dict[str, Any], cache: Cache) -> None:
    fill(cache, 10)
    assert cache.current() == 0
    swap = Keeper(cache).step()
    assert swap is not None
    assert (swap.generation, swap.samples, swap.deleted) == (1, 5, 0)
    assert cache.current() == 1
    dataset = MongoheadDataset(config, to="numpy")
    assert len(dataset) == 5
    assert [int(dataset[i]["label"][0]) for i in range(5)] == [10, 11, 12, 13, 14]
    sample = dataset[-1]
    assert sample["input"].dtype == np.float32
    assert (sample["input"] == 14).all()
    assert sample["label"].shape == (7,)
    dataset.close()


def test_lists_of_ids(config: dict[str, Any]) -> None:
    Generator(numbered(0, 5), config).run()
    dicts, tuples = MongoheadDataset(config, to="numpy"), MongoTupleheadDataset(config, to="numpy")
    assert dicts[[0]][0]["input"][0, 0] == 0
    assert list(dicts[[3, 1]]) == [3, 1]
    assert dicts[[3, 1]][1]["label"][0] == 1
    assert tuples[[4]][0][0][0, 0] == 4
    assert [int(label[0]) for _, label in tuples[np.array([2, 0, 2])]] == [2, 0, 2]
    for index in (5, [5], -6):
        with pytest.raises(IndexError, match="out of range"):
            tuples[[5] if index == 5 else index]
    assert len(list(tuples)) == 5
    with pytest.raises(TypeError):
        dicts["input"]
    dicts.close()
    tuples.close()


def test_transform_and_normalize(config: dict[str, Any]) -> None:
    Generator(((np.arange(4, dtype=np.uint8), np.uint8(i)) for i in range(5)), config).run()
    dataset = MongoTupleheadDataset(config, transform=lambda a: a * 2, normalize=lambda a: a / a.max(), to="numpy")
    image, label = dataset[3]
    assert image.dtype == np.float32
    assert image.tolist() == [0, np.float32(1 / 3), np.float32(2 / 3), 1]
    assert label == 6
    assert label.dtype == np.uint8
    dataset.close()


def test_kinds_of_any_number(place: dict[str, Any]) -> None:
    config = {**place, "SWAP_CAP": 1, "SAMPLE": ["a", "b", "c"], "CHUNKSIZE": 1e-5}
    Generator([{"a": np.arange(9), "b": 2.5, "c": np.ones(20)}], config).run()
    dataset = MongoheadDataset(config, to="numpy")
    assert set(dataset[0]) == {"input", "label", "c"}
    assert dataset[0]["label"] == 2.5
    subset = MongoTupleheadDataset(config, sample=["c", "a"], to="numpy")
    assert [array.size for array in subset[0]] == [20, 9]
    with pytest.raises(ValueError, match="sample must name kinds"):
        MongoTupleheadDataset(config, sample=["d"])
    dataset.close()
    subset.close()


def test_a_reader_keeps_its_generation_and_then_follows(config: dict[str, Any], cache: Cache) -> None:
    keeper = Keeper(cache)
    fill(cache, 0)
    keeper.step()
    dataset = MongoTupleheadDataset(config)
    assert int(dataset[0][1][0]) == 0
    fill(cache, 10)
    keeper.step()
    assert cache.current() == 2
    assert int(dataset[1][1][0]) == 1  # not read yet
    assert int(dataset[0][1][0]) == 10  # read: now from the current one
    assert int(dataset[1][1][0]) == 11
    dataset.close()


def test_a_generation_stays_while_a_reader_is_on_it(cache: Cache) -> None:
    keeper = Keeper(cache)
    reader = Reader(cache, ("data", "label"))
    fill(cache, 0)
    keeper.step()
    assert reader.pin_current(1) == 1
    fill(cache, 10)
    assert keeper.step() is not None
    fill(cache, 20)
    assert keeper.step() is None  # there would be four generations
    assert keeper.blocked is not None
    assert "generation 1" in keeper.blocked
    assert cache.store.generations() == [1, 2, 3]
    assert reader.read(1, 4)["label"][1][0] == 4
    assert reader.pin_current(1) == 2
    while (swap := keeper.step()) is None:  # until the lease says so
        time.sleep(0.01)
    assert swap.generation == 3
    assert cache.store.generations() == [2, 3]
    with pytest.raises(CorruptSampleError, match="sample 4 of generation 1 is corrupt: it is not there"):
        reader.read(1, 4)
    reader.close()


def test_a_writer_goes_on_while_a_generation_is_verified_and_then_waits_for_its_swap(cache: Cache) -> None:
    stop, looks, current = threading.Event(), itertools.count(), cache.current
    writer, keeper = Writer(cache, stop), Keeper(cache)
    assert [writer.put(sample) for sample in numbered(0, 10)] == [(g, i) for g in (1, 2) for i in range(5)]

    def stopping() -> int:
        if next(looks) == 5:
            stop.set()
        return current()

    cache.current = stopping  # type: ignore[method-assign]
    assert writer.put(next(numbered(10, 1))) is None
    assert cache.store.generations() == [1, 2]  # not into 3 before 1 is swapped
    stop.clear()
    swap = keeper.step()
    assert swap is not None
    assert swap.generation == 1
    assert [writer.put(sample) for sample in numbered(10, 2)] == [(3, 0), (3, 1)]
    writer.close()
    swap = keeper.step()
    assert swap is not None
    assert (swap.generation, swap.samples) == (2, 10)
    assert cache.store.generations() == [1, 2, 3]  # 1 has become old just now
    assert keeper.step() is None
    reader = Reader(cache, ("label",))
    assert [int(reader.read(2, id)["label"][1][0]) for id in range(5)] == [5, 6, 7, 8, 9]
    reader.close()


def test_a_writer_goes_on_only_if_three_generations_are_enough(cache: Cache) -> None:
    keeper, reader = Keeper(cache), Reader(cache, ("label",))
    fill(cache, 0)
    keeper.step()
    assert reader.pin_current(1) == 1
    fill(cache, 10)
    assert keeper.step() is not None
    stop, asked = threading.Event(), 0
    generations = cache.store.generations

    def counted() -> list[int]:
        nonlocal asked
        asked += 1
        if asked == 3:
            stop.set()
        return generations()

    writer = Writer(cache, stop)
    for sample in numbered(20, 5):
        assert writer.put(sample) is not None
    cache.store.generations = counted  # type: ignore[method-assign]
    assert writer.put(next(numbered(25, 1))) is None  # not into generation 4: 1 is still read
    assert generations() == [1, 2, 3]
    reader.close()
    stop.clear()
    assert keeper._retire() == []
    assert writer.put(next(numbered(25, 1))) == (4, 0)
    assert cache.current() == 2
    assert generations() == [2, 3, 4]
    writer.close()


def test_a_writer_comes_back_for_a_sample_that_was_thrown_away(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LOOK_EVERY", 0.0)
    writer, keeper = Writer(cache), Keeper(cache)
    places = [writer.put(sample) for sample in numbered(0, 5)]
    lost = cache.sample(1, 3)
    assert lost is not None
    assert remove_chunk(cache, 1, chunk_names(lost, [0])[0])
    places += [writer.put(sample) for sample in numbered(5, 2)]
    assert keeper.step() is None
    places += [writer.put(sample) for sample in numbered(7, 2)]
    assert places == [*((1, id) for id in range(5)), (2, 0), (2, 1), (1, 3), (2, 2)]
    swap = keeper.step()
    assert swap is not None
    assert (swap.generation, swap.deleted) == (1, 1)
    assert [writer.put(sample) for sample in numbered(9, 2)] == [(2, 3), (2, 4)]
    assert keeper.step() is not None
    writer.close()


def test_a_writer_that_comes_back_too_late_goes_on_with_the_next_generation(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_LOOK_EVERY", 0.0)
    writer, other, keeper = Writer(cache), Writer(cache), Keeper(cache)
    for sample in numbered(0, 6):
        assert writer.put(sample) is not None
    lost = cache.sample(1, 3)
    assert lost is not None
    assert remove_chunk(cache, 1, chunk_names(lost, [0])[0])
    assert keeper.step() is None
    samples = cache.samples

    def filled_meanwhile(generation: int, block: int, versions: Any) -> Any:
        found = samples(generation, block, versions)
        cache.samples = samples  # type: ignore[method-assign]
        assert other.put(next(numbered(50, 1))) == (1, 3)
        assert keeper.step() is not None
        return found

    cache.samples = filled_meanwhile  # type: ignore[method-assign]
    place = writer.put(next(numbered(6, 1)))
    assert place is not None
    assert (place[0], place[1] > 0) == (2, True)
    assert writer._lease is not None
    assert writer._lease.generations == [2]
    assert cache.current() == 1
    for user in (writer, other):
        user.close()


def test_a_generator_waits_for_the_swaps_of_all_that_it_has_filled(config: dict[str, Any], cache: Cache) -> None:
    assert Generator(numbered(0, 10), config).run() == 10
    assert cache.current() == 2


def test_the_last_swap_does_not_wait_for_the_lease_of_the_generator_itself(
    config: dict[str, Any], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "_renew", lambda lease: None)  # as if its thread came too late
    assert Generator(numbered(0, 15), config).run() == 15
    assert cache.current() == 3


def test_samples_in_flight_during_a_swap_go_into_the_next_generation(cache: Cache) -> None:
    late = Writer(cache)
    assert late.put(next(numbered(0, 1))) == (1, 0)
    others = Writer(cache)
    for sample in numbered(1, 4):
        others.put(sample)
    # It has pinned generation 1 and does not know that this is full, and gone, meanwhile.
    write_chunks = cache.store.write_chunks

    def swap_first(generation: int, chunks: Any) -> None:
        write_chunks(generation, chunks)
        if generation == 1:
            assert Keeper(cache).step() is not None

    cache.store.write_chunks = swap_first  # type: ignore[method-assign]
    assert late.put(next(numbered(99, 1))) == (2, 0)
    reader = Reader(cache, ("label",))
    assert reader.read(2, 0)["label"][1][0] == 99
    for writer in (late, others):
        writer.close()
    reader.close()


def test_two_managers_swap_once(cache: Cache) -> None:
    fill(cache, 0)
    keepers = [Keeper(cache) for _ in range(2)]
    for keeper in keepers:
        keeper._leads = lambda: True  # type: ignore[method-assign]  # as if neither saw the other
    ready, swap_of = threading.Barrier(2), cache.swap

    def both(generation: int) -> Any:
        ready.wait()  # both have verified the generation and go on to swap it
        return swap_of(generation)

    cache.swap = both  # type: ignore[method-assign]
    swaps = []
    threads = [threading.Thread(target=lambda keeper=keeper: swaps.append(keeper.step())) for keeper in keepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(swap is not None for swap in swaps) == 1
    assert [swap.generation for swap in cache.swaps()] == [1]


def test_managers_take_turns(config: dict[str, Any]) -> None:
    cache = Cache({**config, "LEASE": 0.6})
    first, second = Keeper(cache), Keeper(cache)
    first.step()
    second.step()
    assert first.leads
    assert not second.leads
    first.close()
    while not second.leads:
        second.step()
        time.sleep(0.02)
    third = Keeper(cache)
    while not third.leads:  # the second one says nothing any more
        third.step()
        time.sleep(0.02)
    second.step()
    cache.close()


def test_damaged_samples_are_thrown_away_before_a_swap(cache: Cache) -> None:
    writer, keeper = Writer(cache), Keeper(cache)
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
    swaps = [keeper.step() for _ in range(5)]
    assert not any(swaps)
    again = Writer(cache)
    thread = threading.Thread(target=lambda: [again.put(sample) for sample in numbered(50, 2)])
    thread.start()
    swap = None
    while swap is None:
        swap = keeper.step()
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


def swaps(cache: Cache, start: int, count: int) -> None:
    """Several generations, of which only the last may be left."""
    keeper = Keeper(cache)
    for generation in range(count):
        fill(cache, start + 10 * generation)
        while keeper.step() is None:
            time.sleep(0.01)
    while keeper._retire():
        time.sleep(0.01)
    keeper.close()


def test_a_copy_that_comes_late_to_a_round_goes_on_with_a_newer_generation(
    config: dict[str, Any], cache: Cache
) -> None:
    swaps(cache, 10, 1)
    with MongoTupleheadDataset(config, to="numpy") as dataset, pickle.loads(pickle.dumps(dataset)) as late:
        first, *_, last = dataset.sampler(shuffle=False, infinite=True).order(0, 0, 11).tolist()
        assert dataset[first][1][0] == 10
        dataset.close()
        swaps(cache, 20, 2)
        assert dataset[last][1][0] == 30
        assert 1 not in cache.store.generations()
        assert [int(late[first + id][1][0]) for id in (1, 4)] == [31, 34]


@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_standstill_in_the_middle_of_a_list_of_ids(
    config: dict[str, Any], cache: Cache, monkeypatch: pytest.MonkeyPatch, on_corrupt: str
) -> None:
    swaps(cache, 10, 1)
    with MongoTupleheadDataset({**config, "LEASE": 0.3}, to="numpy", on_corrupt=on_corrupt) as dataset:
        with monkeypatch.context() as patch:
            patch.setattr(Lease, "_renew", lambda lease: None)
            assert dataset[0][1][0] == 10
        reader = dataset._reader
        assert reader is not None
        read = reader.read

        def stand_still(generation: int, id: int) -> Any:
            sample = read(generation, id)
            if generation == 1:
                while reader.is_pinned(1):
                    time.sleep(0.02)
                bury(cache, cache.store.scan(LEASES))
                swaps(cache, 20, 2)
            return sample

        monkeypatch.setattr(reader, "read", stand_still)
        assert [int(label[0]) for _, label in dataset[[1, 2, 3]]] == [31, 32, 33]


def test_a_chunk_that_was_cut_off_is_found_before_a_swap(tmp_path: Path) -> None:
    cache = Cache({"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 5})
    fill(cache, 0)
    description = cache.sample(1, 2)
    assert description is not None
    (name,) = chunk_names(description, [0])
    os.truncate(next(tmp_path.rglob(name)), 10)
    assert Keeper(cache).step() is None
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
    keeper, writer = Keeper(cache), Writer(cache)
    assert keeper.step() is None
    assert writer.put(next(numbered(20, 1))) == (2, 3)
    swap = keeper.step()
    assert swap is not None
    assert swap.deleted == 1
    writer.close()
    keeper.close()
    os.truncate(tmp_path / "cache" / "test.wirehead" / SETTINGS / "settings", 5)
    with pytest.raises(StoreError, match="clean"):
        Cache(config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["clean", "--config", str(tmp_path / "config.json")]) == 0
    Cache(config).close()


def test_clean_works_with_other_settings(config: dict[str, Any], cache: Cache, tmp_path: Path) -> None:
    swaps(cache, 0, 1)
    other = {**config, "SWAP_CAP": 6}
    with pytest.raises(StoreError, match=r"made with SWAP_CAP 5.*clean"):
        Cache(other)
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert main(["clean", "--config", str(tmp_path / "other.json")]) == 0
    Cache(other).close()


def test_no_data_is_an_error_in_time(config: dict[str, Any]) -> None:
    Generator(numbered(0, 3), config).run()
    with pytest.raises(TimeoutError, match=r"no data after 0\.1 seconds: .* has 3 of 5 samples.*generator running"):
        MongoheadDataset(config, timeout=0.1)


def test_settings_must_agree(config: dict[str, Any]) -> None:
    Generator(numbered(0, 5), config).run()
    with pytest.raises(StoreError, match="made with SWAP_CAP 5, this configuration says 6"):
        MongoheadDataset({**config, "SWAP_CAP": 6})
    with pytest.raises(StoreError, match="made with SAMPLE"):
        Generator(numbered(0, 5), {**config, "SAMPLE": ["x", "y"]}).run()
    with contextlib.closing(open_store(Config.load(config))) as store:
        settings = store.find("settings", "settings")
        assert settings is not None
        store.replace("settings", "settings", {**settings, "format": 1})
    with pytest.raises(StoreError, match="another version of headrace"):
        Cache(config)


def test_a_paused_writer_puts_its_sample_again(config: dict[str, Any]) -> None:
    cache = Cache(config)
    writer = Writer(cache)
    assert writer.put(next(numbered(0, 1))) == (1, 0)
    assert writer._lease is not None
    writer._lease.abandon()
    insert = cache.store.insert

    def stand_still(table: str, key: str, document: Any) -> bool:
        done = insert(table, key, document)
        if table == samples_table(1, 0) and writer._lease is not None and writer._lease._stop.is_set():
            writer._lease._renewed = float("-inf")
        return done

    cache.store.insert = stand_still  # type: ignore[method-assign]
    first = writer._lease.key
    generation, id = writer.put(next(numbered(1, 1)))
    assert (generation, id > 1) == (1, True)
    assert writer._lease.key != first
    writer.close()
    cache.close()


def test_a_lease_that_is_renewed_too_late_does_not_come_back_to_life(cache: Cache) -> None:
    lease = Lease(cache, "reader")
    assert not lease.pin([1])
    assert lease.is_alive()
    assert lease.pin([1])
    key = lease.key
    lease._renewed -= 2 * cache.config.lease  # this process stood still
    lease._write()
    assert lease.has_lapsed()
    assert not lease.is_alive()
    assert not lease.pin([1])
    assert lease.key != key
    assert lease.is_alive()
    lease.close()


def test_a_writer_whose_lease_was_renewed_too_late_puts_its_sample_again(config: dict[str, Any]) -> None:
    cache = Cache(config)
    writer = Writer(cache)
    assert writer.put(next(numbered(0, 1))) == (1, 0)
    assert writer._lease is not None
    first, write_chunks = writer._lease, cache.store.write_chunks

    def stand_still(generation: int, chunks: Any) -> None:
        write_chunks(generation, chunks)
        cache.store.write_chunks = write_chunks  # type: ignore[method-assign]
        bury(cache, [first.key])
        first.tick(is_new=True)  # as its thread does when the process goes on

    cache.store.write_chunks = stand_still  # type: ignore[method-assign]
    place = writer.put(next(numbered(1, 1)))
    assert place is not None
    assert writer._lease.key != first.key
    with contextlib.closing(Reader(cache, ("label",))) as reader:
        assert reader.read(*place)["label"][1][0] == 1
    writer.close()
    cache.close()


def test_what_a_dead_writer_has_left_half_done_holds_nobody_up_and_goes_with_its_generation(
    config: dict[str, Any],
) -> None:
    cache = Cache({**config, "LEASE": 0.5})
    writer, keeper = Writer(cache), Keeper(cache)
    writer.put(next(numbered(0, 1)))
    assert writer._lease is not None
    name = chunk_name(3, writer._lease.key, 1, 0)
    cache.store.write_chunks(1, {name: b"half"})
    writer._lease.abandon()
    rest = Writer(cache)
    for sample in numbered(1, 14):
        while cache.current() + 2 <= cache.store.generations()[-1]:
            keeper.step()
        rest.put(sample)
    while 1 in cache.store.generations():
        keeper.step()
        time.sleep(0.02)
    assert next(cache.store.read_chunks(1, [name])) is None
    rest.close()
    cache.close()


def test_who_counts_as_dead(config: dict[str, Any]) -> None:
    clock = [1000.0]
    with contextlib.closing(Cache({**config, "LEASE": 30}, clock=lambda: clock[0])) as cache:
        with subprocess.Popen(["true"]) as ended:
            pass
        ours = {**whose(), "role": "reader", "generations": [1]}
        leases = {"a": ours, "b": {**ours, "pid": ended.pid}, "c": {"generations": [1]}}
        leases["d"] = {**leases["b"], "pid_namespace": "another container's"}
        for name, lease in leases.items():
            cache.store.replace(LEASES, name, lease)
        watch = Watch(cache)
        # What a process has sent to a server before it ended may still be on its way.
        assert set(watch.look()) == (set("acd") if cache.config.is_local else set("abcd"))
        clock[0] += 25
        cache.store.replace(LEASES, "c", {"generations": [2]})
        assert "c" in watch.look()
        clock[0] += 6  # those seen unchanged for 31 seconds
        assert set(watch.look()) == {"c"}
        assert set(Watch(cache).look()) >= {"a", "c", "d"}  # which has seen nothing yet
        watch.clear()
        assert set(cache.store.scan(LEASES)) == {"c"}
        assert set(cache.store.scan(GRAVES)) == set("ad" if cache.config.is_local else "abd")
        for _ in range(3):
            clock[0] += 31
            watch.look()
            watch.clear()
        assert set(cache.store.scan(GRAVES)) <= {"c"}


def test_config_objects_are_taken_as_they_are(config: dict[str, Any]) -> None:
    loaded = Config.load(config)
    assert Config.load(loaded) is loaded


def test_a_manager_looks_for_a_fifth_of_the_time_and_again_soon_if_it_was_held_up(cache: Cache) -> None:
    clock = [1000.0]
    cache.clock = lambda: clock[0]
    keeper = Keeper(cache)
    assert keeper._until_next(clock[0]) == keeper._until_next(clock[0] - 0.01) == keeper.pause == 0.25
    assert keeper._until_next(clock[0] - 0.2) == pytest.approx(0.8)
    assert keeper._until_next(clock[0] - 10) == 1
