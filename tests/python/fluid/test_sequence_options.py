"""Options of layers over sequences that differ from their defaults, against their formulas in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers

Array = np.ndarray


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


LENGTHS = [3, 1, 2]
STARTS = [0, 3, 4, 6]
ROWS = np.random.default_rng(8).uniform(-1, 1, (6, 4)).astype(np.float32)


def _sequences(values: Array) -> list[Array]:
    return [values[begin:end] for begin, end in zip(STARTS, STARTS[1:])]


def _lstm(
    x: Array, weight: Array, bias: Array, peepholes: bool, reverse: bool, first: tuple[Array, Array]
) -> tuple[Array, Array]:
    """The hidden and cell states of a sequence; the gates are those of the candidate, input, forget and output."""
    size = weight.shape[0]
    (hidden, cell), states = first, {}
    for t in range(len(x))[:: -1 if reverse else 1]:
        gates = x[t] + hidden @ weight + bias[0, : 4 * size]
        c, i, f, o = (gates[k * size : (k + 1) * size] for k in range(4))
        wi, wf, wo = (bias[0, k * size : (k + 1) * size] if peepholes else 0 for k in (4, 5, 6))
        i, f = _sigmoid(i + wi * cell), _sigmoid(f + wf * cell)
        cell = f * cell + i * np.tanh(c)
        hidden = _sigmoid(o + wo * cell) * np.tanh(cell)
        states[t] = hidden, cell
    return tuple(np.stack([states[t][k] for t in range(len(x))]) for k in (0, 1))  # type: ignore[return-value]


@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_lstm(exe: fluid.Executor, peepholes: bool, reverse: bool) -> None:
    x = fluid.data("x", [None, 8], lod_level=1)
    h, c = (fluid.data(name, [None, 2]) for name in "hc")
    outs = layers.dynamic_lstm(
        x, 8, h_0=h, c_0=c, param_attr="w", bias_attr="b", use_peepholes=peepholes, is_reverse=reverse
    )
    exe.run(fluid.default_startup_program())
    random = np.random.default_rng(9)
    rows, first = random.uniform(-1, 1, (6, 8)).astype(np.float32), random.uniform(-1, 1, (2, 3, 2)).astype(np.float32)
    weight, bias = (np.array(fluid.global_scope().find_var(name).get_tensor()) for name in "wb")
    bias = random.uniform(-1, 1, bias.shape).astype(np.float32)
    fluid.global_scope().find_var("b").get_tensor().set(bias, fluid.CPUPlace())
    feed = {"x": fluid.create_lod_tensor(rows, [LENGTHS]), "h": first[0], "c": first[1]}
    got = exe.run(feed=feed, fetch_list=outs, return_numpy=False)
    parts = [
        _lstm(s, weight, bias, peepholes, reverse, (first[0, k], first[1, k])) for k, s in enumerate(_sequences(rows))
    ]
    for tensor, want in zip(got, zip(*parts)):
        np.testing.assert_allclose(np.array(tensor), np.concatenate(want), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_gru(exe: fluid.Executor, original: bool, reverse: bool) -> None:
    x = fluid.data("x", [None, 6], lod_level=1)
    out = layers.dynamic_gru(
        x,
        2,
        param_attr="w",
        bias_attr="b",
        is_reverse=reverse,
        origin_mode=original,
        gate_activation="sigmoid",
        candidate_activation="relu",
    )
    exe.run(fluid.default_startup_program())
    rows = np.random.default_rng(9).uniform(-1, 1, (6, 6)).astype(np.float32)
    weight, bias = (np.array(fluid.global_scope().find_var(name).get_tensor()) for name in "wb")
    got = exe.run(feed={"x": fluid.create_lod_tensor(rows, [LENGTHS])}, fetch_list=[out], return_numpy=False)[0]
    # [2, 6] in memory: the weights of the two gates, then those of the candidate.
    gates, candidate = weight.ravel()[:8].reshape(2, 4), weight.ravel()[8:].reshape(2, 2)
    want = []
    for sequence in _sequences(rows):
        hidden, states = np.zeros(2, np.float32), {}
        for t in range(len(sequence))[:: -1 if reverse else 1]:
            row = sequence[t] + bias[0]
            u, r = np.split(_sigmoid(row[:4] + hidden @ gates), 2)
            c = (row[4:] + (r * hidden) @ candidate).clip(0)
            hidden = u * hidden + (1 - u) * c if original else (1 - u) * hidden + u * c
            states[t] = hidden
        want += [states[t] for t in range(len(sequence))]
    np.testing.assert_allclose(np.array(got), want, rtol=1e-4, atol=1e-5)


def _padded(rows: Array, length: int, value: float) -> Array:
    return np.stack([np.concatenate([s, np.full((length - len(s), 4), value, np.float32)]) for s in _sequences(rows)])


SEQUENCES: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "pad_to": (
        lambda x: layers.sequence_pad(x, layers.assign(np.array([9.0], np.float32)), maxlen=5)[0],
        lambda x: _padded(x, 5, 9),
    ),
    "slice": (
        lambda x: layers.sequence_slice(
            x, layers.assign(np.array([[1], [0], [1]], np.int64)), layers.assign(np.array([[2], [1], [1]], np.int64))
        ),
        lambda x: x[[1, 2, 3, 5]],
    ),
    "first_and_last": (
        lambda x: layers.concat([layers.sequence_first_step(x), layers.sequence_last_step(x)], axis=1),
        lambda x: np.concatenate([x[[0, 3, 4]], x[[2, 3, 5]]], 1),
    ),
    "pool_sqrt": (
        lambda x: layers.sequence_pool(x, "sqrt"),
        lambda x: np.stack([s.sum(0) / np.sqrt(len(s)) for s in _sequences(x)]),
    ),
    "softmax": (
        lambda x: layers.sequence_softmax(layers.slice(x, [1], [0], [1])),
        lambda x: np.concatenate([_softmax(s[:, :1], 0) for s in _sequences(x)]),
    ),
    "reverse": (layers.sequence_reverse, lambda x: np.concatenate([s[::-1] for s in _sequences(x)])),
    "reshape": (lambda x: layers.sequence_reshape(x, 2), lambda x: x.reshape(12, 2)),
    "enumerate": (
        lambda x: layers.sequence_enumerate(
            layers.cast(layers.slice(x, [1], [0], [1]) > 0.0, "int64"), win_size=2, pad_value=7
        ),
        lambda x: np.concatenate(
            [np.stack([s[:, 0] > 0, np.append(s[1:, 0] > 0, 7)], 1).astype(np.int64) for s in _sequences(x)]
        ),
    ),
    "conv_from_the_row_before": (
        lambda x: layers.sequence_conv(
            x,
            1,
            3,
            padding_start=-2,
            param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0)),
            bias_attr=False,
        ),
        lambda x: np.concatenate(
            [[[s[max(t - 2, 0) : t + 1].sum()] for t in range(len(s))] for s in _sequences(x)]
        ).astype(np.float32),
    ),
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_of_sequences(exe: fluid.Executor, case: str) -> None:
    layer, formula = SEQUENCES[case]
    out = layer(fluid.data("x", [None, 4], lod_level=1))
    exe.run(fluid.default_startup_program())
    feed = {"x": fluid.create_lod_tensor(ROWS, [LENGTHS])}
    got = np.array(exe.run(feed=feed, fetch_list=[out], return_numpy=False)[0])
    np.testing.assert_allclose(got, formula(ROWS), rtol=1e-5, atol=1e-6)
