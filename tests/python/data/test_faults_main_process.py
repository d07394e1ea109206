"""However and whenever the main process ends: its workers end within two seconds, and no file is left."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest
from fault_harness import CONTEXTS, program, run
from fault_processes import command_of, session_members
from fault_programs import starved_seconds

pytestmark = pytest.mark.timeout(360)


def test_ends_at_random_moments() -> None:
    outlived = run("ends", 102, 3)
    assert len(outlived) == 102
    # Not counted is the time in which some process had to wait for a processor: only the machine's load decides that.
    assert [end for end in outlived if end[0] - end[1] >= 2] == []
    assert outlived[-1][0] < 20, outlived[90:]


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize("way", ["SIGKILL", "SIGTERM", "SIGINT", "killed beside a stopped worker"])
def test_ends_of_programs_whose_workers_start_slowly(context: str, way: str) -> None:
    with program("endless", "map", context) as running:
        assert running.line() == "ready"
        time.sleep(random.Random(f"{context} {way}").uniform(0, 0.2))
        if way == "SIGINT":
            os.killpg(running.session, signal.SIGINT)
        elif way == "killed beside a stopped worker":
            os.kill(running.started_workers(1)[0], signal.SIGSTOP)
            os.kill(running.pid, signal.SIGKILL)
        else:
            os.kill(running.pid, getattr(signal, way))
        assert running.wait() != 0
        running.assert_nothing_left()


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
@pytest.mark.parametrize("way", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_ends_of_programs_whose_workers_have_started_otherwise(way: str, context: str) -> None:
    with program("endless", "map", context) as running:
        assert running.line() == "ready"
        running.started_workers(2)
        if way == "SIGINT":
            os.killpg(running.session, signal.SIGINT)
        else:
            os.kill(running.pid, getattr(signal, way))
        running.wait()
        begin, starved = time.monotonic(), starved_seconds()
        running.assert_nothing_left()
        # As in test_ends_at_random_moments. Before they have started, workers also import what they need.
        assert time.monotonic() - begin - (starved_seconds() - starved) < 2


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_program_that_executes_another_one_leaves_no_workers(context: str) -> None:
    with program("executes", context) as running:
        workers = json.loads(running.line())["workers"]
        assert len(workers) == 2
        deadline = time.monotonic() + 100
        while any(pid in session_members(running.session) for pid in workers):
            assert time.monotonic() < deadline, "workers of a program that is no more"
            time.sleep(0.01)
        while not (command := command_of(running.pid)):  # in the middle of exec, which closes descriptors first
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert command.startswith("sleep")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_end_beside_a_thread_that_iterates(workers: int) -> None:
    with program("exits_beside_a_thread", 12, workers) as running:
        assert running.result() == [0]
        assert running.errors() == ""
        running.assert_nothing_left()


def test_an_end_while_a_thread_starts_workers() -> None:
    with program("exits_while_workers_start") as running:
        assert running.result() == "ends"
        assert running.errors() == ""
        running.assert_nothing_left()
