"""Changes between two epochs reach the workers, which otherwise live on."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.data import DataLoader, Subset
from headrace.data._fingerprint import fingerprint

WAYS = [
    {"num_workers": 0},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "forkserver"},
    {"num_workers": 1, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "workers": "thread"},
]


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: int) -> int:
        return value * self.factor


class Scaled:
    """Numbers that depend on all kinds of state."""

    def __init__(self) -> None:
        self.scale = Scale(1)
        self.epoch = 0
        self.options = {"shift": [0]}
        self.table = np.zeros(4, np.int64)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return self.scale(index) + 100 * self.epoch + self.options["shift"][0] + int(self.table[0])


def change_attribute(dataset: Scaled) -> None:
    dataset.scale = Scale(2)


def change_deeply(dataset: Scaled) -> None:
    dataset.scale.factor = 3


def change_item(dataset: Scaled) -> None:
    dataset.options["shift"][0] = 5


def change_array(dataset: Scaled) -> None:
    dataset.table[0] = 7


def change_epoch(dataset: Scaled) -> None:
    dataset.set_epoch(1)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
def test_a_change_shows_in_the_epoch_that_follows(way: dict[str, Any]) -> None:
    dataset = Scaled()
    loader = DataLoader(Subset(dataset, range(16)), batch_size=2, **way)
    changes = (change_attribute, change_deeply, change_item, change_array, change_epoch)
    slow = way.get("multiprocessing_context") in ("forkserver", "spawn")  # each change starts new workers
    for change in changes[-1:] if slow else changes:
        change(dataset)
        assert np.concatenate(list(loader)).tolist() == [dataset[i] for i in range(16)], change.__name__
    loader.shutdown()


class Pids:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def test_without_a_change_the_workers_stay() -> None:
    loader = DataLoader(Pids(), num_workers=1)
    first, second = (set(np.concatenate(list(loader)).tolist()) for _ in range(2))
    assert first == second
    loader.refresh()
    third, fourth = (set(np.concatenate(list(loader)).tolist()) for _ in range(2))
    assert third == fourth != first


def test_a_changed_collate_function_shows() -> None:
    options = {"add": 1}
    loader = DataLoader(range(4), batch_size=2, num_workers=1, collate_fn=lambda samples: sum(samples) + options["add"])
    assert list(loader) == [2, 6]
    options["add"] = 2
    assert list(loader) == [3, 7]


def test_refresh_shows_what_cannot_be_seen() -> None:
    large = np.zeros(1 << 20)

    class Large(Pids):
        def __getitem__(self, index: int) -> Any:
            return large[index]

    loader = DataLoader(Large(), batch_size=4, num_workers=1)
    assert next(iter(loader)).tolist() == [0, 0, 0, 0]
    large[:] = 1
    loader.refresh()
    assert next(iter(loader)).tolist() == [1, 1, 1, 1]


def nothing(thing: Any) -> None:
    pass


def replace(thing: Any) -> None:
    thing.value = object()


class Slotted:
    __slots__ = ("__weakref__", "inner", "kept", "never_set")

    def __init__(self) -> None:
        self.inner, self.kept = [1], {"a": 1}


def slot(thing: Any) -> None:
    thing.value = Slotted()


def change_in_a_slot(thing: Any) -> None:
    thing.value.inner[0] += 1


def bind(thing: Any) -> None:
    thing.value = functools.partial(max, 1, default=[2])


def change_what_is_bound(thing: Any) -> None:
    thing.value.keywords["default"].append(3)


def hold_too_much(thing: Any) -> None:
    thing.value = {number: [(1, 2)] * 500 for number in range(100)}
    thing.later = Slotted()


def replace_what_comes_late(thing: Any) -> None:
    thing.later = Slotted()


def resize(thing: Any) -> None:
    thing.value = list(range(100_000))


def grow(thing: Any) -> None:
    thing.value.append(0)


def refer_to_itself(thing: Any) -> None:
    thing.value = [thing]


class Thing:
    value: Any = None


def test_a_fingerprint_changes_when_something_does() -> None:
    thing = Thing()
    changes: list[tuple[Callable[[Any], None], bool]] = [
        (replace, True),
        (nothing, False),
        (slot, True),
        (nothing, False),
        (change_in_a_slot, True),
        (bind, True),
        (nothing, False),
        (change_what_is_bound, True),
        (hold_too_much, True),
        (nothing, False),
        (replace_what_comes_late, True),
        (resize, True),
        (nothing, False),
        (grow, True),
        (refer_to_itself, True),
        (nothing, False),
    ]
    for change, differs in changes:
        before = fingerprint(thing)
        change(thing)
        assert (fingerprint(thing) != before) == differs, change.__name__
