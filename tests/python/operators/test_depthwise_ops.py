"""Convolutions whose channels are groups of their own, which have kernels of their own: planes of all sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(29)


def numbers(*shape: int) -> np.ndarray:
    """Float32 holds them."""
    return RNG.uniform(-1, 1, shape).astype(np.float32).astype(np.float64)


def taps(x: np.ndarray, out: Any, w: np.ndarray, attrs: dict[str, Any]) -> Any:
    """Each tap of the filters, and the elements of the padded ``x`` that it meets, as a view."""
    (sy, sx), (dy, dx) = attrs["strides"], attrs["dilations"]
    for i in range(w.shape[2]):
        for j in range(w.shape[3]):
            rows = slice(i * dy, i * dy + (out[0] - 1) * sy + 1, sy)
            yield i, j, x[:, :, rows, j * dx : j * dx + (out[1] - 1) * sx + 1 : sx]


class Case:
    """A convolution, computed one tap after the other."""

    def __init__(
        self,
        dims: tuple[int, int, int, int],
        filters: tuple[int, int],
        strides: tuple[int, int] = (1, 1),
        paddings: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilations: tuple[int, int] = (1, 1),
        maps: int = 1,
    ) -> None:
        self.attrs = {
            "strides": list(strides),
            "paddings": list(paddings),
            "dilations": list(dilations),
            "groups": dims[1],
        }
        self.maps = maps
        self.x, self.w = numbers(*dims), numbers(dims[1] * maps, 1, *filters)
        top, bottom, left, right = paddings
        self.inside = (slice(None), slice(None), slice(top, top + dims[2]), slice(left, left + dims[3]))
        self.padded = np.pad(self.x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        self.size = [
            (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(self.padded.shape[2:], filters, strides, dilations)
        ]

    def output(self) -> np.ndarray:
        out = np.zeros((len(self.x), len(self.w), *self.size))
        for i, j, met in taps(self.padded, self.size, self.w, self.attrs):
            out += met.repeat(self.maps, 1) * self.w[:, 0, i, j, None, None]
        return out

    def input_grad(self, d: np.ndarray) -> np.ndarray:
        grad = np.zeros_like(self.padded)
        for i, j, met in taps(grad, self.size, self.w, self.attrs):
            products = d * self.w[:, 0, i, j, None, None]
            met += products.reshape(*met.shape[:2], self.maps, *self.size).sum(2)
        return grad[self.inside]

    def filter_grad(self, d: np.ndarray) -> np.ndarray:
        grad = np.zeros_like(self.w)
        for i, j, met in taps(self.padded, self.size, self.w, self.attrs):
            grad[:, 0, i, j] = (met.repeat(self.maps, 1) * d).sum((0, 2, 3))
        return grad

    def test(self, dtype: Any = np.float64) -> OpTest:
        inputs = {"Input": self.x.astype(dtype), "Filter": self.w.astype(dtype)}
        return OpTest("depthwise_conv2d", inputs, self.attrs, {"Output": self.output()}, known=["Filter"])


def case(*dims: int, filters: tuple[int, int] = (3, 3), pad: int = 0, stride: int = 1, **more: Any) -> Case:
    assert len(dims) == 4
    return Case(dims, filters, (stride, stride), (pad, pad, pad, pad), **more)


CASES = {
    **{
        f"{k} x {k}, stride {stride}, padding {pad}": case(2, 3, 9, 11, filters=(k, k), pad=pad, stride=stride)
        for k in (3, 5)
        for stride in (1, 2, 3)
        for pad in (1, 2)
    },
    "odd sizes": Case((2, 2, 7, 13), (2, 4), (1, 2), (1, 0, 2, 1)),
    "even sizes": Case((1, 2, 6, 10), (4, 2), (2, 1), (1, 2, 0, 1)),
    "more padding than the filter reaches": case(1, 2, 4, 5, pad=5),
    "more padding than the filter reaches, stride 2": case(1, 2, 3, 4, pad=5, stride=2),
    "stride 3, dilated": Case((1, 2, 9, 10), (3, 2), (3, 3), (2, 1, 1, 3), (2, 2)),
    "dilated": case(2, 2, 8, 9, pad=2, dilations=(2, 2)),
    "dilated, stride 2": case(1, 2, 8, 9, pad=2, stride=2, dilations=(2, 3)),
    "stride beyond the filter": Case((1, 2, 9, 8), (1, 2), (3, 4), (0, 1, 1, 0)),
    "stride beyond the phases": Case((1, 2, 11, 12), (2, 2), (10, 9), (1, 0, 0, 1)),
    "mixed strides": Case((1, 2, 9, 8), (3, 3), (2, 1), (1, 1, 1, 1)),
    "multiplier 2": case(2, 3, 6, 7, pad=1, maps=2),
    "multiplier 3, stride 2": case(2, 2, 6, 7, pad=1, stride=2, maps=3),
    "multiplier 6": case(1, 2, 5, 4, pad=1, maps=6),
    "filter larger than the input": case(2, 2, 3, 2, filters=(5, 6), pad=3),
    "planes of 1 x 1": case(3, 4, 1, 1, pad=1),
    "planes of 1 x 1, stride 2": case(3, 4, 1, 1, pad=1, stride=2),
    "one channel": case(3, 1, 5, 6, pad=1),
    "pointwise": case(2, 3, 4, 5, filters=(1, 1)),
    "much padding": case(1, 2, 2, 2, pad=60, stride=7),
}


@pytest.mark.parametrize("name", CASES)
def test_depthwise_convolution(name: str) -> None:
    test = CASES[name].test()
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


# Several vectors in a row, rows that end within a vector, and several bands of rows.
LARGE = {
    "56": case(2, 3, 56, 56, pad=1),
    "57, stride 2": case(2, 3, 57, 57, pad=1, stride=2),
    "7": case(8, 40, 7, 7, pad=1),
    "14, 5 x 5": case(4, 9, 14, 14, filters=(5, 5), pad=2),
    "wide": case(1, 2, 5, 701, pad=1),
    "wide, stride 2": case(1, 2, 5, 702, filters=(5, 5), pad=2, stride=2),
    "bands": case(1, 2, 190, 185, pad=1),
    "bands, stride 2": case(1, 2, 191, 180, filters=(5, 5), pad=2, stride=2, maps=2),
    "bands, dilated": Case((1, 1, 150, 320), (3, 2), (1, 3), (4, 0, 1, 2), (20, 3)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", LARGE)
def test_large_planes(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    large = LARGE[name]
    test = large.test(dtype)
    expected = large.output()
    results = []
    for threads in (1, 2):
        monkeypatch.setenv("CPU_NUM", str(threads))
        (out,) = test.run()["Output"]
        gradients = test.gradients(["Input", "Filter"], ["Output"], dtype)
        results.append([np.asarray(out), gradients["Input_0"], gradients["Filter_0"]])
    tolerance = 1e-12 if dtype == np.float64 else 2e-5
    d = weights_of(expected.shape, dtype)
    for actual, wanted in zip(results[0], (expected, large.input_grad(d), large.filter_grad(d))):
        assert actual.dtype == dtype
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * max(1, np.abs(wanted).max()))
    for one, two in zip(*results):
        assert one.tobytes() == two.tobytes()


def weights_of(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The gradient of Output that OpTest feeds, from an operator that passes it on."""
    channels = shape[1]
    inputs = {"Input": np.zeros(shape, dtype), "Filter": np.ones((channels, 1, 1, 1), dtype)}
    test = OpTest("conv2d", inputs, {"groups": channels}, {"Output": None}, known=["Filter"])
    return test.gradients(["Input"], dtype=dtype)["Input_0"].astype(np.float64)


def test_empty_batch() -> None:
    empty = case(0, 3, 5, 4, pad=1, maps=2)
    test = empty.test()
    test.check_outputs()
    gradients = test.gradients(["Input", "Filter"])
    assert gradients["Input_0"].shape == (0, 3, 5, 4)
    np.testing.assert_array_equal(gradients["Filter_0"], np.zeros((6, 1, 3, 3)))


def test_rows_do_not_see_infinities_of_others() -> None:
    """Beside the elements that a tap meets, others are in the same vectors."""
    x = numbers(1, 2, 6, 6)
    x[..., -1] = np.inf
    test = OpTest(
        "conv2d", {"Input": x, "Filter": np.ones((2, 1, 3, 3))}, {"groups": 2}, {"Output": None}, known=["Filter"]
    )
    (out,) = test.run()["Output"]
    assert np.isfinite(np.asarray(out)[..., :3]).all()
    grad = test.gradients(["Filter"], ["Output"])["Filter_0"]
    assert np.isfinite(grad[..., :2]).all()
    assert not np.isfinite(grad[..., 2]).any()


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_transposed(stride: int) -> None:
    """It is the gradient of a convolution by its input."""
    adjoint = case(2, 3, 9, 12, pad=1, stride=stride)
    d = numbers(2, 3, *adjoint.size)
    extents = [(n - 1) * stride + 1 for n in adjoint.size]
    assert all(n <= m < n + stride for n, m in zip(extents, (9, 12)))
    attrs = {**adjoint.attrs, "output_size": [9, 12]}
    test = OpTest(
        "depthwise_conv2d_transpose",
        {"Input": d, "Filter": adjoint.w},
        attrs,
        {"Output": adjoint.input_grad(d)},
        known=["Filter"],
    )
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])
