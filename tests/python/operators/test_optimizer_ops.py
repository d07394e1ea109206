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
    first, second = 0.8 * M + 0.2 * G, 0.9 * S + 0.1 * G * G
    rate = RATE * np.sqrt(1 - 0.81) / (1 - 0.64)
    powers = {"Beta1Pow": np.array([0.64]), "Beta2Pow": np.array([0.81])}
    return (
        {"Moment1": M, "Moment2": S, **powers},
        {"beta1": 0.8, "beta2": 0.9, "epsilon": 1e-3},
        {
            "ParamOut": P - rate * first / (np.sqrt(second) + 1e-3),
            "Moment1Out": first,
            "Moment2Out": second,
            "Beta1PowOut": np.array([0.64 * 0.8]),
            "Beta2PowOut": np.array([0.81 * 0.9]),
        },
    )


OPTIMIZERS = ["adagrad", "adam", "momentum", "rmsprop", "sgd"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_a_step(op_type: str, dtype: Any) -> None:
    state, attrs, outputs = step(op_type)
    inputs = {"Param": P, "Grad": G, "LearningRate": np.array([RATE]), **state}
    narrow = {slot: value.astype(dtype) for slot, value in inputs.items()}
    expected = {slot: value.astype(dtype) for slot, value in outputs.items()}
    OpTest(op_type, narrow, attrs, expected).check_outputs(rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op_type", OPTIMIZERS)
def test_what_does_not_fit_is_refused(op_type: str) -> None:
    state, attrs, outputs = step(op_type)
    inputs = {"Param": P, "Grad": G, "LearningRate": np.array([RATE]), **state}
    nothing = dict.fromkeys(outputs)
    OpTest(op_type, {**inputs, "Grad": G[:2]}, attrs, nothing).check_refused(ValueError, "Grad", "[3, 2]")
    narrow = {**inputs, "Grad": G.astype(np.float32)}
    OpTest(op_type, narrow, attrs, nothing).check_refused(TypeError, "Grad", "float64")
    two_rates = {**inputs, "LearningRate": np.array([RATE, RATE])}
    OpTest(op_type, two_rates, attrs, nothing).check_refused(ValueError, "LearningRate", "single element")
