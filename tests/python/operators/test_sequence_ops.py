"""Operators over sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.testing import OpTest

RNG = np.random.default_rng(37)
LENGTHS = [2, 0, 3, 1]
ROWS = RNG.permutation(12).reshape(6, 2) / 12.0
SEQUENCES = np.split(ROWS, np.cumsum(LENGTHS)[:-1])

POOLS: dict[str, Any] = {
    "SUM": lambda s: s.sum(0),
    "AVERAGE": lambda s: s.mean(0),
    "SQRT": lambda s: s.sum(0) / np.sqrt(len(s)),
    "MAX": lambda s: s.max(0),
    "FIRST": lambda s: s[0],
    "LAST": lambda s: s[-1],
}


@pytest.mark.parametrize("kind", POOLS)
def test_pools(kind: str) -> None:
    expected = np.stack([POOLS[kind](s) if len(s) else np.full(2, 0.25) for s in SEQUENCES])
    outputs: dict[str, Any] = {"Out": expected}
    if kind == "MAX":
        outputs["MaxIndex"] = None
    test = OpTest("sequence_pool", {"X": (ROWS, [LENGTHS])}, {"pooltype": kind, "pad_value": 0.25}, outputs)
    test.check_outputs()
    test.check_gradients(["X"], ["Out"])
    deeper = {**outputs, "Out": (expected, [[3, 1]])}
    OpTest(
        "sequence_pool", {"X": (ROWS, [[3, 1], LENGTHS])}, {"pooltype": kind, "pad_value": 0.25}, deeper
    ).check_outputs()


def test_softmax() -> None:
    x = RNG.uniform(-1, 1, (6, 1))
    parts = [np.exp(s) / np.exp(s).sum() for s in np.split(x, np.cumsum(LENGTHS)[:-1]) if len(s)]
    test = OpTest("sequence_softmax", {"X": (x, [LENGTHS])}, outputs={"Out": (np.concatenate(parts), [LENGTHS])})
    test.check_outputs()
    test.check_gradients(["X"])


@pytest.mark.parametrize("op_type", ["sequence_pool", "sequence_softmax"])
def test_a_lod_is_needed(op_type: str) -> None:
    OpTest(op_type, {"X": ROWS[:, :1]}).check_refused(ValueError, "X", "LoD", when="run")
