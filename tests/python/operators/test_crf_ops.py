"""Conditional random fields, against the sum over all labels there could be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(47)
LENGTHS = [3, 0, 1, 2]
K = 3
EMISSION = RNG.uniform(-1, 1, (sum(LENGTHS), K))
TRANSITION = RNG.uniform(-1, 1, (K + 2, K))
LABEL = RNG.integers(0, K, (sum(LENGTHS), 1))
OUTPUTS = ("Alpha", "EmissionExps", "TransitionExps", "LogLikelihood")


def weight(emission: np.ndarray, labels: Any) -> float:
    total = TRANSITION[0, labels[0]] + TRANSITION[1, labels[-1]]
    total += sum(row[label] for row, label in zip(emission, labels))
    return float(total + sum(TRANSITION[2 + a, b] for a, b in zip(labels, labels[1:])))


def inputs(**others: np.ndarray) -> dict[str, Any]:
    return {"Emission": (EMISSION, [LENGTHS]), "Transition": TRANSITION, **others}


def test_linear_chain_crf() -> None:
    cost, begin = [], 0
    for rows in LENGTHS:
        x, label = EMISSION[begin : begin + rows], LABEL[begin : begin + rows, 0]
        everything = [weight(x, labels) for labels in itertools.product(range(K), repeat=rows)] if rows else []
        cost.append([np.log(np.exp(everything).sum()) - weight(x, label) if rows else 0.0])
        begin += rows
    outputs: dict[str, Any] = dict.fromkeys(OUTPUTS)
    exps = np.exp(EMISSION - EMISSION.max(1, keepdims=True))
    outputs |= {"LogLikelihood": np.array(cost), "EmissionExps": exps, "TransitionExps": np.exp(TRANSITION)}
    test = OpTest("linear_chain_crf", inputs(Label=LABEL), outputs=outputs, known=["Transition"])
    test.check_outputs()
    test.check_gradients(["Emission", "Transition"], ["LogLikelihood"])


def test_alpha_is_a_distribution_over_the_labels() -> None:
    expected, begin = np.zeros_like(EMISSION), 0
    for rows in LENGTHS:
        for r in range(rows):
            for labels in itertools.product(range(K), repeat=r + 1):
                x = EMISSION[begin : begin + r + 1]
                expected[begin + r, labels[-1]] += np.exp(weight(x, labels) - TRANSITION[1, labels[-1]])
        begin += rows
    outputs: dict[str, Any] = dict.fromkeys(OUTPUTS)
    outputs["Alpha"] = expected / expected.sum(1, keepdims=True)
    OpTest("linear_chain_crf", inputs(Label=LABEL), outputs=outputs, known=["Transition"]).check_outputs()
    # Two labels, all weights zero.
    zeros = {"Emission": (np.zeros((2, 2)), [[2]]), "Transition": np.zeros((4, 2)), "Label": np.zeros((2, 1), np.int64)}
    outputs = dict.fromkeys(OUTPUTS) | {"Alpha": np.full((2, 2), 0.5), "EmissionExps": np.ones((2, 2))}
    OpTest("linear_chain_crf", zeros, outputs=outputs, known=["Transition"]).check_outputs()


def test_labels_that_the_rows_before_make_improbable_have_a_gradient() -> None:
    """The likeliest label of the last row follows one whose share of Alpha vanishes."""
    emission = (np.array([[0.0, -1000.0], [-2000.0, 0.0]]), [[2]])
    transition = np.zeros((4, 2))
    transition[2, 1] = -1000.0
    values = {"Emission": emission, "Transition": transition, "Label": np.array([[0], [1]])}
    test = OpTest("linear_chain_crf", values, outputs=dict.fromkeys(OUTPUTS), known=["Transition"])
    test.check_gradients(["Emission", "Transition"], ["LogLikelihood"])


def test_large_weights_do_not_overflow() -> None:
    emission = (1000.0 * EMISSION, [LENGTHS])
    values = {"Emission": emission, "Transition": TRANSITION, "Label": LABEL}
    outputs = dict.fromkeys(OUTPUTS)
    cost = OpTest("linear_chain_crf", values, outputs=outputs, known=["Transition"]).run()["LogLikelihood"][0]
    assert np.isfinite(np.asarray(cost)).all()


@pytest.mark.parametrize("labelled", [False, True])
def test_crf_decoding(labelled: bool) -> None:
    path: list[int] = []
    for rows in LENGTHS:
        x = EMISSION[len(path) : len(path) + rows]
        choices = itertools.product(range(K), repeat=rows)
        path += max(choices, key=lambda labels: weight(x, labels)) if rows else []
    expected = np.array(path)[:, None]
    others = {"Label": LABEL} if labelled else {}
    expected = (expected == LABEL).astype(np.int64) if labelled else expected
    outputs = {"ViterbiPath": (expected, [LENGTHS])}
    OpTest("crf_decoding", inputs(**others), outputs=outputs, known=["Transition"]).check_outputs()


def test_what_does_not_fit_is_refused() -> None:
    outputs = dict.fromkeys(OUTPUTS)
    wrong = {**inputs(Label=LABEL), "Transition": TRANSITION[1:]}
    OpTest("linear_chain_crf", wrong, outputs=outputs, known=["Transition"]).check_refused(ValueError, "Transition")
    wrong = inputs(Label=LABEL[:, 0])
    OpTest("linear_chain_crf", wrong, outputs=outputs, known=["Transition"]).check_refused(ValueError, "Label")
    wrong = inputs(Label=LABEL + K)
    test = OpTest("linear_chain_crf", wrong, outputs=outputs, known=["Transition"])
    test.check_refused(IndexError, "Label", when="run")
    wrong = inputs(Label=(LABEL, [LENGTHS[::-1]]))
    for op_type, results in (("linear_chain_crf", outputs), ("crf_decoding", {"ViterbiPath": None})):
        test = OpTest(op_type, wrong, outputs=results, known=["Transition"])
        test.check_refused(ValueError, "Label", "sequences of input Emission", when="run")


def padded(fill: float = np.nan) -> dict[str, Any]:
    """The same sequences, each in four rows, of which nobody must look at those behind it."""
    emission = np.full((len(LENGTHS), 4, K), fill)
    label = np.full((len(LENGTHS), 4), -7)
    begin = 0
    for s, rows in enumerate(LENGTHS):
        emission[s, :rows], label[s, :rows] = EMISSION[begin : begin + rows], LABEL[begin : begin + rows, 0]
        begin += rows
    return {"Emission": emission, "Transition": TRANSITION, "Label": label, "Length": np.array(LENGTHS)}


@pytest.mark.parametrize("lengths", [(-1,), (-1, 1), (1, -1)])
def test_padded_sequences_have_the_cost_of_those_with_lod(lengths: tuple[int, ...]) -> None:
    given = padded()
    given["Length"] = given["Length"].reshape(lengths)
    if len(lengths) == 2:
        given["Label"] = given["Label"][:, :, None]
    packed = OpTest("linear_chain_crf", inputs(Label=LABEL), outputs=dict.fromkeys(OUTPUTS), known=["Transition"])
    results = packed.run()
    alpha, begin = np.zeros_like(given["Emission"]), 0
    for s, rows in enumerate(LENGTHS):
        alpha[s, :rows] = np.asarray(results["Alpha"][0])[begin : begin + rows]
        begin += rows
    outputs = {**dict.fromkeys(OUTPUTS), "Alpha": alpha, "LogLikelihood": np.asarray(results["LogLikelihood"][0])}
    test = OpTest("linear_chain_crf", given, outputs=outputs, known=["Transition"])
    test.check_outputs()
    slots = ["Emission", "Transition"]
    gradients, wanted = test.gradients(slots, ["LogLikelihood"]), packed.gradients(slots, ["LogLikelihood"])
    np.testing.assert_allclose(gradients["Transition_0"], wanted["Transition_0"], rtol=1e-12)
    begin = 0
    for s, rows in enumerate(LENGTHS):
        of_sequence = wanted["Emission_0"][begin : begin + rows]
        np.testing.assert_allclose(gradients["Emission_0"][s, :rows], of_sequence, rtol=1e-12)
        assert not gradients["Emission_0"][s, rows:].any()
        begin += rows
    test = OpTest("linear_chain_crf", {**given, **padded(2.0), "Label": given["Label"]}, outputs=outputs)
    test.check_gradients(slots, ["LogLikelihood"])


@pytest.mark.parametrize("labelled", [False, True])
def test_padded_sequences_are_decoded_as_those_with_lod(labelled: bool) -> None:
    given = padded()
    others = {"Label": LABEL} if labelled else {}
    (path,) = OpTest("crf_decoding", inputs(**others), outputs={"ViterbiPath": None}).run()["ViterbiPath"]
    expected = np.zeros_like(given["Label"])
    expected[np.arange(4) < np.array(LENGTHS)[:, None]] = np.asarray(path)[:, 0]
    if not labelled:
        del given["Label"]
    OpTest("crf_decoding", given, outputs={"ViterbiPath": expected}, known=["Transition"]).check_outputs()


def test_padded_sequences_that_do_not_fit_are_refused() -> None:
    good, outputs = padded(), dict.fromkeys(OUTPUTS)
    for lengths, parts in (([3, 0, 5, 2], ("sequence 2", "5", "[0, 4]")), ([3, -1, 1, 2], ("sequence 1", "-1"))):
        for op_type, results in (("linear_chain_crf", outputs), ("crf_decoding", {"ViterbiPath": None})):
            test = OpTest(op_type, {**good, "Length": np.array(lengths)}, outputs=results, known=["Transition"])
            test.check_refused(IndexError, "Length", *parts, when="run")
    test = OpTest("linear_chain_crf", {**good, "Length": np.array([3, 0, 2, 2])}, outputs=outputs)
    test.check_refused(IndexError, "Label", "sequence 2, row 1", "-7", when="run")
    cases: list[tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = [
        ({"Length": np.array([3, 0, 1])}, ValueError, ("Length", "[4, 1]", "[3]")),
        ({"Length": np.array(LENGTHS, np.int32)}, TypeError, ("Length", "int64")),
        ({"Label": good["Label"][:, :3]}, ValueError, ("Label", "[4, 4]")),
        ({"Emission": good["Emission"][0]}, ValueError, ("Emission", "rank 3")),
    ]
    for change, error, named in cases:
        test = OpTest("linear_chain_crf", {**good, **change}, outputs=outputs, known=["Transition"])
        test.check_refused(error, *named)
