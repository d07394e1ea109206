"""py_reader: what arrives, in which order, and how passes begin and end."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from nets import number, number_reader, read_all

import headrace.fluid as fluid
from headrace import DataLoader, errors
from headrace.fluid import core

double_buffered = pytest.mark.parametrize("double_buffer", [False, True], ids=["plain", "double buffer"])


def in_thread(function: object) -> threading.Thread:
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def numbers(count: int) -> Iterator[list[np.ndarray]]:
    for i in range(count):
        yield number(i)


@double_buffered
@pytest.mark.parametrize("threaded", [False, True], ids=["before the run", "in a thread"])
def test_what_is_pushed_arrives_exactly(exe: fluid.Executor, double_buffer: bool, threaded: bool) -> None:
    shapes = [(-1, 3, 5), (-1, 1)]
    reader = fluid.layers.py_reader(10, shapes, ["float32", "int64"], use_double_buffer=double_buffer)
    image, label = fluid.layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(10):
        rows = int(rng.integers(1, 9))  # sizes of batches vary
        batches.append([rng.standard_normal((rows, 3, 5)).astype(np.float32), rng.integers(0, 9, (rows, 1))])
    queue = reader.queue

    def push() -> None:
        for arrays in batches:
            batch = fluid.LoDTensorArray()
            for array in arrays:
                tensor = fluid.LoDTensor()
                tensor.set(array, fluid.CPUPlace())
                batch.append(tensor)
            assert queue.push(batch)
        queue.close()

    if threaded:
        in_thread(push)
    else:
        push()
    for arrays in batches:
        for got, expected in zip(exe.run(fetch_list=[image, label]), arrays):
            assert got.dtype == expected.dtype
            np.testing.assert_array_equal(got, expected)
    with pytest.raises(core.EOFException, match=r"There is no next data\."):
        exe.run(fetch_list=[image, label])


@double_buffered
@pytest.mark.parametrize("feed", ["batches", "sample lists", "samples", "by hand"])
def test_a_hundred_passes_have_every_batch_in_order(exe: fluid.Executor, double_buffer: bool, feed: str) -> None:
    reader, out = number_reader(3, double_buffer)
    exe.run(fluid.default_startup_program())
    if feed == "batches":
        reader.decorate_batch_generator(lambda: numbers(7))
    elif feed == "sample lists":
        reader.decorate_paddle_reader(lambda: ([(i,)] for i in range(7)))
    elif feed == "samples":
        reader.decorate_sample_generator(lambda: ((i,) for i in range(7)), batch_size=1)
    queue = reader.queue if feed == "by hand" else None

    def push() -> None:
        assert queue is not None
        epoch = queue.epoch
        for batch in numbers(7):
            assert queue.push(batch, epoch)
        queue.close(epoch)

    for _ in range(100):
        if queue is None:
            reader.start()
        else:
            in_thread(push)
        assert read_all(exe, out) == list(range(7))
        reader.reset()


@double_buffered
def test_reset_in_the_middle_of_an_endless_pass(exe: fluid.Executor, double_buffer: bool) -> None:
    reader, out = number_reader(3, double_buffer)
    exe.run(fluid.default_startup_program())
    running = []

    def endless() -> Iterator[list[np.ndarray]]:
        running.append(True)
        try:
            i = 0
            while True:
                yield number(i)
                i += 1
        finally:
            running.pop()

    reader.decorate_batch_generator(endless)
    for _ in range(10):
        reader.start()
        for i in range(5):
            (value,) = exe.run(fetch_list=[out])
            assert value[0, 0] == i
        reader.reset()
        assert running == []  # the generator has been closed


@double_buffered
def test_reset_is_legal_at_any_time(exe: fluid.Executor, double_buffer: bool) -> None:
    reader, out = number_reader(double_buffer=double_buffer)
    reader.reset()
    exe.run(fluid.default_startup_program())
    reader.reset()
    reader.reset()
    reader.decorate_batch_generator(lambda: numbers(5))
    reader.reset()
    reader.start()
    reader.reset()
    reader.start()
    assert read_all(exe, out) == list(range(5))
    reader.reset()
    reader.reset()
    reader.start()
    assert read_all(exe, out) == list(range(5))


def test_a_pass_may_be_started_before_the_startup_program_runs(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    reader.decorate_batch_generator(lambda: numbers(5))
    reader.start()
    exe.run(fluid.default_startup_program())
    assert read_all(exe, out) == list(range(5))


def test_running_the_startup_program_again_does_no_harm(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    reader.decorate_batch_generator(lambda: numbers(5))
    exe.run(fluid.default_startup_program())
    reader.start()
    exe.run(fluid.default_startup_program())
    assert read_all(exe, out) == list(range(5))


def test_the_end_comes_again_until_reset(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: numbers(1))
    reader.start()
    assert read_all(exe, out) == [0]
    for _ in range(3):
        with pytest.raises(core.EOFException):
            exe.run(fetch_list=[out])
    with pytest.raises(errors.FailedPrecondition, match="reset"):
        reader.start()


def test_a_slow_old_generator_cannot_touch_the_next_pass(exe: fluid.Executor) -> None:
    reader, out = number_reader(1)
    exe.run(fluid.default_startup_program())
    passes = 0

    def slow_first() -> Iterator[list[np.ndarray]]:
        nonlocal passes
        passes += 1
        if passes == 1:
            yield number(100)
            time.sleep(0.2)
            yield number(101)
        else:
            yield from numbers(3)

    reader.decorate_batch_generator(slow_first)
    reader.start()
    exe.run(fetch_list=[out])
    reader.reset()
    reader.start()
    assert read_all(exe, out) == [0, 1, 2]


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_the_end_of_an_old_generator_is_not_that_of_the_next_pass(
    exe: fluid.Executor, fails: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    reader, out = number_reader(1)
    exe.run(fluid.default_startup_program())
    asked, go_on = threading.Event(), threading.Event()
    first = [True]

    def ends_late() -> Iterator[list[np.ndarray]]:
        if first:
            first.clear()
            asked.set()
            go_on.wait(60)
            if fails:
                raise ValueError("of the old pass")
        else:
            yield from numbers(3)

    reader.decorate_batch_generator(ends_late)
    reader.start()
    assert asked.wait(60)
    epoch = reader.queue.epoch
    resetting = in_thread(reader.reset)
    while reader.queue.epoch == epoch:  # the new pass has begun
        time.sleep(0.001)
    go_on.set()
    resetting.join(100)
    reader.start()
    assert read_all(exe, out) == [0, 1, 2]
    assert ("of the old pass" in capfd.readouterr().err) == fails  # it is not lost, either


def test_a_reset_before_the_startup_program_drops_what_was_pushed(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    reader.queue.push(number(7))
    reader.queue.close()
    reader.reset()
    assert reader.queue.size() == 0
    exe.run(fluid.default_startup_program())
    for value in (1, 2):
        reader.queue.push(number(value))
    reader.queue.close()
    assert read_all(exe, out) == [1, 2]


def test_the_source_may_be_changed_between_passes(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    for count in (2, 3):
        reader.decorate_tensor_provider(lambda count=count: numbers(count))
        reader.start()
        assert len(read_all(exe, out)) == count
        reader.reset()


def test_a_source_may_be_any_iterable(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: [number(1), tuple(number(2)), [fluid.LoDTensor.from_numpy(number(3)[0])]])
    reader.start()
    assert read_all(exe, out) == [1, 2, 3]


def test_a_generator_may_use_its_buffer_again(exe: fluid.Executor) -> None:
    reader, out = number_reader(8)
    exe.run(fluid.default_startup_program())

    def generator() -> Iterator[list[np.ndarray]]:
        buffer = np.zeros((1, 1), np.float32)
        for i in range(8):
            buffer[:] = i
            yield [buffer]

    reader.decorate_batch_generator(generator)
    reader.start()
    assert read_all(exe, out) == list(range(8))


def test_samples_make_batches(exe: fluid.Executor) -> None:
    reader = fluid.layers.py_reader(4, [[-1, 2], [-1, 1]], ["float32", "int64"])
    x, y = fluid.layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    for drop_last, sizes in ((True, [3, 3]), (False, [3, 3, 1])):
        reader.decorate_sample_generator(
            lambda: (([i, i], i) for i in range(7)), batch_size=3, drop_last=drop_last, places=fluid.CPUPlace()
        )
        reader.start()
        got = []
        with pytest.raises(core.EOFException):
            while True:
                got.append(exe.run(fetch_list=[x, y])[1])
        reader.reset()
        assert [len(labels) for labels in got] == sizes
        assert np.concatenate(got).ravel().tolist() == list(range(sum(sizes)))


@double_buffered
def test_lod_passes_through(exe: fluid.Executor, double_buffer: bool) -> None:
    shapes = [[-1, 1], [-1, 1]]
    reader = fluid.layers.py_reader(4, shapes, ["int64"] * 2, lod_levels=[1, 2], use_double_buffer=double_buffer)
    words, paragraphs = fluid.layers.read_file(reader)
    assert (words.lod_level, paragraphs.lod_level) == (1, 2)
    exe.run(fluid.default_startup_program())
    reader.decorate_sample_list_generator(lambda: [[([1, 2], [[1], [2, 3]]), ([3], [[4]])]])
    reader.start()
    first, second = exe.run(fetch_list=[words, paragraphs], return_numpy=False)
    assert first.recursive_sequence_lengths() == [[2, 1]]
    assert second.recursive_sequence_lengths() == [[2, 1], [1, 2, 1]]
    assert np.asarray(second).ravel().tolist() == [1, 2, 3, 4]


def test_a_reader_made_from_variables(exe: fluid.Executor) -> None:
    image = fluid.layers.data("image", [2])
    label = fluid.layers.data("label", [1], dtype="int64")
    reader = fluid.layers.create_py_reader_by_data(4, [image, label])
    x, y = fluid.layers.read_file(reader)
    assert (x.shape, y.dtype) == ((-1, 2), core.VarDesc.VarType.INT64)
    exe.run(fluid.default_startup_program())
    reader.decorate_paddle_reader(fluid.io.batch(lambda: iter([([1, 2], 3)]), 1))
    reader.start()
    got = exe.run(fetch_list=[x, y])
    assert [value.tolist() for value in got] == [[[1, 2]], [[3]]]
    with pytest.raises(TypeError, match="str"):
        fluid.layers.create_py_reader_by_data(4, ["image"])


def test_double_buffer_as_a_layer(exe: fluid.Executor) -> None:
    reader, _ = number_reader(double_buffer=False)
    buffered = fluid.layers.double_buffer(reader)
    out = fluid.layers.read_file(buffered)
    exe.run(fluid.default_startup_program())
    main = fluid.default_main_program()
    pruned = main._prune([out])
    buffered.decorate_batch_generator(lambda: numbers(5))
    buffered.start()
    assert read_all(exe, out, pruned) == list(range(5))
    reader.reset()
    reader.start()
    assert read_all(exe, out, pruned) == list(range(5))


def test_decorated_readers(exe: fluid.Executor) -> None:
    reader = fluid.layers.py_reader(8, [[-1, 1]], ["float32"], use_double_buffer=False)
    joined = fluid.layers.batch(fluid.layers.shuffle(reader, 8), 4)
    out = fluid.layers.read_file(fluid.layers.double_buffer(joined))
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: numbers(6))
    for _ in range(2):
        reader.start()
        got = []
        with pytest.raises(core.EOFException):
            while True:
                got.append(exe.run(fetch_list=[out])[0].ravel().tolist())
        reader.reset()
        assert [len(batch) for batch in got] == [4, 2]
        assert sorted(value for batch in got for value in batch) == list(range(6))


def test_random_data(exe: fluid.Executor) -> None:
    reader = fluid.layers.random_data_generator(2.0, 3.0, [[2, 3], [1]])
    x, y = fluid.layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    a, b = exe.run(fetch_list=[x, y])
    assert (a.shape, b.shape) == ((2, 3), (1,))
    assert (a >= 2).all()
    assert (a < 3).all()
    with pytest.raises(RuntimeError, match="Python"):
        reader.start()


def test_several_readers_in_a_program(exe: fluid.Executor) -> None:
    first, a = number_reader(name="first")
    second, b = number_reader(name="second")
    total = a + b
    exe.run(fluid.default_startup_program())
    first.decorate_batch_generator(lambda: numbers(5))
    second.decorate_batch_generator(lambda: numbers(7))
    for _ in range(3):
        first.start()
        second.start()
        assert read_all(exe, total) == [0, 2, 4, 6, 8]
        first.reset()
        second.reset()


def test_training_and_testing_share_parameters(exe: fluid.Executor) -> None:
    startup = fluid.default_startup_program()
    programs = []
    for name in ("train", "test"):
        program = fluid.Program()
        with fluid.program_guard(program, startup), fluid.unique_name.guard():
            reader, x = number_reader(name=name)
            programs.append((program, reader, fluid.layers.fc(x, 1, param_attr="shared_w", bias_attr=False)))
    exe.run(startup)
    fluid.global_scope().find_var("shared_w").get_tensor().set(np.full((1, 1), 3, np.float32))
    for program, reader, out in programs:
        reader.decorate_batch_generator(lambda: numbers(3))
        reader.start()
        assert read_all(exe, out, program) == [0, 3, 6]


def test_a_clone_reads_from_the_same_reader(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    clone = fluid.default_main_program().clone(for_test=True)
    with pytest.raises(errors.FailedPrecondition, match="not started"):
        read_all(exe, out, clone)
    reader.decorate_batch_generator(lambda: numbers(3))
    reader.start()
    assert read_all(exe, out, clone) == [0, 1, 2]


def test_a_reader_works_in_a_scope_inside_its_own(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    kid = fluid.global_scope().new_scope()
    exe.run(fluid.default_startup_program(), scope=kid)
    reader.decorate_batch_generator(lambda: numbers(3))
    main = fluid.default_main_program()
    for _ in range(3):
        reader.start()
        with fluid.scope_guard(kid):
            assert read_all(exe, out, main) == [0, 1, 2]
        reader.reset()


def test_a_parsed_program_reads_from_the_scopes_queue(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    parsed = fluid.Program.parse_from_string(fluid.default_main_program().serialize_to_string())
    with pytest.raises(errors.FailedPrecondition, match="was not started: give it a source"):
        read_all(exe, out.name, parsed)
    reader.decorate_batch_generator(lambda: numbers(3))
    with pytest.raises(errors.FailedPrecondition, match="was not started: call"):
        read_all(exe, out.name, parsed)
    reader.start()
    assert read_all(exe, out.name, parsed) == [0, 1, 2]


def test_statistics(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    assert reader.stats()["batches"] == 0
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: numbers(3))
    reader.start()
    read_all(exe, out)
    assert reader.stats()["batches"] == 3
    assert reader.stats()["wait_s"] > 0


class Labelled:
    """Images without a channel, numbers as labels, and words of different lengths."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[np.ndarray, int, np.ndarray]:
        return np.full((2, 3), index, np.float32), index, np.arange(index + 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loaders_rows_get_the_declared_dimensions_of_one(exe: fluid.Executor, num_workers: int) -> None:
    reader = fluid.layers.py_reader(
        2, [[-1, 1, 2, 3], [-1, 1], [-1, 1]], ["float32", "int64", "int64"], lod_levels=[0, 0, 1]
    )
    read = fluid.layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_loader(DataLoader(Labelled(), batch_size=3, num_workers=num_workers, ragged={2: "lod"}))
    reader.start()
    for first in (0, 3):
        image, label, words = exe.run(fetch_list=read, return_numpy=False)
        rows = range(first, first + 3)
        assert np.asarray(image).tolist() == [np.full((1, 2, 3), i).tolist() for i in rows]
        assert np.asarray(label).tolist() == [[i] for i in rows]
        assert words.recursive_sequence_lengths() == [[i + 1 for i in rows]]
        assert np.asarray(words).tolist() == [[word] for i in rows for word in range(i + 1)]
    with pytest.raises(core.EOFException):
        exe.run(fetch_list=read)
    reader.reset()


class Named:
    """Samples whose keys change their order."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        values = {
            "words": np.arange(index % 2 + 1),
            "x": np.full(2, index, np.float32),
            "y": np.full(2, -index, np.float32),
            "text": str(index),
            "pair": [np.zeros(2, np.float32)] * 2,
        }
        return {key: values[key] for key in (self.keys if index < 2 else reversed(self.keys))}


def named_variables() -> list[fluid.framework.Variable]:
    words = fluid.layers.data("words", [1], dtype="int64", lod_level=1)
    return [words, fluid.layers.data("x", [2]), fluid.layers.data("y", [2])]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("by_data", [False, True], ids=["from_generator", "create_py_reader_by_data"])
def test_a_loaders_arrays_of_a_mapping_go_to_the_variables_of_their_names(
    exe: fluid.Executor, by_data: bool, num_workers: int
) -> None:
    loader = DataLoader(Named("y", "words", "x"), batch_size=2, num_workers=num_workers, ragged={"words": "lod"})
    if by_data:
        reader = fluid.layers.create_py_reader_by_data(2, named_variables())
        words, x, y = fluid.layers.read_file(reader)
        reader.decorate_loader(loader)
    else:
        words, x, y = variables = named_variables()
        reader = fluid.io.DataLoader.from_generator(variables, capacity=2, iterable=False)
        reader.set_loader(loader)
    total = x * 3.0 + y
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        reader.start()
        for first in (0, 2):
            got, ids = exe.run(fetch_list=[total, words], return_numpy=False)
            assert np.asarray(got)[:, 0].tolist() == [2 * first, 2 * (first + 1)]
            assert ids.recursive_sequence_lengths() == [[1, 2]]
            assert np.asarray(ids).ravel().tolist() == [0, 0, 1]
        with pytest.raises(core.EOFException):
            exe.run(fetch_list=[total])
        reader.reset()


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["x"], errors.InvalidArgument, "batches have 'x', but the variables are 'x', 'y'"),
        (["y", "x", "text"], errors.InvalidArgument, "batches have 'y', 'x', 'text', but the variables are 'x', 'y'"),
        (["x", "text"], errors.TypeMismatch, "'text' takes an array"),
        (["pair", "x"], errors.InvalidArgument, "'pair' takes one array, but the loader's batches have several"),
    ],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loaders_mapping_that_does_not_fit_the_variables(
    exe: fluid.Executor, keys: list[str], error: type[Exception], message: str, num_workers: int
) -> None:
    names = keys if error is errors.TypeMismatch or "pair" in keys else ["x", "y"]
    reader = fluid.io.DataLoader.from_generator([fluid.layers.data(n, [2]) for n in names], 2, iterable=False)
    reader.set_loader(DataLoader(Named(*keys), batch_size=2, num_workers=num_workers))
    exe.run(fluid.default_startup_program())
    for _ in range(2):
        reader.start()
        with pytest.raises(error, match=message):
            exe.run(fetch_list=[names[0]])
        reader.reset()


def test_a_loaders_batches_of_another_number_of_arrays(exe: fluid.Executor) -> None:
    """Without names of their own, they are told by those of the variables."""
    feed_list = [fluid.layers.data(name, [2]) for name in ("x", "y")]
    reader = fluid.io.DataLoader.from_generator(feed_list, 2, iterable=False)
    reader.set_loader(DataLoader([(np.zeros(2, np.float32),)] * 2, batch_size=2))
    exe.run(fluid.default_startup_program())
    reader.start()
    with pytest.raises(errors.InvalidArgument, match="batch 0: expected 2 tensors, for x, y, got 1"):
        exe.run(fetch_list=["x"])
    reader.reset()


def test_a_loaders_rows_of_another_shape_stay_as_they_are(exe: fluid.Executor) -> None:
    """Of as many elements, but in another arrangement: rearranging them would be wrong without a word."""
    reader = fluid.layers.py_reader(2, [[-1, 3, 2], [-1]], ["float32", "int64"], use_double_buffer=False)
    rows, _ = fluid.layers.read_file(reader)
    total = rows + fluid.layers.create_parameter([3, 2], "float32")
    exe.run(fluid.default_startup_program())
    samples = [(np.arange(6, dtype=np.float32).reshape(2, 3), 0)] * 2
    for fetched in (rows, total):
        reader.decorate_loader(DataLoader(samples, batch_size=2))
        reader.start()
        program = fluid.default_main_program()._prune([fetched])
        if fetched is rows:
            assert exe.run(program, fetch_list=[rows])[0].tolist() == [[[0, 1, 2], [3, 4, 5]]] * 2
        else:
            with pytest.raises(errors.InvalidArgument, match=rf"'{rows.name}' is declared as float32 \[-1, 3, 2\]"):
                exe.run(program, fetch_list=[total])
        reader.reset()


def test_the_end_of_scopes_and_readers_runs_no_callback_that_would_swallow_an_interrupt(exe: fluid.Executor) -> None:
    """Those of weakref.WeakSet are written in Python."""
    main, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(main, startup):
        reader, out = number_reader()
    scopes = [fluid.Scope() for _ in range(3)]
    source = reader._feed_source
    source.take_queue()
    for scope in scopes:
        source.check_fed(main, scope)
        assert scope in source._scopes
    met: list[str] = []
    gc.collect()  # what other tests have left

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__") in ("weakref", "_weakrefset"):
            met.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        del scope, scopes, reader, out, source, main, startup
        gc.collect()
    finally:
        sys.setprofile(None)
    assert met == []


@double_buffered
def test_operators_before_the_read_do_not_run_when_the_data_have_ended(
    exe: fluid.Executor, double_buffer: bool
) -> None:
    steps = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True, name="steps")
    fluid.layers.increment(steps)
    reader = fluid.layers.py_reader(4, [(-1, 1)], ["float32"], use_double_buffer=double_buffer)
    value = fluid.layers.read_file(reader)
    reader.decorate_batch_generator(lambda: numbers(3))
    exe.run(fluid.default_startup_program())
    for passes in (1, 2):
        reader.start()
        with pytest.raises(core.EOFException):
            while True:
                exe.run(fetch_list=[value])
        reader.reset()
        assert np.asarray(fluid.global_scope().find_var("steps").get_tensor()).item() == 3 * passes
