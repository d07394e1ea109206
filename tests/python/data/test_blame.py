"""headrace.data._workers.blame: which deaths count against a sample."""

from __future__ import annotations

import signal

import pytest

from headrace.data._workers.blame import SampleDeaths, pause_before_retry

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
