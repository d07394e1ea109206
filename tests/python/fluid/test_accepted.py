"""What Fluid lets programs do is accepted; what it would get silently wrong is not."""

from __future__ import annotations

import copy
import math
import operator
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable


def test_a_variable_is_true_as_an_object_is() -> None:
    bias, count = fluid.data("bias", [None, 3]), fluid.data("count", [1], "int64")
    reader = layers.py_reader(2, [[-1, 3]], ["float32"])
    assert bias
    assert count
    assert reader
    assert (bias or None) is bias
    assert (bias and count) is count


@pytest.mark.parametrize(
    "compared",
    [
        lambda x: x > 0,
        lambda x: x == 0,
        lambda x: x != x + 1,
        lambda x: layers.equal(x, x),
        lambda x: layers.logical_not(x > 0),
        layers.isfinite,
    ],
)
def test_what_only_a_run_knows_does_not_choose_while_a_program_is_built(compared: Any) -> None:
    x = fluid.data("x", [1])
    fact = compared(x)
    for ask in (bool, lambda v: v and x, lambda v: not v):
        with pytest.raises(errors.TypeMismatch, match=rf"'{fact.name}' has no value.*layers\.cond"):
            ask(fact)


@pytest.mark.parametrize(
    "use",
    [
        float,
        int,
        math.sqrt,
        np.mean,
        np.asarray,
        lambda v: np.array([1.0, v]),
        "{:.3f}".format,
        lambda v: v.numpy(),
        lambda v: v.item(),
    ],
)
def test_a_variable_is_no_number_while_a_program_is_built(use: Any) -> None:
    loss = layers.mean(fluid.data("x", [None, 3]))
    with pytest.raises(errors.TypeMismatch, match=rf"'{loss.name}' has no value while .*run\(fetch_list="):
        use(loss)


def test_a_variable_can_be_shown_and_copied() -> None:
    x = fluid.data("x", [None, 3])
    assert f"{x}" == "{}".format(x) == str(x) == repr(x)  # noqa: UP032
    assert copy.copy(x).name == "x"
    assert (np.float32(2) * x).shape == (-1, 3)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_equality_compares_elements(exe: fluid.Executor, dtype: str) -> None:
    x, y = fluid.data("x", [None, 2], dtype), fluid.data("y", [None, 2], dtype)
    outs = [x == y, x != y, x == 2, 2 != x, x == True]  # noqa: E712, SIM300
    assert all(isinstance(out, Variable) and out.stop_gradient for out in outs)
    a, b = np.array([[1, 2], [3, 4]], dtype), np.array([[1, 3], [2, 4]], dtype)
    expected = [a == b, a != b, a == 2, a != 2, a == 1]
    for got, want in zip(exe.run(feed={"x": a, "y": b}, fetch_list=outs), expected):
        np.testing.assert_array_equal(got, want)


def test_a_variable_is_a_key_and_differs_from_what_is_no_value() -> None:
    x, y = fluid.data("x", [None, 2]), fluid.data("y", [None, 2])
    assert {x: 1, y: 2}[y] == 2
    assert len({x, y, x}) == 2
    for other in (None, "x", [x]):
        assert (x == other) is False
        assert (x != other) is True
    assert y in [y, x]
    with pytest.raises(errors.TypeMismatch, match="'is' or names, not '==' or 'in'"):
        assert x in [y]  # Fluid says yes, whatever is in the list


def test_a_list_of_one_is_what_is_in_it(exe: fluid.Executor) -> None:
    """What IfElse gives is a list, which programs pass on."""
    x = fluid.data("x", [None, 1])
    choice = layers.IfElse(x > 0)
    for block in (choice.true_block, choice.false_block):
        with block():
            choice.output(layers.abs(choice.input(x)))
    outs = choice()
    assert isinstance(outs, list)
    total = layers.reduce_sum(layers.sqrt(outs))
    assert exe.run(feed={"x": np.array([[4], [-9]], np.float32)}, fetch_list=[total])[0].item() == 5


def test_parameters_without_gradient_are_passed_over() -> None:
    loss = layers.mean(layers.batch_norm(layers.fc(fluid.data("x", [None, 4]), 4)))
    names = [p.name for p in fluid.default_main_program().all_parameters()]
    _, pairs = fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=names)
    trained = [p.name for p, _ in pairs]
    assert trained == [n for n in names if n in trained]
    assert set(names) - set(trained) == {"batch_norm_0.w_1", "batch_norm_0.w_2"}  # mean and variance


def test_a_list_of_nothing_but_parameters_without_gradient_is_refused() -> None:
    loss = layers.mean(layers.batch_norm(layers.fc(fluid.data("x", [None, 4]), 4)))
    with pytest.raises(errors.InvalidArgument, match=r"none of the parameters.*batch_norm_0\.w_1"):
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["batch_norm_0.w_1"])


def test_a_list_with_what_is_no_variable_of_the_program_is_refused() -> None:
    loss = layers.mean(layers.fc(fluid.data("x", [None, 4]), 4))
    for given, error, message in (
        (["fc_0.w_0", "w"], errors.NotFound, "parameter_list names 'w', .* its parameters are fc_0.w_0, fc_0.b_0$"),
        ([3], errors.TypeMismatch, "parameter_list takes variables or their names, got 3"),
        ("fc_0.w_0", errors.TypeMismatch, "parameter_list has to be a list .*, got 'fc_0.w_0'"),
    ):
        with pytest.raises(error, match=f"minimize: {message}"):
            fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=given)


@pytest.mark.parametrize("shape", [(-256, 1), (None, 1), (-1, 1)])
def test_dimensions_below_0_fit_anything(exe: fluid.Executor, shape: tuple[int, int]) -> None:
    reader = layers.py_reader(2, [shape], ["int64"])
    ids = layers.read_file(reader)
    one_hot = layers.one_hot(ids, 4)
    fed = layers.data("fed", shape, dtype="int64", append_batch_size=False)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: iter([[np.array([[1], [3]], np.int64)]]))
    reader.start()
    got, also = exe.run(feed={"fed": np.array([[1], [3]], np.int64)}, fetch_list=[one_hot, layers.one_hot(fed, 4)])
    assert (ids.shape, fed.shape) == ((-1, 1), (-1, 1))
    np.testing.assert_array_equal(got, np.eye(4, dtype=np.float32)[[1, 3]])
    np.testing.assert_array_equal(also, got)
    reader.reset()


def _values(build: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What ``build`` makes of a variable, and the gradient of its sum."""
    var = fluid.data("x", list(x.shape), str(x.dtype))
    var.stop_gradient = False
    out: Variable = build(var)
    (gradient,) = fluid.gradients(out, var)
    assert gradient is not None
    value, slope = fluid.Executor().run(feed={"x": x}, fetch_list=[out, gradient])
    return value, slope


def test_a_number_to_the_power_of_a_variable() -> None:
    x = np.array([[-1.5, 0.0, 2.0]], np.float32)
    value, slope = _values(lambda v: 2.0**v, x)
    np.testing.assert_allclose(value, 2.0**x, rtol=1e-6)
    np.testing.assert_allclose(slope, np.log(2.0) * 2.0**x, rtol=1e-5)


def test_a_number_divided_by_a_variable() -> None:
    x = np.array([[-1.5, 0.5, 2.0]], np.float32)
    value, slope = _values(lambda v: 3 / v, x)
    np.testing.assert_allclose(value, 3 / x, rtol=1e-6)
    np.testing.assert_allclose(slope, -3 / x**2, rtol=1e-5)


@pytest.mark.parametrize("number", [7, 2**53 + 1])
def test_integers_on_the_left_side_are_exact(exe: fluid.Executor, number: int) -> None:
    x = np.array([2, 3, 5], np.int64)
    var = fluid.data("x", [3], "int64")
    quotient, rest = exe.run(feed={"x": x}, fetch_list=[number // var, number % var])
    np.testing.assert_array_equal(quotient, number // x)
    np.testing.assert_array_equal(rest, number % x)


@pytest.mark.parametrize("operation", [lambda v: "two" ** v, lambda v: [] // v, lambda v: None / v])
def test_what_is_no_number_on_the_left_side_is_refused(operation: Any) -> None:
    with pytest.raises(TypeError, match="x"):
        operation(fluid.data("x", [3]))


@pytest.mark.parametrize("number", [0, 1, 2, -1])
def test_an_integer_is_taken_for_a_truth_value(number: int) -> None:
    x = layers.data("x", [8], lod_level=1)
    layers.dynamic_lstm(x, 8, is_reverse=number)
    (op,) = (op for op in fluid.default_main_program().global_block().ops if op.type == "lstm")
    assert op.attr("is_reverse") is (number != 0)


@pytest.mark.parametrize("value", [1.0, "yes", [1]], ids=str)
def test_nothing_else_is_taken_for_a_truth_value(value: Any) -> None:
    x = layers.data("x", [8], lod_level=1)
    with pytest.raises(errors.TypeMismatch, match=r"is_reverse.*expected bool"):
        layers.dynamic_lstm(x, 8, is_reverse=value)


def test_shapes_that_only_a_run_knows_are_compared_by_the_run(exe: fluid.Executor) -> None:
    """Declared is the longest sentence; the mask is as long as the sentence that is given."""
    x = layers.data("x", [8, 1, 256])
    mask = layers.data("mask", [8, 256, 256])
    out = x + mask
    assert out.shape == (-1, 8, 1, 256)
    a, b = np.ones((2, 8, 1, 5), np.float32), np.full((2, 8, 1, 5), 2, np.float32)
    np.testing.assert_array_equal(exe.run(feed={"x": a, "mask": b}, fetch_list=[out])[0], a + b)
    with pytest.raises(errors.InvalidArgument, match=r"input Y: expected 1 or 1 for dimension 2.*'mask' is declared"):
        exe.run(feed={"x": a, "mask": np.ones((2, 8, 5, 5), np.float32)}, fetch_list=[out])


def test_shapes_that_are_known_are_compared_at_once() -> None:
    x = layers.data("x", [8, 1, 256])
    weight = layers.create_parameter([8, 3, 256], "float32")
    with pytest.raises(errors.InvalidArgument, match="input Y"):
        layers.elementwise_add(x, weight, axis=1)


def test_repeating_columns_keeps_the_sequences(exe: fluid.Executor) -> None:
    x = layers.data("x", [2], lod_level=1)
    wide, long = layers.expand(x, [1, 3]), layers.expand(x, [2, 1])
    pooled = layers.sequence_pool(wide, "sum")
    assert (wide.lod_level, long.lod_level) == (1, 0)
    rows = fluid.create_lod_tensor(np.arange(6, dtype=np.float32).reshape(3, 2), [[1, 2]])
    got = exe.run(feed={"x": rows}, fetch_list=[wide, long, pooled], return_numpy=False)
    assert [value.recursive_sequence_lengths() for value in got] == [[[1, 2]], [], []]
    np.testing.assert_array_equal(got[2], [[0, 1] * 3, [6, 8] * 3])


def test_a_greedy_decoder_gives_sequences_also_where_there_is_nothing_but_blanks(exe: fluid.Executor) -> None:
    """So the first steps of a training, whose networks say nothing yet, can be evaluated."""
    x = layers.data("x", [3], lod_level=1)
    label = layers.data("label", [1], dtype="int64", lod_level=1)
    decoded = layers.ctc_greedy_decoder(x, blank=2)
    distance, count = layers.edit_distance(decoded, label, normalized=False)
    without, _ = layers.edit_distance(decoded, label, normalized=False, ignored_tokens=[1])
    probabilities = np.zeros((3, 3), np.float32)
    probabilities[:, 2] = 1
    feed = {
        "x": fluid.create_lod_tensor(probabilities, [[1, 2]]),
        "label": fluid.create_lod_tensor(np.array([[0], [1], [0]]), [[1, 2]]),
    }
    tokens, *got = exe.run(feed=feed, fetch_list=[decoded, distance, count, without], return_numpy=False)
    assert (tokens.recursive_sequence_lengths(), np.asarray(tokens).tolist()) == ([[0, 0]], [[-1]])
    assert [np.asarray(value).ravel().tolist() for value in got] == [[1, 2], [2], [1, 1]]


def test_sequences_of_a_beam_that_has_other_ones_are_refused(exe: fluid.Executor) -> None:
    """Fluid takes the first rows, whichever sequences they belong to."""
    x, y = layers.data("x", [2]), layers.data("y", [1], lod_level=1)
    out = layers.sequence_expand(x, y)
    feed = {"x": np.ones((4, 2), np.float32), "y": fluid.create_lod_tensor(np.ones((3, 1), np.float32), [[1, 2]])}
    with pytest.raises(errors.InvalidArgument, match=r"input X: expected 2 sequences, as many as .* got 4"):
        exe.run(feed=feed, fetch_list=[out])


def test_a_pooling_window_may_be_larger_than_the_image(exe: fluid.Executor) -> None:
    """GoogLeNet's last one, at its own size of images."""
    x = layers.data("x", [3, 6, 6])
    out = layers.pool2d(x, 7, "avg", 7)
    assert out.shape == (-1, 3, 1, 1)
    image = np.arange(108, dtype=np.float32).reshape(1, 3, 6, 6)
    np.testing.assert_allclose(exe.run(feed={"x": image}, fetch_list=[out])[0], image.mean((2, 3), keepdims=True))


OF_INTEGERS = [operator.add, operator.sub, operator.mul, operator.pow, operator.floordiv, operator.mod]
OF_FRACTIONS = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.int64])
@pytest.mark.parametrize(
    ("dtype", "functions"), [("int64", OF_INTEGERS + COMPARISONS), ("float32", OF_FRACTIONS + COMPARISONS)]
)
def test_scalars_of_numpy_are_numbers_on_either_side(
    exe: fluid.Executor, kind: Any, dtype: str, functions: list[Any]
) -> None:
    x, two, value = fluid.data("x", [3], dtype), kind(2), np.array([4, 1, 2], dtype)
    fetches = [side for function in functions for side in (function(two, x), function(x, two))]
    number = value.dtype.type(2)
    expected = [side for function in functions for side in (function(number, value), function(value, number))]
    for result, wanted in zip(exe.run(feed={"x": value}, fetch_list=fetches), expected):
        np.testing.assert_array_equal(result, wanted)
        assert result.dtype == wanted.dtype


def test_arrays_and_complex_numbers_of_numpy_are_no_numbers() -> None:
    x = fluid.data("x", [2])
    for other in (np.ones(2), np.complex64(1j)):
        for combined in (lambda other=other: x + other, lambda other=other: other + x, lambda other=other: other < x):
            with pytest.raises(errors.TypeMismatch, match=r"'x'"):
                combined()


def test_integers_are_compared_with_fractions_as_numbers(exe: fluid.Executor) -> None:
    n, x = fluid.data("n", [3], "int64"), fluid.data("x", [3])
    feed = {"n": np.array([2, 2, 2**30 + 1]), "x": np.array([2.5, 2, 2**30], np.float32)}
    less, equal, greater = exe.run(feed=feed, fetch_list=[n < x, n == x, x < n])
    assert less.tolist() == [True, False, False]
    assert equal.tolist() == [False, True, False]
    assert greater.tolist() == [False, False, True]
    with pytest.raises(errors.TypeMismatch, match="'n' holds integers"):
        n < 2.5  # noqa: B015


def test_the_right_side_becomes_what_the_left_side_is(exe: fluid.Executor) -> None:
    dtypes = ("float32", "float64", "int32", "int64", "bool")
    of = {dtype: fluid.data(dtype, [2], dtype) for dtype in dtypes}
    feed = {dtype: np.array([1, 0] if dtype == "bool" else [3, 5], dtype) for dtype in dtypes}
    pairs = [(a, b) for a in dtypes[:4] for b in dtypes if not (a.startswith("int") and b.startswith("float"))]
    for (a, b), got in zip(pairs, exe.run(feed=feed, fetch_list=[of[a] - of[b] for a, b in pairs])):
        assert got.dtype == a
        np.testing.assert_array_equal(got, feed[a] - feed[b].astype(a))


def test_fractions_on_the_right_side_of_integers_are_not_cut() -> None:
    with pytest.raises(errors.TypeMismatch, match="expected dtype int64 as input X has, got float32"):
        fluid.data("n", [2], "int64") * fluid.data("x", [2])


def test_integers_of_two_widths_are_compared_as_the_wider_one(exe: fluid.Executor) -> None:
    narrow, wide = fluid.data("narrow", [1], "int32"), fluid.data("wide", [1], "int64")
    outs = exe.run(
        feed={"narrow": np.array([1], np.int32), "wide": np.array([2**32 + 1])},
        fetch_list=[narrow == wide, narrow < wide, wide > narrow],
    )
    assert [out.item() for out in outs] == [False, True, True]


def test_images_may_be_declared_as_of_no_size(exe: fluid.Executor) -> None:
    image = layers.data("image", [3, 0, 0])
    sized, scaled = layers.resize_bilinear(image, [5, 6]), layers.resize_nearest(image, scale=2.0)
    assert sized.shape == (-1, 3, 5, 6)
    assert scaled.shape == (-1, 3, -1, -1)
    shapes = [a.shape for a in exe.run(feed={"image": np.ones((1, 3, 4, 7), np.float32)}, fetch_list=[sized, scaled])]
    assert shapes == [(1, 3, 5, 6), (1, 3, 8, 14)]
    with pytest.raises(errors.InvalidArgument, match="not empty"):
        exe.run(feed={"image": np.ones((1, 3, 0, 7), np.float32)}, fetch_list=[sized])


def test_a_program_takes_what_persists_from_another_one(exe: fluid.Executor) -> None:
    trained, synchronized = fluid.Program(), fluid.Program()
    with fluid.program_guard(trained):
        w, copy = (layers.create_parameter([2], "float32", name=name) for name in ("w", "copy"))
        passing = layers.scale(w, 2.0)
    with fluid.program_guard(synchronized):
        layers.assign(w, copy)
        with pytest.raises(errors.NotFound, match=f"declare no variable '{passing.name}'"):
            layers.scale(passing, 2.0)
    exe.run(fluid.default_startup_program())
    exe.run(synchronized)
    values = [np.array(fluid.global_scope().find_var(name).get_tensor()).tolist() for name in ("w", "copy")]
    assert values[0] == values[1]
    assert synchronized.global_block().var("w").persistable


def test_a_single_variable_stands_for_a_list(exe: fluid.Executor) -> None:
    x = fluid.data("x", [2, 3])
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    for result in exe.run(feed={"x": value}, fetch_list=[layers.concat(x), layers.sums(x), layers.sum(x)]):
        np.testing.assert_array_equal(result, value)


@pytest.mark.parametrize("reduce", [layers.reduce_sum, layers.reduce_mean, layers.reduce_max, layers.reduce_prod])
def test_a_dimension_to_reduce_may_be_an_integer_of_numpy(reduce: Any) -> None:
    x = fluid.data("x", [None, 4, 6])
    assert reduce(x, dim=np.int64(1)).shape == (-1, 6)
    with pytest.raises(errors.TypeMismatch, match="dim has to consist of integers, got True"):
        reduce(x, dim=True)
