"""Samples that wait for others, such as a server that is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from headrace import DataLoader
from headrace._waiting import is_over, waiting_for_others
from headrace.data._workers import process_pool, thread_pool

KINDS: dict[str, dict[str, Any]] = {
    "processes": {"num_workers": 2},
    "threads of a process": {"num_workers": 1, "threads_per_worker": 2},
    "threads": {"num_workers": 2, "workers": "thread"},
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it shows who is waited for."""
    for module in (process_pool, thread_pool):
        monkeypatch.setattr(module, "GRACE", 100.0)
        monkeypatch.setattr(module, "GRACE_OF_WAIT", 0.2)


class Waiting:
    """Waits at its first two samples, for nothing.

    Attributes:
        hears: it looks whether its loader has ended.
        writes: it is at something of its own, which is not to be cut off, for a while after its loader has ended.
    """

    def __init__(self, folder: Path, hears: bool = False, writes: bool = False) -> None:
        self.folder, self.hears, self.writes = folder, hears, writes

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        is_writing = self.writes and index == 0
        (self.folder / str(index)).write_text("begins, ")
        deadline = time.monotonic() + 60
        with waiting_for_others():
            while not is_writing and time.monotonic() < deadline and not (self.hears and is_over()):
                time.sleep(0.01)
        while not is_over() and time.monotonic() < deadline:
            time.sleep(0.01)
        if is_writing:
            time.sleep(0.6)  # longer than waits are waited for
        with (self.folder / str(index)).open("a") as file:
            file.write("ends")
        return index


def shut_down_at_samples(folder: Path, kind: str, **what: bool) -> tuple[float, dict[str, str]]:
    """The seconds that it takes, and what each sample has written."""
    loader = DataLoader(Waiting(folder, **what), 1, **KINDS[kind])
    batches = iter(loader)
    deadline = time.monotonic() + 100
    while sum(path.stat().st_size > 0 for path in folder.iterdir()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begin = time.monotonic()
    loader.shutdown()
    seconds = time.monotonic() - begin
    del batches
    return seconds, {path.name: path.read_text() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_shutdown_gives_up_samples_that_wait_for_others(kind: str, tmp_path: Path) -> None:
    seconds, written = shut_down_at_samples(tmp_path, kind)
    assert seconds < 30
    assert written == {"0": "begins, ", "1": "begins, "}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_sample_that_hears_of_the_end_ends(kind: str, tmp_path: Path) -> None:
    seconds, written = shut_down_at_samples(tmp_path, kind, hears=True)
    assert seconds < 30
    assert written == {"0": "begins, ends", "1": "begins, ends"}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_shutdown_lets_a_sample_end_beside_one_that_waits(kind: str, tmp_path: Path) -> None:
    seconds, written = shut_down_at_samples(tmp_path, kind, writes=True)
    assert seconds < 30
    assert written == {"0": "begins, ends", "1": "begins, "}


class WaitsForASpec:
    def __init__(self, begun: Path) -> None:
        self.begun, self.main = begun, os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int, out: Any = None) -> int:
        return index

    @property
    def sample_spec(self) -> Any:
        if os.getpid() != self.main:
            self.begun.touch()
            with waiting_for_others():
                time.sleep(60)
        raise AttributeError


def test_a_shutdown_gives_up_a_worker_that_waits_for_others_before_it_has_begun(tmp_path: Path) -> None:
    loader = DataLoader(WaitsForASpec(tmp_path / "begun"), 1, num_workers=1)
    batches = iter(loader)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    begin = time.monotonic()
    loader.shutdown()
    assert time.monotonic() - begin < 30
    del batches


def test_outside_of_workers_nothing_is_noted() -> None:
    with waiting_for_others(), waiting_for_others():
        assert not is_over()


def test_a_child_of_a_worker_does_not_wait_in_its_name(tmp_path: Path) -> None:
    class Forks:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> int:
            with waiting_for_others():
                child = os.fork()
                if child == 0:
                    with waiting_for_others():
                        os._exit(0)
                os.waitpid(child, 0)
                (tmp_path / "forked").touch()
                time.sleep(60)
            return index

    loader = DataLoader(Forks(), 1, num_workers=1)
    batches = iter(loader)
    while not (tmp_path / "forked").exists():
        time.sleep(0.01)
    begin = time.monotonic()
    loader.shutdown()
    assert time.monotonic() - begin < 30
    del batches
