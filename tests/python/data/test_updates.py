"""Small changes of a dataset reach workers that run already; for others, new workers start."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.data import DataLoader, Subset, get_worker_info

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
def test_small_changes_need_no_new_workers(context: str, wrapped: bool) -> None:
    dataset = Scaled()
    given = Subset(dataset, range(8)) if wrapped else dataset
    loader = DataLoader(given, batch_size=2, num_workers=1, multiprocessing_context=context)
    _, workers = epoch_of(loader)
    for change in SMALL:
        change(dataset)
        numbers, pids = epoch_of(loader)
        assert numbers == [dataset[i][0] for i in range(8)], change.__name__
        assert pids == workers, change.__name__
    loader.shutdown()


def set_what_is_large(dataset: Scaled) -> None:
    dataset.large = np.ones(1 << 18)


def set_what_cannot_be_pickled(dataset: Scaled) -> None:
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]


def set_an_instance_of_a_class_that_workers_may_not_know(dataset: Scaled) -> None:
    dataset.transforms[0] = Negative()


LARGE = [set_what_is_large, set_what_cannot_be_pickled, set_an_instance_of_a_class_that_workers_may_not_know]


def test_other_changes_start_new_workers() -> None:
    dataset = Scaled()
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork")
    _, workers = epoch_of(loader)
    for change in LARGE:
        change(dataset)
        numbers, pids = epoch_of(loader)
        assert numbers == [dataset[i][0] for i in range(8)], change.__name__
        assert pids != workers, change.__name__
        workers = pids


@pytest.mark.parametrize("folder", ["site-packages", "src"])
def test_only_an_installed_module_is_taken_to_be_the_same_in_workers(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / folder).mkdir()
    name = f"headrace_test_kinds_{folder.replace('-', '_')}"
    (tmp_path / folder / f"{name}.py").write_text(
        "class Twice:\n    def __call__(self, value):\n        return 2 * value\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    dataset = Scaled()
    loader = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork")
    _, workers = epoch_of(loader)
    dataset.transforms[0] = importlib.import_module(name).Twice()
    numbers, pids = epoch_of(loader)
    assert numbers == [0, 2, 4, 6, 8, 10, 12, 14]
    assert (pids == workers) == (folder == "site-packages")
    loader.shutdown()
    del sys.modules[name]


def test_what_workers_have_made_of_it_stays(tmp_path: Path) -> None:
    class Opened(Scaled):
        handle: Any = None

        def __getitem__(self, index: int) -> Any:
            return self.handle.tell() + self.options["shift"], os.getpid()

    def open_it(worker: int) -> None:
        info = get_worker_info()
        assert info is not None
        info.dataset.handle = open(tmp_path / f"worker {worker}", "w")  # noqa: SIM115

    dataset = Opened()
    loader = DataLoader(dataset, batch_size=8, num_workers=1, worker_init_fn=open_it)
    before = epoch_of(loader)
    dataset.options["shift"] = 3
    assert epoch_of(loader) == ([3] * 8, before[1])


def test_a_worker_that_has_lost_what_changes_is_replaced() -> None:
    class Forgetful(Scaled):
        def __getitem__(self, index: int) -> Any:
            shift = self.__dict__.pop("options")["shift"]
            self.options = {"shift": shift} if get_worker_info() is None else {"shift": shift, "own": []}
            if get_worker_info() is not None:
                self.transforms = []
            return shift, os.getpid()

    dataset = Forgetful()
    loader = DataLoader(dataset, batch_size=2, num_workers=2)
    _, workers = epoch_of(loader)
    dataset.transforms[0].factor = 2
    dataset.options["shift"] = 4
    numbers, pids = epoch_of(loader)
    assert numbers == [4] * 8
    assert pids.isdisjoint(workers)
    assert loader.stats()["worker_deaths"] == 0


@pytest.mark.parametrize("way", [{"workers": "thread"}, {"threads_per_worker": 2}], ids=["thread", "threads"])
def test_threads_follow_as_well(way: dict[str, Any]) -> None:
    dataset = Scaled(64)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, **way)
    _, workers = epoch_of(loader)
    for shift in range(1, 5):
        dataset.options["shift"] = shift
        numbers, pids = epoch_of(loader)
        assert numbers == [dataset[i][0] for i in range(64)]
        assert len(pids | workers) <= 2  # the threads' one, or those of two workers


def test_what_was_made_ahead_is_made_again() -> None:
    dataset = Scaled(8)
    loader = DataLoader(dataset, batch_size=2, num_workers=2, prefetch_factor=4, shuffle=True, seed=3)
    order = DataLoader(range(8), batch_size=2, shuffle=True, seed=3)
    for shift in range(20):
        dataset.options["shift"] = shift  # while batches of this epoch are there already
        expected = [index + shift for batch in order for index in batch.tolist()]
        assert epoch_of(loader)[0] == expected


def test_a_stream_follows() -> None:
    class Stream:
        def __init__(self) -> None:
            self.begin = 0

        def __iter__(self) -> Any:
            return iter([(self.begin + i, os.getpid()) for i in range(6)])

    dataset = Stream()
    loader = DataLoader(dataset, batch_size=2, num_workers=2)
    everybody = {process.pid for process in iter(loader)._workers}  # type: ignore[attr-defined]
    for begin in (0, 10, 20):
        dataset.begin = begin
        numbers, pids = epoch_of(loader)
        assert numbers == list(range(begin, begin + 6))
        assert pids <= everybody


def test_a_loader_whose_dataset_always_changes_goes_on() -> None:
    dataset = Scaled(2)
    loader = DataLoader(dataset, batch_size=2, num_workers=1)
    for number in range(40):
        dataset.table = np.full(1 << 15, number, np.int64)  # 256 KiB: the sum is more than workers are sent
        assert epoch_of(loader)[0] == [number, number + 1]
