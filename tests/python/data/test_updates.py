"""Workers that got their dataset as a pickle are sent one that has changed, as a whole; else, new workers start."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import errors
from headrace.data import DataLoader, Subset, get_worker_info
from headrace.data._workers import dataset_updates as updates

CONTEXTS = ["fork", "forkserver", "spawn"]


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: int) -> int:
        return value * self.factor


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


def shifted(value: int, by: int) -> int:
    return value + by


class Negative:
    def __call__(self, value: int) -> int:
        return -value


class Scaled:
    """Pairs of a number that depends on all kinds of state, and the process that made it."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.transforms: list[Any] = [Scale(1)]
        self.options: dict[Any, Any] = {"shift": 0}
        self.table = np.zeros(4, np.int64)
        self.large = np.zeros(1 << 18)  # 2 MiB
        self.slotted = Slotted(0)
        self.transforms.append(functools.partial(shifted, by=0))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        value = index
        for transform in self.transforms:
            value = transform(value)
        extra = int(getattr(self, "extra", 0))
        return value + self.options["shift"] + int(self.table[0]) + extra + self.slotted.value, os.getpid()


def epoch_of(loader: DataLoader[Any]) -> tuple[list[int], set[int]]:
    """The numbers of an epoch, and the processes that made them."""
    batches = list(loader)
    return [i for batch in batches for i in batch[0].tolist()], {pid for batch in batches for pid in batch[1].tolist()}


def set_item(dataset: Scaled) -> None:
    dataset.options["shift"] = 5


def set_array(dataset: Scaled) -> None:
    dataset.table = np.full(4, 7, np.int64)


def set_within_an_array(dataset: Scaled) -> None:
    dataset.table[0] = 9


def set_deeply(dataset: Scaled) -> None:
    dataset.transforms[0].factor = 3


def set_in_a_slot(dataset: Scaled) -> None:
    dataset.slotted.value = 100


def set_what_is_bound(dataset: Scaled) -> None:
    dataset.transforms[1].keywords["by"] = 10_000


def add_to_a_list(dataset: Scaled) -> None:
    dataset.transforms.append(Scale(2))


def add_an_attribute(dataset: Scaled) -> None:
    dataset.extra = 1000  # type: ignore[attr-defined]


def remove_it(dataset: Scaled) -> None:
    del dataset.extra  # type: ignore[attr-defined]


def refer_to_what_contains_it(dataset: Scaled) -> None:
    dataset.options["self"] = [dataset, dataset.large]
    dataset.options["shift"] = 11


def change_what_refers_to_it(dataset: Scaled) -> None:
    dataset.options["self"][0].options["shift"] = 13


SMALL = [
    set_item,
    set_array,
    set_within_an_array,
    set_deeply,
    set_in_a_slot,
    set_what_is_bound,
    add_to_a_list,
    add_an_attribute,
    remove_it,
    refer_to_what_contains_it,
    change_what_refers_to_it,
]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_whatever_has_changed_reaches_the_workers(context: str, wrapped: bool) -> None:
    dataset = Scaled()
    given = Subset(dataset, range(8)) if wrapped else dataset
    loader = DataLoader(given, batch_size=2, num_workers=1, multiprocessing_context=context)
    _, workers = epoch_of(loader)
    for change in SMALL:
        change(dataset)
        numbers, pids = epoch_of(loader)
        assert numbers == [dataset[i][0] for i in range(8)], change.__name__
        assert (pids == workers) == (context != "fork"), change.__name__
        workers = pids
        assert epoch_of(loader) == (numbers, pids), change.__name__
    loader.shutdown()


def set_what_is_large(dataset: Scaled) -> None:
    dataset.large = np.ones(9 << 20)


def set_what_cannot_be_pickled(dataset: Scaled) -> None:
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]


def set_an_instance_of_another_class(dataset: Scaled) -> None:
    dataset.transforms[0] = Negative()


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_other_changes_start_new_workers(context: str) -> None:
    dataset = Scaled()
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context=context)
    _, workers = epoch_of(loader)
    changes = [set_an_instance_of_another_class, set_what_is_large]
    for change in [*changes, set_what_cannot_be_pickled] if context == "fork" else changes:
        change(dataset)
        numbers, pids = epoch_of(loader)
        assert numbers == [dataset[i][0] for i in range(8)], change.__name__
        assert pids != workers, change.__name__
        workers = pids


def test_workers_that_may_have_imported_another_version_are_not_sent_its_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "headrace_test_kinds"
    source = "class Times:\n    def __call__(self, value):\n        return {} * value\n"
    (tmp_path / f"{name}.py").write_text(source.format(2))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module(name)
    dataset = Scaled()
    dataset.transforms[0] = module.Times()
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    before = epoch_of(loader)
    assert before[0] == [0, 2, 4, 6, 8, 10, 12, 14]
    (tmp_path / f"{name}.py").write_text(source.format(10))
    dataset.transforms[0] = importlib.reload(module).Times()
    after = epoch_of(loader)
    assert after[0] == [0, 10, 20, 30, 40, 50, 60, 70]
    assert after[1] != before[1]
    loader.shutdown()
    del sys.modules[name]


class Opened(Scaled):
    """Opens a file when it is first asked, and tells how often its process has done that."""

    handle: Any = None
    openings = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        if self.handle is None:
            self.handle = True
            Opened.openings += 1
        return Opened.openings + self.options["shift"], os.getpid()


def test_what_workers_have_opened_stays_open_until_something_changes() -> None:
    dataset = Opened()
    loader = DataLoader(dataset, batch_size=8, num_workers=1, multiprocessing_context="forkserver")
    before = epoch_of(loader)
    assert before[0] == [1] * 8
    assert epoch_of(loader) == before
    dataset.options["shift"] = 10
    assert epoch_of(loader) == ([12] * 8, before[1])  # it is a new dataset
    loader.shutdown()


def open_it(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.options = {"shift": 1000 + info.dataset.options["shift"]}


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_what_worker_init_fn_makes_of_the_dataset_it_makes_of_each(context: str) -> None:
    dataset = Scaled(2)
    loader = DataLoader(dataset, batch_size=2, num_workers=1, worker_init_fn=open_it, multiprocessing_context=context)
    for shift in range(3):
        dataset.options["shift"] = shift
        assert epoch_of(loader)[0] == [1000 + shift, 1001 + shift]
    loader.shutdown()


class Tells(Scaled):
    """Whether get_worker_info knows the dataset of now."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        return self.options["shift"] if info is None or info.dataset is self else -1, os.getpid()


@pytest.mark.parametrize("threads", [1, 3])
def test_workers_know_the_dataset_that_they_were_sent(threads: int) -> None:
    dataset = Tells(64)
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, threads_per_worker=threads, multiprocessing_context="forkserver"
    )
    _, workers = epoch_of(loader)
    for shift in range(1, 4):
        dataset.options["shift"] = shift
        assert epoch_of(loader) == ([shift] * 64, workers)
    loader.shutdown()


def test_threads_follow_as_well() -> None:
    dataset = Scaled(64)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, workers="thread")
    for shift in range(1, 5):
        dataset.options["shift"] = shift
        assert epoch_of(loader)[0] == [dataset[i][0] for i in range(64)]
    dataset.large = np.zeros(9 << 20)  # too large to be compared
    for shift in range(1, 5):
        dataset.options["shift"] = shift
        assert epoch_of(loader)[0] == [dataset[i][0] for i in range(64)]


def test_what_was_made_ahead_is_made_again() -> None:
    dataset = Scaled(8)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, prefetch_factor=4, shuffle=True, seed=3)
    order = DataLoader(range(8), batch_size=2, shuffle=True, seed=3)
    for shift in range(20):
        dataset.options["shift"] = shift  # while batches of this epoch are there already
        expected = [index + shift for batch in order for index in batch.tolist()]
        assert epoch_of(loader)[0] == expected


class Curriculum:
    """Samples that say what is in memory that the program and the workers share."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.shared: Any = None
        self.ballast = np.zeros(9 << 20 if kind == "much" else 1)  # too large to be compared
        if kind == "file":
            self.shared = np.memmap(folder / "shared", mode="w+", dtype=np.int64, shape=(1,))
        elif kind == "tensor":
            self.shared = pytest.importorskip("torch").zeros(1, dtype=int).share_memory_()
        elif kind != "nothing":
            self.shared = multiprocessing.Array("q", 1)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return int(self.shared[0])


@pytest.mark.parametrize("kind", ["value", "much", "file", "tensor"])
@pytest.mark.parametrize("workers", ["process", "thread"])
def test_what_is_shared_is_not_read_before_the_epoch_begins(kind: str, workers: str, tmp_path: Path) -> None:
    context = "fork" if workers == "process" else None
    dataset = Curriculum(tmp_path, kind)
    way: dict[str, Any] = {"workers": workers, "multiprocessing_context": context, "persistent_workers": True}
    loader = DataLoader(dataset, 2, num_workers=1, seed=1, to="numpy", **way)
    for epoch in range(4):
        dataset.shared[0] = epoch
        assert [batch.tolist() for batch in loader] == [[epoch] * 2] * 2
        time.sleep(0.02)  # so that workers could have made all of the next one


def test_threads_read_nothing_too_early_once_something_is_shared(tmp_path: Path) -> None:
    dataset, shared = Curriculum(tmp_path, "nothing"), multiprocessing.Array("q", 1)
    dataset.shared = [0]
    loader = DataLoader(dataset, 2, num_workers=1, seed=1, workers="thread")
    assert [batch.tolist() for batch in loader] == [[0, 0]] * 2
    dataset.shared = shared
    for epoch in range(1, 5):
        shared[0] = epoch
        assert [batch.tolist() for batch in loader] == [[epoch] * 2] * 2
        time.sleep(0.02)


class Stream:
    def __init__(self) -> None:
        self.begin = 0

    def __iter__(self) -> Any:
        return iter([(self.begin + i, os.getpid()) for i in range(6)])


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_stream_follows(context: str) -> None:
    dataset = Stream()
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=context)
    everybody = {process.pid for process in iter(loader)._workers}  # type: ignore[attr-defined]
    for begin in (0, 10, 20):
        dataset.begin = begin
        numbers, pids = epoch_of(loader)
        assert numbers == list(range(begin, begin + 6))
        assert context == "fork" or pids <= everybody
    loader.shutdown()


def test_a_loader_whose_dataset_always_changes_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "_MAX_LOG_BYTES", 10 << 20)
    dataset = Scaled(2)
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="forkserver")
    seen = set()
    for number in range(8):
        dataset.table = np.full(4, number, np.int64)  # beside 2 MiB
        numbers, pids = epoch_of(loader)
        assert numbers == [number, number + 1]
        seen |= pids
    assert len(seen) == 2  # the log of the first worker was full
    loader.shutdown()


class OfTensors:
    def __init__(self) -> None:
        import torch

        self.numbers, self.more = torch.arange(40), 0

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return int(self.numbers[index]) + self.more


@pytest.mark.filterwarnings("ignore:worker")
def test_what_multiprocessing_sends_in_its_own_way_is_sent_again_only_if_it_is_the_same() -> None:
    pytest.importorskip("torch")
    dataset = OfTensors()
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn", prefetch_factor=2, to="numpy")
    batches = iter(loader)

    def kill() -> None:
        for process in batches._engine.workers.processes:  # type: ignore[attr-defined]
            process.kill()

    assert next(batches).tolist() == [0, 1]
    kill()
    assert [next(batches).tolist() for _ in range(3)] == [[2, 3], [4, 5], [6, 7]]
    dataset.more = 100
    kill()
    with pytest.raises(errors.FailedPrecondition, match="Iterate over the loader again"):
        list(batches)
    assert next(iter(loader)).tolist() == [100, 101]
    loader.shutdown()
