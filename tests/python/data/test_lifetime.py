"""However a loader is dropped, its workers, memory and descriptors go with it."""

from __future__ import annotations

import gc
import multiprocessing
import resource
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_processes import open_descriptors
from loader_datasets import Ints, Vectors

import headrace
from headrace.data import DataLoader


def workers() -> list[int]:
    return [
        process.pid or 0
        for process in multiprocessing.active_children()
        if process.name.startswith("headrace-worker") and process.is_alive()
    ]


class Trainer:
    """Holds a loader and its iterator, which in turn hold the trainer."""

    def __init__(self, **arguments: Any) -> None:
        self.loader = DataLoader(self, batch_size=2, **arguments)
        self.iterator = iter(self.loader)
        self.first = next(self.iterator)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> Any:
        return np.array(samples)


class CollatingTrainer(Trainer):
    def __init__(self, **arguments: Any) -> None:
        super().__init__(collate_fn=self.collate, **arguments)


@pytest.mark.parametrize("kind", ["in this process", "processes", "threads"])
@pytest.mark.parametrize("cls", [Trainer, CollatingTrainer])
def test_a_loader_in_a_reference_cycle_is_collected_with_its_workers(cls: type[Trainer], kind: str) -> None:
    before = set(threading.enumerate())
    arguments: dict[str, Any] = {"processes": {"num_workers": 2}, "threads": {"num_workers": 2, "workers": "thread"}}
    trainer = cls(**arguments.get(kind, {}))
    assert len(workers()) == (2 if kind == "processes" else 0)
    assert len(set(threading.enumerate()) - before) == (2 if kind == "threads" else 0)
    gone = weakref.ref(trainer)
    del trainer
    while set(threading.enumerate()) - before or gone() is not None:  # a thread may be making a sample of the trainer
        gc.collect()
    assert not workers()


def test_an_iterator_abandoned_half_way_leaves_nothing() -> None:
    before = open_descriptors()
    loader = DataLoader(Ints(40), 2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert len(list(loader)) == 20
    del loader
    gc.collect()
    assert not workers()
    assert open_descriptors() <= before


def test_a_deleted_loader_leaves_its_iterator_whole() -> None:
    iterator = iter(DataLoader(Ints(40), 2, num_workers=2))
    gc.collect()
    assert [batch.tolist() for batch in iterator] == [[i, i + 1] for i in range(0, 40, 2)]
    gc.collect()
    assert not workers()


def test_shutdown_gives_back_memory_and_descriptors() -> None:
    def shared_kib() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssShmem"):
                return int(line.split()[1])
        raise AssertionError("no RssShmem")

    before, shared = open_descriptors(), shared_kib()
    loader = DataLoader(Vectors(64), 4, num_workers=2)
    assert len(list(loader)) == 16
    assert open_descriptors() - before
    loader.shutdown()
    assert open_descriptors() <= before
    assert shared_kib() <= shared
    assert loader.stats()["batches"] == 16


def test_shutdown_in_the_middle_gives_back_descriptors() -> None:
    before = open_descriptors()
    loader = DataLoader(Vectors(64), 4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    loader.shutdown()
    assert open_descriptors() <= before
    with pytest.raises(headrace.errors.FailedPrecondition, match="shut down"):
        next(iterator)


def test_a_batch_kept_over_a_shutdown_stays_as_it_is() -> None:
    before = open_descriptors()
    loader = DataLoader(Ints(64), 4, num_workers=2)
    batches = [batch for batch, _ in zip(loader, range(5))]
    loader.shutdown()
    gc.collect()
    assert [batch.tolist() for batch in batches] == [list(range(i, i + 4)) for i in range(0, 20, 4)]
    assert len(list(loader)) == 16
    loader.shutdown()
    del batches
    gc.collect()
    assert open_descriptors() <= before


@pytest.mark.parametrize(
    "arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}], ids=["none", "processes", "threads"]
)
def test_a_batch_kept_over_a_shutdown_keeps_its_own_memory_only(arguments: dict[str, Any]) -> None:
    loader = DataLoader(Vectors(64, (1 << 18,)), 4, **arguments)  # 4 MiB a batch
    batches = [batch for batch, _ in zip(loader, range(6))]
    kept = batches[3]
    del batches
    engine = loader._epochs.latest_engine()
    assert engine is not None
    stats = engine.scheduler.stats
    assert stats()["resident_bytes"] > (4 << 20)
    loader.shutdown()
    assert (4 << 20) <= stats()["resident_bytes"] < (5 << 20)
    assert kept[0][:, 7].tolist() == [12, 13, 14, 15]
    del kept
    gc.collect()
    assert stats()["resident_bytes"] < (1 << 20)


def test_keeping_many_batches_leaves_no_descriptors() -> None:
    before = open_descriptors()
    loader = DataLoader(Ints(600), 1, num_workers=1)
    kept = list(loader)
    assert [batch.tolist() for batch in kept] == [[i] for i in range(600)]
    del kept, loader
    gc.collect()
    assert open_descriptors() <= before


@pytest.mark.parametrize("free", range(1, 16, 2))
def test_a_construction_that_fails_leaves_nothing(free: int) -> None:
    before = open_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + free, hard))
    try:
        with pytest.raises((OSError, MemoryError)):
            iter(DataLoader(Ints(4), num_workers=8))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    gc.collect()
    assert not workers()
    assert open_descriptors() <= before


def test_two_loaders_at_once() -> None:
    first, second = (DataLoader(Ints(30), 3, shuffle=True, seed=seed, num_workers=2) for seed in (1, 2))
    expected = [list(DataLoader(Ints(30), 3, shuffle=True, seed=seed)) for seed in (1, 2)]
    together = list(zip(first, second))
    for number in range(2):
        assert [pair[number].tolist() for pair in together] == [batch.tolist() for batch in expected[number]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_in_a_thread_of_its_own(num_workers: int) -> None:
    got: list[Any] = []

    def nested() -> None:
        inner = threading.Thread(
            target=lambda: got.extend(batch.tolist() for batch in DataLoader(Ints(6), 2, num_workers=num_workers))
        )
        inner.start()
        inner.join()

    outer = threading.Thread(target=nested)
    outer.start()
    outer.join()
    assert got == [[0, 1], [2, 3], [4, 5]]
