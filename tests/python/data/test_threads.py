"""Workers that are threads, and worker processes with several."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
from loader_datasets import Ints, Raising

from headrace.data import DataLoader, get_worker_info


class Where(Ints):
    """Reports process, thread and worker."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.004)
        info = get_worker_info()
        return os.getpid(), threading.get_ident(), -1 if info is None else info.id


def test_threads_run_in_this_process_and_know_their_numbers() -> None:
    loader = DataLoader(Where(60), 4, num_workers=3, workers="thread")
    pids, idents, ids = (set(), set(), set())  # type: ignore[var-annotated]
    for batch in loader:
        for seen, values in zip((pids, idents, ids), batch):
            seen.update(values.tolist())
    assert pids == {os.getpid()}
    assert len(idents) == 3
    assert ids == {0, 1, 2}
    assert get_worker_info() is None


class Meeting(Ints):
    """The first four samples are made at the same time, by threads of one process, or never."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.barrier = threading.Barrier(4)

    def __getitem__(self, index: int) -> Any:
        if index < 4:
            self.barrier.wait(20)
        return index


@pytest.mark.parametrize(
    "arguments", [{"num_workers": 4, "workers": "thread"}, {"num_workers": 1, "threads_per_worker": 4}], ids=str
)
def test_threads_wait_at_the_same_time(arguments: dict[str, Any]) -> None:
    # Without the next epoch's first batches, which nobody would meet for.
    loader = DataLoader(Meeting(100), 10, persistent_workers=False, **arguments)
    assert [i for batch in loader for i in batch.tolist()] == list(range(100))


def test_each_process_may_have_several_threads() -> None:
    loader = DataLoader(Where(100), 4, num_workers=2, threads_per_worker=3)
    idents = {(int(pid), int(ident)) for batch in loader for pid, ident in zip(batch[0], batch[1])}
    assert len({pid for pid, _ in idents}) == 2
    assert len(idents) == 6


def test_an_exception_in_a_thread_arrives_as_it_is() -> None:
    loader = DataLoader(Raising(12, 5), 2, num_workers=2, workers="thread")
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(2)]
    with pytest.raises(KeyError, match="no sample 5") as caught:
        next(iterator)
    assert "__getitem__" in [entry.name for entry in caught.traceback]
    assert [*got, *(batch.tolist() for batch in iterator)] == [[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]]


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
    deadline = time.monotonic() + 5
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
                release.wait(30)
            return index

    loader = DataLoader(Stuck(8), 1, num_workers=2, workers="thread")
    iterator = iter(loader)
    assert [int(next(iterator)[0]) for _ in range(3)] == [0, 1, 2]
    begin = time.monotonic()
    loader.shutdown()
    assert time.monotonic() - begin < 10
    release.set()
