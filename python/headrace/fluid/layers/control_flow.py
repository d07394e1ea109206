"""Comparisons, arrays, and blocks that run on a condition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from headrace import errors
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable

__all__ = [
    "ConditionalBlock",
    "Switch",
    "While",
    "array_length",
    "array_read",
    "array_write",
    "create_array",
    "equal",
    "greater_equal",
    "greater_than",
    "has_inf",
    "has_nan",
    "is_empty",
    "isfinite",
    "less_equal",
    "less_than",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
]


def _bool(op_type: str, inputs: dict[str, Variable], out: Variable | None, name: str | None = None) -> Variable:
    for slot, value in inputs.items():
        check_variable(value, slot, op_type)
    helper = LayerHelper(op_type, name)
    out = helper.create_variable("bool", stop_gradient=True) if out is None else out
    helper.append_op(inputs, {"Out": out})
    return out


def less_than(x: Variable, y: Variable, force_cpu: bool | None = None, cond: Variable | None = None) -> Variable:
    """x < y, element by element; ``y`` is broadcast. ``cond`` receives the result, if given. ``force_cpu`` has no
    effect.
    """
    return _bool("less_than", {"X": x, "Y": y}, cond)


def less_equal(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
    """x ≤ y; see less_than."""
    return _bool("less_equal", {"X": x, "Y": y}, cond)


def greater_than(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
    """x > y; see less_than."""
    return _bool("greater_than", {"X": x, "Y": y}, cond)


def greater_equal(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
    """x ≥ y; see less_than."""
    return _bool("greater_equal", {"X": x, "Y": y}, cond)


def equal(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
    """x = y; see less_than."""
    return _bool("equal", {"X": x, "Y": y}, cond)


def not_equal(x: Variable, y: Variable, cond: Variable | None = None) -> Variable:
    """x ≠ y; see less_than."""
    return _bool("not_equal", {"X": x, "Y": y}, cond)


def logical_and(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Whether both are true, element by element. ``out`` receives the result, if it is given."""
    return _bool("logical_and", {"X": x, "Y": y}, out, name)


def logical_or(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Whether one of the two is true; see logical_and."""
    return _bool("logical_or", {"X": x, "Y": y}, out, name)


def logical_xor(x: Variable, y: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Whether just one of the two is true; see logical_and."""
    return _bool("logical_xor", {"X": x, "Y": y}, out, name)


def logical_not(x: Variable, out: Variable | None = None, name: str | None = None) -> Variable:
    """Whether it is not true; see logical_and."""
    return _bool("logical_not", {"X": x}, out, name)


def is_empty(x: Variable, cond: Variable | None = None) -> Variable:
    """Whether ``x`` has no elements; bool [1]."""
    return _bool("is_empty", {"X": x}, cond)


def isfinite(x: Variable) -> Variable:
    """Whether all elements are finite; bool [1]."""
    return _bool("isfinite", {"X": x}, None)


def has_inf(x: Variable) -> Variable:
    """Whether any element is infinite; bool [1]."""
    return _bool("isinf", {"X": x}, None)


def has_nan(x: Variable) -> Variable:
    """Whether any element is NaN; bool [1]."""
    return _bool("isnan", {"X": x}, None)


def create_array(dtype: Any) -> Variable:
    """A list of tensors, empty at the start of each run."""
    helper = LayerHelper("array")
    block = helper.main_program.current_block()
    return block.create_var(name=helper.name, dtype=dtype, type=VarType.LOD_TENSOR_ARRAY)


def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Copies ``x`` to place ``i`` (int64 [1]) of ``array``, or of a new one. Returns the array."""
    array = create_array(check_variable(x, "x", "array_write").dtype) if array is None else array
    LayerHelper("array_write").append_op({"X": x, "I": i}, {"Out": array}, type="write_to_array")
    return array


def array_read(array: Variable, i: Variable) -> Variable:
    """The tensor at place ``i`` (int64 [1]) of ``array``."""
    helper = LayerHelper("array_read")
    out = helper.create_variable(check_variable(array, "array", "array_read").dtype)
    helper.append_op({"X": array, "I": i}, {"Out": out}, type="read_from_array")
    return out


def array_length(array: Variable) -> Variable:
    """How many places ``array`` has; int64 [1]."""
    helper = LayerHelper("array_length")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"X": check_variable(array, "array", "array_length")}, {"Out": out}, type="lod_array_length")
    return out


def _outer_names(block: Block) -> tuple[list[str], list[str]]:
    """The variables of the blocks around ``block`` that it reads before it writes them, and those that it writes."""
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    for op in block.ops:
        reads.update((name, None) for name in op.input_arg_names if not block.has_var(name) and name not in writes)
        writes.update((name, None) for name in op.output_arg_names if not block.has_var(name))
    return list(reads), list(writes)


@contextlib.contextmanager
def _inner_block(helper: LayerHelper) -> Iterator[Block]:
    """Within it, layers add their operators to a new block within the current one."""
    program = helper.main_program
    block = program._create_block()
    try:
        yield block
    finally:
        program._rollback()


def _check_condition(cond: Variable, layer: str) -> None:
    if check_variable(cond, "cond", layer).dtype != VarType.BOOL:
        raise errors.TypeMismatch(f"layers.{layer}: the condition '{cond.name}' must be a bool, is {cond.dtype.name}")


class While:
    """Runs a block again and again, as long as a condition holds.

    ::

        i = layers.fill_constant([1], "int64", 0)
        n = layers.fill_constant([1], "int64", 10)
        cond = layers.less_than(i, n)
        loop = layers.While(cond)
        with loop.block():
            ...
            layers.increment(i)
            layers.less_than(i, n, cond=cond)

    Variables that the block creates start anew at each step; what should last belongs in a variable of the block around
    it. Ctrl-C ends an endless loop. A loss cannot be differentiated through a loop: StaticRNN can.

    Args:
        cond: bool [1]; the block has to change it.
        is_test: Fluid's; has no effect.
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        _check_condition(cond, "While")
        self._helper = LayerHelper("while", name)
        self._cond = cond

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers are added to the loop."""
        with _inner_block(self._helper) as block:
            yield
        reads, writes = _outer_names(block)
        if self._cond.name not in writes:
            raise errors.InvalidArgument(
                f"layers.While: the block does not change its condition '{self._cond.name}', so that it would never end"
            )
        self._helper.append_op({"X": reads, "Condition": self._cond}, {"Out": writes}, {"sub_block": block})


class ConditionalBlock:
    """Runs a block if its conditions hold. Otherwise what it writes stays as it is. Not differentiable.

    Args:
        inputs: the conditions: bools [1] with ``is_scalar_condition``; otherwise, a tensor holds if it is not empty.
    """

    def __init__(self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None) -> None:
        self._helper = LayerHelper("conditional_block", name)
        self._inputs = [check_variable(item, "inputs", "ConditionalBlock") for item in inputs]
        if not self._inputs:
            raise errors.InvalidArgument("layers.ConditionalBlock: there is no condition")
        for item in self._inputs if is_scalar_condition else ():
            _check_condition(item, "ConditionalBlock")
        self._is_scalar_condition = is_scalar_condition

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers are added to the block."""
        with _inner_block(self._helper) as block:
            yield
        reads, writes = _outer_names(block)
        self._helper.append_op(
            {"Cond": self._inputs, "Input": reads},
            {"Out": writes},
            {"sub_block": block, "is_scalar_condition": self._is_scalar_condition},
        )


class Switch:
    """Runs the block of the first case that holds.

    ::

        with layers.Switch() as switch:
            with switch.case(first):
                layers.assign(a, output=rate)
            with switch.default():
                layers.assign(b, output=rate)
    """

    def __init__(self, name: str | None = None) -> None:
        self._none_before: Variable | None = None
        self._has_default = False

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @contextlib.contextmanager
    def case(self, condition: Variable) -> Iterator[None]:
        """Within it, layers are added to the block that runs if ``condition``, bool [1], is the first that holds."""
        if self._has_default:
            raise errors.FailedPrecondition("layers.Switch: no case can follow the default")
        _check_condition(condition, "Switch")
        otherwise = logical_not(condition)
        taken = condition
        if self._none_before is not None:
            taken = logical_and(self._none_before, condition)
            otherwise = logical_and(self._none_before, otherwise)
        self._none_before = otherwise
        with ConditionalBlock([taken], is_scalar_condition=True).block():
            yield

    @contextlib.contextmanager
    def default(self) -> Iterator[None]:
        """Within it, layers are added to the block that runs if no case holds."""
        if self._none_before is None or self._has_default:
            raise errors.FailedPrecondition("layers.Switch: there is one default, after at least one case")
        self._has_default = True
        with ConditionalBlock([self._none_before], is_scalar_condition=True).block():
            yield
