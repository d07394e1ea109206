"""Which processes the kernel is to end if memory runs out, a control group's or the machine's, and whether it has."""

from __future__ import annotations

import contextlib
import os

from headrace.data._system import control_groups, kernel_files


def _own_group() -> control_groups.ControlGroup | None:
    """This process's, or what a container sees of it; None if there is none that can be read."""
    groups = control_groups.own_groups("memory")
    return next((group for group in groups if os.path.exists(group.path(control_groups.MEMORY_EVENTS))), None)


class MemoryKills:
    """Counts the processes that the kernel has ended since this object was made because memory ran out.

    Args:
        machine: the file with the machine's counter, which counts where there is no control group.
    """

    def __init__(self, machine: str = "/proc/vmstat") -> None:
        self._group = _own_group()
        self._events = machine if self._group is None else self._group.path(control_groups.MEMORY_EVENTS)
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
            limit = self._group.number(control_groups.MEMORY_LIMIT)
            usage = self._group.number(control_groups.MEMORY_USAGE)
            if limit is not None and usage is not None:
                where += f", {usage >> 20} of {limit >> 20} MiB,"
        processes = "a process" if count == 1 else f"{count} processes"
        return f"The kernel has ended {processes} since the loader started because {where} ran out. "

    def _counter(self) -> int:
        for line in kernel_files.read(self._events).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill" and value.isdecimal():
                return int(value)
        return 0


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
