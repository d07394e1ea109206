"""batch_norm, layer_norm, dropout, spectral_norm and others."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(31)


@pytest.mark.parametrize("shape", [(5, 2), (3, 2, 2, 2), (2, 2, 3), (2, 2, 1, 2, 2), (4, 1), (2, 2, 4, 4)], ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("attrs", [{}, {"is_test": True}, {"use_global_stats": True}], ids=str)
def test_batch_norm(attrs: dict[str, bool], layout: str, shape: tuple[int, ...]) -> None:
    x = RNG.uniform(-1, 1, shape)
    channels, axes, over_channels = shape[1], (0, *range(2, len(shape))), (1, -1, *[1] * (len(shape) - 2))
    scale, bias = RNG.uniform(0.5, 1.5, channels), RNG.uniform(-1, 1, channels)
    mean, variance = RNG.uniform(-1, 1, channels), RNG.uniform(0.5, 1.5, channels)
    epsilon, momentum = 1e-3, 0.8
    used_mean, used_variance = (mean, variance) if attrs else (x.mean(axes), x.var(axes))
    factor = scale / np.sqrt(used_variance + epsilon)
    expected = (x - used_mean.reshape(over_channels)) * factor.reshape(over_channels) + bias.reshape(over_channels)
    outputs = {
        "Y": expected,
        "MeanOut": mean if attrs else momentum * mean + (1 - momentum) * used_mean,
        "VarianceOut": variance if attrs else momentum * variance + (1 - momentum) * used_variance,
        "SavedMean": None,
        "SavedVariance": None,
    }
    if layout == "NHWC":
        x, outputs["Y"] = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, expected))
    inputs = {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
    given = {"epsilon": epsilon, "momentum": momentum, "data_layout": layout, **attrs}
    test = OpTest("batch_norm", inputs, given, outputs)
    test.check_outputs()
    test.check_gradients(["X", "Scale", "Bias"], ["Y"], tolerance=1e-5)
    given_by_variable = {**inputs, "MomentumTensor": np.array([momentum], np.float32)}
    test = OpTest("batch_norm", given_by_variable, {**given, "momentum": 0.1}, outputs)
    test.check_outputs(rtol=1e-6)


@pytest.mark.parametrize("shape", [(3000, 300), (200, 7, 3, 5), (40, 2, 20, 20)], ids=str)
def test_batch_norm_of_many_rows_or_channels(shape: tuple[int, ...]) -> None:
    """So many that several blocks of rows and of columns are summed up."""
    x, dy = (RNG.normal(3, 2, shape).astype(np.float32) for _ in range(2))
    channels, axes, over_channels = shape[1], (0, *range(2, len(shape))), (1, -1, *[1] * (len(shape) - 2))
    scale, bias = (RNG.uniform(0.5, 1.5, channels).astype(np.float32) for _ in range(2))
    wide = x.astype(np.float64)
    mean, inverse = wide.mean(axes), 1 / np.sqrt(wide.var(axes) + 1e-5)
    h = (wide - mean.reshape(over_channels)) * inverse.reshape(over_channels)
    y = h * scale.reshape(over_channels) + bias.reshape(over_channels)
    zeros, ones = np.zeros(channels, np.float32), np.ones(channels, np.float32)
    inputs = {"X": x, "Scale": scale, "Bias": bias, "Mean": zeros, "Variance": ones}
    outputs = {"Y": y.astype(np.float32), "SavedMean": mean.astype(np.float32)}
    outputs |= {"SavedVariance": inverse.astype(np.float32)}
    OpTest("batch_norm", inputs, {}, {**outputs, "MeanOut": None, "VarianceOut": None}).check_outputs(2e-5, 2e-5)

    dbias, dscale = dy.astype(np.float64).sum(axes), (dy * h).sum(axes)
    count = x.size / channels
    within = dy - (dbias / count).reshape(over_channels) - h * (dscale / count).reshape(over_channels)
    dx = (scale * inverse).reshape(over_channels) * within
    given = {"X": x, "Scale": scale, "Y@GRAD": dy, **{k: outputs[k] for k in ("SavedMean", "SavedVariance")}}
    gradients = {"X@GRAD": dx, "Scale@GRAD": dscale, "Bias@GRAD": dbias}
    expected = {name: value.astype(np.float32) for name, value in gradients.items()}
    OpTest("batch_norm_grad", given, {}, expected).check_outputs(1e-4, 2e-5 * count**0.5)


@pytest.mark.parametrize("shape", [(3001, 300), (130, 3), (9, 2049), (203, 7, 3, 5), (2000, 1, 1, 15)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_of_batch_norm(dtype: type, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Means far larger than deviations, means that drift from image to image, and first images unlike the others."""
    images, channels, axes = shape[0], shape[1], (0, *range(2, len(shape)))
    over_images, over_channels = (images, *[1] * (len(shape) - 1)), (1, channels, *[1] * (len(shape) - 2))
    x = RNG.normal(0, 1, shape) + 10.0 ** RNG.integers(2, 5, channels).reshape(over_channels)
    drifting = x + np.linspace(-50, 50, images).reshape(over_images)
    begun_late = np.where(np.arange(images).reshape(over_images) % 64 == 0, x + 30, x)
    for values in (x, drifting, begun_late, np.full(shape, 1e4 / 3)):
        given = values.astype(dtype)
        wide = given.astype(np.longdouble)
        outputs = {
            "SavedMean": wide.mean(axes).astype(dtype),
            "SavedVariance": (1 / np.sqrt(wide.var(axes) + 1e-5)).astype(dtype),
        }
        zeros, ones = np.zeros(channels, dtype), np.ones(channels, dtype)
        inputs = {"X": given, "Scale": ones, "Bias": zeros, "Mean": zeros, "Variance": ones}
        test = OpTest("batch_norm", inputs, {}, {**outputs, "Y": None, "MeanOut": None, "VarianceOut": None})
        results = []
        for threads in "1", "2", "4":
            monkeypatch.setenv("CPU_NUM", threads)
            test.check_outputs(*(5e-6, 0) if dtype == np.float32 else (1e-11, 0))
            results.append([np.asarray(value[0]).tobytes() for value in test.run().values()])
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(affine: bool, axis: int) -> None:
    x = RNG.uniform(-1, 1, (3, 2, 4))
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    mean, variance = rows.mean(1), rows.var(1)
    normal = (rows - mean[:, None]) / np.sqrt(variance + 1e-3)[:, None]
    inputs = {"X": x}
    if affine:
        inputs["Scale"], inputs["Bias"] = RNG.uniform(0.5, 1.5, rows.shape[1]), RNG.uniform(-1, 1, rows.shape[1])
        normal = normal * inputs["Scale"] + inputs["Bias"]
    outputs = {"Y": normal.reshape(x.shape), "Mean": mean, "Variance": variance}
    test = OpTest("layer_norm", inputs, {"begin_norm_axis": axis, "epsilon": 1e-3}, outputs)
    test.check_outputs()
    test.check_gradients(list(inputs), ["Y"], tolerance=1e-5)


@pytest.mark.parametrize("implementation", ["downgrade_in_infer", "upscale_in_train"])
def test_dropout(implementation: str) -> None:
    x = RNG.uniform(0.5, 1, (40, 5))
    attrs = {"dropout_prob": 0.4, "seed": 5, "dropout_implementation": implementation}
    training = OpTest("dropout", {"X": x}, attrs, {"Out": None, "Mask": None})
    results = training.run()
    mask = np.asarray(results["Mask"][0]).astype(bool)
    assert 0.4 < mask.mean() < 0.8
    factor = 1 / 0.6 if implementation == "upscale_in_train" else 1
    np.testing.assert_allclose(np.asarray(results["Out"][0]), x * mask * factor)
    training.check_gradients(["X"], ["Out"])
    expected = x if implementation == "upscale_in_train" else 0.6 * x
    OpTest("dropout", {"X": x}, {**attrs, "is_test": True}, {"Out": expected}).check_outputs()


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(2, 4, 3, 2), (2, 4), (1, 4, 2, 1, 3)], ids=str)
def test_group_norm(shape: tuple[int, ...], layout: str, affine: bool, groups: int) -> None:
    x = RNG.uniform(-1, 1, shape)
    rows = x.reshape(shape[0], groups, -1)
    mean, variance = rows.mean(2), rows.var(2)
    normal = ((rows - mean[..., None]) / np.sqrt(variance + 1e-3)[..., None]).reshape(x.shape)
    inputs = {"X": x}
    if affine:
        inputs["Scale"], inputs["Bias"] = RNG.uniform(0.5, 1.5, 4), RNG.uniform(-1, 1, 4)
        over_pixels = (4, *[1] * (len(shape) - 2))
        normal = normal * inputs["Scale"].reshape(over_pixels) + inputs["Bias"].reshape(over_pixels)
    outputs = {"Y": normal, "Mean": mean, "Variance": variance}
    if layout == "NHWC":
        inputs["X"] = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        outputs["Y"] = np.ascontiguousarray(np.moveaxis(normal, 1, -1))
    test = OpTest("group_norm", inputs, {"groups": groups, "epsilon": 1e-3, "data_layout": layout}, outputs)
    test.check_outputs()
    test.check_gradients(list(inputs), ["Y"], tolerance=1e-5)


def test_group_norm_refuses_what_does_not_fit() -> None:
    x = np.zeros((2, 4, 3))
    outputs = {"Y": None, "Mean": None, "Variance": None}
    for inputs, attrs, part in (
        ({"X": x}, {"groups": 3}, "groups"),
        ({"X": x}, {"groups": 0}, "groups"),
        ({"X": x[0, 0]}, {"groups": 1}, "X"),
        ({"X": x[:, :, :0]}, {"groups": 1}, "X"),
        ({"X": x, "Scale": np.zeros(3)}, {"groups": 2}, "Scale"),
        ({"X": x, "Scale": np.zeros(4)}, {"groups": 3, "data_layout": "NHWC"}, "Scale"),
        ({"X": x}, {"groups": 2, "data_layout": "NHWC"}, "groups"),
        ({"X": x}, {"groups": 2, "data_layout": "NCDHW"}, "'NCHW' or 'NHWC', got 'NCDHW'"),
    ):
        OpTest("group_norm", inputs, attrs, outputs).check_refused(ValueError, part)
    no_images = np.zeros((0, 3, 2, 4))
    empty = {"Y": no_images, "Mean": np.zeros((0, 2)), "Variance": np.zeros((0, 2))}
    OpTest("group_norm", {"X": no_images}, {"groups": 2, "data_layout": "NHWC"}, empty).check_outputs()


def test_data_norm() -> None:
    x = RNG.uniform(-1, 1, (4, 3))
    size, total, squares = np.full(3, 10.0), RNG.uniform(-1, 1, 3), RNG.uniform(5, 9, 3)
    means, scales = total / size, np.sqrt(size / squares)
    inputs = {"X": x, "BatchSize": size, "BatchSum": total, "BatchSquareSum": squares}
    outputs = {"Y": (x - means) * scales, "Means": means, "Scales": scales}
    known = ["BatchSize", "BatchSum", "BatchSquareSum"]
    test = OpTest("data_norm", inputs, {"epsilon": 1e-3}, outputs, known)
    test.check_outputs()
    test.check_gradients(["X"], ["Y"])
    got = test.gradients(list(inputs), ["Y"])  # those of the statistics are statistics of the batch
    np.testing.assert_allclose(got["BatchSize_0"], np.full(3, 4.0))
    np.testing.assert_allclose(got["BatchSum_0"], x.sum(0))
    np.testing.assert_allclose(got["BatchSquareSum_0"], ((x - means) ** 2).sum(0) + 4e-3)
    nothing: dict[str, None] = dict.fromkeys(outputs)
    for change, attrs, part in (
        ({"BatchSum": total[:2]}, {}, "BatchSum"),
        ({"X": x[0]}, {}, "input X"),
        ({}, {"epsilon": 0.1}, "epsilon"),
        ({}, {"data_layout": "NC"}, "data_layout"),
    ):
        OpTest("data_norm", {**inputs, **change}, attrs, nothing, known).check_refused(ValueError, part)


@pytest.mark.parametrize("iterations", [0, 1, 3])
@pytest.mark.parametrize(("shape", "dim"), [((4, 3), 0), ((4, 3), 1), ((2, 3, 2, 2), 1), ((2, 3, 4), -1), ((1, 1), 0)])
def test_spectral_norm(shape: tuple[int, ...], dim: int, iterations: int) -> None:
    weight, epsilon = RNG.normal(size=shape), 1e-3
    matrix = np.moveaxis(weight, dim, 0).reshape(shape[dim], -1)
    u, v = (RNG.normal(size=extent) for extent in matrix.shape)
    inputs = {"Weight": weight, "U": u, "V": v}
    for _ in range(iterations):
        v = matrix.T @ u
        v /= np.linalg.norm(v) + epsilon
        u = matrix @ v
        u /= np.linalg.norm(u) + epsilon
    value = u @ matrix @ v
    attrs = {"dim": dim, "power_iters": iterations, "eps": epsilon}
    test = OpTest("spectral_norm", inputs, attrs, {"Out": weight / value})
    test.check_outputs()
    OpTest(
        "spectral_norm",
        {**inputs, "U": inputs["U"][:, None], "V": inputs["V"][:, None]},
        attrs,
        {"Out": weight / value},
    ).check_outputs()
    d = RNG.normal(size=shape)
    rest = np.moveaxis(d, dim, 0).shape
    outer = np.moveaxis(np.outer(u, v).reshape(rest), 0, dim)
    gradient = d / value - (d * weight).sum() / value**2 * outer
    OpTest("spectral_norm_grad", {**inputs, "Out@GRAD": d}, attrs, {"Weight@GRAD": gradient}).check_outputs()
    if iterations == 0:
        test.check_gradients(["Weight"])


def test_spectral_norm_finds_the_greatest_singular_value() -> None:
    weight = RNG.normal(size=(5, 2, 3))
    inputs = {"Weight": weight, "U": RNG.normal(size=5), "V": RNG.normal(size=6)}
    expected = weight / np.linalg.svd(weight.reshape(5, 6))[1][0]
    test = OpTest("spectral_norm", inputs, {"power_iters": 200}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["Weight"])


def test_spectral_norm_refuses_what_does_not_fit() -> None:
    good = {"Weight": np.ones((2, 3)), "U": np.ones(2), "V": np.ones(3)}
    for change, attrs, part in (
        ({"Weight": np.ones(2)}, {}, "input Weight"),
        ({"Weight": np.ones((2, 0)), "V": np.ones(0)}, {}, "input Weight"),
        ({}, {"dim": 1}, "input U"),
        ({}, {"dim": 2}, "attribute dim"),
        ({"V": np.ones(2)}, {}, "input V"),
        ({"V": np.ones((1, 3))}, {}, "input V"),
        ({}, {"power_iters": -1}, "attribute power_iters"),
        ({}, {"eps": -1.0}, "epsilon"),
    ):
        OpTest("spectral_norm", {**good, **change}, attrs).check_refused(ValueError, part)
    OpTest("spectral_norm", {**good, "U": np.ones(2, np.float32)}).check_refused(TypeError, "input U")
