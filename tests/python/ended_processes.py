"""Whether processes have ended."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from pathlib import Path


def assert_no_process(pids: AbstractSet[int | None], seconds: float = 100) -> None:
    """All of them end, or have ended, in time; a killed one ends when it is next its turn."""
    deadline = time.monotonic() + seconds
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.02)


def is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
