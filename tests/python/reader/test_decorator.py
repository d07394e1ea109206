"""Readers made of readers: what comes, in which order, and that nothing is left running."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace import errors, reader
from headrace.fluid import io
from headrace.reader import _readahead


def numbers(count: int) -> Any:
    return lambda: iter(range(count))


def failing(count: int) -> Any:
    def read() -> Iterator[int]:
        yield from range(count)
        raise ZeroDivisionError("in the reader")

    return read


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    threads = [thread for thread in threading.enumerate() if thread.name == "headrace reader"]
    for thread in threads:
        thread.join(100)
    assert not [thread for thread in threads if thread.is_alive()]


def read_until_error(samples: Any) -> list[Any]:
    seen: list[Any] = []
    with pytest.raises(ZeroDivisionError, match="in the"):
        for sample in samples:
            seen.append(sample)
    return seen


def test_readers_can_be_read_again() -> None:
    readers = [
        reader.batch(numbers(5), 2),
        reader.shuffle(numbers(5), 3),
        reader.map_readers(lambda x: 2 * x, numbers(5)),
        reader.chain(numbers(2), numbers(3)),
        reader.compose(numbers(2), numbers(2)),
        reader.firstn(numbers(5), 3),
        reader.cache(numbers(3)),
        reader.buffered(numbers(5), 2),
        reader.xmap_readers(lambda x: x, numbers(5), 2, 2, order=True),
        reader.Fake()(numbers(3), 4),
    ]
    for each in readers:
        assert len(list(each())) == len(list(each())) > 0


def test_what_they_give() -> None:
    assert list(reader.map_readers(lambda a, b: a + b, numbers(3), numbers(5))()) == [0, 2, 4]
    assert list(reader.chain(numbers(2), numbers(3))()) == [0, 1, 0, 1, 2]
    assert list(reader.firstn(itertools.count, 3)()) == [0, 1, 2]
    assert list(reader.firstn(numbers(2), 5)()) == [0, 1]
    pairs = reader.compose(numbers(2), numbers(2))
    assert list(reader.compose(pairs, numbers(2))()) == [(0, 0, 0), (1, 1, 1)]
    assert list(reader.Fake()(numbers(3), 3)()) == [0, 0, 0]
    random.seed(1)
    shuffled = list(reader.shuffle(numbers(10), 5)())
    assert sorted(shuffled[:5]) == list(range(5))
    assert shuffled != list(range(10))
    assert sorted(shuffled) == list(range(10))


def test_compose_that_does_not_align() -> None:
    with pytest.raises(reader.ComposeNotAligned, match="reader 0 has ended"):
        list(reader.compose(numbers(2), numbers(3))())
    with pytest.raises(ValueError, match="reader 1 has ended"):
        list(reader.compose(numbers(3), numbers(2))())
    assert list(reader.compose(numbers(2), numbers(3), check_alignment=False)()) == [(0, 0), (1, 1)]
    assert io.ComposeNotAligned is reader.ComposeNotAligned


def test_a_cache_reads_once_and_again_after_an_error() -> None:
    calls = []

    def read() -> Iterator[int]:
        calls.append(1)
        yield 1
        if len(calls) == 1:
            raise ZeroDivisionError("in the reader")

    cached = reader.cache(read)
    assert read_until_error(cached() for _ in range(1)) == []
    assert [list(cached()) for _ in range(3)] == [[1]] * 3
    assert len(calls) == 2


def test_buffered_reads_ahead_and_no_further() -> None:
    taken: list[int] = []

    def read() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    samples = reader.buffered(read, 3)()
    assert next(samples) == 0
    deadline = time.monotonic() + 100
    while len(taken) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.05)
    assert len(taken) <= 1 + 3 + 1  # what was given, the queue, and the one that waits for room
    assert list(samples) == list(range(1, 100))


def test_errors_come_after_the_samples_before_them() -> None:
    assert read_until_error(reader.buffered(failing(5), 2)()) == list(range(5))
    assert read_until_error(reader.xmap_readers(lambda x: x, failing(5), 1, 2, order=True)()) == list(range(5))


def test_an_error_of_a_mapper_comes_in_place_of_its_sample() -> None:
    samples = reader.xmap_readers(lambda x: 12 // (3 - x), numbers(9), 3, 2, order=True)()
    seen: list[int] = []
    with pytest.raises(ZeroDivisionError, match="division"):
        for sample in samples:
            seen.append(sample)
    assert seen == [4, 6, 12]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_error_in_threads_comes_after_all_samples_before_it(threads: int) -> None:
    barrier = threading.Barrier(threads)

    def mapper(x: int) -> int:
        """Sample 0 is the last to be ready: the other threads have ended by then."""
        if x < threads:
            barrier.wait(100)
        others = {thread for thread in threading.enumerate() if thread.name == "headrace reader"}
        for thread in others - {threading.current_thread()} if x == 0 else ():
            thread.join(100)
        if x == 5:
            raise ZeroDivisionError("in the mapper")
        return x

    assert read_until_error(reader.xmap_readers(mapper, numbers(8), threads, 8, order=True)()) == list(range(5))
    assert read_until_error(reader.xmap_readers(mapper, failing(5), threads, 8, order=True)()) == list(range(5))
    assert sorted(read_until_error(reader.xmap_readers(mapper, failing(5), threads, 8)())) == list(range(5))


@pytest.mark.parametrize("order", [False, True])
def test_a_mapper_that_ends_the_program_is_not_waited_for(order: bool) -> None:
    def mapper(x: int) -> int:
        if x == 5:
            raise SystemExit("enough")
        return x

    with pytest.raises(SystemExit, match="enough"):
        for _ in reader.xmap_readers(mapper, itertools.count, 3, 4, order)():
            pass


def test_ordered_samples_are_not_read_ahead_without_bound_while_one_is_slow() -> None:
    too_far = threading.Event()

    def read() -> Iterator[int]:
        for i in itertools.count():
            if i == 4 + 2 + 4 + 1:  # those that threads have taken, the queue, and the one that waits for room
                too_far.set()
            yield i

    def mapper(x: int) -> bool:
        return x == 0 and too_far.wait(0.2)

    samples = reader.xmap_readers(mapper, read, 2, 4, order=True)()
    went_too_far = next(samples)
    samples.close()  # type: ignore[attr-defined]
    assert not went_too_far


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_xmap_maps_each_sample_once(threads: int, order: bool) -> None:
    def mapper(x: int) -> int:
        time.sleep(0.002 if x % 7 == 0 else 0)
        return x * x

    got = list(reader.xmap_readers(mapper, numbers(60), threads, 4, order)())
    assert (got if order else sorted(got)) == [x * x for x in range(60)]


def test_xmap_runs_its_mapper_in_several_threads() -> None:
    barrier = threading.Barrier(3)
    got = list(reader.xmap_readers(lambda x: barrier.wait(100) * 0 + x, numbers(9), 3, 9, order=True)())
    assert got == list(range(9))


@pytest.mark.parametrize("order", [False, True])
def test_a_reader_that_is_left_ends_its_threads(order: bool) -> None:
    for samples in (
        reader.buffered(itertools.count, 2)(),
        reader.xmap_readers(lambda x: x, itertools.count, 2, 2, order)(),
    ):
        next(samples)
        samples.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("kind", ["mapper", "reader", "buffered"])
@pytest.mark.parametrize("leave", ["error", "break"])
def test_leaving_does_not_wait_for_a_thread_that_is_stuck(kind: str, order: bool, leave: str) -> None:
    answer, asked = threading.Event(), threading.Event()

    def ask(x: int) -> int:
        if x == 1:
            asked.set()
            answer.wait()
        return x

    def read() -> Iterator[int]:
        yield from map(ask, range(9))

    def train() -> None:
        for _ in sources[kind]():
            asked.wait(100)
            if leave == "error":
                raise ZeroDivisionError("in the loop")
            break

    sources: dict[str, Any] = {
        "mapper": reader.xmap_readers(ask, numbers(9), 2, 4, order),
        "reader": reader.xmap_readers(lambda x: x, read, 2, 4, order),
        "buffered": reader.buffered(read, 3),
    }
    # What hangs here would hang for ever.
    timer = threading.Timer(100, answer.set)
    timer.start()
    try:
        with pytest.raises(ZeroDivisionError, match="in the loop") if leave == "error" else contextlib.nullcontext():
            train()
        assert asked.is_set()
        assert not answer.is_set(), "it waited for the thread"
    finally:
        timer.cancel()
        answer.set()


@pytest.mark.parametrize("kind", ["mapper", "reader", "buffered"])
def test_a_pass_begins_when_the_threads_of_the_one_before_have_stopped(kind: str) -> None:
    inside, most = [0], [0]

    def slow(x: int) -> int:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.5)
        inside[0] -= 1
        return x

    sources: dict[str, Any] = {
        "mapper": reader.xmap_readers(slow, numbers(3), 1, 2),
        "reader": reader.xmap_readers(lambda x: x, lambda: map(slow, range(3)), 1, 2),
        "buffered": reader.buffered(lambda: map(slow, range(3)), 2),
    }
    for _ in sources[kind]():
        break
    assert list(sources[kind]()) == [0, 1, 2]
    assert most == [1]


@pytest.mark.parametrize("kind", ["mapper", "reader", "buffered"])
def test_a_pass_begins_with_a_warning_beside_a_thread_that_does_not_return(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_readahead, "_PATIENCE", 0.2)
    answer, passes = threading.Event(), itertools.count()

    def ask(x: int) -> int:
        if x == 1 and next(passes) == 0:
            answer.wait(60)
        return x

    def ask_for_each() -> Iterator[int]:
        return map(ask, range(3))

    sources: dict[str, Any] = {
        "mapper": reader.xmap_readers(ask, numbers(3), 1, 2),
        "reader": reader.xmap_readers(lambda x: x, ask_for_each, 1, 2),
        "buffered": reader.buffered(ask_for_each, 2),
    }
    for _ in sources[kind]():
        break
    try:
        with pytest.warns(RuntimeWarning, match=r"\bask(_for_each)?\b.* has not returned for") as warned:
            assert list(sources[kind]()) == [0, 1, 2]
        assert not answer.is_set(), "it waited for the thread"
        assert warned[0].filename == __file__
        assert list(sources[kind]()) == [0, 1, 2]  # and does not wait again
    finally:
        answer.set()


def test_two_passes_at_once_do_not_wait_for_each_other() -> None:
    for source in reader.buffered(numbers(9), 2), reader.xmap_readers(lambda x: x, numbers(9), 1, 2):
        assert list(zip(source(), source())) == [(x, x) for x in range(9)]


def test_a_program_ends_with_its_own_error_although_a_mapper_is_stuck() -> None:
    script = """
import threading
from headrace import reader

def mapper(sample):
    if sample == 3:
        threading.Event().wait()
    return sample

for sample in reader.xmap_readers(mapper, lambda: iter(range(10)), 2, 4)():
    raise ValueError("a mistake in the training loop")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stderr.endswith("ValueError: a mistake in the training loop\n")


def test_processes_read_several_readers_at_once() -> None:
    def rows(first: int) -> Any:
        def read() -> Iterator[Any]:
            for i in range(first, first + 4):
                yield np.full(3, i, np.float32), i, os.getpid()

        return read

    samples = list(reader.multiprocess_reader([rows(0), rows(10), rows(20)], queue_size=4)())
    assert [int(number) for _, number, _ in samples] == [0, 10, 20, 1, 11, 21, 2, 12, 22, 3, 13, 23]
    assert all((row == int(number)).all() for row, number, _ in samples)
    processes = {int(pid) for _, _, pid in samples}
    assert len(processes) == 3
    assert os.getpid() not in processes


class Pair(NamedTuple):
    x: int
    y: Any


@dataclasses.dataclass
class Labelled:
    image: Any
    label: int


SHARED = np.arange(4.0)
SAMPLES: list[Any] = [
    *(1, True, None, 2.5, 1 + 2j, "text", b"bytes", bytearray(b"b"), 10**30, range(3)),
    *((), [], {}, (1, 2), [1, 2], ((1,), [2, (3,)]), {"a": (1,), 2: [3]}, {1, 2}, frozenset([1])),
    *(Pair(1, [2]), Labelled(SHARED, 2), collections.OrderedDict(a=(1,)), collections.Counter("aab")),
    *(np.float32(3), np.int64(4), np.str_("s"), np.array(5), np.zeros((0, 3)), np.array(["a", "bc"])),
    *(np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3).T, np.arange(3)[::-1], np.zeros(2, "i4,f4")),
    *((SHARED, 7), [SHARED, "x"], (SHARED, SHARED[1:]), {"image": SHARED, "label": (3,)}, (Pair(SHARED, 1),)),
]


def test_processes_give_samples_as_their_readers_do() -> None:
    def forwards() -> Iterator[Any]:
        return iter(SAMPLES)

    def backwards() -> Iterator[Any]:
        return reversed(SAMPLES)

    turns = [sample for pair in zip(SAMPLES, reversed(SAMPLES)) for sample in pair]
    for made, wanted in (
        (reader.multiprocess_reader([forwards]), forwards),
        (reader.multiprocess_reader([forwards, backwards]), lambda: iter(turns)),
        (reader.compose(reader.multiprocess_reader([forwards]), forwards), reader.compose(forwards, forwards)),
        (reader.batch(reader.multiprocess_reader([forwards]), 4), reader.batch(forwards, 4)),
    ):
        got, expected = list(made()), list(wanted())
        assert [type(sample) for sample in got] == [type(sample) for sample in expected]
        assert [repr(sample) for sample in got] == [repr(sample) for sample in expected]


def test_processes_pass_on_errors_and_may_be_left() -> None:
    read_until_error(reader.multiprocess_reader([failing(3)])())
    samples = reader.multiprocess_reader([itertools.count, itertools.count])()
    assert [int(next(samples)) for _ in range(4)] == [0, 0, 1, 1]
    samples.close()  # type: ignore[attr-defined]


def test_creators(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\ntwo ä\n", "utf-8")
    assert list(reader.creator.text_file(tmp_path / "lines")()) == ["one", "two ä"]
    rows = reader.creator.np_array([[1, 2], [3, 4]])
    assert [row.tolist() for row in rows()] == [row.tolist() for row in rows()] == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: reader.batch(numbers(1), 0), "batch_size has to be a positive number, got 0"),
        (lambda: reader.shuffle(numbers(1), 1.5), "buf_size has to be a positive number"),  # type: ignore[arg-type]
        (lambda: reader.buffered(numbers(1), 0), "size has to be a positive number"),
        (lambda: reader.firstn(numbers(1), -1), "n has to be a number of samples, got -1"),
        (lambda: reader.xmap_readers(abs, numbers(1), 0, 1), "process_num has to be a positive number"),
        (lambda: reader.xmap_readers(abs, numbers(1), 1, True), "buffer_size has to be a positive number"),
        (lambda: reader.multiprocess_reader([]), "needs a reader"),
        (lambda: reader.multiprocess_reader([numbers(1)], queue_size=0), "queue_size has to be a positive number"),
        (lambda: reader.Fake()(numbers(1), 0), "data_num has to be a positive number"),
        (lambda: list(reader.Fake()(numbers(0), 1)()), "has no first sample"),
        (lambda: reader.PipeReader(""), "command has to be a text"),
        (lambda: reader.PipeReader("true", file_type="zip"), "file_type has to be"),
        (lambda: reader.creator.np_array(3), "at least one dimension"),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda given: reader.batch(given, 2),
        lambda given: reader.shuffle(given, 2),
        lambda given: reader.map_readers(abs, numbers(2), given),
        lambda given: reader.chain(numbers(2), given),
        lambda given: reader.compose(numbers(2), given),
        lambda given: reader.firstn(given, 2),
        reader.cache,
        lambda given: reader.buffered(given, 2),
        lambda given: reader.xmap_readers(abs, given, 2, 2),
        lambda given: reader.multiprocess_reader([numbers(2), given]),
        lambda given: reader.Fake()(given, 2),
    ],
)
def test_a_generator_in_the_place_of_a_reader_is_refused(make: Any) -> None:
    with pytest.raises(errors.TypeMismatch, match=r"got generator: pass the function, without calling it$"):
        make(failing(1)())
    with pytest.raises(errors.TypeMismatch, match=r"a reader is a function that returns an iterable, got list$"):
        make([1, 2])


def test_threads_that_cannot_start_leave_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def fail_third(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_third)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(reader.xmap_readers(lambda sample: sample, numbers(100), 3, 2)())
    assert len(started) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda source: reader.buffered(source, 2),
        lambda source: reader.xmap_readers(lambda sample: sample, source, 2, 2),
        lambda source: reader.xmap_readers(lambda sample: sample, source, 2, 2, order=True),
        lambda source: reader.xmap_readers(lambda sample: 1 // 0, source, 2, 2),
        lambda source: reader.xmap_readers(lambda sample: 1 // 0, source, 2, 2, order=True),
        lambda source: reader.firstn(reader.buffered(source, 5), 1),
    ],
)
def test_an_error_keeps_nothing_open(make: Any) -> None:
    """Not until the garbage collector comes, either: it may be a file, or the memory of many samples."""
    is_open: list[bool] = []

    def endless() -> Iterator[int]:
        is_open.append(True)
        try:
            yield from itertools.count()
        finally:
            is_open.pop()

    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ZeroDivisionError):
            list(make(reader.map_readers(lambda *samples: samples, endless, failing(2)))())
        deadline = time.monotonic() + 20
        while is_open:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        gc.enable()
