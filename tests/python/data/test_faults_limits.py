"""Where resources are scarce, the loader works, or says at the earliest place what is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fault_harness import CONTEXTS, can_unshare, program, run

from headrace import errors
from headrace.data import DataLoader, IterableDataset

pytestmark = pytest.mark.timeout(360)

CGROUPS = Path("/sys/fs/cgroup")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_mounts = pytest.mark.skipif(not can_unshare(), reason="needs root and mount namespaces")


@pytest.fixture
def cgroup(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A version 1 control group of the controller that the test names."""
    folder = CGROUPS / request.param / f"headrace-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    yield folder
    for _ in range(100):
        try:
            folder.rmdir()
            break
        except OSError:
            subprocess.run(["sleep", "0.05"], check=False)


def within(folder: Path) -> str:
    """Shell commands that move a program into the control group."""
    return f"echo 0 > {folder}/cgroup.procs"


# A /dev that has nothing but `null`: unmounting /dev/shm would leave a folder that can be written to.
BARE_DEV = (
    'd="$TMPDIR/../dev" && mkdir "$d" && mount -t tmpfs tmpfs "$d" && touch "$d/null" && '
    'mount --bind /dev/null "$d/null" && mount --rbind "$d" /dev'
)


@needs_mounts
@pytest.mark.parametrize(
    ("mounts", "context"),
    [
        ("mount -o remount,size=64m /dev/shm", "fork"),
        ("mount -o remount,ro /dev/shm", "forkserver"),
        (BARE_DEV, "spawn"),
    ],
    ids=["64 MiB", "read-only", "absent"],
)
def test_dev_shm(mounts: str, context: str) -> None:
    assert run("big_batches", context, mounts=mounts)["ok"]


@needs_mounts
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_temporary_folder_that_is_read_only(context: str) -> None:
    mounts = 'mount -t tmpfs tmpfs "$TMPDIR" && mount -o remount,ro "$TMPDIR"'
    assert run("big_batches", context, mounts=mounts)["ok"]


@needs_mounts
def test_executable_memory_files_are_forbidden() -> None:
    prefix = "unshare --pid --fork --mount-proc sh -c 'echo 2 > /proc/sys/vm/memfd_noexec && exec \"$@\"' sh"
    if subprocess.run(f"{prefix} true", shell=True, capture_output=True).returncode != 0:
        pytest.skip("vm.memfd_noexec cannot be set: the kernel has no such setting, or forbids it")
    with program("memfd_noexec", prefix=prefix) as running:
        result = running.result()
    assert result == {"noexec": "2", "ok": True}


@pytest.mark.parametrize(
    ("mebibytes", "enough", "context"), [(64000, True, "spawn"), (4096, True, "fork"), (300, False, "fork")]
)
def test_little_address_space(mebibytes: int, enough: bool, context: str) -> None:
    """Slots are fewer and smaller then; for a batch that does not fit, an error gives both sizes, and the limit."""
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}  # of which each takes address space
    result = run("big_batches", context, prefix=f"prlimit --as={mebibytes << 20}", environment=one_thread)
    assert result["ok"] == enough, result
    if not enough:
        assert "needs 16777216 bytes" in result["error"]
        assert "300 MiB of address space (RLIMIT_AS, ulimit -v)" in result["error"]


def test_small_files() -> None:
    """The arena is one."""
    result = run("big_batches", "fork", prefix=f"prlimit --fsize={100 << 20}")
    assert not result["ok"]
    assert "needs 16777216 bytes" in result["error"]
    assert "100 MiB for a file (RLIMIT_FSIZE, ulimit -f)" in result["error"]


def test_no_address_space_for_a_place_that_is_kept() -> None:
    """The sample fails with its own error, the loader goes on, and the place shows no other sample."""
    result = run("keeps_places")
    assert result["got"] == [0, 1, 2, "ValueError: mine", 4, 5]
    assert result["kept"][:5] == [[1], [2], [0], [4], [5]]


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_few_file_descriptors(context: str) -> None:
    result = run("few_descriptors", context, 64)
    assert result["works"]
    assert "ulimit -n" in result["error"]
    assert result["leaked"] == 0


@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_a_stack_that_is_too_small_to_start(context: str) -> None:
    result = run("little_stack", context)
    assert "The limit of 4 KiB for its stack (RLIMIT_STACK, ulimit -s) may be too low" in result["error"]
    assert result["left"] == []


def test_whatever_lacks_a_file_descriptor_says_so() -> None:
    outcomes = run("ever_more_descriptors")
    assert outcomes[0] == outcomes[-1] == ""
    assert outcomes[1] != ""
    assert [error for error in outcomes if error and "ulimit -n" not in error] == []


@pytest.mark.parametrize("cgroup", ["pids"], indirect=True)
@pytest.mark.parametrize("context", CONTEXTS)
def test_no_process_can_be_started(context: str, cgroup: Path) -> None:
    (cgroup / "pids.max").write_text("6")
    result = run("many_workers", context, mounts=within(cgroup))
    assert ("could not" if context == "forkserver" else "cannot start worker") in result["error"]
    assert "ulimit -u" in result["error"]
    assert result["left"] == []


@pytest.mark.parametrize("cgroup", ["pids"], indirect=True)
def test_no_thread_can_be_started_in_a_worker(cgroup: Path) -> None:
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads that end with a fork make room
    result = run("one_process_more", str(cgroup), mounts=within(cgroup), environment=environment)
    assert "cannot start the thread that watches the main process" in result["error"]
    assert "ulimit -u" in result["error"]


@needs_root
@pytest.mark.parametrize(
    ("more", "what"), [(0, "cannot start worker 0"), (1, "cannot start the thread that watches"), (4, "")]
)
def test_few_processes(more: int, what: str) -> None:
    """Whatever cannot start, a process or its thread: the error names it, and the limit. Of the four that suffice, two
    are the process from which others are forked and its thread.
    """
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    error = run("few_processes", more, environment=environment)["error"]
    assert what in error
    assert (error == "") == (what == "")
    assert error == "" or "ulimit -u" in error


@pytest.mark.parametrize("cgroup", ["memory"], indirect=True)
def test_a_program_that_keeps_more_batches_than_memory_holds(cgroup: Path) -> None:
    """Whichever workers the kernel ends, and whenever: an error soon, which says what has run out and who has it."""
    (cgroup / "memory.limit_in_bytes").write_text(str(250 << 20))
    result = run("keeps_batches", mounts=within(cgroup))
    assert "SIGKILL" in result["error"]
    assert "the memory of its control group" in result["error"]
    assert "of 250 MiB" in result["error"]
    assert f"the program keeps {result['kept']} batches" in result["error"]
    assert result["seconds"] < 30


@pytest.mark.parametrize("cgroup", ["memory"], indirect=True)
def test_a_sample_that_takes_all_memory(cgroup: Path) -> None:
    (cgroup / "memory.limit_in_bytes").write_text(str(240 << 20))
    result = run("deadly", "out of memory", "rows", "skip", 2, mounts=within(cgroup))
    whole = [list(range(begin, begin + 4)) for begin in range(0, 40, 4)]
    expected: list[Any] = [[index for index in batch if index not in (5, 22)] for batch in whole]
    assert result["epochs"] == [expected]


@pytest.mark.parametrize("cgroup", ["memory"], indirect=True)
def test_less_memory_than_the_batches_made_ahead(cgroup: Path) -> None:
    """The kernel kills workers rather than the main process, which can then say what has happened."""
    # The one that was taken, the one that is waited for and the next take 192 MiB.
    (cgroup / "memory.limit_in_bytes").write_text(str(200 << 20))
    result = run("more_than_memory", mounts=within(cgroup))
    assert "SIGKILL" in result["error"]
    assert "memory" in result["error"]
    assert "prefetch_factor" in result["error"]


@pytest.mark.parametrize("call", ["pidfd_open", "memfd_create"])
@pytest.mark.parametrize("error", ["ENOSYS", "EPERM"])
def test_a_system_call_is_forbidden(call: str, error: str) -> None:
    result = run("forbidden_call", call, error)
    assert call in result["error"]
    if call == "pidfd_open":
        assert "seccomp" in result["error"]
        assert result["threads"]
    assert result["in process"] or call == "memfd_create"


@needs_root
def test_another_user() -> None:
    """The main process gives up its privileges after it has started."""
    assert run("another_user", "fork")["ok"]


class Enormous:
    """Two samples of batch 1 claim to have 3 GiB each, without using memory."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return np.broadcast_to(np.uint8(index), (3 << 30 if index in (2, 3) else 3,))


class EnormousInBulk(Enormous):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class EnormousOut(Enormous):
    def __getitem__(self, index: int, out: Any = None) -> Any:
        return super().__getitem__(index)


class EnormousStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([Enormous()[index] for index in range(6)])


def enormous(samples: list[Any]) -> Any:
    return np.zeros(5 << 30 if len(samples[0]) > 3 else 3, np.uint8)  # memory that nobody touches


@pytest.mark.parametrize(
    ("dataset", "arguments", "num_workers"),
    [
        *((dataset(), {}, n) for dataset in (Enormous, EnormousInBulk, EnormousOut, EnormousStream) for n in (0, 1)),
        (Enormous(), {"ragged": "list"}, 1),
        (Enormous(), {"ragged": "lod"}, 1),
        (Enormous(), {"collate_fn": enormous}, 1),
    ],
)
def test_a_batch_larger_than_a_slot(dataset: Any, arguments: dict[str, Any], num_workers: int) -> None:
    """An error with both sizes takes the place of that batch; the others arrive."""
    iterator = iter(DataLoader(dataset, batch_size=2, num_workers=num_workers, **arguments))
    next(iterator)
    with pytest.raises(errors.ResourceExhausted, match=r"\d{10,} .*bytes.* \d{10}") as caught:
        next(iterator)
    assert isinstance(caught.value, MemoryError)
    next(iterator)
    assert next(iterator, None) is None


def test_a_collation_in_this_process_needs_no_slot() -> None:
    iterator = iter(DataLoader(Enormous(), batch_size=2, collate_fn=enormous))
    assert [len(batch) for batch in iterator] == [3, 5 << 30, 3]


@pytest.mark.parametrize("ragged", ["list", "lod"])
def test_ragged_samples_in_this_process_need_no_slot(ragged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small slots: copies of gigabytes take a minute."""
    monkeypatch.setattr("headrace.data._iteration.setup._SLOT_BYTES", 1 << 20)
    samples = [np.full(3 << 20 if index in (2, 3) else 3, index, np.uint8) for index in range(6)]
    with pytest.raises(errors.ResourceExhausted, match="6291456 bytes of a batch"):
        list(DataLoader(samples[2:4], batch_size=2))
    batches = list(DataLoader(samples, batch_size=2, ragged=ragged))
    for number, batch in enumerate(batches):
        for row, sample in zip(batch, samples[2 * number :]):
            np.testing.assert_array_equal(row, sample)
    assert len(batches) == 3
