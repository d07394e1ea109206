"""Exceptions of user code in workers arrive with type, message, index and traceback, and iteration goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, PickyError

from headrace.data import DataLoader, IterableDataset
from headrace.data._worker import WorkerTraceback, decode_error, encode_error

LONG = 10_000_000


class Raising(Ints):
    """Sample 5 raises what ``make`` returns."""

    def __init__(self, length: int, kind: str) -> None:
        super().__init__(length)
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            raise_one(self.kind)
        return index


class RaisingStream(IterableDataset):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __iter__(self) -> Iterator[int]:
        return iter(_RaisingIterator(self.kind))


class _RaisingIterator:
    """Raises once, in the middle, and can continue."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.next = 0

    def __iter__(self) -> _RaisingIterator:
        return self

    def __next__(self) -> int:
        self.next += 1
        if self.next == 6:
            raise_one(self.kind)
        if self.next > 12:
            raise StopIteration
        return self.next - 1


class NeedsArguments(Exception):
    """Takes two arguments, but passes on only one."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Unpicklable(Exception):
    def __init__(self) -> None:
        super().__init__("has a lock")
        self.lock = sys._getframe()


class Base(BaseException):
    pass


def raise_one(kind: str) -> None:
    if kind == "value":
        raise ValueError("no good")
    if kind == "arguments":
        raise NeedsArguments(7, "gone")
    if kind == "picky":
        raise PickyError(5, 1)
    if kind == "unpicklable":
        raise Unpicklable
    if kind == "long":
        raise ValueError("x" * LONG)
    if kind == "memory":
        raise MemoryError("a terabyte")
    if kind == "real memory":
        np.ones(1 << 60, np.uint8)
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "exit":
        sys.exit(0)
    if kind == "generator":
        raise GeneratorExit
    if kind == "stop":
        raise StopIteration
    if kind == "base":
        raise Base("not an Exception")


# The type and text that arrive.
EXPECTED: dict[str, tuple[type[Exception], str]] = {
    "value": (ValueError, "no good"),
    "arguments": (NeedsArguments, "gone"),
    "picky": (RuntimeError, "PickyError: picky 6"),
    "unpicklable": (RuntimeError, "Unpicklable: has a lock"),
    "long": (ValueError, "x" * 100),
    "memory": (MemoryError, "a terabyte"),
    "real memory": (MemoryError, "Unable to allocate"),
    "interrupt": (RuntimeError, "raised KeyboardInterrupt"),
    "exit": (RuntimeError, "raised SystemExit: 0"),
    "generator": (RuntimeError, "raised GeneratorExit"),
    "stop": (RuntimeError, "raised StopIteration"),
    "base": (RuntimeError, "raised Base: not an Exception"),
}


def run(loader: DataLoader) -> list[Any]:
    """The batches of an epoch, with the exceptions of those that failed in their places."""
    got: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            batch = next(iterator)
        except StopIteration:
            return got
        except Exception as error:
            batch = error
        got.append(batch)


def check(error: Any, kind: str) -> WorkerTraceback:
    wanted, text = EXPECTED[kind]
    assert type(error) is wanted or (kind == "real memory" and isinstance(error, MemoryError))
    assert text in str(error)
    assert isinstance(error.__cause__, WorkerTraceback)
    assert "in raise_one" in str(error.__cause__)
    return error.__cause__


@pytest.mark.parametrize("workers", ["process", "thread"])
@pytest.mark.parametrize("kind", EXPECTED)
def test_in_a_dataset(kind: str, workers: str) -> None:
    if workers == "thread" and kind in ("long", "picky", "unpicklable", "arguments"):
        pytest.skip("in one process an exception need not travel")
    got = run(DataLoader(Raising(12, kind), batch_size=2, num_workers=2, workers=workers))
    assert [batch.tolist() for index, batch in enumerate(got) if index != 2] == [
        [0, 1],
        [2, 3],
        [6, 7],
        [8, 9],
        [10, 11],
    ]
    if workers == "thread":
        assert isinstance(got[2], EXPECTED[kind][0])
        return
    assert check(got[2], kind).sample_index == 5
    if kind == "long":
        assert str(got[2]) == "x" * LONG
    if kind == "arguments":
        assert (got[2].code, got[2].reason) == (7, "gone")


@pytest.mark.parametrize("kind", EXPECTED)
def test_in_collate_fn(kind: str) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 5 in samples:
            raise_one(kind)
        return samples

    got = run(DataLoader(Ints(12), batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context="fork"))
    assert [got[0], got[2]] == [[0, 1, 2, 3], [8, 9, 10, 11]]
    assert "[4, 5, 6, 7] could not be collated" in str(check(got[1], kind))


@pytest.mark.parametrize("kind", [kind for kind in EXPECTED if kind != "stop"])
def test_in_a_stream(kind: str) -> None:
    got = run(DataLoader(RaisingStream(kind), batch_size=4, num_workers=1))
    assert got[0].tolist() == [0, 1, 2, 3]
    assert "could not be read" in str(check(got[1], kind))
    assert got[-1].tolist()[-1] == 11


@pytest.mark.parametrize("kind", EXPECTED)
def test_in_worker_init_fn(kind: str) -> None:
    def initialize(worker_id: int) -> None:
        raise_one(kind)

    loader = DataLoader(Ints(4), batch_size=2, num_workers=2, worker_init_fn=initialize, multiprocessing_context="fork")
    got = run(loader)
    assert len(got) == 2
    for error in got:
        assert "worker_init_fn failed" in str(check(error, kind))


def test_in_the_consumers_loop() -> None:
    loader = DataLoader(Ints(40), batch_size=2, num_workers=2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
    assert len(list(loader)) == 20


def test_a_message_that_does_not_fit_keeps_type_and_ends() -> None:
    try:
        raise ValueError("begin" + "x" * 100_000 + "end")
    except ValueError as error:
        message = encode_error(error, "It failed", 3, room=20_000)
    assert len(message) <= 20_000
    got = decode_error(message)
    assert type(got) is ValueError
    assert str(got).startswith("begin")
    assert str(got).endswith("end")
    assert "characters" in str(got)
    assert got.__cause__.sample_index == 3  # type: ignore[union-attr]


def test_a_message_too_long_for_a_small_slot_keeps_its_type() -> None:
    """Where address space is limited, slots are small."""
    from fault_harness import run as run_program

    result = run_program("long_error", prefix="prlimit --as=3000000000")
    assert result["type"] == "ValueError"
    assert result["index"] == 5
    assert result["begin"].startswith("xxx")
    assert result["rest"] == 5
