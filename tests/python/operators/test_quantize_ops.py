"""fake_quantize_abs_max, fake_quantize_range_abs_max, fake_dequantize_max_abs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.testing import OpTest

X = np.array([[0.5, -2.0, 1.26], [0.0, 1.0, -0.01]])


@pytest.mark.parametrize("bits", [1, 5, 8, 16])
def test_rounding_to_multiples_of_the_greatest_value(bits: int) -> None:
    largest = 2 ** (bits - 1) - 1
    whole = np.sign(X) * np.floor(np.abs(X) / 2 * largest + 0.5)
    outputs = {"Out": (whole, [[1, 1]]), "OutScale": np.array([2.0])}
    OpTest("fake_quantize_abs_max", {"X": (X, [[1, 1]])}, {"bit_length": bits}, outputs).check_outputs()


def test_zeros_stay_zeros_and_what_is_refused() -> None:
    zeros = np.zeros((2, 3))
    outputs = {"Out": zeros, "OutScale": np.array([0.0])}
    OpTest("fake_quantize_abs_max", {"X": zeros}, {}, outputs).check_outputs()
    tiny = np.array([[1e-40, -5e-41, 0]], np.float32)  # which 127 / 1e-40 would overflow for
    result = OpTest("fake_quantize_abs_max", {"X": tiny}, {}, {"Out": None, "OutScale": None}).run()
    assert np.array(result["Out"][0]).tolist() == [[127, -64, 0]]
    for bits in (0, 17):
        OpTest("fake_quantize_abs_max", {"X": X}, {"bit_length": bits}, outputs).check_refused(ValueError, "bit_length")
    inputs = {"X": X, "InScale": np.array([1.0])}
    scales: dict[str, Any] = {"Out": None, "OutScale": None, "OutScales": None}
    OpTest("fake_quantize_range_abs_max", inputs, {}, scales).check_refused(ValueError, "Iter", "is_test")
    OpTest("fake_quantize_range_abs_max", {**inputs, "Iter": np.array([0])}, {"window_size": 0}, scales).check_refused(
        ValueError, "window_size"
    )
    OpTest("fake_quantize_range_abs_max", {**inputs, "Iter": np.array([-1])}, {}, scales).check_refused(
        IndexError, "Iter", when="run"
    )
    for scale in (-1.0, np.nan):
        OpTest(
            "fake_quantize_range_abs_max", {**inputs, "InScale": np.array([scale])}, {"is_test": True}
        ).check_refused(IndexError, "InScale", when="run")


def test_what_lies_outside_of_the_range_is_clipped_in_a_test() -> None:
    outputs = {"Out": np.array([[64, -127, 127], [0, 127, -1]], float), "OutScale": np.array([1.0])}
    inputs = {"X": X, "InScale": np.array([1.0])}
    OpTest("fake_quantize_range_abs_max", inputs, {"is_test": True}, outputs).check_outputs()


def test_dequantize() -> None:
    inputs = {"X": (X, [[1, 1]]), "Scale": np.array([3.0])}
    for greatest in (127.0, 7.0):
        outputs = {"Out": (X * 3 / greatest, [[1, 1]])}
        OpTest("fake_dequantize_max_abs", inputs, {"max_range": greatest}, outputs).check_outputs()
    OpTest("fake_dequantize_max_abs", {"X": X, "Scale": np.ones(2)}, {"max_range": 127.0}).check_refused(
        ValueError, "input Scale", "single element"
    )


def test_the_greatest_scale_of_a_window() -> None:
    """The greatest value of each step stays in force for as many steps as the window has."""
    window, greatest = 3, [1.0, 4.0, 2.0, 3.0, 2.5, 1.0, 0.5, 0.25, 0.125, 8.0]
    program, startup = fluid.Program(), fluid.Program()
    with fluid.program_guard(program, startup):
        x = fluid.layers.data("x", [2], append_batch_size=False)
        step = fluid.layers.data("step", [1], append_batch_size=False, dtype="int64")
        scale = fluid.layers.create_global_var([1], 0.0, "float32", persistable=True)
        scales = fluid.layers.create_global_var([window], 0.0, "float32", persistable=True)
        out = program.global_block().create_var(name="out")
        program.global_block().append_op(
            "fake_quantize_range_abs_max",
            {"X": [x.name], "InScale": [scale.name], "Iter": [step.name]},
            {"Out": [out.name], "OutScale": [scale.name], "OutScales": [scales.name]},
            {"window_size": window},
        )
    executor, scope = fluid.Executor(), fluid.Scope()
    executor.run(startup, scope=scope)
    for i, value in enumerate(greatest):
        feed = {"x": np.array([value, -value / 2], "float32"), "step": np.array([i])}
        found, quantized = executor.run(program, feed, [scale, out], scope=scope)
        expected = max(greatest[max(0, i + 1 - window) : i + 1])
        assert found[0] == expected, i
        np.testing.assert_array_equal(np.abs(quantized[0]), np.floor(value / expected * 127 + 0.5))
