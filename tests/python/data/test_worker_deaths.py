"""headrace.data._workers.deaths: which deaths count against a sample, and for how long workers are restarted."""

from __future__ import annotations

import signal
import types

import pytest

from headrace.data._workers import deaths as _worker_deaths
from headrace.data._workers.deaths import IdleDeaths, SampleDeaths, Standstill, pause_before_retry

KILLED = -int(signal.SIGKILL)
ONE, TWO = (1, 0, "rows"), (1, 5, "rows")


def test_a_sample_is_given_up_after_the_stated_number_of_deaths() -> None:
    deaths = SampleDeaths(3)
    assert deaths.note(KILLED, [ONE]) == []
    assert deaths.note(KILLED, [ONE]) == []
    assert deaths.note(KILLED, [ONE]) == [ONE]
    assert deaths.note(KILLED, [ONE]) == []  # the count starts again


def test_causes_are_counted_apart() -> None:
    deaths = SampleDeaths(2)
    assert deaths.note(KILLED, [ONE]) == []
    assert deaths.note(1, [ONE]) == []
    assert deaths.note("hung", [ONE]) == []
    assert deaths.note(1, [ONE]) == [ONE]
    assert deaths.note(KILLED, [ONE]) == [ONE]


def test_deaths_of_idle_workers_acquit_a_sample() -> None:
    deaths = SampleDeaths(2)
    for _ in range(10):
        assert deaths.note(KILLED, [ONE]) == []
        deaths.note(KILLED, [])
    deaths.note(1, [])  # of another cause
    assert deaths.note(KILLED, [ONE]) == []
    assert deaths.note(KILLED, [ONE]) == [ONE]


def test_deaths_at_samples_that_were_harmless_acquit_it_too() -> None:
    deaths = SampleDeaths(2)
    deaths.note(KILLED, [ONE])
    deaths.note(KILLED, [TWO])
    assert deaths.note(KILLED, [ONE]) == []


def test_a_sample_is_on_trial_from_its_first_death_until_it_is_given_up() -> None:
    deaths = SampleDeaths(2)
    assert not deaths.is_on_trial(4, made=7)
    deaths.note(4, [ONE], made=7)
    assert deaths.is_on_trial(4, made=7)
    assert not deaths.is_on_trial(KILLED, made=7)
    assert deaths.note(4, [ONE], made=7) == [ONE]
    assert not deaths.is_on_trial(4, made=7)


def test_a_sample_is_on_trial_until_samples_are_made() -> None:
    deaths = SampleDeaths(3)
    deaths.note(4, [ONE], made=7)
    assert not deaths.is_on_trial(4, made=8)
    deaths.note(4, [ONE], made=8)  # another one had been made
    assert deaths.is_on_trial(4, made=8)


def test_workers_that_pass_a_deadly_element_of_a_stream_do_not_acquit_it() -> None:
    deaths = SampleDeaths(3)
    given_up = []
    for _ in range(3):
        given_up += deaths.note(KILLED, [ONE])
        assert deaths.note(KILLED, [], destination=ONE[0] + 1) == []
    assert given_up == [ONE]


@pytest.mark.parametrize("destination", [ONE[0], ONE[0] - 1])
def test_workers_that_die_before_they_come_to_it_do(destination: int) -> None:
    deaths = SampleDeaths(2)
    for _ in range(10):
        assert deaths.note(KILLED, [ONE]) == []
        deaths.note(KILLED, [], destination=destination)


@pytest.mark.parametrize("cause", [-int(signal.SIGSEGV), -int(signal.SIGABRT), 3])
def test_crashes_at_other_samples_acquit_nobody(cause: int) -> None:
    deaths = SampleDeaths(3)
    given_up = []
    for made in range(3):
        given_up += deaths.note(cause, [ONE], 10 * made)
        given_up += deaths.note(cause, [(1, 1 + made, "rows")], 10 * made + 5)
    assert given_up == [ONE]


def test_where_every_sample_crashes_the_limit_is_that_of_all() -> None:
    deaths = SampleDeaths(3)
    crashed = -int(signal.SIGSEGV)
    assert [deaths.note(crashed, [(0, row, "rows")], made=7) for row in range(4)] == [[]] * 4
    assert deaths.note(crashed, [(0, 1, "rows")], made=7) == [(0, 1, "rows")]
    assert deaths.note(crashed, [(0, 2, "rows")], made=8) == []


def test_two_deadly_samples_do_not_acquit_each_other() -> None:
    deaths = SampleDeaths(4)
    given_up = []
    for _ in range(6):
        given_up += deaths.note(KILLED, [ONE])
        given_up += deaths.note(KILLED, [TWO])
    assert sorted(given_up)[:2] == [ONE, TWO]


def test_a_process_with_threads_dies_at_several_samples() -> None:
    deaths = SampleDeaths(2)
    assert deaths.note(KILLED, [ONE, TWO]) == []
    assert deaths.note(KILLED, [ONE]) == [ONE]
    assert deaths.note(KILLED, [TWO]) == [TWO]


def test_old_samples_are_forgotten() -> None:
    deaths = SampleDeaths(2)
    deaths.note(KILLED, [ONE])
    deaths.note(KILLED, [(10_000, 0, "rows")])
    deaths.note(KILLED, [(10_000, 0, "rows")])
    assert deaths.note(KILLED, [ONE]) == []


def test_pauses_grow_and_end() -> None:
    pauses = [pause_before_retry(deaths) for deaths in range(20)]
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[1] > 0
    assert pauses[-1] == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(_worker_deaths, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_worker_that_dies_of_its_start_is_soon_given_up(clock: list[float]) -> None:
    idle = IdleDeaths()
    assert [idle.note(0, 1, 0.1, samples=0) for _ in range(5)] == [True] * 4 + [False]


def test_idle_deaths_do_not_count_while_a_sample_is_on_trial_and_begin_anew_once_it_is_given_up() -> None:
    idle = IdleDeaths()
    assert all(idle.note(0, 4, 0.1, samples=7, excused=True) for _ in range(20))
    assert idle.delay(0) == 1.0
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
