"""However the main process ends, its workers end with it, and nothing is left in the system."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_processes import ignores_interrupts, session_members

SCRIPT = Path(__file__).with_name("loader_script.py")


def in_dev_shm(pid: int) -> list[str]:
    """The files in /dev/shm that a process has open or mapped."""
    names = []
    with contextlib.suppress(OSError):
        names = re.findall(r"/dev/shm/\S+", Path("/proc", str(pid), "maps").read_text())
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                names += re.findall(r"/dev/shm/\S+", os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    return names


@contextlib.contextmanager
def running(context: str, end: str) -> Iterator[subprocess.Popen[str]]:
    """Starts the script in a session of its own, and waits until it is ready."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), context, end],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate(timeout=100)
        yield process
    finally:
        left = session_members(process.pid)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=100)


def assert_all_end(session: int, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while members := session_members(session):
        if time.monotonic() > deadline:
            commands = [Path("/proc", str(pid), "cmdline").read_text().split("\0") for pid in members]
            pytest.fail(f"still alive after {seconds} s: {commands}")
        time.sleep(0.02)


def wait_for_workers(session: int, seconds: float = 100) -> None:
    """Waits until all processes but the first have started; before, Python itself would answer an interrupt."""
    deadline = time.monotonic() + seconds
    while not all(ignores_interrupts(pid) for pid in session_members(session) if pid != session):
        assert time.monotonic() < deadline
        time.sleep(0.01)


CONTEXTS = ["fork", "forkserver", "spawn"]


@pytest.mark.parametrize(
    ("context", "end", "status"),
    [
        *((context, "normal", 0) for context in CONTEXTS),
        ("fork", "exception", 1),
        ("fork", "break", 0),
        ("forkserver", "globals", 0),
        ("fork", "last global", 0),
        ("none", "globals", 0),
        ("fork", "sys.exit in the loop", 6),
        ("fork", "os._exit", 5),
        ("forkserver", "os._exit", 5),
        ("fork", "stuck", 0),
        ("spawn", "stuck in C", 0),
    ],
)
def test_a_program_that_ends(context: str, end: str, status: int) -> None:
    with running(context, end) as process:
        # Includes its own clean-up: a program must not hang at its end.
        _, errors = process.communicate(timeout=100)
        assert process.returncode == status, errors
        assert ("ValueError: on purpose" in errors) == (end == "exception")
        assert "Traceback" not in errors or end == "exception"
        assert_all_end(process.pid)


@pytest.mark.parametrize(("context", "end"), [*((context, "asleep") for context in CONTEXTS), ("fork", "waiting")])
def test_an_interrupt_from_the_terminal(context: str, end: str) -> None:
    with running(context, end) as process:
        assert len(session_members(process.pid)) >= 3
        assert [in_dev_shm(pid) for pid in session_members(process.pid) if in_dev_shm(pid)] == []
        wait_for_workers(process.pid)
        time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=100)
        assert process.returncode == -signal.SIGINT
        assert errors.count("Traceback") == 1, errors  # that of the main process itself
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert_all_end(process.pid)


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_main_process_that_is_killed_while_its_workers_are_stuck_in_c(context: str) -> None:
    with running(context, "stuck in C") as process:
        time.sleep(0.1)  # the program has begun to end, and waits for its workers
        process.kill()
        process.wait(100)
        assert_all_end(process.pid)
