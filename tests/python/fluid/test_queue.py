"""The blocking queue as Python sees it."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import DataLoader, errors
from headrace.fluid import core


def make_queue(
    capacity: int = 4, shapes: list[list[int]] | None = None, **options: object
) -> core.LoDTensorBlockingQueue:
    variable = fluid.global_scope().var("queue")
    return core.init_lod_tensor_blocking_queue(variable, capacity, shapes or [[-1, 2]], **options)


def test_a_queue_without_shapes_takes_what_the_program_will_declare() -> None:
    queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 2)
    assert queue.push([np.zeros((3, 2)), np.zeros(1, np.int64)])
    assert [np.asarray(tensor).dtype for tensor in queue.pop()] == [np.float64, np.int64]
    with pytest.raises(ValueError, match="at least one tensor"):
        queue.push([])
    with pytest.raises(ValueError, match="'queue': dtypes, lod_levels and need_check_feed need shapes"):
        core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 2, dtypes=[5])


def batch(value: float, rows: int = 1) -> list[np.ndarray]:
    return [np.full((rows, 2), value, np.float32)]


@pytest.mark.parametrize("lengths", [[1, 2], [2, 2]])
def test_a_ragged_batch_of_a_loader_keeps_its_sequences(lengths: list[int]) -> None:
    samples = [np.full((length, 2), length, np.float32) for length in lengths]
    (ragged,) = DataLoader(samples, batch_size=2, ragged="lod")
    queue = make_queue()
    queue.push([ragged])
    (got,) = queue.pop()
    assert got.recursive_sequence_lengths() == [lengths]
    np.testing.assert_array_equal(np.asarray(got), np.concatenate(samples))


def in_thread(function: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_first_in_first_out() -> None:
    queue = make_queue()
    for i in range(4):
        assert queue.push(batch(i))
    assert queue.size() == queue.capacity() == 4
    assert [np.asarray(queue.pop()[0])[0, 0] for _ in range(4)] == [0, 1, 2, 3]


def test_pushed_tensors_are_shared_and_arrays_are_copied() -> None:
    queue = make_queue()
    tensor = fluid.LoDTensor.from_numpy(np.zeros((1, 2), np.float32))
    array = np.zeros((1, 2), np.float32)
    queue.push([tensor])
    queue.push([array])
    assert np.shares_memory(np.asarray(queue.pop()[0]), np.asarray(tensor))
    assert not np.shares_memory(np.asarray(queue.pop()[0]), array)


def test_a_closed_queue_drains_and_then_ends() -> None:
    queue = make_queue()
    queue.push(batch(1))
    queue.close()
    assert queue.is_closed()
    with pytest.raises(core.QueueClosedError, match=r"push into the queue .* after its close\(\) or fail\(\).*reopen"):
        queue.push(batch(2))
    assert np.asarray(queue.pop()[0])[0, 0] == 1
    with pytest.raises(core.EOFException, match=r"There is no next data\."):
        queue.pop()


def test_an_old_epoch_can_do_nothing() -> None:
    queue = make_queue()
    old = queue.epoch
    queue.push(batch(1))
    assert queue.reopen() == queue.epoch == old + 1
    assert queue.size() == 0
    assert not queue.push(batch(2), old)
    assert not queue.close(old)
    assert not queue.fail(ValueError(), old)
    assert not queue.is_closed()
    assert queue.push(batch(3), queue.epoch)


def test_a_failed_queue_raises_the_very_exception_after_what_came_before() -> None:
    queue = make_queue()
    error = LookupError("mine")
    queue.push(batch(1))
    assert queue.fail(error)
    assert not queue.fail(ValueError("too late"))
    queue.close()
    queue.pop()
    with pytest.raises(LookupError, match="mine") as caught:
        queue.pop()
    assert caught.value is error


class TakesTwo(ValueError):
    """Of which ``args`` do not say how it was made."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(left + right)
        self.left = left


class Reduces(TakesTwo):
    """One that says how it is made."""

    def __reduce__(self) -> tuple[type[Reduces], tuple[str, str]]:
        return Reduces, (self.left, self.right)

    def __init__(self, left: str, right: str) -> None:
        super().__init__(left, right)
        self.right = right


def error_with_all() -> TakesTwo:
    """One with a traceback, a cause and a note."""
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise TakesTwo("a", "b") from cause
    except TakesTwo as error:
        error.__notes__ = ["a note"]  # type: ignore[attr-defined]
        return error


@pytest.mark.parametrize(
    "error",
    [
        error_with_all(),
        Reduces("a", "b"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        OSError(2, "gone", "a/file"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_queue_raises_as_often_as_it_is_asked(error: BaseException) -> None:
    queue = make_queue()
    queue.fail(error)
    traceback = error.__traceback__
    for _ in range(3):
        with pytest.raises(type(error)) as caught:
            queue.pop()
        assert type(caught.value) is type(error)
        assert str(caught.value) == str(error)
        assert caught.value.__dict__ == error.__dict__
        assert caught.value.__cause__ is error.__cause__
        frames = []
        while (entry := caught.value.__traceback__) is not None:
            caught.value.__traceback__ = entry.tb_next
            frames.append(entry)
        assert traceback is None or traceback in frames


class Local:
    """What a caller has among its variables."""


def test_a_failed_queue_keeps_nothing_of_those_that_it_told() -> None:
    queue = make_queue()
    queue.fail(LookupError("mine"))

    def pop() -> weakref.ref[Local]:
        mine = Local()
        with contextlib.suppress(LookupError):
            queue.pop()
        return weakref.ref(mine)

    gc.disable()
    try:
        assert [pop()() for _ in range(3)] == [None] * 3
    finally:
        gc.enable()


def test_a_queue_fails_with_exceptions_only() -> None:
    with pytest.raises(TypeError, match="str"):
        make_queue().fail("not an exception")


def test_a_killed_queue_stays_so() -> None:
    queue = make_queue()
    queue.push(batch(1))
    queue.kill()
    with pytest.raises(core.QueueClosedError):
        queue.pop()
    with pytest.raises(RuntimeError):
        queue.reopen()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ([np.zeros((1, 3), np.float32)], ValueError),
        ([np.zeros(2, np.float32)], ValueError),
        ([np.zeros((1, 2), np.float64)], TypeError),
        ([], ValueError),
        ([np.zeros((1, 2), np.float32)] * 2, ValueError),
        (np.zeros((1, 2), np.float32), TypeError),
        ([fluid.LoDTensor()], ValueError),
        ([None], TypeError),
    ],
    ids=["shape", "rank", "dtype", "none", "count", "no list", "empty tensor", "no array"],
)
def test_what_does_not_fit_is_refused_and_leaves_the_queue_as_it_was(wrong: object, error: type[Exception]) -> None:
    queue = make_queue(dtypes=[int(core.VarType.FP32)], names=["image"])
    with pytest.raises(error) as caught:
        queue.push(wrong)
    assert isinstance(caught.value, errors.HeadraceError)
    assert queue.size() == 0
    assert queue.push(batch(1))


@pytest.mark.parametrize("capacity", [0, -1])
def test_the_capacity_is_positive(capacity: int) -> None:
    with pytest.raises(ValueError, match=str(capacity)):
        make_queue(capacity)


def test_a_variable_holds_one_queue() -> None:
    make_queue()
    with pytest.raises(ValueError, match="queue"):
        make_queue()


def test_waits_can_be_bounded() -> None:
    queue = make_queue(1)
    with pytest.raises(TimeoutError, match="empty"):
        queue.pop(timeout=0.01)
    queue.push(batch(1))
    with pytest.raises(TimeoutError, match="full"):
        queue.push(batch(2), timeout=0.01)
    assert queue.size() == 1


@pytest.mark.parametrize("end", ["close", "kill", "reopen"])
def test_an_end_wakes_a_blocked_push(end: str) -> None:
    queue = make_queue(1)
    queue.push(batch(1))
    taken: list[bool] = []
    thread = in_thread(lambda: taken.append(queue.push(batch(2))))
    time.sleep(0.05)
    getattr(queue, end)()
    thread.join(100)
    assert taken == [False]


def progress_during(blocked: Callable[[], object]) -> int:
    """How far another thread counts while this one is in ``blocked``."""
    stop = threading.Event()
    count = 0

    def work() -> None:
        nonlocal count
        while not stop.is_set():
            count += 1

    thread = in_thread(work)
    time.sleep(0.02)
    before = count
    blocked()
    counted = count - before
    stop.set()
    thread.join(100)
    return counted


def test_pop_and_push_wait_without_the_gil() -> None:
    queue = make_queue(1)

    def pop() -> None:
        with pytest.raises(TimeoutError):
            queue.pop(timeout=0.3)

    def push() -> None:
        with pytest.raises(TimeoutError):
            queue.push(batch(2), timeout=0.3)

    assert progress_during(pop) > 1000
    queue.push(batch(1))
    assert progress_during(push) > 1000


@pytest.mark.parametrize("method", ["push", "pop"])
def test_ctrl_c_ends_a_wait(method: str) -> None:
    queue = make_queue(1)
    if method == "push":
        queue.push(batch(1))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        queue.push(batch(2)) if method == "push" else queue.pop()
    timer.join()
    assert queue.size() == (1 if method == "push" else 0)


def test_many_producers_and_consumers_lose_nothing() -> None:
    queue = make_queue(3)
    got: list[float] = []
    lock = threading.Lock()

    def produce(start: int) -> None:
        for i in range(100):
            assert queue.push(batch(start + i))

    def consume() -> None:
        while True:
            try:
                value = float(np.asarray(queue.pop()[0])[0, 0])
            except core.EOFException:
                return
            with lock:
                got.append(value)

    producers = [in_thread(lambda i=i: produce(100 * i)) for i in range(4)]
    consumers = [in_thread(consume) for _ in range(3)]
    for thread in producers:
        thread.join(100)
    queue.close()
    for thread in consumers:
        thread.join(100)
    assert sorted(got) == list(range(400))


def test_statistics_count_what_went_through() -> None:
    queue = make_queue()
    queue.push(batch(1))
    queue.push(batch(2))
    queue.pop()
    stats = queue.stats()
    assert (stats["sent"], stats["received"], stats["depth"], stats["capacity"]) == (2, 1, 1, 4)


def test_memory_owned_by_python_may_be_dropped_by_any_thread() -> None:
    queue = make_queue()
    for i in range(200):
        queue.push([fluid.LoDTensor.from_numpy(np.full((1, 2), i, np.float32), copy=False)])
        in_thread(queue.reopen).join(100)
    assert queue.size() == 0
