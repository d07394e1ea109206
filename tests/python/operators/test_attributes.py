"""Attributes and optional inputs: what they change, in NumPy or by what other attributes give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(53)
FLOAT64 = 6


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def outputs_of(op_type: str, inputs: dict[str, Any], attrs: dict[str, Any], *slots: str) -> dict[str, np.ndarray]:
    tensors = OpTest(op_type, inputs, attrs, dict.fromkeys(slots)).run()
    return {slot: np.asarray(tensors[slot][0]) for slot in slots}


@pytest.mark.parametrize(
    ("op_type", "attrs", "function"),
    [
        ("hard_shrink", {"threshold": 0.3}, lambda x: np.where(np.abs(x) > 0.3, x, 0)),
        ("leaky_relu", {"alpha": 0.3}, lambda x: np.where(x < 0, 0.3 * x, x)),
        ("selu", {"scale": 2.0, "alpha": 0.5}, lambda x: 2 * np.where(x < 0, 0.5 * np.expm1(x), x)),
        ("soft_relu", {"threshold": 0.7}, lambda x: np.log1p(np.exp(np.clip(x, -0.7, 0.7)))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_activations(op_type: str, attrs: dict[str, float], function: Any) -> None:
    x = np.array([-0.9, -0.4, -0.1, 0.1, 0.4, 0.9])
    test = OpTest(op_type, {"X": x}, attrs, {"Out": function(x)})
    test.check_outputs()
    test.check_gradients(["X"])


#: Of windows of 3 and strides of 1: attributes → those that say the same.
PADDINGS = [
    ({"padding_algorithm": "VALID", "paddings": [1]}, {"paddings": [0]}),
    ({"padding_algorithm": "SAME", "paddings": [0]}, {"paddings": [1]}),
]
WINDOWS = {
    "depthwise_conv2d": 2,
    "depthwise_conv2d_transpose": 2,
    "conv2d_transpose": 2,
    "conv3d_transpose": 3,
    "max_pool2d_with_index": 2,
    "max_pool3d_with_index": 3,
    "pool3d": 3,
}


@pytest.mark.parametrize("op_type", WINDOWS)
@pytest.mark.parametrize(("attrs", "same"), PADDINGS, ids=["VALID", "SAME"])
def test_padding_algorithms(op_type: str, attrs: dict[str, Any], same: dict[str, Any]) -> None:
    spatial = WINDOWS[op_type]
    x = RNG.permutation(2 * 4**spatial).reshape(1, 2, *[4] * spatial) / 20.0
    given: dict[str, Any] = {"strides": [1] * spatial}
    if "conv" in op_type:
        inputs, by = {"Input": x, "Filter": numbers(2, 1, *[3] * spatial)}, ["Input", "Filter"]
        given["groups"] = 2
        slots = ["Output"]
    else:
        inputs, by, slots = {"X": x}, ["X"], ["Out"] if op_type == "pool3d" else ["Out", "Mask"]
        given["ksize"] = [3] * spatial
    expected = outputs_of(op_type, inputs, {**given, "paddings": same["paddings"] * spatial}, *slots)
    extent = 4 if attrs["padding_algorithm"] == "SAME" else 6 if "transpose" in op_type else 2
    assert expected[slots[0]].shape == (1, 2, *[extent] * spatial)
    attrs = {**given, **attrs, "paddings": attrs["paddings"] * spatial}
    test = OpTest(op_type, inputs, attrs, expected, known=["Filter"])
    test.check_outputs()
    test.check_gradients(by, slots[:1])


@pytest.mark.parametrize("kind", ["", "_transpose"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"dilations": [2, 1], "paddings": [2, 1]},
        {"strides": [2, 3], "paddings": [1, 0]},
        {"strides": [1, 2], "paddings": [0, 2], "dilations": [1, 2]},
    ],
    ids=str,
)
def test_depthwise_convolutions_are_grouped_ones(attrs: dict[str, Any], kind: str) -> None:
    inputs = {"Input": numbers(2, 3, 6, 7), "Filter": numbers(3, 1, 3, 2)}
    attrs = {**attrs, "groups": 3}
    expected = outputs_of(f"conv2d{kind}", inputs, attrs, "Output")
    test = OpTest(f"depthwise_conv2d{kind}", inputs, attrs, expected, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


def test_output_size_of_a_depthwise_transposed_convolution() -> None:
    inputs = {"Input": numbers(1, 2, 3, 3), "Filter": numbers(2, 1, 3, 3)}
    attrs = {"strides": [2, 2], "groups": 2}
    (smaller,) = outputs_of("depthwise_conv2d_transpose", inputs, attrs, "Output").values()
    assert smaller.shape == (1, 2, 7, 7)
    expected = np.zeros((1, 2, 8, 7))
    expected[:, :, :7] = smaller
    test = OpTest(
        "depthwise_conv2d_transpose", inputs, {**attrs, "output_size": [8, 7]}, {"Output": expected}, known=["Filter"]
    )
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


@pytest.mark.parametrize("op_type", ["bilinear_interp", "nearest_interp"])
@pytest.mark.parametrize(
    ("inputs", "attrs"),
    [
        ({"SizeTensor": [np.array([6], np.int32), np.array([9], np.int32)]}, {}),
        ({"SizeTensor": [np.array([6]), np.array([9])], "OutSize": np.array([1, 1], np.int32)}, {}),
        ({"Scale": np.array([3.0], np.float32)}, {}),
        ({"Scale": np.array([3.0])}, {"out_h": 2, "out_w": 2}),
        ({}, {"scale": 3.0}),
    ],
    ids=str,
)
def test_sizes_of_resized_images(op_type: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> None:
    x = numbers(1, 2, 2, 3)
    expected = outputs_of(op_type, {"X": x}, {"out_h": 6, "out_w": 9}, "Out")
    known = ["SizeTensor", "OutSize", "Scale"]
    test = OpTest(op_type, {"X": x, **inputs}, attrs, expected, known, fixed=["Scale"])
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize(
    ("inputs", "attrs"),
    [
        ({"SizeTensor": [np.array([n], np.int32) for n in (4, 6, 9)]}, {}),
        ({"OutSize": np.array([4, 6, 9], np.int32)}, {"scale": 2.0}),
        ({"Scale": np.array([3.0], np.float32)}, {"out_d": 1}),
        ({}, {"scale": 3.0}),
    ],
    ids=str,
)
def test_sizes_of_resized_volumes(inputs: dict[str, Any], attrs: dict[str, Any]) -> None:
    x = numbers(1, 2, 2, 2, 3)
    depth = 4 if "SizeTensor" in inputs or "OutSize" in inputs else 6
    expected = outputs_of("trilinear_interp", {"X": x}, {"out_d": depth, "out_h": 6, "out_w": 9}, "Out")
    known = ["SizeTensor", "OutSize", "Scale"]
    test = OpTest("trilinear_interp", {"X": x, **inputs}, attrs, expected, known, fixed=["Scale"])
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("implementation", ["downgrade_in_infer", "upscale_in_train"])
def test_dropout_in_a_test_has_a_gradient(implementation: str) -> None:
    attrs = {"dropout_prob": 0.4, "is_test": True, "dropout_implementation": implementation}
    OpTest("dropout", {"X": numbers(3, 2)}, attrs).check_gradients(["X"])


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_masks_of_dropout_follow_from_the_seed_and_its_number(dtype: str) -> None:
    x = numbers(40, 5)

    def mask(number: int, seed: int = 5) -> np.ndarray:
        inputs = {"X": x, "Seed": np.array([number], dtype)}
        return outputs_of("dropout", inputs, {"dropout_prob": 0.4, "seed": seed}, "Out", "Mask")["Mask"]

    np.testing.assert_array_equal(mask(1), mask(1))
    assert (mask(1) != mask(2)).any()
    assert (mask(1) != mask(1, seed=6)).any()
    test = OpTest(
        "dropout",
        {"X": x[:3], "Seed": np.array([7], dtype)},
        {"dropout_prob": 0.4, "seed": 5},
        {"Out": None, "Mask": None},
        known=["Seed"],
    )
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


def test_constants_in_the_size_of_another_dimension() -> None:
    like = {"Input": np.zeros((4, 3))}
    attrs = {"shape": [2, -1], "input_dim_idx": 1, "output_dim_idx": 1, "dtype": 3, "str_value": str(2**53 + 1)}
    OpTest("fill_constant_batch_size_like", like, attrs, {"Out": np.full((2, 3), 2**53 + 1)}).check_outputs()


@pytest.mark.parametrize("op_type", ["gaussian_random", "truncated_gaussian_random", "uniform_random"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distributions(op_type: str, dtype: str) -> None:
    attrs = {"min": 2.0, "max": 4.0} if op_type == "uniform_random" else {"mean": 3.0, "std": 0.5}
    attrs |= {"shape": [50, 200], "seed": 3, "dtype": FLOAT64 if dtype == "float64" else 5}
    test = OpTest(op_type, {}, attrs)
    test.check_outputs()
    (drawn,) = outputs_of(op_type, {}, attrs, "Out").values()
    assert drawn.dtype == dtype
    deviation = {"uniform_random": 2 / np.sqrt(12), "gaussian_random": 0.5, "truncated_gaussian_random": 0.44}[op_type]
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [3, deviation], atol=0.02)
    if op_type != "gaussian_random":
        assert np.abs(drawn - 3).max() <= 1  # two standard deviations
    other = outputs_of(op_type, {}, {**attrs, "seed": 4}, "Out")["Out"]
    assert (other != drawn).any()


def test_random_crop_starts_where_its_seed_says_whatever_the_startup_seed() -> None:
    inputs = {"X": numbers(20, 9), "Seed": np.array([3])}
    results = [
        outputs_of("random_crop", inputs, {"shape": [4], "startup_seed": seed}, "Out", "SeedOut") for seed in (0, 7)
    ]
    for slot in ("Out", "SeedOut"):
        np.testing.assert_array_equal(results[0][slot], results[1][slot])


def test_ranking_downwards_has_a_gradient() -> None:
    x = RNG.permutation(12).reshape(3, 4) / 12.0
    for axis in (0, 1):
        test = OpTest("argsort", {"X": x}, {"axis": axis, "descending": True}, {"Out": None, "Indices": None})
        test.check_gradients(["X"], ["Out"])


def test_a_lod_that_is_appended_has_a_gradient() -> None:
    x = (numbers(4, 2), [[1, 3]])
    rows = (x[0], [[1, 3], [1, 2, 0, 1]])
    test = OpTest("lod_reset", {"X": x}, {"target_lod": [0, 1, 3, 3, 4], "append": True}, {"Out": rows})
    test.check_outputs()
    test.check_gradients(["X"])


def test_sequences_are_parted_at_a_deeper_level() -> None:
    x = numbers(5, 2)
    mask = np.array([[True], [False], [True]])
    given = {"X": (x, [[2, 1], [2, 1, 2]]), "Mask": mask}
    parts = {"OutTrue": (x[[0, 1, 3, 4]], [[2, 2]]), "OutFalse": (x[[2]], [[1]])}
    split = OpTest("split_lod_tensor", given, {"level": 1}, parts)
    split.check_outputs()
    split.check_gradients(["X"])
    merged = {**given, "InTrue": parts["OutTrue"], "InFalse": parts["OutFalse"]}
    merge = OpTest("merge_lod_tensor", merged, {"level": 1}, {"Out": given["X"]})
    merge.check_outputs()
    merge.check_gradients(["InTrue", "InFalse"])


def test_labels_that_are_ignored() -> None:
    x, label = numbers(3, 2), np.array([[0.0, 7.0], [1.0, 0.25], [7.0, 7.0]])
    counted = label != 7
    loss = np.where(counted, np.maximum(x, 0) - x * label + np.log1p(np.exp(-np.abs(x))), 0)
    attrs = {"ignore_index": 7, "normalize": True}
    test = OpTest("sigmoid_cross_entropy_with_logits", {"X": x, "Label": label}, attrs, {"Out": loss / 3})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("power", [-0.5, -0.4, -0.75])
def test_the_power_of_ftrl(power: float) -> None:
    param, gradient, accumulated, linear = numbers(3, 2), numbers(3, 2), RNG.uniform(0.5, 1, (3, 2)), numbers(3, 2)
    rate, l1, l2 = 0.1, 0.3, 0.2
    squared = accumulated + gradient**2
    new_linear = linear + gradient - (squared**-power - accumulated**-power) / rate * param
    shrunk = np.sign(new_linear) * l1 - new_linear
    new_param = np.where(np.abs(new_linear) > l1, shrunk / (squared**-power / rate + 2 * l2), 0)
    inputs = {"SquaredAccumulator": accumulated, "LinearAccumulator": linear, "LearningRate": np.array([rate])}
    outputs = {"ParamOut": new_param, "SquaredAccumOut": squared, "LinearAccumOut": new_linear}
    attrs = {"l1": l1, "l2": l2, "lr_power": power}
    OpTest("ftrl", {"Param": param, "Grad": gradient, **inputs}, attrs, outputs).check_outputs()


def test_rmsprop_centred() -> None:
    param, gradient, moment = numbers(3, 2), numbers(3, 2), numbers(3, 2)
    square, mean = RNG.uniform(1, 2, (3, 2)), 0.3 * numbers(3, 2)
    new_square, new_mean = 0.7 * square + 0.3 * gradient**2, 0.7 * mean + 0.3 * gradient
    new_moment = 0.5 * moment + 0.1 * gradient / np.sqrt(new_square - new_mean**2 + 1e-3)
    inputs = {"Moment": moment, "MeanSquare": square, "MeanGrad": mean, "LearningRate": np.array([0.1])}
    outputs = {"ParamOut": param - new_moment, "MomentOut": new_moment, "MeanSquareOut": new_square}
    attrs = {"decay": 0.7, "epsilon": 1e-3, "momentum": 0.5, "centered": True}
    test = OpTest("rmsprop", {"Param": param, "Grad": gradient, **inputs}, attrs, {**outputs, "MeanGradOut": new_mean})
    test.check_outputs()


def test_momentum_of_nesterov() -> None:
    param, gradient, velocity = numbers(3, 2), numbers(3, 2), numbers(3, 2)
    new = 0.9 * velocity + gradient
    outputs = {"ParamOut": param - 0.1 * (gradient + 0.9 * new), "VelocityOut": new}
    inputs = {"Param": param, "Grad": gradient, "Velocity": velocity, "LearningRate": np.array([0.1])}
    OpTest("momentum", inputs, {"mu": 0.9, "use_nesterov": True}, outputs).check_outputs()


@pytest.mark.parametrize("op_type", ["adam", "adamw"])
def test_lazy_adam_is_adam_where_every_row_has_a_gradient(op_type: str) -> None:
    inputs = {slot: numbers(3, 2) for slot in ("Param", "Grad", "Moment1")}
    inputs |= {"Moment2": RNG.uniform(0.5, 1, (3, 2)), "LearningRate": np.array([0.1])}
    inputs |= {"Beta1Pow": np.array([0.9]), "Beta2Pow": np.array([0.99])}
    expected = outputs_of(op_type, inputs, {}, "ParamOut", "Moment1Out", "Moment2Out")
    OpTest(op_type, inputs, {"lazy_mode": True}, expected).check_outputs()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_data_norm_takes_matrices_in_either_layout(layout: str) -> None:
    inputs = {"X": numbers(4, 3), "BatchSize": np.full(3, 9.0), "BatchSum": numbers(3), "BatchSquareSum": np.ones(3)}
    expected = (inputs["X"] - inputs["BatchSum"] / 9) * 3
    outputs = {"Y": expected, "Means": None, "Scales": None}
    known = ["BatchSize", "BatchSum", "BatchSquareSum"]
    test = OpTest("data_norm", inputs, {"data_layout": layout}, outputs, known)
    test.check_outputs()
    test.check_gradients(["X"], ["Y"])


def test_nce_with_a_distribution_of_its_own_has_a_gradient() -> None:
    classes = 6
    probability = np.array([1.5, 0.5, 1, 1, 1, 1], np.float32) / classes
    inputs = {
        "Input": numbers(4, 3),
        "Label": np.array([[0], [2], [5], [2]]),
        "Weight": numbers(classes, 3),
        "CustomDistProbs": probability,
        "CustomDistAlias": np.zeros(classes, np.int32),
        "CustomDistAliasProbs": np.array([1, 0.5, 1, 1, 1, 1], np.float32),
    }
    attrs = {"num_total_classes": classes, "num_neg_samples": 3, "sampler": 2, "seed": 7}
    outputs = {"Cost": None, "SampleLogits": None, "SampleLabels": None}
    probabilities = [slot for slot in inputs if slot.startswith("Custom")]  # float32, whatever the others are
    test = OpTest("nce", inputs, attrs, outputs, known=["Weight", *probabilities], fixed=probabilities)
    results = test.run()
    samples = np.asarray(results["SampleLabels"][0])
    scores = np.einsum("nd,nkd->nk", inputs["Input"], inputs["Weight"][samples])
    chance, noise = 1 / (1 + np.exp(-scores)), probability[samples] * 3
    true = np.arange(4) < 1
    cost = -np.log(np.where(true, chance, noise) / (chance + noise)).sum(1, keepdims=True)
    np.testing.assert_allclose(np.asarray(results["Cost"][0]), cost, rtol=1e-6)
    test.check_gradients(["Input", "Weight"], ["Cost"], tolerance=1e-5)
