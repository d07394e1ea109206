"""Many processes ask a server for little: the simulation of tests/benchmarks, small."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "wirehead_scale.py"
GENERATORS, READERS, CAP = 8, 20, 20_000
BLOCK = -(-CAP // 64)


@pytest.fixture(scope="module")
def scale() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("wirehead_scale", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["wirehead_scale"] = module
    log = logging.getLogger("headrace.wirehead")
    level = log.level
    log.setLevel(logging.ERROR)
    spec.loader.exec_module(module)
    yield module
    log.setLevel(level)
    del sys.modules["wirehead_scale"]


@pytest.fixture(scope="module")
def phases(scale: Any) -> list[Any]:
    return list(scale.simulate(GENERATORS, READERS, CAP))


def test_who_begins_in_a_generation_that_is_almost_full_looks_at_its_end_only(phases: list[Any]) -> None:
    begin = phases[0]
    assert begin.name == "all begin"
    assert begin.samples["writer"] <= GENERATORS * 8 * BLOCK


def test_at_work_each_process_asks_little(phases: list[Any]) -> None:
    work = phases[1]
    assert work.rates["reader's lease"] <= 0.5 * READERS
    assert work.rates["writer's lease"] <= 1.5 * GENERATORS
    assert work.rates["writer"] <= 0.5 * GENERATORS  # that store 0.1 samples a second each
    assert work.rates["manager"] <= 0.5 * GENERATORS + 10  # each process has one that may take over
    assert work.samples["manager"] <= 2 * BLOCK * work.seconds


def test_the_dead_cost_a_few_small_requests_each(phases: list[Any]) -> None:
    work, dead = phases[1], phases[2]
    assert "have died" in dead.name
    assert dead.rates["manager"] * dead.seconds <= work.rates["manager"] * dead.seconds + 10 * GENERATORS
    assert dead.samples["manager"] <= work.samples["manager"]


def test_who_takes_over_reads_what_its_predecessor_had_not_verified(phases: list[Any]) -> None:
    died, takes_over = phases[3], phases[4]
    assert 25 < died.seconds <= 65
    assert takes_over.samples["manager"] <= 12 * BLOCK
    assert takes_over.rates["manager"] <= 0.5 * GENERATORS + 25


def test_the_last_samples_of_a_generation_are_looked_for_where_they_are(phases: list[Any]) -> None:
    swap = phases[5]
    assert swap.name.endswith("up to the swap")
    assert swap.samples["writer"] <= GENERATORS * CAP


def test_a_generator_that_waits_asks_once_a_second(scale: Any) -> None:
    waiting = scale.simulate_waiting(GENERATORS, 2000)
    assert sum(waiting.rates.values()) <= GENERATORS
    assert waiting.samples.get("writer", 0) == 0
