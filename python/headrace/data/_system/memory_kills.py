"""Which processes the kernel is to end if memory runs out, a control group's or the machine's, and whether it has."""

from __future__ import annotations

import contextlib
import dataclasses
import os

_CGROUPS = "/sys/fs/cgroup"


@dataclasses.dataclass(frozen=True)
class _Group:
    """The memory controller of a control group.

    Attributes:
        events: the file with the counter ``oom_kill``.
        limit, usage: files that hold a number of bytes.
    """

    events: str
    limit: str
    usage: str


def _own_group() -> _Group | None:
    """That of this process; None if there is none that can be read."""
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            names, roots = ("memory.events", "memory.max", "memory.current"), [_CGROUPS, f"{_CGROUPS}/unified"]
        elif "memory" in controllers.split(","):
            names = ("memory.oom_control", "memory.limit_in_bytes", "memory.usage_in_bytes")
            roots = [f"{_CGROUPS}/{controllers}", f"{_CGROUPS}/memory"]
        else:
            continue
        # A container may see its own group at the root.
        for folder in [root + part for root in roots for part in (path.rstrip("/"), "")]:
            group = _Group(*(f"{folder}/{name}" for name in names))
            if os.path.exists(group.events):
                return group
    return None


class MemoryKills:
    """Counts the processes that the kernel has ended since this object was made because memory ran out.

    Args:
        machine: the file with the machine's counter, which counts where there is no control group.
    """

    def __init__(self, machine: str = "/proc/vmstat") -> None:
        self._group = _own_group()
        self._events = machine if self._group is None else self._group.events
        self._before = self._counter()

    def count(self) -> int:
        """How many; 0 also if the system does not say."""
        return self._counter() - self._before

    def describe(self) -> str:
        """A sentence on them; empty if there were none."""
        count = self.count()
        if count <= 0:
            return ""
        where = "the machine's memory"
        if self._group is not None:
            where = "the memory of its control group"
            limit, usage = (_read(file).strip() for file in (self._group.limit, self._group.usage))
            if limit.isdecimal() and usage.isdecimal() and int(limit) < 1 << 60:
                where += f", {int(usage) >> 20} of {int(limit) >> 20} MiB,"
        processes = "a process" if count == 1 else f"{count} processes"
        return f"The kernel has ended {processes} since the loader started because {where} ran out. "

    def _counter(self) -> int:
        for line in _read(self._events).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
        return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


# Of 1000, which stands for all memory.
_SCORE = 500


def offer_to_out_of_memory_killer() -> None:
    """If memory runs out, has the kernel end this process, or one forked from it, rather than the main process."""
    path = "/proc/self/oom_score_adj"
    with contextlib.suppress(OSError, ValueError):  # without /proc, or where it is read-only
        with open(path) as file:
            own = int(file.read())
        with open(path, "w") as file:
            file.write(str(min(1000, own + _SCORE)))
