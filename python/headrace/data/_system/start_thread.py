"""Starts threads; the error of a thread that cannot start names the limit."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import Any

from headrace import errors
from headrace.data._system import kernel_files

# Of the stack of a thread, if nothing says how large that is, in bytes.
_USUAL_STACK = 8 << 20


def start_thread(target: Callable[..., None], *args: Any, name: str) -> threading.Thread:
    """A daemon thread that runs ``target(*args)``.

    Raises:
        ResourceExhausted: the system starts no more threads.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise errors.ResourceExhausted(f"cannot start the thread {name}: {error}. {_limit()} is reached") from error
    return thread


def _limit() -> str:
    """The limit that keeps a thread from starting. The system says the same of each."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY:
        stack = threading.stack_size() or resource.getrlimit(resource.RLIMIT_STACK)[0]
        taken = int(kernel_files.read("/proc/self/statm").partition(" ")[0] or 0) * resource.getpagesize()
        if taken + (stack if stack > 0 else _USUAL_STACK) > most:
            return f"The limit of {most >> 20} MiB of address space (RLIMIT_AS, ulimit -v)"
    return "A limit on threads and processes (ulimit -u, the pids cgroup)"
