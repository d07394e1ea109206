"""Recurrent layers: that they train, that steps and sequences agree, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

RNG = np.random.default_rng(53)
LENGTHS = [3, 1, 4]


def ragged(width: int) -> fluid.LoDTensor:
    rows = RNG.uniform(-1, 1, (sum(LENGTHS), width)).astype(np.float32)
    return fluid.create_lod_tensor(rows, [LENGTHS], fluid.CPUPlace())


@pytest.mark.parametrize("layer", ["lstm", "gru"])
def test_they_learn_the_sums_of_ragged_sequences(layer: str, exe: fluid.Executor) -> None:
    fluid.default_main_program().random_seed = fluid.default_startup_program().random_seed = 3
    x = layers.data("x", [1], lod_level=1)
    y = layers.data("y", [1])
    if layer == "lstm":
        states, _ = layers.dynamic_lstm(layers.fc(x, 32), 32)
    else:
        states = layers.dynamic_gru(layers.fc(x, 24), 8)
    loss = layers.mean(layers.square_error_cost(layers.fc(layers.sequence_last_step(states), 1), y))
    fluid.optimizer.Adam(0.02).minimize(loss)
    exe.run(fluid.default_startup_program())
    feed = {"x": ragged(1)}
    ends = np.cumsum(LENGTHS)
    feed["y"] = np.add.reduceat(np.array(feed["x"]), ends - LENGTHS).astype(np.float32)
    losses = [float(exe.run(feed=feed, fetch_list=[loss])[0][0]) for _ in range(60)]
    assert losses[-1] < losses[0] / 10


def test_a_gru_is_its_steps(exe: fluid.Executor) -> None:
    steps, width = 3, 4
    rows = RNG.uniform(-1, 1, (steps, 3 * width)).astype(np.float32)
    x = layers.data("x", [3 * width], lod_level=1)
    whole = layers.dynamic_gru(x, width, param_attr="w", bias_attr="b")
    words = layers.data("words", [steps, 1, 3 * width], append_batch_size=False)
    rnn = layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(words)
        before = rnn.memory(shape=[-1, width], batch_ref=word)
        state, _, _ = layers.gru_unit(word, before, 3 * width, param_attr="w", bias_attr="b")
        rnn.update_memory(before, state)
        rnn.step_output(state)
    one_by_one = rnn()
    exe.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(rows, [[steps]], fluid.CPUPlace()), "words": rows[:, None]}
    got = [np.array(tensor) for tensor in exe.run(feed=feed, fetch_list=[whole, one_by_one], return_numpy=False)]
    np.testing.assert_allclose(got[0], got[1][:, 0], rtol=1e-5, atol=1e-6)


def test_a_step_of_an_lstm(exe: fluid.Executor) -> None:
    x, h, c = (layers.data(name, [width]) for name, width in (("x", 3), ("h", 2), ("c", 2)))
    hidden, cell = layers.lstm_unit(x, h, c, forget_bias=1.0)
    assert hidden.shape == cell.shape == (-1, 2)
    exe.run(fluid.default_startup_program())
    feed = {name: np.zeros((5, width), np.float32) for name, width in (("x", 3), ("h", 2), ("c", 2))}
    feed["c"] += 1
    got = exe.run(feed=feed, fetch_list=[hidden, cell])
    kept = 1 / (1 + np.exp(-1.0))
    np.testing.assert_allclose(got[1], np.full((5, 2), kept), rtol=1e-6)
    np.testing.assert_allclose(got[0], np.full((5, 2), 0.5 * np.tanh(kept)), rtol=1e-6)


def test_single_steps_have_no_sequences() -> None:
    # Beam searches of two levels expand the states by their scores.
    step, state = layers.data("step", [6], lod_level=2), layers.data("state", [2])
    hidden, _, _ = layers.gru_unit(step, state, 6)
    of_lstm, cell = layers.lstm_unit(step, state, state)
    assert hidden.lod_level == of_lstm.lod_level == cell.lod_level == 0
    scores = layers.data("scores", [1], lod_level=2)
    assert layers.sequence_expand(hidden, scores).lod_level == 0


def test_initial_states_have_a_row_for_each_sequence(exe: fluid.Executor) -> None:
    x = layers.data("x", [12], lod_level=1)
    first = layers.data("first", [4])
    states = layers.dynamic_gru(x, 4, h_0=first)
    exe.run(fluid.default_startup_program())
    feed: dict[str, Any] = {"x": ragged(12), "first": np.zeros((2, 4), np.float32)}
    with pytest.raises(ValueError, match="3 rows, one for each sequence"):
        exe.run(feed=feed, fetch_list=[states])
    feed["first"] = np.zeros((3, 4), np.float32)
    (got,) = exe.run(feed=feed, fetch_list=[states], return_numpy=False)
    assert got.lod() == [[0, 3, 4, 8]]


def test_what_is_not_a_sequence_is_refused(exe: fluid.Executor) -> None:
    states, _ = layers.dynamic_lstm(layers.data("x", [8]), 8)
    exe.run(fluid.default_startup_program())
    with pytest.raises(ValueError, match="LoD"):
        exe.run(feed={"x": np.zeros((2, 8), np.float32)}, fetch_list=[states])


def test_misuse_is_refused() -> None:
    x = layers.data("x", [8], lod_level=1)
    with pytest.raises(errors.InvalidArgument, match="4 times"):
        layers.dynamic_lstm(x, 6)
    with pytest.raises(errors.InvalidArgument, match="given together"):
        layers.dynamic_lstm(x, 8, h_0=layers.data("h", [2]))
    with pytest.raises(errors.InvalidArgument, match="bias"):
        layers.dynamic_lstm(x, 8, bias_attr=False)
    with pytest.raises(errors.InvalidArgument, match="selu"):
        layers.gru_unit(layers.data("y", [6]), layers.data("h2", [2]), 6, activation="selu")
