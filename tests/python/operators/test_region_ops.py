"""Operators that look at images between pixels: at the places of a grid, and in regions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.testing import OpTest

RNG = np.random.default_rng(71)
IMAGES = RNG.uniform(-1, 1, (3, 2, 7, 5))
#: Left, upper, right, lower, in pixels that are half as large as those of IMAGES: within them, across each border,
#: beyond them, as small as a point, inside out.
REGIONS = np.array(
    [
        [1.3, 2.1, 7.2, 10.9],
        [-7.9, 3.2, 3.1, 17.3],
        [2.3, -5.8, 16.1, 5.2],
        [21.2, 1.1, 29.7, 7.3],
        [3.1, 4.3, 3.1, 4.3],
        [6.2, 9.1, 2.4, 3.3],
    ]
)
LENGTHS = [[3, 0, 3]]
IMAGE_OF = [0, 0, 0, 2, 2, 2]
#: Rows and columns of bins.
BINS = [(1, 1), (2, 3), (4, 2)]


def pixel(image: np.ndarray, y: int, x: int) -> float:
    inside = 0 <= y < image.shape[0] and 0 <= x < image.shape[1]
    return float(image[y, x]) if inside else 0.0


def interpolated(image: np.ndarray, y: float, x: float) -> float:
    """Between pixels; zeros lie beyond the border."""
    top, left = int(np.floor(y)), int(np.floor(x))
    return sum(
        (1 - abs(y - row)) * (1 - abs(x - col)) * pixel(image, row, col)
        for row in (top, top + 1)
        for col in (left, left + 1)
    )


def pooled(bins: tuple[int, int], channels: int, of_bin: Callable[..., float]) -> np.ndarray:
    """``of_bin(image, channel, region, row, column)`` of all bins."""
    out = np.empty((len(REGIONS), channels, *bins))
    for (region, channel, row, col), _ in np.ndenumerate(out):
        out[region, channel, row, col] = of_bin(IMAGE_OF[region], channel, REGIONS[region], row, col)
    return out


def regions_test(op_type: str, x: np.ndarray, bins: tuple[int, int], out: dict[str, Any], **attrs: Any) -> OpTest:
    given = {"pooled_height": bins[0], "pooled_width": bins[1], "spatial_scale": 0.5, **attrs}
    return OpTest(op_type, {"X": x, "ROIs": (REGIONS, LENGTHS)}, given, out)


@pytest.mark.parametrize("bins", BINS, ids=str)
def test_roi_pool(bins: tuple[int, int]) -> None:
    argmax = np.full((len(REGIONS), 2, *bins), -1)

    def of_bin(image: int, channel: int, region: np.ndarray, row: int, col: int) -> float:
        left, upper, right, lower = np.floor(region * 0.5 + 0.5).astype(int)
        height, width = max(lower - upper + 1, 1), max(right - left + 1, 1)
        rows = range(upper + row * height // bins[0], upper - (-(row + 1) * height // bins[0]))
        cols = range(left + col * width // bins[1], left - (-(col + 1) * width // bins[1]))
        inside = [(y, x) for y in rows if 0 <= y < 7 for x in cols if 0 <= x < 5]
        if not inside:
            return 0.0
        best = max(inside, key=lambda at: IMAGES[image, channel, at[0], at[1]])
        number = next(i for i, other in enumerate(REGIONS) if (other == region).all())
        argmax[number, channel, row, col] = best[0] * 5 + best[1]
        return float(IMAGES[image, channel, best[0], best[1]])

    out = pooled(bins, 2, of_bin)
    assert (argmax == -1).any()
    test = regions_test("roi_pool", IMAGES, bins, {"Out": out, "Argmax": argmax})
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


def test_a_maximum_is_the_first_of_equals_or_nan() -> None:
    x = np.zeros((1, 2, 3, 3))
    x[0, 1, 2, 1] = np.nan
    whole = (np.array([[0.0, 0.0, 2.0, 2.0]]), [[1]])
    out = {"Out": np.array([0.0, np.nan]).reshape(1, 2, 1, 1), "Argmax": np.array([0, 7]).reshape(1, 2, 1, 1)}
    OpTest("roi_pool", {"X": x, "ROIs": whole}, {}, out).check_outputs()


@pytest.mark.parametrize("ratio", [-1, 1, 3])
@pytest.mark.parametrize("bins", BINS, ids=str)
def test_roi_align(bins: tuple[int, int], ratio: int) -> None:
    def of_bin(image: int, channel: int, region: np.ndarray, row: int, col: int) -> float:
        left, upper, right, lower = region * 0.5
        height, width = max(lower - upper, 1) / bins[0], max(right - left, 1) / bins[1]
        rows, cols = (ratio, ratio) if ratio > 0 else (int(np.ceil(height)), int(np.ceil(width)))
        total = 0.0
        for y in upper + (row + (np.arange(rows) + 0.5) / rows) * height:
            for x in left + (col + (np.arange(cols) + 0.5) / cols) * width:
                if -1 <= y <= 7 and -1 <= x <= 5:
                    total += interpolated(IMAGES[image, channel], np.clip(y, 0, 6), np.clip(x, 0, 4))
        return total / (rows * cols)

    test = regions_test("roi_align", IMAGES, bins, {"Out": pooled(bins, 2, of_bin)}, sampling_ratio=ratio)
    test.check_outputs()
    test.check_gradients(["X"])


def test_roi_align_at_the_border() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 1, 2, 2)
    # The only places are (-1, -1), just too far out, (2, 2) and (1.5, 0).
    regions = np.array(
        [[-1.5, -1.5, -0.5, -0.5], [-1.6, -1.5, -0.6, -0.5], [1.5, 1.5, 2.5, 2.5], [1.0, -0.5, 2.0, 0.5]]
    )
    out = np.array([1.0, 0.0, 4.0, 2.0]).reshape(4, 1, 1, 1)
    inputs = {"X": x, "ROIs": (regions, [[4]])}
    OpTest("roi_align", inputs, {"sampling_ratio": 1}, {"Out": out}).check_outputs()


def test_a_region_that_is_far_larger_than_the_image_takes_no_longer() -> None:
    regions = (np.array([[-1e12, -3e11, 1e12, 1e12]]), [[1]])
    out = OpTest("roi_align", {"X": IMAGES[:1], "ROIs": regions}).run()["Out"][0]
    np.testing.assert_allclose(np.asarray(out), 0, atol=1e-20)


@pytest.mark.parametrize("bins", BINS, ids=str)
def test_psroi_pool(bins: tuple[int, int]) -> None:
    x = RNG.uniform(-1, 1, (3, 2 * bins[0] * bins[1], 7, 5))

    def of_bin(image: int, channel: int, region: np.ndarray, row: int, col: int) -> float:
        left, upper = np.floor(region[:2] + 0.5) * 0.5
        right, lower = (np.floor(region[2:] + 0.5) + 1) * 0.5
        height, width = max(lower - upper, 0.1) / bins[0], max(right - left, 0.1) / bins[1]
        rows = range(int(np.floor(upper + row * height)), int(np.ceil(upper + (row + 1) * height)))
        cols = range(int(np.floor(left + col * width)), int(np.ceil(left + (col + 1) * width)))
        source = x[image, (channel * bins[0] + row) * bins[1] + col]
        inside = [source[y, x] for y in rows if 0 <= y < 7 for x in cols if 0 <= x < 5]
        return float(np.mean(inside)) if inside else 0.0

    test = regions_test("psroi_pool", x, bins, {"Out": pooled(bins, 2, of_bin)}, output_channels=2)
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("bins", BINS, ids=str)
def test_prroi_pool(bins: tuple[int, int]) -> None:
    # Between whole numbers the image is bilinear, so that its mean there is its value in the middle.
    def mean(image: np.ndarray, upper: float, lower: float, left: float, right: float) -> float:
        ys = [upper, *range(int(np.ceil(upper)), int(np.floor(lower)) + 1), lower]
        xs = [left, *range(int(np.ceil(left)), int(np.floor(right)) + 1), right]
        total = sum(
            (y1 - y0) * (x1 - x0) * interpolated(image, (y0 + y1) / 2, (x0 + x1) / 2)
            for y0, y1 in zip(ys, ys[1:])
            for x0, x1 in zip(xs, xs[1:])
        )
        return total / ((lower - upper) * (right - left))

    def of_bin(image: int, channel: int, region: np.ndarray, row: int, col: int) -> float:
        left, upper, right, lower = region * 0.5
        height, width = (lower - upper) / bins[0], (right - left) / bins[1]
        if height <= 0 or width <= 0:
            return 0.0
        top, start = upper + row * height, left + col * width
        return mean(IMAGES[image, channel], top, top + height, start, start + width)

    test = regions_test("prroi_pool", IMAGES, bins, {"Out": pooled(bins, 2, of_bin)})
    test.check_outputs()
    inside_out = regions_test("prroi_pool", IMAGES, bins, {"Out": None})
    inside_out.check_gradients(["X"])
    # A point has no area, whose gradient is 0 here, while differences would make it grow.
    inputs = {"X": IMAGES, "ROIs": (REGIONS[[0, 1, 2, 3, 5]], [[3, 0, 2]])}
    attrs = {"pooled_height": bins[0], "pooled_width": bins[1], "spatial_scale": 0.5}
    OpTest("prroi_pool", inputs, attrs).check_gradients(["X", "ROIs"])
    point = regions_test("prroi_pool", IMAGES, bins, {"Out": None}).gradients(["ROIs"])["ROIs_0"]
    assert not point[4].any()


REGION_OPS = ("roi_pool", "roi_align", "psroi_pool", "prroi_pool")


@pytest.mark.parametrize("op_type", REGION_OPS)
def test_regions_are_refused(op_type: str) -> None:
    outputs = {"Out": None, **({"Argmax": None} if op_type == "roi_pool" else {})}
    attrs = {"output_channels": 2} if op_type == "psroi_pool" else {}

    def use(x: Any = IMAGES, rois: Any = (REGIONS, LENGTHS), **changed: Any) -> OpTest:
        return OpTest(op_type, {"X": x, "ROIs": rois}, {**attrs, **changed}, outputs)

    use(x=IMAGES[0]).check_refused(ValueError, "input X", "rank 4")
    use(rois=(REGIONS[:, :3], LENGTHS)).check_refused(ValueError, "input ROIs", "[-1, 4]")
    use(rois=(REGIONS.astype(np.float32), LENGTHS)).check_refused(TypeError, "input ROIs", "float32")
    use(rois=REGIONS).check_refused(ValueError, "input ROIs", "LoD", when="run")
    use(rois=(REGIONS, [[3, 3]])).check_refused(ValueError, "input ROIs", "each of the 3 images", "got 2", when="run")
    for number in (np.nan, -np.inf, 1e300):
        broken = REGIONS.copy()
        broken[2, 1] = number
        use(rois=(broken, LENGTHS)).check_refused(ValueError, "input ROIs", "region 2", when="run")
    for name in ("pooled_height", "pooled_width"):
        use(**{name: 0}).check_refused(ValueError, name, "1 or more, got 0")
    use(spatial_scale=np.inf).check_refused(ValueError, "spatial_scale")


def test_psroi_pool_needs_a_channel_for_each_bin() -> None:
    inputs = {"X": IMAGES, "ROIs": (REGIONS, LENGTHS)}
    for channels, bins, parts in ((2, 2, ("input X", "2 * 2", "[3, 2, 7, 5]")), (0, 1, ("output_channels",))):
        test = OpTest("psroi_pool", inputs, {"output_channels": channels, "pooled_width": bins}, known=["X"])
        test.check_refused(ValueError, *parts)


@pytest.mark.parametrize("op_type", REGION_OPS)
def test_no_regions_have_no_bins_and_a_gradient_of_zeros(op_type: str) -> None:
    outputs: dict[str, Any] = {"Out": np.zeros((0, 2, 1, 1))}
    if op_type == "roi_pool":
        outputs["Argmax"] = np.zeros((0, 2, 1, 1), np.int64)
    attrs = {"output_channels": 2} if op_type == "psroi_pool" else {}
    test = OpTest(op_type, {"X": IMAGES, "ROIs": (np.zeros((0, 4)), [[0, 0, 0]])}, attrs, outputs)
    test.check_outputs()
    assert not test.gradients(["X"], ["Out"])["X_0"].any()


@pytest.mark.parametrize("size", [(7, 5), (1, 4), (3, 1)], ids=str)
def test_grid_sampler(size: tuple[int, int]) -> None:
    # From the whole image and what lies around it, beyond a pixel away, too.
    grid = RNG.uniform(-1.6, 1.6, (3, *size, 2))
    out = np.empty((3, 2, *size))
    for (n, c, row, col), _ in np.ndenumerate(out):
        x, y = (grid[n, row, col] + 1) / 2 * [4, 6]
        out[n, c, row, col] = interpolated(IMAGES[n, c], y, x)
    test = OpTest("grid_sampler", {"X": IMAGES, "Grid": grid}, {}, {"Output": out})
    test.check_outputs()
    test.check_gradients(["X", "Grid"])


def test_a_grid_of_corners_and_of_what_is_no_place() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 1, 2, 2)
    places = [[-1, -1], [1, -1], [-1, 1], [1, 1], [1e30, 0], [0, -1e30], [0, 0], [np.nan, 0], [0, np.inf]]
    out = np.array([1, 2, 3, 4, 0, 0, 2.5, np.nan, np.nan])
    inputs = {"X": x, "Grid": np.array(places, float).reshape(1, 1, 9, 2)}
    test = OpTest("grid_sampler", inputs, {}, {"Output": out.reshape(1, 1, 1, 9)})
    test.check_outputs()
    gradients = test.gradients(["X", "Grid"])
    assert np.isfinite(gradients["X_0"]).all()
    assert np.isnan(gradients["Grid_0"]).reshape(9, 2).any(1).tolist() == [False] * 7 + [True] * 2


def sample(x: np.ndarray, grid: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """The output of grid_sampler, and the gradients of its weighted sum by x and by grid."""
    feeds = {"x": x, "grid": grid, "weights": weights}
    with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
        variables = [
            fluid.layers.data(name, array.shape, append_batch_size=False, stop_gradient=name == "weights")
            for name, array in feeds.items()
        ]
        out = fluid.layers.grid_sampler(*variables[:2])
        gradients = fluid.gradients(out, variables[:2], variables[2])
        return fluid.Executor(fluid.CPUPlace()).run(feed=feeds, fetch_list=[out, *gradients])


def test_a_grid_of_many_places_and_maps_is_that_of_each() -> None:
    x, grid, weights = (
        RNG.uniform(-1.3, 1.3, dims).astype(np.float32) for dims in [(2, 35, 9, 7), (2, 19, 23, 2), (2, 35, 19, 23)]
    )
    out, x_grad, grid_grad = sample(x, grid, weights)
    for channel in (0, 17, 34):
        maps = slice(channel, channel + 1)
        of_map = sample(x[:, maps], grid, weights[:, maps])
        assert np.array_equal(of_map[0], out[:, maps])
        assert np.array_equal(of_map[1], x_grad[:, maps])
    of_rows = [sample(x, grid[:, [row]], weights[:, :, [row]]) for row in range(19)]
    assert np.array_equal(np.concatenate([row[0] for row in of_rows], 2), out)
    assert np.array_equal(np.concatenate([row[2] for row in of_rows], 1), grid_grad)
    np.testing.assert_allclose(sum(row[1] for row in of_rows), x_grad, atol=1e-4)


def test_grid_sampler_refuses_other_dims() -> None:
    grid = np.zeros((3, 2, 2, 2))
    for inputs, error, parts in (
        ({"X": IMAGES[0], "Grid": grid}, ValueError, ("input X", "rank 4")),
        ({"X": IMAGES, "Grid": grid[..., :1]}, ValueError, ("input Grid", "[3, -1, -1, 2], got [3, 2, 2, 1]")),
        ({"X": IMAGES, "Grid": grid[:2]}, ValueError, ("input Grid", "[2, 2, 2, 2]")),
        ({"X": IMAGES, "Grid": grid.astype(np.float32)}, TypeError, ("input Grid", "float32")),
    ):
        OpTest("grid_sampler", inputs, {}, {"Output": None}, known=["X"]).check_refused(error, *parts)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("size", [(4, 3), (1, 2), (5, 1)], ids=str)
@pytest.mark.parametrize("given", ["attribute", "int32", "int64"])
def test_affine_grid(size: tuple[int, int], given: str, dtype: Any) -> None:
    theta = RNG.normal(size=(2, 2, 3)).astype(dtype)
    places = [[(x, y) for x in np.linspace(-1, 1, size[1])] for y in np.linspace(-1, 1, size[0])]
    out = np.einsum("nij,hwj->nhwi", theta, np.concatenate([places, np.ones((*size, 1))], 2))
    shape = [2, 7, *size]
    if given == "attribute":
        test = OpTest("affine_grid", {"Theta": theta}, {"output_shape": shape}, {"Output": out.astype(dtype)})
    else:
        inputs = {"Theta": theta, "OutputShape": np.array(shape, given)}
        test = OpTest("affine_grid", inputs, {}, {"Output": out.astype(dtype)}, known=["OutputShape"])
    test.check_outputs(atol=1e-6)
    if dtype == np.float64:
        test.check_gradients(["Theta"])


def test_affine_grid_refuses_what_is_no_shape() -> None:
    theta = np.zeros((2, 2, 3))
    for inputs, attrs, error, parts, when in (
        ({"Theta": theta[:, :1]}, {"output_shape": [2, 1, 3, 3]}, ValueError, ("Theta", "[-1, 2, 3]"), "build"),
        ({"Theta": theta}, {}, ValueError, ("output_shape", "[N, C, H, W]"), "build"),
        ({"Theta": theta}, {"output_shape": [2, 1, 0, 3]}, ValueError, ("output_shape", "not empty"), "build"),
        ({"Theta": theta, "OutputShape": np.ones(3, np.int32)}, {}, ValueError, ("OutputShape",), "build"),
        ({"Theta": theta, "OutputShape": np.ones(4)}, {}, TypeError, ("OutputShape", "float64"), "build"),
        ({"Theta": theta, "OutputShape": -np.ones(4, np.int32)}, {}, ValueError, ("OutputShape", "not empty"), "run"),
    ):
        test = OpTest("affine_grid", inputs, attrs, {"Output": None}, known=["Theta", "OutputShape"])
        test.check_refused(error, *parts, when=when)


#: Corners clockwise from the upper left: a rectangle, one that is turned, trapezoids across a border and beyond it.
QUADS = np.array(
    [
        [1.0, 2, 7, 2, 7, 10, 1, 10],
        [2.0, 5, 6, 1.5, 7.5, 6, 4, 9],
        [-3.0, 1, 5, 2, 7, 9, 1, 8],
        [21.0, 1, 29, 2, 28, 9, 22, 9],
    ]
)


def test_corners_of_a_quadrilateral_become_those_of_a_rectangle() -> None:
    # What is to be seen of it: the image is a plane, whose values say where they come from.
    y, x = np.meshgrid(np.arange(7.0), np.arange(5.0), indexing="ij")
    planes = np.stack([x, y])[None]
    attrs = {"transformed_height": 5, "transformed_width": 9, "spatial_scale": 0.5}
    outputs = {"Out": None, "Mask": None, "TransformMatrix": None}
    quads = (QUADS[:2], [[2]])
    tensors = OpTest("roi_perspective_transform", {"X": planes, "ROIs": quads}, attrs, outputs).run()
    out, mask, matrix = (np.asarray(tensors[slot][0]) for slot in outputs)
    for region, quad in enumerate(QUADS[:2] * 0.5):
        corners = quad.reshape(4, 2)
        sides = np.hypot(*(corners - np.roll(corners, -1, 0)).T)
        cols = int(np.round((sides[0] + sides[2]) / (sides[1] + sides[3]) * 4)) + 1
        assert cols < 9
        places = [(0, 0), (0, cols - 1), (4, cols - 1), (4, 0)]
        for corner, (row, col) in zip(corners, places):
            u, v, w = matrix[region].reshape(3, 3) @ [col, row, 1]
            np.testing.assert_allclose([u / w, v / w], corner, atol=1e-4)
            assert mask[region, 0, row, col] == 1
            np.testing.assert_allclose(out[region, :, row, col], corner, atol=1e-4)
        middle = matrix[region].reshape(3, 3) @ [1, 2, 1]
        np.testing.assert_allclose(out[region, :, 2, 1], middle[:2] / middle[2], rtol=1e-6)
        assert (mask[region, 0, :, :cols] == 1).all()
        assert not mask[region, 0, :, cols:].any()
        assert not out[region, :, :, cols:].any()


def test_roi_perspective_transform() -> None:
    inputs = {"X": IMAGES[:2], "ROIs": (QUADS, [[1, 3]])}
    attrs = {"transformed_height": 4, "transformed_width": 5, "spatial_scale": 0.5}
    slots = ("Out", "Mask", "TransformMatrix")
    tensors = OpTest("roi_perspective_transform", inputs, attrs, dict.fromkeys(slots)).run()
    _, mask, matrix = (np.asarray(tensors[slot][0]) for slot in slots)
    assert mask[0, 0, :, :3].all()
    assert 0 < mask[2].sum() < 20  # partly beyond the image
    assert not mask[3].any()
    out = np.zeros((4, 2, 4, 5))
    for (region, c, row, col), _ in np.ndenumerate(out):
        u, v, w = matrix[region].reshape(3, 3) @ [col, row, 1]
        if mask[region, 0, row, col]:
            image = IMAGES[0 if region == 0 else 1, c]
            out[region, c, row, col] = interpolated(image, np.clip(v / w, 0, 6), np.clip(u / w, 0, 4))
    outputs = {"Out": (out, [[1, 3]]), "Mask": mask, "TransformMatrix": matrix}
    test = OpTest("roi_perspective_transform", inputs, attrs, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])


def test_the_outer_border_of_an_image_belongs_to_it() -> None:
    y, x = np.meshgrid(np.arange(7.0), np.arange(5.0), indexing="ij")
    attrs = {"transformed_height": 2, "transformed_width": 2}
    for left, top, right, bottom, seen in (
        (-0.5, -0.5, 4.5, 6.5, [[1, 1], [1, 1]]),
        (0.0, 0.0, 4.5, 6.6, [[1, 1], [0, 0]]),
        (-0.6, 0.0, 4.6, 6.5, [[0, 0], [0, 0]]),
        (0.0, -0.6, 4.0, 6.0, [[0, 0], [1, 1]]),
    ):
        quads = np.array([[left, top, right, top, right, bottom, left, bottom]])
        mask = np.array(seen, np.int32)
        out = np.stack([mask * [[0, 4], [0, 4]], mask * [[0, 0], [6, 6]]]).astype(float)
        inputs = {"X": np.stack([x, y])[None], "ROIs": (quads, [[1]])}
        outputs = {"Out": (out[None], [[1]]), "Mask": mask[None, None], "TransformMatrix": None}
        OpTest("roi_perspective_transform", inputs, attrs, outputs).check_outputs()


def test_a_quadrilateral_without_an_area_is_taken() -> None:
    # A point, a line, and one whose sides cross.
    quads = np.array([[3.0, 3] * 4, [1.0, 1, 4, 4, 4, 4, 1, 1], [1.0, 1, 4, 4, 4, 1, 1, 4]])
    slots = ("Out", "Mask", "TransformMatrix")
    attrs = {"transformed_height": 2, "transformed_width": 3}
    test = OpTest("roi_perspective_transform", {"X": IMAGES[:1], "ROIs": (quads, [[3]])}, attrs, dict.fromkeys(slots))
    out, mask, _ = (np.asarray(test.run()[slot][0]) for slot in slots)
    assert np.isfinite(out).all()
    assert set(np.unique(mask)) <= {0, 1}


def test_roi_perspective_transform_refuses_other_dims() -> None:
    good = {"X": IMAGES[:2], "ROIs": (QUADS, [[1, 3]])}
    attrs = {"transformed_height": 4, "transformed_width": 5}
    outputs: dict[str, Any] = {"Out": None, "Mask": None, "TransformMatrix": None}
    for changed, changed_attrs, parts in (
        ({"X": IMAGES[0]}, {}, ("input X", "rank 4")),
        ({"ROIs": (REGIONS, LENGTHS)}, {}, ("input ROIs", "[-1, 8]")),
        ({}, {"transformed_height": 0}, ("transformed_height", "got 0 and 5")),
        ({}, {"transformed_width": -1}, ("transformed_width", "got 4 and -1")),
    ):
        test = OpTest("roi_perspective_transform", {**good, **changed}, {**attrs, **changed_attrs}, outputs)
        test.check_refused(ValueError, *parts)
    broken = QUADS.copy()
    broken[2, 5] = np.nan
    test = OpTest("roi_perspective_transform", {**good, "ROIs": (broken, [[1, 3]])}, attrs, outputs)
    test.check_refused(ValueError, "input ROIs", "region 2", when="run")
