"""Child processes of the user's program beside those of a loader, and loaders in them."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_harness import run
from loader_datasets import Ints

from headrace.data import DataLoader, IterableDataset

pytestmark = pytest.mark.timeout(360)


@pytest.mark.parametrize(
    ("way", "context"),
    [("sys.exit", "fork"), ("sys.exit", "forkserver"), ("return", "spawn"), ("return", "fork"), ("os._exit", "fork")],
)
def test_a_child_that_the_user_forks_leaves_the_workers_alone(way: str, context: str) -> None:
    result = run("forks", way, context)
    assert result["wrong"] == []
    assert result["worker_deaths"] == 0
    assert result["warnings"] == []


def test_a_loader_with_workers_in_a_worker_is_a_clear_error() -> None:
    result = run("nested", "fork", "process")
    assert "num_workers=0" in result["error"]
    assert "worker" in result["error"]


def test_a_loader_with_threads_in_a_worker_works() -> None:
    result = run("nested", "fork", "thread")
    assert result["error"] == ""
    assert result["sums"] == [45] * 4


def test_a_loader_in_a_thread_of_the_users() -> None:
    got: list[Any] = []

    def iterate() -> None:
        got.extend(batch.tolist() for batch in DataLoader(Ints(20), batch_size=5, num_workers=2))

    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join(100)
    assert got == [list(range(begin, begin + 5)) for begin in range(0, 20, 5)]


def test_a_worker_with_threads_that_is_let_go_finishes_its_samples() -> None:
    """Samples that other threads are making are not made twice."""
    result = run("let_go")
    assert result["made twice"] == []
    assert result["exact"]


def in_a_child() -> None:
    """Forks a child, which leaves as a program does that has come to its end, and waits for it."""
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0


class Forking(Ints):
    def __getitem__(self, index: int) -> int:
        if index == 6:
            in_a_child()
        return index


class ForkingStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return map(Forking(20).__getitem__, range(20))


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (Forking(20), {}),
        (Forking(20), {"collate_fn": np.array}),
        (ForkingStream(), {}),
        (Ints(20), {"worker_init_fn": lambda number: in_a_child()}),
    ],
    ids=["samples", "collation", "stream", "worker_init_fn"],
)
def test_a_child_that_a_worker_forks_is_not_a_worker(dataset: Any, arguments: dict[str, Any]) -> None:
    loader = DataLoader(dataset, batch_size=5, num_workers=2, multiprocessing_context="fork", **arguments)
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [list(range(begin, begin + 5)) for begin in range(0, 20, 5)]
    assert loader.stats()["worker_deaths"] == 0


def fork_returning(folder: str) -> None:
    """Forks a child that returns, too, and goes on after it has ended."""
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # its traceback
    elif os.waitpid(pid, 0)[1] == 0:
        Path(folder, "ended as if all was well").touch()


class Returning(Ints):
    def __init__(self, folder: Path) -> None:
        super().__init__(20)
        self.folder = folder

    def __getitem__(self, index: int) -> int:
        if index == 6:
            fork_returning(str(self.folder))
        return index


class ReturningInBulk(Returning):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class ReturningStream(IterableDataset[int]):
    def __init__(self, folder: Path) -> None:
        self.samples = Returning(folder)

    def __iter__(self) -> Iterator[int]:
        return map(self.samples.__getitem__, range(20))


def collate_returning(folder: Path, samples: list[int]) -> Any:
    if 6 in samples:
        fork_returning(str(folder))
    return np.array(samples)


RETURNING: dict[str, Callable[[Path], dict[str, Any]]] = {
    "sample": lambda folder: {"dataset": Returning(folder)},
    "sample of a collation": lambda folder: {"dataset": Returning(folder), "collate_fn": np.array},
    "bulk": lambda folder: {"dataset": ReturningInBulk(folder)},
    "collate_fn": lambda folder: {"dataset": Ints(20), "collate_fn": functools.partial(collate_returning, folder)},
    "stream": lambda folder: {"dataset": ReturningStream(folder)},
    "worker_init_fn": lambda folder: {
        "dataset": Ints(20),
        "worker_init_fn": lambda number: fork_returning(str(folder)),
    },
}


@pytest.mark.parametrize("where", RETURNING)
def test_a_child_that_a_worker_forks_and_that_returns_ends(where: str, tmp_path: Path) -> None:
    """The worker waits for its end, so one that goes on as a worker would hang it."""
    loader = DataLoader(
        **RETURNING[where](tmp_path), batch_size=5, num_workers=2, multiprocessing_context="fork", timeout=20
    )
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [list(range(begin, begin + 5)) for begin in range(0, 20, 5)]
    assert loader.stats()["worker_deaths"] == 0
    assert list(tmp_path.iterdir()) == []


def test_workers_are_the_first_to_go_when_memory_runs_out() -> None:
    class Score(Ints):
        def __getitem__(self, index: int) -> int:
            with open("/proc/self/oom_score_adj") as file:
                return int(file.read())

    with open("/proc/self/oom_score_adj") as file:
        own = int(file.read())
    scores = next(iter(DataLoader(Score(1), num_workers=1, multiprocessing_context="fork")))
    assert scores[0] == min(1000, own + 500)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_dies_is_replaced_while_batches_are_ready() -> None:
    result = run("dies_while_ready")
    assert result["replaced after batches"] <= 1
    assert result["workers after"] == 2
    assert result["exact"]


def test_the_count_of_deaths_is_in_the_statistics() -> None:
    others = set(multiprocessing.active_children())  # of another test, on their way out
    loader = DataLoader(Ints(20), batch_size=2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    assert loader.stats()["worker_deaths"] == 0
    next(iter(set(multiprocessing.active_children()) - others)).kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        list(iterator)
        while not loader.stats()["worker_deaths"]:
            list(loader)
    assert loader.stats()["worker_deaths"] == 1
    assert loader.stats()["skipped_samples"] == 0
