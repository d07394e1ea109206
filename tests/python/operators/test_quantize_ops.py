"""Rounding to a few bits: fake_quantize_*, fake_dequantize_*, moving_average_abs_max_scale."""

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


def rounded(x: np.ndarray, scale: Any, bits: int = 8) -> np.ndarray:
    return np.sign(x) * np.floor(np.minimum(np.abs(x), scale) / scale * (2 ** (bits - 1) - 1) + 0.5)


@pytest.mark.parametrize("bits", [2, 8])
@pytest.mark.parametrize(
    ("op_type", "back"),
    [
        ("fake_quantize_moving_average_abs_max", False),
        ("fake_quantize_dequantize_moving_average_abs_max", True),
    ],
)
def test_a_moving_average_of_scales(op_type: str, back: bool, bits: int) -> None:
    factor = 2 ** (bits - 1) - 1
    inputs = {"X": (X, [[1, 1]]), "InScale": np.array([7.0]), "InAccum": np.array([3.0]), "InState": np.array([2.0])}
    total, state = 0.75 * 3 + 2, 0.75 * 2 + 1
    scale = total / state
    attrs = {"moving_rate": 0.75, "bit_length": bits}
    whole = rounded(X, scale, bits)
    outputs: dict[str, Any] = {
        "Out": (whole * scale / factor if back else whole, [[1, 1]]),
        "OutScale": np.array([scale]),
        "OutAccum": np.array([total]),
        "OutState": np.array([state]),
    }
    OpTest(op_type, inputs, attrs, outputs).check_outputs()
    whole = rounded(X, 1.5, bits)
    outputs = {"Out": whole * 1.5 / factor if back else whole, "OutScale": np.array([1.5])}
    OpTest(op_type, {"X": X, "InScale": np.array([1.5])}, {**attrs, "is_test": True}, outputs).check_outputs()
    nothing = dict.fromkeys(["Out", "OutScale", "OutAccum", "OutState"])
    for slot in ("InAccum", "InState"):
        fewer = {k: v for k, v in inputs.items() if k != slot}
        OpTest(op_type, fewer, attrs, nothing).check_refused(ValueError, slot, "is_test")
        OpTest(op_type, {**inputs, slot: np.ones(2)}, attrs, nothing).check_refused(ValueError, slot, "single element")
    OpTest(op_type, {**inputs, "InAccum": np.array([-9.0])}, attrs, nothing).check_refused(
        IndexError, "InAccum", when="run"
    )


def test_a_scale_without_rounding() -> None:
    inputs = {"X": (X, [[1, 1]]), "InAccum": np.array([3.0]), "InState": np.array([2.0])}
    outputs: dict[str, Any] = {"OutAccum": np.array([4.7]), "OutState": np.array([2.8])}
    outputs |= {"Out": (X, [[1, 1]]), "OutScale": np.array([4.7 / 2.8])}
    OpTest("moving_average_abs_max_scale", inputs, {}, outputs).check_outputs()
    OpTest("moving_average_abs_max_scale", {"X": X}, {"is_test": True}, {"Out": X}).check_outputs()


@pytest.mark.parametrize("shape", [(3, 2, 2), (3,), (0, 2), (3, 0)], ids=str)
def test_a_scale_for_each_channel(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).normal(size=shape)
    if shape == (3, 2, 2):
        x[1] = 0
    scales = np.abs(x).reshape(len(x), int(np.prod(shape[1:]))).max(1, initial=0)
    each = scales.reshape(-1, *[1] * (len(shape) - 1))
    whole = np.where(each > 0, rounded(x, np.where(each > 0, each, 1)), 0)
    outputs = {"Out": whole, "OutScale": scales}
    OpTest("fake_channel_wise_quantize_abs_max", {"X": x}, {}, outputs).check_outputs()
    back = {"X": whole, "Scales": [scales]}
    expected = {"Out": whole * each / 127}
    OpTest("fake_channel_wise_dequantize_max_abs", back, {}, expected).check_outputs()


def test_scales_of_weights_and_of_activations() -> None:
    columns, factor = np.array([1.0, 2.0, 3.0]), np.array([0.5])
    inputs = {"X": (X, [[1, 1]]), "Scales": [columns, factor]}
    expected = {"Out": (X * columns * 0.5 / (127 * 7), [[1, 1]])}
    OpTest("fake_channel_wise_dequantize_max_abs", inputs, {"quant_bits": [8, 4]}, expected).check_outputs()
    for scales, bits, part in (
        ([columns], [8], "input Scales"),
        ([columns, factor], [8], "quant_bits"),
        ([columns, columns], [8, 8], "input Scales"),
        ([columns, factor, factor], [8, 8, 8], "input Scales"),
        ([columns, factor], [8, 1], "quant_bits"),
    ):
        OpTest("fake_channel_wise_dequantize_max_abs", {"X": X, "Scales": scales}, {"quant_bits": bits}).check_refused(
            ValueError, part
        )
