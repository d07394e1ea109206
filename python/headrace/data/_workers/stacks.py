"""The Python stacks of a worker process, even of one that never runs Python code again.

:mod:`faulthandler` writes them from a signal handler: neither the interpreter's lock nor a thread of the worker is
needed; the process must only be running. All workers of a pool write to one memory file, which never blocks them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from pathlib import Path

from headrace import _core
from headrace.data._system.memory_file import MemoryFile

# One that is unlikely to be used otherwise; those below 34 are reserved.
_SIGNAL = int(signal.SIGRTMAX) - 3
# The file that calls the dataset.
_WORKER = f'File "{Path(__file__).with_name("sample_maker.py")}"'
_STATES = {
    "T": "It is stopped (SIGSTOP); SIGCONT would resume it.",
    "t": "It is stopped by a debugger.",
    "D": "It waits in the kernel, which is usually for a disk or a network file system.",
    "Z": "It has just exited.",
}


def offer_stacks(fd: int) -> None:
    """In a worker: makes the signal write the stacks of all threads to ``fd``, followed by a line with its pid."""
    _core.mark_signal(_SIGNAL, fd)
    faulthandler.register(_SIGNAL, fd, all_threads=True, chain=True)


class Stacks(MemoryFile):
    """Asks workers for their stacks. One thread at a time.

    Attributes:
        fd: the argument of :func:`offer_stacks` in workers.
    """

    def __init__(self) -> None:
        super().__init__("headrace-stacks", appends=True)

    def of(self, pid: int, seconds: float = 5.0) -> str:
        """The stacks of a worker process, or why it cannot tell; waits for them for at most ``seconds``."""
        state = _field(pid, "State:")[:1]
        if state in _STATES:
            return _STATES[state]
        # Before it offers them, the signal would end it.
        if not int(_field(pid, "SigCgt:") or "0", 16) >> (_SIGNAL - 1) & 1:
            return "It is still starting."
        os.ftruncate(self.fd, 0)
        try:
            os.kill(pid, _SIGNAL)
        except ProcessLookupError:
            return _STATES["Z"]
        deadline = time.monotonic() + seconds
        mark = f"#{pid}\n".encode()
        while mark not in (text := self._text()) and time.monotonic() < deadline:
            time.sleep(0.005)
        text = text.split(mark)[0]
        return _without_caller(text.decode(errors="replace")) or "It does not answer: it may wait in the kernel."

    def _text(self) -> bytes:
        return os.pread(self.fd, 1 << 20, 0)


def _without_caller(text: str) -> str:
    """Stacks, most recent call first, up to where the worker calls the dataset: behind that come its own frames and, in
    a forked worker, those of the program that started it.
    """
    kept: list[str] = []
    is_top = is_caller = False
    for line in text.splitlines(keepends=True):
        if not line.startswith("  "):  # a thread's
            is_top, is_caller = True, False
        elif not is_caller:
            is_caller = _WORKER in line and not is_top
            is_top = False
        if not is_caller:
            kept.append(line)
    return "".join(kept)


def _field(pid: int, name: str) -> str:
    """A field of a process's status; empty if it is gone."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return ""
    return next((line[len(name) :].strip() for line in lines if line.startswith(name)), "")
