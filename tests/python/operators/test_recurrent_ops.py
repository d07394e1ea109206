"""lstm, gru and their single steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(41)
LENGTHS = [2, 4, 1]  # not in the order of their lengths
D = 3

ACTIVATIONS: dict[str, Any] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "identity": lambda x: x,
}


def numbers(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape)


def sequences(reverse: bool, lengths: list[int]) -> list[tuple[int, list[int]]]:
    """For each sequence its number and its rows, in the order in which they are read."""
    begin, found = 0, []
    for number, length in enumerate(lengths):
        rows = list(range(begin, begin + length))
        found.append((number, rows[::-1] if reverse else rows))
        begin += length
    return found


def lstm(inputs: dict[str, Any], lengths: list[int], attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    x, w, bias = inputs["Input"][0], inputs["Weight"], inputs["Bias"][0]
    gate, cell, candidate = (
        ACTIVATIONS[attrs.get(f"{what}_activation", preset)]
        for what, preset in (("gate", "sigmoid"), ("cell", "tanh"), ("candidate", "tanh"))
    )
    by_input, by_forget, by_output = bias[4 * D :].reshape(3, D) if attrs["use_peepholes"] else np.zeros((3, D))
    hidden, states = np.zeros((len(x), D)), np.zeros((len(x), D))
    for number, rows in sequences(attrs["is_reverse"], lengths):
        h = inputs["H0"][number] if "H0" in inputs else np.zeros(D)
        c = inputs["C0"][number] if "C0" in inputs else np.zeros(D)
        for row in rows:
            g, i, f, o = (x[row] + h @ w + bias[: 4 * D]).reshape(4, D)
            c_next = candidate(g) * gate(i + by_input * c) + c * gate(f + by_forget * c)
            h = gate(o + by_output * c_next) * cell(c_next)
            c = c_next
            hidden[row], states[row] = h, c
    return hidden, states


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("peepholes", [False, True])
def test_lstm(peepholes: bool, initial: bool, reverse: bool) -> None:
    inputs: dict[str, Any] = {
        "Input": (numbers(sum(LENGTHS), 4 * D), [LENGTHS]),
        "Weight": numbers(D, 4 * D),
        "Bias": numbers(1, (7 if peepholes else 4) * D),
    }
    if initial:
        inputs |= {"H0": numbers(len(LENGTHS), D), "C0": numbers(len(LENGTHS), D)}
    attrs = {"use_peepholes": peepholes, "is_reverse": reverse}
    hidden, states = lstm(inputs, LENGTHS, attrs)
    outputs = {"Hidden": (hidden, [LENGTHS]), "Cell": (states, [LENGTHS]), "BatchGate": None, "BatchCellPreAct": None}
    test = OpTest("lstm", inputs, attrs, outputs, known=["Weight", "Bias"])
    test.check_outputs()
    test.check_gradients(list(inputs), ["Hidden", "Cell"], tolerance=1e-5)
    test.check_gradients(list(inputs), ["Hidden"], tolerance=1e-5)


@pytest.mark.parametrize("activation", ["identity", "relu", "tanh", "sigmoid"])
def test_activations_of_lstm(activation: str) -> None:
    lengths = [3, 0, 2]
    inputs: dict[str, Any] = {
        "Input": (numbers(5, 4 * D), [lengths]),
        "Weight": numbers(D, 4 * D),
        "Bias": numbers(1, 4 * D) + 0.3,
    }
    names = ("gate_activation", "cell_activation", "candidate_activation")
    attrs: dict[str, Any] = {"use_peepholes": False, "is_reverse": False} | dict.fromkeys(names, activation)
    hidden, states = lstm(inputs, lengths, attrs)
    outputs = {"Hidden": (hidden, [lengths]), "Cell": (states, [lengths]), "BatchGate": None, "BatchCellPreAct": None}
    test = OpTest("lstm", inputs, attrs, outputs, known=["Weight", "Bias"])
    test.check_outputs()
    test.check_gradients(["Input", "Weight", "Bias"], ["Hidden"], tolerance=1e-4)


def gru_step(x: np.ndarray, h: np.ndarray, w: np.ndarray, attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    gates, candidates = w.ravel()[: 2 * D * D].reshape(D, 2 * D), w.ravel()[2 * D * D :].reshape(D, D)
    gate, activate = ACTIVATIONS[attrs["gate_activation"]], ACTIVATIONS[attrs["activation"]]
    u, r = np.split(gate(x[: 2 * D] + h @ gates), 2)
    c = activate(x[2 * D :] + (r * h) @ candidates)
    kept = u if attrs["origin_mode"] else 1 - u
    return np.concatenate([u, r, c]), r * h, kept * h + (1 - kept) * c


@pytest.mark.parametrize("activations", [("sigmoid", "relu"), ("tanh", "sigmoid"), ("identity", "identity")], ids=str)
def test_activations_of_gru(activations: tuple[str, str]) -> None:
    lengths = [3, 0, 2]
    inputs: dict[str, Any] = {"Input": (numbers(5, 3 * D), [lengths]), "Weight": numbers(D, 3 * D)}
    attrs = {"gate_activation": activations[0], "activation": activations[1], "origin_mode": False}
    hidden = np.zeros((5, D))
    for _, rows in sequences(False, lengths):
        h = np.zeros(D)
        for row in rows:
            *_, h = gru_step(inputs["Input"][0][row], h, inputs["Weight"], attrs)
            hidden[row] = h
    outputs = {"Hidden": (hidden, [lengths])} | dict.fromkeys(("BatchGate", "BatchResetHiddenPrev", "BatchHidden"))
    test = OpTest("gru", inputs, attrs, outputs, known=["Weight"])
    test.check_outputs()
    test.check_gradients(list(inputs), ["Hidden"], tolerance=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize("origin_mode", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_gru(biased: bool, origin_mode: bool, initial: bool, reverse: bool) -> None:
    x, w = numbers(sum(LENGTHS), 3 * D), numbers(D, 3 * D)
    inputs: dict[str, Any] = {"Input": (x, [LENGTHS]), "Weight": w}
    if biased:
        inputs["Bias"] = numbers(1, 3 * D)
    if initial:
        inputs["H0"] = numbers(len(LENGTHS), D)
    attrs = {"gate_activation": "sigmoid", "activation": "tanh", "origin_mode": origin_mode, "is_reverse": reverse}
    hidden = np.zeros((len(x), D))
    for number, rows in sequences(reverse, LENGTHS):
        h = inputs["H0"][number] if initial else np.zeros(D)
        for row in rows:
            *_, h = gru_step(x[row] + (inputs["Bias"][0] if biased else 0), h, w, attrs)
            hidden[row] = h
    outputs = {"Hidden": (hidden, [LENGTHS])} | dict.fromkeys(("BatchGate", "BatchResetHiddenPrev", "BatchHidden"))
    test = OpTest("gru", inputs, attrs, outputs, known=["Weight", "Bias"])
    test.check_outputs()
    test.check_gradients(list(inputs), ["Hidden"], tolerance=1e-5)


@pytest.mark.parametrize("origin_mode", [False, True])
@pytest.mark.parametrize("activations", [(2, 1), (3, 1), (0, 2)], ids=str)
def test_gru_unit(activations: tuple[int, int], origin_mode: bool) -> None:
    names = ["identity", "sigmoid", "tanh", "relu"]
    x, h, w, bias = numbers(4, 3 * D), numbers(4, D), numbers(D, 3 * D), numbers(1, 3 * D)
    named = {"activation": names[activations[0]], "gate_activation": names[activations[1]], "origin_mode": origin_mode}
    gates, reset, hidden = (np.stack(part) for part in zip(*(gru_step(r + bias[0], s, w, named) for r, s in zip(x, h))))
    inputs = {"Input": x, "HiddenPrev": h, "Weight": w, "Bias": bias}
    attrs = {"activation": activations[0], "gate_activation": activations[1], "origin_mode": origin_mode}
    outputs = {"Gate": gates, "ResetHiddenPrev": reset, "Hidden": hidden}
    test = OpTest("gru_unit", inputs, attrs, outputs, known=["Weight", "Bias"])
    test.check_outputs()
    test.check_gradients(list(inputs), ["Hidden"], tolerance=1e-4)


@pytest.mark.parametrize("forget_bias", [0.0, 1.0])
def test_lstm_unit(forget_bias: float) -> None:
    x, before = numbers(4, 4 * D), numbers(4, D)
    sigmoid = ACTIVATIONS["sigmoid"]
    i, f, o, g = np.split(x, 4, axis=1)
    c = sigmoid(f + forget_bias) * before + sigmoid(i) * np.tanh(g)
    attrs = {"forget_bias": forget_bias}
    test = OpTest("lstm_unit", {"X": x, "C_prev": before}, attrs, {"C": c, "H": sigmoid(o) * np.tanh(c)})
    test.check_outputs()
    for outputs in (["C", "H"], ["H"], ["C"]):
        test.check_gradients(["X", "C_prev"], outputs, tolerance=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    rows = (numbers(7, 4 * D), [LENGTHS])
    w, bias = numbers(D, 4 * D), numbers(1, 4 * D)
    outputs = dict.fromkeys(("Hidden", "Cell", "BatchGate", "BatchCellPreAct"))
    plain = {"use_peepholes": False}
    for inputs, attrs, part in (
        ({"Input": rows, "Weight": w, "Bias": bias}, {}, "Bias"),
        ({"Input": rows, "Weight": w[:, 1:], "Bias": bias}, plain, "Weight"),
        ({"Input": (rows[0][:, 1:], [LENGTHS]), "Weight": w, "Bias": bias}, plain, "Input"),
        ({"Input": rows, "Weight": w, "Bias": bias, "H0": numbers(3, D)}, plain, "H0 and C0"),
        ({"Input": rows, "Weight": w, "Bias": bias}, plain | {"gate_activation": "selu"}, "selu"),
    ):
        OpTest("lstm", inputs, attrs, outputs, known=["Weight", "Bias"]).check_refused(ValueError, part)
    gru = {"Input": (numbers(7, 3 * D), [LENGTHS]), "Weight": numbers(D, 3 * D)}
    outputs = dict.fromkeys(("Hidden", "BatchGate", "BatchResetHiddenPrev", "BatchHidden"))
    OpTest("gru", {**gru, "H0": numbers(3, D + 1)}, {}, outputs, known=["Weight"]).check_refused(ValueError, "H0")
    unit = {"Input": numbers(2, 3 * D), "HiddenPrev": numbers(2, D), "Weight": numbers(D, 3 * D)}
    outputs = dict.fromkeys(("Gate", "ResetHiddenPrev", "Hidden"))
    OpTest("gru_unit", unit, {"activation": 4}, outputs, known=["Weight"]).check_refused(ValueError, "activation")
    outputs = dict.fromkeys(("C", "H"))
    OpTest("lstm_unit", {"X": numbers(2, 7), "C_prev": numbers(2, 2)}, {}, outputs).check_refused(ValueError, "X")


def lstmp(inputs: dict[str, Any], lengths: list[int], attrs: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    x, w, bias, to = inputs["Input"][0], inputs["Weight"], inputs["Bias"][0], inputs["ProjWeight"]
    gate, cell, candidate, activation = (
        ACTIVATIONS[attrs.get(f"{what}_activation", preset)]
        for what, preset in (("gate", "sigmoid"), ("cell", "tanh"), ("candidate", "tanh"), ("proj", "tanh"))
    )
    by_input, by_forget, by_output = bias[4 * D :].reshape(3, D) if attrs["use_peepholes"] else np.zeros((3, D))
    projections, states = np.zeros((len(x), to.shape[1])), np.zeros((len(x), D))
    for number, rows in sequences(attrs["is_reverse"], lengths):
        r = inputs["H0"][number] if "H0" in inputs else np.zeros(to.shape[1])
        c = inputs["C0"][number] if "C0" in inputs else np.zeros(D)
        for row in rows:
            g, i, f, o = (x[row] + r @ w + bias[: 4 * D]).reshape(4, D)
            c = candidate(g) * gate(i + by_input * c) + c * gate(f + by_forget * c)
            if attrs.get("cell_clip"):
                c = np.clip(c, -attrs["cell_clip"], attrs["cell_clip"])
            r = activation((gate(o + by_output * c) * cell(c)) @ to)
            if attrs.get("proj_clip"):
                r = np.clip(r, -attrs["proj_clip"], attrs["proj_clip"])
            projections[row], states[row] = r, c
    return projections, states


LSTMP_INTERMEDIATES: dict[str, Any] = {"BatchGate": None, "BatchCellPreAct": None, "BatchHidden": None}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("initial", [False, True])
@pytest.mark.parametrize(
    "attrs",
    [
        {"use_peepholes": True},
        {"use_peepholes": False, "proj_activation": "identity"},
        {"use_peepholes": True, "cell_clip": 0.2, "proj_clip": 0.15},
        {"use_peepholes": True, "gate_activation": "tanh", "cell_activation": "identity"},
        {"use_peepholes": False, "candidate_activation": "sigmoid", "cell_activation": "sigmoid"},
    ],
    ids=str,
)
def test_lstmp(attrs: dict[str, Any], initial: bool, reverse: bool) -> None:
    lengths = [2, 4, 0, 1]
    inputs: dict[str, Any] = {
        "Input": (numbers(7, 4 * D), [lengths]),
        "Weight": numbers(2, 4 * D),
        "ProjWeight": numbers(D, 2),
        "Bias": numbers(1, (7 if attrs["use_peepholes"] else 4) * D),
    }
    if initial:
        inputs |= {"H0": numbers(4, 2), "C0": numbers(4, D)}
    attrs = {**attrs, "is_reverse": reverse}
    projections, states = lstmp(inputs, lengths, attrs)
    outputs = {"Projection": (projections, [lengths]), "Cell": (states, [lengths]), **LSTMP_INTERMEDIATES}
    test = OpTest("lstmp", inputs, attrs, outputs, known=["Weight", "ProjWeight", "Bias"])
    test.check_outputs()
    test.check_gradients(list(inputs), ["Projection", "Cell"], tolerance=1e-5)
    test.check_gradients(list(inputs), ["Projection"], tolerance=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "identity"])
def test_lstmp_of_early_releases_projects_its_first_state(activation: str) -> None:
    lengths = [2, 4, 0, 1]
    attrs = {"use_peepholes": True, "is_reverse": False, "proj_activation": activation, "proj_clip": 0.15}
    inputs: dict[str, Any] = {
        "Input": (numbers(7, 4 * D), [lengths]),
        "Weight": numbers(2, 4 * D),
        "ProjWeight": numbers(D, 2),
        "Bias": numbers(1, 7 * D),
    }
    for states in ({}, {"H0": numbers(4, D), "C0": numbers(4, D)}):
        given = {**inputs, **states}
        first = np.zeros((0, 2))
        if states:
            first = ACTIVATIONS[activation](states["H0"] @ given["ProjWeight"])
            given["H0"] = first
        projections, cells = lstmp(given, lengths, attrs)
        outputs = {
            "Projection": (projections, [lengths]),
            "Cell": (cells, [lengths]),
            **LSTMP_INTERMEDIATES,
            "OrderedP0": first[[1, 0, 3, 2]] if states else first,
        }
        given |= states
        test = OpTest("lstmp", given, attrs, outputs, known=["Weight", "ProjWeight", "Bias"])
        test.check_outputs()
        test.check_gradients(list(given), ["Projection", "Cell"], tolerance=1e-5)
    narrow = {**inputs, "H0": numbers(4, 2), "C0": numbers(4, D)}
    known = ["Weight", "ProjWeight", "Bias", "H0", "C0"]
    OpTest("lstmp", narrow, attrs, outputs, known).check_refused(ValueError, "input H0", "OrderedP0")


def test_lstmp_refuses_what_does_not_fit() -> None:
    good: dict[str, Any] = {
        "Input": (numbers(3, 4 * D), [[1, 2]]),
        "Weight": numbers(2, 4 * D),
        "ProjWeight": numbers(D, 2),
        "Bias": numbers(1, 7 * D),
    }
    outputs = {"Projection": None, "Cell": None, **LSTMP_INTERMEDIATES}
    known = ["Weight", "ProjWeight", "Bias"]
    for change, attrs, part in (
        ({"Weight": numbers(D, 4 * D)}, {}, "Weight"),
        ({"Bias": numbers(1, 4 * D)}, {}, "Bias"),
        ({"H0": numbers(2, 2)}, {}, "C0"),
        ({"H0": numbers(2, D), "C0": numbers(2, D)}, {}, "H0"),
        ({}, {"proj_activation": "softmax"}, "proj_activation"),
        ({}, {"cell_clip": -1.0}, "cell_clip"),
    ):
        OpTest("lstmp", {**good, **change}, attrs, outputs, [*known, "H0", "C0"]).check_refused(ValueError, part)
    states = {"H0": numbers(3, 2), "C0": numbers(3, D)}
    test = OpTest("lstmp", {**good, **states}, {}, outputs, known)
    test.check_refused(ValueError, "H0", "2 rows", when="run")
