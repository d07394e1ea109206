"""Layers of images: transposed convolution, group_norm, other sizes, padding, channels last."""

from __future__ import annotations

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


@pytest.mark.parametrize("affine", [None, False])
def test_group_norm(exe: fluid.Executor, affine: bool | None) -> None:
    out = layers.group_norm(images(), 2, param_attr=affine, bias_attr=affine)
    assert len(fluid.default_main_program().all_parameters()) == (2 if affine is None else 0)
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
    with pytest.raises(errors.InvalidArgument, match="out_shape, or scale"):
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
    ]
    got = exe.run(feed={"images": IMAGES}, fetch_list=outs)
    expected = [
        np.pad(IMAGES, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=7),
        IMAGES,
        IMAGES[:, 1:3, :, -1:],
        IMAGES[:, ::-1],
        IMAGES,
    ]
    for value, wanted in zip(got, expected):
        np.testing.assert_array_equal(value, wanted)
