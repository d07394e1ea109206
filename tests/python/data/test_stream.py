"""Iterable datasets."""

from __future__ import annotations

import contextlib
import copy
import csv
import functools
import io
import itertools
import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import errors
from headrace.data import ChainDataset, DataLoader, IterableDataset, get_worker_info
from headrace.fluid import core


class Count(IterableDataset[Any]):
    """The numbers below ``length``, in every worker."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        yield from range(self.length)


class Shared(Count):
    """Yields only this worker's share."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        yield from range(worker, self.length, workers)


class Uneven(Count):
    """Worker w yields w + 1 times ``length`` elements."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker = info.id if info is not None else 0
        yield from range(100 * worker, 100 * worker + self.length * (worker + 1))


class Rewound(Count):
    """Its own iterator, which starts again at each call of ``iter``."""

    def __iter__(self) -> Iterator[Any]:
        self.at = 0
        return self

    def __next__(self) -> int:
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        return self.at - 1


class Stateful(Count):
    """Tracks its position, and tells how many elements it has read."""

    def __init__(self, length: int, log: Path | None = None) -> None:
        super().__init__(length)
        self.at = 0
        self.log = log

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.length:
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(f"{self.at}\n")
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class StatefulIterator(Rewound):
    """Its own iterator, which has a state once it was asked for one."""

    def __iter__(self) -> Iterator[Any]:
        self.place = {"at": 0}
        return super().__iter__()

    def __next__(self) -> int:
        element = super().__next__()
        self.place["at"] = self.at
        return element

    def state_dict(self) -> dict[str, int]:
        return dict(self.place)

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place.update(state)
        self.at = state["at"]


class StatefulPair(IterableDataset[Any]):
    """Counts the iterations; each of them knows where it is."""

    def __init__(self, length: int) -> None:
        self.elements = StatefulIterator(length)
        self.iterations = 0

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        return Tagged(iter(copy.copy(self.elements)), 100 * self.iterations)

    def state_dict(self) -> dict[str, int]:
        return {"iterations": self.iterations - 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.iterations = state["iterations"]


class Tagged(Iterator[int]):
    """The elements of a stateful iterator, with a number added to each."""

    def __init__(self, elements: Any, tag: int) -> None:
        self.elements, self.tag = elements, tag
        self.state_dict, self.load_state_dict = elements.state_dict, elements.load_state_dict

    def __next__(self) -> int:
        return int(next(self.elements) + self.tag)


class Arrays(Count):
    def __iter__(self) -> Iterator[Any]:
        for i in range(self.length):
            yield {"x": np.full((2, 3), i, np.float32), "name": f"sample {i}"}


class Broken(Count):
    """Raises once, at 5, and can continue."""

    class Elements(Iterator[int]):
        def __init__(self, length: int) -> None:
            self.at, self.length = -1, length

        def __next__(self) -> int:
            self.at += 1
            if self.at == 5:
                raise LookupError("no element 5")
            if self.at >= self.length:
                raise StopIteration
            return self.at

    def __iter__(self) -> Iterator[Any]:
        return self.Elements(self.length)


class Deadly(Count):
    """Kills its worker the first time it reaches 7."""

    def __init__(self, length: int, mark: Path) -> None:
        super().__init__(length)
        self.mark = mark

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.length):
            if i == 7 and get_worker_info() is not None and not self.mark.exists():
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield i


def lists(loader: Any) -> list[list[int]]:
    return [np.atleast_1d(np.asarray(batch)).tolist() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 5])
@pytest.mark.parametrize("dataset", [Count(23), Shared(23)], ids=lambda dataset: type(dataset).__name__)
def test_the_order_is_that_without_workers(dataset: Any, num_workers: int) -> None:
    loader = DataLoader(dataset, 4, num_workers=num_workers)
    expected = [list(range(i, min(i + 4, 23))) for i in range(0, 23, 4)]
    for _ in range(3):
        assert lists(loader) == expected


@pytest.mark.parametrize("length", [0, 1, 3, 4, 8, 9])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ends_of_every_kind(length: int, drop_last: bool) -> None:
    for num_workers in (0, 2):
        loader = DataLoader(Count(length), 4, num_workers=num_workers, drop_last=drop_last)
        stop = length // 4 * 4 if drop_last else length
        assert lists(loader) == [list(range(i, min(i + 4, stop))) for i in range(0, stop, 4)]


def test_a_generator_of_any_kind_is_a_dataset() -> None:
    class Plain:
        def __iter__(self) -> Iterator[Any]:
            return iter([(1, "a"), (2, "b"), (3, "c")])

    got = list(DataLoader(Plain(), 2, num_workers=1))
    assert [(batch[0].tolist(), batch[1]) for batch in got] == [([1, 2], ["a", "b"]), ([3], ["c"])]


ONCE = "dataset is an iterator, which can be read only once; pass an object whose __iter__ returns a new iterator"


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("persistent", [None, True])
def test_an_iterator_is_a_dataset_for_one_epoch(num_workers: int, persistent: bool | None) -> None:
    persistent = persistent if num_workers else None
    for elements in ((i for i in range(7)), map(int, "0123456"), itertools.islice(range(7), 7), iter(range(7))):
        loader = DataLoader(elements, batch_size=2, num_workers=num_workers, persistent_workers=persistent)
        del elements
        begun = iter(loader)
        time.sleep(0.1 * (num_workers > 0))  # in which workers read ahead
        del begun
        assert lists(loader) == [[0, 1], [2, 3], [4, 5], [6]]
        for _ in range(2):
            with pytest.raises(errors.FailedPrecondition, match=ONCE):
                iter(loader)
        loader.load_state_dict(loader.state_dict())
        with pytest.raises(errors.FailedPrecondition, match=ONCE):
            iter(loader)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_iterator_that_was_left_early_is_not_read_again(num_workers: int) -> None:
    loader = DataLoader((i for i in range(7)), batch_size=2, num_workers=num_workers)
    assert next(iter(loader)).tolist() == [0, 1]
    state = loader.state_dict()
    with pytest.raises(errors.FailedPrecondition, match=ONCE):
        iter(loader)
    resumed = DataLoader((i for i in range(7)), batch_size=2, num_workers=num_workers)
    resumed.load_state_dict(state)
    assert lists(resumed) == [[2, 3], [4, 5], [6]]


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("taken", [1, None])
def test_a_copy_of_a_loader_does_not_read_an_iterator_again(num_workers: int, taken: int | None) -> None:
    loader = DataLoader((i for i in range(7)), batch_size=2, num_workers=num_workers)
    assert lists(copy.copy(loader)) == [[0, 1], [2, 3], [4, 5], [6]]
    loader = DataLoader((i for i in range(7)), batch_size=2, num_workers=num_workers)
    assert len(list(itertools.islice(loader, taken))) == (taken or 4)
    for copied in copy.copy(loader), copy.copy(copy.copy(loader)):
        with pytest.raises(errors.FailedPrecondition, match=ONCE):
            iter(copied)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("copied_first", [True, False])
def test_copies_that_were_made_before_an_iterator_is_read_do_not_read_it_again(
    num_workers: int, copied_first: bool
) -> None:
    loaders = [DataLoader((i for i in range(7)), batch_size=2, num_workers=num_workers)]
    loaders += [copy.copy(loaders[0]), copy.copy(copy.copy(loaders[0]))]
    first = loaders.pop(1 if copied_first else 0)
    unread = [iter(loader) for loader in loaders]
    assert lists(first) == [[0, 1], [2, 3], [4, 5], [6]]
    del unread, first
    for loader in loaders:
        with pytest.raises(errors.FailedPrecondition, match=ONCE):
            iter(loader)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("copies", [True, False])
def test_of_iterations_that_have_all_begun_one_reads_an_iterator(num_workers: int, copies: bool) -> None:
    loader = DataLoader((i for i in range(7)), batch_size=2, num_workers=num_workers)
    first, second = iter(loader), iter(copy.copy(loader) if copies else loader)
    assert next(first).tolist() == [0, 1]
    for _ in range(2):
        with pytest.raises(errors.FailedPrecondition, match=ONCE):
            next(second)
    assert lists(first) == [[2, 3], [4, 5], [6]]


def test_a_deep_copy_reads_an_iterator_of_its_own() -> None:
    loader = DataLoader(iter(range(7)), batch_size=2)
    copied = copy.deepcopy(loader)
    assert lists(loader) == lists(copied) == [[0, 1], [2, 3], [4, 5], [6]]
    with pytest.raises(errors.FailedPrecondition, match=ONCE):
        iter(copied)


def test_after_an_interrupt_an_iterator_does_not_lose_elements() -> None:
    def elements() -> Iterator[int]:
        yield from range(3)
        signal.raise_signal(signal.SIGINT)
        yield from range(3, 7)

    batches = iter(DataLoader(elements(), batch_size=2))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    with pytest.raises(errors.FailedPrecondition, match=ONCE):
        next(batches)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_dataset_that_is_its_own_iterator_is_asked_for_it_once_an_epoch(num_workers: int) -> None:
    loader = DataLoader(Rewound(7), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        assert [batch.tolist() for batch in itertools.islice(loader, 10)] == [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resuming_a_dataset_that_is_its_own_iterator(num_workers: int) -> None:
    make = functools.partial(DataLoader, Rewound(9), batch_size=2, num_workers=num_workers)
    loader = make()
    batches = iter(loader)
    next(batches), next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in itertools.islice(resumed, 10)] == [[4, 5], [6, 7], [8]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("dataset", [StatefulIterator, StatefulPair])
def test_resuming_where_the_iterator_has_the_state(dataset: Any, sharding: str, num_workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(dataset(9), 2, num_workers=num_workers, iterable_sharding=sharding)

    loader = make()
    list(loader)
    for taken in (2, 3):
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert lists(itertools.islice(resumed, 20)) == lists(batches)


def test_each_worker_may_have_a_stream_of_its_own() -> None:
    loader = DataLoader(Shared(10), 2, num_workers=2, iterable_sharding="dataset")
    for _ in range(2):
        assert lists(loader) == [[0, 2], [1, 3], [4, 6], [5, 7], [8], [9]]


class Held(Shared):
    """Worker 0 begins once a file is there."""

    def __init__(self, length: int, start: Path) -> None:
        super().__init__(length)
        self.start = start

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        while info is not None and info.id == 0 and not self.start.exists():
            time.sleep(0.001)
        yield from super().__iter__()


def test_a_slow_stream_does_not_hold_up_another_where_the_order_is_free(tmp_path: Path) -> None:
    def make() -> DataLoader:
        dataset = Held(12, tmp_path / "start")
        more: dict[str, Any] = {"in_order": False, "iterable_sharding": "dataset", "prefetch_factor": 4, "timeout": 60}
        return DataLoader(dataset, 2, num_workers=2, **more)

    loader = make()
    batches = iter(loader)
    assert lists(itertools.islice(batches, 2)) == [[1, 3], [5, 7]]
    state = json.loads(json.dumps(loader.state_dict()))
    (tmp_path / "start").touch()
    assert sorted(lists(batches)) == [[0, 2], [4, 6], [8, 10], [9, 11]]
    resumed = make()
    resumed.load_state_dict(state)
    assert sorted(lists(resumed)) == [[0, 2], [4, 6], [8, 10], [9, 11]]


def test_a_worker_that_is_exhausted_leaves_the_others_working() -> None:
    loader = DataLoader(Uneven(2), 2, num_workers=3, iterable_sharding="dataset")
    for _ in range(2):
        assert lists(loader) == [[0, 1], [100, 101], [200, 201], [102, 103], [202, 203], [204, 205]]


def test_without_batches_each_element_arrives() -> None:
    for num_workers in (0, 2):
        assert lists(DataLoader(Count(5), None, num_workers=num_workers)) == [[0], [1], [2], [3], [4]]
    got = list(DataLoader(Arrays(3), None, num_workers=2))
    assert [sample["name"] for sample in got] == ["sample 0", "sample 1", "sample 2"]
    assert got[2]["x"].shape == (2, 3)


def test_collate_fn_sees_the_samples() -> None:
    loader = DataLoader(Count(7), 3, num_workers=2, collate_fn=lambda samples: {"sum": sum(samples), "n": len(samples)})
    assert list(loader) == [{"sum": 3, "n": 3}, {"sum": 12, "n": 3}, {"sum": 6, "n": 1}]


def test_samples_of_different_kinds_in_one_batch_are_an_error_that_consumes_it() -> None:
    class Mixed(Count):
        def __iter__(self) -> Iterator[Any]:
            for i in range(self.length):
                yield np.zeros(3 if i == 4 else 2)

    for num_workers in (0, 1):
        iterator = iter(DataLoader(Mixed(9), 3, num_workers=num_workers))
        assert next(iterator).shape == (3, 2)
        with pytest.raises(ValueError, match="sample 1 "):
            next(iterator)
        assert next(iterator).shape == (3, 2)
        assert list(iterator) == []


class Fatal(Count):
    """Ends each worker at element 5."""

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.length):
            if i == 5 and get_worker_info() is not None:
                os._exit(4)
            yield i


@pytest.mark.parametrize(("sharding", "whose"), [("dataset", "worker 0's"), ("engine", "the")])
def test_deaths_in_a_stream_name_the_batch_by_its_place_in_the_stream(sharding: str, whose: str) -> None:
    loader = DataLoader(Fatal(8), 2, num_workers=2, iterable_sharding=sharding)
    name = f"the batch that begins with element 4 of {whose} stream"
    with warnings.catch_warnings(record=True) as caught, pytest.raises(errors.WorkerDied) as raised:
        warnings.simplefilter("always")
        list(loader)
    assert f"every worker process that made {name} died" in str(raised.value)
    assert raised.value.sample_index == 4
    texts = [str(warning.message) for warning in caught]
    assert any(f"while it made {name}; " in text for text in texts)
    # A worker that skips elements is on its way to a batch of its own.
    assert not any("idle" in text for text in texts)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_an_error_consumes_its_batch_and_iteration_goes_on(num_workers: int) -> None:
    iterator = iter(DataLoader(Broken(12), 2, num_workers=num_workers))
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(LookupError, match="no element 5"):
        next(iterator)
    assert lists(iterator) == [[6, 7], [8, 9], [10, 11]]


class Never(Count):
    """Raises where its iteration would begin: in a method of that name."""

    def __init__(self, method: str) -> None:
        super().__init__(8)
        self.method = method

    def set_epoch(self, epoch: int) -> None:
        self.begin("set_epoch")

    def __iter__(self) -> Iterator[Any]:
        self.begin("__iter__")
        return super().__iter__()

    def begin(self, method: str) -> None:
        if method == self.method:
            raise OSError("no stream today")


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("method", ["__iter__", "set_epoch"])
def test_a_dataset_that_cannot_be_iterated_over_is_one_error_and_the_end(method: str, num_workers: int) -> None:
    loader = DataLoader(Never(method), 2, num_workers=num_workers)
    for _ in range(2):
        batches = iter(loader)
        with pytest.raises(OSError, match="no stream today"):
            next(batches)
        assert list(batches) == []


@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.filterwarnings("ignore:worker")
def test_a_worker_that_dies_is_replaced_and_the_stream_goes_on(sharding: str, tmp_path: Path) -> None:
    loader = DataLoader(Deadly(20, tmp_path / "died"), 2, num_workers=1, iterable_sharding=sharding)
    assert lists(loader) == [[i, i + 1] for i in range(0, 20, 2)]


def test_hosts_share_a_stream() -> None:
    for num_workers in (0, 2):
        loaders = [DataLoader(Count(21), 2, shard=(rank, 3), num_workers=num_workers) for rank in range(3)]
        got = [lists(loader) for loader in loaders]
        assert got[0] == [[0, 3], [6, 9], [12, 15], [18]]
        assert sorted(i for batches in got for batch in batches for i in batch) == list(range(21))
    with pytest.raises(ValueError, match='iterable_sharding="engine"'):
        DataLoader(Count(21), shard=(0, 2), num_workers=1, iterable_sharding="dataset")


@pytest.mark.parametrize("dataset", [Count, Stateful])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_resuming_in_the_middle(dataset: Any, num_workers: int) -> None:
    expected = [list(range(i, min(i + 2, 21))) for i in range(0, 21, 2)]
    for taken in (0, 1, 4, 10, 11):
        loader = DataLoader(dataset(21), 2, num_workers=num_workers, seed=1)
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        loader.shutdown()
        other = DataLoader(dataset(21), 2, num_workers=num_workers, seed=1)
        other.load_state_dict(state)
        assert lists(other) == expected[taken:]
        assert lists(other) == expected


@pytest.mark.parametrize("num_workers", [1, 3])
def test_resuming_streams_of_the_workers_own(num_workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Shared(25), 2, num_workers=num_workers, iterable_sharding="dataset", seed=1)

    expected = lists(make())
    for taken in range(len(expected) + 1):
        loader = make()
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        other = make()
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert lists(other) == expected[taken:]
        assert lists(other) == expected
    with pytest.raises(ValueError, match=f"num_workers={num_workers}, but this one has 4"):
        DataLoader(Shared(25), 2, num_workers=4, iterable_sharding="dataset").load_state_dict(make().state_dict())


def test_the_datasets_own_state_saves_reading_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    loader = DataLoader(Stateful(100), 2, num_workers=1, seed=1)
    iterator = iter(loader)
    for _ in range(30):
        next(iterator)
    state = loader.state_dict()
    other = DataLoader(Stateful(100, log), 2, num_workers=1, seed=1)
    other.load_state_dict(state)
    assert next(iter(other)).tolist() == [60, 61]
    other.shutdown()
    assert log.read_text().split()[0] == "60"


class Epochs(Shared):
    """Elements that tell how often the dataset was read to its end."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.at = self.epoch = 0

    def __iter__(self) -> Iterator[Any]:
        for element in self.elements()[self.at :]:
            self.at += 1
            yield element + 100 * self.epoch
        self.at = 0
        self.epoch += 1

    def elements(self) -> list[Any]:
        return list(super().__iter__())

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Alike(Epochs):
    """The same elements in every worker."""

    def elements(self) -> list[Any]:
        return list(range(self.length))


@pytest.mark.parametrize("length", [8, 9])  # the end comes with the last batch, or is found after it
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_state_at_the_end_of_an_epoch_holds_the_datasets(num_workers: int, length: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Epochs(length), 2, num_workers=num_workers, iterable_sharding="dataset", seed=1)

    loader = make()
    first, state = lists(loader), json.loads(json.dumps(loader.state_dict()))
    second = [[element + 100 for element in batch] for batch in first]
    assert lists(loader) == second
    resumed = make()
    resumed.load_state_dict(state)
    assert json.loads(json.dumps(resumed.state_dict())) == state
    batches = iter(resumed)
    assert next(batches).tolist() == second[0]
    middle = json.loads(json.dumps(resumed.state_dict()))
    assert lists(batches) == second[1:]
    other = make()
    other.load_state_dict(middle)
    assert lists(other) == second[1:]
    assert lists(other) == lists(resumed) == [[element + 200 for element in batch] for batch in first]


class Longer(IterableDataset[Any]):
    """Longer in each epoch; its state is a position, which stays at the end until the next iteration begins."""

    def __init__(self) -> None:
        self.epoch = self.position = 0
        self.resumed: int | None = None

    def set_epoch(self, epoch: int) -> None:
        assert epoch >= 0
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.position, self.resumed = self.resumed or 0, None
        while self.position < 10 + 3 * self.epoch:
            self.position += 1
            yield 100 * self.epoch + self.position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position if self.resumed is None else self.resumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.resumed = state["position"]


@pytest.mark.parametrize("dataset", [Longer, lambda: ChainDataset([Longer(), Longer()])], ids=["one", "chain"])
@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_each_epoch_is_whole_however_long_the_one_before_was(dataset: Any, sharding: str, num_workers: int) -> None:
    def epochs(workers: int, **more: Any) -> list[list[int]]:
        loader = DataLoader(dataset(), batch_size=4, num_workers=workers, seed=1, **more)
        return [[int(v) for batch in loader for v in batch] for _ in range(4)]

    each = num_workers if sharding == "dataset" else 1
    expected = [sorted(epoch * each) for epoch in epochs(0)]
    for persistent in (False, True):
        got = epochs(num_workers, iterable_sharding=sharding, persistent_workers=persistent)
        assert [sorted(epoch) for epoch in got] == expected
    states: Any = None
    for epoch in range(4):  # a program for each
        loader = DataLoader(dataset(), batch_size=4, num_workers=num_workers, seed=1, iterable_sharding=sharding)
        if states is not None:
            loader.load_state_dict(states)
        assert sorted(int(v) for batch in loader for v in batch) == expected[epoch]
        states = loader.state_dict()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stream_that_the_program_has_read_in_part_begins_in_epoch_0(num_workers: int) -> None:
    dataset = Longer()
    assert next(iter(dataset)) == 1
    loader = DataLoader(dataset, batch_size=4, num_workers=num_workers, seed=1)
    state = loader.state_dict()
    assert [len(lists(loader)) for _ in range(3)] == [3, 4, 4]
    loader.load_state_dict(state)
    assert [len(lists(loader)) for _ in range(3)] == [3, 4, 4]


class Damaged(Longer):
    """Has a sample that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        for value in super().__iter__():
            if self.position == 6:
                raise OSError("a damaged record")
            yield value


@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_epoch_after_one_that_an_error_has_ended_begins_anew(num_workers: int, sharding: str) -> None:
    def read(loader: DataLoader) -> list[Any]:
        seen: list[Any] = []
        batches = iter(loader)
        while True:
            try:
                seen += next(batches).tolist()
            except OSError:
                seen.append(OSError)
            except StopIteration:
                return seen

    def make() -> DataLoader:
        return DataLoader(Damaged(), batch_size=2, num_workers=num_workers, seed=1, iterable_sharding=sharding)

    each = num_workers if sharding == "dataset" else 1
    loader, state = make(), None
    for epoch in range(3):
        resumed = make()
        if state is not None:
            resumed.load_state_dict(state)
        for one in (loader, resumed):
            seen = read(one)
            values = sorted(value - 100 * epoch for value in seen if value is not OSError)
            assert values == sorted([1, 2, 3, 4] * each)
            assert seen.count(OSError) == each
        state = resumed.state_dict()


class AtItsEnd(Count):
    """Its state at the end of an iteration says that it is there, as that of a Hugging Face stream."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.begin = self.at = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.begin = self.begin, 0
        while self.at < self.length:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]


@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_after_an_epoch_that_was_given_up_the_next_one_is_whole(num_workers: int, sharding: str) -> None:
    loader = DataLoader(AtItsEnd(21), 2, num_workers=num_workers, iterable_sharding=sharding)
    expected = lists(loader)
    for taken in (1, 3, 0):
        for _ in zip(range(taken), loader):
            pass
        assert lists(loader) == expected


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_workers_that_share_a_stream_agree_on_the_datasets_state(num_workers: int) -> None:
    loader = DataLoader(Alike(25), 2, num_workers=num_workers, seed=1)
    for epoch in range(4):
        if epoch == 2:  # an epoch that is given up is not read to its end
            for _ in zip(range(3), loader):
                pass
        counted = epoch * 100
        assert [element for batch in lists(loader) for element in batch] == list(range(counted, counted + 25))


@contextlib.contextmanager
def stopped(worker: int) -> Iterator[None]:
    """Stops a worker meanwhile."""
    (pid,) = [each.pid for each in multiprocessing.active_children() if each.name == f"headrace-worker-{worker}"]
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_worker_that_comes_after_an_epoch_that_was_given_up_begins_where_the_others_do() -> None:
    ready = multiprocessing.get_context("fork").Event()
    loader = DataLoader(Alike(9), 2, num_workers=2, seed=1, worker_init_fn=lambda worker: worker == 0 or ready.wait())
    assert lists(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    lists(loader)
    next(iter(loader))
    with stopped(0):
        ready.set()
        assert lists(loader) == [[200, 201], [202, 203], [204, 205], [206, 207], [208]]


def test_a_stream_that_comes_after_an_epoch_that_was_given_up_begins_where_it_was_resumed() -> None:
    ready = multiprocessing.get_context("fork").Event()

    def make(**kwargs: Any) -> DataLoader:
        return DataLoader(Alike(9), 2, num_workers=2, iterable_sharding="dataset", seed=1, **kwargs)

    first = make()
    lists(first)
    loader = make(worker_init_fn=lambda worker: worker == 0 or ready.wait())
    loader.load_state_dict(first.state_dict())
    next(iter(loader))
    iterator = iter(loader)
    begin = next(iterator).tolist()
    ready.set()
    expected = [[element + 100 for element in batch] for batch in lists(make())]
    assert [begin, *lists(iterator)] == expected


@pytest.mark.parametrize(
    ("context", "num_workers", "sharding"),
    [
        *itertools.product(["fork"], [1, 2], ["engine", "dataset"]),
        *[("spawn", 1, "engine"), ("spawn", 2, "dataset")],  # these take long to start
    ],
)
@pytest.mark.filterwarnings("ignore:worker")
def test_whoever_comes_in_a_workers_place_has_the_datasets_state(context: str, num_workers: int, sharding: str) -> None:
    def epochs(context: str, killed_in: int | None) -> list[list[list[int]]]:
        loader = DataLoader(
            Alike(12),
            2,
            num_workers=num_workers,
            iterable_sharding=sharding,
            multiprocessing_context=context,
            prefetch_factor=2,
            seed=1,
        )
        result = []
        for epoch in range(4):
            batches = iter(loader)
            result.append([next(batches).tolist()])
            if epoch == killed_in:
                for process in batches._workers:  # type: ignore[attr-defined]
                    os.kill(process.pid, signal.SIGKILL)
            result[-1] += lists(batches)
        loader.shutdown()
        return result

    expected = epochs("fork", None)
    assert expected[3][0] == [300, 301]
    for epoch in (1, 2) if context == "fork" else (2,):
        assert epochs(context, epoch) == expected


class Onwards(Count):
    """Goes on from epoch to epoch, and says where it is."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        end = self.at - self.at % self.length + self.length
        while self.at < end:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("keeps", [True, False], ids=["old iterator there", "old iterator gone"])
@pytest.mark.parametrize("dataset", [Onwards, Epochs, Count, AtItsEnd, Stateful])
def test_a_new_iteration_begins_where_it_would_with_workers(dataset: Any, keeps: bool) -> None:
    def epochs(num_workers: int) -> list[list[list[int]]]:
        loader = DataLoader(dataset(10), 2, num_workers=num_workers, seed=0)
        taken, batches = [], None
        for stop in (99, 2, 99, 0, 3, 99, 1, 99):
            if not keeps:
                batches = None
            batches = iter(loader)
            taken.append(lists(itertools.islice(batches, stop)))
        return taken

    assert epochs(0) == epochs(1) == epochs(2)


class LateState(AtItsEnd):
    """Has no state before it was iterated over."""

    begun = False

    def __iter__(self) -> Iterator[Any]:
        self.begun = True
        return super().__iter__()

    def state_dict(self) -> dict[str, int]:
        if not self.begun:
            raise RuntimeError("nobody has begun yet")
        return super().state_dict()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_epochs_that_are_given_up_begin_where_the_first_did_even_if_it_had_no_state(num_workers: int) -> None:
    loader = DataLoader(LateState(10), 2, num_workers=num_workers, seed=0)
    for _ in range(3):
        assert next(iter(loader)).tolist() == [0, 1]
        loader.set_epoch(0)
        resumed = DataLoader(LateState(10), 2, num_workers=num_workers, seed=0)
        resumed.load_state_dict(loader.state_dict())
        assert next(iter(resumed)).tolist() == [0, 1]
    assert lists(loader) == lists(loader) == [[i, i + 1] for i in range(0, 10, 2)]


class Untold(Epochs):
    """Has no state between epochs, though it has begun."""

    def state_dict(self) -> dict[str, int]:
        if self.at == 0:
            raise LookupError("no state between epochs")
        return super().state_dict()


# Of workers that share a stream, those that have not come to its end would not know where to begin.
@pytest.mark.parametrize(("num_workers", "sharding"), [(0, "engine"), (1, "engine"), (2, "dataset")])
def test_a_stream_that_cannot_tell_its_state_between_epochs_is_heard_of(num_workers: int, sharding: str) -> None:
    def make(dataset: type[Epochs] = Untold) -> DataLoader:
        return DataLoader(dataset(8), 2, num_workers=num_workers, iterable_sharding=sharding, seed=1)

    whole = make(Epochs)
    epochs = [lists(whole) for _ in range(3)]
    loader = make()
    resumed = make()
    resumed.load_state_dict(loader.state_dict())  # of one that nobody has read
    assert lists(resumed) == epochs[0]
    for epoch in range(2):
        assert lists(loader) == epochs[epoch]
        # Workers would have read ahead for an iterator that nobody reads, and could not go back.
        for unread in (False, True) if num_workers == 0 else (False,):
            kept = iter(loader) if unread else None
            with pytest.raises(
                errors.FailedPrecondition, match=r"Untold failed \(LookupError: no state between epochs"
            ):
                loader.state_dict()
            del kept
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == epochs[2][:2]  # one of each stream
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert lists(resumed) == epochs[2][2:] == lists(batches)


def pickled(loader: DataLoader) -> DataLoader:
    copied: DataLoader = pickle.loads(pickle.dumps(loader))
    return copied


# Every pair of two of the three.
@pytest.mark.parametrize(
    ("dataset", "num_workers", "sharding", "copied"),
    [
        (Onwards, 0, "engine", copy.copy),
        (Onwards, 1, "engine", copy.deepcopy),
        (Onwards, 2, "dataset", pickled),
        (Epochs, 0, "engine", copy.deepcopy),
        (Epochs, 1, "engine", pickled),
        (Epochs, 2, "dataset", copy.copy),
        (AtItsEnd, 0, "engine", pickled),
        (AtItsEnd, 1, "engine", copy.copy),
        (AtItsEnd, 2, "dataset", copy.deepcopy),
    ],
)
def test_a_copy_goes_on_and_begins_again_where_the_loader_would(
    dataset: Any, num_workers: int, sharding: str, copied: Callable[[DataLoader], DataLoader]
) -> None:
    def make() -> DataLoader:
        return DataLoader(dataset(10), 2, num_workers=num_workers, iterable_sharding=sharding, seed=0)

    plain = make()
    _, second, third = lists(plain), lists(plain), lists(plain)
    loader = make()
    lists(loader)
    batches = iter(loader)
    assert lists(itertools.islice(batches, 2)) == second[:2]
    whole, broken_off, chosen = copied(loader), copied(loader), copied(loader)
    assert lists(batches) == second[2:]
    assert [lists(whole), lists(whole)] == [second[2:], third]
    assert lists(itertools.islice(broken_off, 1)) == second[2:3]
    assert [lists(broken_off), lists(broken_off)] == [second, third]
    chosen.set_epoch(7)
    assert lists(chosen) == second


class Lazy(Count):
    """Loads a state when it is iterated over, and always begins at its first element without one. It cannot load the
    states of its end, as Hugging Face's streams of several sources, shuffled, cannot in a worker.
    """

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.at, self.begin = 0, 0
        self.loads = 0

    def __iter__(self) -> Iterator[Any]:
        if self.begin:
            self.loads += 1
            Lazy.Source(self.length).load_state_dict(self.begin)
        for element in range(self.begin, self.length):
            self.at = element + 1
            yield element

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = state["at"]

    class Source:
        def __init__(self, length: int) -> None:
            self.length = length

        def load_state_dict(self, at: int) -> None:
            if at == self.length:
                raise IndexError("list index out of range")


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.filterwarnings("ignore:Lazy cannot load the state")
def test_a_dataset_that_cannot_load_the_state_of_its_end_begins_anew(num_workers: int) -> None:
    loader = DataLoader(Lazy(10), 2, num_workers=num_workers, seed=0)
    whole = [[i, i + 1] for i in range(0, 10, 2)]
    assert [lists(itertools.islice(iter(loader), stop)) for stop in (99, 99, 2, 99, 99)] == [
        whole,
        whole,
        whole[:2],
        whole,
        whole,
    ]
    resumed = DataLoader(Lazy(10), 2, num_workers=num_workers, seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert lists(resumed) == whole
    batches = iter(loader)
    next(batches)
    resumed.load_state_dict(loader.state_dict())
    assert lists(resumed) == whole[1:]


def test_a_state_that_cannot_be_loaded_is_told_of(recwarn: pytest.WarningsRecorder) -> None:
    dataset = Lazy(10)
    loader = DataLoader(dataset, 2, seed=0)
    list(loader), list(loader)
    assert dataset.loads == 0  # it was there already
    assert not recwarn.list
    next(iter(loader))
    with pytest.warns(RuntimeWarning, match="Lazy cannot load the state in which its last epoch ended .IndexError"):
        list(loader)


def test_an_error_of_the_first_element_is_no_refused_state() -> None:
    class Failing(Lazy):
        failing = False

        def __iter__(self) -> Iterator[Any]:
            for element in super().__iter__():
                if self.failing:
                    raise IndexError("mine")
                yield element

    dataset = Failing(10)
    loader = DataLoader(dataset, 2, seed=0)
    assert len(list(loader)) == 5
    dataset.failing = True
    with pytest.raises(IndexError, match="mine"):
        list(loader)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_an_epoch_that_was_resumed_and_given_up_begins_again_where_the_dataset_was(num_workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Onwards(10), 2, num_workers=num_workers, seed=0)

    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    for refreshes in (False, True):
        resumed = make()
        resumed.load_state_dict(state)
        assert lists(itertools.islice(iter(resumed), 2)) == [[2, 3], [4, 5]]
        if refreshes:
            resumed.refresh()
        assert lists(resumed)[0] == [0, 1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_epoch_after_one_that_was_resumed_at_its_end_goes_on(num_workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Onwards(3), 2, num_workers=num_workers, seed=0)

    loader = make()
    batches = iter(loader)
    next(batches), next(batches)  # the second one is short: the loader knows that it is the last
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert lists(resumed) == []
    again = make()
    again.load_state_dict(resumed.state_dict())
    assert lists(again) == lists(resumed) == [[3, 4], [5]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_of_the_same_number_goes_on_where_the_stream_is(num_workers: int) -> None:
    loader = DataLoader(Onwards(4), 2, num_workers=num_workers, seed=0)
    list(loader)
    next(iter(loader))
    assert lists(loader) == [[4, 5], [6, 7]]
    loader.set_epoch(2)
    assert lists(loader) == [[8, 9], [10, 11]]


class Heavy(Onwards):
    """Its state is large; how often it was asked for is counted."""

    def __init__(self, length: int, ballast: int) -> None:
        super().__init__(length)
        self.ballast = ballast
        self.asked = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"at": self.at, "ballast": "x" * self.ballast}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_large_state_is_not_taken_for_every_batch_and_any_batch_can_be_resumed(num_workers: int) -> None:
    def make() -> DataLoader:
        return DataLoader(Heavy(41, 20_000), 2, num_workers=num_workers, seed=0)

    expected = lists(make())
    for taken in range(len(expected) + 1):
        loader = make()
        assert lists(itertools.islice(iter(loader), taken)) == expected[:taken]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.shutdown()
        resumed = make()
        resumed.load_state_dict(state)
        assert lists(resumed) == expected[taken:]
        resumed.shutdown()


@pytest.mark.parametrize(("ballast", "most"), [(10, 54), (20_000, 14), (10_000_000, 6)])
def test_the_cost_of_a_state_is_shared_by_batches(ballast: int, most: int) -> None:
    dataset = Heavy(100, ballast)
    for _ in DataLoader(dataset, 2, seed=0):
        pass
    assert dataset.asked <= most


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_failed_leaves_the_state_that_came_before(num_workers: int) -> None:
    class Failing(Onwards):
        def __iter__(self) -> Iterator[Any]:
            for element in super().__iter__():
                yield -1 if element == 25 else element

    def make() -> DataLoader:
        return DataLoader(
            Failing(10), 2, num_workers=num_workers, seed=0, collate_fn=lambda pair: pair if min(pair) >= 0 else 1 / 0
        )

    loader = make()
    list(loader), list(loader)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(ZeroDivisionError):
        next(batches)
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert list(resumed) == list(batches) == [[26, 27], [28, 29]]


def test_chained_datasets_follow_each_other() -> None:
    loader = DataLoader(ChainDataset([Count(3), Count(4)]), 2, num_workers=2)
    assert lists(loader) == [[0, 1], [2, 0], [1, 2], [3]]


def test_a_length_is_the_datasets() -> None:
    class Sized(Count):
        def __len__(self) -> int:
            return self.length

    assert len(DataLoader(Sized(7), 2)) == 4
    assert len(DataLoader(Sized(7), 2, drop_last=True)) == 3
    with pytest.raises(TypeError, match=r"__len__|no len"):
        len(DataLoader(Count(7), 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shuffle": True}, "leave out shuffle"),
        ({"sampler": [1]}, "leave out sampler"),
        ({"batch_sampler": [[1]]}, "leave out batch_sampler"),
        ({"workers": "thread", "num_workers": 1}, "one thread each"),
        ({"threads_per_worker": 2, "num_workers": 1}, "one thread each"),
        ({"iterable_sharding": "both"}, "iterable_sharding must be"),
        ({"num_workers": "auto"}, "auto"),
        ({"order": "grain"}, "map-style"),
    ],
    ids=str,
)
def test_what_an_iterable_dataset_excludes_is_a_clear_error(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataLoader(Count(4), **arguments)


def test_only_iterable_datasets_are_sharded() -> None:
    with pytest.raises(ValueError, match="read by index"):
        DataLoader([1, 2], iterable_sharding="engine")


@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_may_feed_a_queue(sharding: str, num_workers: int) -> None:
    loader = DataLoader(Shared(11), 2, num_workers=num_workers, iterable_sharding=sharding, seed=1)
    expected = lists(loader)
    queue = core.init_lod_tensor_blocking_queue(core.Scope().var("queue"), 4, [[-1]])
    for _ in range(2):
        feed = loader._feed(queue)
        got = []
        with pytest.raises(core.EOFException):
            while True:
                got.append(np.asarray(queue.pop(timeout=100)[0]).tolist())
        assert got == expected
        if sharding == "engine" or num_workers == 0:
            other = DataLoader(Shared(11), 2, num_workers=num_workers, iterable_sharding=sharding, seed=1)
            other.load_state_dict(loader.state_dict(batches=2))
            assert lists(other) == expected[2:]
        else:
            with pytest.raises(errors.FailedPrecondition, match="does not say which batches these were"):
                loader.state_dict(batches=2)
        feed.stop()
        queue.reopen()


@pytest.mark.parametrize("length", [8, 9])
@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_state_at_the_end_of_an_epoch_that_was_fed_is_that_of_iteration(
    num_workers: int, sharding: str, length: int
) -> None:
    def make() -> DataLoader:
        return DataLoader(Epochs(length), 2, num_workers=num_workers, iterable_sharding=sharding, seed=1)

    iterated, fed, stopped = make(), make(), make()
    queue = core.init_lod_tensor_blocking_queue(core.Scope().var("queue"), 20, [[-1]])
    for epoch in range(3):
        expected = lists(iterated)
        feed = fed._feed(queue)
        if epoch == 0 and (sharding == "engine" or num_workers < 2):
            resumed = make()
            resumed.load_state_dict(fed.state_dict(batches=2))
            assert lists(resumed) == expected[2:]
        else:  # the first epoch has changed what follows
            with pytest.raises(errors.FailedPrecondition):
                fed.state_dict(batches=2)
        got = []
        with pytest.raises(core.EOFException):
            while True:
                got.append(np.asarray(queue.pop(timeout=100)[0]).tolist())
        assert got == expected
        queue.reopen()
        feed.stop()
        state = json.loads(json.dumps(fed.state_dict()))
        assert state == json.loads(json.dumps(iterated.state_dict()))
        resumed = make()
        resumed.load_state_dict(state)
        following = lists(resumed)
        assert following != expected
        stopped = make()
        stopped.load_state_dict(state)
    assert lists(fed) == following

    feed = stopped._feed(queue)
    queue.pop(timeout=100)
    while not queue.is_closed():
        time.sleep(0.001)
    queue.reopen()  # with batches in it that nobody has taken
    feed.stop()
    with pytest.raises(errors.FailedPrecondition, match="only the program knows"):
        stopped.state_dict()


class Lines(IterableDataset[Any]):
    """The lines of what it was given, which may hold a file in any way."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        yield from self.source


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.txt"
    path.write_text("".join(f"{i}\n" for i in range(3000)))
    return path


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "the file": lambda file: file,
    "its buffer": lambda file: file.buffer,
    "a reader of it": csv.reader,
    "a dict": lambda file: {"files": [file]},
    "a generator": lambda file: (line for line in file),
    "an object": lambda file: types.SimpleNamespace(file=file),
    "a map": lambda file: map(functools.partial(str.strip), file),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_workers_that_would_share_the_position_of_an_open_file_do_not_start(holder: str, numbers: Path) -> None:
    with open(numbers) as file:
        loader = DataLoader(Lines(HOLDERS[holder](file)), 10, num_workers=2, multiprocessing_context="fork")
        with pytest.raises(
            errors.InvalidArgument, match=r"dataset\.source holds the open file .*numbers\.txt.*__iter__"
        ):
            iter(loader)


def test_a_generator_that_reads_an_open_file_is_not_shared(numbers: Path) -> None:
    with open(numbers) as file:
        loader = DataLoader((line for line in file), 10, num_workers=2, multiprocessing_context="fork")
        with pytest.raises(ValueError, match="dataset holds the open file"):
            iter(loader)


def test_files_that_no_two_workers_read_from_are_allowed(numbers: Path, tmp_path: Path) -> None:
    class Logged(Count):
        def __init__(self, file: Any) -> None:
            super().__init__(20)
            self.file = file

    with open(numbers) as closed:
        pass
    with open(tmp_path / "log", "w") as log, open(tmp_path / "log", "a+") as more, open(numbers) as read:
        for file in (log, more, closed, sys.stdin, sys.stderr, io.StringIO("text")):
            loader = DataLoader(Logged(file), 5, num_workers=2, multiprocessing_context="fork")
            assert lists(loader) == [list(range(i, i + 5)) for i in range(0, 20, 5)]
        for arguments in ({"num_workers": 1}, {"num_workers": 2, "iterable_sharding": "dataset"}):
            loader = DataLoader(Logged(read), 5, multiprocessing_context="fork", **arguments)
            assert lists(loader)[0] == list(range(5))
        loader = DataLoader(Lines(read), 10)
        assert len(list(loader)) == 300


class Noted(Alike):
    """Tells other processes that it has come to its end."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.ended = multiprocessing.get_context("fork").Event()

    def __iter__(self) -> Iterator[int]:
        yield from super().__iter__()
        self.ended.set()


@pytest.mark.parametrize("sharding", ["engine", "dataset"])
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("taken", [0, 1])
def test_a_stream_that_workers_have_read_ahead_to_its_end_was_not_consumed(
    taken: int, num_workers: int, sharding: str
) -> None:
    dataset = Noted(3)
    loader = DataLoader(
        dataset,
        1,
        num_workers=num_workers,
        iterable_sharding=sharding,
        prefetch_factor=8 if num_workers else None,
        multiprocessing_context="fork" if num_workers else None,
    )
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    if num_workers and taken:  # before that nobody reads
        assert dataset.ended.wait(100)
    del iterator
    assert lists(loader) == [[0], [1], [2]]
    assert lists(loader) == [[100], [101], [102]]
