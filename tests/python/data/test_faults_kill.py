"""Workers are killed from outside: nothing of an epoch is lost, repeated or changed.

With HEADRACE_KILLS=200, so many are killed for each kind of loader and each start method, which takes ten minutes.
"""

from __future__ import annotations

import os

import pytest
from fault_harness import run

pytestmark = pytest.mark.timeout(360)  # fault_harness.DEADLINE is what ends a program

# About two hundred kills of forked workers in all; others take longer to start.
FORKED = [
    ("map", 2, 25, "random", False),
    ("map", 16, 48, "all", False),
    ("map", 4, 25, "faster", False),
    ("collation", 2, 20, "random", False),
    ("one collator", 3, 25, "random", False),
    ("stream", 2, 20, "random", False),
    ("streams", 3, 25, "random", False),
    ("single samples", 2, 15, "random", False),
    ("map", 2, 20, "random", True),
]


@pytest.mark.parametrize(("kind", "workers", "count", "pattern", "fed"), FORKED)
def test_forked_workers(kind: str, workers: int, count: int, pattern: str, fed: bool) -> None:
    result = run("kills", kind, "fork", workers, count, pattern, fed)
    assert result["killed"] >= count
    assert result["wrong"] == []


def test_bursts_of_kills_are_not_blamed_on_an_element_of_a_slow_stream() -> None:
    result = run("bursts", 3, 8)
    assert result["got"] == [[first, first + 1] for first in range(0, 12, 2)]
    assert result["deaths"] >= 8


@pytest.mark.skipif("HEADRACE_KILLS" not in os.environ, reason="HEADRACE_KILLS is not set")
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize(
    "kind", ["map", "collation", "one collator", "stream", "streams", "single samples", "sampler", "fed"]
)
def test_as_many_kills_as_asked_for(kind: str, context: str) -> None:
    count = int(os.environ["HEADRACE_KILLS"])
    fed = kind == "fed"
    result = run("kills", "map" if fed else kind, context, 2, count, "random", fed, deadline=900)
    assert result["killed"] >= count
    assert result["wrong"] == []


@pytest.mark.parametrize(
    ("kind", "context", "count"), [("map", "forkserver", 10), ("streams", "forkserver", 10), ("collation", "spawn", 5)]
)
def test_workers_that_start_slowly(kind: str, context: str, count: int) -> None:
    result = run("kills", kind, context, 2, count)
    assert result["wrong"] == []
