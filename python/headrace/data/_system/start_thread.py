"""Starts threads; the error of a thread that cannot start names the limit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headrace import errors


def start_thread(target: Callable[..., None], *args: Any, name: str) -> threading.Thread:
    """A daemon thread that runs ``target(*args)``.

    Raises:
        ResourceExhausted: the system starts no more threads.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise errors.ResourceExhausted(
            f"cannot start the thread {name}: {error}. A limit on threads and processes (ulimit -u, the pids cgroup) "
            "is reached"
        ) from error
    return thread
