"""Every kernel of every dtype gives what that for float64 gives, which other tests compare with NumPy: float32 nearly,
also where functions overflow or have no value, the others, on whole numbers, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from row_cases import CASES, Rows

import headrace.fluid as fluid
from headrace.fluid import core
from headrace.testing import OpTest
from headrace.testing._op_test import _OpProgram

#: Operators whose gradients leave the range of float32 on the way, as reduce_prod does itself.
BEYOND_FLOAT32 = {"elementwise_div", "elementwise_pow", "reduce_prod"}
OP_TYPES = dict.fromkeys(op_type for op_type, _ in CASES if "float64" in core.op_info(op_type)["kernels"])


def dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def kernels(op_type: str) -> list[np.dtype[Any]]:
    return [dtype_named(name) for name in core.op_info(op_type)["kernels"]]


def whole_numbers(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """From 1 to 5, or 0 and 1 of bool: every dtype has them, and their sums and products."""
    values = np.random.default_rng(1).permutation(int(np.prod(shape))).reshape(shape) % 5 + 1
    return (values % 2 if np.dtype(dtype).kind == "b" else values).astype(dtype)


def numbers_of(dtype: np.dtype[Any]) -> Callable[[tuple[int, ...], Any], np.ndarray]:
    """whole_numbers of ``dtype``, in the dtype that is asked for."""
    return lambda shape, wanted: whole_numbers(shape, dtype).astype(wanted)


def outputs_of(test: OpTest, slots: tuple[str, ...]) -> list[np.ndarray]:
    tensors = test.run()
    return [np.asarray(tensor) for slot in slots for tensor in tensors[slot]]


def compare(actual: list[np.ndarray], wide: list[np.ndarray], dtype: Any, atol: float = 1e-6) -> None:
    assert len(actual) == len(wide) > 0
    for value, expected in zip(actual, wide):
        is_one_of_its_own = expected.dtype == np.float64
        assert value.dtype == (dtype if is_one_of_its_own else expected.dtype)
        if dtype == np.float32:
            np.testing.assert_allclose(value, expected.astype(np.float32), rtol=1e-5, atol=atol)
        else:
            np.testing.assert_array_equal(value, expected.astype(value.dtype))


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_forward(op_type: str) -> None:
    for case in (case for name, case in CASES if name == op_type):
        for dtype in kernels(op_type):
            narrow = case.test(op_type, 4, dtype=dtype, fill=None if dtype == np.float32 else whole_numbers)
            wide = case.test(op_type, 4, fill=None if dtype == np.float32 else numbers_of(dtype))
            compare(outputs_of(narrow, case.outputs), outputs_of(wide, case.outputs), dtype)


@pytest.mark.parametrize("op_type", [t for t in OP_TYPES if t != "reduce_prod"])
def test_special_numbers(op_type: str) -> None:
    for case in (case for name, case in CASES if name == op_type):
        wide = case.special().test(op_type, 40)
        narrow = case.special().test(op_type, 40, dtype=np.float32)
        with np.errstate(all="ignore"):
            # The terms of a sum are up to 300 and may cancel.
            atol = 3e-5 if "conv" in op_type else 1e-6
            compare(outputs_of(narrow, case.outputs), outputs_of(wide, case.outputs), np.float32, atol)
            if not case.by or op_type in BEYOND_FLOAT32:
                continue
            gradients = narrow.gradients(case.by, case.outputs[:1], np.float32)
            for name, expected in wide.gradients(case.by, case.outputs[:1]).items():
                np.testing.assert_allclose(gradients[name], expected.astype(np.float32), 1e-4, 1e-5, err_msg=name)


def gradient_tests(op_type: str, case: Rows, dtype: np.dtype[Any], like: np.dtype[Any]) -> list[OpTest]:
    """The gradient operators on the results of the operator; ``like``: whose whole numbers they get."""

    fill = numbers_of(like)
    program = _OpProgram(case.test(op_type, 4, dtype=dtype, fill=fill))
    values: dict[str, Any] = {
        name: value if lod else value[0] for name, value in program.feed.items() for lod in [value[1]]
    }
    for slot, tensors in program.run().items():
        for variable, tensor in zip(program.outputs[slot], tensors):
            lengths = tensor.recursive_sequence_lengths()
            for name, value in (
                (variable.name, np.asarray(tensor)),
                (f"{variable.name}@GRAD", fill(tuple(tensor.shape()), dtype)),
            ):
                values[name] = (value, lengths) if lengths else value
    return [
        OpTest(
            op.type,
            {slot: [values[name] for name in op.input(slot)] for slot in op.input_names()},
            op.attrs(),
            {slot: [None for _ in op.output(slot)] for slot in op.output_names()},
        )
        for op in program.op.gradient_ops()
    ]


@pytest.mark.parametrize("op_type", [t for t in OP_TYPES if core.op_info(t)["differentiable"]])
def test_gradient(op_type: str) -> None:
    forward = set(kernels(op_type))
    for case in (case for name, case in CASES if name == op_type and case.by):
        types = {test.op_type for test in gradient_tests(op_type, case, np.dtype(float), np.dtype(float))}
        # check_gradients has compared float32.
        for dtype in forward.intersection(*(kernels(t) for t in types)) - {np.dtype(np.float32)}:
            narrow = gradient_tests(op_type, case, dtype, dtype)
            wide = gradient_tests(op_type, case, np.dtype(float), dtype)
            for one, other in zip(narrow, wide):
                slots = tuple(one._expected)
                compare(outputs_of(one, slots), outputs_of(other, slots), dtype)


@pytest.mark.parametrize("op_type", ["fill", "fill_constant", "fill_constant_batch_size_like"])
def test_constants(op_type: str) -> None:
    for dtype in kernels(op_type):
        attrs: dict[str, Any] = {"shape": [2, 3], "dtype": int(core.convert_dtype(dtype))}
        attrs["value"] = [3.0] * 6 if op_type == "fill" else 3.0
        inputs = {"Input": np.zeros((2, 1), np.float32)} if op_type.endswith("like") else {}
        OpTest(op_type, inputs, attrs, {"Out": np.full((2, 3), 3).astype(dtype)}).check_outputs()


def test_random_crops() -> None:
    for dtype in kernels("random_crop"):
        x = whole_numbers((4, 5), dtype)
        test = OpTest("random_crop", {"X": x, "Seed": np.array([3])}, {"shape": [2]}, {"Out": None, "SeedOut": None})
        test.check_outputs()
        (rows,) = outputs_of(test, ("Out",))
        assert rows.dtype == dtype
        for row, given in zip(rows, x):
            assert any(np.array_equal(row, given[i : i + 2]) for i in range(4))


def test_selected_rows() -> None:
    for dtype in kernels("merge_selected_rows"):
        scope, program = fluid.Scope(), fluid.Program()
        block = program.global_block()
        for name in ("x", "merged"):
            block.create_var(name, [6, 2], dtype, persistable=True, type=core.VarType.SELECTED_ROWS)
        out = block.create_var("out")
        block.append_op("merge_selected_rows", {"X": "x"}, {"Out": "merged"})
        block.append_op("get_tensor_from_selected_rows", {"X": "merged"}, {"Out": out})
        rows = scope.var("x").get_selected_rows()
        rows.set_rows([4, 1, 4])
        rows.set_height(6)
        rows.get_tensor().set(np.array([[1, 2], [3, 4], [5, 6]], dtype), fluid.CPUPlace())
        (value,) = fluid.Executor().run(program, fetch_list=[out], scope=scope)
        assert value.dtype == dtype
        np.testing.assert_array_equal(value, [[3, 4], [6, 8]])


def test_no_kernel_has_been_left_out() -> None:
    """Those of operators without one for float64 have tests of their own, for each dtype."""
    others = {
        *("fill", "fill_constant", "fill_constant_batch_size_like", "random_crop"),
        *(
            "assign_value",
            "where",
            "logical_and",
            "logical_not",
            "logical_or",
            "logical_xor",
            "reduce_all",
            "reduce_any",
        ),
        *("range", "diag", "eye"),  # test_form_ops
        *("one_hot", "sequence_mask", "sequence_enumerate", "sequence_erase"),  # test_rearrange_ops, test_token_ops
        *("hash", "one_hot_v2", "shard_index", "unique", "unique_with_counts"),  # test_index_ops
        *("chunk_eval", "ctc_align", "edit_distance", "mean_iou"),  # test_metric_ops, test_token_ops
        "split_ids",  # test_ids_ops
        *("merge_selected_rows", "get_tensor_from_selected_rows"),
        "gather_tree",  # test_beam_search_ops
        "target_assign",  # test_detection_ops
    }
    exotic = {
        t
        for t in core.op_types()
        if not t.startswith(("test_", "plugin_")) and set(core.op_info(t)["kernels"]) - {"float32", "float64"}
    }
    gradients = {f"{t}_grad" for t in OP_TYPES}
    assert exotic - set(OP_TYPES) - gradients - others == set()
