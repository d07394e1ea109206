"""Optimizers: one step against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(41)
P, G = RNG.uniform(-1, 1, (3, 2)), RNG.uniform(-1, 1, (3, 2))
M, S = RNG.uniform(-1, 1, (3, 2)), RNG.uniform(0.5, 1, (3, 2))
RATE = 0.1


def step(op_type: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Inputs besides Param, Grad and LearningRate; attributes; outputs."""
    if op_type == "sgd":
        return {}, {}, {"ParamOut": P - RATE * G}
    if op_type == "momentum":
        velocity = 0.9 * M + G
        return {"Velocity": M}, {"mu": 0.9}, {"ParamOut": P - RATE * velocity, "VelocityOut": velocity}
    if op_type == "adagrad":
        moment = S + G * G
        return (
            {"Moment": S},
            {"epsilon": 1e-3},
            {
                "ParamOut": P - RATE * G / (np.sqrt(moment) + 1e-3),
                "MomentOut": moment,
            },
        )
    if op_type == "rmsprop":
        square = 0.9 * S + 0.1 * G * G
        moment = 0.5 * M + RATE * G / np.sqrt(square + 1e-3)
        return (
            {"Moment": M, "MeanSquare": S},
            {"decay": 0.9, "epsilon": 1e-3, "momentum": 0.5},
            {
                "ParamOut": P - moment,
                "MomentOut": moment,
                "MeanSquareOut": square,
            },
        )
    if op_type == "decayed_adagrad":
        moment = 0.95 * S + 0.05 * G * G
        param = P - RATE * G / (np.sqrt(moment) + 1e-3)
        return {"Moment": S}, {"epsilon": 1e-3}, {"ParamOut": param, "MomentOut": moment}
    if op_type == "adadelta":
        gradient = 0.9 * S + 0.1 * G * G
        change = -np.sqrt((np.abs(M) + 1e-3) / (gradient + 1e-3)) * G
        update = 0.9 * np.abs(M) + 0.1 * change * change
        return (
            {"AvgSquaredGrad": S, "AvgSquaredUpdate": np.abs(M)},
            {"rho": 0.9, "epsilon": 1e-3},
            {
                "ParamOut": P + change,
                "AvgSquaredGradOut": gradient,
                "AvgSquaredUpdateOut": update,
            },
        )
    if op_type == "adamax":
        moment, norm = 0.8 * M + 0.2 * G, np.maximum(np.abs(G), 0.9 * S + 1e-3)
        state = {"Moment": M, "InfNorm": S, "Beta1Pow": np.array([0.64])}
        return (
            state,
            {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3},
            {
                "ParamOut": P - RATE / (1 - 0.64) * moment / norm,
                "MomentOut": moment,
                "InfNormOut": norm,
            },
        )
    if op_type == "ftrl":
        squared = S + G * G
        linear = M + G - (np.sqrt(squared) - np.sqrt(S)) / RATE * P
        shrunk = np.sign(linear) * 0.3 - linear
        param = np.where(np.abs(linear) > 0.3, shrunk / (np.sqrt(squared) / RATE + 2 * 0.2), 0)
        return (
            {"SquaredAccumulator": S, "LinearAccumulator": M},
            {"l1": 0.3, "l2": 0.2},
            {
                "ParamOut": param,
                "SquaredAccumOut": squared,
                "LinearAccumOut": linear,
            },
        )
    if op_type in ("proximal_gd", "proximal_adagrad"):
        moment = S + G * G
        reached = P - RATE * G / (np.sqrt(moment) if op_type == "proximal_adagrad" else 1)
        shrunk = np.sign(reached) * np.maximum(np.abs(reached) - RATE * 0.3, 0) / (1 + RATE * 0.2)
        attrs = {"l1": 0.3, "l2": 0.2}
        if op_type == "proximal_gd":
            return {}, attrs, {"ParamOut": shrunk}
        return {"Moment": S}, attrs, {"ParamOut": shrunk, "MomentOut": moment}
    if op_type == "lars_momentum":
        norm, decay = np.linalg.norm, 0.01
        local = RATE * 0.05 * norm(P) / (norm(G) + decay * norm(P))
        velocity = 0.9 * M + local * (G + decay * P)
        attrs = {"mu": 0.9, "lars_coeff": 0.05, "lars_weight_decay": decay}
        return {"Velocity": M}, attrs, {"ParamOut": P - velocity, "VelocityOut": velocity}
    first, second = 0.8 * M + 0.2 * G, 0.9 * S + 0.1 * G * G
    if op_type == "dpsgd":
        clipped = G * 0.5 / np.linalg.norm(G)
        return {}, {"clip": 0.5, "sigma": 0.0}, {"ParamOut": P - RATE * clipped}
    if op_type == "lamb":
        change = first / (np.sqrt(second) + 1e-3) + 0.3 * P
        trust = np.linalg.norm(P) / np.linalg.norm(change)
        return (
            {"Moment1": M, "Moment2": S, "Beta1Pow": np.array([0.64]), "Beta2Pow": np.array([0.81])},
            {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.3},
            {"ParamOut": P - RATE * trust * change, "Moment1Out": first, "Moment2Out": second},
        )
    rate = RATE * np.sqrt(1 - 0.81) / (1 - 0.64)
    decay = 0.3 if op_type == "adamw" else 0.0
    powers = {"Beta1Pow": np.array([0.64]), "Beta2Pow": np.array([0.81])}
    return (
        {"Moment1": M, "Moment2": S, **powers},
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3, **({"coeff": decay} if decay else {})},
        {
            "ParamOut": P - RATE * decay * P - rate * first / (np.sqrt(second) + 1e-3),
            "Moment1Out": first,
            "Moment2Out": second,
            "Beta1PowOut": np.array([0.64 * 0.8]),
            "Beta2PowOut": np.array([0.81 * 0.9]),
        },
    )


OPTIMIZERS = [
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "decayed_adagrad",
    "dpsgd",
    "ftrl",
    "lamb",
    "lars_momentum",
    "momentum",
    "proximal_adagrad",
    "proximal_gd",
    "rmsprop",
    "sgd",
]


def inputs_of(op_type: str, state: dict[str, Any]) -> dict[str, Any]:
    rate = {} if op_type == "adadelta" else {"LearningRate": np.array([RATE])}
    return {"Param": P, "Grad": G, **rate, **state}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_a_step(op_type: str, dtype: Any) -> None:
    state, attrs, outputs = step(op_type)
    inputs = inputs_of(op_type, state)
    narrow = {slot: value.astype(dtype) for slot, value in inputs.items()}
    expected = {slot: value.astype(dtype) for slot, value in outputs.items()}
    OpTest(op_type, narrow, attrs, expected).check_outputs(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_what_does_not_fit_is_refused(op_type: str) -> None:
    state, attrs, outputs = step(op_type)
    inputs = inputs_of(op_type, state)
    nothing = dict.fromkeys(outputs)
    OpTest(op_type, {**inputs, "Grad": G[:2]}, attrs, nothing).check_refused(ValueError, "Grad", "[3, 2]")
    narrow = {**inputs, "Grad": G.astype(np.float32)}
    OpTest(op_type, narrow, attrs, nothing).check_refused(TypeError, "Grad", "float64")
    if "LearningRate" not in inputs:
        return
    two_rates = {**inputs, "LearningRate": np.array([RATE, RATE])}
    OpTest(op_type, two_rates, attrs, nothing).check_refused(ValueError, "LearningRate", "single element")
    for slot in {"LearningRate", "Beta1Pow", "Beta2Pow"} & set(inputs):
        whole = {**inputs, slot: np.ones(1, np.int64)}
        OpTest(op_type, whole, attrs, nothing).check_refused(TypeError, f"input {slot}", "float32 or float64", "int64")
        two = {**inputs, slot: np.ones(2)}
        OpTest(op_type, two, attrs, nothing).check_refused(ValueError, f"input {slot}", "[2]")


@pytest.mark.parametrize("op_type", ["adam", "adamw", "lamb"])
def test_betas_of_variables(op_type: str) -> None:
    state, attrs, outputs = step(op_type)
    betas = {"Beta1Tensor": np.array([attrs["beta1"]]), "Beta2Tensor": np.array([attrs["beta2"]])}
    inputs = {**inputs_of(op_type, state), **betas}
    OpTest(op_type, inputs, {**attrs, "beta1": 0.1, "beta2": 0.2}, outputs).check_outputs()
    nothing = dict.fromkeys(outputs)
    for bad in (1.0, np.nan):
        refused = OpTest(op_type, {**inputs, "Beta2Tensor": np.array([bad])}, attrs, nothing)
        refused.check_refused(ValueError, "input Beta2Tensor", "[0, 1)", when="run")


def test_noise_of_dpsgd_is_another_number_in_each_run() -> None:
    inputs, attrs = inputs_of("dpsgd", {}), {"clip": 100.0, "sigma": 3.0, "batch_size": 1.5}
    noise = []
    for _ in range(400):
        (out,) = OpTest("dpsgd", inputs, attrs, {"ParamOut": None}).run()["ParamOut"]
        each = (P - np.asarray(out)) / RATE - G
        np.testing.assert_allclose(each, np.full_like(P, each[0, 0]), rtol=1e-9)
        noise.append(each[0, 0])
    assert np.std(noise) == pytest.approx(2.0, rel=0.3)
    assert np.mean(noise) == pytest.approx(0.0, abs=0.5)
    nothing = {"ParamOut": None}
    for attr, bad in (("clip", 0.0), ("batch_size", -1.0), ("sigma", -1.0), ("sigma", np.nan)):
        OpTest("dpsgd", inputs, {attr: bad}, nothing).check_refused(ValueError, f"attribute {attr}")


def test_lamb_of_a_parameter_of_zeros_takes_steps_of_adam() -> None:
    state, attrs, _ = step("lamb")
    first, second = 0.8 * M + 0.2 * G, 0.9 * S + 0.1 * G * G
    outputs = {"ParamOut": -RATE * first / (np.sqrt(second) + 1e-3), "Moment1Out": first, "Moment2Out": second}
    OpTest("lamb", {**inputs_of("lamb", state), "Param": 0 * P}, attrs, outputs).check_outputs()


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("updates", "terms", "is_full", "moves_on"),
    [(4, 1, False, False), (9, 4, True, False), (16383, 2, False, True), (16383, 4, True, True)],
    ids=["adds", "window is full", "moves on", "both"],
)
def test_average_accumulates(updates: int, terms: int, is_full: bool, moves_on: bool, dtype: Any) -> None:
    param, *sums = (RNG.uniform(-1, 1, (3, 2)).astype(dtype) for _ in range(4))
    attrs = {"average_window": 0.5, "max_average_window": 5, "min_average_window": 3}
    new = [sums[0] + param, sums[1], sums[2]]
    if moves_on:
        new = [np.zeros_like(param), new[0] + new[1], new[2]]
    if is_full:
        new = [np.zeros_like(param), np.zeros_like(param), new[0] + new[1]]
    counts = {"num_updates": updates, "num_accumulates": terms, "old_num_accumulates": 7}
    new_counts = {
        "num_updates": updates + 1,
        "num_accumulates": 0 if is_full else terms + 1,
        "old_num_accumulates": terms + 1 if is_full else 7,
    }
    inputs = {"param": param, **{f"in_sum_{i + 1}": s for i, s in enumerate(sums)}}
    inputs |= {f"in_{name}": np.array([n]) for name, n in counts.items()}
    outputs = {f"out_sum_{i + 1}": s for i, s in enumerate(new)}
    outputs |= {f"out_{name}": np.array([n]) for name, n in new_counts.items()}
    known = [f"in_{name}" for name in counts]
    OpTest("average_accumulates", inputs, attrs, outputs, known).check_outputs()
    nothing = dict.fromkeys(outputs)
    wrong = {**inputs, "in_sum_2": sums[1][:2]}
    OpTest("average_accumulates", wrong, attrs, nothing, known).check_refused(ValueError, "in_sum_2", "2]")
    wrong = {**inputs, "in_num_updates": np.array([1], np.int32)}
    OpTest("average_accumulates", wrong, attrs, nothing, known).check_refused(TypeError, "in_num_updates", "int64")
    windows = {"min_average_window": 9, "max_average_window": 8}
    test = OpTest("average_accumulates", inputs, windows, nothing, known)
    test.check_refused(ValueError, "min_average_window", "9")
