"""A loader's batches are fed into a queue, and through it to a program."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Deadly, Everything, Ints, Memory, Raising, Random, Samples, Slow, Vectors

import headrace.fluid as fluid
from headrace import errors
from headrace.data import DataLoader
from headrace.fluid import core


def make_queue(capacity: int = 3, *shapes: list[int]) -> core.LoDTensorBlockingQueue:
    return core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), capacity, shapes or [[-1]])


def drain(queue: core.LoDTensorBlockingQueue) -> list[list[Any]]:
    """The values of each batch's first tensor, up to the end."""
    got = []
    while True:
        try:
            got.append(np.asarray(queue.pop(timeout=100)[0]).tolist())
        except core.EOFException:
            return got


def wait_until(condition: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("arguments", [{}, {"sampler": range(9, -1, -1)}, {"shuffle": True}], ids=str)
def test_an_epoch_is_that_of_iteration_and_ends(num_workers: int, arguments: dict[str, Any]) -> None:
    loader = DataLoader(Ints(10), batch_size=3, num_workers=num_workers, seed=1, **arguments)
    expected = [[batch.tolist() for batch in loader] for _ in range(2)]
    loader.set_epoch(0)
    queue = make_queue()
    for epoch in range(2):
        feed = loader._feed(queue)
        assert drain(queue) == expected[epoch]
        feed.stop()
        queue.reopen()


def test_each_record_has_its_generator() -> None:
    expected = [batch[1].tolist() for batch in DataLoader(Random(6), batch_size=2, seed=3)]
    queue = make_queue(3, [-1, 3], [-1])
    feed = DataLoader(Random(6), batch_size=2, seed=3, num_workers=2)._feed(queue)
    assert [np.asarray(queue.pop(timeout=100)[1]).tolist() for _ in range(3)] == expected
    feed.stop()


def test_tensors_are_views_of_the_slots() -> None:
    loader = DataLoader(Ints(20), batch_size=2, num_workers=1, prefetch_factor=2)
    queue = make_queue(capacity=2)
    feed = loader._feed(queue)
    wait_until(lambda: queue.size() == 2)
    batch = queue.pop()
    wait_until(lambda: queue.size() == 2)
    held = loader.stats()["held_slots"]
    assert 3 <= held <= 4  # the current one, two in the queue, and perhaps one that the feeder has taken
    assert np.asarray(batch[0]).tolist() == [0, 1]
    feed.stop()
    del batch
    queue.reopen()
    gc.collect()
    assert loader.stats()["held_slots"] == 0


def test_tensors_that_are_kept_never_change() -> None:
    loader = DataLoader(Ints(1000), batch_size=2, num_workers=2, prefetch_factor=2)
    queue = make_queue()
    feed = loader._feed(queue)
    kept = [queue.pop(timeout=100)[0] for _ in range(500)]
    feed.stop()
    assert [np.asarray(tensor).tolist() for tensor in kept] == [[i, i + 1] for i in range(0, 1000, 2)]


def test_nothing_of_python_runs_between_worker_and_program() -> None:
    """While the main thread holds the interpreter's lock, the queue fills, and refills as C++ takes from it.

    How long that takes depends on the machine: the lock is held longer each time, until that is enough.
    """
    main, startup = fluid.Program(), fluid.Program()
    buffers = 8
    with fluid.program_guard(main, startup):
        reader = fluid.layers.py_reader(4, [[-1, 3, 4], [-1]], ["float32", "int64"], use_double_buffer=False)
        buffered = reader
        for _ in range(buffers):  # each has a C++ thread that takes from the reader below
            buffered = fluid.layers.double_buffer(buffered)
        _, label = fluid.layers.read_file(buffered)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    reader.decorate_loader(DataLoader(Vectors(200), batch_size=2, num_workers=2))
    hold_the_lock = ctypes.PyDLL(None).usleep
    queue = reader.queue
    fills, refills = [], []
    for seconds in (0.1, 0.3, 1, 3, 9):
        before = queue.stats()
        reader.start()
        hold_the_lock(int(seconds * 1e6))
        after = queue.stats()
        fills.append(after["sent"] - before["sent"] == after["depth"] == 4)
        labels = [executor.run(main, fetch_list=[label])[0].tolist()]
        hold_the_lock(int(seconds * 1e6))
        after = queue.stats()
        refills.append(after["depth"] == 4 and after["received"] - before["received"] > 2 * buffers)
        with pytest.raises(core.EOFException):
            while True:
                labels.append(executor.run(main, fetch_list=[label])[0].tolist())
        assert labels == [[i, i + 1] for i in range(0, 200, 2)]
        reader.reset()
        if any(fills) and any(refills):
            break
    assert any(fills)
    assert any(refills)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_dataset_follows_the_batches_before_it(num_workers: int) -> None:
    loader = DataLoader(Raising(10, 5), batch_size=2, num_workers=num_workers)
    queue = make_queue()
    for _ in range(2):
        feed = loader._feed(queue)
        assert [np.asarray(queue.pop(timeout=100)[0]).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(KeyError, match="no sample 5") as caught:
            queue.pop(timeout=100)
        if num_workers:
            assert caught.value.__cause__.sample_index == 5  # type: ignore[union-attr]
        feed.stop()
        queue.reopen()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("prefetch", [1, 8])
def test_an_error_of_the_sampler_follows_the_batches_before_it(prefetch: int, num_workers: int) -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            yield from range(10)
            raise LookupError("no more indices")

    queue = make_queue()
    arguments: dict[str, Any] = {"prefetch_factor": prefetch} if num_workers else {}
    loader = DataLoader(Ints(20), batch_size=2, sampler=Broken(), num_workers=num_workers, **arguments)
    for _ in range(2):
        feed = loader._feed(queue)
        got = [np.asarray(queue.pop(timeout=100)[0]).tolist() for _ in range(5)]
        assert got == [[i, i + 1] for i in range(0, 10, 2)]
        with pytest.raises(LookupError, match="no more indices"):
            queue.pop(timeout=100)
        feed.stop()
        queue.reopen()


@pytest.mark.parametrize(
    ("samples", "words"), [(["x"], "element 0"), ([(1, np.zeros(2, "M8[s]"))], "element 1"), ([1j], "element 0")]
)
def test_what_is_no_tensor_is_a_clear_error(samples: list[Any], words: str) -> None:
    queue = make_queue()
    feed = DataLoader(Samples(samples), num_workers=1)._feed(queue)
    with pytest.raises(TypeError, match=words):
        queue.pop(timeout=100)
    feed.stop()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (tuple(np.zeros((2000, 1))), "at most 1,024 arrays, .*; this one has 2,000 arrays, "),
        (np.zeros([1] * 13), "of 12 dimensions each.*of up to 14 dimensions"),
        ({"x" * 100_000: 0}, "96 KiB of keys.*and 97 KiB"),
    ],
    ids=["arrays", "dimensions", "keys"],
)
def test_what_no_slot_has_room_for_is_a_clear_error(sample: Any, words: str, num_workers: int) -> None:
    loader = DataLoader(Samples([sample]), num_workers=num_workers)
    queue = make_queue()
    feed = loader._feed(queue)
    with pytest.raises(ValueError, match=words):
        queue.pop(timeout=100)
    feed.stop()
    queue.reopen()  # else it keeps the error
    assert len(list(loader)) == 1  # of what is iterated over, each batch arrives


def test_big_endian_arrays_are_not_taken_for_native_ones() -> None:
    queue = make_queue()
    feed = DataLoader(Samples([np.ones((), ">i8")]), num_workers=1)._feed(queue)
    with pytest.raises(TypeError, match="element 0"):
        queue.pop(timeout=100)
    feed.stop()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stopping_in_the_middle_and_starting_anew(num_workers: int) -> None:
    loader = DataLoader(Ints(1000), batch_size=2, num_workers=num_workers)
    queue = make_queue()
    for _ in range(5):
        feed = loader._feed(queue)
        assert np.asarray(queue.pop(timeout=100)[0]).tolist() == [0, 1]
        queue.reopen()
        feed.stop()
        feed.stop()
    assert queue.size() == 0
    assert len(list(loader)) == 500


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loader_may_be_iterated_over_while_it_feeds(num_workers: int) -> None:
    loader = DataLoader(Ints(100), batch_size=2, num_workers=num_workers)
    queue = make_queue()
    feed = loader._feed(queue)
    queue.pop(timeout=100)
    assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 100, 2)]
    assert len(drain(queue)) == 49
    feed.stop()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dropped_feed_stops(num_workers: int) -> None:
    before = set(os.listdir("/proc/self/task"))
    loader = DataLoader(Ints(100), batch_size=2, num_workers=num_workers)
    queue = make_queue()
    feed = loader._feed(queue)
    queue.pop(timeout=100)
    assert set(os.listdir("/proc/self/task")) - before
    del feed
    gc.collect()
    # One thread ends the workers if nobody iterates again.
    kept = {str(thread.native_id) for thread in threading.enumerate() if thread.name == "headrace-idle"}
    wait_until(lambda: set(os.listdir("/proc/self/task")) <= before | kept)
    with pytest.raises(RuntimeError, match="the source that fed the queue no longer exists"):
        drain(queue)


def test_a_feed_whose_thread_cannot_start_leaves_the_loader_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loader = DataLoader(Ints(100), batch_size=2)
    queue = make_queue()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(errors.ResourceExhausted, match="cannot start the thread headrace-feed"):
            loader._feed(queue)
    with pytest.raises(RuntimeError, match="the feeding could not start: cannot start the thread"):
        drain(queue)
    queue = make_queue()
    feed = loader._feed(queue)
    assert len(drain(queue)) == 50
    feed.stop()


def test_shutting_down_while_feeding_ends_the_pass() -> None:
    for num_workers in (0, 1):
        loader = DataLoader(Ints(100), batch_size=2, num_workers=num_workers)
        queue = make_queue()
        feed = loader._feed(queue)
        queue.pop(timeout=100)
        loader.shutdown()
        with pytest.raises(RuntimeError, match="shut down while it fed the queue"):
            drain(queue)
        feed.stop()


def test_a_pass_that_is_over_is_not_disturbed_by_what_the_loader_does_next() -> None:
    loader = DataLoader(Ints(6), batch_size=2, num_workers=1)
    queue = make_queue()
    feed = loader._feed(queue)
    wait_until(queue.is_closed)
    assert len(list(loader)) == 3
    loader.shutdown()
    del feed
    gc.collect()
    assert drain(queue) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_that_die_are_replaced(context: str, tmp_path: Path) -> None:
    dataset = Deadly(40, 3, 21, memory=str(tmp_path))
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=context)
    queue = make_queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        feed = loader._feed(queue)
        assert drain(queue) == [list(range(i, i + 4)) for i in range(0, 40, 4)]
    feed.stop()


def test_a_sample_that_always_kills_its_worker_ends_the_pass() -> None:
    loader = DataLoader(Deadly(10, 5), batch_size=2, num_workers=2)
    queue = make_queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        feed = loader._feed(queue)
        with pytest.raises(RuntimeError, match="the sample with index 5 died; the last one was killed by SIGKILL"):
            drain(queue)
    feed.stop()
    queue.reopen()  # drops the error, and with it the variables of this function


def test_a_timeout_ends_the_pass() -> None:
    queue = make_queue()
    feed = DataLoader(Slow(4, 5.0, 2), num_workers=1, timeout=0.2)._feed(queue)
    with pytest.raises(TimeoutError, match=r"0\.2 s"):
        drain(queue)
    feed.stop()


@pytest.mark.parametrize(
    ("shape", "dtype", "use", "error", "words"),
    [
        ([-1, 8], "float32", lambda x: x + fluid.layers.fill_constant([8], "float32", 1), TypeError, "float32"),
        ([-1, 9], "uint8", lambda x: fluid.layers.reshape(x, [-1, 3]), ValueError, "8"),
    ],
)
def test_a_batch_that_an_operator_cannot_take_is_an_error_that_names_the_variable(
    shape: list[int], dtype: str, use: Callable[[Any], Any], error: type[Exception], words: str
) -> None:
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        reader = fluid.layers.py_reader(4, [shape], [dtype], use_double_buffer=False)
        out = fluid.layers.read_file(reader)
        use(out)
    executor = fluid.Executor(fluid.CPUPlace())
    executor.run(startup)
    reader.decorate_loader(DataLoader(Memory(4, 8), num_workers=1))
    reader.start()
    with pytest.raises(error, match=f"(?s){out.name}.*{words}"):
        executor.run(main)
    reader.reset()


def test_a_sample_with_objects_can_still_be_iterated() -> None:
    loader = DataLoader(Everything(4), batch_size=2, num_workers=1)
    queue = make_queue()
    feed = loader._feed(queue)
    with pytest.raises(TypeError):
        queue.pop(timeout=100)
    feed.stop()
    assert len(list(loader)) == 2


def test_a_forked_child_may_drop_a_feed_that_is_running() -> None:
    loader = DataLoader(Ints(1000), batch_size=2, num_workers=1)
    queue = make_queue()
    feed = loader._feed(queue)
    queue.pop(timeout=100)
    pid = os.fork()
    if pid == 0:
        try:
            feed.stop()
            del feed
            gc.collect()
            code = 0 if len(list(loader)) == 500 else 1
            loader.shutdown()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(drain(queue)) == 499
    feed.stop()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_program_may_end_while_it_feeds(num_workers: int) -> None:
    script = f"""
import time
import headrace.fluid as fluid
from headrace.fluid import core
from headrace.data import DataLoader
from loader_datasets import Slow
queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 2, [[-1]])
loader = DataLoader(Slow(1000, 0.01), num_workers={num_workers})
feed = loader._feed(queue)
queue.pop()
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


class Box(dict):  # type: ignore[type-arg]
    """A container that is no dict of Python's own."""


def transposed(samples: Any) -> Any:
    array = np.array(samples, np.float32).T  # in Fortran's order
    return array, np.arange(2 * len(samples))[::2].reshape(-1, 1)


def shared(samples: Any) -> Any:
    array = np.array(samples, np.float32)
    return Box(all=array.T, first=array[:, :1].astype(np.int64))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate", [transposed, shared])
def test_whatever_strides_and_containers_a_collate_function_gives(collate: Any, num_workers: int) -> None:
    rows = [[float(i), float(i + 1)] for i in range(6)]
    loader = DataLoader(rows, 3, collate_fn=collate, num_workers=num_workers)
    expected = [collate(rows[:3]), collate(rows[3:])]
    for _ in range(2):
        queue = core.init_lod_tensor_blocking_queue(
            fluid.Scope().var("queue"), 2, [[-1, 3], [-1, 1]], dtypes=[int(core.VarType.FP32), int(core.VarType.INT64)]
        )
        feed = loader._feed(queue)
        for batch in expected:
            parts = batch.values() if isinstance(batch, dict) else batch
            for got, want in zip(queue.pop(timeout=100), parts):
                np.testing.assert_array_equal(np.asarray(got), want)
        with pytest.raises(core.EOFException):
            queue.pop(timeout=100)
        feed.stop()
        # The same loader, iterated over: as the function has given them.
        (first, _) = loader
        arrays = list(first.values()) if isinstance(first, dict) else list(first)
        assert not arrays[0].flags.c_contiguous
        assert type(first) is type(expected[0])
