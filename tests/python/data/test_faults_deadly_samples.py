"""Samples that always end their worker: reported after the given number of tries, or left out on request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_harness import run

from headrace import errors
from headrace.data import DataLoader, IterableDataset, get_worker_info

pytestmark = pytest.mark.timeout(360)

# How a sample ends its worker, which samples the worker makes, and how the error describes it.
WAYS = [
    ("segfault", "rows", "was killed by SIGSEGV"),
    ("abort", "collation", "was killed by SIGABRT"),
    ("os._exit", "collation", "exited with status 9"),
    ("SIGKILL", "rows", "was killed by SIGKILL"),
    ("SIGTERM", "collation", "was killed by SIGTERM"),
    ("SIGUSR1", "rows", "was killed by SIGUSR1"),
]
WHOLE = [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]


def with_sum(batch: list[int]) -> list[int]:
    return [sum(batch), *batch]


@pytest.mark.parametrize(("how", "kind", "words"), WAYS)
def test_it_is_reported_with_index_and_signal(how: str, kind: str, words: str) -> None:
    epochs = 2 if how == "segfault" else 1
    result = run("deadly", how, kind, "raise", 3, epochs)
    assert len(result["epochs"]) == epochs
    expected = WHOLE if kind == "rows" else [with_sum(batch) for batch in WHOLE]
    for epoch in result["epochs"]:
        assert [batch for number, batch in enumerate(epoch) if number not in (1, 5)] == [
            batch for number, batch in enumerate(expected) if number not in (1, 5)
        ]
        for number, index in ((1, 5), (5, 22)):
            assert epoch[number][0] == index
            assert f"index {index} " in epoch[number][1]
            assert words in epoch[number][1]
    # Three for a sample, or two where the other one has crashed its worker meanwhile and nothing was made.
    assert result["stats"]["worker_deaths"] >= 4 * epochs
    assert result["stats"]["skipped_samples"] == 0


@pytest.mark.parametrize(("how", "kind"), [("SIGKILL", "rows"), ("segfault", "collation")])
def test_it_is_left_out(how: str, kind: str) -> None:
    result = run("deadly", how, kind, "skip", 2, 2)
    expected: list[Any] = [[index for index in batch if index not in (5, 22)] for batch in WHOLE]
    if kind == "collation":
        expected = [with_sum(batch) for batch in expected]
    assert result["epochs"] == [expected, expected]
    # Two of each epoch, and one of a third, which the workers may have begun.
    assert result["stats"]["skipped_samples"] in (4, 5)


@pytest.mark.parametrize(
    ("how", "workers", "context"),
    [
        *(("SIGKILL", workers, "fork") for workers in (1, 2, 3, 4)),
        ("SIGKILL", 3, "spawn"),
        ("os._exit", 4, "fork"),
        ("segfault", 4, "fork"),
    ],
)
def test_of_a_stream_that_workers_share_it_is_reported_and_the_stream_ends(
    how: str, workers: int, context: str
) -> None:
    for epoch in run("deadly_element", how, "engine", workers, context):
        assert epoch[:4] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert "the batch that begins with element 8 of the stream" in epoch[4]
        assert len(epoch) == 5


@pytest.mark.parametrize(("workers", "context"), [(1, "fork"), (2, "fork"), (4, "fork"), (2, "spawn")])
def test_of_a_stream_of_one_worker_it_is_reported_and_that_stream_ends(workers: int, context: str) -> None:
    own = list(range(9 % workers, 9, workers))  # before it, of the worker that makes it
    first = len(own) // 2 * 2
    for epoch in run("deadly_element", "SIGKILL", "dataset", workers, context):
        (error,) = (batch for batch in epoch if isinstance(batch, str))
        assert f"the batch that begins with element {first} of worker {9 % workers}'s stream" in error
        values = sorted(value for batch in epoch if batch is not error for value in batch)
        others = [value for value in range(40) if value % workers != 9 % workers]
        assert values == sorted(own[:first] + others)


class DiesOnceThenAtTheBeginning(IterableDataset[int]):
    """Its worker exits at number 5, once, and from epoch 1 on whenever a worker begins; ``memory`` is a file."""

    def __init__(self, memory: Path) -> None:
        self.memory = memory
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.epoch == 1:
            os._exit(1)
        return map(self.number, range(12))

    def number(self, number: int) -> int:
        if number == 5 and not self.memory.exists():
            self.memory.touch()
            os._exit(1)
        return number


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_batch_that_was_made_is_not_suspected_of_later_deaths(tmp_path: Path) -> None:
    loader = DataLoader(
        DiesOnceThenAtTheBeginning(tmp_path / "memory"), batch_size=2, num_workers=2, iterable_sharding="engine"
    )
    assert len(list(loader)) == 6
    with pytest.raises(errors.WorkerDied, match="workers keep dying before they produce a sample"):
        next(iter(loader))


class Deadly:
    """Samples 3 to 8 end the worker that makes them."""

    def __getitem__(self, index: int) -> int:
        if 3 <= index < 9 and get_worker_info() is not None:
            os._exit(1)
        return index


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_more_batches_in_a_row_are_left_out_than_are_in_flight() -> None:
    loader = DataLoader(
        Deadly(),
        sampler=range(12),
        num_workers=1,
        prefetch_factor=2,
        on_worker_death="skip",
        max_deaths_per_sample=1,
    )
    assert [int(number) for (number,) in loader] == [0, 1, 2, 9, 10, 11]


@pytest.mark.parametrize("tries", [1, 5])
def test_the_number_of_tries_is_an_option(tries: int) -> None:
    result = run("deadly", "os._exit", "rows", "raise", tries, 1, [5])
    assert result["epochs"][0][1][0] == 5
    # The other worker may try, too, before it is known that the last one has died; and they may begin the next epoch.
    assert tries <= result["stats"]["worker_deaths"] < 2 * (tries + 1)
