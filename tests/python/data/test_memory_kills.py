"""headrace.data._system.memory_kills: what the system says of memory that has run out."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.data._system import control_groups, kernel_files
from headrace.data._system import memory_kills as _memory_kills
from headrace.data._system.memory_kills import MemoryKills


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group of version 2 that this process seems to belong to."""
    folder = tmp_path / "slice" / "job"
    folder.mkdir(parents=True)
    (folder / "memory.events").write_text("low 0\nmax 3\noom 1\noom_kill 2\noom_group_kill 0\n")
    (folder / "memory.max").write_text(f"{250 << 20}\n")
    (folder / "memory.current").write_text(f"{249 << 20}\n")
    read = kernel_files.read
    own = "3:cpu,cpuacct:/elsewhere\n0::/slice/job\n"
    monkeypatch.setattr(kernel_files, "read", lambda path: own if path == "/proc/self/cgroup" else read(path))
    monkeypatch.setattr(control_groups, "_ROOT", str(tmp_path))
    return folder


def test_kills_are_counted_from_the_beginning_of_the_loader(group: Path) -> None:
    kills = MemoryKills()
    assert kills.count() == 0
    assert kills.describe() == ""
    (group / "memory.events").write_text("oom_kill 3\n")
    assert kills.count() == 1
    assert kills.describe() == (
        "The kernel has ended a process since the loader started because the memory of its control group, 249 of 250 "
        "MiB, ran out. "
    )
    (group / "memory.events").write_text("oom_kill 7\n")
    assert "has ended 5 processes" in kills.describe()


def test_a_group_without_a_limit_of_its_own(group: Path) -> None:
    (group / "memory.max").write_text("max\n")
    kills = MemoryKills()
    (group / "memory.events").write_text("oom_kill 3\n")
    assert "because the memory of its control group ran out" in kills.describe()


def test_without_a_group_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory_kills, "_own_group", lambda: None)
    machine = tmp_path / "vmstat"
    machine.write_text("nr_free_pages 12\noom_kill 40\n")
    kills = MemoryKills(str(machine))
    machine.write_text("nr_free_pages 12\noom_kill 41\n")
    assert "because the machine's memory ran out" in kills.describe()


def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_memory_kills, "_own_group", lambda: None)
    kills = MemoryKills(str(tmp_path / "missing"))
    assert kills.count() == 0
    assert kills.describe() == ""


def test_this_system_can_be_asked() -> None:
    assert MemoryKills().count() == 0
