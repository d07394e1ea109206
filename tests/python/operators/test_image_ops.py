"""Convolution and pooling of volumes, pooling with indices, unpool, spp, lrn, maxout, im2sequence; channels last."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace import fluid
from headrace.testing import OpTest

RNG = np.random.default_rng(71)


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def distinct(*shape: int) -> np.ndarray:
    """No two alike, for maxima."""
    size = int(np.prod(shape))
    return RNG.permutation(size).reshape(shape) / max(size, 1) + 0.1


def slices(at: Any, strides: Any, extent: Any, step: Any) -> tuple[slice, ...]:
    """The elements that the window at output position ``at`` meets in a padded input."""
    return tuple(slice(o * s, o * s + d * (k - 1) + 1, d) for o, s, k, d in zip(at, strides, extent, step))


def sides(paddings: Any) -> list[tuple[int, int]]:
    """What is before and after each dimension."""
    return [padding if isinstance(padding, tuple) else (padding, padding) for padding in paddings]


def same(extents: Any, size: Any, strides: Any) -> list[tuple[int, int]]:
    """The padding with which there is an output for each stride that begins within the input."""
    sums = [max(0, (-(-n // s) - 1) * s + k - n) for n, k, s in zip(extents, size, strides)]
    return [(total // 2, total - total // 2) for total in sums]


def convolution(x: np.ndarray, w: np.ndarray, strides: Any, paddings: Any, dilations: Any, groups: int) -> np.ndarray:
    x = np.pad(x, ((0, 0), (0, 0), *sides(paddings)))
    size = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)]
    out = np.zeros((len(x), len(w), *size))
    channels = w.shape[1]
    for m in range(len(w)):
        first = m // (len(w) // groups) * channels
        for at in itertools.product(*map(range, size)):
            window = slices(at, strides, w.shape[2:], dilations)
            patch = x[(slice(None), slice(first, first + channels), *window)]
            out[(slice(None), m, *at)] = (patch * w[m]).reshape(len(x), -1).sum(1)
    return out


VOLUMES = {
    "plain": (1, 2, (2, 2, 2), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    "strided": (2, 3, (2, 1, 3), [2, 1, 1], [1, 0, 2], [1, 1, 1], 1),
    "dilated groups": (4, 4, (2, 2, 1), [1, 2, 1], [1, 1, 0], [2, 1, 1], 2),
    "depthwise": (2, 2, (1, 2, 2), [1, 1, 2], [0, 1, 0], [1, 1, 1], 2),
    "pointwise": (2, 3, (1, 1, 1), [1, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    "many channels": (16, 2, (2, 2, 1), [1, 1, 1], [0, 1, 0], [2, 1, 1], 1),
}


@pytest.mark.parametrize("case", VOLUMES)
def test_conv3d(case: str) -> None:
    channels, maps, kernel, strides, paddings, dilations, groups = VOLUMES[case]
    x, w = numbers(2, channels, 4, 3, 3), numbers(maps, channels // groups, *kernel)
    attrs = {"strides": strides, "paddings": paddings, "dilations": dilations, "groups": groups}
    expected = convolution(x, w, strides, paddings, dilations, groups)
    test = OpTest("conv3d", {"Input": x, "Filter": w}, attrs, {"Output": expected}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


@pytest.mark.parametrize("algorithm", ["EXPLICIT", "SAME", "VALID"])
def test_convolution_with_padding_that_differs_before_and_after(algorithm: str) -> None:
    x, w = numbers(2, 2, 4, 5, 3), numbers(3, 2, 2, 3, 2)
    strides, paddings = [1, 2, 2], [1, 0, 0, 2, 1, 1]
    attrs = {"strides": strides, "paddings": paddings, "padding_algorithm": algorithm}
    dilations = [1, 2, 1]  # "SAME" knows none
    around = {
        "EXPLICIT": [(1, 0), (0, 2), (1, 1)],
        "SAME": same(x.shape[2:], w.shape[2:], strides),
        "VALID": [(0, 0)] * 3,
    }[algorithm]
    expected = convolution(x, w, strides, around, [1] * 3 if algorithm == "SAME" else dilations, 1)
    if algorithm == "SAME":
        assert expected.shape[2:] == (4, 3, 2)
    inputs = {"Input": x, "Filter": w}
    test = OpTest("conv3d", inputs, attrs | {"dilations": dilations}, {"Output": expected}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


# Without strides, with that many channels, the image is padded as a whole.
def test_convolution_of_large_images_with_padding_that_differs() -> None:
    x, w = numbers(1, 16, 20, 20), numbers(8, 16, 3, 3)
    expected = convolution(x, w, [1, 1], [(1, 0), (2, 1)], [1, 1], 1)
    attrs = {"paddings": [1, 0, 2, 1]}
    OpTest("conv2d", {"Input": x, "Filter": w}, attrs, {"Output": expected}, known=["Filter"]).check_outputs()


def test_depthwise_conv2d() -> None:
    x, w = numbers(2, 3, 4, 3), numbers(6, 1, 2, 2)
    inputs = {"Input": x, "Filter": w}
    expected = convolution(x, w, [1, 1], [0, 0], [1, 1], 3)
    test = OpTest("depthwise_conv2d", inputs, {"groups": 3}, {"Output": expected}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


def test_conv3d_refuses_what_does_not_fit() -> None:
    x, w = numbers(2, 3, 4, 4, 4), numbers(2, 3, 3, 3, 3)
    for inputs, attrs, part in (
        ({"Input": x[0], "Filter": w}, {}, "[N, C, D, H, W]"),
        ({"Input": x, "Filter": w[0]}, {}, "Filter"),
        ({"Input": x, "Filter": w}, {"groups": 2}, "groups"),
        ({"Input": x, "Filter": w}, {"strides": [1, 1]}, "depth, height, width"),
        ({"Input": x, "Filter": w}, {"paddings": [1, 1, 1, 1]}, "paddings"),
        ({"Input": x, "Filter": w}, {"paddings": [1, 1, 1, 1, -1, 1]}, "paddings"),
        ({"Input": x, "Filter": w}, {"padding_algorithm": "FULL"}, "'SAME'"),
        ({"Input": x, "Filter": numbers(2, 3, 5, 1, 1)}, {}, "depth"),
    ):
        OpTest("conv3d", inputs, attrs, {"Output": None}, known=["Filter"]).check_refused(ValueError, part)


def transposed(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """Each input element adds its filters, times its value, to the result."""
    rank, groups = x.ndim - 2, attrs.get("groups", 1)
    strides, dilations = attrs.get("strides", [1] * rank), attrs.get("dilations", [1] * rank)
    paddings = sides(attrs.get("paddings", [0] * rank))
    full = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(x.shape[2:], strides, dilations, w.shape[2:])]
    out = np.zeros((len(x), w.shape[1] * groups, *(f + s for f, s in zip(full, strides))))
    for c in range(x.shape[1]):
        first = c // (x.shape[1] // groups) * w.shape[1]
        for at in itertools.product(*map(range, x.shape[2:])):
            window = slices(at, strides, w.shape[2:], dilations)
            place = (slice(None), slice(first, first + w.shape[1]), *window)
            out[place] += x[(slice(None), c, *at)].reshape(-1, *[1] * (rank + 1)) * w[c]
    size = attrs.get("output_size", [f - sum(p) for f, p in zip(full, paddings)])
    return out[(slice(None), slice(None), *(slice(p, p + n) for (p, _), n in zip(paddings, size)))]


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": [2, 1, 2], "paddings": [1, 0, 1]},
        {"groups": 2, "dilations": [1, 2, 1]},
        {"strides": [2, 2, 1], "output_size": [5, 6, 3]},
    ],
    ids=str,
)
def test_conv3d_transpose(attrs: dict[str, Any]) -> None:
    x, w = numbers(2, 2, 2, 2, 2), numbers(2, 2, 2, 3, 2)
    inputs = {"Input": x, "Filter": w}
    test = OpTest("conv3d_transpose", inputs, attrs, {"Output": transposed(x, w, attrs)}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


@pytest.mark.parametrize("algorithm", ["EXPLICIT", "SAME", "VALID"])
def test_transposed_convolution_with_padding_that_differs_before_and_after(algorithm: str) -> None:
    x, w = numbers(2, 2, 3, 4), numbers(2, 2, 3, 4)
    around = {"EXPLICIT": [(1, 0), (0, 2)], "SAME": same((3, 4), (3, 4), (1, 2)), "VALID": [(0, 0)] * 2}[algorithm]
    expected = transposed(x, w, {"strides": [1, 2], "paddings": around})
    attrs = {"strides": [1, 2], "paddings": [1, 0, 0, 2], "padding_algorithm": algorithm}
    test = OpTest("conv2d_transpose", {"Input": x, "Filter": w}, attrs, {"Output": expected}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


# Enough channels and pixels to be computed as a convolution with a mirrored filter, and a little less.
@pytest.mark.parametrize("channels", [31, 32])
@pytest.mark.parametrize(
    ("x_dims", "size", "attrs"),
    [
        ((3, 3, 14, 13), (3, 2), {"paddings": [(1, 1), (0, 1)]}),
        ((3, 4, 14, 13), (2, 3), {"paddings": [(0, 2), (2, 1)], "dilations": [2, 1], "groups": 2}),
        ((3, 2, 13, 14), (3, 3), {"paddings": [(2, 2), (1, 1)]}),
        ((2, 2, 6, 7, 7), (2, 1, 3), {"paddings": [(0, 0), (0, 0), (1, 1)]}),
        ((1, 2, 7, 8, 10), (3, 2, 2), {"paddings": [(1, 1), (1, 0), (2, 0)], "dilations": [1, 1, 2]}),
    ],
    ids=str,
)
def test_transposed_convolution_to_many_channels(
    x_dims: tuple[int, ...], size: tuple[int, ...], attrs: dict[str, Any], channels: int
) -> None:
    x, w = numbers(*x_dims), numbers(x_dims[1], channels, *size)
    inputs = {"Input": x, "Filter": w}
    expected = transposed(x, w, attrs)
    attrs = attrs | {"paddings": [p for pair in attrs["paddings"] for p in pair]}
    OpTest(f"conv{len(size)}d_transpose", inputs, attrs, {"Output": expected}, known=["Filter"]).check_outputs()


def test_depthwise_conv2d_transpose() -> None:
    x, w = numbers(2, 2, 3, 2), numbers(2, 1, 2, 2)
    attrs = {"groups": 2, "strides": [2, 1]}
    inputs = {"Input": x, "Filter": w}
    test = OpTest("depthwise_conv2d_transpose", inputs, attrs, {"Output": transposed(x, w, attrs)}, known=["Filter"])
    test.check_outputs()
    test.check_gradients(["Input", "Filter"])


def test_conv3d_transpose_refuses_what_does_not_fit() -> None:
    x, w = numbers(2, 2, 3, 3, 3), numbers(2, 2, 2, 2, 2)
    for inputs, attrs, part in (
        ({"Input": x[0], "Filter": w}, {}, "[N, C, D, H, W]"),
        ({"Input": x, "Filter": w[:1]}, {}, "Filter"),
        ({"Input": x, "Filter": w}, {"output_size": [4, 4]}, "depth, height, width"),
        ({"Input": x, "Filter": w}, {"output_size": [9, 4, 4]}, "depth"),
        ({"Input": x, "Filter": w}, {"paddings": [9, 0, 0]}, "paddings"),
    ):
        OpTest("conv3d_transpose", inputs, attrs, {"Output": None}, known=["Filter"]).check_refused(ValueError, part)


def spans(n: int, size: int, stride: int, padding: Any, ceil: bool) -> list[range]:
    ((before, after),) = sides([padding])
    span = n + before + after - size
    count = (-(-span // stride) if ceil else span // stride) + 1
    return [range(max(o * stride - before, 0), min(o * stride - before + size, n)) for o in range(count)]


def adaptive_spans(n: int, count: int) -> list[range]:
    return [range(o * n // count, -(-(o + 1) * n // count)) for o in range(count)]


def pooled(x: np.ndarray, axes: list[list[range]], function: Any) -> np.ndarray:
    """``function`` of each window: of an array of the windows of all maps, [N, C, elements], and their size."""
    out = np.zeros((*x.shape[:2], *map(len, axes)))
    for at in itertools.product(*(range(len(axis)) for axis in axes)):
        window = np.ix_(range(x.shape[0]), range(x.shape[1]), *(axis[o] for axis, o in zip(axes, at)))
        out[(slice(None), slice(None), *at)] = function(x[window].reshape(*x.shape[:2], -1))
    return out


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pool3d(kind: str, ceil_mode: bool, exclusive: bool) -> None:
    x = distinct(1, 2, 3, 4, 5)
    size, strides, paddings = [2, 2, 3], [2, 2, 2], [0, 1, 1]
    axes = [spans(*axis, ceil_mode) for axis in zip(x.shape[2:], size, strides, paddings)]

    def average(window: np.ndarray) -> Any:
        return window.mean(-1) if exclusive and window.shape[-1] else window.sum(-1) / np.prod(size)

    def maximum(window: np.ndarray) -> Any:
        return window.max(-1, initial=np.finfo(np.float64).min)

    attrs = {"pooling_type": kind, "ksize": size, "strides": strides, "paddings": paddings}
    attrs |= {"ceil_mode": ceil_mode, "exclusive": exclusive}
    expected = pooled(x, axes, average if kind == "avg" else maximum)
    test = OpTest("pool3d", {"X": x}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("algorithm", ["EXPLICIT", "SAME", "VALID"])
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_with_padding_that_differs_before_and_after(kind: str, algorithm: str) -> None:
    x = distinct(1, 2, 5, 6)
    size, strides = [3, 2], [2, 1]
    around = {"EXPLICIT": [(0, 2), (1, 0)], "SAME": same((5, 6), size, strides), "VALID": [(0, 0)] * 2}[algorithm]
    axes = [spans(*axis, False) for axis in zip(x.shape[2:], size, strides, around)]
    expected = pooled(x, axes, lambda window: window.max(-1) if kind == "max" else window.mean(-1))
    attrs = {"pooling_type": kind, "ksize": size, "strides": strides, "paddings": [0, 2, 1, 0]}
    test = OpTest("pool2d", {"X": x}, attrs | {"padding_algorithm": algorithm}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(
    ("size", "strides", "paddings", "ceil_mode"),
    [([7, 3], [7, 1], [0, 0], False), ([5, 5], [2, 4], [0, 0], True), ([9, 4], [3, 3], [1, 0], False)],
    ids=str,
)
def test_a_window_that_is_larger_than_the_image_is_cut_at_its_edge(
    size: list[int], strides: list[int], paddings: list[int], ceil_mode: bool, kind: str, exclusive: bool
) -> None:
    """If it hangs over by less than a stride: Fluid's number of windows is truncated towards 0, and one more."""
    x = distinct(2, 2, 5, 3)
    if ceil_mode:
        x = x[:, :, :3, :2]  # over by 2 and 3, of strides of 2 and 4
    axes = []
    for n, k, step, around in zip(x.shape[2:], size, strides, paddings):
        span = n + 2 * around - k + (step - 1 if ceil_mode else 0)
        count = int(span / step) + 1
        axes.append([range(max(o * step - around, 0), min(o * step - around + k, n)) for o in range(count)])

    def average(window: np.ndarray) -> Any:
        return window.mean(-1) if exclusive else window.sum(-1) / np.prod(size)

    expected = pooled(x, axes, average if kind == "avg" else lambda window: window.max(-1))
    attrs = {"pooling_type": kind, "ksize": size, "strides": strides, "paddings": paddings}
    attrs |= {"ceil_mode": ceil_mode, "exclusive": exclusive}
    test = OpTest("pool2d", {"X": x}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize(("size", "stride", "ceil_mode"), [(5, 1, False), (6, 2, False), (7, 2, True)])
def test_a_window_that_hangs_over_too_far_is_refused(size: int, stride: int, ceil_mode: bool) -> None:
    """There Fluid would count no window, or fewer."""
    attrs = {"ksize": [size, 1], "strides": [stride, 1], "ceil_mode": ceil_mode}
    OpTest("pool2d", {"X": distinct(1, 1, 4, 4)}, attrs).check_refused(ValueError, "X", "height")


def test_pool3d_over_the_whole_volume() -> None:
    x = distinct(2, 2, 2, 3, 2)
    for kind, function in (("max", np.max), ("avg", np.mean)):
        attrs = {"pooling_type": kind, "global_pooling": True}
        test = OpTest("pool3d", {"X": x}, attrs, {"Out": function(x, (2, 3, 4), keepdims=True)})
        test.check_outputs()
        test.check_gradients(["X"])


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("shape", [(2, 2, 5, 7), (1, 2, 3, 4, 5)], ids=["images", "volumes"])
def test_adaptive_pooling(shape: tuple[int, ...], kind: str) -> None:
    x = distinct(*shape)
    size = [3, 2] if len(shape) == 4 else [2, 3, 5]
    axes = [adaptive_spans(n, count) for n, count in zip(shape[2:], size)]
    expected = pooled(x, axes, lambda window: window.max(-1) if kind == "max" else window.mean(-1))
    attrs = {"pooling_type": kind, "ksize": size, "adaptive": True, "exclusive": False}
    test = OpTest(f"pool{len(size)}d", {"X": x}, attrs, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("shape", [(2, 1, 3, 4), (1, 2, 2, 3, 2)], ids=str)
def test_adaptive_global_pooling_keeps_the_size(shape: tuple[int, ...]) -> None:
    x, attrs = distinct(*shape), {"global_pooling": True, "adaptive": True, "ksize": [1] * (len(shape) - 2)}
    for kind in ("max", "avg"):
        test = OpTest(f"pool{len(shape) - 2}d", {"X": x}, {**attrs, "pooling_type": kind}, {"Out": x})
        test.check_outputs()
        test.check_gradients(["X"])
    mask = np.broadcast_to(np.arange(np.prod(shape[2:]), dtype=np.int32).reshape(shape[2:]), shape)
    test = OpTest(f"max_pool{len(shape) - 2}d_with_index", {"X": x}, attrs, {"Out": x, "Mask": mask})
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("shape", [(2, 2, 5, 4), (1, 2, 3, 4, 3)], ids=["images", "volumes"])
def test_max_pool_with_index(shape: tuple[int, ...], adaptive: bool) -> None:
    x = distinct(*shape)
    rank = len(shape) - 2
    size, strides, paddings = [2] * rank, [2] * rank, [1] * rank
    if adaptive:
        axes = [adaptive_spans(n, 2) for n in shape[2:]]
    else:
        axes = [spans(n, 2, 2, 1, False) for n in shape[2:]]
    expected = pooled(x, axes, lambda window: window.max(-1))
    maps = zip(expected.reshape(-1, expected[0, 0].size), x.reshape(-1, x[0, 0].size))
    mask = np.array([[int(np.nonzero(values == m)[0][0]) for m in row] for row, values in maps])
    attrs = {"ksize": size, "strides": strides, "paddings": paddings, "adaptive": adaptive}
    outputs = {"Out": expected, "Mask": mask.reshape(expected.shape).astype(np.int32)}
    op_type = "max_pool2d_with_index" if rank == 2 else "max_pool3d_with_index"
    test = OpTest(op_type, {"X": x}, attrs, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


def test_the_first_of_equal_elements_is_the_maximum() -> None:
    x = np.array([[[[1.0, np.nan, 2.0, 2.0]]]])
    attrs = {"ksize": [1, 2], "strides": [1, 2]}
    outputs = {"Out": np.array([[[[np.nan, 2.0]]]]), "Mask": np.array([[[[1, 2]]]], np.int32)}
    OpTest("max_pool2d_with_index", {"X": x}, attrs, outputs).check_outputs()


def test_pooling_refuses_what_does_not_fit() -> None:
    x = distinct(1, 2, 4, 4)
    index = {"Out": None, "Mask": None}
    OpTest("pool3d", {"X": x}, {"ksize": [2, 2, 2]}).check_refused(ValueError, "[N, C, D, H, W]")
    OpTest("pool3d", {"X": x[None]}, {"ksize": [2, 2]}).check_refused(ValueError, "ksize", "depth, height, width")
    OpTest("pool2d", {"X": x}, {"ksize": [0, 2], "adaptive": True}).check_refused(ValueError, "ksize")
    empty = OpTest("pool2d", {"X": x[:, :, :0]}, {"ksize": [2, 2], "adaptive": True})
    empty.check_refused(ValueError, "X", "[1, 2, 0, 4]")
    OpTest("max_pool2d_with_index", {"X": x}, {"ksize": [5, 1]}, index).check_refused(ValueError, "X", "height")
    for paddings in ([2, 0], [0, 0, 0, 2]):
        attrs = {"ksize": [2, 2], "paddings": paddings}
        OpTest("max_pool2d_with_index", {"X": x}, attrs, index).check_refused(ValueError, "paddings")


@pytest.mark.parametrize("paddings", [[0, 0], [1, 1]], ids=str)
def test_unpool(paddings: list[int]) -> None:
    x = distinct(2, 3, 2, 2)
    extent = [2 * 2 - 2 * p + 1 for p in paddings]
    places = [RNG.permutation(int(np.prod(extent)))[:4] for _ in range(6)]
    indices = np.array(places, np.int32).reshape(2, 3, 2, 2)
    expected = np.zeros((6, int(np.prod(extent))))
    np.put_along_axis(expected, indices.reshape(6, 4).astype(np.int64), x.reshape(6, 4), 1)
    attrs = {"ksize": [3, 3], "strides": [2, 2], "paddings": paddings}
    inputs = {"X": x, "Indices": indices}
    test = OpTest("unpool", inputs, attrs, {"Out": expected.reshape(2, 3, *extent)})
    test.check_outputs()
    test.check_gradients(["X"])
    wrong = {**inputs, "Indices": indices + 100}
    OpTest("unpool", wrong, attrs).check_refused(IndexError, "Indices", f"[0, {int(np.prod(extent))})", when="run")
    OpTest("unpool", {**inputs, "Indices": indices[:1]}, attrs).check_refused(ValueError, "Indices")
    OpTest("unpool", inputs, {**attrs, "unpooling_type": "avg"}).check_refused(ValueError, "unpooling_type")
    OpTest("unpool", inputs, {"ksize": [1, 1], "paddings": [1, 1]}).check_refused(ValueError, "X", "paddings")


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("extent", [(4, 6), (5, 3), (1, 1)], ids=str)
def test_spp(extent: tuple[int, int], kind: str) -> None:
    def maximum(window: np.ndarray) -> Any:
        return window.max(-1, initial=np.finfo(np.float64).min)

    def average(window: np.ndarray) -> Any:
        return window.sum(-1) / max(window.shape[-1], 1)

    x = distinct(2, 3, *extent)
    levels = []
    for bins in (1, 2, 4):
        sizes = [-(-n // bins) for n in extent]
        axes = [
            [range(max(o * s - p, 0), max(min(o * s - p + s, n), 0)) for o in range(bins)]
            for n, s, p in ((n, s, (s * bins - n + 1) // 2) for n, s in zip(extent, sizes))
        ]
        levels.append(pooled(x, axes, maximum if kind == "max" else average).reshape(2, -1))
    expected = np.concatenate(levels, 1)
    test = OpTest("spp", {"X": x}, {"pyramid_height": 3, "pooling_type": kind}, {"Out": expected})
    test.check_outputs()
    if np.abs(expected).max() < 1e3:  # the derivative by what is the lowest number is lost in rounding
        test.check_gradients(["X"])


def test_spp_refuses_what_does_not_fit() -> None:
    x = distinct(2, 3, 4, 4)
    OpTest("spp", {"X": x[0]}, {"pyramid_height": 2}).check_refused(ValueError, "X", "[N, C, H, W]")
    OpTest("spp", {"X": x}, {"pyramid_height": 0}).check_refused(ValueError, "pyramid_height")
    OpTest("spp", {"X": x}, {"pyramid_height": 2, "pooling_type": "sum"}).check_refused(ValueError, "pooling_type")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_lrn(n: int, layout: str) -> None:
    x = numbers(2, 4, 2, 3)
    k, alpha, beta = 1.5, 0.3, 0.6
    mid = np.empty_like(x)
    for c in range(4):
        first = c - (n - 1) // 2
        mid[:, c] = k + alpha * (x[:, max(first, 0) : first + n] ** 2).sum(1)
    attrs = {"n": n, "k": k, "alpha": alpha, "beta": beta, "data_format": layout}
    if layout == "NHWC":
        x, mid = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, mid))
    test = OpTest("lrn", {"X": x}, attrs, {"Out": x / mid**beta, "MidOut": mid})
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


def test_lrn_refuses_what_does_not_fit() -> None:
    outputs = {"Out": None, "MidOut": None}
    OpTest("lrn", {"X": numbers(2, 3, 4)}, {}, outputs).check_refused(ValueError, "X", "rank 4")
    OpTest("lrn", {"X": numbers(1, 1, 1, 1)}, {"n": 0}, outputs).check_refused(ValueError, "attribute n")
    OpTest("lrn", {"X": numbers(1, 1, 1, 1)}, {"k": 0.0}, outputs).check_refused(ValueError, "attribute k")


@pytest.mark.parametrize("shape", [(2, 6, 2, 3), (2, 6, 0, 3), (0, 6, 1, 1)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("axis", [1, 3, -1])
def test_maxout(axis: int, groups: int, shape: tuple[int, ...]) -> None:
    x = distinct(*shape)
    expected = x.reshape(shape[0], shape[1] // groups, groups, *shape[2:]).max(2)
    if axis != 1:
        x, expected = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, expected))
    test = OpTest("maxout", {"X": x}, {"groups": groups, "axis": axis}, {"Out": expected})
    test.check_outputs()
    test.check_gradients(["X"])


def test_maxout_refuses_what_does_not_fit() -> None:
    OpTest("maxout", {"X": numbers(2, 6, 1, 1)}, {"groups": 4}).check_refused(ValueError, "X", "groups", "[2, 6, 1, 1]")
    OpTest("maxout", {"X": numbers(2, 6, 1, 1)}, {"groups": 0}).check_refused(ValueError, "groups")
    OpTest("maxout", {"X": numbers(2, 6, 1)}, {"groups": 2}).check_refused(ValueError, "X", "rank 4")
    OpTest("maxout", {"X": numbers(2, 6, 1, 1)}, {"groups": 2, "axis": 2}).check_refused(ValueError, "axis", "got 2")


def patches(x: np.ndarray, kernels: Any, strides: Any, counts: list[list[int]]) -> np.ndarray:
    """Of a padded input; ``counts``: how many rows and columns of patches each image has."""
    rows = [
        image[(slice(None), *slices(at, strides, kernels, (1, 1)))].reshape(-1)
        for image, count in zip(x, counts)
        for at in itertools.product(*map(range, count))
    ]
    return np.array(rows).reshape(-1, x.shape[1] * int(np.prod(kernels)))


@pytest.mark.parametrize("real_sizes", [False, True])
def test_im2sequence(real_sizes: bool) -> None:
    x = numbers(2, 3, 4, 5)
    kernels, strides, (up, left, down, right) = [2, 3], [2, 1], [1, 0, 0, 1]
    sizes = np.array([[8.0, 5.0], [5.0, 3.0]])  # of images twice as high as X
    inside = np.ceil(sizes / (2, 1)).astype(int) if real_sizes else np.array([[4, 5], [4, 5]])
    counts = [
        [(n + border - k) // s + 1 for n, border, k, s in zip(real, (up + down, left + right), kernels, strides)]
        for real in inside.tolist()
    ]
    padded = np.pad(x, ((0, 0), (0, 0), (up, down), (left, right)))
    expected = patches(padded, kernels, strides, counts)
    attrs = {"kernels": kernels, "strides": strides, "paddings": [up, left, down, right], "out_stride": [2, 1]}
    inputs = {"X": x, "Y": sizes} if real_sizes else {"X": x}
    test = OpTest("im2sequence", inputs, attrs, {"Out": (expected, [[a * b for a, b in counts]])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_im2sequence_leaves_out_what_is_left_at_the_border() -> None:
    x = numbers(1, 1, 5, 4)
    expected = patches(x, [2, 3], [2, 2], [[2, 1]])
    test = OpTest("im2sequence", {"X": x}, {"kernels": [2, 3], "strides": [2, 2]}, {"Out": (expected, [[2]])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_im2sequence_of_a_single_image_takes_no_real_size() -> None:
    x, sizes = numbers(1, 2, 3, 3), np.array([[2.0, 2.0], [1.0, 1.0]])
    expected = patches(x, [2, 2], [1, 1], [[2, 2]])
    OpTest("im2sequence", {"X": x, "Y": sizes}, {"kernels": [2, 2]}, {"Out": (expected, [[4]])}).check_outputs()


def test_im2sequence_fills_a_real_size_beyond_the_image_with_zeros() -> None:
    x, sizes = numbers(2, 1, 2, 3), np.array([[4.0, 3.0], [1.9, 5.0]])  # their fractions are cut off
    expected = patches(np.pad(x, ((0, 0), (0, 0), (0, 2), (0, 2))), [1, 2], [1, 1], [[4, 2], [1, 4]])
    test = OpTest("im2sequence", {"X": x, "Y": sizes}, {"kernels": [1, 2]}, {"Out": (expected, [[8, 4]])})
    test.check_outputs()
    test.check_gradients(["X"])


def test_im2sequence_refuses_what_does_not_fit() -> None:
    x = numbers(2, 3, 4, 5)
    OpTest("im2sequence", {"X": x}, {"kernels": [5, 1]}).check_refused(ValueError, "X", "kernels")
    OpTest("im2sequence", {"X": x[0]}, {"kernels": [1, 1]}).check_refused(ValueError, "X", "rank 4")
    OpTest("im2sequence", {"X": x}, {"kernels": [1, 1], "paddings": [1, 1]}).check_refused(ValueError, "paddings")
    for wrong in (-1.0, 1e10, np.nan):
        sizes = {"X": x, "Y": np.array([[wrong, 1.0], [1.0, 1.0]])}
        OpTest("im2sequence", sizes, {"kernels": [1, 1]}).check_refused(IndexError, "Y", "[0, 2147483647]", when="run")
    sizes = {"X": x, "Y": np.full((2, 2), 2.0**31 - 1)}
    OpTest("im2sequence", sizes, {"kernels": [1, 1]}).check_refused(ValueError, "int64 can count", when="run")


def as_last(x: np.ndarray) -> np.ndarray:
    """``x`` with its channels moved to the end."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def format_attr(op_type: str, shape: tuple[int, ...]) -> dict[str, str]:
    """The attribute that says that the channels of ``shape`` come last."""
    return {"data_layout" if op_type.endswith("interp") else "data_format": "NHWC" if len(shape) == 4 else "NDHWC"}


def channels_first_and_last(
    op_type: str, shape: tuple[int, ...], filters: tuple[int, ...] | None, attrs: dict[str, Any]
) -> tuple[OpTest, OpTest]:
    """The same operator in both layouts; the second one is expected to give the result of the first."""
    inputs = {"Input": numbers(*shape), "Filter": numbers(*filters)} if filters else {"X": distinct(*shape)}
    slot, out = ("Input", "Output") if filters else ("X", "Out")
    first = OpTest(op_type, inputs, attrs, {out: None}, known=["Filter"])
    (result,) = first.run()[out]
    moved = {**inputs, slot: as_last(inputs[slot])}
    outputs = {out: as_last(np.asarray(result))}
    return first, OpTest(op_type, moved, attrs | format_attr(op_type, shape), outputs, known=["Filter"])


LAST: dict[str, tuple[str, tuple[int, ...], tuple[int, ...] | None, dict[str, Any]]] = {
    "groups": ("conv2d", (2, 4, 5, 4), (6, 2, 3, 2), {"groups": 2, "strides": [2, 1], "paddings": [1, 0, 0, 2]}),
    "dilated": ("conv2d", (2, 3, 5, 4), (2, 3, 2, 2), {"dilations": [2, 1], "paddings": [1, 0]}),
    "same": ("conv2d", (1, 3, 4, 5), (2, 3, 2, 3), {"strides": [1, 2], "padding_algorithm": "SAME"}),
    "valid": ("conv2d", (1, 3, 4, 5), (2, 3, 2, 3), {"paddings": [3, 3], "padding_algorithm": "VALID"}),
    "pointwise": ("conv2d", (2, 3, 3, 2), (4, 3, 1, 1), {}),
    "many channels": ("conv2d", (1, 16, 5, 3), (3, 16, 3, 1), {"paddings": [1, 0]}),
    "no image": ("conv2d", (0, 3, 4, 5), (2, 3, 2, 3), {}),
    "depthwise": ("depthwise_conv2d", (2, 3, 4, 2), (6, 1, 2, 2), {"groups": 3, "paddings": [1, 0]}),
    "volumes": (
        "conv3d",
        (2, 2, 3, 4, 3),
        (4, 1, 2, 2, 2),
        {"groups": 2, "dilations": [1, 2, 1], "paddings": [1, 0, 0, 1, 1, 1]},
    ),
    "volumes, same": ("conv3d", (1, 2, 3, 2, 4), (2, 2, 2, 3, 1), {"strides": [2, 1, 2], "padding_algorithm": "SAME"}),
    "transpose": (
        "conv2d_transpose",
        (2, 4, 3, 2),
        (4, 3, 2, 3),
        {"groups": 2, "strides": [2, 1], "paddings": [1, 0, 0, 1]},
    ),
    "transpose to a size": ("conv2d_transpose", (1, 2, 2, 3), (2, 3, 2, 3), {"strides": [2, 2], "output_size": [5, 8]}),
    "transpose, same": ("conv2d_transpose", (1, 2, 2, 3), (2, 1, 3, 2), {"padding_algorithm": "SAME"}),
    "transpose, no image": ("conv2d_transpose", (0, 2, 2, 3), (2, 1, 3, 2), {}),
    "depthwise transpose": ("depthwise_conv2d_transpose", (2, 2, 3, 2), (2, 1, 2, 2), {"groups": 2, "strides": [2, 1]}),
    "transpose of volumes": (
        "conv3d_transpose",
        (1, 2, 2, 3, 2),
        (2, 2, 2, 1, 2),
        {"strides": [2, 1, 1], "dilations": [1, 1, 2]},
    ),
    "bilinear": ("bilinear_interp", (2, 3, 4, 3), None, {"out_h": 3, "out_w": 5}),
    "trilinear": ("trilinear_interp", (2, 3, 2, 4, 3), None, {"out_d": 3, "out_h": 3, "out_w": 5}),
    "bilinear, scaled": ("bilinear_interp", (1, 2, 2, 3), None, {"scale": 1.7, "align_corners": False}),
    "nearest": ("nearest_interp", (2, 3, 4, 2), None, {"out_h": 2, "out_w": 5, "align_corners": False}),
    "one channel": ("nearest_interp", (2, 1, 4, 2), None, {"out_h": 2, "out_w": 5}),
    "no image to resize": ("bilinear_interp", (0, 3, 4, 3), None, {"out_h": 3, "out_w": 5}),
}
POOLS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "padded": ((2, 3, 5, 4), {"ksize": [3, 2], "strides": [2, 1], "paddings": [0, 2, 1, 0]}),
    "inclusive": ((2, 3, 5, 4), {"ksize": [2, 3], "paddings": [1, 2], "exclusive": False}),
    "ceil": ((1, 2, 5, 6), {"ksize": [2, 3], "strides": [2, 2], "ceil_mode": True}),
    "squares": ((1, 3, 4, 6), {"ksize": [2, 2], "strides": [2, 2]}),
    "same": ((1, 2, 5, 6), {"ksize": [3, 2], "strides": [2, 1], "padding_algorithm": "SAME"}),
    "valid": ((1, 2, 5, 6), {"ksize": [3, 2], "paddings": [1, 1], "padding_algorithm": "VALID"}),
    "global": ((2, 3, 4, 2), {"global_pooling": True}),
    "adaptive": ((2, 3, 5, 4), {"ksize": [3, 2], "adaptive": True}),
    "no image": ((0, 3, 5, 4), {"ksize": [3, 2]}),
    "volumes": ((1, 2, 3, 4, 5), {"ksize": [2, 2, 3], "strides": [1, 2, 2], "paddings": [0, 1, 1]}),
    "global volumes": ((2, 3, 2, 3, 2), {"global_pooling": True}),
    "adaptive volumes": ((1, 2, 3, 4, 5), {"ksize": [2, 3, 2], "adaptive": True}),
}
LAST |= {
    f"{kind} {case}": (f"pool{len(shape) - 2}d", shape, None, {**attrs, "pooling_type": kind})
    for case, (shape, attrs) in POOLS.items()
    for kind in ("max", "avg")
}


@pytest.mark.parametrize("case", LAST)
def test_channels_last(case: str) -> None:
    _, last = channels_first_and_last(*LAST[case])
    last.check_outputs(rtol=0, atol=0)
    slots = ["X"] if LAST[case][2] is None else ["Input", "Filter"]
    last.check_gradients(slots)
    if len(slots) == 2:
        both = last.gradients(slots)
        for slot in slots:  # each may be all that is wanted
            np.testing.assert_array_equal(last.gradients([slot])[f"{slot}_0"], both[f"{slot}_0"])


@pytest.mark.parametrize("case", ["same", "volumes", "transpose", "bilinear", "max padded", "avg volumes"])
def test_any_layout_is_channels_first(case: str) -> None:
    op_type, shape, filters, attrs = LAST[case]
    first, _ = channels_first_and_last(op_type, shape, filters, attrs)
    out = "Output" if filters else "Out"
    ((name, _),) = format_attr(op_type, shape).items()
    expected = np.asarray(first.run()[out][0])
    for layout in ("AnyLayout", "NCHW", "NCDHW"):
        first.attrs = {**attrs, name: layout}
        np.testing.assert_array_equal(np.asarray(first.run()[out][0]), expected)


@pytest.mark.parametrize(
    ("op_type", "rank"),
    [
        ("conv2d", 2),
        ("depthwise_conv2d", 2),
        ("conv3d", 3),
        ("conv2d_transpose", 2),
        ("conv3d_transpose", 3),
        ("pool2d", 2),
        ("pool3d", 3),
        ("bilinear_interp", 2),
        ("nearest_interp", 2),
        ("trilinear_interp", 3),
    ],
)
def test_channels_last_refuses_what_does_not_fit(op_type: str, rank: int) -> None:
    shape = (2, *[3] * rank, 4)
    attr = format_attr(op_type, shape)
    ((name, _),) = attr.items()
    x, dims = numbers(*shape), "[N, H, W, C]" if rank == 2 else "[N, D, H, W, C]"
    inputs, out = {"X": x}, "Out"
    if "conv" in op_type:
        inputs, out = {"Input": x, "Filter": numbers(4, 4, *[1] * rank)}, "Output"
    slot = next(iter(inputs))
    attrs = {"out_h": 2, "out_w": 2} if name == "data_layout" else {}
    if op_type == "trilinear_interp":
        attrs["out_d"] = 2

    def refuse(changed: dict[str, np.ndarray], attrs: dict[str, Any], *parts: str, when: str = "build") -> None:
        test = OpTest(op_type, {**inputs, **changed}, attrs, {out: None}, known=["Filter"])
        test.check_refused(ValueError, *parts, when=when)

    refuse({}, attrs | {name: "CHWN"}, op_type, name, "'NCHW'", "'AnyLayout'", "'NHWC' or 'NDHWC'", "'CHWN'")
    refuse({slot: x[0]}, attrs | attr, op_type, slot, dims)
    if "conv" in op_type:
        refuse({slot: x[..., :3]}, attrs | attr, op_type, "4", str(list(x[..., :3].shape)))
    if not op_type.endswith("transpose"):
        when = "run" if op_type.endswith("interp") else "build"  # images of any size are declared so, too
        refuse({slot: x[:, :, :0]}, attrs | attr, op_type, slot, when=when)


# Images that share a product, and one beyond them; alone, or with others in a group of threads.
SHARED = {
    "5 x 5": ((23, 3, 5, 5), (4, 3, 3, 3), 1, 1, 1),
    "5 x 5, groups": ((21, 6, 5, 5), (4, 3, 3, 3), 2, 1, 1),
    "7 x 6, stride 2": ((45, 5, 7, 6), (9, 5, 3, 3), 1, 2, 1),
    "3 x 4, no padding": ((70, 2, 3, 4), (3, 2, 2, 2), 1, 1, 0),
    "pointwise": ((9, 4, 6, 7), (5, 4, 1, 1), 1, 1, 0),
    "1 x 1": ((300, 4, 1, 1), (5, 4, 1, 1), 1, 1, 0),
    "11 x 12": ((3, 4, 11, 12), (8, 4, 3, 3), 1, 1, 1),
    "more than there are blocks": ((37, 2, 11, 11), (3, 2, 3, 3), 1, 1, 1),
    "more than there are blocks, groups": ((71, 4, 8, 8), (4, 2, 3, 3), 2, 1, 1),
}


@pytest.mark.parametrize("case", SHARED)
def test_gradients_by_small_images_are_those_by_each(case: str) -> None:
    dims, filters, groups, stride, padding = SHARED[case]
    x, w = RNG.standard_normal(dims), RNG.standard_normal(filters)

    def gradients(x: np.ndarray, d: np.ndarray, threads: int = 1, by: str = "xw") -> dict[str, np.ndarray]:
        main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            images = fluid.layers.data("x", [*x.shape], dtype="float64", append_batch_size=False, stop_gradient=False)
            weights = fluid.layers.data("d", [*d.shape], dtype="float64", append_batch_size=False)
            out = fluid.layers.conv2d(
                images, len(w), filters[2:], stride, padding, groups=groups, param_attr="w", bias_attr=False
            )
            wanted = [main.global_block().var(name) for name in by]
            grads = fluid.gradients(fluid.layers.reduce_sum(out * weights), wanted)
        executor = fluid.Executor(fluid.CPUPlace(), cpu_num=threads)
        executor.run(startup, scope=scope)
        scope.find_var("w").get_tensor().set(w, fluid.CPUPlace())
        return dict(zip(by, executor.run(main, {"x": x, "d": d}, grads, scope=scope)))

    height, width = ((n + 2 * padding - k) // stride + 1 for n, k in zip(dims[2:], filters[2:]))
    d = RNG.standard_normal((len(x), len(w), height, width))
    alone = [gradients(x[i : i + 1], d[i : i + 1]) for i in range(len(x))]
    together = gradients(x, d)
    by_x, by_w = np.concatenate([each["x"] for each in alone]), np.sum([each["w"] for each in alone], axis=0)
    np.testing.assert_allclose(together["x"], by_x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(together["w"], by_w, rtol=1e-10, atol=1e-10)
    for threads, by in (2, "xw"), (4, "xw"), (1, "x"), (1, "w"):
        for name, grad in gradients(x, d, threads, by).items():
            assert grad.tobytes() == together[name].tobytes(), (threads, by)
