"""headrace.data._datasets.frozen_list: a list that processes share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from typing import Any

import pytest
from fault_processes import open_descriptors

from headrace.data import DataLoader
from headrace.data._datasets.frozen_list import FrozenList

CASES: list[list[Any]] = [
    [],
    ["one"],
    ["", "a", "", "ünï", "file\udcff.jpg", "x" * 1000],
    [b"", b"\0\xff", b"abc"],
    ["text", b"bytes", None, 5, {"k": [1, 2]}],
    [(f"path/{i}.png", i % 10) for i in range(1000)],
]


@pytest.mark.parametrize("items", CASES, ids=lambda items: f"{len(items)} items")
def test_the_items_are_those_of_the_list(items: list[Any]) -> None:
    frozen = FrozenList(iter(items))
    assert len(frozen) == len(items)
    assert list(frozen) == items
    assert [frozen[i] for i in range(-len(items), 0)] == items
    assert frozen[1:-1] == items[1:-1]
    assert frozen[::-2] == items[::-2]
    for item in items[:5]:
        assert item in frozen
        assert frozen.index(item) == items.index(item)
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError, match=f"index {index} is out of range: the list has {len(items)} items"):
            frozen[index]


def test_it_cannot_be_changed() -> None:
    frozen: Any = FrozenList(["a"])
    with pytest.raises(TypeError):
        frozen[0] = "b"
    with pytest.raises((ValueError, TypeError)):
        frozen._ends[0] = 5


def test_a_pickled_copy_stands_alone() -> None:
    frozen = FrozenList(["a", "bc"])
    pickled = pickle.dumps(frozen)
    del frozen
    assert list(pickle.loads(pickled)) == ["a", "bc"]


def read(frozen: FrozenList, queue: Any) -> None:
    queue.put((frozen[1], len(frozen), os.fstat(frozen._fd).st_ino))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_other_processes_have_the_same_memory(method: str) -> None:
    context = multiprocessing.get_context(method)
    frozen = FrozenList(["a", "bc", "def"])
    queue = context.SimpleQueue()
    process = context.Process(target=read, args=(frozen, queue))
    process.start()
    assert queue.get() == ("bc", 3, os.fstat(frozen._fd).st_ino)
    process.join()


def test_nothing_is_left_when_it_is_gone() -> None:
    gc.collect()
    before = open_descriptors()
    for _ in range(10):
        FrozenList(["a"] * 100)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        FrozenList([lambda: 0])
    gc.collect()
    assert open_descriptors() <= before


@pytest.mark.parametrize("code", [0xD83D, 0xDC80, 0x1F600])
def test_any_text_comes_back(code: int) -> None:
    text = chr(code)
    assert list(FrozenList([text, f"a{text}é", ""])) == [text, f"a{text}é", ""]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_is_a_dataset(num_workers: int) -> None:
    loader = DataLoader(FrozenList(["a", "bc", "def"]), batch_size=2, num_workers=num_workers)
    assert list(loader) == [["a", "bc"], ["def"]]
