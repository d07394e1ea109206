"""Workers that are threads, and worker processes with several threads."""

from __future__ import annotations

import os
import random
import resource
import threading
import time
from typing import Any

import pytest
from loader_datasets import Ints, Meeting, Raising

from headrace import errors
from headrace.data import DataLoader, get_worker_info
from headrace.data._workers.errors import KeptErrors


def threads_of(loader: DataLoader) -> set[tuple[int, int, int]]:
    """Samples that tell which process, thread and worker made them."""
    return {tuple(map(int, maker)) for who in loader for maker in zip(who.pid, who.thread, who.worker)}


def test_threads_run_in_this_process_and_know_their_numbers() -> None:
    loader = DataLoader(Meeting(60, 3), 4, num_workers=3, workers="thread", persistent_workers=False)
    threads = threads_of(loader)
    assert {pid for pid, _, _ in threads} == {os.getpid()}
    assert {worker for _, _, worker in threads} == {0, 1, 2}
    assert len({thread for _, thread, _ in threads} - {threading.get_ident()}) == 3
    assert get_worker_info() is None


def test_each_process_may_have_several_threads() -> None:
    loader = DataLoader(Meeting(60, 6), 12, num_workers=2, threads_per_worker=3, persistent_workers=False)
    (pid, threads), (other_pid, other_threads) = _by_process(threads_of(loader)).items()
    assert os.getpid() not in (pid, other_pid)
    assert len(threads) == len(other_threads) == 3


def _by_process(threads: set[tuple[int, int, int]]) -> dict[int, set[int]]:
    processes: dict[int, set[int]] = {}
    for pid, thread, _ in threads:
        processes.setdefault(pid, set()).add(thread)
    return processes


def test_an_exception_in_a_thread_arrives_as_it_is() -> None:
    loader = DataLoader(Raising(12, 5), 2, num_workers=2, workers="thread")
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(KeyError, match="no sample 5") as caught:
        next(iterator)
    assert "__getitem__" in [entry.name for entry in caught.traceback]
    assert [*got, *(batch.tolist() for batch in iterator)] == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]


class Fickle(Ints):
    """Some of its samples cannot be made, others in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, index: int) -> Any:
        if (index * 7 + self.epoch * 3) % 5 == 0:
            raise KeyError(f"no sample {index}")
        return index


def outcomes(dataset: Ints, breaks: list[int | None], refresh: bool, **arguments: Any) -> list[Any]:
    """What each batch of several epochs holds or raises; an epoch ends early after the number in ``breaks``."""
    seen: list[Any] = []
    loader = DataLoader(dataset, 4, seed=3, shuffle=True, **arguments)
    for end in breaks:
        iterator = iter(loader)
        while end is None or end > 0:
            end = None if end is None else end - 1
            try:
                seen.append(next(iterator).tolist())
            except StopIteration:
                break
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")
        seen.append("end")
        if refresh:
            loader.refresh()
    return seen


@pytest.mark.parametrize("case", range(12))
def test_threads_raise_what_is_raised_without_workers_in_each_epoch(case: int) -> None:
    rng = random.Random(case)
    dataset: Ints = Fickle(20) if case % 2 else Raising(20, *rng.sample(range(20), 3))
    breaks = [rng.choice([None, None, 0, 1, 3]) for _ in range(12)]
    refresh = case % 3 == 0
    wanted = outcomes(dataset, breaks, refresh, num_workers=0)
    assert outcomes(dataset, breaks, refresh, num_workers=1 + case % 4, workers="thread") == wanted


def test_a_failure_in_an_epoch_that_threads_have_begun_ahead_is_not_lost() -> None:
    loader = DataLoader(Raising(8, 1), 4, num_workers=2, workers="thread")
    for _ in range(5):
        iterator = iter(loader)
        with pytest.raises(KeyError, match="no sample 1"):
            next(iterator)
        assert next(iterator).tolist() == [4, 5, 6, 7]
        time.sleep(0.02)  # for the threads to come to the next epoch
        assert next(iterator, None) is None


def test_exceptions_are_kept_no_longer_than_their_epochs() -> None:
    kept = KeptErrors()
    messages = [kept.keep(KeyError(epoch), epoch) for epoch in range(4)]
    kept.start_epoch(2)
    assert [type(kept.get(message)) for message in messages] == [RuntimeError, RuntimeError, KeyError, KeyError]
    kept.start_epoch(0)  # of a state that was loaded
    assert [type(kept.get(message)) for message in messages] == [RuntimeError] * 4


def test_threads_end_with_the_loader() -> None:
    def workers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    before = threading.enumerate()
    loader = DataLoader(Ints(20), 2, num_workers=3, workers="thread")
    iterator = iter(loader)
    next(iterator)
    assert len(workers()) == 3
    loader.shutdown()
    assert workers() == []
    assert len(list(loader)) == 10
    del loader, iterator
    deadline = time.monotonic() + 100
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert workers() == []


@pytest.mark.filterwarnings("ignore:worker")
def test_all_threads_of_a_process_that_dies_are_replaced(tmp_path: Any) -> None:
    class Deadly(Ints):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.001)
            mark = tmp_path / "died"
            if index == 30 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), 9)
            return index

    for _ in range(5):
        loader = DataLoader(Deadly(100), 4, num_workers=1, threads_per_worker=4)
        assert [i for batch in loader for i in batch.tolist()] == list(range(100))
        (tmp_path / "died").unlink()


def test_an_error_in_worker_init_fn_is_that_of_every_batch() -> None:
    def broken(worker: int) -> None:
        raise OSError("no start today")

    for arguments in ({"workers": "thread", "num_workers": 2}, {"num_workers": 1, "threads_per_worker": 2}):
        iterator = iter(DataLoader(Ints(4), 2, worker_init_fn=broken, **arguments))  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(OSError, match="no start today"):
                next(iterator)


def test_a_sample_that_takes_forever_does_not_hold_up_the_end() -> None:
    release = threading.Event()

    class Stuck(Ints):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                release.wait()
            return index

    loader = DataLoader(Stuck(8), 1, num_workers=2, workers="thread")
    iterator = iter(loader)
    assert [int(next(iterator)[0]) for _ in range(3)] == [0, 1, 2]
    loader.shutdown()  # hangs, or does not
    release.set()


@pytest.mark.parametrize("limit", ["ulimit -u", r"The limit of 16 MiB of address space \(RLIMIT_AS, ulimit -v\)"])
def test_threads_that_cannot_start_are_an_error_that_names_the_limit(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.enumerate()
    loader = DataLoader(Ints(20), 2, num_workers=3, workers="thread")
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "headrace-worker-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    if "RLIMIT_AS" in limit:
        monkeypatch.setattr(resource, "getrlimit", lambda which: (16 << 20, 16 << 20))
    with pytest.raises(errors.ResourceExhausted, match=rf"cannot start the thread headrace-worker-1.*{limit}"):
        iter(loader)
    assert {thread for thread in threading.enumerate() if thread.name.startswith("headrace-worker")} <= set(before)
    monkeypatch.undo()
    assert sum(len(batch) for batch in loader) == 20
