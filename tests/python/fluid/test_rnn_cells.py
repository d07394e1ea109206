"""Cells of recurrent networks, networks of them, and decoders, against the same in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.framework import Variable

N, STEPS, WIDTH, HIDDEN = 2, 4, 3, 5
RNG = np.random.default_rng(11)
X = RNG.normal(size=(N, STEPS, WIDTH)).astype(np.float32)
LENGTHS = np.array([2, 4])


def value(name: str) -> np.ndarray:
    return np.array(fluid.global_scope().find_var(name).get_tensor()).astype(float)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gru(x: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    r, u = np.split(sigmoid(np.concatenate([x, h], 1) @ value("w_gate") + value("b_gate")), 2, 1)
    c = np.tanh(np.concatenate([x, r * h], 1) @ value("w_candidate") + value("b_candidate"))
    h = u * h + (1 - u) * c
    return h, [h]


def lstm(x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    i, j, f, o = np.split(np.concatenate([x, h], 1) @ value("w") + value("b"), 4, 1)
    c = c * sigmoid(f + 1.0) + sigmoid(i) * np.tanh(j)
    h = np.tanh(c) * sigmoid(o)
    return h, [h, c]


def reference(cell: Any, x: np.ndarray, states: list[np.ndarray], lengths: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    outputs = []
    for t in range(x.shape[1]):
        out, after = cell(x[:, t], *states)
        outputs.append(out)
        going = (t < lengths)[:, None]
        states = [np.where(going, new, old) for new, old in zip(after, states)]
    return np.stack(outputs, 1), states


def made(kind: str) -> tuple[layers.RNNCell, Any, int]:
    attrs = fluid.ParamAttr("w"), fluid.ParamAttr("b", fluid.initializer.Uniform(-0.5, 0.5))
    if kind == "gru":
        return layers.GRUCell(HIDDEN, *attrs), gru, 1
    return layers.LSTMCell(HIDDEN, *attrs), lstm, 2


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("steps", [STEPS, None, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_a_network_of_cells(exe: fluid.Executor, kind: str, steps: int | None, masked: bool) -> None:
    cell, step, count = made(kind)
    exact = steps in (STEPS, None)
    x = fluid.data("x", [None, steps, WIDTH]) if exact else layers.data("x", [steps, WIDTH])
    lengths = fluid.data("lengths", [None], "int64")
    x.stop_gradient = False
    outputs, states = layers.rnn(cell, x, sequence_length=lengths if masked else None)
    flat = [states] if kind == "gru" else list(states)
    assert outputs.shape == (-1, -1 if steps is None else steps, HIDDEN)
    loss = layers.reduce_sum(outputs * outputs)
    fluid.backward.append_backward(loss)
    exe.run(fluid.default_startup_program())
    got, loss_value, gradient, *after = exe.run(
        feed={"x": X, "lengths": LENGTHS}, fetch_list=[outputs, loss, "x@GRAD", *flat]
    )
    zeros = [np.zeros((N, HIDDEN))] * count
    until = LENGTHS if masked else np.full(N, STEPS)
    want, want_states = reference(step, X.astype(float), zeros, until)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    for a, b in zip(after, want_states):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    for place in ((0, 0, 1), (1, 3, 2), (0, 1, 0)):
        moved = X.astype(float)
        moved[place] += 1e-5
        slope = ((reference(step, moved, zeros, until)[0] ** 2).sum() - (want**2).sum()) / 1e-5
        assert gradient[place] == pytest.approx(slope, rel=1e-2, abs=1e-3)
    assert loss_value.item() == pytest.approx((want**2).sum(), rel=1e-4)


@pytest.mark.parametrize("time_major", [False, True])
def test_backwards_and_with_initial_states(exe: fluid.Executor, time_major: bool) -> None:
    cell, step, _ = made("lstm")
    x = fluid.data("x", [None, None, WIDTH])
    h, c = fluid.data("h", [None, HIDDEN]), fluid.data("c", [None, HIDDEN])
    outputs, states = layers.rnn(cell, x, [h, c], time_major=time_major, is_reverse=True)
    exe.run(fluid.default_startup_program())
    h0, c0 = RNG.normal(size=(2, N, HIDDEN)).astype(np.float32)
    feed = {"x": X.swapaxes(0, 1) if time_major else X, "h": h0, "c": c0}
    got, *after = exe.run(feed=feed, fetch_list=[outputs, *states])
    want, want_states = reference(step, X[:, ::-1].astype(float), [h0, c0], np.full(N, STEPS))
    want = want[:, ::-1]
    np.testing.assert_allclose(got.swapaxes(0, 1) if time_major else got, want, rtol=1e-4, atol=1e-6)
    for a, b in zip(after, want_states):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


class Counting(layers.RNNCell):
    """Adds up, in a dict."""

    def call(self, inputs: Any, states: Any, by: float = 1.0) -> tuple[Any, Any]:
        total = states["total"] + inputs["x"] * by
        return {"twice": total * 2.0, "now": inputs["y"]}, {"total": total, "count": states["count"] + 1}

    @property
    def state_shape(self) -> Any:
        return {"total": [WIDTH], "count": [-1, 1]}

    @property
    def state_dtype(self) -> Any:
        return {"total": "float32", "count": "int64"}


def test_cells_of_ones_own_take_structures(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, STEPS, WIDTH]), fluid.data("y", [None, STEPS, 1])
    outputs, states = layers.rnn(Counting(), {"x": x, "y": y}, by=3.0)
    got = exe.run(
        feed={"x": X, "y": X[:, :, :1]}, fetch_list=[outputs["twice"], outputs["now"], states["total"], states["count"]]
    )
    np.testing.assert_allclose(got[0], 6 * X.cumsum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[1], X[:, :, :1])
    np.testing.assert_allclose(got[2], 3 * X.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[3], [[STEPS]] * N)


def test_more_steps_than_are_declared_are_repeated_for_each_beam(exe: fluid.Executor) -> None:
    x = layers.data("x", [1, WIDTH])
    tiled = layers.BeamSearchDecoder.tile_beam_merge_with_batch(layers.scale(x, 2.0), 3)
    assert tiled.shape[-1] == WIDTH
    (got,) = exe.run(feed={"x": X}, fetch_list=[tiled])
    np.testing.assert_array_equal(got, 2 * X.repeat(3, 0))


def test_what_does_not_fit_is_refused() -> None:
    x = fluid.data("x", [None, STEPS, WIDTH])
    with pytest.raises(errors.TypeMismatch, match="RNNCell"):
        layers.rnn(3, x)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="hidden_size"):
        layers.GRUCell(0)
    with pytest.raises(errors.InvalidArgument, match="hidden, cell"):
        layers.rnn(layers.LSTMCell(2), x, fluid.data("h", [None, 2]))
    with pytest.raises(errors.InvalidArgument, match="structures of variables differ"):
        layers.rnn(
            Counting(), {"x": x, "y": x}, dict.fromkeys(("total", "count", "more"), fluid.data("s", [None, WIDTH]))
        )
    with pytest.raises(NotImplementedError, match="state_shape"):
        layers.RNNCell().get_initial_states(x)
    with pytest.raises(NotImplementedError, match="call"):
        layers.RNNCell()(x, x)
    with pytest.raises(errors.TypeMismatch, match="Decoder"):
        layers.dynamic_decode(layers.GRUCell(2))  # type: ignore[arg-type]


def test_arrays_become_tensors(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [4, 3])
    x.stop_gradient = y.stop_gradient = False
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    layers.array_write(y, layers.fill_constant([1], "int64", 1), array)
    same = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    layers.array_write(x * 2.0, layers.fill_constant([1], "int64", 1), same)
    joined, extents = layers.tensor_array_to_tensor(array, 0)
    stacked, ones = layers.tensor_array_to_tensor(same, 1, use_stack=True)
    a, b = RNG.normal(size=(2, 3)).astype(np.float32), RNG.normal(size=(4, 3)).astype(np.float32)
    weights = layers.assign(np.arange(18, dtype=np.float32).reshape(6, 3))
    fluid.backward.append_backward(layers.reduce_sum(joined * weights) + layers.reduce_sum(stacked))
    got = exe.run(feed={"x": a, "y": b}, fetch_list=[joined, extents, stacked, ones, "x@GRAD", "y@GRAD"])
    np.testing.assert_array_equal(got[0], np.concatenate([a, b]))
    np.testing.assert_array_equal(got[1], [2, 4])
    np.testing.assert_array_equal(got[2], np.stack([a, 2 * a], 1))
    np.testing.assert_array_equal(got[3], [1, 1])
    np.testing.assert_array_equal(got[4], np.arange(18).reshape(6, 3)[:2] + 3)
    np.testing.assert_array_equal(got[5], np.arange(18).reshape(6, 3)[2:])


@pytest.mark.parametrize(
    ("place", "axis", "error", "part"),
    [(2, 0, errors.FailedPrecondition, "at 1"), (1, 1, errors.InvalidArgument, "element 1")],
)
def test_arrays_that_do_not_fit_are_refused(
    exe: fluid.Executor, place: int, axis: int, error: type[Exception], part: str
) -> None:
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [4, 3])
    array = layers.array_write(x, layers.fill_constant([1], "int64", 0))
    layers.array_write(y, layers.fill_constant([1], "int64", place), array)
    out, _ = layers.tensor_array_to_tensor(array, axis)
    with pytest.raises(error, match=part):
        exe.run(feed={"x": np.zeros((2, 3), np.float32), "y": np.zeros((4, 3), np.float32)}, fetch_list=[out])


TOKENS, BEAMS, START, END = 7, 3, 0, 1


def best_beams(h: np.ndarray, last: int) -> tuple[list[list[int]], list[float]]:
    """A beam search for one sequence, with lists."""
    beams = [([], 0.0, h, START, False)]
    for _ in range(last + 1):
        grown = []
        for place, (tokens, score, state, before, ended) in enumerate(beams):
            if ended:
                grown.append((score, place * TOKENS + END, ([*tokens, END], score, state, END, True)))
                continue
            out, (after,) = gru(value("table")[[before]], state)
            logits = (out @ value("out.w") + value("out.b"))[0]
            logs = logits - np.log(np.exp(logits).sum())
            for token in range(TOKENS):
                beam = ([*tokens, token], score + logs[token], after, token, token == END)
                grown.append((beam[1], place * TOKENS + token, beam))
        grown.sort(key=lambda item: (-item[0], item[1]))
        beams = [item[2] for item in grown[:BEAMS]]
        if all(beam[4] for beam in beams):
            break
    return [beam[0] for beam in beams], [beam[1] for beam in beams]


@pytest.mark.parametrize("time_major", [False, True])
def test_beam_search(exe: fluid.Executor, time_major: bool) -> None:
    cell, _, _ = made("gru")
    init = fluid.data("init", [None, HIDDEN])
    # Large weights, so that some beams end before others.
    large = fluid.initializer.Normal(0.0, 1.5)
    given = []

    def logits(x: Variable) -> Variable:
        given.append(x.shape)
        return layers.fc(x, TOKENS, 2, param_attr=fluid.ParamAttr("out.w", large), bias_attr="out.b")

    decoder = layers.BeamSearchDecoder(
        cell,
        START,
        END,
        BEAMS,
        embedding_fn=lambda ids: fluid.embedding(ids, [TOKENS, WIDTH], param_attr=fluid.ParamAttr("table", large)),
        output_fn=logits,
    )
    ids, states, lengths = layers.dynamic_decode(
        decoder, init, max_step_num=6, output_time_major=time_major, return_length=True
    )
    assert given == [(-1, BEAMS, HIDDEN)]
    exe.run(fluid.default_startup_program())
    h = RNG.normal(size=(4, HIDDEN)).astype(np.float32)
    got, scores, ended_at = exe.run(feed={"init": h}, fetch_list=[ids, states.log_probs, lengths])
    got = got.transpose(1, 0, 2) if time_major else got
    assert got.shape[0] == 4
    assert got.shape[2] == BEAMS
    lengths_seen = set()
    for n in range(4):
        tokens, want_scores = best_beams(h[[n]].astype(float), 6)
        for beam in range(BEAMS):
            mine = list(got[n, :, beam])
            length = tokens[beam].index(END) + 1 if END in tokens[beam] else 7
            assert mine[:length] == tokens[beam][:length]
            assert set(mine[length:]) <= {END}
            assert ended_at[n, beam] == length
            lengths_seen.add(length)
        np.testing.assert_allclose(scores[n], want_scores, rtol=1e-4)
    assert len(lengths_seen) > 1


class CountDown(layers.Decoder):
    """Counts each number down to 0."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        return inits, {"sum": layers.zeros_like(inits)}, inits <= 0.0

    def step(self, time: Variable, inputs: Any, states: Any, by: float = 1.0) -> tuple[Any, Any, Any, Variable]:
        after = inputs - by
        return [after, after + layers.cast(time, "float32")], {"sum": states["sum"] + inputs}, after, after <= 0.0


@pytest.mark.parametrize("impute", [False, True])
def test_a_decoder_of_ones_own(exe: fluid.Executor, impute: bool) -> None:
    x = fluid.data("x", [None])
    x.stop_gradient = False
    outputs, states, lengths = layers.dynamic_decode(CountDown(), x, impute_finished=impute, return_length=True)
    fluid.backward.append_backward(layers.reduce_sum(states["sum"]))
    fetch = [*outputs, states["sum"], lengths, "x@GRAD"]
    got = exe.run(feed={"x": np.array([3, 1, 2], np.float32)}, fetch_list=fetch)
    np.testing.assert_array_equal(got[0], [[2, 1, 0], [0, -1, -2], [1, 0, -1]])
    np.testing.assert_array_equal(got[1], got[0] + [0, 1, 2])
    np.testing.assert_array_equal(got[2], [6, 1, 3] if impute else [6, 0, 3])
    np.testing.assert_array_equal(got[3], [3, 1, 2])
    np.testing.assert_array_equal(got[4], [3, 1, 2] if impute else [3, 3, 3])


def test_the_number_of_steps_is_bounded(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None])
    outputs, _ = layers.dynamic_decode(CountDown(), x, max_step_num=1, by=0.5)
    (got,) = exe.run(feed={"x": np.array([3, 1], np.float32)}, fetch_list=[outputs[0]])
    np.testing.assert_array_equal(got, [[2.5, 2.0], [0.5, 0.0]])


class Shift(layers.Decoder):
    """Each number is the sum of the two before it. What is read next comes from the states as they were."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        last, before = inits
        return before, [last, before, layers.cast(last, "int64")], last < 0.0

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        last, before, _ = states
        return [last + before, inputs], [last + before, last, time], last, last < 0.0


def test_what_a_step_reads_may_change_places(exe: fluid.Executor) -> None:
    inits = fluid.data("one", [1]), fluid.data("zero", [1])
    for variable in inits:
        variable.stop_gradient = False
    outputs, states = layers.dynamic_decode(Shift(), inits, max_step_num=5)
    fluid.backward.append_backward(layers.reduce_sum(outputs[0][0, -1:]))
    feed = {"one": np.ones(1, np.float32), "zero": np.zeros(1, np.float32)}
    sums, read, after, time, *gradients = exe.run(
        feed=feed, fetch_list=[*outputs, *states[1:], "one@GRAD", "zero@GRAD"]
    )
    np.testing.assert_array_equal(sums, [[1, 2, 3, 5, 8, 13]])
    np.testing.assert_array_equal(read, [[0, 1, 1, 2, 3, 5]])
    assert [after.item(), time.item()] == [8, 5]
    assert [gradient.item() for gradient in gradients] == [13, 8]


class CountUp(layers.Decoder):
    """Counts from 0 to what each sequence is given."""

    def initialize(self, inits: Any) -> tuple[Any, Any, Variable]:
        states = [layers.zeros_like(layers.cast(inits, dtype)) for dtype in ("float64", "int64", "int32")]
        return inits, [*states, layers.cast(states[1], "bool")], inits <= 0.0

    def step(self, time: Variable, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any, Any, Variable]:
        after = [state + 1 for state in states[:3]]
        last = layers.equal(after[1], layers.cast(inputs, "int64"))
        return after[0], [*after, last], inputs, last


def test_states_of_any_dtype_are_kept_once_their_sequences_are_finished(exe: fluid.Executor) -> None:
    _, states = layers.dynamic_decode(CountUp(), fluid.data("x", [None]), impute_finished=True)
    got = exe.run(feed={"x": np.array([3, 1, 2], np.float32)}, fetch_list=states)
    assert [str(value.dtype) for value in got] == ["float64", "int64", "int32", "bool"]
    np.testing.assert_array_equal(got, [[3, 1, 2]] * 3 + [[1, 1, 1]])
