"""Networks of several layers, and the estimate of memory."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import contrib, layers
from headrace.fluid.contrib.layers import basic_gru, basic_lstm

N, STEPS, WIDTH, HIDDEN, LAYERS = 2, 3, 4, 5, 2
RNG = np.random.default_rng(21)
X = RNG.normal(size=(N, STEPS, WIDTH)).astype(np.float32)


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor()).astype(float)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_an_lstm_of_layers_and_directions(exe: fluid.Executor, bidirectional: bool, batch_first: bool) -> None:
    directions = 2 if bidirectional else 1
    x = fluid.data("x", [None, None, WIDTH])
    h, c = (fluid.data(name, [LAYERS * directions, None, HIDDEN]) for name in "hc")
    lengths = fluid.data("lengths", [None], "int32")
    outs = basic_lstm(
        x,
        h,
        c,
        HIDDEN,
        LAYERS,
        lengths,
        bidirectional=bidirectional,
        batch_first=batch_first,
        param_attr=fluid.ParamAttr("w"),
        bias_attr=fluid.ParamAttr("b"),
    )
    exe.run(fluid.default_startup_program())
    h0, c0 = RNG.normal(size=(2, LAYERS * directions, N, HIDDEN)).astype(np.float32)
    until = np.array([2, 3])
    feed = {"x": X if batch_first else X.swapaxes(0, 1), "h": h0, "c": c0, "lengths": until.astype(np.int32)}
    got, last_h, last_c = exe.run(feed=feed, fetch_list=list(outs))
    parts = []
    for direction in range(directions):
        short = ("fw", "bw")[direction]
        now = X.astype(float)
        for layer in range(LAYERS):
            w, b = value(f"w_{short}_w_{layer}"), value(f"b_{short}_b_{layer}")
            place = layer * directions + direction
            hidden, cell = h0[place].astype(float), c0[place].astype(float)
            outputs = np.zeros((N, STEPS, HIDDEN))
            for t in range(STEPS)[:: -1 if direction else 1]:
                i, j, f, o = np.split(np.concatenate([now[:, t], hidden], 1) @ w + b, 4, 1)
                new_cell = cell * sigmoid(f + 1) + sigmoid(i) * np.tanh(j)
                going = (t < until)[:, None]
                hidden = np.where(going, np.tanh(new_cell) * sigmoid(o), hidden)
                cell = np.where(going, new_cell, cell)
                outputs[:, t] = hidden  # in the padded steps, too
            now = outputs
            np.testing.assert_allclose(last_h[place], hidden, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(last_c[place], cell, rtol=1e-4, atol=1e-6)
        parts.append(now)
    want = np.concatenate(parts, 2)
    np.testing.assert_allclose(got if batch_first else got.swapaxes(0, 1), want, rtol=1e-4, atol=1e-6)


def test_one_layer_of_one_direction_has_the_names_that_are_given() -> None:
    x = fluid.data("x", [None, STEPS, WIDTH])
    basic_lstm(x, None, None, HIDDEN, param_attr=fluid.ParamAttr("w"), bias_attr=fluid.ParamAttr("b"))
    assert {p.name for p in fluid.default_main_program().all_parameters()} == {"w", "b"}


def test_a_gru_takes_more_steps_than_layers_data_declares(exe: fluid.Executor) -> None:
    x = fluid.layers.data("x", [3, WIDTH])
    length = fluid.data("n", [None], "int32")
    out, last = basic_gru(x, None, HIDDEN, sequence_length=length)
    exe.run(fluid.default_startup_program())
    value = np.ones((2, 5, WIDTH), np.float32)
    got, state = exe.run(feed={"x": value, "n": np.array([2, 5], np.int32)}, fetch_list=[out, last])
    assert got.shape == (2, 5, HIDDEN)
    np.testing.assert_array_equal(got[0, 1:], np.tile(got[0, 1], (4, 1)))
    np.testing.assert_array_equal(got[:, -1], state[0])
    assert (got[1, 1:] != got[1, :-1]).all()


def test_a_gru_is_trained_and_drops_out(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, STEPS, WIDTH])
    out, last = basic_gru(x, None, HIDDEN, 2, dropout_prob=0.5, bidirectional=True)
    assert out.shape == (-1, STEPS, 2 * HIDDEN)
    assert len(fluid.default_main_program().all_parameters()) == 2 * 2 * 4
    loss = layers.reduce_mean(layers.square(layers.reduce_sum(last, [0, 2]) - 3.0))
    test = fluid.default_main_program().clone(for_test=True)
    fluid.optimizer.Adam(0.02).minimize(loss)
    exe.run(fluid.default_startup_program())
    losses = [exe.run(feed={"x": X}, fetch_list=[loss])[0].item() for _ in range(60)]
    assert losses[-1] < losses[0] / 4
    once, again = (exe.run(test, feed={"x": X}, fetch_list=[out])[0] for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_arguments_are_checked() -> None:
    x = fluid.data("x", [None, STEPS, WIDTH])
    with pytest.raises(errors.InvalidArgument, match="num_layers"):
        basic_gru(x, None, HIDDEN, 0)
    with pytest.raises(errors.InvalidArgument, match="together"):
        basic_lstm(x, fluid.data("h", [1, None, HIDDEN]), None, HIDDEN)


def test_the_memory_of_a_program() -> None:
    x = fluid.data("x", [None, 256])
    layers.fc(x, 512, bias_attr=False)
    least, most, unit = contrib.memory_usage(fluid.default_main_program(), batch_size=128)
    assert (least, most, unit) == (256 * 512 * 4 / 2**10, (256 * 512 + 128 * (256 + 512)) * 4 / 2**10, "KB")
    assert contrib.memory_usage(fluid.Program(), 1) == (0, 0, "B")
    with pytest.raises(errors.InvalidArgument, match="batch_size"):
        contrib.memory_usage(fluid.default_main_program(), 0)
    with pytest.raises(errors.TypeMismatch, match="Program"):
        contrib.memory_usage(3, 1)  # type: ignore[arg-type]
