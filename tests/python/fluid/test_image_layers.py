"""Layers of images and volumes: convolution, pooling, normalisation, other sizes, padding, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

IMAGES = np.arange(2 * 4 * 3 * 3, dtype=np.float32).reshape(2, 4, 3, 3)


def images() -> fluid.framework.Variable:
    return layers.data("images", [4, 3, 3])


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"filter_size": 3}, (5, 5)),
        ({"filter_size": (2, 3), "stride": 2}, (6, 7)),
        ({"filter_size": 3, "stride": 2, "padding": 1, "output_size": 6}, (6, 6)),
        ({"output_size": (7, 8), "stride": 2}, (7, 8)),  # the filters follow: 3 x 4
        ({"filter_size": 2, "groups": 2, "dilation": 2}, (5, 5)),
    ],
    ids=str,
)
def test_conv2d_transpose(exe: fluid.Executor, arguments: dict[str, object], shape: tuple[int, int]) -> None:
    out = layers.conv2d_transpose(images(), 6, bias_attr=fluid.ParamAttr("b"), **arguments)
    assert out.shape == (-1, 6, *shape)
    ((_, gradient),) = fluid.backward.append_backward(layers.mean(out), parameter_list=["b"])
    exe.run(fluid.default_startup_program())
    got, by_bias = exe.run(feed={"images": IMAGES}, fetch_list=[out, gradient])
    assert got.shape == (2, 6, *shape)
    np.testing.assert_allclose(by_bias, np.full(6, 1 / 6), rtol=1e-5)


def test_conv2d_transpose_refuses_what_does_not_fit() -> None:
    with pytest.raises(errors.InvalidArgument, match="filter_size, or output_size"):
        layers.conv2d_transpose(images(), 6)
    with pytest.raises(errors.InvalidArgument, match="3 groups"):
        layers.conv2d_transpose(images(), 6, filter_size=3, groups=3)
    with pytest.raises(errors.InvalidArgument, match=r"\[N, C, H, W\]"):
        layers.conv2d_transpose(layers.data("rows", [4]), 6, filter_size=3)


@pytest.mark.parametrize(
    ("padding", "shape"),
    [
        (1, (3, 3)),
        ([1, 0, 2, 1], (2, 4)),
        ([[0, 0], [0, 0], [1, 0], [2, 1]], (2, 4)),
        ("SAME", (3, 3)),
        ("valid", (1, 1)),
    ],
    ids=str,
)
def test_padding(exe: fluid.Executor, padding: Any, shape: tuple[int, int]) -> None:
    x = images()
    outs = [layers.conv2d(x, 4, 3, padding=padding), layers.pool2d(x, 3, pool_padding=padding)]
    outs.append(layers.conv2d_transpose(outs[0], 4, filter_size=3, padding=padding))
    for out in outs[:2]:
        assert out.shape == (-1, 4, *shape)
    exe.run(fluid.default_startup_program())
    convolved, pooled, back = exe.run(feed={"images": IMAGES}, fetch_list=outs)
    assert convolved.shape == pooled.shape == (2, 4, *shape)
    assert back.shape == IMAGES.shape


def test_padding_that_makes_no_sense_is_refused() -> None:
    for padding, part in (("full", "'SAME', 'VALID' or numbers"), ([1, 2, 3], "height"), ([[1, 1], [2, 2]], "a pair")):
        with pytest.raises(errors.InvalidArgument, match=part):
            layers.conv2d(images(), 4, 3, padding=padding)
        with pytest.raises(errors.InvalidArgument, match=part):
            layers.pool2d(images(), 2, pool_padding=padding)


@pytest.mark.parametrize("affine", [None, False, True])
def test_group_norm_scales_and_shifts_only_if_it_is_told_to(exe: fluid.Executor, affine: bool | None) -> None:
    out = layers.group_norm(images(), 2, param_attr=affine, bias_attr=affine)
    names = [parameter.name for parameter in fluid.default_main_program().all_parameters()]
    assert names == (["group_norm_0.w_0", "group_norm_0.b_0"] if affine else [])
    assert out.name == "_generated_var_2"  # after the mean and the variance
    exe.run(fluid.default_startup_program())
    (got,) = exe.run(feed={"images": IMAGES}, fetch_list=[out])
    groups = got.reshape(2, 2, -1)
    np.testing.assert_allclose(groups.mean(2), 0, atol=1e-5)
    np.testing.assert_allclose(groups.var(2), 1, rtol=1e-4)


def test_batch_norm_with_channels_last(exe: fluid.Executor) -> None:
    last = layers.data("last", [3, 3, 4])
    outs = [layers.batch_norm(images()), layers.batch_norm(last, data_layout="NHWC")]
    exe.run(fluid.default_startup_program())
    feed = {"images": IMAGES, "last": np.ascontiguousarray(IMAGES.transpose(0, 2, 3, 1))}
    first, second = exe.run(feed=feed, fetch_list=outs)
    np.testing.assert_allclose(second, first.transpose(0, 2, 3, 1), rtol=1e-4, atol=1e-5)


def test_other_sizes(exe: fluid.Executor) -> None:
    x = images()
    size = layers.fill_constant([2], "int32", 6)
    outs = [
        layers.resize_nearest(x, [6, 6], align_corners=False),
        layers.resize_nearest(x, scale=2, align_corners=False),
        layers.image_resize(x, size, resample="NEAREST", align_corners=False),
        layers.resize_bilinear(x, [5, 5]),
    ]
    got = exe.run(feed={"images": IMAGES}, fetch_list=outs)
    for value in got[:3]:
        np.testing.assert_array_equal(value, IMAGES.repeat(2, 2).repeat(2, 3))
    np.testing.assert_allclose(got[3][:, :, ::2, ::2], IMAGES)
    np.testing.assert_allclose(got[3][:, :, 1, 0], (IMAGES[:, :, 0, 0] + IMAGES[:, :, 1, 0]) / 2)
    with pytest.raises(errors.InvalidArgument, match="out_shape or scale"):
        layers.resize_bilinear(x)
    with pytest.raises(errors.InvalidArgument, match="CUBIC"):
        layers.image_resize(x, [2, 2], resample="CUBIC")
    with pytest.raises(errors.InvalidArgument, match="height and width"):
        layers.image_resize(x, [2])


def test_moves(exe: fluid.Executor) -> None:
    x = images()
    outs = [
        layers.pad2d(x, [1, 0, 0, 2], pad_value=7.0),
        layers.crop(layers.pad2d(x, [1, 1, 1, 1]), shape=x, offsets=[0, 0, 1, 1]),
        layers.slice(x, [1, 3], [1, -1], [3, 3]),
        layers.reverse(layers.reverse(x, [1, 2]), -2),
        layers.stack(layers.unstack(x, axis=1), axis=1),
        layers.pad2d(x, layers.assign(np.array([0, 1, 2, 0], np.int32)), mode="edge"),
        layers.pixel_shuffle(layers.stack([layers.reduce_max(x, [1])] * 4, axis=1), 2),
    ]
    assert outs[-2].shape == (-1, IMAGES.shape[1], -1, -1)
    got = exe.run(feed={"images": IMAGES}, fetch_list=outs)
    expected = [
        np.pad(IMAGES, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=7),
        IMAGES,
        IMAGES[:, 1:3, :, -1:],
        IMAGES[:, ::-1],
        IMAGES,
        np.pad(IMAGES, ((0, 0), (0, 0), (0, 1), (2, 0)), mode="edge"),
        IMAGES.max(1, keepdims=True).repeat(2, 2).repeat(2, 3),
    ]
    assert len(got) == len(expected)
    for value, wanted in zip(got, expected):
        np.testing.assert_array_equal(value, wanted)
    with pytest.raises(TypeError, match=r"upscale_factor.*2\.0"):
        layers.pixel_shuffle(x, 2.0)
    with pytest.raises(TypeError, match=r"layers\.pad2d: paddings"):
        layers.pad2d(x, [0, 1.5, 0, 0])


def test_volumes(exe: fluid.Executor) -> None:
    x = layers.data("volumes", [2, 4, 4, 6])
    one = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))
    outs = [
        layers.conv3d(x, 3, 2, stride=2, param_attr=one, bias_attr=False, act="relu"),
        layers.conv3d(x, 2, (1, 2, 3), groups=2, padding=(0, 1, 0)),
        layers.conv3d_transpose(x, 3, filter_size=2, stride=2, param_attr=one, bias_attr=False),
        layers.conv3d_transpose(x, 4, output_size=(9, 9, 13), stride=2, groups=2),
        layers.pool3d(x, 2, "avg", 2),
        layers.pool3d(x, global_pooling=True),
        layers.adaptive_pool3d(x, (2, 2, 3), "avg"),
    ]
    shapes = [(3, 2, 2, 3), (2, 4, 5, 4), (3, 8, 8, 12), (4, 9, 9, 13), (2, 2, 2, 3), (2, 1, 1, 1), (2, 2, 2, 3)]
    assert [out.shape for out in outs] == [(-1, *shape) for shape in shapes]
    exe.run(fluid.default_startup_program())
    volumes = np.random.default_rng(3).uniform(0, 1, (2, 2, 4, 4, 6)).astype(np.float32)
    got = exe.run(feed={"volumes": volumes}, fetch_list=outs)
    assert [value.shape for value in got] == [(2, *shape) for shape in shapes]
    blocks = volumes.reshape(2, 2, 2, 2, 2, 2, 3, 2)
    np.testing.assert_allclose(got[0], blocks.sum((1, 3, 5, 7))[:, None].repeat(3, 1), rtol=1e-5)
    grown = volumes.sum(1).repeat(2, 1).repeat(2, 2).repeat(2, 3)
    np.testing.assert_allclose(got[2], grown[:, None].repeat(3, 1), rtol=1e-5)
    for value in (got[4], got[6]):
        np.testing.assert_allclose(value, blocks.mean((3, 5, 7)), rtol=1e-5)
    np.testing.assert_allclose(got[5], volumes.max((2, 3, 4), keepdims=True))


def test_volumes_that_do_not_fit_are_refused() -> None:
    x = layers.data("volumes", [2, 4, 4, 6])
    for layer in (layers.conv3d, layers.conv3d_transpose):
        with pytest.raises(errors.InvalidArgument, match=r"\[N, C, D, H, W\]"):
            layer(images(), 2, filter_size=2)
        with pytest.raises(errors.InvalidArgument, match="a depth, a height and a width"):
            layer(x, 2, filter_size=(2, 2))
        with pytest.raises(errors.InvalidArgument, match="3 groups"):
            layer(x, 3, filter_size=2, groups=3)
        with pytest.raises(errors.InvalidArgument, match="needs the parameter"):
            layer(x, 3, filter_size=2, param_attr=False)
    with pytest.raises(errors.InvalidArgument, match="pool_size"):
        layers.pool3d(x)


def test_adaptive_pooling(exe: fluid.Executor) -> None:
    x = images()
    out, index = layers.adaptive_pool2d(x, [1, 3], require_index=True)
    outs = [out, index, layers.adaptive_pool2d(x, 1, "avg"), layers.adaptive_pool2d(x, 3)]
    got = exe.run(feed={"images": IMAGES}, fetch_list=outs)
    np.testing.assert_array_equal(got[0], IMAGES.max(2, keepdims=True))
    assert got[1].dtype == np.int32
    np.testing.assert_array_equal(got[1], np.broadcast_to([6, 7, 8], (2, 4, 1, 3)))
    np.testing.assert_allclose(got[2], IMAGES.mean((2, 3), keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(got[3], IMAGES)
    with pytest.raises(errors.InvalidArgument, match="'sum'"):
        layers.adaptive_pool2d(x, 1, "sum")
    with pytest.raises(errors.InvalidArgument, match="require_index"):
        layers.adaptive_pool2d(x, 1, "avg", require_index=True)


def test_neighbours_and_patches(exe: fluid.Executor) -> None:
    x = images()
    sizes = layers.data("sizes", [2])
    outs = [
        layers.lrn(x, n=3),
        layers.maxout(x, 2),
        layers.im2sequence(x, 3),
        layers.im2sequence(x, (1, 2), padding=[0, 1]),
        layers.im2sequence(x, 1, input_image_size=sizes),
        layers.lrn(layers.transpose(x, [0, 2, 3, 1]), n=3, data_format="NHWC"),
        layers.maxout(layers.transpose(x, [0, 2, 3, 1]), 2, axis=-1),
    ]
    feed = {"images": IMAGES, "sizes": np.array([[1, 3], [2, 2]], np.float32)}
    got = exe.run(feed=feed, fetch_list=outs, return_numpy=False)
    squares = np.pad(IMAGES.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    sums = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    np.testing.assert_allclose(np.array(got[0]), IMAGES / (1 + 1e-4 * sums) ** 0.75, rtol=1e-5)
    np.testing.assert_array_equal(np.array(got[1]), IMAGES[:, 1::2])
    np.testing.assert_array_equal(np.array(got[2]), IMAGES.reshape(2, -1))
    assert got[2].lod() == [[0, 1, 2]]
    assert got[3].shape() == [2 * 3 * 4, 4 * 2]
    assert got[4].lod() == [[0, 3, 7]]
    np.testing.assert_array_equal(np.array(got[4])[3], IMAGES[1, :, 0, 0])
    for first, last in zip(got[:2], got[5:]):
        np.testing.assert_array_equal(np.array(last), np.moveaxis(np.array(first), 1, -1))


def as_last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


#: Layers of [N, 4, 5, 6] or, of volumes, [N, 4, 3, 4, 5], with the arguments for channels first and last.
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "conv2d": ("conv2d", {"num_filters": 6, "filter_size": 3, "groups": 2, "act": "relu"}, {}),
    "conv2d of unequal padding": (
        "conv2d",
        {"num_filters": 3, "filter_size": 3, "padding": [[0, 0], [0, 0], [1, 0], [2, 1]]},
        {"padding": [[0, 0], [1, 0], [2, 1], [0, 0]]},
    ),
    "conv2d as large": ("conv2d", {"num_filters": 5, "filter_size": (2, 3), "padding": "SAME", "stride": 2}, {}),
    "conv2d_transpose": ("conv2d_transpose", {"num_filters": 6, "filter_size": 3, "stride": 2, "groups": 2}, {}),
    "conv2d_transpose to a size": ("conv2d_transpose", {"num_filters": 3, "output_size": [11, 14], "stride": 2}, {}),
    "conv3d": ("conv3d", {"num_filters": 3, "filter_size": 2, "padding": 1}, {}),
    "conv3d_transpose": ("conv3d_transpose", {"num_filters": 3, "filter_size": (1, 2, 3), "padding": "VALID"}, {}),
    "pool2d": ("pool2d", {"pool_size": 2, "pool_stride": 2, "ceil_mode": True}, {}),
    "pool2d of unequal padding": (
        "pool2d",
        {"pool_size": 3, "pool_type": "avg", "pool_padding": [[0, 0], [0, 0], [1, 0], [2, 1]]},
        {"pool_padding": [[0, 0], [1, 0], [2, 1], [0, 0]]},
    ),
    "pool3d": ("pool3d", {"pool_size": (1, 2, 2), "pool_type": "avg", "pool_padding": (0, 1, 1)}, {}),
    "global pool3d": ("pool3d", {"global_pooling": True}, {}),
    "image_resize": ("image_resize", {"out_shape": [3, 7]}, {}),
    "resize_bilinear": ("resize_bilinear", {"scale": 1.5, "align_corners": False}, {}),
    "resize_nearest": ("resize_nearest", {"out_shape": [10, 4]}, {}),
    "group_norm": ("group_norm", {"groups": 2, "act": "tanh"}, {}),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_channels_last(exe: fluid.Executor, case: str) -> None:
    name, arguments, changed = LAYOUTS[case]
    layer, volumes = getattr(layers, name), "3d" in name
    shape = [4, 3, 4, 5] if volumes else [4, 5, 6]
    values = np.random.default_rng(4).normal(size=(2, *shape)).astype(np.float32)
    first, last = layers.data("first", shape), layers.data("last", [*shape[1:], 4])
    for x in (first, last):
        x.stop_gradient = False
    weights: dict[str, Any] = {}
    if "num_filters" in arguments or name == "group_norm":  # shared by both
        weights = {
            f"{kind}_attr": fluid.ParamAttr(kind, fluid.initializer.Normal(0.5, seed=9)) for kind in ("param", "bias")
        }
    argument = "data_layout" if name == "group_norm" else "data_format"
    outs = [
        layer(first, **arguments | weights),
        layer(last, **arguments | weights | changed | {argument: "NDHWC" if volumes else "NHWC"}),
    ]
    assert outs[1].shape == (-1, *outs[0].shape[2:], outs[0].shape[1])
    squares = [layers.mean(layers.square(out)) for out in outs]
    gradients = [*fluid.gradients(squares[0], [first]), *fluid.gradients(squares[1], [last])]
    exe.run(fluid.default_startup_program())
    got = exe.run(feed={"first": values, "last": as_last(values)}, fetch_list=[*outs, *gradients])
    np.testing.assert_array_equal(got[1], as_last(got[0]))
    np.testing.assert_allclose(got[3], as_last(got[2]), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "layer",
    ["conv2d", "conv2d_transpose", "pool2d", "resize_nearest", "group_norm", "conv3d", "conv3d_transpose", "pool3d"],
)
def test_unknown_orders_of_the_dimensions_are_refused(layer: str) -> None:
    volumes = "3d" in layer
    x = fluid.data("x", [None, 2, 4, 4, 4] if volumes else [None, 2, 4, 4])
    sizes: dict[str, Any] = {
        "pool": {"pool_size": 2},
        "conv": {"num_filters": 2, "filter_size": 2},
        "resi": {"out_shape": [8, 8]},
        "grou": {"groups": 2},
    }[layer[:4]]
    argument = "data_layout" if layer == "group_norm" else "data_format"
    expected = f"{argument} has to be " + ("'NCDHW' or 'NDHWC'" if volumes else "'NCHW' or 'NHWC'")
    for wrong in ("NCHW" if volumes else "NCDHW", "AnyLayout", "nhwc"):
        with pytest.raises(errors.InvalidArgument, match=f"{expected}, got '{wrong}'"):
            getattr(layers, layer)(x, **sizes, **{argument: wrong})


def test_channels_last_that_do_not_fit_are_refused() -> None:
    x = fluid.data("x", [None, 4, 4, None])
    for layer in (layers.conv2d, layers.conv2d_transpose):
        with pytest.raises(errors.InvalidArgument, match=r"\[N, H, W, C\] with a known C, got \[-1, 4, 4, -1\]"):
            layer(x, 2, filter_size=2, data_format="NHWC")
    with pytest.raises(errors.InvalidArgument, match=r"\[N, D, H, W, C\]"):
        layers.conv3d(x, 2, 2, data_format="NDHWC")
    with pytest.raises(errors.InvalidArgument, match=r"\[N, ..., C\] with a known C"):
        layers.group_norm(x, 2, data_layout="NHWC")
    with pytest.raises(errors.InvalidArgument, match=r"\[N, H, W, C\], \[0, 0\] for N and C"):
        layers.pool2d(x, 2, pool_padding=[[0, 0], [0, 0], [1, 0], [1, 1]], data_format="NHWC")


@pytest.mark.parametrize("name", ["conv2d", "conv3d", "conv2d_transpose", "conv3d_transpose"])
def test_a_convolution_without_filters_is_refused(name: str) -> None:
    x = layers.data("x", [4] + [8] * int(name[4]))
    convolve = getattr(layers, name)
    for size in (0, -1):
        with pytest.raises(errors.InvalidArgument, match=rf"layers.{name}: filter_size must be positive, got {size}"):
            convolve(x, 2, filter_size=size)
    with pytest.raises(errors.TypeMismatch, match=rf"layers.{name}: filter_size has to be a number or .* got 'ab'"):
        convolve(x, 2, filter_size="ab")
    with pytest.raises(errors.InvalidArgument, match=rf"layers.{name}: num_filters must be positive, got 0"):
        convolve(x, 0, filter_size=3)
    with pytest.raises(errors.TypeMismatch, match=rf"layers.{name}: num_filters has to be a number, got 'two'"):
        convolve(x, "two", filter_size=3)


@pytest.mark.parametrize("padding", [0, 1])
def test_maxima_go_back_where_they_were(exe: fluid.Executor, padding: int) -> None:
    x = layers.data("images", [4, 4, 4])
    x.stop_gradient = False
    pooled, index = layers.max_pool2d_with_index(x, 2, pool_stride=2, pool_padding=padding)
    back = layers.unpool(pooled, index, 2, 2, padding)
    assert (back.shape, index.shape, index.dtype) == ((-1, 4, 4, 4), pooled.shape, fluid.core.VarType.INT32)
    fluid.backward.append_backward(layers.reduce_sum(layers.square(back)))
    values = np.random.default_rng(3).permutation(2 * 4 * 4 * 4).astype(np.float32).reshape(2, 4, 4, 4) + 1
    got, gradient = exe.run(feed={"images": values}, fetch_list=[back, "images@GRAD"])
    around = np.pad(values, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=-1)
    windows = around.reshape(2, 4, around.shape[2] // 2, 2, around.shape[3] // 2, 2)
    is_greatest = (windows == windows.max((3, 5), keepdims=True)).reshape(around.shape)
    expected = np.where(is_greatest, around, 0)[:, :, padding : 4 + padding, padding : 4 + padding]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(gradient, 2 * expected)


def test_maxima_of_volumes_with_their_places(exe: fluid.Executor) -> None:
    pooled, index = layers.max_pool3d_with_index(layers.data("volumes", [1, 2, 2, 4]), (2, 2, 2), pool_stride=2)
    values = np.arange(16, dtype=np.float32).reshape(1, 1, 2, 2, 4)
    got, places = exe.run(feed={"volumes": values}, fetch_list=[pooled, index])
    np.testing.assert_array_equal(got.ravel(), [13, 15])
    np.testing.assert_array_equal(places.ravel(), [13, 15])


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_a_pyramid_has_one_size_for_all_images(exe: fluid.Executor, kind: str) -> None:
    out = layers.spp(fluid.data("maps", [None, 3, None, None]), 2, kind)
    assert out.shape == (-1, 15)
    for size in ((4, 4), (6, 2)):
        values = np.random.default_rng(3).normal(size=(2, 3, *size)).astype(np.float32)
        (got,) = exe.run(feed={"maps": values}, fetch_list=[out])
        reduce = np.max if kind == "max" else np.mean
        quarters = values.reshape(2, 3, 2, size[0] // 2, 2, size[1] // 2)
        expected = [reduce(values, (2, 3)), reduce(quarters, (3, 5)).reshape(2, 12)]
        np.testing.assert_allclose(got, np.concatenate(expected, 1), rtol=1e-5)
    with pytest.raises(errors.InvalidArgument, match="pooling_type"):
        layers.spp(images(), 2, "median")


def test_volumes_of_another_size(exe: fluid.Executor) -> None:
    x, last = layers.data("x", [2, 2, 3, 4]), layers.data("last", [2, 3, 4, 2])
    size = layers.data("size", [3], dtype="int32", append_batch_size=False)
    depth = layers.fill_constant([1], "int32", 4)
    outs = [
        layers.resize_trilinear(x, [4, 6, 8], align_corners=False),
        layers.resize_trilinear(x, scale=2, align_corners=False),
        layers.image_resize(x, size, resample="TRILINEAR", align_corners=False, data_format="NCDHW"),
        layers.resize_trilinear(x, [depth, 6, 8], align_corners=False),
        layers.resize_trilinear(last, [4, 6, 8], align_corners=False, data_format="NDHWC"),
    ]
    assert [out.shape for out in outs[:2]] == [(-1, 2, 4, 6, 8)] * 2
    assert outs[3].shape == (-1, 2, -1, 6, 8)
    volume = np.random.default_rng(3).uniform(size=(1, 2, 2, 3, 4)).astype(np.float32)
    feed = {"x": volume, "last": np.moveaxis(volume, 1, -1).copy(), "size": np.array([4, 6, 8], np.int32)}
    first, *others, of_last = exe.run(feed=feed, fetch_list=outs)
    for other in [*others, np.moveaxis(of_last, -1, 1)]:
        np.testing.assert_array_equal(other, first)
    np.testing.assert_array_equal(first[:, :, ::2, ::2, ::2], volume)
    for arguments, part in (
        ({"out_shape": [2, 2]}, "depth and height and width"),
        ({"out_shape": [2, 2, 2], "data_format": "NCHW"}, "'NCDHW' or 'NDHWC'"),
        ({}, "out_shape or scale"),
    ):
        with pytest.raises(errors.InvalidArgument, match=part):
            layers.resize_trilinear(x, **arguments)


def test_depthwise_convolutions_are_named_as_in_fluid() -> None:
    x = fluid.data("x", [None, 4, 8, 8])
    names = []
    for groups, filters, use_cudnn in ((4, 8, False), (4, 8, True), (2, 4, False), (None, 4, False)):
        layers.conv2d(x, filters, 3, groups=groups, use_cudnn=use_cudnn)
        layers.conv2d_transpose(x, 4, filter_size=3, groups=groups, use_cudnn=use_cudnn, bias_attr=False)
        parameters = [p.name for p in fluid.default_main_program().all_parameters() if p.name not in names]
        names += parameters
        kinds = {name.rpartition("_")[0].rpartition("_")[0] for name in parameters if ".w_" in name}
        prefix = "depthwise_" if groups == 4 and not use_cudnn else ""
        assert kinds == {f"{prefix}conv2d", f"{prefix}conv2d_transpose"}
        operators = {op.type for op in fluid.default_main_program().global_block().ops[-3:] if "conv" in op.type}
        assert operators == kinds  # by which programs that prune or quantise tell them apart


def test_depthwise_convolutions_compute_what_others_do(exe: fluid.Executor) -> None:
    value = np.random.default_rng(3).uniform(-1, 1, (2, 4, 9, 9)).astype(np.float32)
    results = []
    for use_cudnn in (True, False):
        program, startup = fluid.Program(), fluid.Program()
        startup.random_seed = 3
        with fluid.program_guard(program, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
            x = fluid.data("x", [None, 4, 9, 9])
            x.stop_gradient = False
            h = layers.conv2d(x, 8, 3, 2, 1, groups=4, use_cudnn=use_cudnn, act="tanh", param_attr="v", bias_attr="a")
            h = layers.conv2d_transpose(h, 8, None, 3, groups=8, use_cudnn=use_cudnn, param_attr="w", bias_attr="b")
            loss = layers.reduce_sum(h * h)
            (slope,) = fluid.gradients(loss, x)
            loss = loss + layers.reduce_mean(slope * slope)  # also differentiated again
            fluid.optimizer.SGD(0.001).minimize(loss)
            exe.run(startup)
            results.append([exe.run(program, {"x": value}, [loss, h])[k] for _ in range(2) for k in (0, 1)])
    for plain, depthwise in zip(*results):
        np.testing.assert_array_equal(depthwise, plain)
