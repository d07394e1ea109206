"""mul, matmul, fsp, conv2d, pool2d, lookup_table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(19)


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def distinct(*shape: int) -> np.ndarray:
    """No two alike, for maxima."""
    size = int(np.prod(shape))
    return RNG.permutation(size).reshape(shape) / max(size, 1)


@pytest.mark.parametrize(
    ("x_shape", "y_shape", "x_split", "y_split"),
    [((2, 3), (3, 4), 1, 1), ((2, 3, 4), (12, 2), 1, 1), ((2, 3, 4), (2, 2, 5), 2, 2), ((0, 3), (3, 2), 1, 1)],
    ids=str,
)
def test_mul(x_shape: tuple[int, ...], y_shape: tuple[int, ...], x_split: int, y_split: int) -> None:
    x, y = numbers(*x_shape), numbers(*y_shape)
    inner = int(np.prod(y_shape[:y_split]))
    product = x.reshape(-1, inner) @ y.reshape(inner, -1)
    expected = product.reshape(x_shape[:x_split] + y_shape[y_split:])
    attrs = {"x_num_col_dims": x_split, "y_num_col_dims": y_split}
    test = OpTest("mul", {"X": x, "Y": y}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Y"])


def test_the_gradient_of_mul_checks_both_matrices() -> None:
    inputs = {"X": np.ones((5, 3)), "Y": np.ones((4, 2)), "Out@GRAD": np.ones((5, 2))}
    OpTest("mul_grad", inputs, outputs={"X@GRAD": None}).check_refused(ValueError, "Y", "expected 3 rows")
    inputs["Y"] = np.ones((3, 2), np.float32)
    OpTest("mul_grad", inputs, outputs={"X@GRAD": None}).check_refused(TypeError, "Y", "float64")


@pytest.mark.parametrize("transpose_y", [False, True])
@pytest.mark.parametrize("transpose_x", [False, True])
@pytest.mark.parametrize("batches", [((), ()), ((2,), (2,)), ((2, 2), ()), ((), (3,)), ((0,), (0,))], ids=str)
def test_matmul(batches: tuple[tuple[int, ...], tuple[int, ...]], transpose_x: bool, transpose_y: bool) -> None:
    x = numbers(*batches[0], *((4, 3) if transpose_x else (3, 4)))
    y = numbers(*batches[1], *((2, 4) if transpose_y else (4, 2)))
    product = (np.swapaxes(x, -1, -2) if transpose_x else x) @ (np.swapaxes(y, -1, -2) if transpose_y else y)
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y, "alpha": 0.5}
    test = OpTest("matmul", {"X": x, "Y": y}, attrs, {"Out": 0.5 * product})
    test.check_outputs()
    test.check_gradients(["X", "Y"])


VECTORS: list[tuple[tuple[int, ...], tuple[int, ...], bool, bool, tuple[int, ...]]] = [
    ((3,), (3,), False, False, (1,)),
    ((3,), (2, 3, 4), False, False, (2, 4)),
    ((2, 4, 3), (3,), False, False, (2, 4)),
    ((3,), (3, 4), False, False, (4,)),
    ((4, 3), (3,), False, False, (4,)),
    ((3,), (4,), True, True, (3, 4)),
]


@pytest.mark.parametrize("case", VECTORS, ids=str)
def test_matmul_of_vectors(case: tuple[Any, ...]) -> None:
    x_shape, y_shape, transpose_x, transpose_y, out_shape = case
    x, y = numbers(*x_shape), numbers(*y_shape)
    product = np.outer(x, y) if transpose_x else np.matmul(x, y)
    attrs = {"transpose_X": transpose_x, "transpose_Y": transpose_y}
    test = OpTest("matmul", {"X": x, "Y": y}, attrs, {"Out": product.reshape(out_shape)})
    test.check_outputs()
    test.check_gradients(["X", "Y"])


def test_products_that_do_not_fit_are_refused() -> None:
    OpTest("mul", {"X": numbers(2, 3), "Y": numbers(2, 3)}).check_refused(ValueError, "Y", "3 rows")
    OpTest("matmul", {"X": numbers(2, 3), "Y": numbers(2, 3)}).check_refused(ValueError, "Y", "3 rows")
    OpTest("matmul", {"X": numbers(2, 2, 3), "Y": numbers(3, 3, 2)}).check_refused(ValueError, "Y", "batch")
    mixed = {"X": numbers(2, 3), "Y": numbers(3, 2).astype(np.float32)}
    OpTest("matmul", mixed).check_refused(TypeError, "Y", "float64")


def convolution(
    x: np.ndarray, w: np.ndarray, strides: list[int], paddings: list[int], dilations: list[int], groups: int
) -> np.ndarray:
    (py, px), (sy, sx), (dy, dx) = paddings, strides, dilations
    x = np.pad(x, ((0, 0), (0, 0), (py, py), (px, px)))
    maps, channels, kh, kw = w.shape
    height = (x.shape[2] - dy * (kh - 1) - 1) // sy + 1
    width = (x.shape[3] - dx * (kw - 1) - 1) // sx + 1
    out = np.zeros((x.shape[0], maps, height, width))
    for m in range(maps):
        first = m // (maps // groups) * channels
        for i in range(height):
            for j in range(width):
                rows = slice(i * sy, i * sy + dy * (kh - 1) + 1, dy)
                cols = slice(j * sx, j * sx + dx * (kw - 1) + 1, dx)
                out[:, m, i, j] = (x[:, first : first + channels, rows, cols] * w[m]).sum((1, 2, 3))
    return out


@pytest.mark.parametrize(
    ("channels", "maps", "kernel", "strides", "paddings", "dilations", "groups"),
    [
        (1, 2, (3, 3), [1, 1], [0, 0], [1, 1], 1),
        (2, 3, (2, 3), [2, 1], [1, 2], [1, 1], 1),
        (4, 4, (3, 2), [1, 2], [0, 1], [2, 1], 2),
        (3, 3, (2, 2), [1, 1], [1, 1], [1, 1], 3),
        (2, 2, (1, 1), [1, 1], [0, 0], [1, 1], 1),
    ],
    ids=["plain", "strided", "groups", "depthwise", "pointwise"],
)
def test_conv2d(
    channels: int,
    maps: int,
    kernel: tuple[int, int],
    strides: list[int],
    paddings: list[int],
    dilations: list[int],
    groups: int,
) -> None:
    x, w = numbers(2, channels, 5, 4), numbers(maps, channels // groups, *kernel)
    attrs = {"strides": strides, "paddings": paddings, "dilations": dilations, "groups": groups}
    expected = convolution(x, w, strides, paddings, dilations, groups)
    test = OpTest("conv2d", {"Input": x, "Filter": w}, attrs, {"Output": expected}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


def test_convolutions_that_do_not_fit_are_refused() -> None:
    x, w = numbers(2, 3, 4, 4), numbers(2, 3, 3, 3)
    for inputs, attrs, part in (
        ({"Input": x, "Filter": numbers(2, 2, 3, 3)}, {}, "Input"),
        ({"Input": x[0], "Filter": w}, {}, "[N, C, H, W]"),
        ({"Input": x, "Filter": w}, {"groups": 2}, "groups"),
        ({"Input": x, "Filter": w}, {"strides": [0, 1]}, "strides"),
        ({"Input": x, "Filter": numbers(2, 3, 5, 5)}, {}, "Input"),
    ):
        OpTest("conv2d", inputs, attrs, {"Output": None}, known=["Filter"]).check_refused(ValueError, part)


def transposed(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Each input pixel adds its filters, times its value, to the result."""
    sy, sx = attrs.get("strides", (1, 1))
    py, px = attrs.get("paddings", (0, 0))
    dy, dx = attrs.get("dilations", (1, 1))
    groups, (n, channels, height, width), (_, maps, kh, kw) = attrs.get("groups", 1), x.shape, w.shape
    rows, cols = (height - 1) * sy + dy * (kh - 1) + 1, (width - 1) * sx + dx * (kw - 1) + 1
    extent = attrs.get("output_size", (rows - 2 * py, cols - 2 * px))
    out = np.zeros((n, maps * groups, rows + sy, cols + sx))
    for c in range(channels):
        group = c // (channels // groups)
        for m, i, j, y, v in np.ndindex(maps, height, width, kh, kw):
            out[:, group * maps + m, i * sy + y * dy, j * sx + v * dx] += x[:, c, i, j] * w[c, m, y, v]
    return out[:, :, py : py + extent[0], px : px + extent[1]]


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 3]},
        {"strides": [2, 2], "paddings": [1, 0], "dilations": [2, 1]},
        {"groups": 2, "paddings": [0, 1]},
        {"strides": [2, 2], "output_size": [8, 8]},
    ],
    ids=str,
)
def test_conv2d_transpose(attrs: dict[str, Any]) -> None:
    x, w = numbers(2, 4, 3, 3), numbers(4, 2, 3, 3)
    inputs = {"Input": x, "Filter": w}
    test = OpTest("conv2d_transpose", inputs, attrs, {"Output": transposed(x, w, attrs)}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


def test_conv2d_transpose_of_single_pixels() -> None:
    x, w = numbers(2, 3, 2, 2), numbers(3, 2, 1, 1)
    test = OpTest("conv2d_transpose", {"Input": x, "Filter": w}, {}, {"Output": transposed(x, w, {})}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


def test_conv2d_transpose_refuses_what_does_not_fit() -> None:
    x, w = numbers(2, 4, 3, 3), numbers(4, 2, 3, 3)
    for inputs, attrs, part in (
        ({"Input": x, "Filter": w[:3]}, {}, "Filter"),
        ({"Input": x[0], "Filter": w}, {}, "Input"),
        ({"Input": x, "Filter": w}, {"output_size": [4, 5]}, "output_size"),
        ({"Input": x, "Filter": w}, {"output_size": [6, 5]}, "output_size"),
        ({"Input": x, "Filter": w}, {"groups": 3}, "Filter"),
        ({"Input": x, "Filter": w}, {"paddings": [9, 9]}, "paddings"),
    ):
        OpTest("conv2d_transpose", inputs, attrs, {"Output": None}, known=["Filter"]).check_refused(ValueError, part)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool2d(kind: str, ceil_mode: bool, exclusive: bool) -> None:
    x = distinct(2, 2, 4, 6) + 0.1
    size, stride, padding = (2, 3), (2, 2), (1, 1)
    outputs = []
    for extent, k, s, p in zip(x.shape[2:], size, stride, padding):
        span = extent + 2 * p - k
        outputs.append((-(-span // s) if ceil_mode else span // s) + 1)
    expected = np.zeros((2, 2, *outputs))
    for i in range(outputs[0]):
        for j in range(outputs[1]):
            top, left = i * stride[0] - padding[0], j * stride[1] - padding[1]
            rows = slice(max(top, 0), min(top + size[0], 4))
            cols = slice(max(left, 0), min(left + size[1], 6))
            window = x[:, :, rows, cols]
            if kind == "max":
                expected[:, :, i, j] = window.max((2, 3))
            else:
                expected[:, :, i, j] = window.sum((2, 3)) / (window[0, 0].size if exclusive else size[0] * size[1])
    attrs: dict[str, Any] = {"pooling_type": kind, "ksize": list(size), "strides": list(stride)}
    attrs |= {"paddings": list(padding), "ceil_mode": ceil_mode, "exclusive": exclusive}
    test = OpTest("pool2d", {"X": x}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


def test_pool2d_over_the_whole_image() -> None:
    x = distinct(2, 3, 4, 5)
    for kind, function in (("max", np.max), ("avg", np.mean)):
        attrs = {"pooling_type": kind, "ksize": [1, 1], "global_pooling": True}
        test = OpTest("pool2d", {"X": x}, attrs, {"Out": function(x, (2, 3), keepdims=True)})
        test.check_outputs()
        test.check_gradients(["X"])


@pytest.mark.parametrize("padding_idx", [-1, 1])
def test_lookup_table(padding_idx: int) -> None:
    table = numbers(4, 3)
    ids = np.array([[1], [3], [1], [0]])
    expected = table[ids[:, 0]] * (ids != padding_idx)
    inputs = {"W": table, "Ids": (ids, [[1, 3]])}
    test = OpTest("lookup_table", inputs, {"padding_idx": padding_idx}, {"Out": (expected, [[1, 3]])})
    test.check_outputs()
    test.check_gradients(["W"])
    for bad in (-1, 4):
        wrong = OpTest("lookup_table", {"W": table, "Ids": np.array([[bad]])})
        wrong.check_refused(IndexError, "Ids", "[0, 4)", when="run")
    OpTest("lookup_table", {"W": table, "Ids": ids.T}).check_refused(ValueError, "Ids", "[..., 1]")


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize("has_bias", [True, False])
def test_bilinear_tensor_product(has_bias: bool, rows: int) -> None:
    x, y, weight, bias = numbers(rows, 4), numbers(rows, 3), numbers(2, 4, 3), numbers(1, 2)
    expected = np.einsum("ni,kij,nj->nk", x, weight, y)
    inputs = {"X": x, "Y": y, "Weight": weight}
    if has_bias:
        inputs["Bias"], expected = bias, expected + bias
    test = OpTest("bilinear_tensor_product", inputs, {}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(list(inputs))


def test_bilinear_forms_that_do_not_fit_are_refused() -> None:
    good: dict[str, Any] = {"X": numbers(3, 4), "Y": numbers(3, 2), "Weight": numbers(5, 4, 2), "Bias": numbers(1, 5)}
    for slot, value, error, part in (
        ("X", numbers(3), ValueError, "rank 2"),
        ("Y", numbers(2, 2), ValueError, "[3, -1], got [2, 2]"),
        ("Weight", numbers(5, 4), ValueError, "rank 3"),
        ("Weight", numbers(5, 3, 2), ValueError, "[-1, 4, 2], got [5, 3, 2]"),
        ("Bias", numbers(5, 1), ValueError, "[1, 5], got [5, 1]"),
        ("Weight", numbers(5, 4, 2).astype(np.float32), TypeError, "float64 as input X has"),
    ):
        test = OpTest("bilinear_tensor_product", {**good, slot: value}, known=list(good))
        test.check_refused(error, f"input {slot}", part)


@pytest.mark.parametrize(("channels", "others"), [(2, 3), (1, 1), (0, 2), (2, 0)])
@pytest.mark.parametrize("images", [2, 0])
def test_fsp(images: int, channels: int, others: int) -> None:
    x, y = numbers(images, channels, 2, 3), numbers(images, others, 2, 3)
    expected = np.einsum("nchw,ndhw->ncd", x, y) / 6
    test = OpTest("fsp", {"X": x, "Y": y}, {}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X", "Y"])


def test_fsp_refuses_maps_that_do_not_fit() -> None:
    x = numbers(2, 3, 2, 3)
    for inputs, error, part in (
        ({"X": x, "Y": x[:, :, :1]}, ValueError, "input Y"),
        ({"X": x, "Y": x[:1]}, ValueError, "input Y"),
        ({"X": x[0], "Y": x}, ValueError, "input X"),
        ({"X": x[:, :, :0], "Y": x[:, :, :0]}, ValueError, "input X"),
        ({"X": x, "Y": x.astype(np.float32)}, TypeError, "input Y"),
    ):
        OpTest("fsp", inputs).check_refused(error, part)
