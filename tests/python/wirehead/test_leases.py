"""Leases: who counts as dead, and what one does that has stood still."""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from damage import bury
from numbered import fill, numbered, swaps

from headrace.wirehead import MongoTupleheadDataset
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.process import has_ended, whose
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.watch import Watch
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import GRAVES, LEASES, chunk_name, samples_table


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


@pytest.fixture
def paused(config: dict[str, Any], cache: Cache) -> Iterator[Any]:
    """A dataset that has read sample 0 in a round of a sampler. Swaps drop its generation once it is idle for LEASE."""
    swaps(cache, 10, 1)
    with MongoTupleheadDataset({**config, "LEASE": 0.3}, to="numpy") as dataset:
        order = list(dataset.sampler(shuffle=False))
        assert dataset[order[0]][1][0] == 10
        yield dataset, order


def test_a_pause_within_an_epoch_longer_than_LEASE_mixes_generations_with_a_warning(
    paused: Any, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    dataset, order = paused
    assert dataset[order[1]][1][0] == 11
    swaps(cache, 20, 1)
    assert [int(dataset[index][1][0]) for index in order[2:]] == [22, 23, 24]
    assert [r.getMessage() for r in caplog.records if "mixes generations" in r.getMessage()] == [
        "this epoch mixes generations: it continues with generation 2, because the one that it began with was dropped "
        "while this process read nothing for LEASE (0.3) seconds. If training pauses for longer, raise LEASE in its "
        "configuration"
    ]


def test_a_standstill_after_generations_were_mixed_goes_on_with_the_later_one(
    paused: Any, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    dataset, order = paused
    swaps(cache, 20, 1)
    for number, index in enumerate(order[1:], 21):
        assert dataset[index][1][0] == number
        with dataset._reader._lease._lock:
            dataset._reader._lease._renewed -= 1000
    said = [r.getMessage() for r in caplog.records if "mixes generations" in r.getMessage()]
    assert len(said) == 1
    assert "it continues with generation 2, " in said[0]


def test_a_worker_that_begins_with_an_epoch_long_after_others_warns(
    paused: Any, cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    dataset, order = paused
    with pickle.loads(pickle.dumps(dataset)) as late:
        swaps(cache, 20, 4)  # what was agreed on about generation 1 is not known any more
        assert late[order[1]][1][0] == 51
    assert sum("mixes generations" in record.getMessage() for record in caplog.records) == 1


def test_a_worker_that_comes_to_two_rounds_after_their_generations_are_gone_finds_no_damage(
    config: dict[str, Any], cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    swaps(cache, 10, 1)
    with MongoTupleheadDataset(config, to="numpy") as dataset, pickle.loads(pickle.dumps(dataset)) as late:
        order = [int(index) for index in dataset.sampler(shuffle=False, infinite=True).order(0, 0, 10)]
        assert dataset[order[0]][1][0] == 10
        fill(cache, 20)
        manager = GenerationManager(cache)
        assert manager.step() is not None
        assert dataset[order[5]][1][0] == 20
        dataset.close()
        manager.close()
        swaps(cache, 30, 1)
        assert [int(late[order[index]][1][0]) for index in (1, 6, 2, 7)] == [31, 31, 32, 32]
    assert sum("mixes generations" in message for message in caplog.messages) == 2


def test_a_reader_that_stood_still_is_not_sure_of_any_generation_that_it_had(
    config: dict[str, Any], cache: Cache
) -> None:
    swaps(cache, 10, 1)
    manager = GenerationManager(cache)
    with contextlib.closing(Reader(cache, ("label",))) as reader:
        reader.pin_current(1)
        fill(cache, 20)
        assert manager.step() is not None
        assert reader.pin_current(1, keep=True) == 2
        assert reader.is_certain(1)
        assert reader.is_certain(2)
        reader._lease._renewed -= 1000
        bury(cache, [reader._lease.key])
        manager.close()
        swaps(cache, 30, 1)
        assert not reader.is_certain(2)
        assert reader.pin_current(1, keep=True) == 3
        assert (reader.is_certain(2), reader.is_certain(3)) == (False, True)
        reader.pin(2)
        assert (reader.is_certain(2), reader.is_certain(3)) == (False, True)


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


def test_a_lease_that_is_renewed_too_late_never_looks_alive(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lease, "_renew", lambda lease: None)  # the only renewal is the one below
    lease, clock = Lease(cache, "reader"), cache.clock
    lease.pin([1])
    lease._renewed -= 2 * cache.config.lease  # this process stood still
    renewal = threading.Thread(target=lease._write)

    def renewed_meanwhile() -> float:
        if not renewal.ident:
            renewal.start()
            renewal.join(0.2)
        return clock()

    monkeypatch.setattr(cache, "clock", renewed_meanwhile)
    assert not lease.is_alive()
    renewal.join()
    assert not lease.is_alive()
    assert not lease.keeps(1)
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
    stored = writer.put(next(numbered(1, 1)))
    assert stored is not None
    assert writer._lease.key != first.key
    with contextlib.closing(Reader(cache, ("label",))) as reader:
        assert reader.read(*stored)["label"][1][0] == 1
    writer.close()
    cache.close()


def test_what_a_dead_writer_has_left_half_done_holds_nobody_up_and_goes_with_its_generation(
    config: dict[str, Any],
) -> None:
    clock = [1000.0]  # stands still while samples are put
    cache = Cache(config, clock=lambda: clock[0])
    writer, manager = Writer(cache), GenerationManager(cache)
    writer.put(next(numbered(0, 1)))
    assert writer._lease is not None
    name = chunk_name(3, writer._lease.key, 1, 0)
    cache.store.write_chunks(1, {name: b"half"})
    writer._lease.abandon()
    rest = Writer(cache)
    for sample in numbered(1, 14):
        while cache.current() + 2 <= cache.store.generations()[-1]:
            manager.step()
        rest.put(sample)
    while 1 in cache.store.generations():
        clock[0] += cache.config.lease / 10
        manager.step()
    assert next(cache.store.read_chunks(1, [name])) is None
    rest.close()
    cache.close()


def test_a_process_that_its_parent_has_not_waited_for_has_ended() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    lease = {**whose(), "pid": process.pid}
    assert has_ended(lease)
    process.wait()
    assert has_ended(lease)


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
