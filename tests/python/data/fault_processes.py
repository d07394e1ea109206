"""Lists processes, their state, and the descriptors of this one."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def open_descriptors() -> set[tuple[str, str]]:
    """Those of this process, and what they refer to; of another test, some may close at any time."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # with which the folder was read
            found.add((descriptor, os.readlink(f"/proc/self/fd/{descriptor}")))
    return found


def stat_of(pid: int) -> tuple[str, int, int] | None:
    """The state, parent and session of a process; None if it is gone."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[3])


def session_members(session: int) -> list[int]:
    """The processes of a session, except zombies."""
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = stat_of(int(entry))
            if stat is not None and stat[2] == session and stat[0] not in "ZX":
                members.append(int(entry))
    return members


def name_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""


def command_of(pid: int) -> str:
    try:
        return Path("/proc", str(pid), "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def workers_of(main: int) -> list[int]:
    """The live worker processes of the loaders in ``main``, by whatever start method."""
    members = [(pid, stat) for pid in session_members(os.getsid(main)) if (stat := stat_of(pid)) is not None]
    services = {
        pid
        for pid, stat in members
        if stat[1] == main and ("resource_tracker import" in command_of(pid) or _is_forkserver(pid, main))
    }
    services |= {pid for pid, _ in members if name_of(pid) == "hr-template"}
    return [pid for pid, stat in members if pid not in services and (stat[1] == main or stat[1] in services)]


def _is_forkserver(pid: int, main: int) -> bool:
    return "forkserver import main" in command_of(pid)


def ignores_interrupts(pid: int) -> bool:
    """Whether a process ignores Ctrl-C, as a worker does once it has started."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return False
    ignored = next((line.split()[1] for line in lines if line.startswith("SigIgn:")), "0")
    return bool(int(ignored, 16) >> (signal.SIGINT - 1) & 1)
