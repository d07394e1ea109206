"""Operators that Fluid's passes make of several: fc, fused_elemwise_activation, recurrent ones with their product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_recurrent_ops import ACTIVATIONS, LENGTHS, D, gru_step, lstm, numbers, sequences

import headrace.fluid as fluid
from headrace.testing import OpTest

ROWS, M = sum(LENGTHS), 4


@pytest.mark.parametrize("activation", ["", "relu"])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5)])
def test_fc(bias: tuple[int, ...] | None, activation: str) -> None:
    x, w = numbers(3, 2, 2), numbers(4, 5)
    inputs: dict[str, Any] = {"Input": (x, [[1, 2]]), "W": w}
    out = x.reshape(3, 4) @ w
    if bias is not None:
        inputs["Bias"] = numbers(*bias)
        out = out + inputs["Bias"].reshape(5)
    if activation:
        out = np.maximum(out, 0)
    test = OpTest("fc", inputs, {"activation_type": activation}, {"Out": (out, [[1, 2]])}, known=["W", "Bias"])
    test.check_outputs()


def test_fc_of_more_dimensions_and_what_it_refuses() -> None:
    x, w = numbers(2, 3, 4), numbers(4, 5)
    OpTest("fc", {"Input": x, "W": w}, {"in_num_col_dims": 2}, {"Out": x @ w}, known=["Input", "W"]).check_outputs()
    OpTest("fc", {"Input": x, "W": w}, {}, {"Out": None}).check_refused(ValueError, "input W", "[12, -1]")
    OpTest("fc", {"Input": x, "W": w}, {"in_num_col_dims": 3}).check_refused(ValueError, "in_num_col_dims")
    OpTest("fc", {"Input": x, "W": w}, {"activation_type": "tanh"}).check_refused(ValueError, "activation_type")


UNARY: dict[str, Any] = {"scale": lambda x: 0.5 * x, "relu": lambda x: np.maximum(x, 0)}
BINARY: dict[str, Any] = {"elementwise_add": np.add, "elementwise_mul": np.multiply}
FUNCTORS = [pair for b in BINARY for u in UNARY for pair in ([u, b], [b, u])]


@pytest.mark.parametrize("functors", FUNCTORS, ids=str)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 4, 2), -1), ((4,), 1), ((2,), -1), ((3, 1), 0), ((1,), -1), ((3, 1, 2), -1)], ids=str
)
def test_fused_elemwise_activation(shape: tuple[int, ...], axis: int, swapped: bool, functors: list[str]) -> None:
    large, small = numbers(3, 4, 2), numbers(*shape)
    aligned = small.reshape({(4,): (1, 4, 1), (3, 1): (3, 1, 1)}.get(shape, shape))
    x, y = (small, large) if swapped else (large, small)
    wide_x, wide_y = (aligned, large) if swapped else (large, aligned)
    if functors[0] in UNARY:
        inner = BINARY[functors[1]](wide_x, wide_y)
        out = UNARY[functors[0]](inner)
    else:
        inner = UNARY[functors[1]](y)
        out = BINARY[functors[0]](wide_x, UNARY[functors[1]](wide_y))
    attrs = {"functor_list": functors, "axis": axis, "scale": 0.5, "save_intermediate_out": True}
    test = OpTest("fused_elemwise_activation", {"X": x, "Y": y}, attrs, {"Out": out, "IntermediateOut": inner})
    test.check_outputs()
    test.check_gradients(["X", "Y"], ["Out"], tolerance=1e-5)


def test_only_the_run_may_know_that_fused_elemwise_activation_broadcasts_x() -> None:
    # As declared, X@GRAD may have the memory of Out@GRAD; fed, it is smaller.
    program = fluid.Program()
    with fluid.program_guard(program, fluid.Program()):
        x, y = (fluid.layers.data(name, [4], dtype="float64", stop_gradient=False) for name in "xy")
        inner = fluid.layers.scale(x, 2.0)
        out = program.global_block().create_var("out")
        attrs = {"functor_list": ["elementwise_mul", "scale"], "scale": 0.5}
        program.global_block().append_op("fused_elemwise_activation", {"X": inner, "Y": y}, {"Out": out}, attrs)
        gradients = fluid.gradients(fluid.layers.reduce_sum(fluid.layers.square(out)), [x, y])
    feed = {"x": numbers(1, 4), "y": numbers(3, 4)}
    of_x, of_y = fluid.Executor().run(program, feed, gradients, scope=fluid.Scope())
    np.testing.assert_allclose(of_x, 2 * feed["x"] * (feed["y"] ** 2).sum(axis=0, keepdims=True))
    np.testing.assert_allclose(of_y, 2 * feed["y"] * feed["x"] ** 2)


def test_what_fused_elemwise_activation_refuses() -> None:
    inputs = {"X": numbers(3, 2), "Y": numbers(3, 2)}
    for functors in (["relu"], ["relu", "scale"], ["elementwise_sub", "relu"], ["elementwise_add", "tanh"]):
        OpTest("fused_elemwise_activation", inputs, {"functor_list": functors}).check_refused(
            ValueError, "functor_list", functors[0]
        )
    OpTest("fused_elemwise_activation", inputs, {"save_intermediate_out": True}).check_refused(
        ValueError, "IntermediateOut"
    )
    for x, y, part in (((3, 2), (3, 1, 2), "input X"), ((1, 3), (2, 1), "input X"), ((3, 2), (3,), "input Y")):
        inputs = {"X": numbers(*x), "Y": numbers(*y)}
        OpTest("fused_elemwise_activation", inputs, known=["X", "Y"]).check_refused(ValueError, part)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
def test_lstm_with_its_product_or_embedding(peepholes: bool, initial: bool, reverse: bool) -> None:
    x, wx = numbers(ROWS, M), numbers(M, 4 * D)
    states = {"H0": numbers(len(LENGTHS), D), "C0": numbers(len(LENGTHS), D)} if initial else {}
    inputs: dict[str, Any] = {
        "Input": (x @ wx, [LENGTHS]),
        "Weight": numbers(D, 4 * D),
        "Bias": numbers(1, (7 if peepholes else 4) * D),
        **states,
    }
    attrs = {"use_peepholes": peepholes, "is_reverse": reverse}
    hidden, cell = lstm(inputs, LENGTHS, attrs)
    outputs = {"Hidden": (hidden, [LENGTHS]), "Cell": (cell, [LENGTHS])}
    common = {"WeightH": inputs["Weight"], "Bias": inputs["Bias"], **states}
    known = ["WeightX", "WeightH", "Bias", "Embeddings"]
    OpTest("fusion_lstm", {"X": (x, [LENGTHS]), "WeightX": wx, **common}, attrs, outputs, known).check_outputs()

    ids = np.array([[3], [1], [3], [0], [2], [4], [1]])
    table = np.zeros((5, 4 * D))
    table[ids[:, 0]] = x[[0, 1, 0, 3, 4, 5, 1]] @ wx
    hidden, cell = lstm({**inputs, "Input": (table[ids[:, 0]], [LENGTHS])}, LENGTHS, attrs)
    outputs = {"Hidden": (hidden, [LENGTHS]), "Cell": (cell, [LENGTHS])}
    embedded = {"Ids": (ids, [LENGTHS]), "Embeddings": table + inputs["Bias"][:, : 4 * D], **common}
    OpTest("fused_embedding_fc_lstm", embedded, attrs, outputs, known).check_outputs()


def test_what_fused_lstms_refuse() -> None:
    common: dict[str, Any] = {"WeightH": numbers(D, 4 * D), "Bias": numbers(1, 4 * D)}
    attrs = {"use_peepholes": False}
    ids = {"Ids": (np.array([[0], [7]]), [[2]]), "Embeddings": numbers(5, 4 * D), **common}
    outputs: dict[str, Any] = {"Hidden": None, "Cell": None}
    refused = OpTest("fused_embedding_fc_lstm", ids, attrs, outputs)
    refused.check_refused(IndexError, "input Ids: row 1 has id 7", when="run")
    product = {"X": (numbers(3, M), [[1, 2]]), "WeightX": numbers(M, 4 * D), **common}
    one = {"H0": numbers(1, D), "C0": numbers(1, D)}
    OpTest("fusion_lstm", {**product, **one}, attrs, outputs).check_refused(
        ValueError, "input H0", "2 rows, one for each sequence of X", when="run"
    )
    known = ["X", "WeightX", "WeightH", "Bias"]
    lone = OpTest("fusion_lstm", {**product, "H0": one["H0"]}, attrs, outputs, known)
    lone.check_refused(ValueError, "H0 and C0")
    wrong = OpTest("fusion_lstm", {**product, "WeightX": numbers(M + 1, 4 * D)}, attrs, outputs, known)
    wrong.check_refused(ValueError, "input WeightX")


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_gru_with_its_product(biased: bool, initial: bool, reverse: bool) -> None:
    x, wx, wh = numbers(ROWS, M), numbers(M, 3 * D), numbers(D, 3 * D)
    inputs: dict[str, Any] = {"X": (x, [LENGTHS]), "WeightX": wx, "WeightH": wh}
    if biased:
        inputs["Bias"] = numbers(1, 3 * D)
    if initial:
        inputs["H0"] = numbers(len(LENGTHS), D)
    attrs = {"activation": "relu", "gate_activation": "sigmoid", "is_reverse": reverse, "origin_mode": False}
    sums = x @ wx + inputs.get("Bias", 0)
    hidden = np.zeros((ROWS, D))
    for number, rows in sequences(reverse, LENGTHS):
        h = inputs["H0"][number] if initial else np.zeros(D)
        for row in rows:
            *_, h = gru_step(sums[row], h, wh, attrs)
            hidden[row] = h
    outputs = {"Hidden": (hidden, [LENGTHS])}
    OpTest("fusion_gru", inputs, attrs, outputs, known=["WeightX", "WeightH", "Bias"]).check_outputs()


@pytest.mark.parametrize("scalar", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("activations", [("sigmoid", "tanh", "tanh"), ("relu", "identity", "sigmoid")], ids=str)
def test_attention_lstm(activations: tuple[str, str, str], initial: bool, scalar: bool) -> None:
    lengths = [2, 0, 4]
    gate, cell, candidate = (ACTIVATIONS[name] for name in activations)
    x, weight, attention = numbers(6, M), numbers(D + M, 4 * D), numbers(M + D, 1)
    inputs: dict[str, Any] = {
        "X": (x, [lengths]),
        "C0": numbers(3, D),
        "AttentionWeight": attention,
        "LSTMWeight": weight,
        "LSTMBias": numbers(1, 4 * D),
    }
    if initial:
        inputs["H0"] = numbers(3, D)
    if scalar:
        inputs |= {
            "AttentionBias": np.array([[0.3]]),
            "AttentionScalar": np.array([[-2.0]]),
            "AttentionScalarBias": np.array([[1.5]]),
        }
    hidden, states = np.zeros((6, D)), np.zeros((6, D))
    for number, rows in sequences(False, lengths):
        h, c = inputs["H0"][number] if initial else np.zeros(D), inputs["C0"][number]
        for row in rows:
            scores = x[rows] @ attention[:M, 0] + c @ attention[M:, 0] + (0.3 if scalar else 0)
            scores = np.maximum(scores, 0)
            if scalar:
                scores = np.maximum(-2 * scores + 1.5, 0)
            weights = np.exp(scores) / np.exp(scores).sum()
            f, i, o, g = (np.concatenate([h, weights @ x[rows]]) @ weight + inputs["LSTMBias"][0]).reshape(4, D)
            c = gate(f) * c + gate(i) * candidate(g)
            h = gate(o) * cell(c)
            hidden[row], states[row] = h, c
    attrs = dict(zip(("gate_activation", "cell_activation", "candidate_activation"), activations))
    outputs = {"Hidden": (hidden, [lengths]), "Cell": (states, [lengths])}
    OpTest(
        "attention_lstm", inputs, attrs, outputs, known=["AttentionWeight", "LSTMWeight", "LSTMBias"]
    ).check_outputs()


@pytest.mark.parametrize("bias", [(5,), (1, 5)])
def test_sequence_conv_with_bias_and_relu(bias: tuple[int, ...]) -> None:
    lengths, length, start = [3, 0, 4], 3, -1
    x, weight, b = numbers(7, M), numbers(length * M, 5), numbers(*bias)
    out = np.zeros((7, 5))
    for _, rows in sequences(False, lengths):
        for row in rows:
            near = range(row + start, row + start + length)
            context = np.concatenate([x[r] if r in rows else np.zeros(M) for r in near])
            out[row] = np.maximum(context @ weight + b.reshape(5), 0)
    inputs = {"X": (x, [lengths]), "Filter": weight, "Bias": b}
    attrs = {"contextLength": length, "contextStart": start}
    outputs = {"Out": (out, [lengths])}
    OpTest("fusion_seqconv_eltadd_relu", inputs, attrs, outputs, known=["Filter", "Bias"]).check_outputs()


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5)])
def test_expanded_rows_joined_and_multiplied(bias: tuple[int, ...] | None, activation: str) -> None:
    lengths = [3, 0, 4]
    rows, first, second, weight = numbers(7, M), numbers(3, 2), numbers(3, 1), numbers(M + 3, 5)
    ones = [[1, 1, 1]]
    inputs: dict[str, Any] = {"X": [(rows, [lengths]), (first, ones), (second, ones)], "FCWeight": weight}
    joined = np.concatenate([rows, np.repeat(first, lengths, 0), np.repeat(second, lengths, 0)], 1)
    out = joined @ weight
    if bias is not None:
        inputs["FCBias"] = numbers(*bias)
        out = out + inputs["FCBias"].reshape(5)
    outputs = {"Out": (ACTIVATIONS[activation](out), [lengths])}
    test = OpTest("fusion_seqexpand_concat_fc", inputs, {"fc_activation": activation}, outputs, ["FCWeight", "FCBias"])
    test.check_outputs()
    few = {**inputs, "X": [(rows, [lengths]), first[:2], second]}
    OpTest("fusion_seqexpand_concat_fc", few, {}).check_refused(
        ValueError, "input X", "3 rows in variable 1", when="run"
    )
