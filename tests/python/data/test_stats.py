"""What a loader says about itself."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Gated, Ints

from headrace.data import DataLoader, IterableDataset
from headrace.data._reports.stats import bottleneck, summarize
from headrace.data._workers.stalls import TimeLimit


class Arrays(Ints):
    def __getitem__(self, index: int) -> Any:
        return np.zeros((64, 64), np.float32)


class Sleepy(Ints):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.003)
        return index


def counters(**given: float) -> dict[str, Any]:
    return {
        "elapsed_s": 10.0,
        "batches": 100,
        "consumer_wait_s": 0.0,
        "worker_busy_s": 0.0,
        "dataset_s": 0.0,
        "collate_s": 0.0,
        "copy_s": 0.0,
        **given,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batches": 0}, "No batch has been taken yet"),
        ({"consumer_wait_s": 0.2, "worker_busy_s": 3.0}, "the consumer is the bottleneck"),
        ({"consumer_wait_s": 8.0, "worker_busy_s": 19.0, "dataset_s": 15.0}, "the dataset takes 79%"),
        ({"consumer_wait_s": 8.0, "worker_busy_s": 19.0, "collate_s": 15.0}, "collation takes 79%"),
        ({"consumer_wait_s": 8.0, "worker_busy_s": 19.0, "copy_s": 15.0}, "copying takes 79%"),
        ({"consumer_wait_s": 8.0, "worker_busy_s": 4.0}, "neither side is the bottleneck"),
    ],
    ids=str,
)
def test_the_bottleneck_is_named(given: dict[str, float], words: str) -> None:
    assert words in bottleneck(counters(**given), workers=2)
    summary = summarize(counters(samples=0, bytes=0, **given), workers=1, threads=2)
    assert summary["bottleneck"] == bottleneck(counters(**given), workers=2)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}], ids=str)
def test_samples_bytes_and_times_are_counted(arguments: dict[str, Any]) -> None:
    loader = DataLoader(Arrays(80), 8, seed=1, **{**arguments, **({"persistent_workers": False} if arguments else {})})
    assert loader.stats() == {}
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["batches"] == 10
    assert stats["samples"] == 80
    assert stats["bytes"] == 80 * 64 * 64 * 4
    assert stats["samples_per_s"] == 80 / stats["elapsed_s"]
    assert stats["bytes_per_s"] == 80 * 64 * 64 * 4 / stats["elapsed_s"]
    assert 0 < stats["copy_s"] < stats["worker_busy_s"] < stats["elapsed_s"] * max(1, loader.num_workers)
    assert stats["held_slots"] <= 1
    assert stats["bottleneck"] == bottleneck(stats, max(1, loader.num_workers))


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_a_row_that_is_held_up_does_not_stand_for_others(workers: str) -> None:
    class HeldUp(Ints):
        def __getitem__(self, index: int) -> int:
            if index % 64 == 63:  # the last row of a batch, which is one of those that are timed
                time.sleep(0.002)
            return index

    loader = DataLoader(HeldUp(6400), 64, num_workers=2, workers=workers, persistent_workers=False)
    for _ in loader:
        pass
    stats = loader.stats()
    assert 0 < stats["dataset_s"] + stats["copy_s"] <= stats["worker_busy_s"]


# A sleep lasts at least as long as requested: these lower bounds hold however slow the machine is.


@pytest.mark.parametrize("kind", ["rows", "out", "many", "collate_fn", "stream"])
def test_the_time_of_the_dataset_is_counted(kind: str) -> None:
    class Many(Ints):
        def __getitems__(self, indices: list[int]) -> list[int]:
            time.sleep(0.003 * len(indices))
            return indices

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            for index in range(80):
                time.sleep(0.003)
                yield index

    class Filling(Ints):
        def __getitem__(self, index: int, out: Any = None) -> Any:
            time.sleep(0.003)
            return np.full(3, index)

    dataset = {"rows": Sleepy, "out": Filling, "many": Many, "collate_fn": Sleepy, "stream": lambda _: Stream()}[kind]
    collate = list if kind == "collate_fn" else None
    loader = DataLoader(dataset(80), 4, num_workers=2, persistent_workers=False, collate_fn=collate)
    for _ in loader:
        pass
    stats = loader.stats()
    assert 80 * 0.003 <= stats["dataset_s"] <= stats["worker_busy_s"]


@pytest.mark.parametrize("collators", [1, 2])
def test_the_time_of_collate_fn_is_counted(collators: int) -> None:
    def collate(samples: list[Any]) -> Any:
        time.sleep(0.01)
        return samples

    loader = DataLoader(
        Ints(40), 2, num_workers=2, num_workers_batches=collators, collate_fn=collate, persistent_workers=False
    )
    for _ in loader:
        pass
    stats = loader.stats()
    assert 20 * 0.01 <= stats["collate_s"] <= stats["worker_busy_s"]


def test_the_time_that_the_consumer_waits_is_counted_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Gated(20, 0)
    # Called when a batch has taken half of the timeout: sample 0 is made only after the consumer has waited for it.
    monkeypatch.setattr(TimeLimit, "note", lambda limit: dataset.gate.set())
    loader = DataLoader(dataset, 2, num_workers=1, timeout=0.4)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats()["consumer_wait_s"] >= 0.2
    begin = loader.stats()
    for _ in iterator:
        time.sleep(0.02)
    end = loader.stats()
    elapsed, waited = (end[name] - begin[name] for name in ("elapsed_s", "consumer_wait_s"))
    assert waited <= elapsed - 9 * 0.02


def test_the_time_that_workers_wait_is_counted() -> None:
    loader = DataLoader(Ints(40), 2, num_workers=1, prefetch_factor=2)
    iterator = iter(loader)
    next(iterator)
    while loader.stats()["ready_batches"] < 2:
        time.sleep(0.001)
    begin = loader.stats()["worker_wait_s"]
    time.sleep(1)  # so that it has begun to wait long before the end
    next(iterator)
    while loader.stats()["ready_batches"] < 2:  # so that its wait has ended
        time.sleep(0.001)
    assert loader.stats()["worker_wait_s"] - begin >= 0.1


def test_a_progress_bar_counts_batches(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Ints(20), 2, num_workers=1, progress=True)
    assert len(list(loader)) == 10
    assert "10/10" in capsys.readouterr().err
    iterator = iter(loader)
    assert len(iterator) == 10
    for _ in range(4):
        next(iterator)
    loader.load_state_dict(loader.state_dict())
    del iterator
    assert "4/10" in capsys.readouterr().err
    assert len(list(loader)) == 6
    shown = capsys.readouterr().err
    assert "4/10" in shown
    assert "10/10" in shown


def test_a_progress_bar_counts_batches_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Gated(20, 0)
    loader = DataLoader(dataset, 2, num_workers=3, in_order=False, progress=True)
    iterator = iter(loader)
    for _ in range(9):
        next(iterator)
    del iterator
    assert "9/10" in capsys.readouterr().err
    dataset.gate.set()


def test_a_progress_bar_needs_no_length(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Ints(20), 2, sampler=(i for i in range(6)), progress=True)
    assert len(list(loader)) == 3
    assert "3batch" in capsys.readouterr().err


def test_a_progress_bar_without_tqdm_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        DataLoader(Ints(20), progress=True)
