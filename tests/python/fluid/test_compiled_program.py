"""Programs that ask for several devices run on the one there is; what needs a GPU is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.data import Ragged
from headrace.fluid import layers

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def model() -> Any:
    x = layers.data("x", [3])
    loss = layers.reduce_mean(layers.square(layers.fc(x, 2, param_attr=fluid.ParamAttr(name="w"))))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return loss


def weights() -> Any:
    return np.array(fluid.global_scope().find_var("w").get_tensor())


def trained(exe: fluid.Executor, step: Any) -> Any:
    fluid.default_startup_program().random_seed = 3
    exe.run(fluid.default_startup_program())
    losses = [np.asarray(step()[0]).tolist() for _ in range(3)]
    return losses, weights().tolist()


def test_a_compiled_program_is_saved_as_the_program_that_it_was_made_from(exe: fluid.Executor, tmp_path: Path) -> None:
    x = layers.data("x", [3])
    out = layers.fc(x, 2, param_attr=fluid.ParamAttr(name="w"))
    exe.run(fluid.default_startup_program())
    expected = weights()
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    assert compiled._program is compiled.program is fluid.default_main_program()
    with fluid.program_guard(fluid.Program()):
        fluid.io.save_inference_model(str(tmp_path / "model"), ["x"], [out], exe, compiled)
        fluid.io.save_persistables(exe, str(tmp_path / "all"), compiled)
        np.testing.assert_array_equal(fluid.io.get_parameter_value_by_name("w", exe, compiled), expected)
        fluid.global_scope().find_var("w").get_tensor().set(np.zeros((3, 2), np.float32))
        fluid.io.load_persistables(exe, str(tmp_path / "all"), compiled)
        np.testing.assert_array_equal(weights(), expected)
        for save, load in (
            (lambda p: fluid.save(p, tmp_path / "state"), lambda p: fluid.load(p, tmp_path / "state")),
            (
                lambda p: fluid.io.save_checkpoint(exe, tmp_path / "checkpoints", p),
                lambda p: fluid.io.load_checkpoint(exe, tmp_path / "checkpoints", p),
            ),
        ):
            save(compiled)
            fluid.global_scope().find_var("w").get_tensor().set(np.zeros((3, 2), np.float32))
            load(compiled)
            np.testing.assert_array_equal(weights(), expected)
            with pytest.raises(errors.TypeMismatch, match="expected a Program or CompiledProgram, got str"):
                save("main")
        with pytest.raises(errors.TypeMismatch, match="expected a Program or CompiledProgram, got str"):
            fluid.io.save_params(exe, str(tmp_path / "all"), "main")  # type: ignore[arg-type]
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, fetches = fluid.io.load_inference_model(str(tmp_path / "model"), exe)
        (got,) = exe.run(program, feed={feeds[0]: X}, fetch_list=fetches)
    np.testing.assert_allclose(got, X @ expected, rtol=1e-5)


def test_a_compiled_program_trains_as_the_program_does(exe: fluid.Executor) -> None:
    loss = model()
    main = fluid.default_main_program()
    expected = trained(exe, lambda: exe.run(main, feed={"x": X}, fetch_list=[loss]))
    build, execution = fluid.BuildStrategy(), fluid.ExecutionStrategy()
    build.memory_optimize = True
    build.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    execution.num_threads = 4
    execution.num_iteration_per_drop_scope = 1
    compiled = fluid.CompiledProgram(main, build).with_data_parallel(
        loss_name=loss.name, exec_strategy=execution, places=fluid.cpu_places(2)
    )
    assert trained(exe, lambda: exe.run(compiled, feed={"x": X}, fetch_list=[loss])) == expected
    at_one_place = fluid.CompiledProgram(main).with_data_parallel(loss.name, places=fluid.CPUPlace())
    assert at_one_place.places == (fluid.CPUPlace(),)
    assert trained(exe, lambda: exe.run(at_one_place, feed={"x": X}, fetch_list=[loss])) == expected
    halves = [{"x": X[:2]}, {"x": X[2:]}]
    assert trained(exe, lambda: exe.run(compiled, feed=halves, fetch_list=[loss.name])) == expected
    parallel = fluid.ParallelExecutor(
        False, loss.name, exec_strategy=execution, build_strategy=build, share_vars_from=None
    )
    assert parallel.device_count == 1
    assert trained(exe, lambda: parallel.run([loss], feed=halves)) == expected
    assert trained(exe, lambda: parallel.run(fetch_list=[loss.name], feed_dict={"x": X})) == expected
    parallel.drop_local_exe_scopes()
    fluid.memory_optimize(main)
    fluid.release_memory(main)
    assert trained(exe, lambda: exe.run(main, feed={"x": X}, fetch_list=[loss])) == expected


def test_a_parallel_executor_has_a_scope_of_its_own(exe: fluid.Executor) -> None:
    loss = model()
    scope = fluid.Scope()
    with fluid.scope_guard(scope):
        exe.run(fluid.default_startup_program())
    parallel = fluid.ParallelExecutor(use_cuda=False, main_program=fluid.default_main_program(), scope=scope)
    assert np.isfinite(parallel.run([loss], feed={"x": X})[0]).all()
    assert fluid.global_scope().find_var("w") is None


@pytest.mark.parametrize(
    ("run", "error", "message"),
    [
        (lambda p: fluid.CompiledProgram(3), errors.TypeMismatch, "takes a Program, got int"),
        (lambda p: fluid.CompiledProgram(p, 3), errors.TypeMismatch, "build_strategy has to be a BuildStrategy"),
        (lambda p: fluid.CompiledProgram(p).with_data_parallel("nothing"), errors.NotFound, "loss_name has to name"),
        (
            lambda p: fluid.CompiledProgram(p).with_data_parallel(places=["gpu"]),
            errors.TypeMismatch,
            "places has to be",
        ),
        (
            lambda p: fluid.ParallelExecutor(True),
            errors.Unimplemented,
            "pass use_cuda=False, or set .*HEADRACE_CUDA_ON_CPU=1",
        ),
        (lambda p: fluid.ParallelExecutor(False, num_trainers=2), errors.Unimplemented, "num_trainers=1"),
        (lambda p: fluid.CUDAPlace(0), errors.Unimplemented, r"CUDAPlace\(0\).*fluid.CPUPlace\(\)"),
        (lambda p: fluid.CUDAPinnedPlace(), errors.Unimplemented, r"CUDAPinnedPlace\(\)"),
        (lambda p: fluid.cuda_places(), errors.Unimplemented, "CPU only"),
        (lambda p: fluid.cuda_pinned_places(), errors.Unimplemented, "CPU only"),
        (lambda p: fluid.device_guard("gpu").__enter__(), errors.Unimplemented, "device_guard"),
        (lambda p: fluid.cpu_places(0), errors.InvalidArgument, "positive number"),
        (lambda p: fluid.memory_optimize(3), errors.TypeMismatch, "input_program"),
        (
            lambda p: setattr(fluid.BuildStrategy(), "nonsense", 1),
            AttributeError,
            "has no setting 'nonsense'; those are",
        ),
        (lambda p: setattr(fluid.BuildStrategy(), "enable_inplace", "no"), errors.TypeMismatch, "False by default"),
        (lambda p: fluid.DistributeTranspiler, AttributeError, "programs run on one machine"),
        (lambda p: fluid.DatasetFactory, AttributeError, "layers.py_reader"),
        (lambda p: fluid.dygraph, AttributeError, "an Executor runs"),
        (lambda p: fluid.nonsense, AttributeError, "no attribute 'nonsense'"),
    ],
)
def test_what_cannot_be_is_refused(run: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run(fluid.default_main_program())


def test_sequences_fed_for_several_devices_are_joined_level_by_level(exe: fluid.Executor) -> None:
    x = layers.data("x", [3], lod_level=2)
    out = layers.scale(x, 2.0)
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    first = fluid.create_lod_tensor(X, [[1, 2], [1, 0, 3]])
    second = fluid.create_lod_tensor(X[:1], [[1], [1]])
    (got,) = exe.run(compiled, feed=[{"x": first}, {"x": second}], fetch_list=[out], return_numpy=False)
    assert got.recursive_sequence_lengths() == [[1, 2, 1], [1, 0, 3, 1]]
    np.testing.assert_array_equal(np.asarray(got), 2 * np.concatenate([X, X[:1]]))
    ragged = Ragged(X, np.array([0, 1, 4]))
    (got,) = exe.run(compiled, feed=[{"x": ragged}, {"x": ragged}], fetch_list=[out], return_numpy=False)
    assert got.recursive_sequence_lengths() == [[1, 3, 1, 3]]


def test_persistable_variables_fed_for_several_devices_are_not_joined(exe: fluid.Executor) -> None:
    x = layers.data("x", [3])
    table = layers.create_parameter([4, 3], "float32", name="table")
    out = layers.elementwise_add(x, layers.reduce_sum(table, dim=0))
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel()
    feed = [{"x": X, "table": X}, {"x": X[:2], "table": X}]
    (got,) = exe.run(compiled, feed=feed, fetch_list=[out])
    np.testing.assert_array_equal(got, np.concatenate([X, X[:2]]) + X.sum(0))
    np.testing.assert_array_equal(np.asarray(fluid.global_scope().find_var("table").get_tensor()), X)


def test_feeds_for_several_devices_that_do_not_fit(exe: fluid.Executor) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    compiled = fluid.CompiledProgram(fluid.default_main_program())
    ragged = fluid.create_lod_tensor(X, [[1, 3]], fluid.CPUPlace())
    for feed, message in (
        ([{"x": X}, {"y": X}], "the same names"),
        ([{"x": X}, {"x": X[:, :2]}], "'x' in a feed for several devices cannot be joined: .*; pad the parts alike"),
        ([{"x": ragged}, {"x": X}], "'x' in a feed for several devices cannot be joined: .* LoDs of 0 and 1 levels"),
    ):
        with pytest.raises(errors.InvalidArgument, match=message):
            exe.run(compiled, feed=feed, fetch_list=[loss])
    with pytest.raises(errors.TypeMismatch, match="list of such mappings"):
        exe.run(compiled, feed=[X], fetch_list=[loss])
    with pytest.raises(errors.TypeMismatch, match="feed has to map names to values"):
        exe.run(fluid.default_main_program(), feed=[{"x": X}, {"x": X}], fetch_list=[loss])


def test_results_are_those_of_one_device(exe: fluid.Executor) -> None:
    loss = model()
    exe.run(fluid.default_startup_program())
    for places in (None, fluid.cpu_places(2)):
        program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(loss.name, places=places)
        fetched = exe.run(program, {"x": X}, [loss])[0]
        assert fetched.shape == (len(program._places),) == (1,)  # programs take the mean of each device's part


def test_places(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fluid.cpu_places() == [fluid.CPUPlace()]
    monkeypatch.setenv("CPU_NUM", "3")
    assert len(fluid.cpu_places()) == 3
    monkeypatch.setenv("CPU_NUM", "")  # as Executor reads it
    assert fluid.cpu_places() == [fluid.CPUPlace()]
    monkeypatch.setenv("CPU_NUM", "many")
    with pytest.raises(errors.InvalidArgument, match=r"variable CPU_NUM: expected .*'many'"):
        fluid.cpu_places()
    assert not fluid.is_compiled_with_cuda()
    assert not fluid.in_dygraph_mode()
    assert fluid.device.get_cuda_device_count() == 0
    with fluid.device_guard("cpu"), fluid.device_guard():
        assert not isinstance(fluid.CPUPlace(), fluid.CUDAPlace)


def test_the_cpu_stands_for_a_gpu_if_the_environment_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_CUDA_ON_CPU", "1")
    assert fluid.is_compiled_with_cuda()
    assert fluid.device.get_cuda_device_count() == 1
    assert fluid.cuda_places() == fluid.cuda_places([0]) == [fluid.CUDAPlace(0)]
    assert len(fluid.cuda_pinned_places(2)) == 2
    assert repr(fluid.CUDAPlace(0)) == "CUDAPlace(0)"
    with pytest.raises(errors.Unimplemented, match=r"CUDAPlace\(1\): the CPU stands for one GPU"):
        fluid.CUDAPlace(1)
    with fluid.device_guard("gpu"):
        loss = model()
    exe = fluid.Executor(fluid.CUDAPlace(0))
    exe.run(fluid.default_startup_program())
    (first,) = exe.run(feed={"x": X}, fetch_list=[loss])
    parallel = fluid.ParallelExecutor(use_cuda=True, loss_name=loss.name)
    with fluid.profiler.cuda_profiler("unused"), fluid.profiler.profiler("GPU", profile_path=str(tmp_path / "trace")):
        (second,) = parallel.run([loss], feed={"x": X})
    compiled = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(places=fluid.cuda_places())
    (third,) = exe.run(compiled, feed={"x": X}, fetch_list=[loss])
    assert third.item() < second.item() < first.item()


@pytest.mark.parametrize(
    "versions", [("1.6.0",), ("1.6",), ("1.5.2", "1.7"), ("1.6.0-rc0",), ("0.14",), ("1.6.3", "1.6.3")]
)
def test_versions_that_this_is(versions: tuple[str, ...]) -> None:
    fluid.require_version(*versions)


@pytest.mark.parametrize(
    ("versions", "error", "message"),
    [
        (("1.7",), errors.FailedPrecondition, "needs Fluid 1.7 or newer; headrace.fluid has the names of 1.6.3"),
        (("1.0", "1.5.2"), errors.FailedPrecondition, "needs Fluid 1.5.2 or older"),
        ((1.6,), errors.TypeMismatch, "has to be a text"),
        (("newest",), errors.InvalidArgument, "has to be a version such as"),
        (("1.6.0", "x"), errors.InvalidArgument, "max_version has to be a version"),
    ],
)
def test_versions_that_this_is_not(versions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        fluid.require_version(*versions)


def test_the_version_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    version = fluid.version
    assert version.full_version == f"{version.major}.{version.minor}.{version.patch}" == "1.6.3"
    assert (version.rc, version.istaged, version.mkl()) == ("0", False, "OFF")
    assert len(bytes.fromhex(version.commit)) == 5
    version.show()
    assert capsys.readouterr().out.splitlines()[:2] == ["full_version: 1.6.3", "major: 1"]


def test_the_installation_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    before = len(fluid.default_main_program().global_block().ops)
    fluid.install_check.run_check()
    assert "works" in capsys.readouterr().out
    assert len(fluid.default_main_program().global_block().ops) == before
