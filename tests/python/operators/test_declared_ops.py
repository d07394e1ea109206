"""What is refused by its declaration alone: dims that no test has memory for, and gradients of other dims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace import errors
from headrace.fluid.framework import Program

CRF = {"Emission": [3, 5, 2], "Transition": [4, 2], "Label": ([3, 5], np.int64), "Length": ([3], np.int64)}
CTC = {"Logits": [5, 3, 2], "WarpCTCGrad": [5, 3, 2], "LogitsLength": ([3], np.int64)}


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "attrs", "part"),
    [
        ("shape", {"Input": [2**31, 1]}, ["Out"], {}, "Input: expected dims that fit an int32, got [2147483648, 1]"),
        (
            "sequence_pool",
            {"X": [2**31, 1]},
            ["Out"],
            {},
            "X: expected at most 2^31 - 1 rows, got dims [2147483648, 1]",
        ),
        (
            "max_pool2d_with_index",
            {"X": [1, 1, 2**16, 2**15]},
            ["Out", "Mask"],
            {"ksize": [2, 2], "strides": [2, 2]},
            "X: expected at most 2^31 - 1 elements in a map, got dims [1, 1, 65536, 32768]",
        ),
        ("linear_chain_crf_grad", {**CRF, "LogLikelihood@GRAD": [4, 1]}, ["Emission@GRAD"], {}, "[3, 1], got [4, 1]"),
        ("warpctc_grad", {**CTC, "Loss@GRAD": [4, 1]}, ["Logits@GRAD"], {}, "[3, 1], got [4, 1]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_declared_is_refused(op_type: str, inputs: Any, outputs: Any, attrs: Any, part: str) -> None:
    block = Program().global_block()
    for slot, declared in inputs.items():
        shape, dtype = declared if isinstance(declared, tuple) else (declared, np.float32)
        block.create_var(slot, shape, dtype)
    results = {slot: block.create_var(f"{slot}_out") for slot in outputs}
    with pytest.raises(errors.InvalidArgument) as raised:
        block.append_op(op_type, {slot: [slot] for slot in inputs}, results, attrs)
    assert part in str(raised.value)
    assert op_type in str(raised.value)
