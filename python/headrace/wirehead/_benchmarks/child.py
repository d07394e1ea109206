"""Processes of a benchmark."""

from __future__ import annotations

import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def run_child(action: Callable[..., None], *arguments: Any) -> None:
    """The main function of a benchmark's process; it exits when the benchmark does, for any reason."""
    # The server that has forked it exits with the benchmark. A suspended process cannot watch for that itself.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which ends this one in its own time
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    action(*arguments)
