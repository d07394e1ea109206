"""LoDTensor, Scope and the exceptions."""

from __future__ import annotations

import gc
import pickle
import re
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def test_the_floats_of_a_list_become_float32() -> None:
    tensor = fluid.LoDTensor()
    tensor.set([[0.5, 1.5]], fluid.CPUPlace())
    assert np.asarray(tensor).dtype == np.float32
    np.testing.assert_array_equal(tensor, [[0.5, 1.5]])
    tensor.set([2, 3])
    assert np.asarray(tensor).dtype == np.int64
    tensor.set(np.zeros(2))
    assert np.asarray(tensor).dtype == np.float64


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_gives_back_what_was_set(dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    tensor = fluid.LoDTensor()
    tensor.set(array, fluid.CPUPlace())
    assert tensor.shape() == [2, 3, 4]
    assert tensor.dtype() == dtype
    back = np.array(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("array", [np.float32(3).reshape(()), np.zeros((0, 4), np.int64), np.zeros((3, 0), np.float32)])
def test_scalars_and_empty_arrays_keep_their_shape(array: np.ndarray) -> None:
    for copy in (True, False):
        back = np.asarray(fluid.LoDTensor.from_numpy(array, copy=copy))
        assert back.shape == array.shape
        np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4).T,
        np.arange(12)[::-2],
        np.arange(12, dtype=">i4"),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.frombuffer(b"x" + np.arange(4, dtype="<i4").tobytes(), dtype="<i4", offset=1),
    ],
    ids=["transposed", "strided", "big-endian", "fortran", "unaligned"],
)
def test_any_layout_can_be_set(array: np.ndarray) -> None:
    for copy in (True, False):
        np.testing.assert_array_equal(np.asarray(fluid.LoDTensor.from_numpy(array, copy=copy)), array)


@pytest.mark.parametrize("array", [np.zeros(3, complex), np.array(["a"]), np.array([[1], [1, 2]], dtype=object)])
def test_a_dtype_that_no_tensor_holds_is_refused(array: np.ndarray) -> None:
    with pytest.raises(TypeError, match="strings" if array.dtype.kind == "U" else array.dtype.name):
        fluid.LoDTensor().set(array)


def test_none_in_the_place_of_an_array_is_named() -> None:
    with pytest.raises(TypeError, match="expected an array, got None"):
        fluid.LoDTensor().set(None)


def test_set_copies() -> None:
    array = np.zeros(4, np.float32)
    tensor = fluid.LoDTensor()
    tensor.set(array)
    array[:] = 1
    assert np.asarray(tensor).sum() == 0


def test_a_tensor_can_share_an_array_and_keeps_it_alive() -> None:
    array = np.zeros(1000, np.float32)
    tensor = fluid.LoDTensor.from_numpy(array, copy=False)
    assert np.shares_memory(np.asarray(tensor), array)
    count = sys.getrefcount(array)
    del tensor
    gc.collect()
    assert sys.getrefcount(array) == count - 1


def test_read_only_memory_is_not_shared() -> None:
    array = np.zeros(4, np.float32)
    array.setflags(write=False)
    view = np.asarray(fluid.LoDTensor.from_numpy(array, copy=False))
    view[0] = 1
    assert array[0] == 0


def test_a_view_outlives_its_tensor_and_what_the_tensor_holds_later() -> None:
    tensor = fluid.LoDTensor.from_numpy(np.arange(1000))
    view, memory = np.asarray(tensor), memoryview(tensor)
    tensor.set(np.zeros(1000, np.int64))
    del tensor
    gc.collect()
    np.testing.assert_array_equal(view, np.arange(1000))
    np.testing.assert_array_equal(np.frombuffer(memory, np.int64), np.arange(1000))


def test_array_conversion_copies_only_when_asked() -> None:
    tensor = fluid.LoDTensor.from_numpy(np.arange(4, dtype=np.float32))
    assert np.shares_memory(np.asarray(tensor), np.asarray(tensor))
    assert not np.shares_memory(np.array(tensor), np.asarray(tensor))
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64


def test_dlpack_shares_the_memory() -> None:
    tensor = fluid.LoDTensor.from_numpy(np.arange(4, dtype=np.float32))
    array = np.from_dlpack(tensor)
    assert np.shares_memory(array, np.asarray(tensor))


@pytest.mark.parametrize(
    "item",
    [0, -1, slice(1, 3), slice(None, None, -2), (0, slice(2)), (slice(None), -1), Ellipsis, (1, 2, 3), [2, 0]],
)
def test_a_part_of_a_tensor_is_a_copy_without_lod(item: Any) -> None:
    array = np.arange(60, dtype=np.int64).reshape(3, 4, 5)
    tensor = fluid.LoDTensor.from_numpy(array)
    tensor.set_recursive_sequence_lengths([[1, 2]])
    part = tensor[item]
    assert isinstance(part, fluid.LoDTensor)
    assert part.lod() == []
    np.testing.assert_array_equal(np.array(part), array[item])
    np.asarray(part)[...] = -1
    np.testing.assert_array_equal(np.asarray(tensor), array)


def test_a_part_that_is_not_there_is_refused_and_rows_can_be_iterated() -> None:
    tensor = fluid.LoDTensor.from_numpy(np.arange(6.0).reshape(3, 2))
    with pytest.raises(IndexError, match="out of bounds"):
        tensor[3]
    assert [row.shape() for row in tensor] == [[2]] * 3


def test_an_empty_tensor_is_an_array_without_elements() -> None:
    empty = core.Scope().var("x").get_tensor()
    assert not empty._is_initialized()
    assert np.array(empty).shape == np.asarray(empty).shape == (0,)
    copy = core.LoDTensor()
    copy.set(np.array(empty), fluid.CPUPlace())  # so tools rename all that a scope has
    assert copy.shape() == [0]
    for convert in (core.array_of, fluid.executor.as_numpy):
        with pytest.raises(errors.FailedPrecondition, match="no memory yet"):
            convert(empty)


def test_lod_as_offsets_and_as_lengths() -> None:
    tensor = fluid.LoDTensor.from_numpy(np.zeros((9, 2), np.float32))
    tensor.set_recursive_sequence_lengths([[2, 1], [3, 2, 4]])
    assert tensor.lod() == [[0, 2, 3], [0, 3, 5, 9]]
    assert tensor.recursive_sequence_lengths() == [[2, 1], [3, 2, 4]]
    assert tensor.has_valid_recursive_sequence_lengths()
    tensor.set(np.zeros((3, 2), np.float32))
    assert not tensor.has_valid_recursive_sequence_lengths()


def test_a_tensor_may_have_a_lod_before_it_has_data() -> None:
    tensor = fluid.LoDTensor([[2, 1], [3, 2, 4]])
    assert not tensor._is_initialized()
    assert tensor.lod() == [[0, 2, 3], [0, 3, 5, 9]]
    tensor.set(np.zeros((9, 2), np.float32))
    assert tensor.has_valid_recursive_sequence_lengths()
    for wrong in ([[2], [1, 1, 1]], [[-1, 4]]):
        with pytest.raises(ValueError, match=r"(?i)lod|negative"):
            fluid.LoDTensor(wrong)


@pytest.mark.parametrize("lengths", [[[1, 1]], [[2, 2]], [[2], [1, 1, 1]], [[-1, 4]]])
def test_a_lod_that_does_not_fit_is_refused(lengths: list[list[int]]) -> None:
    tensor = fluid.LoDTensor.from_numpy(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match=r"(?i)lod|negative"):
        tensor.set_recursive_sequence_lengths(lengths)
    assert tensor.lod() == []


def test_create_lod_tensor_from_lists_arrays_and_tensors() -> None:
    from_list = fluid.create_lod_tensor([[1, 2, 3], [4]], [[3, 1]], fluid.CPUPlace())
    assert from_list.shape() == [4, 1]
    assert from_list.dtype() == "int64"
    from_array = fluid.create_lod_tensor(np.zeros((4, 2), np.float32), [[3, 1]], fluid.CPUPlace())
    assert from_array.recursive_sequence_lengths() == [[3, 1]]
    assert fluid.create_lod_tensor(from_array, [[2, 2]]).recursive_sequence_lengths() == [[2, 2]]
    with pytest.raises(ValueError, match="lengths"):
        fluid.create_lod_tensor([[1, 2], [3]], [[1, 2]])
    from_floats = fluid.create_lod_tensor([[1.5, 2.0], [0.25]], [[2, 1]])
    np.testing.assert_array_equal(np.asarray(from_floats), [[1.5], [2.0], [0.25]])
    for wrong in (["3", "4"], ["a", "b"], [2**64, 0], [None, 0], [[1], [2, 3]]):
        with pytest.raises(errors.InvalidArgument, match=r"sequence 1 of data is \[.*expected a list of numbers"):
            fluid.create_lod_tensor([[3], wrong], [[1, 2]])
    for levels in ([2, 3], None, [["a"]], [[2.0, 3.0]]):
        message = rf"recursive_seq_lens is a list of levels, .* such as \[\[2, 3\]\]; got {re.escape(repr(levels))}"
        with pytest.raises(errors.TypeMismatch, match=message):
            fluid.create_lod_tensor(np.zeros((5, 1)), levels)
        with pytest.raises(errors.TypeMismatch, match=message):
            fluid.create_random_int_lodtensor(levels, [1], None, 0, 1)
    for data, levels in ([], [[]]), (np.zeros((2, 1)), [[], [2]]):
        with pytest.raises(errors.InvalidArgument, match="level 0 of recursive_seq_lens is empty"):
            fluid.create_lod_tensor(data, levels)
    for data in (np.zeros((5, 1)), [[1, 2], [3, 4, 5]]):
        with pytest.raises(errors.InvalidArgument, match=r"lengths.*\[0, 2, 5\].*: give lengths, not offsets$"):
            fluid.create_lod_tensor(data, [[0, 2, 5]])
    with pytest.raises(errors.InvalidArgument, match=r"the lengths \[2, 2\] .* add up to 4, but there are 5 rows$"):
        fluid.create_lod_tensor(np.zeros((5, 1)), [[2, 2]])
    drawn = fluid.create_random_int_lodtensor([[2, 3]], [4], fluid.CPUPlace(), 1, 3)
    assert drawn.shape() == [5, 4]
    assert set(np.unique(np.asarray(drawn))) <= {1, 2, 3}


def test_a_tensor_array_holds_tensors_only() -> None:
    array = fluid.LoDTensorArray()
    array.append(fluid.LoDTensor())
    assert len(array) == 1
    with pytest.raises(TypeError, match="ndarray"):
        array.append(np.zeros(3))


@pytest.mark.parametrize(("kind", "dtype"), [("float", "float32"), ("double", "float64"), ("int", "int32")])
def test_a_tensor_may_be_given_dims_and_zeros(kind: str, dtype: str) -> None:
    tensor = fluid.LoDTensor.from_numpy(np.ones((2, 2), np.float32))
    tensor._set_dims([3, 4])
    getattr(tensor, f"_alloc_{kind}")(fluid.CPUPlace())
    assert (tensor.shape(), tensor.dtype()) == ([3, 4], dtype)
    np.testing.assert_array_equal(tensor, np.zeros((3, 4)))


@pytest.mark.parametrize(("kind", "dtype", "other"), [("float", "float32", "double"), ("double", "float64", "float")])
def test_elements_are_read_and_set_one_by_one(kind: str, dtype: str, other: str) -> None:
    tensor = fluid.LoDTensor.from_numpy(np.arange(6, dtype=dtype).reshape(2, 3))
    assert tensor._get_dims() == [2, 3]
    get, put = (getattr(tensor, f"_{verb}_{kind}_element") for verb in ("get", "set"))
    assert [get(at) for at in range(6)] == list(range(6))
    put(4, 0.5)
    np.testing.assert_array_equal(tensor, [[0, 1, 2], [3, 0.5, 5]])
    for at in (-1, 6):
        with pytest.raises(IndexError, match=f"element {at} of a tensor of 6"):
            get(at)
        with pytest.raises(IndexError):
            put(at, 1.0)
    for wrong in (lambda: getattr(tensor, f"_get_{other}_element")(0), lambda: fluid.LoDTensor()._get_float_element(0)):
        with pytest.raises((TypeError, RuntimeError)):
            wrong()
    with pytest.raises(TypeError):
        getattr(tensor, f"_set_{other}_element")(0, 1.0)


def test_a_variable_may_hold_a_number() -> None:
    variable = fluid.Scope().var("count")
    assert not variable.is_int()
    variable.set_int(-7)
    assert variable.is_int()
    assert variable.get_int() == -7
    with pytest.raises(TypeError, match="count"):
        variable.get_tensor()


def test_an_array_of_a_variable_changes_with_what_is_put_into_it() -> None:
    scope = fluid.Scope()
    array = scope.var("array").get_lod_tensor_array()
    assert list(array) == []
    for value in (1, 2, 3):
        array.append(fluid.LoDTensor.from_numpy(np.array([value])))
    array[1] = fluid.LoDTensor.from_numpy(np.array([4]))
    del array[0]

    held = scope.find_var("array").get_lod_tensor_array()  # type: ignore[union-attr]
    assert [np.array(tensor).tolist() for tensor in held] == [[4], [3]]
    with pytest.raises(errors.TypeMismatch, match="LoDTensors, got int"):
        array.append(1)  # type: ignore[arg-type]
    assert len(array) == 2


def test_a_stack_of_scopes() -> None:
    outer = fluid.default_scope_funcs.get_cur_scope()
    fluid.default_scope_funcs.var("outer").set_int(1)

    def inner() -> None:
        assert fluid.default_scope_funcs.get_cur_scope() is not outer
        fluid.default_scope_funcs.var("inner").set_int(2)
        found = fluid.default_scope_funcs.find_var("outer")
        assert found is not None
        assert found.get_int() == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fluid.default_scope_funcs.scoped_function(inner)
    assert fluid.default_scope_funcs.get_cur_scope() is outer
    assert fluid.default_scope_funcs.find_var("inner") is None
    with pytest.raises(errors.FailedPrecondition, match="no scope has been entered"):
        fluid.default_scope_funcs.leave_local_scope()


def test_scopes_look_up_in_their_parents() -> None:
    outer = fluid.Scope()
    inner = outer.new_scope()
    outer.var("x").get_tensor().set(np.ones(3, np.float32))
    found = inner.find_var("x")
    assert found is not None
    assert np.asarray(found.get_tensor()).sum() == 3
    assert inner.local_var_names() == []
    inner.var("x")
    assert not inner.find_var("x").is_initialized()
    assert outer.find_var("y") is None


def test_a_kid_scope_lives_as_long_as_somebody_refers_to_it() -> None:
    outer = fluid.Scope()
    kid = outer.new_scope()
    tensor = kid.var("x").get_tensor()
    tensor.set(np.ones(3, np.float32))
    gone = weakref.ref(kid)
    del kid, outer
    gc.collect()
    assert np.asarray(tensor).sum() == 3
    assert gone() is None


def test_a_variable_holds_one_type() -> None:
    variable = fluid.Scope().var("x")
    variable.get_tensor()
    with pytest.raises(TypeError, match="x"):
        variable.get_queue()


def test_errors_are_the_built_in_ones_too() -> None:
    expected = {
        "InvalidArgument": ValueError,
        "TypeMismatch": TypeError,
        "OutOfRange": IndexError,
        "NotFound": KeyError,
        "AlreadyExists": ValueError,
        "FailedPrecondition": RuntimeError,
        "Unimplemented": NotImplementedError,
        "ResourceExhausted": MemoryError,
        "DataLoss": ValueError,
        "IoError": OSError,
        "Timeout": TimeoutError,
        "QueueClosedError": RuntimeError,
    }
    for name, builtin in expected.items():
        cls = getattr(errors, name)
        assert issubclass(cls, builtin)
        assert issubclass(cls, errors.HeadraceError)
        assert str(cls("what went wrong")) == "what went wrong"
        assert str(pickle.loads(pickle.dumps(cls("what went wrong")))) == "what went wrong"


def test_errors_say_where_they_happened() -> None:
    block = fluid.default_main_program().global_block()
    block.create_var(name="x", shape=[2, 3], dtype="float32")
    block.create_var(name="out")
    with pytest.raises(errors.HeadraceError) as caught:
        block.append_op("relu", {"Wrong": "x"}, {"Out": "out"})
    assert caught.value.op_type == "relu"


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32"), core.VarType.FP32, 5])
def test_dtypes_have_many_names(dtype: object) -> None:
    assert core.convert_dtype(dtype) == core.VarDesc.VarType.FP32


@pytest.mark.parametrize("dtype", ["complex64", "nonsense", 7, True])
def test_what_is_no_dtype_is_refused(dtype: object) -> None:
    with pytest.raises(TypeError):
        core.convert_dtype(dtype)


@pytest.mark.parametrize(("kind", "dtype"), [("float", "float32"), ("double", "float64")])
@pytest.mark.parametrize("shares", [np.asarray, memoryview])
@pytest.mark.parametrize("copy", [False, True])
def test_setting_an_element_keeps_the_others_and_what_shares_them(
    kind: str, dtype: str, shares: Callable[[fluid.LoDTensor], object], copy: bool
) -> None:
    array = np.arange(1, 1001, dtype=dtype)
    tensor = fluid.LoDTensor.from_numpy(array, copy=copy)
    shared = shares(tensor)
    getattr(tensor, f"_set_{kind}_element")(7, 0.5)
    np.testing.assert_array_equal(tensor, [*range(1, 8), 0.5, *range(9, 1001)])
    for before in (array, np.asarray(shared)):
        np.testing.assert_array_equal(before, range(1, 1001))


@pytest.mark.parametrize("values", [[1e300, 1.0], [1, -1e39], (0.5, np.float64(1e39)), np.array([1e39])])
def test_a_number_that_overflows_in_a_list_is_refused(values: Any) -> None:
    with pytest.raises(errors.TypeMismatch, match=r"1e\+(300|39).*operator 'assign_value', variable 'fp32_values'"):
        assign_values(values)


@pytest.mark.parametrize(
    "values",
    [
        [0.1, 2],
        [float("inf"), -float("inf")],
        [2**62, 0.5],
        [np.float32(0.1), np.int64(3)],
        np.array([0.1, 1e-300]),
        [3.4028235e38],
    ],
)
def test_a_list_with_a_fraction_is_one_of_float32(values: Any) -> None:
    assert assign_values(values) == [float(np.float32(value)) for value in values]


def assign_values(values: Any) -> list[float]:
    block = fluid.default_main_program().global_block()
    block.create_var(name="out")
    attrs = {"shape": [len(values)], "dtype": core.VarDesc.VarType.FP32, "fp32_values": values}
    kept: list[float] = block.append_op("assign_value", {}, {"Out": "out"}, attrs).attr("fp32_values")
    return kept
