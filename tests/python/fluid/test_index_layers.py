"""Layers that take parts of variables by numbers, and matrices that are made of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def test_parts_by_coordinates(exe: fluid.Executor) -> None:
    x, index = fluid.data("x", [None, 6]), fluid.data("index", [None, 2], "int64")
    parts = layers.gather_nd(x, index)
    outs = [parts, layers.scatter_nd_add(x, index, parts), layers.scatter_nd(index, parts, [4, 6])]
    assert [out.shape for out in outs] == [(-1,), (-1, 6), (4, 6)]
    places = np.array([[3, 0], [1, 5], [3, 0]])
    got = exe.run(feed={"x": X, "index": places}, fetch_list=outs)
    added = np.zeros_like(X)
    np.add.at(added, (places[:, 0], places[:, 1]), [18, 11, 18])
    for value, expected in zip(got, ([18, 11, 18], X + added, added)):
        np.testing.assert_array_equal(value, expected)


def test_strides_that_are_variables(exe: fluid.Executor) -> None:
    x, n = fluid.data("x", [None, 6]), fluid.data("n", [1], "int32")
    whole = layers.concat([n, n])
    outs = [
        layers.strided_slice(x, [1], [0], [6], [2]),
        layers.strided_slice(x, [0, 1], [0, 5], [4, 1], [n, -1]),
        layers.strided_slice(x, [0, 1], [0, 0], [4, 6], whole),
        layers.strided_slice(x, [1], [n], [6], [1]),
    ]
    assert [out.shape for out in outs] == [(-1, 3), (-1, -1), (-1, -1), (-1, -1)]
    for k in (2, 3):
        got = exe.run(feed={"x": X, "n": np.array([k], np.int32)}, fetch_list=outs)
        for value, expected in zip(got, (X[:, ::2], X[::k, 5:1:-1], X[::k, ::k], X[:, k:])):
            np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_numbers_need_no_last_dimension(is_sparse: bool, exe: fluid.Executor) -> None:
    ids = fluid.data("ids", [None, 3], "int64")
    rows = fluid.embedding(ids, [5, 2], is_sparse=is_sparse, padding_idx=-1, param_attr=fluid.ParamAttr("table"))
    hot = fluid.one_hot(ids, 5)
    assert (rows.shape, hot.shape) == ((-1, 3, 2), (-1, 3, 5))
    fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(rows))
    exe.run(fluid.default_startup_program())
    table = np.array(fluid.global_scope().find_var("table").get_tensor())
    places = np.array([[0, 1, 0], [4, 3, 0]])
    got = exe.run(feed={"ids": places}, fetch_list=[rows, hot])
    np.testing.assert_array_equal(got[0], np.where(places[..., None] == 4, 0, table[places]))
    np.testing.assert_array_equal(got[1], np.eye(5)[places])
    learnt = np.array(fluid.global_scope().find_var("table").get_tensor())
    np.testing.assert_allclose(learnt, table - np.array([[3], [1], [0], [1], [0]]), rtol=1e-6)


def test_matrices_and_sizes(exe: fluid.Executor) -> None:
    x, n = fluid.data("x", [None, 6]), fluid.data("n", [1], "int32")
    outs = [
        layers.size(x),
        layers.diag(np.array([1.0, 2.0], np.float32)),
        layers.diag(layers.linspace(0, 1, 3, "float64")),
        layers.eye(2),
        layers.eye(2, 3, [2, 1], "int64"),
        layers.linspace(1, 2, n, "float32"),
    ]
    assert [out.shape for out in outs] == [(1,), (2, 2), (3, 3), (2, 2), (2, 1, 2, 3), (-1,)]
    got = exe.run(feed={"x": X, "n": np.array([5], np.int32)}, fetch_list=outs)
    expected = [[24], np.diag([1, 2]), np.diag([0, 0.5, 1]), np.eye(2), [[np.eye(2, 3)]] * 2, np.linspace(1, 2, 5)]
    for value, wanted in zip(got, expected):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize(("rows", "columns", "batch"), [(-1, None, None), (2, -1, None), (2, 2, [0])])
def test_matrices_of_no_such_size(rows: int, columns: int | None, batch: Any) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"layers\.eye"):
        layers.eye(rows, columns, batch)


def test_numbers_once_and_in_shards(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None], "int64")
    column = layers.unsqueeze(x, [1])
    outs = [*layers.unique(x), *layers.unique_with_counts(x, "int64"), layers.shard_index(column, 20, 2, 0)]
    numbers = np.array([3, 12, 3, 9])
    got = exe.run(feed={"x": numbers}, fetch_list=outs)
    expected = [[3, 12, 9], [0, 1, 0, 2], [3, 12, 9], [0, 1, 0, 2], [2, 1, 1], [[3], [-1], [3], [9]]]
    for value, wanted in zip(got, expected):
        np.testing.assert_array_equal(value, wanted)
    assert [value.dtype.name for value in got] == ["int64", "int32"] + ["int64"] * 4


def test_channels_of_images(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 4, 2, 2])
    scale, bias = (layers.fill_constant([4], "float32", value) for value in (3, -1))
    outs = [
        layers.instance_norm(x, epsilon=0.0),
        layers.affine_channel(x, scale, bias, act="relu"),
        layers.temporal_shift(x, 2),
        layers.space_to_depth(x, 2),
    ]
    assert [out.shape for out in outs] == [(-1, 4, 2, 2)] * 3 + [(-1, 16, 1, 1)]
    exe.run(fluid.default_startup_program())
    images = np.arange(32, dtype=np.float32).reshape(2, 4, 2, 2)
    got = exe.run(feed={"x": images}, fetch_list=outs)
    normal = (images - images.mean((2, 3), keepdims=True)) / images.std((2, 3), keepdims=True)
    np.testing.assert_allclose(got[0], normal, rtol=1e-5)
    np.testing.assert_array_equal(got[1], np.maximum(3 * images - 1, 0))
    np.testing.assert_array_equal(got[2][1, 0], images[0, 0])
    assert got[3].shape == (2, 16, 1, 1)


def test_instance_norm_needs_channels_and_parameters() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"layers\.instance_norm: 'x' must be \[N, C, ...\]"):
        layers.instance_norm(fluid.data("x", [None, None, 2]))
    with pytest.raises(errors.InvalidArgument, match=r"layers\.instance_norm: expected attributes"):
        layers.instance_norm(fluid.data("y", [None, 2, 2]), bias_attr=False)


def test_parts_whose_shapes_are_variables(exe: fluid.Executor) -> None:
    x, n = fluid.data("x", [None, 6]), fluid.data("n", [1], "int32")
    outs = [
        layers.crop_tensor(x, [-1, 3]),
        layers.crop_tensor(x, [2, n], [n, 1]),
        layers.crop_tensor(x, layers.concat([n, n]), layers.concat([n, n])),
    ]
    assert [out.shape for out in outs] == [(-1, 3), (2, -1), (-1, -1)]
    for k in (1, 2):
        got = exe.run(feed={"x": X, "n": np.array([k], np.int32)}, fetch_list=outs)
        for value, expected in zip(got, (X[:, :3], X[k : k + 2, 1 : k + 1], X[k : 2 * k, k : 2 * k])):
            np.testing.assert_array_equal(value, expected)
    with pytest.raises(errors.InvalidArgument, match="crop_tensor: a shape is needed"):
        layers.crop_tensor(x, offsets=[0, 1])


def test_numbers_beside_variables_are_checked_when_the_program_is_built() -> None:
    x, n = fluid.data("x", [None, 6, 4]), fluid.data("n", [1], "int32")
    for layer, wrong in (
        (lambda: layers.crop_tensor(x, [2, -2, n]), r"crop_tensor: shape .* -1 or more, got \[2, -2, 'n'\]"),
        (lambda: layers.crop_tensor(x, [2, 2, 2], [n, 0, -1]), r"crop_tensor: offsets .* 0 or more"),
        (lambda: layers.expand(x, [n, 0, 1]), r"expand: expand_times .* 1 or more"),
        (lambda: layers.fill_constant([n, -1], "float32", 0.0), r"fill_constant: shape .* 0 or more"),
        (lambda: layers.uniform_random([-3, n]), r"uniform_random: shape .* 0 or more"),
        (lambda: layers.reshape(x, [n, -2]), r"reshape: shape .* -1 or more"),
        (lambda: layers.split(x, [n, -3], 1), r"split: num_or_sections .* -1 or more"),
        (lambda: layers.image_resize(layers.unsqueeze(x, [0]), [n, 0]), r"image_resize: out_shape .* 1 or more"),
    ):
        with pytest.raises(errors.InvalidArgument, match=wrong):
            layer()


def test_patches_and_positions(exe: fluid.Executor) -> None:
    x, steps = fluid.data("x", [None, 1, 2, 2]), fluid.data("steps", [None, 2, 2])
    outs = [layers.unfold(x, 2, paddings=[1, 0]), layers.unfold(x, [1, 2], 1, [0, 1, 0, 0], 1)]
    outs.append(layers.add_position_encoding(steps, 1.0, 1.0))
    assert [out.shape for out in outs] == [(-1, 4, 3), (-1, 2, 4), (-1, 2, 2)]
    image = np.array([[[[1, 2], [3, 4]]]], np.float32)
    got = exe.run(feed={"x": image, "steps": np.zeros((1, 2, 2), np.float32)}, fetch_list=outs)
    np.testing.assert_array_equal(got[0][0], [[0, 1, 3], [0, 2, 4], [1, 3, 0], [2, 4, 0]])
    np.testing.assert_array_equal(got[1][0], [[0, 1, 0, 3], [1, 2, 3, 4]])
    np.testing.assert_allclose(got[2][0], [[0, 1], [np.sin(1e-4), np.cos(1e-4)]], rtol=1e-6)


def test_hashes_and_bilinear_forms(exe: fluid.Executor) -> None:
    ids, x, y = fluid.data("ids", [None, 3], "int64"), fluid.data("x", [None, 4]), fluid.data("y", [None, 2])
    outs = [layers.hash(ids, 50, 2), layers.bilinear_tensor_product(x, y, 3, act="tanh")]
    assert [out.shape for out in outs] == [(-1, 2, 1), (-1, 3)]
    assert [list(parameter.shape) for parameter in fluid.default_main_program().all_parameters()] == [[3, 4, 2], [1, 3]]
    exe.run(fluid.default_startup_program())
    weight = fluid.default_main_program().all_parameters()[0].name
    w = np.array(fluid.global_scope().find_var(weight).get_tensor())
    feed = {"ids": np.array([[1, 2, 3], [1, 2, 3]]), "x": X[:2, :4] / 24, "y": X[:2, :2] / 24}
    hashes, product = exe.run(feed=feed, fetch_list=outs)
    assert (hashes[0] == hashes[1]).all()
    assert (hashes >= 0).all()
    assert (hashes < 50).all()
    np.testing.assert_allclose(product, np.tanh(np.einsum("ni,kij,nj->nk", feed["x"], w, feed["y"])), rtol=1e-5)
    with pytest.raises(errors.InvalidArgument, match=r"'unknown' must be .N, width. with a known width"):
        layers.bilinear_tensor_product(fluid.data("unknown", [None, None]), y, 3)


def test_argsort_in_either_order(exe: fluid.Executor) -> None:
    x = fluid.data("x", [2, 3])
    value = np.array([[2, 3, 1], [5, 4, 6]], np.float32)
    got = exe.run(feed={"x": value}, fetch_list=[*layers.argsort(x), *layers.argsort(x, 0, True)])
    expected = [np.sort(value), np.argsort(value), [[5, 4, 6], [2, 3, 1]], [[1, 1, 1], [0, 0, 0]]]
    for result, wanted in zip(got, expected):
        np.testing.assert_array_equal(result, wanted)
