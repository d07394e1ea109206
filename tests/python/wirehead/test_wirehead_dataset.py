"""The datasets' own: names of arrays, forks, shares of a generation."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.wirehead._datasets.ranks as ranks
import headrace.wirehead._protocol.reader as readers
import headrace.wirehead._stores.store as stores
from headrace import DataLoader
from headrace.wirehead import MongoheadDataset, MongoTupleheadDataset, WireheadGenerator
from headrace.wirehead._datasets.sampler import FIRST_ROUND, GenerationSampler
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.writer import Writer

FORK = multiprocessing.get_context("fork")


def make(keys: dict[str, Any], *samples: Any) -> None:
    """A cache with one generation."""
    cache = Cache(keys)
    writer, manager = Writer(cache), GenerationManager(cache)
    for sample in samples:
        assert writer.put(sample) is not None
    assert manager.step() is not None
    writer.close()
    manager.close()
    cache.close()


def test_a_dataset_says_what_it_reads(tmp_path: Path) -> None:
    keys = {"DBNAME": "brains", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1}
    make(keys, (1, 2))
    with MongoheadDataset(keys) as dataset:
        assert dataset[[0]]
        assert repr(dataset) == f"<MongoheadDataset of brains at {tmp_path / 'brains.wirehead'}, generation 1>"
        assert repr(dataset.sampler(seed=1)) == "<GenerationSampler of length 1>"


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        (["data"], ["input"]),
        (["data", "label"], ["input", "label"]),
        (["label", "data"], ["input", "label"]),
        (["image", "mask", "weight"], ["input", "label", "weight"]),
        (["image", "mask", "label"], ["input", "mask", "label"]),
        (["image", "mask", "input"], ["image", "label", "input"]),
        (["image", "mask", "label", "input"], ["image", "mask", "label", "input"]),
        (["label", "mask", "input"], ["label", "mask", "input"]),
    ],
)
def test_every_array_has_a_name_of_its_own(tmp_path: Path, kinds: list[str], names: list[str]) -> None:
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1, "SAMPLE": kinds}
    make(keys, tuple(range(len(kinds))))
    with MongoheadDataset(keys, to="numpy") as dataset:
        sample = dataset[0]
        assert list(sample) == names
        assert [int(array) for array in sample.values()] == list(range(len(kinds)))


@pytest.mark.parametrize("is_open", [True, False])
def test_a_child_forked_while_a_thread_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_open: bool) -> None:
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 2}
    make(keys, (1, 2), (3, 4))
    with MongoTupleheadDataset(keys, to="numpy") as dataset:
        if not is_open:
            dataset.close()
        reading, forked = threading.Event(), threading.Event()
        open_it = dataset._open

        def wait() -> tuple[Any, Any]:
            if threading.current_thread() is not threading.main_thread():
                reading.set()
                forked.wait(120)
            return open_it()

        monkeypatch.setattr(dataset, "_open", wait)
        thread = threading.Thread(target=dataset.__getitem__, args=(0,))
        thread.start()
        assert reading.wait(60)  # and holds the dataset's lock
        receiver, sender = FORK.Pipe(False)
        child = FORK.Process(target=lambda: sender.send([int(a) for a in dataset[1]]), daemon=True)
        child.start()
        try:
            assert receiver.poll(100), "the child waits for a thread that it does not have"
            assert receiver.recv() == [3, 4]
        finally:
            forked.set()
            thread.join()
            child.kill()
            child.join()
        assert np.array_equal(dataset[0][0], 1)


def test_a_program_ends_soon_though_closing_takes_long(tmp_path: Path) -> None:
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1}
    make(keys, (1, 2))

    def read() -> None:
        dataset = MongoTupleheadDataset(keys, to="numpy")
        dataset[0]
        cache = dataset._cache
        assert cache is not None
        cache.store.remove = lambda table, key: time.sleep(60)  # type: ignore[method-assign]
        started.send(os.getpid())

    receiver, started = FORK.Pipe(False)
    child = FORK.Process(target=read, daemon=True)
    child.start()
    assert receiver.poll(60)
    since = time.monotonic()
    child.join(50)
    took = time.monotonic() - since
    child.kill()
    assert child.exitcode == 0
    assert took < 40  # 60 without a bound


def ids(sampler: Any) -> list[int]:
    return [(index - FIRST_ROUND) % sampler._cap for index in sampler]


@pytest.mark.parametrize(("cap", "world"), [(12, 3), (11, 4), (5, 5), (7, 2)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_processes_share_a_generation_out(cap: int, world: int, shuffle: bool) -> None:
    shards = [GenerationSampler(cap, shuffle, seed=3, shard=(rank, world)) for rank in range(world)]
    whole = GenerationSampler(cap, shuffle, seed=3)
    seen: set[int] = set()
    for _ in range(4):
        order = ids(whole)
        parts = [ids(shard) for shard in shards]
        assert all(len(part) == len(shards[0]) == cap // world for part in parts)
        assert [sample for row in zip(*parts) for sample in row] == order[: cap // world * world]
        seen.update(sample for part in parts for sample in part)
    assert len(seen) == cap or not shuffle  # what one round leaves out another has


def test_a_share_may_be_read_from_anywhere_on_and_without_an_end() -> None:
    sampler = GenerationSampler(7, seed=3, infinite=True, shard=(1, 2))
    start = [int(index) for index in sampler.order(0, 0, 20)]
    assert [int(index) for index in sampler.order(0, 5, 20)] == start[5:]
    assert len(sampler) == 3 << 32
    rounds = [(index - FIRST_ROUND) // 7 for index in start]
    assert [rounds.count(round) for round in sorted(set(rounds))][:6] == [3] * 6


def test_the_environment_says_which_share(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    with pytest.raises(ValueError, match="pass shard="):
        GenerationSampler(8, seed=1, shard="environment")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert GenerationSampler(8, seed=1, shard="environment").rank == 3
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = GenerationSampler(8, seed=1, shard="environment")
    assert (sampler.rank, sampler.num_replicas) == (1, 2)


def test_a_warning_where_processes_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_warned", False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(GenerationSampler(4, seed=1, shard="environment"))
    with pytest.warns(RuntimeWarning, match=r'one of 2.*sampler\(shard="environment", seed=…\)'):
        list(GenerationSampler(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(GenerationSampler(4))  # once is enough


@pytest.mark.parametrize(
    ("shard", "error", "message"),
    [
        ((0, 0), ValueError, "0 <= rank < world"),
        ((2, 2), ValueError, "0 <= rank < world"),
        ((0, 9), ValueError, "too few for 9 processes"),
        ((0, 1.0), TypeError, "two whole numbers"),
        (3, TypeError, "two whole numbers"),
        ("everywhere", ValueError, "must be"),
    ],
)
def test_shards_that_cannot_be(shard: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GenerationSampler(8, seed=1, shard=shard)


@pytest.mark.parametrize("seed", ["x", 1.5, [1]])
def test_seeds_that_cannot_be(seed: Any) -> None:
    with pytest.raises(TypeError, match="seed must be a whole number, or None, got"):
        GenerationSampler(8, seed=seed)


def test_a_shared_random_order_needs_a_seed() -> None:
    with pytest.raises(ValueError, match="pass the same seed= in all processes"):
        GenerationSampler(8, shard=(0, 2))
    assert len(GenerationSampler(8, shuffle=False, shard=(0, 2))) == 4


def test_a_loader_does_not_share_out_a_share() -> None:
    sampler = GenerationSampler(8, seed=1, shard=(0, 2))
    with pytest.raises(ValueError, match="most samples would never be delivered"):
        DataLoader(list(range(8)), sampler=sampler, shard=(0, 2))


def test_a_reader_remembers_a_bounded_number_of_descriptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_MOST_DESCRIPTIONS", 3)
    monkeypatch.setattr(stores, "_SMALLEST_BLOCK", 4)
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 8}
    make(keys, *[(i, i) for i in range(8)])
    with MongoTupleheadDataset(keys, to="numpy") as dataset:
        for _ in range(2):
            assert [int(dataset[i][0]) for i in range(8)] == list(range(8))
        assert dataset._reader is not None
        assert [len(known) for known in dataset._reader._descriptions.values()] == [3]


def test_the_descriptions_of_a_small_generation_are_one_request(tmp_path: Path) -> None:
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 8}
    make(keys, *[(i, i) for i in range(8)])
    asked: list[tuple[str, str]] = []
    with MongoTupleheadDataset(keys, to="numpy") as dataset:
        assert dataset._cache is not None
        store: Any = dataset._cache.store
        find, scan = store.find, store.scan
        store.find = lambda table, key: [asked.append(("find", table)), find(table, key)][1]
        store.scan = lambda table: [asked.append(("scan", table)), scan(table)][1]
        assert [int(dataset[i][0]) for i in range(8)] == list(range(8))
    assert [how for how, table in asked if table == stores.samples_table(1, 0)] == ["scan"]


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        *(("timeout", value, "timeout must be a number of seconds") for value in ("x", None, -1, float("nan"))),
        *(
            ("sample", value, r"sample must be a list of different names of SAMPLE \['data', 'label'\]")
            for value in ("data", ["mask"], [], ["data", "data"], 3)
        ),
        ("transform", 3, "transform must be a function of an array, or None, got 3"),
        ("normalize", "unit", "normalize must be a function of an array, or None, got 'unit'"),
        ("to", "jax", 'to must be "numpy", "torch" or None, got \'jax\''),
        ("on_corrupt", "ignore", 'on_corrupt must be "raise" or "skip", got \'ignore\''),
    ],
)
def test_an_argument_that_cannot_be_is_named(tmp_path: Path, argument: str, value: Any, message: str) -> None:
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1}
    with pytest.raises((TypeError, ValueError), match=message):
        MongoheadDataset(keys, **{argument: value})


@pytest.mark.parametrize(
    ("generator", "n_samples", "message"),
    [
        (3, None, "generator must yield samples; got 3"),
        (lambda: iter(()), None, "got a generator function; call it and pass the result"),
        ((), -1, "n_samples must be a whole number from 0 to 9223372036854775807, or None, got -1"),
        ((), 1.5, r"n_samples must be a whole number from 0 to 9223372036854775807, or None, got 1\.5"),
        ((), 10**30, "n_samples must be a whole number from 0 to 9223372036854775807, or None, got 10000000000"),
        ((), True, "n_samples must be a whole number from 0 to 9223372036854775807, or None, got True"),
    ],
)
def test_a_generator_that_cannot_be_is_named(tmp_path: Path, generator: Any, n_samples: Any, message: str) -> None:
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": 1}
    with pytest.raises((TypeError, ValueError), match=message):
        WireheadGenerator(generator, keys, n_samples)
