"""Exceptions of user code in workers arrive with type, message, index and traceback, and iteration goes on."""

from __future__ import annotations

import collections
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, PickyError
from test_core_transport import claims, make, samples_of

import headrace.fluid as fluid
from headrace import errors
from headrace.data import DataLoader, IterableDataset
from headrace.data._workers import sample_maker as worker_module
from headrace.data._workers.errors import WorkerTraceback, decode_error, encode_error
from headrace.fluid import core

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
    "picky": (PickyError, "picky 6"),
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


class Parcel:
    """An object of a sample, with which ``unpack`` is called in the main process."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __reduce__(self) -> Any:
        return unpack, (self.index,)


def unpack(index: int) -> Parcel:
    if index in ON_UNPACKING:
        ON_UNPACKING[index]()
    return Parcel(index)


# By sample: what happens when its object is restored. Workers, which are forked, restore none.
ON_UNPACKING: dict[int, Callable[[], Any]] = {}


class Parcels(Ints):
    def __getitem__(self, index: int) -> Any:
        return Parcel(index)


class StreamOfParcels(IterableDataset):
    def __iter__(self) -> Iterator[Parcel]:
        return map(Parcel, range(12))


def keep_apart(samples: list[Any]) -> Any:
    return {"samples": samples}


PARCELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a process": (Parcels(12), {}),
    "threads": (Parcels(12), {"workers": "thread", "num_workers": 2, "multiprocessing_context": None}),
    "a collate_fn": (Parcels(12), {"collate_fn": keep_apart}),
    "a stream": (StreamOfParcels(), {}),
    "batches in any order": (Parcels(12), {"in_order": False}),
}


def loader_of_parcels(name: str) -> DataLoader:
    dataset, given = PARCELS[name]
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": 1, "multiprocessing_context": "fork", **given})


def indices_in(batch: Any) -> list[int]:
    return [parcel.index for parcel in (batch["samples"] if isinstance(batch, dict) else batch)]


@pytest.mark.parametrize("kind", ["value", "picky", "exit", "stop", "base"])
@pytest.mark.parametrize("name", PARCELS)
def test_in_unpickling_a_sample(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One error takes the place of the batch, of which the main process cannot restore an object."""
    monkeypatch.setitem(ON_UNPACKING, 5, lambda: raise_one(kind))
    wanted = {"picky": PickyError, "exit": SystemExit, "stop": RuntimeError, "base": Base}.get(kind, ValueError)
    loader = loader_of_parcels(name)
    iterator = iter(loader)
    for number in range(6):
        if number == 2:
            with pytest.raises(wanted) as caught:
                next(iterator)
            notes = getattr(caught.value, "__notes__", ["Batch 2 of epoch 0"])  # since Python 3.11
            assert "Batch 2 of epoch 0" in notes[0]
            assert "[4, 5]" in notes[0] or name == "a stream" or sys.version_info < (3, 11)
        else:
            assert indices_in(next(iterator)) == [2 * number, 2 * number + 1]
        assert loader.state_dict()["batch"] == number + 1
    with pytest.raises(StopIteration):
        next(iterator)
    ON_UNPACKING.clear()
    assert [indices_in(batch) for batch in loader] == [[index, index + 1] for index in range(0, 12, 2)]


@pytest.mark.parametrize(("kind", "strikes"), [(KeyboardInterrupt, 3), (TimeoutError, 1), (SystemExit, 1)])
@pytest.mark.parametrize("name", PARCELS)
def test_a_signal_handler_that_raises_while_a_sample_is_unpickled_loses_no_batch(
    name: str, kind: type[BaseException], strikes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [signal.SIGUSR1] * strikes
    monkeypatch.setitem(ON_UNPACKING, 5, lambda: left and signal.raise_signal(left.pop()))

    def strike(*_: Any) -> None:
        raise kind

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        loader = loader_of_parcels(name)
        iterator = iter(loader)
        got, struck = [], 0
        while len(got) < 6:
            try:
                got.append(indices_in(next(iterator)))
            except kind:
                struck += 1
                assert loader.state_dict()["batch"] == len(got) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert struck == strikes
    assert got == [[index, index + 1] for index in range(0, 12, 2)]


@pytest.mark.parametrize("handlers", [True, False])
def test_an_exception_in_decoding_a_batch_ahead_of_its_turn(handlers: bool) -> None:
    """A signal handler's is raised at once and loses nothing; the batch's own comes when its turn has come."""
    tries: list[int] = []

    def build(leaves: list[Any]) -> Any:
        if leaves[0][0, 0] == 4:
            tries.append(4)
            if len(tries) == 1 or not handlers:
                raise TimeoutError
        return leaves[0]

    scheduler, producer = make(decode_tree=lambda _: (build, [np.dtype(np.float32)]), look_ahead=True)
    scheduler.start_epoch(0)
    for claim in claims(producer):
        samples = [sample + claim.batch * 4 for sample in samples_of(claim)]
        producer.fill_from(claim, samples)
    if handlers:
        with pytest.raises(TimeoutError):
            scheduler.next()
        assert not scheduler.undecoded
    first = [scheduler.next()[0, 0] for _ in range(2)]  # the same until it is acknowledged
    assert first == [0, 0]
    scheduler.acknowledge()
    if not handlers:
        with pytest.raises(TimeoutError):
            scheduler.next()
        assert scheduler.undecoded
        return
    assert scheduler.next()[0, 0] == 4


class Returning:
    """An index that the main process cannot restore."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.main = os.getpid()

    def __reduce__(self) -> Any:
        return returned, (self.number, self.main)

    def __repr__(self) -> str:
        return f"Returning({self.number})"


def returned(number: int, main: int) -> Returning:
    if os.getpid() == main:
        raise PickyError(number, 0)
    index = Returning(number)
    index.main = main
    return index


class ByObject(Ints):
    def __getitem__(self, index: Any) -> int:
        if index.number == 2:
            raise_one("value")
        return int(index.number)


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


class Unsendable(Ints):
    """Sample 5 holds something that pickle refuses."""

    def __getitem__(self, index: int) -> Any:
        return index, Box(iter_of(index) if index == 5 else index)


class UnsendableStream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return map(Unsendable(12).__getitem__, range(12))


def iter_of(index: int) -> Iterator[int]:
    yield index


def iter_of_batch(samples: list[Any]) -> Any:
    return iter_of(0) if any(sample[0] == 5 for sample in samples) else [sample[0] for sample in samples]


def batch_of_a_local_class(samples: list[Any]) -> Any:
    Local = collections.namedtuple("Local", "first")
    return Local(samples[0][0]) if any(sample[0] == 5 for sample in samples) else [sample[0] for sample in samples]


@pytest.mark.parametrize(
    ("dataset", "collate_fn", "culprit"),
    [
        (Unsendable(12), None, "the dataset"),
        (UnsendableStream(), None, "the dataset"),
        (Unsendable(12), list, "collate_fn"),
        (UnsendableStream(), list, "collate_fn"),
        (Unsendable(12), iter_of_batch, "collate_fn"),
        (Unsendable(12), batch_of_a_local_class, "collate_fn"),
    ],
    ids=["sample", "element", "collated sample", "collated element", "batch", "class"],
)
def test_what_cannot_be_pickled_fails_its_batch_with_what_to_do(dataset: Any, collate_fn: Any, culprit: str) -> None:
    loader = DataLoader(
        dataset, batch_size=2, num_workers=2, collate_fn=collate_fn, multiprocessing_context="fork", seed=1
    )
    got = run(loader)
    assert len(got) == 6
    with pytest.raises(pickle.PicklingError, match=f"{culprit} returned .* cannot be sent .*num_workers=0"):
        raise got[2]
    assert not any(isinstance(batch, Exception) for number, batch in enumerate(got) if number != 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_index_that_cannot_be_pickled_ends_the_epoch_with_what_to_do(workers: int) -> None:
    sampler = [0, 1, 2, 3, iter_of(4), 5]
    loader = DataLoader(Ints(12), batch_size=2, num_workers=workers, sampler=sampler)
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(pickle.PicklingError, match="the sampler gave an index that cannot be sent"):
        next(iterator)
    assert list(iterator) == []


def test_of_a_sample_whose_index_cannot_be_unpickled() -> None:
    sampler = [Returning(number) for number in range(4)]
    loader = DataLoader(ByObject(4), num_workers=1, sampler=sampler, multiprocessing_context="fork")
    got = run(loader)
    cause = check(got[2], "value")
    assert cause.sample_index is None
    assert "index Returning(2)" in str(cause)
    assert [batch.tolist() for number, batch in enumerate(got) if number != 2] == [[0], [1], [3]]


GARBLED = r"the report of what failed in it cannot be read \(UnpicklingError"


@pytest.mark.filterwarnings("ignore:worker:RuntimeWarning")
@pytest.mark.parametrize("dataset", [Raising(12, "value"), RaisingStream("value")], ids=["map", "stream"])
def test_a_report_that_cannot_be_read_is_data_loss_and_its_author_is_replaced(
    dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "encode_error", lambda *_: b"garbage")
    loader = DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    with pytest.raises(errors.DataLoss, match=f"batch 1 of epoch 0 .*{GARBLED}"):
        next(iterator)
    assert loader.state_dict()["batch"] == 2
    assert list(iterator)[-1].tolist()[-1] == 11
    while not loader.stats()["worker_deaths"]:  # the process may take a while to end
        run(loader)


def test_a_report_that_cannot_be_read_fails_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "encode_error", lambda *_: b"garbage")
    loader = DataLoader(Raising(12, "value"), batch_size=4, num_workers=1, multiprocessing_context="fork")
    queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 4, [[-1]])
    feed = loader._feed(queue)
    assert np.asarray(queue.pop(timeout=100)[0]).tolist() == [0, 1, 2, 3]
    with pytest.raises(errors.DataLoss, match=GARBLED):
        queue.pop(timeout=100)
    feed.stop()


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
