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


def convolution(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """In float64, one element of the window after the other."""
    (top, bottom, left, right), groups = attrs["paddings"], attrs["groups"]
    (sy, sx), (dy, dx) = attrs["strides"], attrs["dilations"]
    x = np.pad(x.astype(float), ((0, 0), (0, 0), (top, bottom), (left, right)))
    _, channels, kh, kw = w.shape
    rows, cols = (x.shape[2] - dy * (kh - 1) - 1) // sy + 1, (x.shape[3] - dx * (kw - 1) - 1) // sx + 1
    filters = w.astype(float).reshape(groups, -1, channels, kh, kw)
    images = x.reshape(len(x), groups, channels, *x.shape[2:])
    out = np.zeros((len(x), groups, filters.shape[1], rows, cols))
    for i in range(kh):
        for j in range(kw):
            met = images[..., i * dy : i * dy + (rows - 1) * sy + 1 : sy, j * dx : j * dx + (cols - 1) * sx + 1 : sx]
            out += np.einsum("ngchw,gmc->ngmhw", met, filters[..., i, j])
    return out.reshape(len(x), -1, rows, cols)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(60))
def test_convolutions(seed: int, dtype: Any, monkeypatch: Any) -> None:
    rng = np.random.default_rng(seed)

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    kernel, dilations = [between(1, 4), between(1, 4)], [between(1, 2), between(1, 2)]
    extents = [between(1, 12), between(1, 40)]
    paddings = [between(0, 3) for _ in range(4)]
    for axis in range(2):
        extents[axis] = max(extents[axis], dilations[axis] * (kernel[axis] - 1) + 1)
    groups = between(1, 2)
    channels, maps = between(1, 9), between(1, 9)
    x, w = numbers(between(1, 9), groups * channels, *extents), numbers(groups * maps, channels, *kernel)
    attrs = {
        "strides": [between(1, 3), between(1, 3)],
        "paddings": paddings,
        "dilations": dilations,
        "groups": groups,
    }
    inputs = {"Input": x.astype(dtype), "Filter": w.astype(dtype)}
    out = result("conv2d", inputs, attrs, "Output")
    np.testing.assert_allclose(out, convolution(x, w, attrs), rtol=0, atol=1e-4)
    # Images that are convolved together have the bits that each has alone.
    alone = {"Input": inputs["Input"][-1:], "Filter": inputs["Filter"]}
    np.testing.assert_array_equal(result("conv2d", alone, attrs, "Output"), out[-1:])
    monkeypatch.setenv("CPU_NUM", "3")
    np.testing.assert_array_equal(result("conv2d", inputs, attrs, "Output"), out)


@pytest.mark.parametrize("stride", [2, 7, 1 << 20])
@pytest.mark.parametrize("padding", [0, 1, 40])
def test_an_image_that_is_mostly_padding(padding: int, stride: int) -> None:
    x, w = numbers(2, 3, 3, 3), numbers(4, 3, 3, 3)
    attrs = {"strides": [5, stride], "paddings": [padding] * 4, "dilations": [1, 1], "groups": 1}
    out = result("conv2d", {"Input": x, "Filter": w}, attrs, "Output")
    np.testing.assert_allclose(out, convolution(x, w, attrs), rtol=0, atol=1e-5)
