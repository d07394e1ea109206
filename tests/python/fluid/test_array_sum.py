"""sum and assign of arrays, place by place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.fluid.framework import Variable


def filled(values: list[Any], dtype: str = "float32") -> Variable:
    """An array with these elements; None: nothing is written there."""
    array = layers.create_array(dtype)
    for place, value in enumerate(values):
        if value is not None:
            tensor = value
            if not isinstance(value, Variable):
                tensor = layers.cast(layers.assign(np.asarray(value, np.float32)), dtype)
            layers.array_write(tensor, layers.fill_constant([1], "int64", place), array)
    return array


def gradient_by(x: Variable, loss: Variable) -> Variable:
    ((_, gradient),) = fluid.backward.append_backward(loss, [x.name])
    return gradient


def elements(array: Variable, count: int) -> list[Variable]:
    return [layers.array_read(array, layers.fill_constant([1], "int64", i)) for i in range(count)]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_arrays_are_added_place_by_place(exe: fluid.Executor, dtype: str) -> None:
    a = filled([[1, 2], [3], None, [9]], dtype)
    b = filled([[10, 20], None, [5, 6, 7]], dtype)
    c = filled([[100, 200], [300]], dtype)
    total = layers.sums([a, b, c])
    assert total.type == fluid.core.VarType.LOD_TENSOR_ARRAY
    outs = [*elements(total, 4), layers.array_length(total), *elements(a, 1)]
    for _ in range(2):
        *found, length, kept = exe.run(fetch_list=outs)
        for value, expected in zip(found, [[111, 222], [303], [5, 6, 7], [9]]):
            np.testing.assert_array_equal(value, expected)
            assert value.dtype == np.dtype(dtype)
        assert length[0] == 4
        np.testing.assert_array_equal(kept, [1, 2])


def test_a_sum_of_arrays_may_take_the_place_of_one(exe: fluid.Executor) -> None:
    a, b = filled([[1.0], [2.0]]), filled([[10.0], [20.0], [30.0]])
    layers.sums([a, b, b], out=b)
    np.testing.assert_array_equal(np.concatenate(exe.run(fetch_list=elements(b, 3))), [21, 42, 60])


def test_what_is_no_sum_of_arrays_is_refused(exe: fluid.Executor) -> None:
    a, x = filled([[1.0]]), layers.fill_constant([1], "float32", 1)
    with pytest.raises(TypeError, match="expected arrays only"):
        layers.sums([a, x])
    with pytest.raises(TypeError, match="output Out"):
        layers.sums([x, x], out=filled([]))
    total = layers.sums([a, filled([[1.0, 2.0]])])
    with pytest.raises(
        ValueError, match=r"element 0 of '.*' is float32 of dims \[2\], that of the arrays before .*\[1\]"
    ):
        exe.run(fetch_list=elements(total, 1))


@pytest.mark.parametrize("kind", ["new", "in place", "alone", "twice", "in place, thrice"])
def test_gradients_of_sums_of_arrays(exe: fluid.Executor, kind: str) -> None:
    """Against sums of what they hold."""
    x = layers.data("x", [3], append_batch_size=False)
    x.stop_gradient = False
    parts = [layers.scale(x, float(i + 1)) for i in range(4)]
    a, b = filled(parts[:2]), filled(parts[2:])
    if kind == "new":
        out, factors = layers.sums([a, b]), [(1, 1), (1, 1)]
    elif kind == "in place":
        out, factors = layers.sums([a, b], out=a), [(1, 1), (1, 1)]
    elif kind == "alone":
        out, factors = layers.sums([a], out=a), [(1, 0), (1, 0)]
    elif kind == "twice":
        out, factors = layers.sums([b, a, b]), [(1, 2), (1, 2)]
    else:
        out, factors = layers.sums([a, b, a, a], out=a), [(3, 1), (3, 1)]
    first, second = elements(out, 2)
    loss = layers.reduce_sum(layers.elementwise_add(layers.square(first), layers.scale(layers.square(second), 2.0)))
    gradient = gradient_by(x, loss)
    value = np.array([1.0, -2.0, 0.5], np.float32)
    weights = [factors[0][0] * 1 + factors[0][1] * 3, factors[1][0] * 2 + factors[1][1] * 4]
    expected = 2 * value * weights[0] ** 2 + 4 * value * weights[1] ** 2
    for _ in range(2):
        (found,) = exe.run(feed={"x": value}, fetch_list=[gradient])
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gradients_of_sums_of_arrays_in_a_loop(exe: fluid.Executor) -> None:
    """Each step adds an array to another and writes the next place from what it finds."""
    x = layers.data("x", [2], append_batch_size=False)
    x.stop_gradient = False
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    states, steps = layers.create_array("float32"), layers.create_array("float32")
    layers.array_write(x, i, states)
    for place in range(4):
        layers.array_write(layers.scale(x, float(place)), layers.fill_constant([1], "int64", place), steps)
    more = layers.less_than(i, n)
    loop = layers.While(more)
    with loop.block():
        total = layers.sums([states, steps])
        found = layers.array_read(total, i)
        layers.increment(i)
        layers.array_write(found, i, states)
        layers.less_than(i, n, cond=more)
    loss = layers.reduce_sum(layers.array_read(states, n))
    gradient = gradient_by(x, loss)
    (value, found_gradient) = exe.run(feed={"x": np.array([1, 2], np.float32)}, fetch_list=[loss, gradient])
    # x, x + 0 x, x + 1 x, 2 x + 2 x
    np.testing.assert_allclose(value, [4 * 3.0])
    np.testing.assert_allclose(found_gradient, [4, 4])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_a_copy_of_an_array_is_one_of_its_own(exe: fluid.Executor, dtype: str) -> None:
    lengths = [[1, 2]]
    rows = layers.data("rows", [2], lod_level=1)
    a = filled([[1, 0], None, layers.cast(rows, dtype)], dtype)
    b = layers.assign(a)
    assert b.type == fluid.core.VarType.LOD_TENSOR_ARRAY
    layers.array_write(
        layers.cast(layers.fill_constant([1], "int64", 1), dtype), layers.fill_constant([1], "int64", 0), a
    )
    first, last = (layers.array_read(b, layers.fill_constant([1], "int64", i)) for i in (0, 2))
    outs = [first, last, layers.array_length(b), *elements(a, 1)]
    feed = {"rows": fluid.create_lod_tensor(np.eye(3, 2, dtype=np.float32), lengths, fluid.CPUPlace())}
    for _ in range(2):
        kept, sequences, length, changed = exe.run(feed=feed, fetch_list=outs, return_numpy=False)
        np.testing.assert_array_equal(np.array(kept), np.array([1, 0], dtype))
        np.testing.assert_array_equal(np.array(sequences), np.eye(3, 2).astype(dtype))
        assert sequences.recursive_sequence_lengths() == lengths
        assert np.array(kept).dtype == np.dtype(dtype)
        assert np.array(length)[0] == 3
        np.testing.assert_array_equal(np.array(changed), np.array([1], dtype))


def test_a_shorter_array_replaces_a_longer_one(exe: fluid.Executor) -> None:
    long, short = filled([[1.0], [2.0], [3.0]]), filled([None, [5.0]])
    assert layers.assign(short, output=long) is long
    layers.assign(long, output=long)
    second = layers.array_read(long, layers.fill_constant([1], "int64", 1))
    length, second = exe.run(fetch_list=[layers.array_length(long), second])
    assert length[0] == 2
    np.testing.assert_array_equal(second, [5.0])
    with pytest.raises(IndexError, match="nothing has been written"):
        exe.run(fetch_list=elements(long, 1))


def test_an_array_is_assigned_to_arrays_only(exe: fluid.Executor) -> None:
    x = layers.fill_constant([1], "float32", 1)
    array = filled([[1.0]])
    with pytest.raises(TypeError, match=rf"output Out.*'{array.name}', a LoDTensorArray"):
        layers.assign(x, output=array)
    with pytest.raises(TypeError, match=r"'assign'|LoDTensorArray"):
        layers.square(layers.assign(array))


@pytest.mark.parametrize("kind", ["copy", "itself", "both", "overwritten"])
def test_gradients_of_copies_of_arrays(exe: fluid.Executor, kind: str) -> None:
    x = layers.data("x", [3], append_batch_size=False)
    x.stop_gradient = False
    a = filled([layers.scale(x, 2.0), layers.scale(x, 3.0)])
    value = np.array([1.0, -2.0, 0.5], np.float32)
    if kind == "overwritten":
        b = filled([layers.scale(x, 7.0)])
        layers.assign(a, output=b)
    else:
        b = layers.assign(a, output=a if kind == "itself" else None)
    terms = [layers.square(element) for element in elements(b, 2)]
    expected = 2 * value * (4 + 9)
    if kind == "both":
        terms.append(layers.scale(elements(a, 2)[1], 10.0))
        expected = expected + 30
    gradient = gradient_by(x, layers.reduce_sum(layers.sums(terms)))
    for _ in range(2):
        (found,) = exe.run(feed={"x": value}, fetch_list=[gradient])
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gradients_of_copies_of_arrays_in_a_loop(exe: fluid.Executor) -> None:
    """Each step works on a copy and puts it back."""
    x = layers.data("x", [2], append_batch_size=False)
    x.stop_gradient = False
    i, n = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    states, copy = layers.create_array("float32"), layers.create_array("float32")
    layers.array_write(x, i, states)
    more = layers.less_than(i, n)
    loop = layers.While(more)
    with loop.block():
        layers.assign(states, output=copy)
        found = layers.elementwise_mul(layers.array_read(copy, i), x)
        layers.increment(i)
        layers.array_write(found, i, copy)
        layers.assign(copy, output=states)
        layers.less_than(i, n, cond=more)
    loss = layers.reduce_sum(layers.array_read(states, n))  # x to the power of 4
    gradient = gradient_by(x, loss)
    value = np.array([1.5, -2.0], np.float32)
    for _ in range(2):
        (found_gradient,) = exe.run(feed={"x": value}, fetch_list=[gradient])
        np.testing.assert_allclose(found_gradient, 4 * value**3, rtol=1e-6)
