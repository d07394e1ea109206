"""Products and convolutions of many shapes: how they are cut, packed and shared changes no bit of a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(31)


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def result(op_type: str, inputs: dict[str, Any], attrs: dict[str, Any], slot: str) -> np.ndarray:
    return np.asarray(OpTest(op_type, inputs, attrs, {slot: None}, known=list(inputs)).run()[slot][0])


def matmul(x: np.ndarray, y: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return result("matmul", {"X": x, "Y": y}, {"alpha": alpha}, "Out")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [1, 7, 8, 255, 257, 512, 1030])
@pytest.mark.parametrize("n", [3, 16, 61, 512, 700, 1100])
def test_a_row_has_the_bits_that_it_has_among_others(n: int, k: int, dtype: Any, monkeypatch: Any) -> None:
    x, y = numbers(9, k).astype(dtype), numbers(k, n).astype(dtype)
    product = matmul(x, y, 0.5)
    np.testing.assert_allclose(product, 0.5 * (x.astype(float) @ y), rtol=0, atol=1e-5 * k)
    monkeypatch.setenv("CPU_NUM", "3")
    for rows in (slice(0, 1), slice(8, 9), slice(2, 7)):
        np.testing.assert_array_equal(matmul(x[rows], y, 0.5), product[rows])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "k"), [(7, 256), (150, 256), (300, 128), (290, 127), (145, 1024), (600, 64), (2, 512)])
def test_columns_have_the_bits_that_they_have_alone(m: int, k: int, dtype: Any) -> None:
    """Few columns are multiplied by rows where they lie, many by packed ones."""
    x, y = numbers(m, k).astype(dtype), numbers(k, 131).astype(dtype)
    product = matmul(x, y)
    np.testing.assert_allclose(product, x.astype(float) @ y, rtol=0, atol=1e-5 * k)
    np.testing.assert_array_equal(matmul(x, np.ascontiguousarray(y[:, :5])), product[:, :5])
    np.testing.assert_array_equal(matmul(x, np.ascontiguousarray(y[:, 37:38])), product[:, 37:38])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("m", "k"), [(4200, 300), (8200, 130), (700, 2000)])
def test_rows_that_tasks_share_have_the_bits_of_few(m: int, k: int, dtype: Any, monkeypatch: Any) -> None:
    """Each task packs its own. In memory, rows or columns lie together."""
    x, y = numbers(m, k).astype(dtype), numbers(k, 67).astype(dtype)
    product = matmul(x, y)
    np.testing.assert_allclose(product, x.astype(float) @ y, rtol=0, atol=1e-5 * k)
    for rows in (slice(0, 7), slice(m // 2 - 5, m // 2 + 5), slice(m - 3, m)):
        np.testing.assert_array_equal(matmul(x[rows], y), product[rows])
    for threads in ("1", "3"):
        monkeypatch.setenv("CPU_NUM", threads)
        transposed = {"X": np.ascontiguousarray(x.T), "Y": y}
        np.testing.assert_array_equal(result("matmul", transposed, {"transpose_X": True}, "Out"), product)
        np.testing.assert_array_equal(matmul(x, y), product)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [255, 256, 300, 1030])
@pytest.mark.parametrize(("m", "n"), [(50, 1), (255, 7), (257, 24), (600, 10), (600, 25)])
def test_few_columns_and_a_transposed_factor(m: int, n: int, k: int, dtype: Any, monkeypatch: Any) -> None:
    """Deep ones of up to 24 columns are the transpose of a product of few rows."""
    x, y = numbers(k, m).astype(dtype), numbers(k, n).astype(dtype)
    for transposed in (False, True):
        inputs = {"X": x, "Y": np.ascontiguousarray(y.T) if transposed else y}
        attrs = {"transpose_X": True, "transpose_Y": transposed, "alpha": -2.0}
        monkeypatch.setenv("CPU_NUM", "1")
        product = result("matmul", inputs, attrs, "Out")
        np.testing.assert_allclose(product, -2 * (x.astype(float).T @ y), rtol=0, atol=1e-5 * k)
        monkeypatch.setenv("CPU_NUM", "3")
        np.testing.assert_array_equal(result("matmul", inputs, attrs, "Out"), product)


class Convolution:
    """In float64, one element of the window after the other."""

    def __init__(self, x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> None:
        self.top, bottom, self.left, right = attrs["paddings"]
        (self.sy, self.sx), (self.dy, self.dx) = attrs["strides"], attrs["dilations"]
        self.extents = x.shape[2:]
        x = np.pad(x.astype(float), ((0, 0), (0, 0), (self.top, bottom), (self.left, right)))
        maps, channels, kh, kw = w.shape
        groups = attrs["groups"]
        self.rows = (x.shape[2] - self.dy * (kh - 1) - 1) // self.sy + 1
        self.cols = (x.shape[3] - self.dx * (kw - 1) - 1) // self.sx + 1
        self.filters = w.astype(float).reshape(groups, maps // groups, channels, kh, kw)
        self.images = x.reshape(len(x), groups, channels, *x.shape[2:])

    def met(self, images: np.ndarray, i: int, j: int) -> np.ndarray:
        """What the element [i, j] of the window is multiplied by."""
        y, x = i * self.dy, j * self.dx
        return images[
            ..., y : y + (self.rows - 1) * self.sy + 1 : self.sy, x : x + (self.cols - 1) * self.sx + 1 : self.sx
        ]

    def output(self) -> np.ndarray:
        out = np.zeros((len(self.images), *self.filters.shape[:2], self.rows, self.cols))
        for i, j in np.ndindex(self.filters.shape[3:]):
            out += np.einsum("ngchw,gmc->ngmhw", self.met(self.images, i, j), self.filters[..., i, j])
        return out.reshape(len(out), -1, self.rows, self.cols)

    def gradients(self, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of the images and of the filter."""
        d = d.astype(float).reshape(len(d), *self.filters.shape[:2], self.rows, self.cols)
        of_images, of_filters = np.zeros_like(self.images), np.zeros_like(self.filters)
        for i, j in np.ndindex(self.filters.shape[3:]):
            of_filters[..., i, j] = np.einsum("ngchw,ngmhw->gmc", self.met(self.images, i, j), d)
            self.met(of_images, i, j)[...] += np.einsum("ngmhw,gmc->ngchw", d, self.filters[..., i, j])
        height, width = self.extents
        inside = of_images[..., self.top : self.top + height, self.left : self.left + width]
        return inside.reshape(len(d), -1, height, width), of_filters.reshape(-1, *self.filters.shape[2:])


def any_convolution(
    rng: np.random.Generator, channels: int, maps: int
) -> tuple[np.ndarray, np.ndarray, dict[str, list[int] | int]]:
    """Images, a filter with so many channels and maps in each group, and attributes."""

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    kernel, dilations = [between(1, 4), between(1, 4)], [between(1, 2), between(1, 2)]
    extents = [between(1, 12), between(1, 40)]
    paddings = [between(0, 3) for _ in range(4)]
    for axis in range(2):
        extents[axis] = max(extents[axis], dilations[axis] * (kernel[axis] - 1) + 1)
    groups = between(1, 2)
    x, w = numbers(between(1, 9), groups * channels, *extents), numbers(groups * maps, channels, *kernel)
    strides = [between(1, 3), between(1, 3)]
    return x, w, {"strides": strides, "paddings": paddings, "dilations": dilations, "groups": groups}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(60))
def test_convolutions(seed: int, dtype: Any, monkeypatch: Any) -> None:
    rng = np.random.default_rng(seed)
    x, w, attrs = any_convolution(rng, *rng.integers(1, 10, 2))
    inputs = {"Input": x.astype(dtype), "Filter": w.astype(dtype)}
    out = result("conv2d", inputs, attrs, "Output")
    np.testing.assert_allclose(out, Convolution(x, w, attrs).output(), rtol=0, atol=1e-4)
    # Images that are convolved together have the bits that each has alone.
    alone = {"Input": inputs["Input"][-1:], "Filter": inputs["Filter"]}
    np.testing.assert_array_equal(result("conv2d", alone, attrs, "Output"), out[-1:])
    monkeypatch.setenv("CPU_NUM", "3")
    np.testing.assert_array_equal(result("conv2d", inputs, attrs, "Output"), out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("channels", "maps", "extents"), [(70, 33, [6, 40]), (130, 17, [9, 16]), (3, 128, [20, 99]), (64, 1, [1, 31])]
)
def test_patches_that_are_multiplied_where_they_lie(
    channels: int, maps: int, extents: list[int], dtype: Any, monkeypatch: Any
) -> None:
    """Of convolutions with few maps; those of many elements slice by slice."""
    x, w = numbers(2, channels, *extents), numbers(maps, channels, 3, 3)
    attrs = {"strides": [1, 1], "paddings": [1, 1, 1, 1], "dilations": [1, 1], "groups": 1}
    inputs = {"Input": x.astype(dtype), "Filter": w.astype(dtype)}
    monkeypatch.setenv("CPU_NUM", "1")
    out = result("conv2d", inputs, attrs, "Output")
    np.testing.assert_allclose(out, Convolution(x, w, attrs).output(), rtol=0, atol=1e-5 * w[0].size)
    monkeypatch.setenv("CPU_NUM", "3")
    np.testing.assert_array_equal(result("conv2d", inputs, attrs, "Output"), out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(40))
def test_gradients_of_convolutions(seed: int, dtype: Any, monkeypatch: Any) -> None:
    rng = np.random.default_rng(seed)
    channels, maps = (
        rng.choice([1, 3, 8, 40, 300], p=[0.2, 0.3, 0.3, 0.15, 0.05]),
        rng.choice([1, 5, 15, 16, 32, 60, 80]),
    )
    x, w, attrs = any_convolution(rng, channels, maps)
    convolution = Convolution(x, w, attrs)
    d = numbers(*convolution.output().shape)
    inputs = {"Input": x.astype(dtype), "Filter": w.astype(dtype), "Output@GRAD": d.astype(dtype)}
    images, filters = (result("conv2d_grad", inputs, attrs, slot) for slot in ("Input@GRAD", "Filter@GRAD"))
    expected_images, expected_filters = convolution.gradients(d)
    np.testing.assert_allclose(images, expected_images, rtol=0, atol=1e-3)
    np.testing.assert_allclose(filters, expected_filters, rtol=0, atol=1e-3)
    monkeypatch.setenv("CPU_NUM", "3")
    np.testing.assert_array_equal(result("conv2d_grad", inputs, attrs, "Filter@GRAD"), filters)
    np.testing.assert_array_equal(result("conv2d_grad", inputs, attrs, "Input@GRAD"), images)


@pytest.mark.parametrize("stride", [2, 7, 1 << 20])
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_an_image_that_is_mostly_padding(padding: int, stride: int) -> None:
    x, w = numbers(2, 3, 3, 3), numbers(4, 3, 3, 3)
    attrs = {"strides": [5, stride], "paddings": [padding] * 4, "dilations": [1, 1], "groups": 1}
    out = result("conv2d", {"Input": x, "Filter": w}, attrs, "Output")
    np.testing.assert_allclose(out, Convolution(x, w, attrs).output(), rtol=0, atol=1e-5)
