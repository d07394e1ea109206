"""layers.Print."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers


def network(**kwargs: object) -> None:
    x = fluid.data("x", [2], "float32")
    x.stop_gradient = False
    fluid.backward.append_backward(layers.reduce_sum(layers.square(layers.Print(x, **kwargs))))


@pytest.mark.parametrize(
    ("phase", "shown"),
    [
        ("forward", ["x: float32 [2], [1, 2]"]),
        ("backward", ["print_0.tmp_0@GRAD: float32 [2], [2, 4]"]),
        ("both", ["x: float32 [2], [1, 2]", "print_0.tmp_0@GRAD: float32 [2], [2, 4]"]),
    ],
)
def test_a_phase_is_shown(exe: fluid.Executor, capfd: pytest.CaptureFixture[str], phase: str, shown: list[str]) -> None:
    network(print_phase=phase, message="see")
    (gradient,) = exe.run(feed={"x": np.array([1, 2], np.float32)}, fetch_list=["x@GRAD"])
    np.testing.assert_array_equal(gradient, [2, 4])
    assert capfd.readouterr().err.splitlines() == [f"see {line}" for line in shown]


def test_it_is_shown_first_n_times(exe: fluid.Executor, capfd: pytest.CaptureFixture[str]) -> None:
    out = layers.Print(fluid.data("x", [1]), first_n=2, print_tensor_name=False, print_tensor_type=False)
    for i in range(4):
        (value,) = exe.run(feed={"x": np.array([i], np.float32)}, fetch_list=[out])
        assert value == [i]
    assert capfd.readouterr().err.splitlines() == ["[1], [0]", "[1], [1]"]


def test_a_sparse_gradient_passes(exe: fluid.Executor, capfd: pytest.CaptureFixture[str]) -> None:
    ids = fluid.data("ids", [2, 1], "int64")
    table = layers.create_parameter([5, 2], "float32", name="table")
    shown = layers.Print(table, print_phase="backward", summarize=2)
    rows = shown.block.create_var(name="rows", dtype="float32")
    shown.block.append_op("lookup_table", {"W": shown, "Ids": ids}, {"Out": rows}, {"is_sparse": True})
    fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(rows))
    exe.run(fluid.default_startup_program())
    before = np.array(fluid.global_scope().find_var("table").get_tensor())
    exe.run(feed={"ids": np.array([[1], [3]])})
    after = np.array(fluid.global_scope().find_var("table").get_tensor())
    before[[1, 3]] -= 1
    np.testing.assert_allclose(after, before)
    assert capfd.readouterr().err == "print_0.tmp_0@GRAD: float32 [2, 2], [1, 1, ...]\n"


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"print_phase.*'SOMETIMES'"):
        layers.Print(fluid.data("x", [1]), print_phase="sometimes")
