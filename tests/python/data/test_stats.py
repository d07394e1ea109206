"""What a loader says of itself."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints

from headrace.data import DataLoader
from headrace.data._stats import bottleneck


class Arrays(Ints):
    def __getitem__(self, index: int) -> Any:
        return np.zeros((64, 64), np.float32)


class Slow(Ints):
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
        ({"consumer_wait_s": 8.0, "worker_busy_s": 4.0}, "neither has enough to do"),
    ],
    ids=str,
)
def test_the_bottleneck_is_named(given: dict[str, float], words: str) -> None:
    assert words in bottleneck(counters(**given), workers=2)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "thread"}], ids=str)
def test_samples_bytes_and_times_are_counted(arguments: dict[str, Any]) -> None:
    loader = DataLoader(Arrays(80), 8, seed=1, **arguments)
    assert loader.stats() == {}
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["batches"] == 10
    assert stats["samples"] >= 80
    assert stats["bytes"] >= 80 * 64 * 64 * 4
    assert stats["samples_per_s"] > 0
    assert stats["bytes_per_s"] > stats["samples_per_s"]
    assert 0 < stats["copy_s"] < stats["worker_busy_s"] < stats["elapsed_s"] * 2
    assert stats["held_slots"] <= 1
    assert stats["bottleneck"].endswith((".", "!"))


def test_slow_datasets_are_what_is_waited_for() -> None:
    loader = DataLoader(Slow(200), 4, num_workers=2)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["dataset_s"] > 0.9 * stats["worker_busy_s"]
    assert stats["consumer_wait_s"] > 0.5 * stats["elapsed_s"]
    assert "the dataset" in stats["bottleneck"]


def test_slow_consumers_are_told_so() -> None:
    loader = DataLoader(Ints(60), 2, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    before = loader.stats()  # the start of the workers is another matter
    for _ in iterator:
        time.sleep(0.02)
    after = loader.stats()
    since = {name: after[name] - before[name] for name in counters()}
    assert "the consumer is the bottleneck" in bottleneck(since, workers=1)


def test_time_in_collate_fn_is_collation() -> None:
    def collate(samples: list[Any]) -> Any:
        time.sleep(0.01)
        return samples

    loader = DataLoader(Ints(60), 2, num_workers=1, collate_fn=collate)
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["collate_s"] > 0.8 * stats["worker_busy_s"]


def test_a_progress_bar_counts_batches(capsys: pytest.CaptureFixture[str]) -> None:
    loader = DataLoader(Ints(20), 2, num_workers=1, progress=True)
    assert len(list(loader)) == 10
    assert "10/10" in capsys.readouterr().err


def test_a_progress_bar_without_tqdm_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        DataLoader(Ints(20), progress=True)
