"""Runs programs that meet faults, each in its own session and mount namespace, and checks that they leave nothing.

The programs are the functions of fault_programs.py. Each prints its result as a line of JSON (``report``).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_processes import command_of, ignores_interrupts, session_members, stat_of, workers_of

PROGRAMS = Path(__file__).with_name("fault_programs.py")
# A program that has not ended by then has hung. Long, because the machine may be loaded.
DEADLINE = 300.0
CONTEXTS = ("fork", "forkserver", "spawn")


@functools.cache
def can_unshare() -> bool:
    """Whether a program can be given a /dev/shm of its own."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


class Program:
    """A running program of fault_programs.py; see :func:`program`.

    Attributes:
        session: the pid of its wrapper, which leads the session of all its processes.
        pid: that of the program itself.
    """

    def __init__(self, session: int, folder: Path, deadline: float, own_shm: bool) -> None:
        self._deadline = time.monotonic() + deadline
        self._folder = folder
        self._own_shm = own_shm
        self._read = 0
        self.session = session
        self.pid = int(self.line())

    def line(self) -> str:
        """Returns the next line that the program prints."""
        while True:
            status = self._status()
            lines = (self._folder / "stdout").read_text().splitlines(keepends=True)
            if len(lines) > self._read and lines[self._read].endswith("\n"):
                self._read += 1
                return lines[self._read - 1].rstrip("\n")
            if status is not None:
                pytest.fail(f"the program ended early, with status {status}:\n{self.errors()}")
            self._pause()

    def wait(self) -> int:
        """Waits for the program to end. Returns its exit status, negative for a signal."""
        while (status := self._status()) is None:
            self._pause()
        return status

    def result(self) -> Any:
        """Returns what the program reports. It must end normally."""
        result = json.loads(self.line())
        status = self.wait()
        assert status == 0, self.errors()
        return result

    def workers(self) -> list[int]:
        return workers_of(self.pid)

    def started_workers(self, count: int) -> list[int]:
        """Waits for ``count`` workers that run the loader's code, not only that of multiprocessing's start."""
        while len(started := [pid for pid in self.workers() if ignores_interrupts(pid)]) < count:
            self._pause()
        return started

    def errors(self) -> str:
        """What the program has written to stderr."""
        return (self._folder / "stderr").read_text(errors="replace")

    def left(self) -> list[str]:
        """What is left of a program that has ended: processes, temporary files and files in /dev/shm."""
        processes = [f"{pid}: {command_of(pid)}" for pid in session_members(self.session) if pid != self.session]
        files = [str(path) for path in (self._folder / "tmp").rglob("*")]
        shm = Path("/proc", str(self.session), "root/dev/shm")
        files += [str(path) for path in shm.iterdir()] if self._own_shm and shm.exists() else []
        return processes + files

    def assert_nothing_left(self, seconds: float = 100.0) -> None:
        deadline = time.monotonic() + seconds
        while left := self.left():
            if time.monotonic() > deadline:
                pytest.fail(f"left after {seconds} s: {left}\n{self.errors()}")
            time.sleep(0.02)

    def _status(self) -> int | None:
        path = self._folder / "status"
        text = path.read_text() if path.exists() else ""
        if not text.endswith("\n"):
            return None
        return int(text) if int(text) < 128 else 128 - int(text)

    def _pause(self) -> None:
        if time.monotonic() > self._deadline:
            states = [f"{pid} {stat_of(pid)}: {command_of(pid)}" for pid in session_members(self.session)]
            pytest.fail("the program hangs:\n" + "\n".join([*states, self.errors()]))
        time.sleep(0.005)


@contextlib.contextmanager
def program(
    name: str,
    *arguments: Any,
    deadline: float = DEADLINE,
    mounts: str = "",
    prefix: str = "",
    environment: dict[str, str] | None = None,
) -> Iterator[Program]:
    """Runs a function of fault_programs.py.

    Args:
        arguments: must be serializable as JSON.
        deadline: seconds after which the program counts as hung.
        mounts: shell commands that run first, in the program's own mount namespace if the system allows one.
        prefix: a command that starts the program.
    """
    own_shm = can_unshare()
    with contextlib.ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="headrace-fault-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "tmp").mkdir()
        (folder / "stdout").touch()
        script = folder / "run.sh"
        # The shell outlives the program: it reports the exit status, and keeps /dev/shm for inspection.
        lines = [
            "mount -t tmpfs tmpfs /dev/shm" if own_shm else "",
            "trap : INT",
            mounts,
            f'{prefix} "$@" >{folder}/stdout 2>{folder}/stderr',
            f"echo $? >{folder}/status",
            "read -r _",
        ]
        script.write_text("\n".join([*lines, ""]))
        process = subprocess.Popen(
            [
                *(("unshare", "-m", "--propagation", "private") if own_shm else ()),
                *("sh", str(script), sys.executable, str(PROGRAMS), name, json.dumps(arguments)),
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder / "tmp"), **(environment or {})},
        )
        try:
            yield Program(process.pid, folder, deadline, own_shm)
        finally:
            for pid in session_members(process.pid):
                if pid != process.pid:
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            process.kill()
            process.communicate(timeout=100)


def run(name: str, *arguments: Any, deadline: float = DEADLINE, **options: Any) -> Any:
    """Runs a program, which must end normally and leave nothing. Returns what it reports."""
    with program(name, *arguments, deadline=deadline, **options) as running:
        result = running.result()
        running.assert_nothing_left()
        return result
