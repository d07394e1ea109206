"""layers.py_func: Python functions as operators."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid.framework import Variable

layers = fluid.layers
X = np.array([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], np.float32)


def out_like(x: Variable, name: str = "out") -> Variable:
    return fluid.default_main_program().current_block().create_var(name, x.shape, x.dtype)


def squares(backward: Any = None, **kwargs: Any) -> tuple[Variable, Variable]:
    x = layers.data("x", [3])
    x.stop_gradient = False
    return x, layers.py_func(lambda t: np.asarray(t) ** 2, x, out_like(x), backward, **kwargs)


def run(*fetches: Variable | str, feed: dict[str, Any] | None = None) -> list[np.ndarray]:
    return fluid.Executor().run(feed={"x": X} if feed is None else feed, fetch_list=list(fetches))


def test_it_computes_what_the_function_returns_each_time() -> None:
    _, out = squares()
    np.testing.assert_array_equal(run(out)[0], X**2)
    np.testing.assert_array_equal(run(out, feed={"x": 2 * X})[0], 4 * X**2)


def test_the_gradient_is_what_the_second_function_returns() -> None:
    seen = []

    def backward(x: Any, y: Any, dy: Any) -> Any:
        seen.append((np.array(x), np.array(y)))
        return 2 * np.asarray(x) * np.asarray(dy)

    x, out = squares(backward)
    loss = layers.reduce_sum(layers.scale(out, 3.0))
    ((_, gradient),) = fluid.backward.append_backward(loss, [x.name])
    np.testing.assert_allclose(run(gradient)[0], 6 * X)
    np.testing.assert_array_equal(seen[0][0], X)
    np.testing.assert_array_equal(seen[0][1], X**2)


def test_a_function_that_trains_gives_what_operators_give() -> None:
    def losses(use_function: bool) -> list[float]:
        with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
            x = layers.data("x", [3])
            hidden = layers.fc(x, 4, param_attr=fluid.initializer.Constant(0.3))
            if use_function:
                cut_off = lambda t: np.maximum(t, 0)  # noqa: E731
                back = lambda y, dy: np.asarray(dy) * np.greater(y, 0)  # noqa: E731
                hidden = layers.py_func(cut_off, hidden, out_like(hidden), back, hidden)
            else:
                hidden = layers.relu(hidden)
            loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), layers.reduce_sum(x, 1, keep_dim=True)))
            fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 3
            fluid.optimizer.SGD(0.1).minimize(loss)
            executor = fluid.Executor()
            executor.run(fluid.default_startup_program())
            fluid.global_scope().var("fc_1.w_0").get_tensor().set(np.full((4, 1), 0.2, np.float32))
            return [float(executor.run(feed={"x": X}, fetch_list=[loss])[0][0]) for _ in range(5)]

    with fluid.unique_name.guard():
        wanted = losses(False)
    with fluid.unique_name.guard():
        assert losses(True) == pytest.approx(wanted, rel=1e-6)
    assert wanted[-1] < wanted[0]


def test_several_inputs_and_outputs_and_gradients_that_are_not_there() -> None:
    x, y = layers.data("x", [3]), layers.data("y", [3])
    x.stop_gradient = False
    first, second = out_like(x, "first"), out_like(x, "second")
    got = []

    def backward(*args: Any) -> Any:
        got.append([None if a is None else np.array(a) for a in args])
        return np.full_like(X, 7), None  # y has stop_gradient

    layers.py_func(lambda a, b: (np.add(a, b), np.subtract(a, b)), [x, y], [first, second], backward, [x, first])
    loss = layers.reduce_sum(second)
    ((_, gradient),) = fluid.backward.append_backward(loss, [x.name])
    feed = {"x": X, "y": np.ones_like(X)}
    results = run(first, second, gradient, feed=feed)
    for result, wanted in zip(results, (X + 1, X - 1, np.full_like(X, 7))):
        np.testing.assert_array_equal(result, wanted)
    (args,) = got
    assert len(args) == 4  # y, second and the gradients of first, which has none, and second
    np.testing.assert_array_equal(args[1], X - 1)
    assert args[2] is None
    np.testing.assert_array_equal(args[3], np.ones_like(X))


def test_functions_without_inputs_or_outputs() -> None:
    seen = []
    out = fluid.default_main_program().current_block().create_var("out", [2], "int64")
    assert layers.py_func(lambda: np.array([4, 5]), None, out) is out
    assert layers.py_func(lambda t: seen.append(np.array(t)), out, None) is None
    np.testing.assert_array_equal(run(out, feed={})[0], [4, 5])
    np.testing.assert_array_equal(seen, [[4, 5]])


def test_lods_go_in_and_out() -> None:
    x = layers.data("x", [1], lod_level=1)
    out = fluid.default_main_program().current_block().create_var("out", [-1, 1], "float32", lod_level=1)

    def reverse(t: fluid.LoDTensor) -> fluid.LoDTensor:
        result = fluid.LoDTensor.from_numpy(np.asarray(t)[::-1])
        result.set_recursive_sequence_lengths([t.recursive_sequence_lengths()[0][::-1]])
        return result

    layers.py_func(reverse, x, out)
    feed = fluid.create_lod_tensor(np.arange(3, dtype=np.float32)[:, None], [[2, 1]], fluid.CPUPlace())
    (result,) = fluid.Executor().run(feed={"x": feed}, fetch_list=[out], return_numpy=False)
    assert result.recursive_sequence_lengths() == [[1, 2]]
    np.testing.assert_array_equal(np.asarray(result)[:, 0], [2, 1, 0])


def test_an_exception_comes_out_as_it_is_and_the_program_runs_again() -> None:
    class Odd(Exception):
        pass

    error = Odd("really")
    fails = [True]

    def function(t: Any) -> Any:
        if fails[0]:
            raise error
        return np.array(t)

    x = layers.data("x", [3])
    out = layers.py_func(function, x, out_like(x))
    executor = fluid.Executor()
    with pytest.raises(Odd) as caught:
        executor.run(feed={"x": X}, fetch_list=[out])
    assert caught.value is error
    assert any(entry.name == "function" for entry in caught.traceback)
    fails[0] = False
    np.testing.assert_array_equal(executor.run(feed={"x": X}, fetch_list=[out])[0], X)


@pytest.mark.parametrize(
    ("function", "error", "parts"),
    [
        (lambda t: np.asarray(t, np.float64), TypeError, ["'out'", "float32", "float64"]),
        (lambda t: np.asarray(t)[:, :2], ValueError, ["'out'", "[-1, 3]", "[2, 2]"]),
        (lambda t: None, ValueError, ["'out'", "None"]),
        (lambda t: (t, t), ValueError, ["2 results", "expected 1"]),
        (lambda t: fluid.LoDTensor(), ValueError, ["'out'", "empty"]),
        (lambda t: "text", TypeError, ["out"]),
    ],
)
def test_a_result_that_does_not_fit_is_named(function: Any, error: type[Exception], parts: list[str]) -> None:
    x = layers.data("x", [3])
    out = layers.py_func(function, x, out_like(x))
    with pytest.raises(error) as caught:
        run(out)
    for part in (*parts, "py_func"):
        assert part in str(caught.value)


def test_what_the_function_keeps_and_returns_is_its_own() -> None:
    buffer = np.zeros_like(X)
    kept = []

    def function(t: Any) -> Any:
        kept.append(t)
        buffer[:] = t
        return buffer

    x = layers.data("x", [3])
    doubled = layers.scale(x, 2.0)
    out = layers.py_func(function, doubled, out_like(x))
    identity = layers.py_func(lambda t: t, doubled, out_like(x, "identity"))
    twice = layers.scale(identity, 2.0)
    executor = fluid.Executor()
    (first,) = executor.run(feed={"x": X}, fetch_list=[out])
    results = executor.run(feed={"x": -X}, fetch_list=[out, doubled, twice])
    np.testing.assert_array_equal(first, 2 * X)
    np.testing.assert_array_equal(kept[0], 2 * X)
    for result, factor in zip(results, (2, 2, 4)):
        np.testing.assert_array_equal(result, -factor * X)


def test_wrong_use_is_refused_when_the_program_is_built() -> None:
    x = layers.data("x", [3])
    with pytest.raises(TypeError, match="function"):
        layers.py_func(3, x, out_like(x))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Variable"):
        layers.py_func(abs, "x", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shape of 'shapeless'"):
        layers.py_func(abs, x, fluid.default_main_program().current_block().create_var("shapeless"))
    with pytest.raises(ValueError, match="'x', which backward_func would not get"):
        layers.py_func(abs, x, out_like(x, "o"), None, x)
    other = layers.data("other", [3])
    with pytest.raises(ValueError, match="'other', which"):
        layers.py_func(abs, x, out_like(x, "o"), abs, other)


def test_no_gradient_passes_a_function_without_a_second_one() -> None:
    x, out = squares()
    assert fluid.backward.append_backward(layers.reduce_sum(out), [x.name]) == []


def test_it_cannot_run_the_program_that_calls_it() -> None:
    executor = fluid.Executor()
    program = fluid.default_main_program()
    x = layers.data("x", [3])
    layers.py_func(lambda t: executor.run(program, feed={"x": X}), x, None)
    with pytest.raises(RuntimeError, match="a function that it calls"):
        executor.run(program, feed={"x": X})


def test_threads_call_it_at_the_same_time() -> None:
    barrier = threading.Barrier(4)
    x = layers.data("x", [3])
    out = layers.py_func(lambda t: (barrier.wait(60), np.array(t))[1], x, out_like(x))
    executor, program = fluid.Executor(), fluid.default_main_program()
    results: list[np.ndarray] = []

    def work(scope: fluid.Scope) -> None:
        results.extend(executor.run(program, feed={"x": X}, fetch_list=[out], scope=scope))

    threads = [threading.Thread(target=work, args=(fluid.Scope(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert len(results) == 4


def test_functions_end_with_their_programs() -> None:
    class Function:
        def __call__(self, t: Any) -> Any:
            return np.array(t)

    function = Function()
    alive = weakref.ref(function)
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x = layers.data("x", [3])
        out = layers.py_func(function, x, out_like(x))
    del function, x
    clone = program.clone()
    del program
    gc.collect()
    fluid.Executor().run(clone, feed={"x": X}, fetch_list=[out.name])
    parsed = fluid.Program.parse_from_string(clone.serialize_to_string())
    del clone, out
    gc.collect()
    assert alive() is not None
    fluid.Executor().run(parsed, feed={"x": X}, fetch_list=["out"])
    del parsed
    gc.collect()
    assert alive() is None


def test_a_program_that_calls_functions_stays_in_its_process(tmp_path: Path) -> None:
    squares()
    path = tmp_path / "program"
    path.write_bytes(fluid.default_main_program().serialize_to_string())
    code = f"""
import headrace.fluid as fluid
from pathlib import Path
out = fluid.default_main_program().current_block().create_var("o", [1], "float32")
fluid.layers.py_func(lambda: 0, None, out)
try:
    fluid.Program.parse_from_string(Path({str(path)!r}).read_bytes())
except KeyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert "py_func needs the process that has built its program" in done.stdout, done.stderr


def test_a_function_without_a_program_is_not_found() -> None:
    function = fluid.core.PyFunction(abs)
    assert fluid.core.PyFunction.find(function.id) is function
    number = function.id
    del function
    with pytest.raises(errors.NotFound, match=str(number)):
        fluid.core.PyFunction.find(number)
