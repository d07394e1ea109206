"""Snapshots of what workers are given: equal as long as nothing has changed."""

from __future__ import annotations

import collections
import functools
import multiprocessing
import multiprocessing.shared_memory
import pickle
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.data._workers import dataset_snapshot as _snapshot
from headrace.data._workers.dataset_snapshot import Snapshot


class Thing:
    value: Any = None
    other: Any = None


class Slotted:
    __slots__ = ("__weakref__", "inner", "kept", "never_set")

    def __init__(self) -> None:
        self.inner, self.kept = [1], {"a": 1}


def adder(by: Any) -> Any:
    def add(value: int, *, times: int = 1) -> Any:
        return value + by * times

    return add


@functools.lru_cache
def cached(value: int) -> int:
    return value


def put(value: Any) -> Callable[[Thing], None]:
    def change(thing: Thing) -> None:
        thing.value = value() if isinstance(value, (types.FunctionType, type)) else value

    return change


def another_class(thing: Thing) -> None:
    class Thing:  # of that name
        pass

    thing.value = Thing()


# One after the other; each changes something.
CHANGES: dict[str, Callable[[Thing], Any]] = {
    "an instance": put(object),
    "another one, with slots": put(Slotted),
    "in a slot": lambda thing: thing.value.inner.append(1),
    "what slots hold": lambda thing: thing.value.kept.update(a=2),
    "what is bound": put(lambda: functools.partial(max, 1, default=[2])),
    "deep in what is bound": lambda thing: thing.value.keywords["default"].append(3),
    "a number": put(1),
    "its type": put(True),
    "zero": put(0.0),
    "its sign": put(-0.0),
    "not a number": put(float("nan")),
    "a closure": put(lambda: adder(1)),
    "what it closes over": lambda thing: setattr(thing.value.__closure__[0], "cell_contents", 2),
    "its default": lambda thing: thing.value.__kwdefaults__.update(times=3),
    "its attribute": lambda thing: setattr(thing.value, "about", 1),
    "a lambda": lambda thing: setattr(thing, "value", lambda: 1),
    "another one": lambda thing: setattr(thing, "value", lambda: 2),
    "a function that keeps results": lambda thing: setattr(thing, "value", cached),
    "a method": lambda thing: setattr(thing, "value", thing.__eq__),
    "a method of another": lambda thing: setattr(thing, "value", types.MethodType(adder(1), thing)),
    "a method with another function": lambda thing: setattr(thing, "value", types.MethodType(print, thing)),
    "a class": lambda thing: setattr(thing, "value", Thing),
    "an instance of a class of the same name": another_class,
    "of yet another": another_class,
    "a module": lambda thing: setattr(thing, "value", collections),
    "a lock": put(threading.Lock),
    "an event": put(multiprocessing.get_context("fork").Event),
    "a long list": lambda thing: setattr(thing, "value", list(range(100_000))),
    "one item of it": lambda thing: thing.value.__setitem__(77, 0),
    "one item more": lambda thing: thing.value.append(0),
    "itself": lambda thing: setattr(thing, "value", [thing]),
    "the same twice": lambda thing: setattr(thing, "value", [equal := [1], equal]),
    "equal, and not the same": lambda thing: setattr(thing, "value", [[1], [1]]),
    "of both roots the same": lambda thing: setattr(thing, "value", thing.other),
    "an array": lambda thing: setattr(thing, "value", np.zeros((4, 3))),
    "an element": lambda thing: thing.value.__setitem__((1, 1), 1),
    "its shape": lambda thing: setattr(thing.value, "shape", (3, 4)),
    "its type, not its bytes": lambda thing: setattr(thing, "value", thing.value.view(np.int64)),
    "a transposed view": lambda thing: setattr(thing, "value", thing.value.T),
    "an element of its base": lambda thing: thing.value.base.__setitem__((0, 0), 5),
    "a large array": lambda thing: setattr(thing, "value", np.zeros(1 << 20)),
    "one element of it": lambda thing: thing.value.__setitem__(99_999, 1),
    "an array of objects": lambda thing: setattr(thing, "value", np.array([[1], None], object)),
    "an object within": lambda thing: thing.value[0].append(2),
    "an iterator": lambda thing: setattr(thing, "value", iter([1, 2, 3])),
    "further": lambda thing: next(thing.value),
    "a generator of random numbers": lambda thing: setattr(thing, "value", np.random.default_rng(1)),
    "drawn from": lambda thing: thing.value.random(),
}


def test_a_snapshot_holds_until_something_changes() -> None:
    thing, other = Thing(), Thing()
    thing.other, other.other = [1], 2
    roots = thing, other
    snapshot = Snapshot.take(roots, True)
    for name, change in CHANGES.items():
        assert snapshot is not None, name
        assert snapshot.holds(roots), name
        change(thing)
        assert not snapshot.holds(roots), name
        snapshot = Snapshot.take(roots, True)


def _random_array(rng: np.random.Generator) -> NDArray[Any]:
    shape = tuple(rng.integers(0, 4, rng.integers(0, 4)))
    dtype = rng.choice(["?", "u1", "<i4", ">i4", "f2", "<f8", "c16", "M8[s]", "S3", "U2", "i4,f8"])
    array = np.zeros(shape, str(dtype))
    array.reshape(-1).view(np.uint8)[::7] = rng.integers(0, 2)
    if rng.random() < 0.3:
        array = np.asfortranarray(array)
    if rng.random() < 0.3:
        array = np.lib.stride_tricks.as_strided(array)[::2] if array.ndim else array[()].reshape(1)
    if rng.random() < 0.2:
        array = array.copy()
        array.flags.writeable = False
    return array


def test_arrays_are_equal_where_their_pickles_are() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        items: list[Any] = [_random_array(rng) for _ in range(5)]
        items = [items[i] for i in rng.integers(0, 5, 8)] + [list(items), "between", 3]
        before, snapshot = pickle.dumps(items, 5), Snapshot.take((items,), True)
        assert snapshot is not None
        changed = list(items)
        for at in rng.integers(0, 8, rng.integers(0, 3)):
            changed[at] = (
                _random_array(rng)
                if rng.random() < 0.3
                else changed[rng.integers(0, 8)]
                if rng.random() < 0.5
                else changed[at].copy(order="K")
                if rng.random() < 0.5
                else changed[at].reshape(changed[at].shape[::-1])
            )
        same = pickle.dumps(changed, 5) == before
        assert snapshot.holds((changed,)) == same, (items, changed)
        held += same
    assert 50 < held < 250


def test_it_makes_no_difference_who_looks() -> None:
    thing = Thing()
    thing.value = np.arange(100_000)
    snapshot = Snapshot.take((thing, thing), True)
    assert snapshot is not None
    for _ in range(3):
        assert snapshot.holds((thing, thing))
    assert not snapshot.holds((thing, Thing()))
    assert not snapshot.holds((thing,))


class Refuses:
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise LookupError("not this one")


class Chain:
    def __init__(self, length: int) -> None:
        self.next: Any = None
        for _ in range(length):
            link = Thing()
            link.value, self.next = self.next, link

    def unchain(self) -> None:
        while self.next is not None:
            self.next = self.next.value


@pytest.mark.parametrize(
    "make",
    [
        Refuses,
        lambda: (number for number in range(3)),
        lambda: np.zeros(70 << 20, np.uint8),
        lambda: [np.zeros(1 << 20, np.uint8) for _ in range(65)],
        lambda: list(range(3_000_000)),
        lambda: [Thing() for _ in range(30_000)],
    ],
    ids=["refuses", "generator", "large array", "large arrays", "long list", "many objects"],
)
def test_what_cannot_be_compared_has_no_snapshot(make: Any) -> None:
    thing = Thing()
    snapshot = Snapshot.take((thing,), True)
    thing.value = make()
    assert Snapshot.take((thing,), True) is None
    assert snapshot is not None
    assert not snapshot.holds((thing,))


@pytest.mark.parametrize("limit", [1000, 1_000_000])
def test_a_chain_that_is_too_long_has_none_whatever_the_limit_of_recursion(limit: int) -> None:
    chain = Chain(100_000)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        assert Snapshot.take((chain,), True) is None
    finally:
        sys.setrecursionlimit(before)
        chain.unchain()


def test_a_comparison_ends_where_something_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it never takes longer than the snapshot did."""
    thing = Thing()
    snapshot = Snapshot.take((thing,), True)
    assert snapshot is not None
    thing.value, thing.other = np.zeros(4), Refuses()  # which would be asked
    monkeypatch.setattr(Refuses, "__reduce_ex__", lambda *_: pytest.fail("looked further"))
    assert not snapshot.holds((thing,))


def test_mapped_files_are_looked_at_where_workers_do_not_share_them(tmp_path: Path) -> None:
    mapped = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.int64, shape=(10,))
    forked, sent = Snapshot.take((mapped,), True), Snapshot.take((mapped,), False)
    mapped[3] = 1
    assert forked is not None
    assert forked.holds((mapped,))
    assert sent is not None
    assert not sent.holds((mapped,))
    assert not forked.holds((mapped[1:],))
    private = np.load(tmp_path / "a.npy", mmap_mode="c")
    forked = Snapshot.take((private,), True)
    private[3] = 2
    assert forked is not None
    assert not forked.holds((private,))


def test_a_snapshot_says_whether_the_workers_share_some_of_it(tmp_path: Path) -> None:
    mapped = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.int64, shape=(10,))
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=8)
    shared = [multiprocessing.Value("i", 0), multiprocessing.Event(), memory, mapped]
    own = [np.zeros(3), threading.Lock(), np.load(tmp_path / "a.npy", mmap_mode="c"), adder, {"a": 1}]
    for each, expected in [*((each, True) for each in shared), *((each, False) for each in own)]:
        thing = Thing()
        thing.value = [each]
        snapshot = Snapshot.take((thing,), True)
        assert snapshot is not None
        assert snapshot.shares is expected, each
        assert snapshot.holds((thing,))
    memory.close()
    memory.unlink()


def test_tensors_that_are_sent_are_shared_from_then_on() -> None:
    torch = pytest.importorskip("torch")
    forked, sent = (Snapshot.take((torch.zeros(3),), way) for way in (True, False))
    shared = Snapshot.take((torch.zeros(3).share_memory_(),), True)
    assert [each.shares for each in (forked, sent, shared) if each is not None] == [False, True, True]


def test_a_snapshot_says_whether_it_knows_all_classes_of_another() -> None:
    thing = Thing()
    before = Snapshot.take((thing,), False)
    thing.value = [Thing()]
    after = Snapshot.take((thing,), False)
    thing.value = Slotted()
    later = Snapshot.take((thing,), False)
    assert before is not None
    assert after is not None
    assert later is not None
    assert before.knows(after)
    assert not before.knows(later)
    assert later.knows(before)


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    thing = Thing()
    snapshot = None
    changes: list[Callable[[], Any]] = [
        lambda: setattr(thing, "value", torch.zeros(4, 3)),
        lambda: thing.value.__setitem__((1, 1), 1),
        lambda: thing.value.numpy().__setitem__((2, 2), 1),  # of which torch knows nothing
        lambda: setattr(thing, "value", thing.value.T),
        lambda: setattr(thing, "value", thing.value.to(torch.bfloat16)),
        lambda: setattr(thing, "value", torch.tensor(3)),
        lambda: thing.value.fill_(4),
        lambda: thing.value.share_memory_(),
        lambda: setattr(thing, "value", torch.zeros(2, dtype=torch.complex64).conj()),
        lambda: setattr(thing, "value", torch.nn.Linear(2, 2)),
        lambda: thing.value.weight.data.fill_(1),
        lambda: thing.value.weight.requires_grad_(False),
    ]
    for number, change in enumerate(changes):
        change()
        assert snapshot is None or not snapshot.holds((thing,)), number
        snapshot = Snapshot.take((thing,), True)
        assert snapshot is not None, number
        assert snapshot.holds((thing,)), number
    thing.value = torch.zeros(4).share_memory_()
    snapshot = Snapshot.take((thing,), True)
    thing.value.fill_(1)  # workers see it at once
    assert snapshot is not None
    assert snapshot.holds((thing,))


def test_the_limits_are_of_what_takes_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_snapshot, "_MAX_STREAM", 1000)
    assert Snapshot.take((b"a" * 900,), True) is not None
    assert Snapshot.take((b"a" * 1001,), True) is None
    assert Snapshot.take((np.zeros(1 << 20),), True) is not None
