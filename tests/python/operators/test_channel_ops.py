"""Operators on the channels of images: instance_norm, affine_channel, temporal_shift, space_to_depth; their patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(67)
IMAGES = RNG.uniform(-1, 1, (4, 4, 2, 4))


@pytest.mark.parametrize("shape", [(3, 2, 2, 3), (2, 3, 5), (2, 2, 1, 2, 2)], ids=str)
def test_instance_norm(shape: tuple[int, ...]) -> None:
    x, (scale, bias) = RNG.uniform(-1, 1, shape), RNG.uniform(0.5, 1.5, (2, shape[1]))
    rows = x.reshape(shape[0] * shape[1], -1)
    mean, inverse = rows.mean(1), 1 / np.sqrt(rows.var(1) + 1e-3)
    normal = ((rows - mean[:, None]) * inverse[:, None]).reshape(*shape[:2], -1)
    expected = (normal * scale[:, None] + bias[:, None]).reshape(shape)
    outputs = {"Y": expected, "SavedMean": mean, "SavedVariance": inverse}
    test = OpTest("instance_norm", {"X": x, "Scale": scale, "Bias": bias}, {"epsilon": 1e-3}, outputs)
    test.check_outputs()
    test.check_gradients(["X", "Scale", "Bias"], ["Y"], tolerance=1e-5)


def test_an_instance_of_one_pixel_is_its_bias() -> None:
    given = {"X": RNG.uniform(-1, 1, (3, 2)), "Scale": np.ones(2), "Bias": np.array([1.0, 2.0])}
    outputs = {"Y": np.tile(given["Bias"], (3, 1)), "SavedMean": given["X"].reshape(-1), "SavedVariance": None}
    OpTest("instance_norm", given, {}, outputs).check_outputs()


def test_instance_norm_refuses_other_dims() -> None:
    good: dict[str, Any] = {"X": IMAGES, "Scale": np.ones(4), "Bias": np.ones(4)}
    for changed, error, parts in (
        ({"X": IMAGES[0, 0, 0]}, ValueError, ("input X", "rank")),
        ({"X": np.ones((1, 4, 1, 1, 1, 1))}, ValueError, ("input X", "at most 5")),
        ({"X": IMAGES[:, :, :0]}, ValueError, ("input X", "not empty", "[4, 4, 0, 4]")),
        ({"Scale": np.ones(3)}, ValueError, ("input Scale", "[4]", "[3]")),
        ({"Bias": np.ones((1, 4))}, ValueError, ("input Bias", "expected dims [4]")),
        ({"Bias": np.ones(4, np.float32)}, TypeError, ("input Bias", "float32")),
    ):
        outputs = {"Y": None, "SavedMean": None, "SavedVariance": None}
        OpTest("instance_norm", {**good, **changed}, {}, outputs, known=["X"]).check_refused(error, *parts)
    test = OpTest("instance_norm", good, {"epsilon": -1.0}, {"Y": None, "SavedMean": None, "SavedVariance": None})
    test.check_refused(ValueError, "epsilon")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", None])
@pytest.mark.parametrize("shape", [(3, 2, 2, 3), (5, 2), (2, 2, 3)], ids=str)
def test_affine_channel(shape: tuple[int, ...], layout: str | None) -> None:
    x = RNG.uniform(-1, 1, shape)
    axis = 1 if layout == "NCHW" else len(shape) - 1
    scale, bias = RNG.uniform(-1, 1, (2, shape[axis]))
    over = [shape[axis] if d == axis else 1 for d in range(len(shape))]
    expected = x * scale.reshape(over) + bias.reshape(over)
    attrs = {} if layout is None else {"data_layout": layout}
    test = OpTest("affine_channel", {"X": x, "Scale": scale, "Bias": bias}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Scale", "Bias"])


def test_affine_channel_refuses_other_dims() -> None:
    good: dict[str, Any] = {"X": IMAGES[:, :3], "Scale": np.ones(3), "Bias": np.ones(3)}
    for changed, error, parts in (
        ({"X": IMAGES[0, 0, 0]}, ValueError, ("input X", "rank")),
        ({"Scale": np.ones(4)}, ValueError, ("input Scale", "[3]", "[4]")),
        ({"Bias": np.ones(4)}, ValueError, ("input Bias", "[3]", "[4]")),
        ({"Scale": np.ones(3, np.float32)}, TypeError, ("input Scale", "float32")),
    ):
        test = OpTest("affine_channel", {**good, **changed}, {"data_layout": "NCHW"})
        test.check_refused(error, *parts)
    OpTest("affine_channel", good, {"data_layout": "CHW"}).check_refused(ValueError, "attribute data_layout", "'CHW'")


@pytest.mark.parametrize(("segments", "ratio"), [(2, 0.25), (4, 0.3), (1, 0.4), (2, 0.1)])
def test_temporal_shift(segments: int, ratio: float) -> None:
    x = IMAGES.reshape(4 // segments, segments, *IMAGES.shape[1:])
    first, second = int(4 * ratio), int(8 * ratio)
    expected = x.copy()
    expected[:, :, :second] = 0
    expected[:, 1:, :first] = x[:, :-1, :first]
    expected[:, :-1, first:second] = x[:, 1:, first:second]
    attrs = {"seg_num": segments, "shift_ratio": ratio}
    out = (expected.reshape(IMAGES.shape), [[1, 3]])
    test = OpTest("temporal_shift", {"X": (IMAGES, [[1, 3]])}, attrs, {"Out": out})
    test.check_outputs()
    test.check_gradients(["X"])


def test_temporal_shift_refuses_other_dims() -> None:
    OpTest("temporal_shift", {"X": IMAGES}, {"seg_num": 3}).check_refused(ValueError, "input X", "3", "[4, 4, 2, 4]")
    OpTest("temporal_shift", {"X": IMAGES[0]}, {"seg_num": 1}).check_refused(ValueError, "input X", "rank 4")
    OpTest("temporal_shift", {"X": IMAGES}, {"seg_num": 0}).check_refused(ValueError, "attribute seg_num", "got 0")
    for ratio in (0.0, 0.5):
        test = OpTest("temporal_shift", {"X": IMAGES}, {"seg_num": 2, "shift_ratio": ratio})
        test.check_refused(ValueError, "attribute shift_ratio", "between 0 and 0.5")


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize(("size", "shape"), [(2, (2, 8, 2, 4)), (3, (1, 9, 3, 6))])
def test_space_to_depth(size: int, shape: tuple[int, ...], dtype: str) -> None:
    x = RNG.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)
    n, c, height, width = shape
    moved = np.empty((n, c // size**2, height * size, width * size), dtype)
    for b, k, j, i in np.ndindex(*shape):
        channel, offset = k % (c // size**2), k // (c // size**2)
        moved[b, channel, j * size + offset // size, i * size + offset % size] = x[b, k, j, i]
    expected = moved.reshape(n, c * size**2, height // size, width // size)
    test = OpTest("space_to_depth", {"X": x}, {"blocksize": size}, {"Out": expected})
    test.check_outputs()
    if dtype == "float64":
        test.check_gradients(["X"])


def test_space_to_depth_refuses_other_dims() -> None:
    for shape, part in (((1, 2, 2, 2), "dimension 1"), ((1, 4, 3, 2), "dimension 2"), ((1, 4, 2, 3), "dimension 3")):
        OpTest("space_to_depth", {"X": np.ones(shape)}).check_refused(ValueError, "input X", part, "blocksize")
    OpTest("space_to_depth", {"X": IMAGES[0]}).check_refused(ValueError, "input X", "rank 4")
    OpTest("space_to_depth", {"X": IMAGES}, {"blocksize": 1}).check_refused(ValueError, "attribute blocksize", "got 1")


UNFOLDED: list[dict[str, list[int]]] = [
    {"kernel_sizes": [2, 3], "strides": [1, 1], "paddings": [0, 0, 0, 0], "dilations": [1, 1]},
    {"kernel_sizes": [2, 2], "strides": [2, 1], "paddings": [1, 0, 2, 1], "dilations": [1, 2]},
    {"kernel_sizes": [1, 1], "strides": [1, 3], "paddings": [0, 2, 0, 0], "dilations": [5, 1]},
]


@pytest.mark.parametrize("attrs", UNFOLDED, ids=str)
def test_unfold(attrs: dict[str, list[int]]) -> None:
    x = IMAGES[:2, :2]
    (kh, kw), (sh, sw), (dh, dw) = attrs["kernel_sizes"], attrs["strides"], attrs["dilations"]
    top, left, bottom, right = attrs["paddings"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    height = (padded.shape[2] - dh * (kh - 1) - 1) // sh + 1
    width = (padded.shape[3] - dw * (kw - 1) - 1) // sw + 1
    columns = [
        padded[:, :, i * dh : i * dh + sh * (height - 1) + 1 : sh, j * dw : j * dw + sw * (width - 1) + 1 : sw]
        for i in range(kh)
        for j in range(kw)
    ]
    expected = np.stack(columns, 2).reshape(2, 2 * kh * kw, height * width)
    test = OpTest("unfold", {"X": x}, attrs, {"Y": expected})
    test.check_outputs()
    test.check_gradients(["X"])


def test_patches_that_do_not_fit_are_refused() -> None:
    def refused(*parts: str, x: np.ndarray = IMAGES, **changed: list[int]) -> None:
        OpTest("unfold", {"X": x}, {**UNFOLDED[0], **changed}, {"Y": None}).check_refused(ValueError, *parts)

    refused("input X", "rank 4", x=IMAGES[0])
    refused("input X", "height", kernel_sizes=[3, 1])
    refused("input X", "width", dilations=[1, 9])
    refused("attribute kernel_sizes", "2 numbers", kernel_sizes=[2])
    refused("attribute strides", "[0, 1]", strides=[0, 1])
    refused("attribute paddings", "4 numbers", paddings=[1, 1])
    refused("attribute paddings", "[-1, 0, 0, 0]", paddings=[-1, 0, 0, 0])
    refused("attribute dilations", "[1, 0]", dilations=[1, 0])
