"""What the kernel says of the control groups that this process belongs to, of version 1 or 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from headrace.data._system import kernel_files

_ROOT = "/sys/fs/cgroup"
_NO_LIMIT = 1 << 60  # version 1 says so with a huge number


class Names(NamedTuple):
    """What a file is called in either version."""

    version_2: str
    version_1: str


MEMORY_LIMIT = Names("memory.max", "memory.limit_in_bytes")
MEMORY_USAGE = Names("memory.current", "memory.usage_in_bytes")
#: The one with the counter ``oom_kill``.
MEMORY_EVENTS = Names("memory.events", "memory.oom_control")
PROCESS_LIMIT = Names("pids.max", "pids.max")


class ControlGroup(NamedTuple):
    """A control group, which need not exist, by its folder."""

    folder: str
    is_version_2: bool

    def path(self, names: Names) -> str:
        """The path of a file."""
        return f"{self.folder}/{names.version_2 if self.is_version_2 else names.version_1}"

    def number(self, names: Names) -> int | None:
        """What a file says; None if there is none, or it says that there is no limit."""
        text = kernel_files.read(self.path(names))
        return int(text) if text.isdecimal() and int(text) < _NO_LIMIT else None


def own_groups(controller: str) -> Iterator[ControlGroup]:
    """Those in which a controller limits this process: its own, and those around it up to the root, which may be all
    that a container sees.
    """
    for line in kernel_files.read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in (controllers, controller) if controllers else ("", "unified"):
            root = f"{_ROOT}/{mount}".rstrip("/")
            folder = root + path.rstrip("/")
            while len(folder) >= len(root):
                yield ControlGroup(folder, not controllers)
                folder = os.path.dirname(folder)


def lowest_limit(names: Names) -> int | None:
    """The lowest limit that holds for this process; None if there is none."""
    controller = names.version_2.partition(".")[0]
    return min((limit for group in own_groups(controller) if (limit := group.number(names)) is not None), default=None)


def processors_share() -> float | None:
    """How many processors' time this process may use; None if there is no limit."""
    shares = []
    for folder, is_version_2 in own_groups("cpu"):
        if is_version_2:
            said = kernel_files.read(f"{folder}/cpu.max").split()
        else:
            said = [kernel_files.read(f"{folder}/cpu.cfs_{part}_us") for part in ("quota", "period")]
        if len(said) == 2 and all(map(str.isdecimal, said)):
            shares.append(int(said[0]) / max(1, int(said[1])))
    return min(shares, default=None)
