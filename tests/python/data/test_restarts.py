"""headrace.data._workers.restarts: for how long workers that die are started again, and how soon."""

from __future__ import annotations

import signal
import types

import pytest

from headrace.data._workers import restarts
from headrace.data._workers.blame import SampleDeaths
from headrace.data._workers.restarts import IdleDeaths, Standstill

KILLED = -int(signal.SIGKILL)
ONE, TWO = (1, 0, "rows"), (1, 5, "rows")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(restarts, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_worker_that_dies_of_its_start_is_soon_given_up(clock: list[float]) -> None:
    idle = IdleDeaths()
    assert [idle.note(0, 1, 0.1, samples=0) for _ in range(5)] == [True] * 4 + [False]


def test_idle_deaths_begin_anew_once_a_sample_is_given_up() -> None:
    idle = IdleDeaths()
    assert all(idle.note(0, 4, 0.1, samples=7) for _ in range(4))
    idle.start_again()
    assert [idle.note(0, 4, 0.1, samples=7) for _ in range(5)] == [True] * 4 + [False]


def test_many_workers_at_once_are_one_round(clock: list[float]) -> None:
    idle = IdleDeaths()
    assert all(idle.note(worker, 1, 0.1, samples=0) for worker in range(16) for _ in range(4))


def test_progress_begins_the_count_anew(clock: list[float]) -> None:
    idle = IdleDeaths()
    assert all(idle.note(0, 1, 0.1, samples) for samples in range(50))


def test_what_is_killed_from_outside_is_waited_for(clock: list[float]) -> None:
    idle, standstill = IdleDeaths(), Standstill()
    for _ in range(59):
        assert idle.note(0, KILLED, 0.1, samples=0)
        assert standstill.note(completed=0)
        clock[0] += 1
    clock[0] += 2
    assert idle.note(0, KILLED, 0.1, samples=0)
    assert not standstill.note(completed=0)
    assert (standstill.deaths, standstill.seconds) == (60, 61)


def test_samples_that_acquit_each_other_for_ever_are_a_standstill(clock: list[float]) -> None:
    """As when memory runs out: some other worker dies each time, at its start or at a sample."""
    sample_deaths, idle, standstill = SampleDeaths(4), IdleDeaths(), Standstill()
    while clock[0] < 100:
        samples = [[(1, int(clock[0]) % 5, "rows")], [], [(2, int(clock[0]) % 3, "collate")]][int(clock[0]) % 3]
        assert sample_deaths.note(KILLED, samples) == []
        if not samples:
            assert idle.note(0, KILLED, 0.1, samples=7)
        if not standstill.note(completed=7):
            break
        clock[0] += 1
    assert clock[0] == 60


def test_memory_that_has_run_out_is_waited_for_less_long(clock: list[float]) -> None:
    standstill = Standstill()
    assert standstill.note(completed=5, memory_kills=3)
    for kills in (4, 5, 6, 7):
        clock[0] += 2
        assert standstill.note(completed=5, memory_kills=kills)
    clock[0] += 2
    assert not standstill.note(completed=5, memory_kills=8)
    # What was killed before the latest progress explains nothing.
    standstill = Standstill()
    assert standstill.note(completed=5, memory_kills=8)
    assert all(standstill.note(completed=6, memory_kills=8) for _ in range(20))
    clock[0] += 30
    assert standstill.note(completed=6, memory_kills=8)


def test_without_memory_samples_that_cost_more_deaths_than_they_number_are_no_progress(clock: list[float]) -> None:
    standstill = Standstill()
    kills = 0
    for completed in range(100):  # a death each
        kills += 1
        assert standstill.note(completed, kills)
        clock[0] += 8
    for completed in (100, 100, 101, 101, 102, 102):  # two each
        kills += 1
        assert standstill.note(completed, kills)
        clock[0] += 1.9
    assert not standstill.note(completed=103, memory_kills=kills + 1)
    assert (standstill.deaths, standstill.samples) == (7, 3)
    # A burst of deaths, and then slow samples.
    standstill = Standstill()
    assert all(standstill.note(completed=0, memory_kills=kills) for kills in range(1, 9))
    clock[0] += 30
    assert standstill.note(completed=5, memory_kills=9)


def test_progress_ends_a_standstill(clock: list[float]) -> None:
    standstill = Standstill()
    for completed in range(100):
        assert all(standstill.note(completed) for _ in range(10))
        clock[0] += 50
    for _ in range(100):  # samples that are given up, too
        assert standstill.note(completed=99)
        standstill.forget()
        clock[0] += 50


def test_few_deaths_are_none(clock: list[float]) -> None:
    standstill = Standstill()
    for _ in range(3):
        assert standstill.note(completed=0)
        clock[0] += 1000
    assert not standstill.note(completed=0)


def test_workers_that_die_again_and_again_start_later(clock: list[float]) -> None:
    idle = IdleDeaths()
    delays = []
    for _ in range(2000):
        idle.note(0, KILLED, 0.1, samples=0)
        delays.append(idle.delay(0))
    assert delays[0] == 0
    assert delays == sorted(delays)
    assert delays[-1] == 1
    assert idle.delay(1) == 0
    idle.forget(0)
    assert idle.delay(0) == 0


def test_a_worker_that_has_lived_for_long_starts_at_once(clock: list[float]) -> None:
    idle = IdleDeaths()
    for _ in range(5):
        idle.note(0, KILLED, 0.1, samples=0)
    idle.note(0, KILLED, 100.0, samples=7)
    assert idle.delay(0) == 0
