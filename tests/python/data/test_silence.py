"""Without a timeout, a warning says when no batch comes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.data import DataLoader, IterableDataset
from headrace.data._workers import stalls
from headrace.fluid import core


class Gated:
    """Sample 5 waits for a file."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        while index == 5 and not self.gate.exists():
            self.wait_at_the_gate()
        return index

    def wait_at_the_gate(self) -> None:
        time.sleep(0.01)


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_a_warning_names_worker_sample_and_stack(workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def warn(text: str) -> None:
        if "index 5" in text and "wait_at_the_gate" in text:  # not in the check of the file
            told.append(text)
            (tmp_path / "gate").touch()

    monkeypatch.setattr(stalls, "_SILENCE", 0.5)
    monkeypatch.setattr(stalls, "warn", warn)
    batches = list(DataLoader(Gated(tmp_path / "gate"), batch_size=2, num_workers=2, workers=workers))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert re.match(r"no batch has arrived for [\d.]+ seconds", told[-1])
    assert "seconds. Pass timeout= to turn this into an error. " in told[-1]
    # The stack ends where the dataset is called.
    assert workers == "thread" or told[-1].rstrip().endswith("in __getitem__"), told[-1]


class GatedStream(IterableDataset[int]):
    def __init__(self, gated: Gated) -> None:
        self.gated = gated

    def __iter__(self) -> Iterator[int]:
        return (self.gated[i] for i in range(8))


def gated_collation(gate: Path) -> Callable[[list[int]], Any]:
    gated = Gated(gate)
    return lambda samples: np.array([gated[i] for i in samples])


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "stream": lambda gate: {"dataset": GatedStream(Gated(gate))},
    "collate_fn": lambda gate: {"dataset": range(8), "collate_fn": gated_collation(gate)},
    "feed": lambda gate: {"dataset": Gated(gate)},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_warning_shows_the_stack_whatever_is_waited_for(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def warn(text: str) -> None:
        told.append(text)
        if "wait_at_the_gate" in text:
            (tmp_path / "gate").touch()

    monkeypatch.setattr(stalls, "_SILENCE", 0.5)
    monkeypatch.setattr(stalls, "warn", warn)
    arguments = WAYS[way](tmp_path / "gate")
    loader = DataLoader(batch_size=2, num_workers=2, multiprocessing_context="fork", **arguments)
    if way == "feed":
        queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 8, [[-1]])
        feed = loader._feed(queue)
        batches = [np.asarray(queue.pop(timeout=100)[0]).tolist() for _ in range(4)]
        feed.stop()
    else:
        batches = [batch.tolist() for batch in loader]
    assert batches == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert re.match(r"no batch has arrived for [\d.]+ seconds", told[-1])


def test_the_time_is_a_minute() -> None:
    assert stalls._SILENCE == 60
