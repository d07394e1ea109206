"""layers.Preprocessor: layers that run on each batch of a reader."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid.framework import Variable

layers = fluid.layers


def batches(count: int = 4) -> Callable[[], Iterator[list[np.ndarray]]]:
    def generate() -> Iterator[list[np.ndarray]]:
        for i in range(count):
            yield [np.full((2, 3), i, np.float32), np.array([[i], [i + 1]], np.int64)]

    return generate


def source(name: str = "source") -> Any:
    return layers.py_reader(4, [[-1, 3], [-1, 1]], ["float32", "int64"], name=name, use_double_buffer=False)


def preprocessed(reader: Any, describe: Callable[..., Any]) -> Any:
    preprocessor = layers.Preprocessor(reader)
    with preprocessor.block():
        preprocessor.outputs(*describe(*preprocessor.inputs()))
    return preprocessor()


def half(image: Variable, label: Variable) -> tuple[Variable, Variable]:
    return image / 2.0, label + 1


def run_pass(exe: fluid.Executor, reader: Any, outs: list[Variable]) -> list[list[np.ndarray]]:
    found = []
    reader.start()
    with pytest.raises(fluid.core.EOFException):
        while True:
            found.append(exe.run(fetch_list=outs))
    reader.reset()
    return found


@pytest.mark.parametrize("buffered", [False, True])
def test_the_layers_run_on_each_batch(exe: fluid.Executor, buffered: bool) -> None:
    reader = preprocessed(source(), half)
    if buffered:
        reader = layers.double_buffer(reader)
    assert [spec[0] for spec in reader.specs] == [[-1, 3], [-1, 1]]
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(batches())
    for _ in range(2):
        found = run_pass(exe, reader, outs)
        assert len(found) == 4
        for i, (image, label) in enumerate(found):
            np.testing.assert_array_equal(image, np.full((2, 3), i / 2, np.float32))
            np.testing.assert_array_equal(label, [[i + 1], [i + 2]])
            assert label.dtype == np.int64


@pytest.mark.parametrize("buffered", [False, True])
def test_a_loop_without_end_is_interrupted_and_reset(exe: fluid.Executor, buffered: bool) -> None:
    def describe(image: Variable, label: Variable) -> tuple[Variable, Variable]:
        zero, one = (layers.fill_constant([1], "int64", value) for value in (0, 1))
        forever = layers.less_than(zero, one)
        with layers.While(forever).block():
            layers.less_than(zero, one, cond=forever)
        return image, label

    reader = preprocessed(source(), describe)
    if buffered:
        reader = layers.double_buffer(reader)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(batches())
    for _ in range(2):
        reader.start()
        timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            exe.run(fetch_list=outs)
        timer.join()
        reader.reset()


def test_below_other_readers_and_above_them(exe: fluid.Executor) -> None:
    reader = layers.batch(preprocessed(layers.batch(source(), 2), half), 2)
    outs = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(batches())
    ((image, label),) = run_pass(exe, reader, outs)
    np.testing.assert_array_equal(image[:, 0], np.repeat(np.arange(4) / 2, 2))
    np.testing.assert_array_equal(label[:, 0], [1, 2, 2, 3, 3, 4, 4, 5])


def test_shapes_types_and_number_may_change(exe: fluid.Executor) -> None:
    def describe(image: Variable, label: Variable) -> Any:
        return layers.reduce_sum(image, dim=1), layers.cast(label, "float32"), image

    reader = preprocessed(source(), describe)
    sums, labels, images = layers.read_file(reader)
    assert sums.shape == (-1,)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(batches())
    for i, (total, label, image) in enumerate(run_pass(exe, reader, [sums, labels, images])):
        np.testing.assert_array_equal(total, [3 * i] * 2)
        assert label.dtype == np.float32
        np.testing.assert_array_equal(image, np.full((2, 3), i))


def test_sequences_keep_their_lod(exe: fluid.Executor) -> None:
    reader = layers.py_reader(4, [[-1, 1]], ["int64"], lod_levels=[1], use_double_buffer=False)
    reader = preprocessed(reader, lambda words: (words + 1, layers.sequence_pool(layers.cast(words, "float32"), "sum")))
    words, sums = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(
        lambda: iter([[fluid.create_lod_tensor(np.arange(5)[:, None], [[2, 3]], fluid.CPUPlace())]])
    )
    reader.start()
    got, total = exe.run(fetch_list=[words, sums], return_numpy=False)
    assert got.recursive_sequence_lengths() == [[2, 3]]
    np.testing.assert_array_equal(np.asarray(got)[:, 0], np.arange(5) + 1)
    np.testing.assert_array_equal(np.asarray(total)[:, 0], [1, 9])
    reader.reset()


def test_parameters_have_their_present_values(exe: fluid.Executor) -> None:
    mean = layers.create_global_var([3], 1.0, "float32", persistable=True, name="mean")
    reader = preprocessed(source(), lambda image, label: (image - mean, label))
    image, _ = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(batches())
    reader.start()
    np.testing.assert_array_equal(exe.run(fetch_list=[image])[0], np.full((2, 3), -1))
    fluid.global_scope().find_var("mean").get_tensor().set(np.full(3, 5, np.float32), fluid.CPUPlace())
    np.testing.assert_array_equal(exe.run(fetch_list=[image])[0], np.full((2, 3), -4))
    reader.reset()


def test_the_batches_of_the_source_stay_as_they_are(exe: fluid.Executor) -> None:
    """The layers may work in place."""

    def describe(image: Variable, label: Variable) -> Any:
        image.block.append_op("scale", {"X": image}, {"Out": image}, {"scale": 2.0})
        return image, label

    kept = [np.ones((2, 3), np.float32), np.ones((2, 1), np.int64)]
    reader = preprocessed(source(), describe)
    image, _ = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: iter([kept, kept]))
    for (found,) in run_pass(exe, reader, [image]):
        np.testing.assert_array_equal(found, np.full((2, 3), 2))
    np.testing.assert_array_equal(kept[0], np.ones((2, 3)))


def test_a_batch_that_is_not_as_declared_is_refused_alone(exe: fluid.Executor) -> None:
    def odd() -> Iterator[list[np.ndarray]]:
        good = list(batches(2)())
        yield good[0]
        yield [np.full((2, 3), -1, np.float32), good[0][1]]
        yield good[1]

    def describe(image: Variable, label: Variable) -> Any:
        return layers.py_func(refuse_negative, image, layers.assign(image)), label

    def refuse_negative(image: Any) -> Any:
        array = np.asarray(image)
        if (array < 0).any():
            raise ZeroDivisionError("negative")
        return array * 2

    reader = preprocessed(source(), describe)
    image, _ = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(odd)
    reader.start()
    np.testing.assert_array_equal(exe.run(fetch_list=[image])[0], np.zeros((2, 3)))
    with pytest.raises(ZeroDivisionError, match="negative"):
        exe.run(fetch_list=[image])
    np.testing.assert_array_equal(exe.run(fetch_list=[image])[0], np.full((2, 3), 2))
    reader.reset()


def test_records_that_differ_from_what_is_declared_reach_the_layers(exe: fluid.Executor, tmp_path: Any) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        row = layers.data("row", [4])
        feeder = fluid.DataFeeder([row], fluid.CPUPlace(), row.block.program)
    path = str(tmp_path / "data")
    fluid.recordio_writer.convert_reader_to_recordio_file(path, lambda: iter([[(np.zeros(4, np.float32),)]]), feeder)
    reader = preprocessed(layers.open_recordio_file(path, [[-1, 3]], [0], ["float32"]), lambda x: (x * 2.0,))
    out = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    assert exe.run(fetch_list=[out])[0].shape == (1, 4)


def test_a_saved_program_runs(exe: fluid.Executor) -> None:
    reader = preprocessed(layers.random_data_generator(1.0, 2.0, [[2, 3]]), lambda x: (x - 10.0,))
    out = layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    program = fluid.Program.parse_from_string(fluid.default_main_program().serialize_to_string())
    for _ in range(3):
        (value,) = exe.run(program, fetch_list=[out.name])
        assert ((value >= -9) & (value < -8)).all()


def test_what_makes_no_sense_is_refused(exe: fluid.Executor) -> None:
    with pytest.raises(TypeError, match="takes a reader"):
        layers.Preprocessor(layers.data("x", [3]))
    preprocessor = layers.Preprocessor(source())
    for method in (preprocessor.inputs, preprocessor.outputs):
        with pytest.raises(RuntimeError, match="must be called in its block"):
            method()
    with pytest.raises(RuntimeError, match="after the block"):
        preprocessor()
    with pytest.raises(RuntimeError, match=r"outputs\(\) have to be called"), preprocessor.block():
        preprocessor.inputs()
    with pytest.raises(RuntimeError, match="after the block"):
        preprocessor()
    with preprocessor.block():  # the one that failed does not count
        preprocessor.outputs(*preprocessor.inputs())
    with pytest.raises(RuntimeError, match="only one block is allowed"), preprocessor.block():
        pass
    outside = layers.fill_constant([1], "float32", 1)
    with pytest.raises(errors.InvalidArgument, match=r"not a variable of the block"):
        preprocessed(source("other"), lambda image, label: (outside, label))
    assert fluid.default_main_program().current_block_idx == 0


def test_variables_that_do_not_last_cannot_be_used(exe: fluid.Executor) -> None:
    factor = layers.fill_constant([1], "float32", 3)
    reader = preprocessed(source(), lambda image, label: (image * factor, label))
    layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.InvalidArgument, match=f"'{factor.name}'.*not a persistable tensor"):
        exe.run()


@pytest.mark.parametrize(
    ("attrs", "error"),
    [
        ({"source_var_names": ["preprocessor_source_0", "nowhere"]}, "no variable 'nowhere'"),
        ({"source_var_names": ["preprocessor_source_0", "x"]}, "yields 1 tensors, but .*source_var_names' names 2"),
        ({"source_var_names": []}, "before an operator of the block has written it"),
        ({"sink_var_names": []}, "yields 1 tensors, but attribute 'sink_var_names' names 0"),
        ({"sink_var_names": ["x", "x"]}, "yields 1 tensors, but attribute 'sink_var_names' names 2"),
        ({"sink_var_names": ["wrong"]}, "declared as float32 of shape .*attribute 'sink_var_names' as int64"),
    ],
    ids=["unknown", "two in", "none in", "none out", "two out", "another type"],
)
def test_operators_that_contradict_themselves_are_refused(
    exe: fluid.Executor, attrs: dict[str, list[str]], error: str
) -> None:
    reader = layers.random_data_generator(1.0, 2.0, [[2, 3]])
    made = preprocessed(reader, lambda x: (layers.scale(x),))
    program = fluid.default_main_program()
    inner = program.block(1)
    inner.create_var("x", [2, 3], "float32")
    inner.create_var("wrong", [2, 3], "int64")
    (op,) = [op for op in program.global_block().ops if op.type == "create_custom_reader"]
    for name, value in attrs.items():
        op._set_attr(name, value)
    layers.read_file(made)
    exe.run(fluid.default_startup_program())
    with pytest.raises(Exception, match=error):
        exe.run()
