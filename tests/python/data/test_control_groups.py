"""headrace.data._system.control_groups: limits of either version of control groups, or of none."""

from __future__ import annotations

import pytest

from headrace.data._system import kernel_files
from headrace.data._system.control_groups import (
    MEMORY_LIMIT,
    PROCESS_LIMIT,
    ControlGroup,
    lowest_limit,
    own_groups,
    processors_share,
)

ROOT = "/sys/fs/cgroup"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """All that the kernel says: path → text."""
    said: dict[str, str] = {}
    monkeypatch.setattr(kernel_files, "read", lambda path: said.get(path, ""))
    return said


def test_a_group_and_those_around_it_in_version_2(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "0::/slice/job"
    paths = [group.path(MEMORY_LIMIT) for group in own_groups("memory")]
    assert paths[:3] == [f"{ROOT}{folder}/memory.max" for folder in ("/slice/job", "/slice", "")]
    files[f"{ROOT}/slice/memory.max"] = str(300 << 20)
    files[f"{ROOT}/slice/job/memory.max"] = "max"
    assert lowest_limit(MEMORY_LIMIT) == 300 << 20
    files[f"{ROOT}/slice/job/memory.max"] = str(200 << 20)
    assert lowest_limit(MEMORY_LIMIT) == 200 << 20


def test_the_controllers_of_version_1_have_groups_each(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/"
    assert ControlGroup(f"{ROOT}/memory/a/b", False) in own_groups("memory")
    assert lowest_limit(MEMORY_LIMIT) is None
    files[f"{ROOT}/memory/a/memory.limit_in_bytes"] = str(200 << 20)
    files[f"{ROOT}/memory/a/b/memory.limit_in_bytes"] = str((1 << 63) - 4096)
    assert lowest_limit(MEMORY_LIMIT) == 200 << 20
    assert lowest_limit(PROCESS_LIMIT) is None


def test_beside_version_1_version_2_has_a_place_of_its_own(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "4:memory:/\n0::/job"
    files[f"{ROOT}/unified/job/pids.max"] = "20"
    assert lowest_limit(PROCESS_LIMIT) == 20


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        ("0::/job", {"/job/cpu.max": "50000 100000"}),
        ("0::/job", {"/cpu.max": "50000 100000", "/job/cpu.max": "max 100000"}),
        ("2:cpu,cpuacct:/job", {"/cpu/job/cpu.cfs_quota_us": "50000", "/cpu/job/cpu.cfs_period_us": "100000"}),
        ("2:cpu,cpuacct:/", {"/cpu,cpuacct/cpu.cfs_quota_us": "50000", "/cpu,cpuacct/cpu.cfs_period_us": "100000"}),
    ],
)
def test_a_share_of_the_processors(own: str, limits: dict[str, str], files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = own
    assert processors_share() is None
    files.update({ROOT + path: text for path, text in limits.items()})
    assert processors_share() == 0.5


def test_without_a_quota_all_processors_count(files: dict[str, str]) -> None:
    files["/proc/self/cgroup"] = "2:cpu:/"
    files[f"{ROOT}/cpu/cpu.cfs_quota_us"], files[f"{ROOT}/cpu/cpu.cfs_period_us"] = "-1", "100000"
    assert processors_share() is None


def test_without_control_groups_there_are_no_limits(files: dict[str, str]) -> None:
    assert list(own_groups("memory")) == []
    assert lowest_limit(MEMORY_LIMIT) is None
    assert processors_share() is None


def test_this_system_can_be_asked() -> None:
    for limit in (lowest_limit(MEMORY_LIMIT), lowest_limit(PROCESS_LIMIT), processors_share()):
        assert limit is None or limit > 0
