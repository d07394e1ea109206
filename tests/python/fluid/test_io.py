"""Saving and loading."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from nets import fed_regression, regression_batch

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
def test_the_state_of_an_optimizer_is_loaded_under_its_earlier_name(
    exe: fluid.Executor, tmp_path: Path, filename: str | None
) -> None:
    _, _, loss = fed_regression()
    fluid.optimizer.Adam(0.05).minimize(loss)
    exe.run(fluid.default_startup_program())
    train(exe, loss, range(2))
    saved = {var.name: value(var.name) for var in fluid.default_main_program().list_vars() if var.persistable}
    named = {
        name.replace("_moment", "_adam_moment").replace("_beta", "_adam_beta"): array for name, array in saved.items()
    }
    assert "fc_0.w_0_adam_moment1_0" in named
    if filename is None:
        for name, array in named.items():
            np.save(tmp_path / f"{name}.npy", array)
    else:
        with open(tmp_path / filename, "wb") as file:
            np.savez(file, **named)
    train(exe, loss, range(2, 4))
    fluid.io.load_persistables(exe, str(tmp_path), filename=filename)
    for name, array in saved.items():
        np.testing.assert_array_equal(value(name), array)


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
        assert sorted(os.listdir(tmp_path)) == ["fc_0.b_0", "fc_0.w_0"]
    else:
        assert os.listdir(tmp_path) == ["all"]


def test_a_global_variable_that_is_not_persistable_is_in_no_file_of_parameters(
    exe: fluid.Executor, tmp_path: Path
) -> None:
    kept = fluid.layers.create_global_var([1], 2.0, "float32", persistable=True, name="kept")
    other = fluid.layers.create_global_var([1], 3.0, "float32", name="other")
    fluid.layers.increment(other)
    out = fluid.layers.elementwise_mul(kept, other)
    assert (kept.persistable, other.persistable) == (True, False)
    main = fluid.default_main_program()
    assert not fluid.Program.parse_from_string(main.serialize_to_string()).global_block().var("other").persistable
    exe.run(fluid.default_startup_program())
    assert [float(exe.run(fetch_list=[out])[0][0]) for _ in range(2)] == [8, 10]  # it survives the run all the same
    fluid.io.save_persistables(exe, str(tmp_path / "files"))
    assert os.listdir(tmp_path / "files") == ["kept"]
    fluid.io.load_persistables(exe, str(tmp_path / "files"))
    fluid.save(main, str(tmp_path / "state"))
    assert set(fluid.io.load_program_state(str(tmp_path / "state"))) == {"kept"}
    fluid.load(main, str(tmp_path / "state"))
    fluid.io.save_checkpoint(exe, tmp_path / "checkpoint")  # continues where it was
    exe.run()
    fluid.io.load_checkpoint(exe, tmp_path / "checkpoint")
    assert exe.run(fetch_list=[out])[0] == 12
    other.persistable = True
    fluid.io.save_persistables(exe, str(tmp_path / "all"))
    assert sorted(os.listdir(tmp_path / "all")) == ["kept", "other"]


@one_or_many
@pytest.mark.parametrize(
    "name", ["file", "args", "a/../b c@GRAD", "..", "/x", "a/b", ".unfinished-set", "w.npy", "a//b"]
)
def test_a_variable_may_have_any_name(exe: fluid.Executor, tmp_path: Path, name: str, filename: str | None) -> None:
    fluid.layers.create_global_var([2], 3.0, "float32", persistable=True, name=name)
    exe.run(fluid.default_startup_program())
    folder = tmp_path / "new" / "folder"
    fluid.io.save_persistables(exe, str(folder), filename=filename)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 1
    assert folder in files[0].parents
    fluid.global_scope().find_var(name).get_tensor().set(np.zeros(2, np.float32))
    fluid.io.load_persistables(exe, str(folder), filename=filename)
    np.testing.assert_array_equal(value(name), [3, 3])


@one_or_many
def test_what_is_missing_is_named(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    fed_regression()
    with pytest.raises(KeyError, match=r"fc_0\.w_0.*startup"):
        fluid.io.save_params(exe, str(tmp_path), filename=filename)
    exe.run(fluid.default_startup_program())
    with pytest.raises(KeyError, match=r"exist|no file"):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    fluid.io.save_vars(exe, str(tmp_path), vars=["fc_0.w_0"], filename=filename)
    # One file for all does not say which variables it holds, only how many.
    few = r"holds 1 tensor, and 2 are asked for: it lacks 'fc_0\.[bw]_0'; was it saved from another program"
    error, message = (KeyError, r"fc_0\.[bw]_0") if filename is None else (errors.DataLoss, few)
    with pytest.raises(error, match=message):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    with pytest.raises(TypeError, match="Executor"):
        fluid.io.save_params("exe", str(tmp_path))


def test_a_model_is_fed_what_persisted_while_it_was_trained(exe: fluid.Executor, tmp_path: Path) -> None:
    x = fluid.data("x", [None, 2])
    x.persistable = True
    out = fluid.layers.scale(x, 2.0)
    exe.run(feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[out])
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["__model__"]
    for _ in range(2):
        loaded, feeds, outs = fluid.io.load_inference_model(str(tmp_path), exe)
        for value in (3, 4):
            assert exe.run(loaded, {feeds[0]: np.full((1, 2), value, np.float32)}, outs)[0].tolist() == [
                [2 * value] * 2
            ]
        # As Fluid saves it: feeds persist, and have files.
        (tmp_path / "__model__").write_bytes(_persisting(loaded, "x"))
        fluid.io.save_vars(exe, str(tmp_path), vars=["x"])


def _persisting(program: fluid.Program, name: str) -> bytes:
    program.global_block().var(name).persistable = True
    return program.serialize_to_string()


def test_a_persistable_result_is_loaded_whatever_its_shape_was(exe: fluid.Executor, tmp_path: Path) -> None:
    """A detector's masks, say, which a program keeps and a branch without objects gives another shape."""
    x = fluid.data("x", [None, 2])
    out = fluid.layers.fc(x, 3, param_attr="w", bias_attr=False)
    out.persistable = True
    program = fluid.default_main_program()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"x": np.ones((4, 2), np.float32)}, fetch_list=[out])
    fluid.global_scope().find_var(out.name).get_tensor().set(np.zeros((1, 1, 1), np.float32))
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe, program)
    with fluid.scope_guard(fluid.Scope()):
        loaded, _, outs = fluid.io.load_inference_model(str(tmp_path), exe)
        assert exe.run(loaded, {"x": np.ones((4, 2), np.float32)}, outs)[0].shape == (4, 3)
    fluid.global_scope().find_var("w").get_tensor().set(np.zeros((1, 1), np.float32))
    fluid.io.save_persistables(exe, str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"'w' has shape \[2, 3\], but \[1, 1\] was saved"):
        fluid.io.load_persistables(exe, str(tmp_path / "other"))


def test_a_whole_program_is_saved_unless_it_is_for_deployment(exe: fluid.Executor, tmp_path: Path) -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 1])
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, 1), y))
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    program = fluid.default_main_program()
    exe.run(fluid.default_startup_program())
    assert fluid.io.save_inference_model(str(tmp_path), [], [], exe, export_for_deployment=False) == []
    whole = fluid.Program.parse_from_string((tmp_path / "__model__.main_program").read_bytes())
    assert [op.type for op in whole.global_block().ops] == [op.type for op in program.global_block().ops]
    names = {var.name for var in program.list_vars() if var.persistable}
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith((".", "__model__"))} == names
    with pytest.raises(ValueError, match="something to fetch"):
        fluid.io.save_inference_model(str(tmp_path), [], [], exe)


def test_an_executor_of_a_module_that_was_loaded_again_will_do(tmp_path: Path) -> None:
    """Programs reload fluid.executor to begin with a scope of their own."""
    spec = importlib.util.find_spec("headrace.fluid.executor")
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    exe = again.Executor(fluid.CPUPlace())
    assert not isinstance(exe, fluid.Executor)
    fluid.layers.fc(fluid.layers.data("x", [2]), 3, param_attr="w", bias_attr=False)
    exe.run(fluid.default_startup_program(), scope=fluid.global_scope())
    fluid.io.save_params(exe, str(tmp_path / "params"))
    fluid.io.load_params(exe, str(tmp_path / "params"))
    fluid.io.save_checkpoint(exe, str(tmp_path / "checkpoints"))
    assert fluid.io.load_checkpoint(exe, str(tmp_path / "checkpoints")) == {}


@pytest.mark.parametrize("earlier", [False, True], ids=["Fluid's format", "that of earlier versions"])
def test_a_file_with_more_than_the_array_is_refused(exe: fluid.Executor, tmp_path: Path, earlier: bool) -> None:
    fluid.layers.fc(fluid.layers.data("x", [2]), 3, param_attr="w", bias_attr=False)
    exe.run(fluid.default_startup_program())
    if earlier:
        np.save(tmp_path / "w.npy", value("w"))
    else:
        fluid.io.save_params(exe, str(tmp_path))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(errors.DataLoss, match=r"'w'.*after the array of shape \[2, 3\]|w' holds more than"):
        fluid.io.load_params(exe, str(tmp_path))


@one_or_many
def test_lods_are_kept(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    block = fluid.default_main_program().global_block()
    words = block.create_var("words", [5, 1], "float32", lod_level=1, persistable=True)
    tensor = fluid.create_lod_tensor(np.arange(5, dtype=np.float32).reshape(5, 1), [[2, 3]])
    fluid.global_scope().var("words").get_tensor()._assign(tensor)
    fluid.io.save_persistables(exe, str(tmp_path), filename=filename)
    other = fluid.Scope()
    fluid.io.load_vars(exe, str(tmp_path), vars=[words], filename=filename, scope=other)
    loaded = other.find_var("words").get_tensor()
    assert loaded.recursive_sequence_lengths() == [[2, 3]]
    np.testing.assert_array_equal(np.array(loaded), np.array(tensor))


@one_or_many
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_values_of_all_dtypes_are_kept(exe: fluid.Executor, tmp_path: Path, filename: str | None, dtype: str) -> None:
    saved = np.array([[0, 1, 2], [3, 100, 7]]).astype(dtype)
    fluid.default_main_program().global_block().create_var("x", saved.shape, dtype, persistable=True)
    fluid.global_scope().var("x").get_tensor().set(saved)
    fluid.io.save_persistables(exe, str(tmp_path), filename=filename)
    fluid.global_scope().find_var("x").get_tensor().set(np.zeros_like(saved))
    fluid.io.load_persistables(exe, str(tmp_path), filename=filename)
    assert value("x").dtype == saved.dtype
    np.testing.assert_array_equal(value("x"), saved)


@one_or_many
def test_what_earlier_versions_saved_is_loaded_unless_there_is_newer(
    exe: fluid.Executor, tmp_path: Path, filename: str | None
) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    arrays = {"fc_0.w_0": np.full((4, 1), 5, np.float32), "fc_0.b_0": np.full(1, 6, np.float32)}
    if filename is None:
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
    else:
        with open(tmp_path / filename, "wb") as file:
            np.savez(file, **arrays)
    fluid.io.load_params(exe, str(tmp_path), filename=filename)
    assert (value("fc_0.w_0")[0, 0], value("fc_0.b_0")[0]) == (5, 6)
    fluid.global_scope().find_var("fc_0.b_0").get_tensor().set(np.full(1, 8, np.float32))
    fluid.io.save_params(exe, str(tmp_path), filename=filename)
    fluid.io.load_params(exe, str(tmp_path), filename=filename)
    assert (value("fc_0.w_0")[0, 0], value("fc_0.b_0")[0]) == (5, 8)


@one_or_many
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04nonsense", b"\x93NUMPY\x01\x00v\x00{"])
def test_a_corrupt_file_is_refused(exe: fluid.Executor, tmp_path: Path, filename: str | None, content: bytes) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    for name in ("all", "fc_0.w_0", "fc_0.b_0"):
        (tmp_path / name).write_bytes(content)
    before = value("fc_0.w_0")
    with pytest.raises(errors.DataLoss):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    np.testing.assert_array_equal(value("fc_0.w_0"), before)


@one_or_many
@pytest.mark.parametrize("kept", [0, 30, -1], ids=["nothing", "a part", "all but a byte"])
def test_a_file_that_is_cut_off_changes_none_of_the_variables(
    exe: fluid.Executor, tmp_path: Path, filename: str | None, kept: int
) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    fluid.io.save_params(exe, str(tmp_path), filename=filename)
    names = ("fc_0.b_0", "fc_0.w_0")
    # Of the two, the one that is read last.
    last = tmp_path / (filename or names[-1])
    last.write_bytes(last.read_bytes()[:kept])
    for name in names:
        tensor = fluid.global_scope().var(name).get_tensor()
        tensor.set(np.full(tensor.shape(), 7, np.float32), fluid.CPUPlace())
    with pytest.raises(errors.DataLoss):
        fluid.io.load_params(exe, str(tmp_path), filename=filename)
    assert [np.unique(value(name)).tolist() for name in names] == [[7], [7]]


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
    assert saved == ["save_infer_model/scale_0"]
    assert not fluid.default_main_program().global_block().has_var(saved[0])
    weights, bias = value("fc_0.w_0"), value("fc_0.b_0")
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path), exe, params_filename=filename)
        assert [op.type for op in program.global_block().ops] == ["feed", "mul", "elementwise_add", "scale", "fetch"]
        batch = regression_batch(9)[0]
        (got,) = exe.run(program, feed={feeds[0]: batch}, fetch_list=fetches)
        np.testing.assert_allclose(got, batch @ weights + bias, rtol=1e-5, atol=1e-6)
        assert sorted(fluid.global_scope().local_var_names()) == ["fc_0.b_0", "fc_0.w_0", "feed", "fetch"]


def test_targets_that_need_a_reader_cannot_be_saved(exe: fluid.Executor, tmp_path: Path) -> None:
    reader = fluid.layers.py_reader(4, [[-1, 1]] * 3, ["float32"] * 3, name="train")
    x, y, z = fluid.layers.read_file(reader)
    exe.run(fluid.default_startup_program())
    target = fluid.layers.elementwise_add(x, z)
    with pytest.raises(ValueError, match=f"depends on '{x.name}', '{z.name}', which the program reads from 'train':"):
        fluid.io.save_inference_model(str(tmp_path), [y.name], [target], exe)
    with pytest.raises(ValueError, match=f"depends on '{z.name}', which"):
        fluid.io.save_inference_model(str(tmp_path), [x.name], [target], exe)
    with pytest.raises(ValueError, match=f"depends on '{y.name}', which"):
        fluid.io.save_inference_model(str(tmp_path), [x.name, z.name], [target, y], exe)
    with pytest.raises(ValueError, match="something to fetch"):
        fluid.io.save_inference_model(str(tmp_path), [], [], exe)


@pytest.mark.parametrize("trained", [False, True])
def test_an_inference_model_leaves_out_loops_that_it_does_not_need(
    exe: fluid.Executor, tmp_path: Path, trained: bool
) -> None:
    layers = fluid.layers
    x = fluid.data("x", [None, 3])
    hidden, n = layers.fc(x, 3), layers.fill_constant([1], "int64", 2)
    i = layers.fill_constant([1], "int64", 0)
    _, auxiliary = layers.while_loop(
        lambda i, s: layers.less_than(i, n),
        lambda i, s: [layers.increment(i), layers.cond(n > i, lambda: s * hidden, lambda: s)],
        [i, layers.assign(hidden)],
    )
    needed = layers.cond(n > i, lambda: hidden * 2.0, lambda: hidden)
    if trained:
        fluid.optimizer.SGD(0.1).minimize(layers.mean(auxiliary) + layers.mean(needed))
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [needed], exe)
    feed = {"x": np.ones((2, 3), np.float32)}
    with fluid.scope_guard(fluid.Scope()):
        loaded, _, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        (got,) = exe.run(loaded, feed=feed, fetch_list=targets)
    (want,) = exe.run(fluid.default_main_program().clone(for_test=True), feed=feed, fetch_list=[needed])
    np.testing.assert_array_equal(got, want)
    assert [len(block.ops) > 0 for block in loaded.blocks].count(True) == 3  # the root's and the choice's two


def test_arguments_of_save_inference_model_that_are_something_else(exe: fluid.Executor, tmp_path: Path) -> None:
    x, _, loss = fed_regression()
    exe.run(fluid.default_startup_program())
    folder = str(tmp_path / "model")
    for feeds in ([x], [1], None, x):
        with pytest.raises(errors.TypeMismatch, match=r"^feeded_var_names (takes the names of variables|has to be)"):
            fluid.io.save_inference_model(folder, feeds, [loss], exe)  # type: ignore[arg-type]
    for targets in (["x"], "x", None, [None]):
        with pytest.raises(errors.TypeMismatch, match=r"^target_vars (takes Variables|has to be a list)"):
            fluid.io.save_inference_model(folder, ["x", "y"], targets, exe)  # type: ignore[arg-type]
    with pytest.raises(errors.NotFound, match="the program has no variable 'z' to feed"):
        fluid.io.save_inference_model(folder, ["z"], [loss], exe)
    with pytest.raises(errors.NotFound, match=f"the program has no variable '{loss.name}' to fetch"):
        fluid.io.save_inference_model(folder, [], [loss], exe, main_program=fluid.default_startup_program())
    assert not (tmp_path / "model").exists()
    fluid.io.save_inference_model(folder, ("x", "y"), (loss,), exe)
    assert fluid.io.load_inference_model(folder, exe)[1] == ["x", "y"]


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
    with pytest.raises(errors.DataLoss, match="__model__: the 8 bytes are not"):
        fluid.io.load_inference_model(str(tmp_path), exe)
    program = fluid.default_main_program().serialize_to_string()
    assert b"elementwise_sub" in program
    (tmp_path / "__model__").write_bytes(program.replace(b"elementwise_sub", b"elementwise_suB"))
    with pytest.raises(errors.NotFound, match="__model__: there is no operator 'elementwise_suB'"):
        fluid.io.load_inference_model(str(tmp_path), exe)
    (tmp_path / "__model__").unlink()
    (tmp_path / "__model__").mkdir()
    with pytest.raises(errors.IoError, match=r"the model .*__model__ cannot be read"):
        fluid.io.load_inference_model(str(tmp_path), exe)


def test_parameters_in_one_file_are_not_looked_for_one_by_one(exe: fluid.Executor, tmp_path: Path) -> None:
    _, _, loss = fed_regression()
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path), ["x", "y"], [loss], exe, params_filename="all")
    with pytest.raises(
        errors.NotFound, match=r"no value is stored for 'fc_0.b_0': .* pass its name as .*params_filename"
    ):
        fluid.io.load_inference_model(str(tmp_path), exe)


@one_or_many
def test_a_failed_save_leaves_what_was_there(exe: fluid.Executor, tmp_path: Path, filename: str | None) -> None:
    fed_regression()
    exe.run(fluid.default_startup_program())
    fluid.io.save_params(exe, str(tmp_path), filename=filename)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in ("fc_0.w_0", "fc_0.b_0"):
        fluid.global_scope().find_var(name).get_tensor().set(value(name) + 1)
    blocked = "all" if filename else "fc_0.w_0"  # the first file of two is written by then
    (tmp_path / f".{blocked}.unfinished-of-set").mkdir()
    with pytest.raises(OSError, match=blocked):
        fluid.io.save_params(exe, str(tmp_path), filename=filename)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_what_a_process_left_half_renamed_is_completed(exe: fluid.Executor, tmp_path: Path) -> None:
    """All files were on the disk and noted down; then the process died."""
    fed_regression()
    exe.run(fluid.default_startup_program())
    fluid.io.save_params(exe, str(tmp_path))
    old = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for name in old:
        fluid.global_scope().find_var(name).get_tensor().set(value(name) + 1)
    expected = {name: value(name) for name in old}
    fluid.io.save_params(exe, str(tmp_path))
    (tmp_path / "fc_0.w_0").rename(tmp_path / ".fc_0.w_0.unfinished-of-set")
    (tmp_path / "fc_0.w_0").write_bytes(old["fc_0.w_0"])
    (tmp_path / ".unfinished-set").write_bytes(b"fc_0.b_0\0fc_0.w_0\0")
    for name in old:
        fluid.global_scope().find_var(name).get_tensor().set(np.zeros_like(expected[name]))
    fluid.io.load_params(exe, str(tmp_path))
    for name, array in expected.items():
        np.testing.assert_array_equal(value(name), array)
    assert sorted(os.listdir(tmp_path)) == sorted(old)


def test_a_process_that_is_killed_while_it_saves_leaves_all_of_one_save(tmp_path: Path) -> None:
    script = """
        import sys
        import numpy as np
        import headrace.fluid as fluid

        program, exe = fluid.Program(), fluid.Executor()
        for i in range(5):
            program.global_block().create_var(f"v{i}", [1000], "float32", persistable=True)
        for save in range(100_000):
            for i in range(5):
                fluid.global_scope().var(f"v{i}").get_tensor().set(np.full(1000, save, np.float32))
            fluid.io.save_persistables(exe, sys.argv[1], program)
            print(save, flush=True)
    """
    program = fluid.Program()
    for i in range(5):
        program.global_block().create_var(f"v{i}", [1000], "float32", persistable=True)
    for delay in (0.002, 0.011, 0.023):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            for _ in range(3):
                process.stdout.readline()
            time.sleep(delay)
            process.kill()
        fluid.io.load_persistables(fluid.Executor(), str(tmp_path), program)
        loaded = {float(number) for i in range(5) for number in value(f"v{i}")}
        assert len(loaded) == 1
        assert loaded.pop() >= 2


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


def test_a_folder_without_counters_of_random_operators_is_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    """Such as one of Fluid's."""
    main = fluid.default_main_program()
    main.random_seed = 3
    x = fluid.data("x", [None, 4])
    out = fluid.layers.dropout(fluid.layers.fc(x, 8), 0.5)
    exe.run(fluid.default_startup_program())
    fluid.io.save_persistables(exe, str(tmp_path))
    (counter,) = tmp_path.glob("*.run")
    counter.unlink()
    fed = {"x": np.ones((2, 4), np.float32)}
    first, second = (exe.run(feed=fed, fetch_list=[out])[0] for _ in range(2))
    fluid.io.load_persistables(exe, str(tmp_path))
    third = exe.run(feed=fed, fetch_list=[out])[0]
    assert len({array.tobytes() for array in (first, second, third)}) == 3
    kept = [var for var in main.list_vars() if var.persistable and not var.name.endswith(".run")]
    fluid.io.save_vars(exe, str(tmp_path), vars=kept, filename="all")
    fluid.io.load_persistables(exe, str(tmp_path), filename="all")
    fluid.io.save_vars(exe, str(tmp_path), vars=kept[1:], filename="all")
    with pytest.raises(errors.DataLoss):
        fluid.io.load_persistables(exe, str(tmp_path), filename="all")
    (tmp_path / kept[0].name).unlink()
    with pytest.raises(errors.NotFound, match="no value is stored"):
        fluid.io.load_persistables(exe, str(tmp_path))


def test_a_folder_without_counters_of_operators_in_a_block_is_loaded(exe: fluid.Executor, tmp_path: Path) -> None:
    main, layers = fluid.default_main_program(), fluid.layers
    main.random_seed = 3
    x = fluid.data("x", [None, 4])
    layers.fc(x, 8)
    layers.cond(layers.less_than(layers.mean(x), layers.mean(x) + 1.0), lambda: layers.dropout(x, 0.5), lambda: x * 2.0)
    exe.run(fluid.default_startup_program())
    fluid.io.save_persistables(exe, str(tmp_path))
    (counter,) = tmp_path.glob("*.run")
    counter.unlink()
    fluid.io.load_persistables(exe, str(tmp_path))


def test_a_model_that_is_loaded_keeps_the_names_of_what_it_computes(exe: fluid.Executor, tmp_path: Path) -> None:
    x = fluid.data("x", [None, 2])
    targets = [x * 2.0, fluid.layers.argmax(x, 1), x > 1.0]
    names = fluid.io.save_inference_model(str(tmp_path / "one"), ["x"], targets, exe)
    assert names == ["save_infer_model/scale_0", "save_infer_model/scale_1", targets[2].name]
    program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path / "one"), exe)
    again = fluid.io.save_inference_model(str(tmp_path / "two"), feeds, [fetches[1], fetches[0]], exe, program)
    assert again == names[1::-1]
    program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path / "two"), exe)
    found, doubled = exe.run(program, {"x": np.array([[1, 3]], np.float32)}, fetches)
    assert (found.tolist(), doubled.tolist()) == ([1], [[2, 6]])


def test_a_model_has_to_be_fed_with_all_data_that_it_needs(exe: fluid.Executor, tmp_path: Path) -> None:
    x, y = fluid.layers.data("x", [2]), fluid.layers.data("y", [1])
    out = fluid.layers.fc(x, 1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(out, y))
    exe.run(fluid.default_startup_program())
    for feeds, target, missing in ((["y"], out, "x"), (["x"], loss, "y"), ([], out, "x")):
        with pytest.raises(
            errors.InvalidArgument, match=f"depends on '{missing}', which operator '(mul|.*sub|.*)' reads"
        ):
            fluid.io.save_inference_model(str(tmp_path), feeds, [target], exe)
    assert not list(tmp_path.iterdir())
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe)


@pytest.mark.parametrize("way", ["operator", "switch", "loop", "read"])
def test_a_model_keeps_what_changes_a_feed_in_place(exe: fluid.Executor, tmp_path: Path, way: str) -> None:
    if way == "read":
        reader = fluid.layers.py_reader(2, [[-1, 2]], ["float32"])
        x = fluid.layers.read_file(reader)
    else:
        x = fluid.data("x", [None, 2])
    if way == "switch":
        with (
            fluid.layers.Switch() as switch,
            switch.case(fluid.layers.less_than(*(fluid.layers.reduce_mean(v) for v in (-x, x)))),
        ):
            fluid.layers.assign(x * 3.0, x)
    elif way == "loop":
        count, step = (fluid.layers.fill_constant([1], "int64", value) for value in (2, 0))
        less = fluid.layers.less_than(step, count)
        with fluid.layers.While(less).block():
            fluid.layers.assign(x + 1.0, x)
            fluid.layers.increment(step)
            fluid.layers.less_than(step, count, cond=less)
    else:
        fluid.layers.assign(x + 2.0, x)
    target = x * 2.0
    fluid.io.save_inference_model(str(tmp_path), [x.name], [target], exe)
    program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), exe)
    (found,) = exe.run(program, feed={feeds[0]: np.ones((1, 2), np.float32)}, fetch_list=targets)
    np.testing.assert_array_equal(found, [[6.0, 6.0]])


@pytest.mark.parametrize("way", ["operators", "branches"])
def test_a_model_may_be_fed_what_the_program_computes(exe: fluid.Executor, tmp_path: Path, way: str) -> None:
    """Whatever computes it is left out."""
    x = fluid.data("x", [None, 2])
    if way == "operators":
        hidden = fluid.layers.fc(x, 3, param_attr="unused")
        fluid.layers.assign(hidden * 3.0, hidden)
    else:
        less = fluid.layers.less_than(fluid.layers.reduce_mean(x), fluid.layers.reduce_max(x))
        hidden = fluid.layers.cond(less, lambda: fluid.layers.fc(x, 3), lambda: fluid.layers.fc(x, 3))
    fluid.io.save_inference_model(str(tmp_path), [hidden.name], [hidden + 1.0], exe)  # needs no parameters
    assert [path.name for path in tmp_path.iterdir()] == ["__model__"]
    program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), exe)
    (found,) = exe.run(program, feed={feeds[0]: np.ones((1, 3), np.float32)}, fetch_list=targets)
    np.testing.assert_array_equal(found, [[2.0, 2.0, 2.0]])


@pytest.mark.parametrize("deployed", [True, False])
def test_a_model_can_be_saved_without_parameters(exe: fluid.Executor, tmp_path: Path, deployed: bool) -> None:
    out = fluid.layers.fc(fluid.data("x", [None, 2]), 1)  # whose parameters nobody has initialized
    fluid.io.save_inference_model(str(tmp_path), ["x"], [out], exe, export_for_deployment=deployed, program_only=True)
    name = "__model__" if deployed else "__model__.main_program"
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [name]
    exe.run(fluid.default_startup_program())
    fluid.io.save_inference_model(str(tmp_path / "whole"), ["x"], [out], exe, export_for_deployment=deployed)
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / name).read_bytes()
    with pytest.raises(errors.Unimplemented, match="pserver_endpoints"):
        fluid.io.load_inference_model(str(tmp_path), exe, pserver_endpoints=["127.0.0.1:1"])


@pytest.mark.parametrize("filename", [None, "all"])
def test_a_program_without_variables_to_save_or_load_is_warned_about(
    exe: fluid.Executor, tmp_path: Path, filename: str | None
) -> None:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        fluid.layers.fc(fluid.data("x", [None, 4]), 3)
    folder, empty = str(tmp_path / "folder"), fluid.Program()
    of_default = "nothing is {}; if the network was built under program_guard, pass main_program$"
    with pytest.warns(UserWarning, match="the program has no persistable variables: " + of_default.format("saved")):
        fluid.io.save_persistables(exe, folder, filename=filename)
    with pytest.warns(UserWarning, match="the program has no parameters: " + of_default.format("saved")):
        fluid.io.save_params(exe, folder, filename=filename)
    with pytest.warns(UserWarning, match="the program has no persistable variables: nothing is saved$"):
        fluid.io.save_persistables(exe, folder, empty, filename=filename)
    with pytest.warns(UserWarning, match="the program has no variables for which predicate holds: nothing is saved$"):
        fluid.io.save_vars(exe, folder, empty, predicate=lambda var: False, filename=filename)
    with pytest.warns(UserWarning, match="vars is empty: nothing is saved$"):
        fluid.io.save_vars(exe, folder, vars=[], filename=filename)
    assert not os.path.exists(folder)
    with pytest.warns(UserWarning, match="the program has no persistable variables: " + of_default.format("loaded")):
        fluid.io.load_persistables(exe, folder, filename=filename)
    with pytest.warns(UserWarning, match="the program has no parameters: nothing is loaded$"):
        fluid.io.load_params(exe, folder, empty, filename=filename)
    with pytest.warns(UserWarning, match="vars is empty: nothing is loaded$"):
        fluid.io.load_vars(exe, folder, vars=[], filename=filename)
