"""Saving and loading."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from nets import fed_regression, number_reader, regression_batch

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid.framework import Variable

one_or_many = pytest.mark.parametrize("filename", [None, "all"], ids=["a file each", "one file"])


def value(name: str) -> np.ndarray:
    found = fluid.global_scope().find_var(name)
    assert found is not None
    return np.array(found.get_tensor())


def train(exe: fluid.Executor, loss: Variable, steps: range) -> list[float]:
    losses = []
    for step in steps:
        x, y = regression_batch(step)
        losses.append(float(exe.run(feed={"x": x, "y": y}, fetch_list=[loss])[0][0]))
    return losses


@one_or_many
def test_training_goes_on_where_it_was_saved(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    _, _, loss = fed_regression()
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe.run(fluid.default_startup_program())
    train(exe, loss, range(3))
    fluid.io.save_persistables(exe, str(tmp_path), filename=filename)
    expected = train(exe, loss, range(3, 6))
    main = fluid.default_main_program()
    with fluid.scope_guard(fluid.Scope()):
        exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(exe, str(tmp_path), main, filename=filename)
        assert train(exe, loss, range(3, 6)) == expected


@one_or_many
def test_params_are_the_parameters_only(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    _, _, loss = fed_regression()
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe.run(fluid.default_startup_program())
    fluid.io.save_params(exe, str(tmp_path), filename=filename)
    before = value("fc_0.w_0")
    train(exe, loss, range(2))
    assert not np.array_equal(value("fc_0.w_0"), before)
    fluid.io.load_params(exe, str(tmp_path), filename=filename)
    np.testing.assert_array_equal(value("fc_0.w_0"), before)
    if filename is None:
        assert sorted(os.listdir(tmp_path)) == ["fc_0.b_0.npy", "fc_0.w_0.npy"]
    else:
        assert os.listdir(tmp_path) == ["all"]


def test_names_that_are_no_file_names(exe: fluid.Executor, tmp_path: Path) -> None:
    fluid.layers.create_global_var([2], 3.0, "float32", name="a/../b c@GRAD")
    exe.run(fluid.default_startup_program())
    fluid.io.save_persistables(exe, str(tmp_path / "new" / "folder"))
    assert len(os.listdir(tmp_path / "new" / "folder")) == 1
    fluid.io.load_persistables(exe, str(tmp_path / "new" / "folder"))


@one_or_many
def test_what_is_missing_is_named(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    fed_regression()
    with pytest.raises(KeyError, match=r"fc_0\.w_0.*startup"):
        fluid.io.save_params(exe, str(tmp_path), filename=filename)
    exe.run(fluid.default_startup_program())
    with pytest.raises(KeyError, match=r"exist|no file"):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    fluid.io.save_vars(exe, str(tmp_path), vars=["fc_0.w_0"], filename=filename)
    with pytest.raises(KeyError, match=r"fc_0\.b_0"):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    with pytest.raises(TypeError, match="Executor"):
        fluid.io.save_params("exe", str(tmp_path))


def test_a_file_with_more_than_the_array_is_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    fluid.layers.fc(fluid.layers.data("x", [2]), 3, param_attr="w", bias_attr=False)
    exe.run(fluid.default_startup_program())
    fluid.io.save_params(exe, str(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(errors.DataLoss, match=r"'w'.*behind the array of shape \[2, 3\]"):
        fluid.io.load_params(exe, str(tmp_path))


@one_or_many
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense", b"\x93NUMPY\x01\x00v\x00{"])
def test_a_corrupt_file_is_refused(exe: fluid.Executor, tmp_path: Path, filename: str | None, content: bytes) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    for name in ("all", "fc_0.w_0.npy", "fc_0.b_0.npy"):
        (tmp_path / name).write_bytes(content)
    before = value("fc_0.w_0")
    with pytest.raises(errors.DataLoss):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    np.testing.assert_array_equal(value("fc_0.w_0"), before)


def test_pickled_objects_are_not_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    np.save(tmp_path / "fc_0.w_0.npy", np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(errors.DataLoss):
        fluid.io.load_vars(exe, str(tmp_path), vars=["fc_0.w_0"])


@pytest.mark.parametrize(
    ("array", "error"), [(np.zeros((3, 1), np.float32), ValueError), (np.zeros((4, 1), np.float64), TypeError)]
)
def test_a_value_that_does_not_fit_is_refused_and_nothing_is_loaded(
    exe: fluid.Executor, tmp_path: Path, array: np.ndarray, error: type[Exception]
) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    np.save(tmp_path / "fc_0.b_0.npy", np.full(1, 7, np.float32))
    np.save(tmp_path / "fc_0.w_0.npy", array)
    with pytest.raises(error, match=r"fc_0\.w_0"):
        fluid.io.load_params(exe, str(tmp_path))
    assert value("fc_0.b_0")[0] == 0


@one_or_many
def test_an_inference_model_needs_no_readers(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    reader = fluid.layers.py_reader(4, [[-1, 4], [-1, 1]], ["float32", "float32"])
    x, y = fluid.layers.read_file(reader)
    prediction = fluid.layers.fc(x, 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(prediction, y))
    fluid.optimizer.Adam(0.1).minimize(loss)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: (regression_batch(i) for i in range(5)))
    reader.start()
    with pytest.raises(fluid.core.EOFException):
        while True:
            exe.run()
    saved = fluid.io.save_inference_model(str(tmp_path), [x.name], [prediction], exe, params_filename=filename)
    assert saved == [prediction.name]
    weights, bias = value("fc_0.w_0"), value("fc_0.b_0")
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe, params_filename=filename)
        assert [op.type for op in program.global_block().ops] == ["feed", "mul", "elementwise_add", "fetch"]
        batch = regression_batch(9)[0]
        (got,) = exe.run(program, feed={feeds[0]: batch}, fetch_list=fetches)
        np.testing.assert_allclose(got, batch @ weights + bias, rtol=1e-5, atol=1e-6)
        assert sorted(fluid.global_scope().local_var_names()) == ["fc_0.b_0", "fc_0.w_0", "feed", "fetch"]


def test_targets_that_need_a_reader_cannot_be_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    _, out = number_reader()
    exe.run(fluid.default_startup_program())
    with pytest.raises(ValueError, match="read"):
        fluid.io.save_inference_model(str(tmp_path), [], [fluid.layers.relu(out)], exe)
    with pytest.raises(ValueError, match="target"):
        fluid.io.save_inference_model(str(tmp_path), [], [], exe)


def test_a_corrupt_model_is_refused(exe: fluid.Executor, tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="__model__"):
        fluid.io.load_inference_model(str(tmp_path), exe)
    _, _, loss = fed_regression()
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x", "y"], [loss], exe)
    (tmp_path / "__model__").write_bytes(fluid.default_main_program().serialize_to_string())
    with pytest.raises(errors.DataLoss, match="no operator fetch"):
        fluid.io.load_inference_model(str(tmp_path), exe)
    (tmp_path / "__model__").write_bytes(b"nonsense")
    with pytest.raises(errors.DataLoss):
        fluid.io.load_inference_model(str(tmp_path), exe)


def test_batch_and_shuffle() -> None:
    assert list(fluid.io.batch(lambda: range(5), 2)()) == [[0, 1], [2, 3], [4]]
    assert list(fluid.io.batch(lambda: range(5), 2, drop_last=True)()) == [[0, 1], [2, 3]]
    shuffled = list(fluid.io.shuffle(lambda: range(100), 50)())
    assert sorted(shuffled[:50]) == list(range(50))
    assert shuffled != list(range(100))
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match="positive"):
            fluid.io.batch(lambda: range(5), wrong)
        with pytest.raises(ValueError, match="positive"):
            fluid.io.shuffle(lambda: range(5), wrong)
