"""py_reader: what goes wrong, and how it is told."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from nets import number, number_reader, read_all

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core

double_buffered = pytest.mark.parametrize("double_buffer", [False, True], ids=["plain", "double buffer"])


class OwnError(Exception):
    pass


def failing_generator() -> Iterator[list[np.ndarray]]:
    yield number(0)
    yield number(1)
    raise OwnError("of the user's own making")


@double_buffered
def test_an_exception_of_the_generator_reaches_the_run_as_it_was_raised(
    exe: fluid.Executor, double_buffer: bool
) -> None:
    reader, out = number_reader(double_buffer=double_buffer)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(failing_generator)
    for _ in range(3):
        reader.start()
        for expected in (0, 1):  # what came before it comes first
            assert exe.run(fetch_list=[out])[0][0, 0] == expected
        with pytest.raises(OwnError, match="own making") as caught:
            exe.run(fetch_list=[out])
        assert "failing_generator" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        with pytest.raises(OwnError, match="own making") as again:
            exe.run(fetch_list=[out])
        assert again.value.args == caught.value.args
        assert "failing_generator" in [frame.name for frame in traceback.extract_tb(again.value.__traceback__)]
        reader.reset()


@pytest.mark.parametrize(
    "error", [ValueError("v"), KeyError("k"), StopAsyncIteration(), SystemExit(3), KeyboardInterrupt()]
)
def test_any_exception_is_carried(exe: fluid.Executor, error: BaseException) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())

    def generator() -> Iterator[list[np.ndarray]]:
        raise error
        yield

    reader.decorate_batch_generator(generator)
    reader.start()
    with pytest.raises(type(error)) as caught:
        exe.run(fetch_list=[out])
    assert caught.value is error


def test_an_exception_before_the_first_batch(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())

    def source() -> Iterator[list[np.ndarray]]:
        raise OwnError

    reader.decorate_batch_generator(source)
    reader.start()
    with pytest.raises(OwnError):
        exe.run(fetch_list=[out])


def test_a_reader_recovers_from_an_exception(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    sources = [failing_generator, lambda: iter([number(5)])]
    for source in sources:
        reader.decorate_batch_generator(source)
        reader.start()
        try:
            values = read_all(exe, out)
        except OwnError:
            reader.reset()
    assert values == [5]


def test_an_exception_leaves_the_parameters_as_they_are(exe: fluid.Executor) -> None:
    reader, x = number_reader()
    counter = fluid.layers.create_global_var([1], 0.0, "float32", name="counter")
    fluid.layers.increment(counter, 1.0)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(failing_generator)
    reader.start()
    with pytest.raises(OwnError):
        read_all(exe, x)
    assert np.asarray(fluid.global_scope().find_var("counter").get_tensor())[0] == 2


@pytest.mark.parametrize(
    ("batch", "error", "match"),
    [
        ([np.zeros((1, 2), np.float32)], ValueError, r"'read_.*' is declared as float32 \[-1, 1\].*\[1, 2\]"),
        ([np.zeros((1, 1), np.float64)], TypeError, "float32.*float64"),
        ([np.zeros((1, 1), np.float32)] * 2, ValueError, "1.*2"),
        (np.zeros((1, 1), np.float32), TypeError, "ndarray"),
        ([np.zeros((1, 1), bool)], TypeError, "float32.*bool"),
        ([fluid.LoDTensor()], ValueError, "no data"),
        (None, TypeError, "NoneType"),
    ],
    ids=["shape", "dtype", "count", "no list", "bool", "empty", "none"],
)
def test_a_batch_that_does_not_fit_is_told_with_its_variable(
    exe: fluid.Executor, batch: object, error: type[Exception], match: str
) -> None:
    reader, out = number_reader(name="reader")
    out = fluid.layers.fc(out, 1, param_attr=fluid.initializer.Constant(1.0), bias_attr=False)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: iter([number(0), batch]))
    reader.start()
    assert exe.run(fetch_list=[out])[0][0, 0] == 0
    with pytest.raises(error, match=match) as caught:
        exe.run(fetch_list=[out])
    assert isinstance(caught.value, errors.HeadraceError)
    reader.reset()
    reader.decorate_batch_generator(lambda: iter([number(4)]))
    reader.start()
    assert read_all(exe, out) == [4]


IMAGES, LABELS = np.ones((2, 4), np.float32), np.zeros((2, 1), np.int64)
#: What a generator of batches, or of lists of samples, may yield by mistake, and what is told about batch 1.
WRONG_BATCHES: list[tuple[Any, type[errors.HeadraceError], str]] = [
    (IMAGES, errors.TypeMismatch, "batch 1: expected a list with a tensor or array for each of {x}, {y}, got ndarray"),
    (None, errors.TypeMismatch, "batch 1: expected a list .* of {x}, {y}, got NoneType"),
    ({"x": IMAGES}, errors.TypeMismatch, "batch 1: expected a list .* of {x}, {y}, got dict"),
    ((IMAGES,), errors.InvalidArgument, "batch 1: expected 2 values, for {x}, {y}, got 1"),
    ([IMAGES, LABELS, LABELS], errors.InvalidArgument, "batch 1: expected 2 values, for {x}, {y}, got 3"),
    (
        ([[1.0, 2.0], [1.0]], LABELS),
        errors.InvalidArgument,
        "batch 1: variable '{x}': a value of type list .*create_lod_tensor",
    ),
    ((IMAGES, np.array([["a"]])), errors.TypeMismatch, "batch 1: variable '{y}': a tensor cannot hold strings"),
    ((None, LABELS), errors.TypeMismatch, "batch 1: variable '{x}': expected an array, got None"),
    ((IMAGES.astype(np.complex64), LABELS), errors.TypeMismatch, "batch 1: variable '{x}': .* complex64"),
    ((IMAGES.astype(np.float64), LABELS), errors.TypeMismatch, "batch 1, variable '{x}': .*float32, got float64"),
    ((IMAGES, IMAGES), errors.TypeMismatch, "batch 1, variable '{y}': expected dtype int64, got float32"),
]
WRONG_SAMPLES: list[tuple[Any, type[errors.HeadraceError], str]] = [
    (3, errors.TypeMismatch, "batch 1: a batch has to be a list of samples, got int"),
    ([], errors.InvalidArgument, "batch 1: a batch needs at least one sample"),
    ([(IMAGES[0], 0), 7], errors.TypeMismatch, r"batch 1: sample 1 has to be a tuple .* \({x}, {y}\), got"),
    (
        [(IMAGES[0], 0), (IMAGES[0],)],
        errors.InvalidArgument,
        r"batch 1: sample 1 has to have a value for each variable \({x}, {y}\), got 1",
    ),
    ([(IMAGES[0, :3], 0)], errors.InvalidArgument, r"batch 1: variable '{x}' takes values of shape \[4\]"),
    ([(IMAGES[0], 1.7)], errors.InvalidArgument, "batch 1: variable '{y}': sample 0 has 1.7, which int64 cannot hold"),
    ([(IMAGES[0], "cat")], errors.InvalidArgument, "batch 1: variable '{y}': sample 0 cannot be converted"),
]


@pytest.mark.parametrize("kind", ["py_reader", "loader read by the program", "iterable loader"])
@pytest.mark.parametrize("by_samples", [False, True], ids=["batches", "samples"])
def test_what_a_generator_yields_by_mistake_is_told(exe: fluid.Executor, kind: str, by_samples: bool) -> None:
    """With the batch and the user's variable, behind the name of a py_reader; and the next pass is as it should be."""
    if kind == "py_reader":
        reader: Any = fluid.layers.py_reader(2, [[-1, 4], [-1, 1]], ["float32", "int64"], name="train")
        x, y = fluid.layers.read_file(reader)
        give, give_batches = reader.decorate_paddle_reader, reader.decorate_tensor_provider
    else:
        x, y = fluid.layers.data("image", [4]), fluid.layers.data("label", [1], dtype="int64")
        reader = fluid.io.DataLoader.from_generator([x, y], 2, iterable=kind == "iterable loader")
        give, give_batches = reader.set_sample_list_generator, reader.set_batch_generator
    exe.run(fluid.default_startup_program())

    def read() -> int:
        if kind == "iterable loader":
            return len(list(reader()))
        reader.start()
        try:
            return len(read_all(exe, y))
        finally:
            reader.reset()

    first = [(IMAGES[0], 0)] if by_samples else [IMAGES, LABELS]
    for wrong, error, match in WRONG_SAMPLES if by_samples else WRONG_BATCHES:
        (give if by_samples else give_batches)(lambda wrong=wrong: iter([first, wrong]))
        where = "py_reader 'train', " if kind == "py_reader" else ""
        with pytest.raises(error, match=f"^{where}{match.format(x=x.name, y=y.name)}"):
            read()
        give_batches(lambda: iter([[IMAGES, LABELS]] * 3))
        assert read() == 3
    title = "py_reader 'train'" if kind == "py_reader" else "the loader of image, label"
    give(lambda: None)
    with pytest.raises(errors.TypeMismatch, match=f"^{title} takes .* has returned None; is a yield missing"):
        read()
    with pytest.raises(errors.TypeMismatch, match=f"^{title} takes a function that returns an iterable, got list"):
        give([first])


@pytest.mark.parametrize("shape", [(0, 1), (2, 3)], ids=["no rows", "columns"])
def test_an_operators_error_tells_what_was_read(exe: fluid.Executor, shape: tuple[int, int]) -> None:
    reader, x = number_reader(name="train")
    loss = fluid.layers.mean(fluid.layers.relu(fluid.layers.fc(x, 1)))
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: iter([[np.zeros(shape, np.float32)]]))
    reader.start()
    told = f"'{x.name}' is declared as float32 [-1, 1], but was given as float32 {list(shape)}, value 0 of 'train'"
    with pytest.raises(errors.InvalidArgument, match=re.escape(told)):
        exe.run(fetch_list=[loss])
    reader.reset()


@pytest.mark.parametrize("by_samples", [False, True])
@double_buffered
def test_errors_name_the_variable_that_was_read(exe: fluid.Executor, double_buffer: bool, by_samples: bool) -> None:
    reader = fluid.layers.py_reader(4, [[-1, 2], [-1, 1]], ["float32", "int64"], use_double_buffer=double_buffer)
    _, label = fluid.layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    batch = [[(np.ones(2), [3, 4])]] if by_samples else [[np.ones((1, 2), np.float32)] * 2]
    (reader.decorate_paddle_reader if by_samples else reader.decorate_tensor_provider)(lambda: iter(batch))
    reader.start()
    error = errors.InvalidArgument if by_samples else errors.TypeMismatch
    with pytest.raises(error, match=f"'{label.name}'"):
        exe.run(fetch_list=[label])


def test_an_operators_error_names_the_variable_that_a_reader_was_made_from(exe: fluid.Executor) -> None:
    label = fluid.layers.data("kind", [1], dtype="int64")
    reader = fluid.layers.create_py_reader_by_data(4, [fluid.layers.data("photo", [2]), label])
    photo, kind = fluid.layers.read_file(reader)
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(photo, kind))
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: iter([[np.ones((2, 2), np.float32), np.full((2, 1), 9)]]))
    reader.start()
    with pytest.raises(errors.OutOfRange, match=r"variable 'read_file_0\.kind'"):
        exe.run(fetch_list=[loss])
    reader.reset()


def test_each_variable_that_is_read_has_a_name_of_its_own() -> None:
    readers = [fluid.layers.py_reader(4, [[-1, 1]], ["float32"]) for _ in range(2)]
    names = [fluid.layers.read_file(reader).name for reader in (*readers, *readers)]
    assert len(set(names)) == 4


def test_a_run_without_a_source_is_refused(exe: fluid.Executor) -> None:
    reader, out = number_reader(name="mine")
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.FailedPrecondition, match="py_reader 'mine' was not started"):
        exe.run(fetch_list=[out])
    reader.decorate_batch_generator(lambda: iter([number(0)]))
    with pytest.raises(errors.FailedPrecondition, match=r"call start\(\)"):
        exe.run(fetch_list=[out])
    reader.start()
    assert read_all(exe, out) == [0]
    reader.reset()
    with pytest.raises(errors.FailedPrecondition, match="mine"):
        exe.run(fetch_list=[out])


def test_start_needs_a_source_and_happens_once(exe: fluid.Executor) -> None:
    reader, _ = number_reader(name="mine")
    with pytest.raises(errors.FailedPrecondition, match="mine"):
        reader.start()
    reader.decorate_batch_generator(lambda: iter([number(0)]))
    reader.start()
    with pytest.raises(errors.FailedPrecondition, match="already running"):
        reader.start()
    with pytest.raises(errors.FailedPrecondition, match="reset"):
        reader.decorate_batch_generator(lambda: iter([number(0)]))
    reader.reset()


@pytest.mark.parametrize(
    "method",
    [
        "decorate_batch_generator",
        "decorate_sample_list_generator",
        "decorate_paddle_reader",
        "decorate_tensor_provider",
    ],
)
def test_a_source_is_a_function(method: str) -> None:
    reader, _ = number_reader()
    with pytest.raises(TypeError, match="function"):
        getattr(reader, method)([number(0)])
    with pytest.raises(TypeError, match="function"):
        reader.decorate_sample_generator([number(0)], 1)
    with pytest.raises(TypeError, match="DataLoader"):
        reader.decorate_loader([number(0)])


def test_a_source_that_returns_no_iterable(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: 3)
    reader.start()
    with pytest.raises(TypeError, match="iterable"):
        exe.run(fetch_list=[out])


@pytest.mark.parametrize("capacity", [0, -3, 2.5, None, True])
def test_the_capacity_is_a_positive_number(capacity: object) -> None:
    with pytest.raises(ValueError, match="capacity"):
        fluid.layers.py_reader(capacity, [[-1, 1]], ["float32"])


@pytest.mark.parametrize(
    ("shapes", "dtypes", "lod_levels"),
    [
        ([[-1, 1]], ["float32", "int64"], None),
        ([[-1, 1]], ["float32"], [0, 0]),
        ([], [], None),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(
    shapes: list[list[int]], dtypes: list[str], lod_levels: list[int] | None
) -> None:
    with pytest.raises(ValueError, match=r"py_reader"):
        fluid.layers.py_reader(4, shapes, dtypes, lod_levels)
    assert fluid.default_startup_program().global_block().ops == []


def test_a_name_is_taken_once() -> None:
    number_reader(name="mine")
    with pytest.raises(ValueError, match="mine"):
        number_reader(name="mine")
    with fluid.program_guard(fluid.Program(), fluid.Program()), pytest.raises(ValueError, match="mine"):
        number_reader(name="mine")  # the scope has it
    fluid.layers.data("other", [1])
    with pytest.raises(ValueError, match="other"):
        number_reader(name="other")


def test_a_run_without_the_startup_program_is_refused(exe: fluid.Executor) -> None:
    reader, out = number_reader(name="mine")
    reader.decorate_batch_generator(lambda: iter([number(0)]))
    reader.start()
    with pytest.raises(errors.FailedPrecondition, match="mine"):
        exe.run(fetch_list=[out])


def test_a_scope_without_the_queue_is_refused(exe: fluid.Executor) -> None:
    number_reader(name="mine")
    with pytest.raises(errors.FailedPrecondition, match="mine"):
        exe.run(fluid.default_startup_program(), scope=fluid.Scope())


def test_only_readers_can_be_read_and_decorated() -> None:
    x = fluid.layers.data("x", [1])
    with pytest.raises(TypeError, match="reader"):
        fluid.layers.read_file(x)
    with pytest.raises(TypeError, match="reader"):
        fluid.layers.double_buffer(x)


def test_a_generator_cannot_reset_its_own_reader(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())

    def generator() -> Iterator[list[np.ndarray]]:
        yield number(0)
        reader.reset()

    reader.decorate_batch_generator(generator)
    reader.start()
    with pytest.raises(errors.FailedPrecondition, match="cannot be reset"):
        read_all(exe, out)


def test_another_thread_may_reset_a_reader_that_is_waited_for(exe: fluid.Executor) -> None:
    import threading

    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    assert reader.queue.size() == 0
    ended = threading.Event()

    def reset() -> None:
        while not ended.wait(0.1):  # one wakes who waits; who has not waited yet, waits after it
            reader.reset()

    thread = threading.Thread(target=reset)
    thread.start()
    try:
        with pytest.raises(core.EOFException):
            exe.run(fetch_list=[out])
    finally:
        ended.set()
        thread.join()


def is_refused_in_a_child(function: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        signal.alarm(100)
        try:
            function()
        except errors.FailedPrecondition as error:
            os._exit(0 if "from which this one was forked" in str(error) else 1)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_a_forked_child_is_refused_what_its_parent_feeds(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: map(number, range(9)))
    assert is_refused_in_a_child(reader.start)
    reader.start()
    for function in (reader.start, reader.reset, lambda: exe.run(fetch_list=[out])):
        assert is_refused_in_a_child(function)
    assert read_all(exe, out) == list(range(9))


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    prelude = """
        import sys, threading, time
        import numpy as np
        import headrace.fluid as fluid
        reader = fluid.layers.py_reader(2, [[-1, 1]], ["float32"])
        out = fluid.layers.read_file(reader)
        exe = fluid.Executor()
        exe.run(fluid.default_startup_program())
        def number(i): return [np.full((1, 1), i, np.float32)]
    """
    source = textwrap.dedent(prelude) + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=250, check=False)


ENDINGS: dict[str, str] = {
    "a break": "",
    "an exception": "raise SystemExit(7)",
    "a reset": "reader.reset()",
    "the end": "reader.reset(); del reader, out, exe",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_the_process_ends_while_a_generator_feeds(ending: str) -> None:
    script = """
        def endless():
            try:
                while True:
                    yield number(0)
            finally:
                print("closed")
        reader.decorate_batch_generator(endless)
        reader.start()
        for _ in range(3):
            exe.run(fetch_list=[out])
        """
    done = run_script(textwrap.dedent(script) + ending)
    assert (done.returncode, done.stderr, done.stdout) == (7 if "7" in ending else 0, "", "closed\n")


def test_the_process_ends_while_a_thread_waits_for_data() -> None:
    done = run_script(
        """
        queue = reader.queue
        def wait():
            try:
                exe.run(fetch_list=[out])
            except RuntimeError:
                pass
        threading.Thread(target=wait, daemon=True).start()
        threading.Thread(target=lambda: [queue.push(number(0)) for _ in range(9)], daemon=True).start()
        time.sleep(0.2)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_nobody_asks_for_is_printed_not_lost() -> None:
    done = run_script(
        """
        def generator():
            try:
                while True:
                    yield number(0)
            finally:
                raise ValueError("in the clean-up")
        reader.decorate_batch_generator(generator)
        reader.start()
        exe.run(fetch_list=[out])
        reader.reset()
        """
    )
    assert done.returncode == 0
    assert "in the clean-up" in done.stderr


def test_ctrl_c_while_training_ends_the_process() -> None:
    done = run_script(
        """
        import os, signal
        def slow():
            yield number(0)
            time.sleep(4)
            yield number(1)
        reader.decorate_batch_generator(slow)
        reader.start()
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        exe.run(fetch_list=[out])
        exe.run(fetch_list=[out])
        """
    )
    assert "KeyboardInterrupt" in done.stderr
    assert done.returncode != 0
