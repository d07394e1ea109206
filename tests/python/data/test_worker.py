"""headrace.data._workers.sample_maker: how errors in a worker reach the consumer."""

from __future__ import annotations

import collections
import dataclasses
import pdb
import traceback
from typing import Any, ClassVar

import numpy as np
import pytest
from loader_datasets import (
    BrokenBulk,
    Ints,
    PickyError,
    Raising,
    Samples,
    ShortBulk,
    UnpicklableError,
    UnprintableError,
    raise_at_start,
    raise_in_collate,
)

from headrace.data import DataLoader
from headrace.data._workers.errors import WorkerTraceback, decode_error, encode_error


def run(loader: DataLoader) -> list[Any]:
    """The batches of an epoch as lists, with the exceptions of those that failed in their places."""
    got: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            got.append(next(iterator).tolist())
        except StopIteration:
            return got
        except BaseException as error:
            got.append(error)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_error_consumes_its_batch_and_iteration_goes_on(num_workers: int) -> None:
    loader = DataLoader(Raising(10, 3, 8), batch_size=2, num_workers=num_workers)
    for _ in range(2):
        got = run(loader)
        assert [type(batch) for batch in got] == [list, KeyError, list, list, KeyError]
        assert got[0] + got[2] + got[3] == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_error_has_type_message_traceback_and_index(num_workers: int) -> None:
    loader = DataLoader(Raising(10, 7), batch_size=4, sampler=range(9, -1, -1), num_workers=num_workers)
    with pytest.raises(KeyError, match="no sample 7") as caught:
        next(iter(loader))
    cause = caught.value.__cause__
    assert isinstance(cause, WorkerTraceback)
    assert cause.sample_index == 7
    text = "".join(traceback.format_exception(caught.type, caught.value, caught.tb))
    assert "The sample with index 7 could not be made" in text
    assert 'loader_datasets.py", line' in text
    assert 'raise KeyError(f"no sample {index}")' in text


def test_without_workers_an_error_keeps_its_own_frames() -> None:
    with pytest.raises(KeyError) as caught:
        next(iter(DataLoader(Raising(10, 0))))
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert frames[-1] == "__getitem__"
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["The sample with index 0 could not be made."]


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_of_two_bad_samples_the_first_is_reported(num_workers: int) -> None:
    loader = DataLoader(Raising(64, 20, 40), batch_size=64, num_workers=num_workers)
    for _ in range(3):
        with pytest.raises(KeyError, match="no sample 20"):
            next(iter(loader))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_is_reported_before_one_that_does_not_fit(num_workers: int) -> None:
    class Mixed(Raising):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index) if index % 2 else np.zeros(index)

    loader = DataLoader(Mixed(40, 7), batch_size=40, num_workers=num_workers)
    for _ in range(3):
        with pytest.raises(KeyError, match="no sample 7"):
            next(iter(loader))


def test_an_error_that_cannot_be_pickled_arrives_as_text() -> None:
    loader = DataLoader(Raising(3, 1, kind="unpicklable"), num_workers=1)
    got = run(loader)
    assert type(got[1]) is RuntimeError
    assert "UnpicklableError: has a lock" in str(got[1])
    assert "UnpicklableError" in str(got[1].__cause__)
    assert type(run(DataLoader(Raising(3, 1, kind="unpicklable")))[1]) is UnpicklableError


def test_an_error_whose_constructor_takes_other_arguments_keeps_its_type_and_attributes() -> None:
    for num_workers in (0, 1):
        error = run(DataLoader(Raising(3, 1, kind="picky"), num_workers=num_workers))[1]
        assert type(error) is PickyError
        assert (str(error), error.args, error.one) == ("picky 2", ("picky 2",), 1)
    assert "raise PickyError(index, 1)" in str(error.__cause__)


class NoShard(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "no such shard", path)
        self.path = path


class NoCodec(ImportError):
    def __init__(self, module: str) -> None:
        super().__init__(f"cannot import {module}", name=module)


class BadText(UnicodeDecodeError):
    def __init__(self, data: bytes) -> None:
        super().__init__("utf-8", data, 0, 1, "bad")


class NoRecord(KeyError):
    """Its constructor takes its ``args``, and would put them into its text again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no record {name}")


class Slotted(ValueError):
    __slots__ = ("row",)

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


class Reduced(Exception):
    def __init__(self, one: int, *, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.one, self.two = one, two

    def __reduce__(self) -> Any:
        return _reduced, (self.one, self.two)


def _reduced(one: int, two: int) -> Reduced:
    return Reduced(one, two=two)


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    row: int


ERRORS = {
    "errno": (NoShard("/a/b"), ("errno", "strerror", "filename", "path")),
    "import": (NoCodec("xz"), ("name", "path", "msg")),
    "text": (BadText(b"\xff"), ("encoding", "object", "start", "end", "reason")),
    "doubled": (NoRecord("x"), ()),
    "slots": (Slotted(3), ("row",)),
    "reduced": (Reduced(1, two=2), ("one", "two")),
    "frozen": (FrozenError(3), ("row",)),
    "built in": (FileNotFoundError(2, "gone", "/a", None, "/b"), ("errno", "filename", "filename2")),
}


class RaisingOne(Ints):
    def __init__(self, error: Exception) -> None:
        super().__init__(1)
        self.error = error

    def __getitem__(self, index: int) -> Any:
        raise self.error


@pytest.mark.parametrize("which", ERRORS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_keeps_what_pythons_own_classes_keep(which: str, num_workers: int) -> None:
    error, attributes = ERRORS[which]
    got = run(DataLoader(RaisingOne(error), num_workers=num_workers))[0]
    assert type(got) is type(error)
    assert (str(got), got.args) == (str(error), error.args)
    for name in attributes:
        assert getattr(got, name) == getattr(error, name)


def test_the_error_of_a_workers_initialization_is_the_same_each_time() -> None:
    def fail(worker: int) -> None:
        raise NoRecord("x")

    loader = DataLoader(Ints(3), worker_init_fn=fail, num_workers=1, workers="thread")
    for _ in range(2):
        for error in run(loader):
            assert error.args == ("no record x",)


def test_an_error_that_cannot_be_printed_arrives() -> None:
    assert type(run(DataLoader(Raising(3, 1, kind="unprintable"), num_workers=1))[1]) is UnprintableError


def test_an_exit_in_a_worker_does_not_end_the_program() -> None:
    got = run(DataLoader(Raising(3, 1, kind="exit"), num_workers=1))
    assert type(got[1]) is RuntimeError
    assert "SystemExit: 3" in str(got[1])
    assert got[2] == [2]


def test_an_exit_in_the_main_process_is_one() -> None:
    got = run(DataLoader(Raising(3, 1, kind="exit")))
    assert type(got[1]) is SystemExit
    assert got[2] == [2]


def test_an_index_that_does_not_exist_is_the_datasets_error() -> None:
    with pytest.raises(IndexError) as caught:
        list(DataLoader([1, 2], sampler=[0, 5], num_workers=1))
    assert caught.value.__cause__.sample_index == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bulk_errors_name_the_samples(num_workers: int) -> None:
    got = run_bulk(BrokenBulk(12), num_workers)
    assert [type(batch) for batch in got] == [list, OSError, list]
    if num_workers == 0 and not hasattr(got[1], "__notes__"):
        return  # before Python 3.11
    text = "".join(got[1].__notes__) if num_workers == 0 else str(got[1].__cause__)
    assert "7" in text
    assert "could not be made" in text


def run_bulk(dataset: Any, num_workers: int) -> list[Any]:
    iterator = iter(DataLoader(dataset, batch_size=4, num_workers=num_workers))
    got = []
    for _ in range(3):
        try:
            got.append(next(iterator))
        except Exception as error:
            got.append(error)
    return got


def test_bulk_that_gives_too_few_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"__getitems__ was asked for \d samples and gave"):
        next(iter(DataLoader(ShortBulk(4), batch_size=4, num_workers=1)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_in_collate_fn_names_the_batch(num_workers: int) -> None:
    loader = DataLoader(Ints(9), batch_size=3, collate_fn=raise_in_collate, num_workers=num_workers)
    iterator = iter(loader)
    assert next(iterator) == [0, 1, 2]
    with pytest.raises(ArithmeticError, match="does not add up") as caught:
        next(iterator)
    if num_workers:
        assert "samples with indices [3, 4, 5] could not be collated" in str(caught.value.__cause__)
        assert caught.value.__cause__.sample_index is None  # type: ignore[union-attr]
    assert next(iterator) == [6, 7, 8]


def test_an_error_in_worker_init_fn_is_that_of_every_batch() -> None:
    got = run(DataLoader(Ints(4), batch_size=2, num_workers=1, worker_init_fn=raise_at_start))
    assert [type(error) for error in got] == [ConnectionError, ConnectionError]
    assert "worker 0 has no connection" in str(got[0])
    assert "worker_init_fn failed" in str(got[0].__cause__)
    assert len(str(got[1].__cause__)) == len(str(got[0].__cause__))


def test_a_sample_that_cannot_be_pickled_is_an_error() -> None:
    loader = DataLoader(Samples([(lambda: 1), 2]), num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    with pytest.raises(Exception, match=r"[Pp]ickle"):
        next(iterator)
    assert next(iterator).tolist() == [2]


def test_an_error_of_unknown_classes_arrives_as_text() -> None:
    Local = type("Local", (Exception,), {})
    error = decode_error(encode_error(Local("only here"), "It failed", 3))
    assert type(error) is RuntimeError
    assert "Local: only here" in str(error)


class Interrupted(Exception):
    """Raised by a signal handler."""


class Slow(Exception):
    """While the first one is unpickled, a signal arrives."""

    signals: ClassVar[list[Exception]] = []

    def __init__(self, text: str) -> None:
        super().__init__(text)
        if self.signals:
            raise self.signals.pop()

    def __reduce__(self) -> Any:
        return Slow, self.args


def test_an_exception_of_a_signal_handler_is_not_taken_for_one_of_unpickling() -> None:
    message = encode_error(Slow("no file"), "It failed", 3)
    Slow.signals.append(Interrupted())
    with pytest.raises(Interrupted):
        decode_error(message)
    assert type(decode_error(message)) is Slow


def test_an_error_from_another_cause_keeps_its_story() -> None:
    try:
        try:
            raise OSError("the disk")
        except OSError as disk:
            raise ValueError("the sample") from disk
    except ValueError as error:
        got = decode_error(encode_error(error, "It failed", 3))
    assert type(got) is ValueError
    assert "OSError: the disk" in str(got.__cause__)


def test_an_index_that_cannot_be_pickled_does_not_hide_the_error() -> None:
    error = decode_error(encode_error(KeyError("x"), "It failed", lambda: 0))
    assert type(error) is KeyError
    assert error.__cause__.sample_index is None  # type: ignore[union-attr]


def test_an_interrupt_without_workers_loses_no_sample() -> None:
    asked: collections.Counter[int] = collections.Counter()

    class Interrupted(Ints):
        def __getitem__(self, index: int) -> Any:
            asked[index] += 1
            if index == 3 and asked[3] == 1:
                raise KeyboardInterrupt
            return index

    loader = DataLoader(Interrupted(8), batch_size=2)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5], [6, 7]]


def test_a_debugger_can_stop_in_the_dataset() -> None:
    class Debugged(Ints):
        def __getitem__(self, index: int) -> Any:
            raise pdb.bdb.BdbQuit if index == 1 else TypeError("index 0")

    iterator = iter(DataLoader(Debugged(2)))
    with pytest.raises(TypeError):
        next(iterator)
    with pytest.raises(pdb.bdb.BdbQuit):
        next(iterator)
