"""How many batches are in flight: as many as keep the consumer from waiting, where batches are large."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints

from headrace.data import DataLoader

VOLUME = 3 << 19


class Volumes(Ints):
    def __getitem__(self, index: int) -> Any:
        return np.full(VOLUME, index % 251, np.uint8)


class Together(Ints):
    """Samples that are made only while so many workers are making one: all of them, or the first ones."""

    def __init__(self, length: int, workers: int, always: bool) -> None:
        super().__init__(length)
        self.end = length if always else workers
        self.barrier = multiprocessing.get_context("fork").Barrier(workers)

    def __getitem__(self, index: int) -> Any:
        if index < self.end:
            self.barrier.wait(60)
        return np.full(VOLUME, index % 251, np.uint8)


def stats_once_all_are_ready(loader: DataLoader) -> dict[str, Any]:
    deadline = time.monotonic() + 100
    while True:
        stats = loader.stats()
        if stats["ready_batches"] == stats["open_batches"]:
            return stats
        assert time.monotonic() < deadline, stats
        time.sleep(0.001)


@pytest.mark.parametrize("collate", [None, np.stack], ids=["default", "own"])
def test_a_consumer_that_is_slower_than_the_workers_has_few_large_batches_in_flight(collate: Any) -> None:
    loader = DataLoader(Volumes(800), batch_size=2, num_workers=8, collate_fn=collate)
    most = 0
    for number, batch in enumerate(loader):
        assert (batch[1] == (2 * number + 1) % 251).all()
        stats = stats_once_all_are_ready(loader)
        if number > 40:
            # The loop holds a batch while it asks for the next.
            most = max(most, stats["open_batches"] + stats["held_slots"] + 1)
            assert stats["slots_used"] <= 4, stats
        if number == 60:
            break
    assert most <= 4
    assert stats["prefetch"] == 2
    assert loader.prefetch_factor == (8 if collate is None else 32)  # one worker makes a whole batch for np.stack


def test_small_batches_are_all_in_flight() -> None:
    loader = DataLoader(Ints(1000), batch_size=2, num_workers=2, prefetch_factor=8)
    batches = iter(loader)
    for _ in range(100):
        next(batches)
        stats = stats_once_all_are_ready(loader)
        assert stats["open_batches"] == stats["prefetch"] == 8


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 1},
        {"batch_size": None},
        {"batch_size": 2},
        {"batch_size": 4, "collate_fn": np.stack, "num_workers_batches": 6},
    ],
    ids=["one", "none", "two", "own"],
)
def test_a_consumer_that_waits_has_all_workers_at_work(arguments: dict[str, Any]) -> None:
    workers = 6
    loader = DataLoader(
        Together(48, workers, always=False),
        num_workers=workers,
        multiprocessing_context="fork",
        prefetch_factor=12,
        **arguments,
    )
    rows = [np.asarray(batch).reshape(-1, VOLUME)[:, 0] for batch in loader]
    assert np.concatenate(rows).tolist() == list(range(48))


def test_workers_that_run_out_of_work_get_more_of_it_later_on() -> None:
    workers = 4
    loader = DataLoader(
        Together(64, workers, always=True),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork",
        prefetch_factor=12,
    )
    for epoch in range(2):
        loader.set_epoch(epoch)
        for number, _ in enumerate(loader):
            if number % 8 == 0:  # a pause in which workers run out of work
                time.sleep(0.02)
