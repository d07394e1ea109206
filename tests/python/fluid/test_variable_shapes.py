"""Layers whose shapes, places and counts are variables, other ones in each run."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def number(name: str) -> fluid.Variable:
    return fluid.data(name, [1], "int32")


def test_variables_among_integers(exe: fluid.Executor) -> None:
    x, n = fluid.data("x", [None, 6]), number("n")
    outs = [
        layers.reshape(x, [-1, n]),
        layers.slice(x, [0, 1], [1, n], [3, 5]),
        layers.expand(x, [1, n]),
        layers.fill_constant([2, n], "float32", 7),
        layers.uniform_random((n, 2), min=0.0, seed=3),
        *layers.split(x, [n, -1], dim=1),
        layers.zeros([n], "int64"),
    ]
    assert [out.shape for out in outs] == [(-1, -1), (-1, -1), (-1, -1), (2, -1), (-1, 2), (-1, -1), (-1, -1), (-1,)]
    for k in (3, 1, 3, 2):
        got = exe.run(feed={"x": X, "n": np.array([k], np.int32)}, fetch_list=outs)
        np.testing.assert_array_equal(got[0], X.reshape(-1, k))
        np.testing.assert_array_equal(got[1], X[1:3, k:5])
        np.testing.assert_array_equal(got[2], np.tile(X, (1, k)))
        np.testing.assert_array_equal(got[3], np.full((2, k), 7))
        assert got[4].shape == (k, 2)
        np.testing.assert_array_equal(got[5], X[:, :k])
        np.testing.assert_array_equal(got[6], X[:, k:])
        assert got[7].tolist() == [0] * k


def test_the_integers_among_variables_are_known_before_the_run(exe: fluid.Executor) -> None:
    x, images, n = fluid.data("x", [4, 6]), fluid.data("images", [None, 2, 3, 1]), number("n")
    outs = [
        layers.reshape(x, [0, n, 2]),
        layers.expand(x, [2, n]),
        *layers.split(x, [n, 3], dim=-1),
        layers.slice(x, [0, 1], [1, n], [3, 5]),
        layers.image_resize(images, [4, n], resample="NEAREST", data_format="NHWC"),
        layers.fc(layers.reshape(x, [number("rows"), 3]), 5),
    ]
    assert [out.shape for out in outs] == [(4, -1, 2), (8, -1), (4, -1), (4, 3), (2, -1), (-1, 4, -1, 1), (-1, 5)]
    exe.run(fluid.default_startup_program())
    feed = {"x": X, "images": np.zeros((1, 2, 3, 1), np.float32)}
    feed |= {"n": np.array([3], np.int32), "rows": np.array([8], np.int32)}
    got = exe.run(feed=feed, fetch_list=outs)
    assert [value.shape for value in got] == [(4, 3, 2), (8, 18), (4, 3), (4, 3), (2, 2), (1, 4, 3, 1), (8, 5)]


def test_variables_of_all_integers(exe: fluid.Executor) -> None:
    x, y, places = fluid.data("x", [None, 6]), fluid.data("y", [None, None]), fluid.data("places", [2], "int64")
    outs = [
        layers.reshape(x, layers.shape(y), act="relu"),
        layers.reshape(x, [-1, 0], actual_shape=layers.shape(y)),
        layers.slice(x, [0, 1], places, layers.shape(y)),
        layers.expand(x, places),
        layers.ones(layers.shape(y), "float32"),
        layers.uniform_random(layers.shape(y)),
        layers.crop(x, [2, 3], places),
        layers.unsqueeze(x, places),
    ]
    shapes = [(-1, -1), (-1, 6), (-1, -1), (-1, -1), (-1, -1), (-1, -1), (2, 3), (-1, -1, -1, -1)]
    assert [out.shape for out in outs] == shapes
    for rows, at in ((3, [1, 2]), (8, [2, 1]), (3, [1, 2])):
        target = np.zeros((rows, 24 // rows), np.float32)
        got = exe.run(feed={"x": X, "y": target, "places": np.array(at)}, fetch_list=outs)
        for value in got[:2]:
            np.testing.assert_array_equal(value, X.reshape(target.shape))
        np.testing.assert_array_equal(got[2], X[at[0] : rows, at[1] : 24 // rows])
        np.testing.assert_array_equal(got[3], np.tile(X, at))
        np.testing.assert_array_equal(got[4], np.ones_like(target))
        assert got[5].shape == target.shape
        np.testing.assert_array_equal(got[6], X[at[0] : at[0] + 2, at[1] : at[1] + 3])
        np.testing.assert_array_equal(got[7], np.expand_dims(np.expand_dims(X, at[0]), at[1]))


def test_rows_of_another_width_are_not_declared_to_make_the_same_sequences(exe: fluid.Executor) -> None:
    x = layers.data("x", [6], lod_level=1)
    outs = [layers.reshape(x, shape) for shape in ([-1, 3], [-1, 3, 2], [0, 2, 3])]
    assert [out.lod_level for out in outs] == [0, 1, 1]
    feed = {"x": fluid.create_lod_tensor(X, [[1, 3]], fluid.CPUPlace())}
    got = exe.run(feed=feed, fetch_list=outs, return_numpy=False)
    assert [len(value.lod()) for value in got] == [0, 1, 1]


def test_an_actual_shape_overrides_the_shape(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 6]), fluid.data("y", [None, None])
    out = layers.reshape(x, [4, 6], actual_shape=layers.shape(y))
    assert out.shape == (4, 6)
    (got,) = exe.run(feed={"x": np.tile(X, (2, 1)), "y": np.zeros((3, 16), np.float32)}, fetch_list=[out])
    np.testing.assert_array_equal(got, np.tile(X, (2, 1)).reshape(3, 16))


def test_counts_axes_and_sizes(exe: fluid.Executor) -> None:
    x, n, axis = fluid.data("x", [None, 6]), number("n"), number("axis")
    images, factor = fluid.data("images", [None, 1, 2, 3]), fluid.data("factor", [1])
    numbers = layers.fill_constant([2, 1], "int64", 0)
    outs = [
        layers.topk(x, n)[0],
        layers.one_hot(numbers, n),
        layers.sequence_mask(numbers, n),
        layers.concat([x, x], axis),
        *layers.split(x, 2, axis),
        layers.image_resize(images, [n, 6], resample="NEAREST", align_corners=False),
        layers.resize_nearest(images, scale=factor, align_corners=False),
    ]
    shapes = [(-1, -1), (2, -1), (2, 1, -1), (-1, -1), (-1, -1), (-1, -1), (-1, 1, -1, 6), (-1, 1, -1, -1)]
    assert [out.shape for out in outs] == shapes
    picture = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    for k, at in ((4, 0), (2, 1), (4, -1)):
        feed = {"x": X, "n": np.array([k], np.int32), "axis": np.array([at], np.int32)}
        feed |= {"images": picture, "factor": np.array([k], np.float32)}
        got = exe.run(feed=feed, fetch_list=outs)
        np.testing.assert_array_equal(got[0], X[:, ::-1][:, :k])
        assert (got[1].shape, got[2].shape) == ((2, k), (2, 1, k))
        np.testing.assert_array_equal(got[3], np.concatenate([X, X], at))
        for value, want in zip(got[4:6], np.split(X, 2, at)):
            np.testing.assert_array_equal(value, want)
        np.testing.assert_array_equal(got[6], picture.repeat(k // 2, 2).repeat(2, 3))
        np.testing.assert_array_equal(got[7], picture.repeat(k, 2).repeat(k, 3))


def test_gradients_pass_through_shapes_from_variables(exe: fluid.Executor) -> None:
    w = layers.create_parameter([4, 6], "float32", "w")
    n = number("n")
    tall = layers.reshape(w, [-1, n])
    part = layers.slice(layers.expand(tall, [n, 1]), [0], [n], [9])
    first, second = layers.split(part, [1, -1], dim=number("axis"))
    loss = layers.reduce_sum(layers.concat([first, 2 * second], number("axis_of_join")))
    fluid.backward.append_backward(loss)
    exe.run(fluid.default_startup_program())
    for k, at in ((3, 0), (2, 1), (3, 1)):
        feed = {
            "n": np.array([k], np.int32),
            "axis": np.array([at], np.int32),
            "axis_of_join": np.array([at], np.int32),
        }
        (got,) = exe.run(feed=feed, fetch_list=["w@GRAD"])
        rows = np.tile(np.arange(24).reshape(-1, k), (k, 1))[k:9]
        weights = np.full(rows.shape, 2.0)
        weights[:1] = 1 if at == 0 else weights[:1]
        weights[:, :1] = 1 if at == 1 else weights[:, :1]
        expected = np.bincount(rows.ravel(), weights.ravel(), 24).reshape(4, 6)
        np.testing.assert_array_equal(got, expected)


def test_what_is_no_integer_is_refused() -> None:
    x, n = fluid.data("x", [None, 6]), number("n")
    for shape, error in (([n, 1.5], errors.TypeMismatch), (3, errors.TypeMismatch), ("ab", errors.TypeMismatch)):
        with pytest.raises(error, match=r"layers\.reshape: shape"):
            layers.reshape(x, shape)
    with pytest.raises(errors.TypeMismatch, match=r"input ShapeTensor: variable 'x'.*float32"):
        layers.reshape(x, [x, 2])
    with pytest.raises(errors.TypeMismatch, match="actual_shape has to be a Variable"):
        layers.reshape(x, [2, -1], actual_shape=[2, 12])  # type: ignore[arg-type]
