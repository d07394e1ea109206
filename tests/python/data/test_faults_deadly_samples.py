"""Samples that always end their worker: reported after the given number of tries, or left out on request."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fault_harness import run

from headrace.data import DataLoader, get_worker_info

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


class Deadly:
    """Samples 3 to 8 end the worker that makes them."""

    def __getitem__(self, index: int) -> int:
        if 3 <= index < 9 and get_worker_info() is not None:
            os._exit(1)
        return index


@pytest.mark.timeout(60)
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
    # The other worker may try, too, before it is known that the last one has died.
    assert tries <= result["stats"]["worker_deaths"] <= tries + 1
