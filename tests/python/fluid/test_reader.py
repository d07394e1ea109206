"""Loaders that feed programs from generators: iterated over, or read by the program."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import DataLoader, errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable


def samples() -> Iterator[tuple[Any, int]]:
    for i in range(7):
        yield np.full(3, i, np.float32), i


def sample_lists() -> Iterator[list[Any]]:
    yield from fluid.io.batch(samples, 2)()


def batches() -> Iterator[tuple[Any, Any]]:
    for group in sample_lists():
        yield np.stack([x for x, _ in group]), np.array([[y] for _, y in group], np.int64)


def variables() -> list[Variable]:
    return [layers.data("x", [3]), layers.data("y", [1], dtype="int64")]


#: How a loader is given its generator, by Fluid's names, and the labels of each batch.
ALL = [[0, 1], [2, 3], [4, 5], [6]]
from_each_source = pytest.mark.parametrize(
    ("give", "expected"),
    [
        pytest.param(lambda loader: loader.set_sample_generator(samples, batch_size=2), ALL[:3], id="sample"),
        pytest.param(lambda loader: loader.set_sample_generator(samples, 2, drop_last=False), ALL, id="all samples"),
        pytest.param(
            lambda loader: loader.set_sample_list_generator(sample_lists, places=fluid.cpu_places()),
            ALL,
            id="sample list",
        ),
        pytest.param(lambda loader: loader.set_batch_generator(batches), ALL, id="batch"),
        pytest.param(
            lambda loader: loader.set_loader(DataLoader(list(samples_for_loader()), 2)), ALL, id="headrace's loader"
        ),
    ],
)


def samples_for_loader() -> Iterator[tuple[Any, Any]]:
    for x, y in samples():
        yield x, np.array([y], np.int64)


@from_each_source
@pytest.mark.parametrize("return_list", [False, True])
def test_an_iterable_loader(give: Any, expected: Any, return_list: bool, exe: fluid.Executor) -> None:
    x, y = variables()
    total = layers.reduce_sum(x)
    loader = fluid.io.DataLoader.from_generator([x, y], capacity=2, return_list=return_list)
    assert give(loader) is loader
    for _ in range(2):
        seen = []
        for data in loader():
            if return_list:
                ((of_x, of_y),) = data
                data = {"x": of_x, "y": of_y}
            values = exe.run(feed=data, fetch_list=[total, y])
            seen.append(values[1].reshape(-1).tolist())
            assert values[0].reshape(-1)[0] == 3 * sum(seen[-1])
        assert seen == expected


@from_each_source
@pytest.mark.parametrize("use_double_buffer", [True, False])
def test_a_loader_that_the_program_reads(
    give: Any, expected: Any, use_double_buffer: bool, exe: fluid.Executor
) -> None:
    x, y = variables()
    loader = fluid.io.DataLoader.from_generator([x, y], 2, use_double_buffer, iterable=False)
    total = layers.reduce_sum(x)
    give(loader)
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        seen = []
        loader.start()
        with pytest.raises(fluid.core.EOFException):
            while True:
                values = exe.run(fetch_list=[total, y])
                seen.append(values[1].reshape(-1).tolist())
                assert values[0].reshape(-1)[0] == 3 * sum(seen[-1])
        loader.reset()
        assert seen == expected


@pytest.mark.parametrize("iterable", [True, False])
def test_a_loader_is_called_before_it_has_a_source(iterable: bool) -> None:
    loader = fluid.io.DataLoader.from_generator(list(variables()), 2, iterable=iterable)
    assert loader() is loader


@pytest.mark.parametrize("use_double_buffer", [True, False])
def test_what_persists_keeps_its_last_batch_at_the_end(use_double_buffer: bool, exe: fluid.Executor) -> None:
    x, y = variables()
    y.persistable = True
    loader = fluid.io.DataLoader.from_generator([x, y], 2, use_double_buffer, iterable=False)
    total = layers.reduce_sum(x)
    loader.set_batch_generator(batches)
    exe.run(fluid.default_startup_program())
    loader.start()
    with pytest.raises(fluid.core.EOFException):
        while True:
            exe.run(fetch_list=[total])
    assert np.array(fluid.global_scope().find_var("y").get_tensor()).reshape(-1).tolist() == ALL[-1]


@pytest.mark.parametrize("name", ["sample", "paddle", "sample_list", "tensor", "batch"])
def test_a_py_reader_of_io(name: str, exe: fluid.Executor) -> None:
    x, y = variables()
    reader = fluid.io.PyReader(feed_list=[x, y], capacity=4)
    if name == "sample":
        reader.decorate_sample_generator(samples, batch_size=2, drop_last=False, places=fluid.CPUPlace())
    elif name in ("paddle", "sample_list"):
        {"paddle": reader.decorate_paddle_reader, "sample_list": reader.decorate_sample_list_generator}[name](
            sample_lists, fluid.cpu_places()
        )
    else:
        {"tensor": reader.decorate_tensor_provider, "batch": reader.decorate_batch_generator}[name](batches)
    assert [exe.run(feed=data, fetch_list=[y])[0].reshape(-1).tolist() for data in reader()] == ALL
    assert [list(data[0]) for data in reader] == [["x", "y"]] * 4


def test_ragged_samples(exe: fluid.Executor) -> None:
    words = layers.data("words", [1], dtype="int64", lod_level=1)
    reader = fluid.io.PyReader([words], 2)
    reader.decorate_sample_list_generator(lambda: iter([[([1, 2],), ([3],)]]))
    (data,) = reader
    (value,) = exe.run(feed=data, fetch_list=[words], return_numpy=False)
    assert value.recursive_sequence_lengths() == [[2, 1]]
    assert np.array(value).reshape(-1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("iterable", [True, False])
def test_a_generators_exception_comes_after_the_batches_before_it(iterable: bool, exe: fluid.Executor) -> None:
    x, y = variables()
    failing = [True]

    def generate() -> Iterator[Any]:
        yield from list(batches())[:2]
        if failing[0]:
            raise ZeroDivisionError("in the generator")

    reader = fluid.io.PyReader([x, y], 2, iterable=iterable)
    reader.decorate_batch_generator(generate)
    exe.run(fluid.default_startup_program())

    def epoch() -> Iterator[Any]:
        if iterable:
            for data in reader():
                yield exe.run(feed=data, fetch_list=[y])[0]
            return
        reader.start()
        try:
            while True:
                yield exe.run(fetch_list=[y])[0]
        except fluid.core.EOFException:
            pass
        finally:
            reader.reset()

    for fails in (True, True, False):
        failing[0] = fails
        seen = []
        try:
            for labels in epoch():
                seen.append(labels.reshape(-1).tolist())
            assert not fails
        except ZeroDivisionError:
            assert fails
        assert seen == ALL[:2]


def endless() -> Iterator[Any]:
    while True:
        yield from batches()


def feeders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("headrace feeder of generator_loader")]


def test_an_iteration_that_is_left_leaves_nothing() -> None:
    reader = fluid.io.PyReader(variables(), 2)
    reader.decorate_batch_generator(endless)
    for _ in range(5):
        for number, _ in enumerate(reader()):
            if number == 3:
                break
    iterator = iter(reader)
    next(iterator)
    newer = iter(reader)
    next(newer)
    with pytest.raises(errors.FailedPrecondition, match="a new iteration of this loader has ended this one"):
        next(iterator)
    next(newer)
    assert len(feeders()) == 1
    del iterator, newer
    gc.collect()
    assert not feeders()
    next(iter(reader))
    kept = iter(reader)
    next(kept)
    del reader, kept
    gc.collect()
    deadline = time.monotonic() + 100
    while feeders() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not feeders()


class Stuck:
    """A generator that waits after its first batch, in the first pass; later ones have the batches 1 and 2."""

    def __init__(self) -> None:
        self.go_on, self.asked, self.running = threading.Event(), threading.Event(), threading.Semaphore(1)
        self.passes = 0

    def __call__(self) -> Iterator[list[np.ndarray]]:
        assert self.running.acquire(blocking=False), "two passes run the generator at once"
        try:
            self.passes += 1
            if self.passes == 1:
                yield [np.zeros((1, 1), np.float32)]
                self.asked.set()
                self.go_on.wait(60)
                yield [np.full((1, 1), 100, np.float32)]
            else:
                yield from ([np.full((1, 1), i, np.float32)] for i in (1, 2))
        finally:
            self.running.release()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    monkeypatch.setattr("headrace.fluid._feed_source._PATIENCE", 0.1)
    generator = Stuck()
    yield generator
    generator.go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("headrace feeder"):
            thread.join(100)


def values(batches: Any) -> list[float]:
    return [float(np.asarray(batch[0]["x"]).item()) for batch in batches]


def test_a_loop_over_batches_can_be_left_while_the_generator_waits(stuck: Stuck) -> None:
    loader = fluid.io.DataLoader.from_generator([layers.data("x", [1])], 2).set_batch_generator(stuck)

    def leave(at: Any) -> None:
        for _ in loader():
            assert stuck.asked.wait(60)
            raise ZeroDivisionError(at)

    warned = pytest.warns(RuntimeWarning, match="the loader of x: the generator has not returned for")
    with warned, pytest.raises(ZeroDivisionError, match="in the loop"):
        leave("in the loop")
    assert not stuck.go_on.is_set()

    timer = threading.Timer(0.3, stuck.go_on.set)
    timer.start()
    assert values(loader()) == [1, 2]  # after the timer: the generator runs once at a time
    assert stuck.go_on.is_set()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_iteration_may_end_with_its_loader() -> None:
    """As parts of a cycle, of which the loader goes first."""
    reader = fluid.io.PyReader(variables(), 2)
    reader.decorate_batch_generator(endless)
    reader.cycle = iter(reader)  # type: ignore[attr-defined]
    next(reader.cycle)  # type: ignore[attr-defined]
    del reader
    gc.collect()


def test_another_generator_need_not_wait_for_one_that_does_not_return(stuck: Stuck) -> None:
    loader = fluid.io.DataLoader.from_generator([layers.data("x", [1])], 2).set_batch_generator(stuck)
    iterator = iter(loader())
    next(iterator)
    assert stuck.asked.wait(60)
    with pytest.warns(RuntimeWarning, match="with another generator, at once"):
        del iterator
    loader.set_batch_generator(lambda: iter([[np.full((1, 1), 7, np.float32)]]))
    assert values(loader()) == [7]
    assert not stuck.go_on.is_set()


def test_a_reset_returns_while_the_generator_waits(stuck: Stuck, exe: fluid.Executor) -> None:
    reader = layers.py_reader(2, [(-1, 1)], ["float32"], name="stuck")
    out = layers.scale(layers.read_file(reader), 1.0)
    reader.decorate_batch_generator(stuck)
    exe.run(fluid.default_startup_program())
    reader.start()
    exe.run(fetch_list=[out])
    assert stuck.asked.wait(60)
    with pytest.warns(RuntimeWarning, match="py_reader 'stuck': the generator has not returned"):
        reader.reset()
    reader.reset()  # without waiting again
    with pytest.raises(errors.FailedPrecondition, match="was not started"):
        exe.run(fetch_list=[out])
    stuck.go_on.set()
    reader.start()
    assert [exe.run(fetch_list=[out])[0].item() for _ in range(2)] == [1, 2]
    with pytest.raises(fluid.core.EOFException):
        exe.run(fetch_list=[out])
    reader.reset()


def test_bad_input(exe: fluid.Executor) -> None:
    x, y = variables()
    with pytest.raises(errors.InvalidArgument, match="capacity, how many batches the queue holds"):
        fluid.io.PyReader([x, y])
    with pytest.raises(errors.InvalidArgument, match="capacity has to be a positive number of batches, got 0"):
        fluid.io.PyReader([x, y], 0)
    for feed_list in (None, [], x):
        with pytest.raises(errors.TypeMismatch, match="feed_list has to be a list of the variables"):
            fluid.io.PyReader(feed_list, 2)  # type: ignore[arg-type]
    with pytest.raises(errors.TypeMismatch, match="feed_list takes Variables, got str"):
        fluid.io.PyReader(["x"], 2)  # type: ignore[list-item]
    with pytest.raises(errors.Unimplemented, match=r"headrace.DataLoader with num_workers to set_loader"):
        fluid.io.DataLoader.from_generator([x, y], 2, use_multiprocess=True)
    with pytest.raises(errors.Unimplemented, match="from_generator"):
        fluid.io.DataLoader.from_dataset(None)
    reader = fluid.io.PyReader([x, y], 2)
    with pytest.raises(errors.FailedPrecondition, match="nothing to start"):
        iter(reader)
    for method in (reader.start, reader.reset):
        with pytest.raises(errors.FailedPrecondition, match="iterable=False"):
            method()
    with pytest.raises(errors.TypeMismatch, match="pass it uncalled"):
        reader.decorate_sample_generator(samples(), 2)  # type: ignore[arg-type]
    reader.decorate_batch_generator(lambda: iter([(np.zeros((2, 3)), np.zeros((2, 1), np.int64))]))
    with pytest.raises(errors.TypeMismatch, match=r"batch 0, variable 'x'.*float32, got float64"):
        list(reader())
    reader.decorate_batch_generator(lambda: iter([(np.zeros((2, 4), np.float32), np.zeros((2, 1), np.int64))]))
    hidden = layers.fc(x, 2)
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.InvalidArgument, match=r"'x' is declared as float32 \[-1, 3\], but .* \[2, 4\]"):
        exe.run(feed=next(iter(reader())), fetch_list=[hidden])
    with pytest.raises(errors.TypeMismatch, match="feed has to map names to values"):
        exe.run(feed=[{}, {}], fetch_list=[])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        ([[1.0, 2, 3]] * 2, [[4]] * 2),
        ([np.array([1.0, 2, 3])] * 2, [np.array([4], np.int32)] * 2),
        (([1, 2, 3],) * 2, ([True],) * 2),
    ],
)
def test_lists_in_a_batch_get_the_declared_dtype(given: Any) -> None:
    """NumPy makes float64 of them. Readers of images gather them in lists."""
    x, y = variables()
    reader = fluid.io.PyReader([x, y], 2)
    reader.decorate_batch_generator(lambda: iter([given]))
    (batch,) = [step[0] for step in reader()]
    assert [np.asarray(batch[name]).dtype for name in ("x", "y")] == [np.float32, np.int64]
    np.testing.assert_array_equal(batch["x"], np.array(given[0]))
    np.testing.assert_array_equal(batch["y"], np.array(given[1]))


def test_a_list_of_another_kind_than_declared_is_refused() -> None:
    x, y = variables()
    reader = fluid.io.PyReader([x, y], 2)
    reader.decorate_batch_generator(lambda: iter([([[1.0, 2, 3]] * 2, [[0.5]] * 2)]))
    with pytest.raises(errors.TypeMismatch, match=r"batch 0, variable 'y'.*int64, got float64"):
        list(reader())


@pytest.mark.parametrize("given", [[[300], [-1]], [np.array([2**40])] * 2])
def test_a_list_of_integers_that_the_declared_dtype_cannot_hold_keeps_its_own(given: Any) -> None:
    reader = fluid.io.PyReader([layers.data("small", [1], dtype="int8")], 2)
    reader.decorate_batch_generator(lambda: iter([[given]]))
    (batch,) = [step[0] for step in reader()]
    np.testing.assert_array_equal(batch["small"], np.array(given))


def test_a_loader_made_after_the_layers_is_refused() -> None:
    x, y = variables()
    layers.reduce_sum(x)
    with pytest.raises(errors.FailedPrecondition, match=r"'x' is used by the operator 'reduce_sum' already"):
        fluid.io.PyReader([x, y], 2, iterable=False)


def test_a_program_whose_loader_was_not_started(exe: fluid.Executor) -> None:
    x, y = variables()
    reader = fluid.io.PyReader([x, y], 2, iterable=False)
    reader.decorate_batch_generator(batches)
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.FailedPrecondition, match=r"was not started: call start\(\)"):
        exe.run(fetch_list=[y])
    with pytest.raises(errors.FailedPrecondition, match=r"call start\(\) and run that"):
        iter(reader)


def test_programs_that_share_parameters_have_loaders_of_their_own(exe: fluid.Executor) -> None:
    # As Fluid's programs build one that trains and one that tests, in guards of unique_name.
    programs = []
    for factor in (1.0, 2.0):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            feed_list = variables()
            loader = fluid.io.DataLoader.from_generator(feed_list, capacity=2, iterable=False)
            out = layers.reduce_sum(layers.scale(feed_list[0], factor))
        loader.set_batch_generator(batches)
        exe.run(startup)
        programs.append((main, loader, out))
    for _, loader, _ in programs:
        loader.start()
    sums = [exe.run(main, fetch_list=[out])[0].item() for _ in range(2) for main, _, out in programs]
    assert sums == [3, 6, 15, 30]
    for _, loader, _ in programs:
        loader.reset()


def test_a_model_trains_on_an_iterable_loader_as_on_feeds(exe: fluid.Executor) -> None:
    x, y = variables()
    loss = layers.reduce_mean(layers.square(layers.fc(x, 1) - layers.cast(y, "float32")))
    fluid.optimizer.SGD(0.01).minimize(loss)
    fluid.default_startup_program().random_seed = 3
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss_name=loss.name)
    loader = fluid.io.DataLoader.from_generator(feed_list=[x, y], capacity=3).set_sample_list_generator(sample_lists)

    def losses(feeds: Callable[[], Any], program: Any) -> list[float]:
        exe.run(fluid.default_startup_program())
        return [float(exe.run(program, feed=f, fetch_list=[loss])[0].reshape(-1)[0]) for _ in range(3) for f in feeds()]

    expected = losses(lambda: [{"x": a, "y": b} for a, b in batches()], fluid.default_main_program())
    assert losses(loader, compiled) == expected
    assert losses(loader, fluid.default_main_program()) == expected
