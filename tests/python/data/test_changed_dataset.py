"""Changes between two epochs reach the workers, which otherwise live on."""

from __future__ import annotations

import array
import collections
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from headrace import errors
from headrace.data import DataLoader, Subset

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


class Pair:
    """Two of three transforms, of which the second one changes."""

    def __init__(self) -> None:
        self.scales = {"clean": Scale(1), "weak": Scale(10), "strong": Scale(100)}
        self.now = self.scales["clean"]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> list[int]:
        return [self.scales["clean"](index + 1), self.now(index + 1)]


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_of_two_references_to_one_object_only_the_one_that_changes_does(context: str) -> None:
    dataset = Pair()
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context=context, collate_fn=np.array)
    for name, factor in (("clean", 1), ("weak", 10), ("strong", 100), ("weak", 10)):
        dataset.now = dataset.scales[name]
        assert next(iter(loader)).tolist() == [[1, factor], [2, 2 * factor]]
    dataset.scales["weak"].factor = 7  # through either of the two
    assert next(iter(loader)).tolist() == [[1, 7], [2, 14]]


class OwnDict(dict[Any, Any]):
    pass


class OwnList(list[Any]):
    pass


class Slotted:
    __slots__ = ("items",)

    def __init__(self, items: Any) -> None:
        self.items = items

    def __getitem__(self, key: Any) -> Any:
        return self.items[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value


class First:
    def __init__(self, container: Any, key: Any) -> None:
        self.container, self.key = container, key

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return int(self.container[self.key])


CONTAINERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "dict": (lambda: {"a": 1}, "a"),
    "OrderedDict": (lambda: collections.OrderedDict(a=1), "a"),
    "defaultdict": (lambda: collections.defaultdict(int, a=1), "a"),
    "Counter": (lambda: collections.Counter(a=1), "a"),
    "UserDict": (lambda: collections.UserDict(a=1), "a"),
    "ChainMap": (lambda: collections.ChainMap({"a": 1}), "a"),
    "a subclass of dict": (lambda: OwnDict(a=1), "a"),
    "list": (lambda: [1], 0),
    "a long list": (lambda: [1] * 100_000, 77_777),
    "a subclass of list": (lambda: OwnList([1]), 0),
    "deque": (lambda: collections.deque([1]), 0),
    "array": (lambda: array.array("i", [1]), 0),
    "bytearray": (lambda: bytearray([1]), 0),
    "an array": (lambda: np.array([1]), 0),
    "a large array": (lambda: np.ones(1 << 20, np.int64), 12345),
    "a huge array": (lambda: np.ones(20 << 20, np.int64), 12345),  # 160 MiB: not compared
    "slots": (lambda: Slotted([1]), 0),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_change_within_any_container_shows(name: str) -> None:
    make, key = CONTAINERS[name]
    container = make()
    loader = DataLoader(First(container, key), 2, num_workers=1, multiprocessing_context="fork")
    for number in (1, 2, 3):
        container[key] = number
        assert next(iter(loader)).tolist() == [number, number]


def test_a_change_beside_much_else_shows() -> None:
    class Much(First):
        index = property(lambda self: self)

        def __init__(self) -> None:
            self.parts = {key: [(i, "a") for i in range(50)] for key in range(900)}
            super().__init__([1], 0)

    dataset = Much()
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="fork")
    for number in (1, 2):
        dataset.container[0] = number
        assert next(iter(loader)).tolist() == [number, number]


class Chained:
    """The first of many objects, each of which refers to the next."""

    def __init__(self, length: int) -> None:
        self.next: Any = None
        self.number = 1
        for _ in range(length):
            link = Scale(1)
            link.next, self.next = self.next, link  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return self.number

    def unchain(self) -> None:
        """Ends it link by link: to end it by recursion could take more stack than there is."""
        while self.next is not None:
            self.next = self.next.next


@pytest.mark.parametrize("length", [300, 1000, 100_000])
def test_a_dataset_may_be_a_long_chain_of_objects(length: int) -> None:
    dataset = Chained(length)
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="fork")
    for number in (1, 2):
        dataset.number = number
        assert next(iter(loader)).tolist() == [number, number]
    loader.shutdown()
    dataset.unchain()


class Raises:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no attributes")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LookupError("no pickle")


class LooksUp:
    __slots__ = ("inner",)

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize("kind", [Raises, LooksUp])
def test_attributes_that_raise_are_nobodys_business(kind: Any) -> None:
    dataset = First([1], 0)
    dataset.strange = kind()  # type: ignore[attr-defined]
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="fork")
    for number in (1, 2):
        dataset.container[0] = number
        assert next(iter(loader)).tolist() == [number, number]


def test_what_is_known_by_its_identity_stays_it() -> None:
    """Pickling would make others of sentinels, and part arrays that share memory."""
    missing = object()

    class Marked(First):
        def __init__(self) -> None:
            super().__init__([0], 0)
            self.samples = [missing, 5]
            self.buffer = np.zeros(2, np.int64)
            self.view = self.buffer[1:]

        def __getitem__(self, index: int) -> Any:
            self.buffer[:] = index
            return self.samples[index] is missing, self.view[0], self.container[0]

    dataset = Marked()
    loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context="fork")
    for number in range(3):
        dataset.container[0] = number
        assert [part.tolist() for part in next(iter(loader))] == [[True, False], [0, 1], [number, number]]


class Slow:
    """Samples that tell what the dataset is like."""

    def __init__(self, length: int = 40, pad: int = 0) -> None:
        self.length = length
        self.number = 1
        self.pad = np.zeros(pad)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return self.number


def kill_all(batches: Any) -> None:
    for process in batches._engine.workers.processes:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("pad", [0, 9 << 20], ids=["small", "large"])
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_worker_that_comes_later_has_the_dataset_of_the_epoch(context: str, pad: int) -> None:
    dataset = Slow(pad=pad)
    loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context=context, prefetch_factor=2)
    for number in (1, 2):
        dataset.number = number
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(3)]
        dataset.number = 100  # for the next epoch
        kill_all(batches)
        seen += [batch.tolist() for batch in batches]
        assert seen == [[number, number]] * 20


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_that_a_loader_adds_have_the_dataset_of_the_epoch(context: str) -> None:
    dataset = Slow(200)
    loader = DataLoader(dataset, 2, num_workers="auto", multiprocessing_context=context)
    batches = iter(loader)
    next(batches)
    dataset.number = 100
    engine = batches._engine  # type: ignore[attr-defined]
    engine.workers.resize(3)
    kill_all(batches)  # those of before, so that the others have to work
    with pytest.warns(RuntimeWarning, match="worker"):
        assert {number for batch in batches for number in batch.tolist()} == {1}


@pytest.mark.filterwarnings("ignore:worker")
def test_without_the_template_a_worker_starts_only_with_what_the_others_have() -> None:
    dataset = Slow()
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context="fork", prefetch_factor=2)
    batches = iter(loader)
    starter = batches._engine.workers.pool._starter  # type: ignore[attr-defined]
    next(batches)
    starter._template._process.kill()
    for _ in range(2):
        kill_all(batches)
        assert next(batches).tolist() == [1, 1]
        list(zip(range(2), batches))
    assert starter._template is None
    dataset.number = 100
    kill_all(batches)
    with pytest.raises(
        errors.FailedPrecondition, match=r"Iterate over the loader again.*hr-template\) has been killed"
    ):
        list(batches)
    assert next(iter(loader)).tolist() == [100, 100]


class Stream:
    def __init__(self) -> None:
        self.number = 1

    def __iter__(self) -> Iterator[Any]:
        for _ in range(20):
            time.sleep(0.002)
            yield self.number


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_stream_has_one_dataset_in_an_epoch_as_well(context: str) -> None:
    dataset = Stream()
    loader = DataLoader(dataset, 2, num_workers=2, multiprocessing_context=context, prefetch_factor=2)
    for number in (1, 2):
        dataset.number = number
        batches = iter(loader)
        seen = [next(batches).tolist() for _ in range(2)]
        dataset.number = 100
        kill_all(batches)
        assert [*seen, *(batch.tolist() for batch in batches)] == [[number, number]] * 10


def test_a_large_dataset_keeps_its_workers_if_the_user_says_so() -> None:
    class Large(Pids):
        pad = np.zeros(0)

    def pids(loader: DataLoader[Any]) -> set[int]:
        return {pid for batch in loader for pid in batch.tolist()}

    dataset = Large()
    dataset.pad = np.zeros(9 << 20)  # 72 MiB
    kept = DataLoader(dataset, num_workers=1, persistent_workers=True)
    first = pids(kept)
    assert pids(kept) == first
    kept.refresh()
    assert pids(kept) != first
    by_default = DataLoader(dataset, num_workers=1)
    assert pids(by_default) != pids(by_default)
