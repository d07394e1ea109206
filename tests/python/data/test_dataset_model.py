"""Random datasets with random changes: workers see what the program had when the epoch began.

Each sample is a digest of all that the dataset refers to, of which parts are the same object, and of what its functions
return. The reference is the digest that the program computes itself.
"""

from __future__ import annotations

import array
import collections
import functools
import hashlib
import os
import random
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.data import DataLoader


class OwnDict(dict[Any, Any]):
    pass


class OwnList(list[Any]):
    pass


class Slotted:
    __slots__ = ("first", "second")


class Plain:
    def own(self) -> Any:
        return sorted(map(str, vars(self)))


def adder(by: int) -> Callable[[int], int]:
    return lambda number: number + by


def scaled(number: int, by: Any) -> str:
    return f"{number} {by!s:.20}"


class Graph:
    """A dataset made of parts that refer to each other at random."""

    def __init__(self, seed: int, sent: bool) -> None:
        self._random = random.Random(seed)
        self._sent = sent  # as a pickle
        self.parts: list[Any] = [[]]
        for _ in range(self._random.randrange(1, 25)):
            self.parts.append(self._new_part())
        self.length = 24

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.digest(), np.uint8).copy()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_random": None}  # which changes, and which workers do not need

    def digest(self) -> bytes:
        return hashlib.sha256(_Description().of(self.parts).encode()).digest()

    def change(self) -> None:
        for _ in range(self._random.choice((0, 0, 1, 1, 2, 5))):
            self._change_one()

    def _any(self) -> Any:
        """A number, a text, or one of the parts that there are."""
        if self._random.random() < 0.6:
            return self._random.choice(self.parts)
        return self._random.choice((self._random.randrange(5), self._random.random(), "text", b"bytes", None, True))

    def _new_part(self) -> Any:
        draw, one, two = self._random, self._any(), self._any()
        slotted, plain = Slotted(), Plain()
        slotted.first = slotted.second = one
        plain.one, plain.two = one, two  # type: ignore[attr-defined]
        kinds: list[Callable[[], Any]] = [
            lambda: [one, two],
            lambda: (one, two),
            lambda: {"a": one, 3: two},
            lambda: {draw.randrange(9), "b"},
            lambda: OwnDict(a=one),
            lambda: OwnList([one]),
            lambda: collections.OrderedDict(a=one, b=two),
            lambda: collections.defaultdict(list, a=one),
            lambda: collections.Counter("abracadabra"[: draw.randrange(11)]),
            lambda: collections.deque([one, two], maxlen=draw.choice((None, 5))),
            lambda: bytearray(b"abc"),
            lambda: array.array("i", [draw.randrange(9)]),
            lambda: np.arange(draw.randrange(1, 9)),
            lambda: np.zeros(draw.choice((1 << 15, 1 << 21))),
            lambda: np.array([draw.randrange(9), None], object),
            lambda: slotted,
            lambda: plain,
            lambda: plain.own,
            lambda: functools.partial(scaled, by=draw.randrange(9)),
        ]
        if not self._sent:
            kinds += [lambda: adder(draw.randrange(9)), lambda: memoryview(b"refuses to be pickled")]
        kinds_of_this_one = kinds if draw.random() < 0.97 else kinds[-1:]
        return draw.choice(kinds_of_this_one)()

    def _change_one(self) -> None:
        draw, part, value = self._random, self._random.choice(self.parts), self._any()
        choice = draw.random()
        if choice < 0.15:
            self.parts.append(self._new_part())
        elif choice < 0.2 and len(self.parts) > 1:
            self.parts.pop(draw.randrange(1, len(self.parts)))
        elif isinstance(part, (Plain, Slotted)):
            names = ("one", "two", "three") if isinstance(part, Plain) else Slotted.__slots__
            setattr(part, draw.choice(names), value)
        elif isinstance(part, collections.Counter):
            part["a"] += 1
        elif isinstance(part, dict):
            part[draw.choice(("a", "b", 3))] = value
        elif isinstance(part, set):
            part.add(draw.randrange(100))
        elif isinstance(part, (list, collections.deque)):
            draw.choice((part.append, lambda new: part and part.__setitem__(0, new)))(value)
        elif isinstance(part, (bytearray, array.array)):
            part[0] = (part[0] + 1) % 100
        elif isinstance(part, np.ndarray):
            part[draw.randrange(len(part))] = draw.randrange(100)
        elif isinstance(part, functools.partial):
            part.keywords["by"] = draw.randrange(100)
        elif getattr(part, "__closure__", None):
            part.__closure__[0].cell_contents = draw.randrange(100)


def _large(array: np.ndarray[Any, Any]) -> str:
    """Its length, and where it has which numbers but zero: to hash all of its bytes takes several times as long."""
    (places,) = array.nonzero()
    return f"{len(array)} {places.tolist()} {array[places].tolist()}"


class _Description:
    """Text in which parts that are the same object have the same number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, part: Any) -> str:
        if part is None or type(part) in (int, float, bool, str, bytes):
            return repr(part)
        known = id(part) in self._numbers
        name = f"{type(part).__name__}#{self._numbers.setdefault(id(part), len(self._numbers))}"
        if known:
            return name
        if isinstance(part, np.ndarray):
            inner = part.tolist() if part.nbytes < 1000 else [_large(part)]
        elif isinstance(part, dict):
            inner = [*part.items(), vars(part)] if hasattr(part, "__dict__") else list(part.items())
        elif isinstance(part, (set, frozenset)):
            return name + str(sorted(map(repr, part)))
        elif isinstance(part, Slotted):
            inner = [part.first, part.second]
        elif isinstance(part, Plain):
            inner = [*vars(part).items()]
        elif isinstance(part, functools.partial):
            inner = [part(1)]
        elif callable(part):
            inner = [part.__self__] if hasattr(part, "__self__") else [part(1)]
        else:
            inner = list(part)
        return f"{name}({', '.join(map(self._of_item, inner))})"

    def _of_item(self, item: Any) -> str:
        # A pair of a dict's is made anew each time: not an object of the dataset.
        return f"{self.of(item[0])}={self.of(item[1])}" if type(item) is tuple and len(item) == 2 else self.of(item)


def check(seed: int, context: str, epochs: int) -> None:
    dataset = Graph(seed, sent=context != "fork")
    draw = random.Random(seed)
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=draw.choice((1, 2)),
        prefetch_factor=2,
        multiprocessing_context=context,
        persistent_workers=draw.choice((None, None, False)),
    )
    for epoch in range(epochs):
        dataset.change()
        expected = np.frombuffer(dataset.digest(), np.uint8)
        batches = iter(loader)
        at_change, at_kill = draw.randrange(12), draw.randrange(12)
        for number, batch in enumerate(batches):
            assert (batch == expected).all(), f"seed {seed}, epoch {epoch}, batch {number}"
            if number == at_change:
                dataset.change()
            if number == at_kill:
                for process in batches._engine.workers.processes:  # type: ignore[attr-defined]
                    os.kill(process.pid, signal.SIGKILL)
    loader.shutdown()


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("seed", range(8))
def test_forked_workers_see_the_dataset_of_the_epochs_begin(seed: int) -> None:
    check(seed, "fork", 5)


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("context", ["forkserver", "spawn"])
def test_workers_that_are_sent_it_see_it_as_well(context: str) -> None:
    for seed in range(100, 102 if context == "forkserver" else 101):
        check(seed, context, 4)


def test_the_digest_tells_objects_from_equal_ones() -> None:
    graph = Graph(1, sent=True)
    shared = [1]
    digests = set()
    for parts in ([shared, shared], [[1], [1]], [OwnList([1]), [1]], [(1,), [1]], [{"a": 1}, {"a": True}]):
        graph.parts = parts
        digests.add(graph.digest())
        assert graph.digest() in digests
    assert len(digests) == 5
