"""Variables are indexed as arrays are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors

X = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)


class Index:
    def __getitem__(self, item: Any) -> Any:
        return item


at = Index()


@pytest.mark.parametrize(
    "item",
    [
        at[0],
        at[-1],
        at[1, 2],
        at[1, -1, 2:3],
        at[:, 1],
        at[0:1],
        at[1:],
        at[:-1, 1:],
        at[:, :, -2:],
        at[..., 1],
        at[1, ..., 1:3],
        at[..., 0, :],
        at[:, -3:100],
        at[::-1],
        at[0, ::-1, 1:],
        at[np.int64(1)],
        at[:, 1:1],
        at[1, 2, 3, ...],
        at[::2],
        at[:, ::-2],
        at[..., 3::2],
        at[:, 2:0:-1],
        at[:, :0:-1, 1:3],
        at[:, 1::-1, ::3],
        at[-2:5:2, 1, -1:1:-1],
        at[0, ::-1, ::-2],
        at[:, 0:2:-1],
        at[:, 2:-1:-1],
        at[:, 5:-9:-2],
    ],
    ids=str,
)
@pytest.mark.parametrize("known", [True, False])
def test_an_index_means_what_it_means_to_numpy(exe: fluid.Executor, item: Any, known: bool) -> None:
    x = fluid.data("x", X.shape if known else [None, 3, None])
    out = x[item]
    (got,) = exe.run(feed={"x": X}, fetch_list=[out])
    want = np.atleast_1d(X[item])  # without dimensions there is one
    assert got.shape == want.shape
    np.testing.assert_array_equal(got, want)
    if known:
        assert out.shape == want.shape


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_an_index_may_be_a_variable(exe: fluid.Executor, place: int, known: bool, dtype: str) -> None:
    x = fluid.data("x", X.shape if known else [None, 3, None])
    i, stop = fluid.data("i", [1], dtype), fluid.data("stop", [1], "int64")
    i.stop_gradient = False
    outs = [x[i], x[:, i], x[0, i, 1:], x[..., i:], x[:, :stop, -1], x[:, 0:stop, i], x[i, ..., ::-1]]
    feed = {"x": X, "i": np.array([place], dtype), "stop": np.array([2])}
    got = exe.run(feed=feed, fetch_list=outs)
    want = [X[place], X[:, place], X[0, place, 1:], X[..., place:], X[:, :2, -1], X[:, 0:2, place], X[place, ..., ::-1]]
    for one, expected in zip(got, want):
        np.testing.assert_array_equal(one, expected)


def test_a_variable_counts_through_a_loop(exe: fluid.Executor) -> None:
    x = fluid.data("x", [5])
    i = fluid.layers.fill_constant([1], "int64", 0)
    total = fluid.layers.fill_constant([1], "float32", 0.0)
    cond = fluid.layers.less_than(i, fluid.layers.fill_constant([1], "int64", 5))
    loop = fluid.layers.While(cond)
    with loop.block():
        fluid.layers.assign(total * 10.0 + x[i], total)
        fluid.layers.increment(i)
        fluid.layers.less_than(i, fluid.layers.fill_constant([1], "int64", 5), cond=cond)
    (got,) = exe.run(feed={"x": np.arange(1, 6, dtype=np.float32)}, fetch_list=[total])
    assert got == [12345]


def test_gradients_pass_an_index_that_is_a_variable(exe: fluid.Executor) -> None:
    x, i = fluid.data("x", X.shape), fluid.data("i", [1], "int64")
    x.stop_gradient = False
    fluid.backward.append_backward(fluid.layers.reduce_sum(fluid.layers.square(x[i, :, 1:3])))
    (got,) = exe.run(feed={"x": X, "i": np.array([-1])}, fetch_list=["x@GRAD"])
    want = np.zeros_like(X)
    want[-1, :, 1:3] = 2 * X[-1, :, 1:3]
    np.testing.assert_allclose(got, want)


def test_an_index_that_is_a_variable_of_another_kind_is_refused() -> None:
    x, fraction, pair = fluid.data("x", [2, 3]), fluid.data("fraction", [1]), fluid.data("pair", [2], "int64")
    for item in (at[fraction], at[0, fraction], at[fraction:], at[:fraction]):
        with pytest.raises(errors.TypeMismatch, match=r"'x' is .* with integers.*, got variable 'fraction' of float32"):
            x[item]
    for item in (at[pair], at[0, pair], at[pair:], at[:pair]):
        with pytest.raises(errors.InvalidArgument, match=r"'x' is .* with integers.*, got variable 'pair' of .*\[2\]"):
            x[item]
    step = fluid.data("step", [1], "int32")
    for item in (at[::step], at[0::step], at[:2:step]):
        with pytest.raises(errors.InvalidArgument, match=r"'x' .* 'step' as step, .*: give start and stop"):
            x[item]
    assert fluid.default_main_program().global_block().ops == []


def test_a_step_may_be_a_variable(exe: fluid.Executor) -> None:
    x, step, last = fluid.data("x", X.shape), fluid.data("step", [1], "int32"), fluid.data("last", [1], "int32")
    outs = [x[:, 2:0:step], x[0, 0:100:2, last:0:step], x[last, ::-1, 0:3:2]]
    got = exe.run(feed={"x": X, "step": np.array([-1], np.int32), "last": np.array([-1], np.int32)}, fetch_list=outs)
    for value, want in zip(got, (X[:, 2:0:-1], X[0, 0:100:2, -1:0:-1], X[-1, ::-1, 0:3:2])):
        np.testing.assert_array_equal(value, want)


def test_a_variable_outside_of_what_a_run_has_is_an_error(exe: fluid.Executor) -> None:
    out = fluid.data("x", [2, 3])[fluid.data("i", [1], "int64")]
    for place in (2, -3):
        message = rf"StartsTensorList.*dimension 0 of Input of dims \[2, 3\], got {place} and {place + 1}"
        with pytest.raises(errors.OutOfRange, match=message):
            exe.run(feed={"x": X[0, :2, :3], "i": np.array([place])}, fetch_list=[out])


def test_all_of_it_is_the_variable_itself() -> None:
    x = fluid.data("x", [2, 3])
    assert x[:] is x
    assert x[..., :] is x
    assert x[:, ::1] is x
    assert fluid.default_main_program().global_block().ops == []


def test_gradients_pass_an_index(exe: fluid.Executor) -> None:
    x = fluid.data("x", X.shape)
    x.stop_gradient = False
    y = fluid.layers.square(x[1, ::-1, 1:3]), fluid.layers.square(x[0, 2::-2, ::3])
    fluid.backward.append_backward(fluid.layers.reduce_sum(y[0]) + fluid.layers.reduce_sum(y[1]))
    (got,) = exe.run(feed={"x": X}, fetch_list=["x@GRAD"])
    want = np.zeros_like(X)
    want[1, :, 1:3] = 2 * X[1, :, 1:3]
    want[0, ::2, ::3] = 2 * X[0, ::2, ::3]
    np.testing.assert_allclose(got, want)


@pytest.mark.parametrize(
    ("item", "error", "part"),
    [
        (at[3], errors.OutOfRange, "index 3"),
        (at[0, -4], errors.OutOfRange, "dimension 1"),
        (at[0, 0, 0], errors.OutOfRange, "3 indices"),
        (at[..., ...], errors.OutOfRange, "2 of them"),
        (at[::0], errors.InvalidArgument, "step 0"),
        (at["a"], errors.TypeMismatch, "str"),
        (at[1.0], errors.TypeMismatch, "float"),
        (at[np.array([1])], errors.TypeMismatch, "ndarray"),
        (at[0 : np.array([1])], errors.TypeMismatch, "ndarray"),
        (at[True], errors.TypeMismatch, "bool"),
        (at[None], errors.TypeMismatch, "NoneType"),
        (at[0:1.5], errors.TypeMismatch, "float"),
    ],
    ids=str,
)
def test_other_indices_are_refused(item: Any, error: type[Exception], part: str) -> None:
    x = fluid.data("x", [2, 3])
    with pytest.raises(error) as raised:
        x[item]
    assert part in str(raised.value)
    assert "'x'" in str(raised.value)
    assert fluid.default_main_program().global_block().ops == []


def test_an_index_outside_of_what_a_run_has_is_an_error(exe: fluid.Executor) -> None:
    out = fluid.data("x", [None, 3])[5]
    with pytest.raises(errors.OutOfRange, match=r"starts.*dimension 0 of Input of dims \[3, 3\], got 5 and 6"):
        exe.run(feed={"x": X[0, :, :3]}, fetch_list=[out])


def test_a_variable_is_not_iterable() -> None:
    x = fluid.data("x", [None, 3])
    with pytest.raises(TypeError, match="not iterable"):
        list(x)
    with pytest.raises(TypeError, match="not iterable"):
        for _ in x:
            pass
    with pytest.raises(TypeError):
        0 in x  # noqa: B015
