"""Convolutions and pools that look where other inputs say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(79)
IMAGES = RNG.uniform(-1, 1, (2, 4, 4, 5))


def interpolated(image: np.ndarray, y: float, x: float) -> float:
    """Between pixels; zeros lie beyond the border."""
    top, left = int(np.floor(y)), int(np.floor(x))
    height, width = image.shape
    return sum(
        (1 - abs(y - row)) * (1 - abs(x - col)) * float(image[row, col])
        for row in (top, top + 1)
        for col in (left, left + 1)
        if 0 <= row < height and 0 <= col < width
    )


CONVOLUTIONS: list[dict[str, Any]] = [
    {},
    {"strides": [2, 1], "paddings": [1, 2], "deformable_groups": 2},
    {"groups": 2, "dilations": [1, 2], "strides": [2, 2], "paddings": [1, 1], "deformable_groups": 4},
]


def convolution(attrs: dict[str, Any], with_mask: bool) -> tuple[dict[str, Any], np.ndarray]:
    """Inputs, and what should come out."""
    stride, padding, dilation = (
        attrs.get(k, d) for k, d in (("strides", [1, 1]), ("paddings", [0, 0]), ("dilations", [1, 1]))
    )
    groups, deformed = attrs.get("groups", 1), attrs.get("deformable_groups", 1)
    kernel = (3, 2)
    out_size = [
        (IMAGES.shape[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in range(2)
    ]
    filters = RNG.uniform(-1, 1, (4, 4 // groups, *kernel))
    # Between pixels, where results have slopes.
    offsets = RNG.integers(-2, 2, (2, 2 * deformed * 6, *out_size)) + RNG.uniform(0.1, 0.9)
    masks = RNG.uniform(0.2, 1, (2, deformed * 6, *out_size))
    out = np.zeros((2, 4, *out_size))
    for (n, m, row, col), _ in np.ndenumerate(out):
        for c in range(4 // groups):
            channel = m // (4 // groups) * (4 // groups) + c
            for k in range(6):
                place = channel // (4 // deformed) * 6 + k
                y = row * stride[0] - padding[0] + k // 2 * dilation[0] + offsets[n, 2 * place, row, col]
                x = col * stride[1] - padding[1] + k % 2 * dilation[1] + offsets[n, 2 * place + 1, row, col]
                value = interpolated(IMAGES[n, channel], y, x) * filters[m, c, k // 2, k % 2]
                out[n, m, row, col] += value * (masks[n, place, row, col] if with_mask else 1)
    inputs = {"Input": IMAGES, "Offset": offsets, "Filter": filters, **({"Mask": masks} if with_mask else {})}
    return inputs, out


@pytest.mark.parametrize("op_type", ["deformable_conv", "deformable_conv_v1"])
@pytest.mark.parametrize("attrs", CONVOLUTIONS, ids=str)
def test_deformable_conv(attrs: dict[str, Any], op_type: str) -> None:
    inputs, out = convolution(attrs, op_type == "deformable_conv")
    test = OpTest(op_type, inputs, attrs, {"Output": out}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(list(inputs), tolerance=1e-5)


def test_places_without_offsets_are_those_of_a_convolution() -> None:
    attrs = {"strides": [1, 2], "paddings": [1, 1], "dilations": [1, 1], "groups": 2}
    filters = RNG.uniform(-1, 1, (6, 2, 3, 3))
    out = np.asarray(OpTest("conv2d", {"Input": IMAGES, "Filter": filters}, attrs, {"Output": None}).run()["Output"][0])
    size = out.shape[2:]
    inputs = {
        "Input": IMAGES,
        "Offset": np.zeros((2, 18, *size)),
        "Filter": filters,
        "Mask": np.full((2, 9, *size), 0.5),
    }
    OpTest("deformable_conv", inputs, attrs, {"Output": out / 2}, known=["Filter"]).check_outputs()


def test_places_that_are_no_numbers_and_far_away() -> None:
    offsets = np.zeros((1, 2, 1, 3))
    offsets[0, :, 0] = [[np.nan, 1e30, 0], [0, 0, -np.inf]]
    inputs = {"Input": np.ones((1, 1, 1, 3)), "Offset": offsets, "Filter": np.ones((1, 1, 1, 1))}
    out = np.array([np.nan, 0, np.nan]).reshape(1, 1, 1, 3)
    OpTest("deformable_conv_v1", inputs, {}, {"Output": out}, known=["Filter"]).check_outputs()


def test_deformable_conv_refuses_other_dims() -> None:
    good, _ = convolution({}, True)
    for changed, attrs, error, parts in (
        ({"Input": IMAGES[0]}, {}, ValueError, ("input Input", "rank 4")),
        ({"Input": IMAGES[:, :3]}, {}, ValueError, ("input Input", "4 channels")),
        ({"Offset": good["Offset"][:, :10]}, {}, ValueError, ("input Offset", "[2, 12, 2, 4]")),
        ({"Mask": good["Mask"][:, :, :1]}, {}, ValueError, ("input Mask", "[2, 6, 2, 4]")),
        ({"Mask": good["Mask"].astype(np.float32)}, {}, TypeError, ("input Mask", "float32")),
        ({}, {"deformable_groups": 3}, ValueError, ("deformable_groups", "divisor of the 4 channels", "got 3")),
        ({}, {"groups": 3}, ValueError, ("input Input", "12 channels")),
    ):
        test = OpTest("deformable_conv", {**good, **changed}, attrs, {"Output": None}, known=list(good))
        test.check_refused(error, *parts)


#: In pixels that are half as large as those of the images: within them, across two borders, far beyond.
REGIONS = np.array([[1.3, 2.1, 7.2, 8.9], [-7.9, -3.2, 3.1, 7.3], [3.3, 4.8, 14.1, 12.2], [31.2, 1.1, 39.7, 7.3]])
IMAGE_OF = [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("attrs", "classes"),
    [
        ({"output_dim": 4, "pooled_height": 2, "pooled_width": 3, "part_size": [2, 3], "sample_per_part": 3}, 2),
        ({"output_dim": 1, "pooled_height": 4, "pooled_width": 2, "group_size": [2, 2], "part_size": [2, 1]}, 1),
        ({"output_dim": 2, "pooled_height": 3, "pooled_width": 3, "group_size": [1, 2], "part_size": [1, 1]}, 2),
        ({"output_dim": 4, "no_trans": True, "part_size": [1, 1], "sample_per_part": 4}, 2),
    ],
    ids=str,
)
def test_deformable_psroi_pooling(attrs: dict[str, Any], classes: int) -> None:
    rows, cols = attrs.get("pooled_height", 1), attrs.get("pooled_width", 1)
    groups, part, samples = attrs.get("group_size", [1, 1]), attrs["part_size"], attrs.get("sample_per_part", 1)
    trans = RNG.uniform(-2, 2, (4, 2 * classes, *part))
    out = np.zeros((4, attrs["output_dim"], rows, cols))
    counts = np.zeros(out.shape)
    for (r, c, row, col), _ in np.ndenumerate(out):
        left, upper = np.floor(REGIONS[r, :2] + 0.5) * 0.5 - 0.5
        right, lower = (np.floor(REGIONS[r, 2:] + 0.5) + 1) * 0.5 - 0.5
        kind = c // (attrs["output_dim"] // classes)
        shift = trans[r, 2 * kind : 2 * kind + 2, row * part[0] // rows, col * part[1] // cols] * 0.1
        shift = shift * (not attrs.get("no_trans", False))
        channel = (c * groups[0] + row * groups[0] // rows) * groups[1] + col * groups[1] // cols
        values = []
        for i in range(samples):
            for j in range(samples):
                y = upper + (row + i / samples) * (lower - upper) / rows + shift[1] * (lower - upper)
                x = left + (col + j / samples) * (right - left) / cols + shift[0] * (right - left)
                if -0.5 <= y <= 3.5 and -0.5 <= x <= 4.5:
                    at = np.clip(y, 0, 3), np.clip(x, 0, 4)
                    values.append(interpolated(IMAGES[IMAGE_OF[r], channel], *at))
        counts[r, c, row, col] = len(values)
        out[r, c, row, col] = np.mean(values) if values else 0
    assert (counts[3] == 0).all()
    inputs = {"Input": IMAGES, "ROIs": (REGIONS, [[1, 3]]), "Trans": trans}
    outputs = {"Output": out, "TopCount": counts}
    test = OpTest("deformable_psroi_pooling", inputs, {"spatial_scale": 0.5, **attrs}, outputs)
    test.check_outputs()
    test.check_gradients(["Input", "Trans"], ["Output"], tolerance=1e-5)


def test_deformable_psroi_pooling_refuses_other_dims() -> None:
    good = {"Input": IMAGES, "ROIs": (REGIONS, [[1, 3]]), "Trans": np.zeros((4, 4, 2, 2))}
    valid = {"output_dim": 4, "part_size": [2, 2]}
    outputs: dict[str, Any] = {"Output": None, "TopCount": None}
    for changed, attrs, error, parts in (
        ({"Input": IMAGES[0]}, {}, ValueError, ("input Input", "rank 4")),
        ({"ROIs": (REGIONS[:, :3], [[1, 3]])}, {}, ValueError, ("input ROIs", "[-1, 4]")),
        ({"Trans": np.zeros((4, 4, 1, 2))}, {}, ValueError, ("input Trans", "[4, -1, 2, 2]")),
        ({"Trans": np.zeros((4, 3, 2, 2))}, {}, ValueError, ("input Trans", "two channels")),
        ({"Trans": np.zeros((4, 6, 2, 2))}, {}, ValueError, ("input Trans", "share the 4 channels")),
        ({"Trans": np.zeros((4, 4, 2, 2), np.float32)}, {}, TypeError, ("input Trans", "float32")),
        ({}, {"output_dim": 0}, ValueError, ("output_dim", "got 0")),
        ({}, {"group_size": [2, 1]}, ValueError, ("input Input", "8, or more")),
        ({}, {"group_size": [1]}, ValueError, ("group_size", "a height and a width")),
        ({}, {"part_size": [0, 1]}, ValueError, ("part_size", "1 or more")),
        ({}, {"sample_per_part": 0}, ValueError, ("sample_per_part", "got 0")),
    ):
        test = OpTest("deformable_psroi_pooling", {**good, **changed}, {**valid, **attrs}, outputs, known=list(good))
        test.check_refused(error, *parts)
