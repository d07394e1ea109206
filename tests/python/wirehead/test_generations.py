"""Which generations there are: who goes on to the next, who waits, who comes back, what stays."""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from typing import Any

import pytest
from damage import remove_chunk
from numbered import fill, numbered, swaps

import headrace.wirehead._protocol.writer as writing
from headrace.wirehead import CorruptSampleError, MongoTupleheadDataset
from headrace.wirehead import WireheadGenerator as Generator
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer


def test_a_reader_keeps_its_generation_and_then_follows(config: dict[str, Any], cache: Cache) -> None:
    manager = GenerationManager(cache)
    fill(cache, 0)
    manager.step()
    dataset = MongoTupleheadDataset(config)
    assert int(dataset[0][1][0]) == 0
    fill(cache, 10)
    manager.step()
    assert cache.current() == 2
    assert int(dataset[1][1][0]) == 1  # not read yet
    assert int(dataset[0][1][0]) == 10  # read: now from the current one
    assert int(dataset[1][1][0]) == 11
    dataset.close()


def test_each_pass_reads_one_generation_and_asks_once_for_a_newer_one(config: dict[str, Any], cache: Cache) -> None:
    manager = GenerationManager(cache)
    fill(cache, 0)
    manager.step()
    with MongoTupleheadDataset(config) as dataset:
        numbers = [int(sample[1][0]) for sample in map(dataset.__getitem__, range(5))]
        asked: list[int] = []
        reader_cache, _ = dataset._open()
        current = reader_cache.current

        def noted() -> int:
            found = current()
            if threading.current_thread() is threading.main_thread():  # that of the lease asks, too, from time to time
                asked.append(found)
            return found

        reader_cache.current = noted  # type: ignore[method-assign]
        numbers += [int(dataset[id][1][0]) for id in range(2)]
        fill(cache, 10)
        manager.step()
        numbers += [int(dataset[id][1][0]) for id in (*range(2, 5), *range(5))]
    assert numbers == [0, 1, 2, 3, 4] * 2 + [10, 11, 12, 13, 14]
    assert asked == [1, 2]


def test_a_thread_that_reads_an_old_generation_slowly_does_not_interrupt_a_pass(
    config: dict[str, Any], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = GenerationManager(cache)

    def swap(start: int) -> None:
        fill(cache, start)
        while manager.step() is None:
            time.sleep(0.01)

    swap(0)
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        assert dataset[0][1][0] == 0
        reader = dataset._reader
        assert reader is not None
        has_read, goes_on, read = threading.Event(), threading.Event(), reader.read

        def slowly(generation: int, id: int, *more: Any) -> Any:
            sample = read(generation, id, *more)
            if threading.current_thread() is not threading.main_thread():
                has_read.set()
                goes_on.wait(60)
            return sample

        monkeypatch.setattr(reader, "read", slowly)
        thread = threading.Thread(target=dataset.__getitem__, args=(1,))
        thread.start()
        assert has_read.wait(60)
        swap(10)
        assert dataset[0][1][0] == 10
        goes_on.set()
        thread.join()
        swap(20)
        assert [dataset[id][1][0] for id in (1, 2)] == [11, 12]
        assert dataset[0][1][0] == 20


def test_a_generation_stays_while_a_reader_is_on_it(cache: Cache) -> None:
    manager = GenerationManager(cache)
    reader = Reader(cache, ("data", "label"))
    fill(cache, 0)
    manager.step()
    assert reader.pin_current(1) == 1
    fill(cache, 10)
    assert manager.step() is not None
    fill(cache, 20)
    assert manager.step() is None  # there would be four generations
    assert manager.blocked is not None
    assert "generation 1" in manager.blocked
    assert cache.store.generations() == [1, 2, 3]
    assert reader.read(1, 4)["label"][1][0] == 4
    assert reader.pin_current(1) == 2
    while (swap := manager.step()) is None:  # until the lease says so
        time.sleep(0.01)
    assert swap.generation == 3
    assert cache.store.generations() == [2, 3]
    with pytest.raises(CorruptSampleError, match="sample 4 of generation 1 is corrupt: it is missing"):
        reader.read(1, 4)
    reader.close()


def test_a_writer_goes_on_while_a_generation_is_verified_and_then_waits_for_its_swap(cache: Cache) -> None:
    stop, looks, current = threading.Event(), itertools.count(), cache.current
    writer, manager = Writer(cache, stop), GenerationManager(cache)
    assert [writer.put(sample) for sample in numbered(0, 10)] == [(g, i) for g in (1, 2) for i in range(5)]

    def stopping() -> int:
        if next(looks) == 5:
            stop.set()
        return current()

    cache.current = stopping  # type: ignore[method-assign]
    assert writer.put(next(numbered(10, 1))) is None
    assert cache.store.generations() == [1, 2]  # not into 3 before 1 is swapped
    stop.clear()
    swap = manager.step()
    assert swap is not None
    assert swap.generation == 1
    assert [writer.put(sample) for sample in numbered(10, 2)] == [(3, 0), (3, 1)]
    writer.close()
    swap = manager.step()
    assert swap is not None
    assert (swap.generation, swap.samples) == (2, 10)
    assert cache.store.generations() == [1, 2, 3]  # 1 has become old just now
    assert manager.step() is None
    reader = Reader(cache, ("label",))
    assert [int(reader.read(2, id)["label"][1][0]) for id in range(5)] == [5, 6, 7, 8, 9]
    reader.close()


def test_a_writer_goes_on_only_if_three_generations_are_enough(cache: Cache) -> None:
    manager, reader = GenerationManager(cache), Reader(cache, ("label",))
    fill(cache, 0)
    manager.step()
    assert reader.pin_current(1) == 1
    fill(cache, 10)
    assert manager.step() is not None
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
    assert manager._retire() == []
    assert writer.put(next(numbered(25, 1))) == (4, 0)
    assert cache.current() == 2
    assert generations() == [2, 3, 4]
    writer.close()


def test_a_writer_comes_back_for_a_sample_that_was_thrown_away(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(writing, "_LONGEST_LOOK", 0.0)  # at each put, however long the ones before took
    writer, manager = Writer(cache), GenerationManager(cache)
    stored = [writer.put(sample) for sample in numbered(0, 5)]
    lost = cache.sample(1, 3)
    assert lost is not None
    assert remove_chunk(cache, 1, chunk_names(lost, [0])[0])
    stored += [writer.put(sample) for sample in numbered(5, 2)]
    assert manager.step() is None
    stored += [writer.put(sample) for sample in numbered(7, 2)]
    assert stored == [*((1, id) for id in range(5)), (2, 0), (2, 1), (1, 3), (2, 2)]
    swap = manager.step()
    assert swap is not None
    assert (swap.generation, swap.deleted) == (1, 1)
    assert [writer.put(sample) for sample in numbered(9, 2)] == [(2, 3), (2, 4)]
    assert manager.step() is not None
    writer.close()


def test_a_writer_that_comes_back_too_late_goes_on_with_the_next_generation(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(writing, "_LONGEST_LOOK", 0.0)  # at each put, however long the ones before took
    writer, other, manager = Writer(cache), Writer(cache), GenerationManager(cache)
    for sample in numbered(0, 6):
        assert writer.put(sample) is not None
    lost = cache.sample(1, 3)
    assert lost is not None
    assert remove_chunk(cache, 1, chunk_names(lost, [0])[0])
    assert manager.step() is None
    samples = cache.samples

    def filled_meanwhile(generation: int, block: int, versions: Any) -> Any:
        found = samples(generation, block, versions)
        cache.samples = samples  # type: ignore[method-assign]
        assert other.put(next(numbered(50, 1))) == (1, 3)
        assert manager.step() is not None
        return found

    cache.samples = filled_meanwhile  # type: ignore[method-assign]
    stored = writer.put(next(numbered(6, 1)))
    assert stored is not None
    assert (stored[0], stored[1] > 0) == (2, True)
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
            assert GenerationManager(cache).step() is not None

    cache.store.write_chunks = swap_first  # type: ignore[method-assign]
    assert late.put(next(numbered(99, 1))) == (2, 0)
    reader = Reader(cache, ("label",))
    assert reader.read(2, 0)["label"][1][0] == 99
    for writer in (late, others):
        writer.close()
    reader.close()


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
