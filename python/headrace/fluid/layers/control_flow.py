"""Comparisons, arrays, and blocks that run on a condition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid._names import free_name
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable, check_variables
from headrace.fluid.layers.tensor import assign

__all__ = [
    "ConditionalBlock",
    "IfElse",
    "Print",
    "Switch",
    "While",
    "array_length",
    "array_read",
    "array_to_lod_tensor",
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
    "lod_rank_table",
    "lod_tensor_to_array",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "max_sequence_len",
    "merge_lod_tensor",
    "not_equal",
    "reorder_lod_tensor_by_rank",
    "shrink_memory",
    "split_lod_tensor",
]


def _bool(op_type: str, inputs: dict[str, Variable], out: Variable | None, name: str | None = None) -> Variable:
    for slot, value in inputs.items():
        value = check_variable(value, slot, op_type)
    helper = LayerHelper(op_type, name)
    out = helper.create_variable("bool", stop_gradient=True, name=name) if out is None else out
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


def Print(
    input: Variable,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
) -> Variable:
    """Passes ``input`` on, and shows it, its gradient, or both on standard error at each run.

    Args:
        first_n: how often; 0 or less: always.
        message: text to print before it.
        summarize: how many elements are shown; -1: all.
        print_phase: "forward": the variable; "backward": its gradient; "both".
    """
    helper = LayerHelper("print")
    out = helper.create_variable(check_variable(input, "input", "Print").dtype)
    attrs = {
        "first_n": first_n,
        "message": message or "",
        "summarize": summarize,
        "print_tensor_name": print_tensor_name,
        "print_tensor_type": print_tensor_type,
        "print_tensor_shape": print_tensor_shape,
        "print_tensor_lod": print_tensor_lod,
        "print_phase": str(print_phase).upper(),
    }
    helper.append_op({"In": input}, {"Out": out}, attrs)
    return out


def create_array(dtype: Any) -> Variable:
    """A list of tensors, empty at the start of each run."""
    helper = LayerHelper("array")
    return _new_array(helper, dtype)


def _new_array(helper: LayerHelper, dtype: Any) -> Variable:
    return _array(helper, free_name(f"{helper.name}.out", helper.main_program, bare=True), dtype)


def _array(helper: LayerHelper, name: str, dtype: Any) -> Variable:
    return helper.create_variable(dtype, None, name, type=VarType.LOD_TENSOR_ARRAY)


def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Copies ``x`` to place ``i`` (int64 [1]) of ``array``, or of a new one. Returns the array."""
    helper = LayerHelper("array_write")
    dtype = check_variable(x, "x", "array_write").dtype
    array = _new_array(helper, dtype) if array is None else array
    helper.append_op({"X": x, "I": check_variable(i, "i", "array_write")}, {"Out": array}, type="write_to_array")
    return array


def array_read(array: Variable, i: Variable) -> Variable:
    """The tensor at place ``i`` (int64 [1]) of ``array``."""
    helper = LayerHelper("array_read")
    out = helper.create_variable(check_variable(array, "array", "array_read").dtype)
    helper.append_op({"X": array, "I": check_variable(i, "i", "array_read")}, {"Out": out}, type="read_from_array")
    return out


def array_length(array: Variable) -> Variable:
    """How many places ``array`` has; int64 [1]."""
    helper = LayerHelper("array_length")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"X": check_variable(array, "array", "array_length")}, {"Out": out}, type="lod_array_length")
    return out


def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """The sequences of level ``level`` of the LoD of ``x`` with their lengths, longest first."""
    helper = LayerHelper("lod_rank_table")
    # Fluid takes a second number for the variable.
    table = helper.create_variable(
        name=free_name("lod_rank_table", helper.main_program), type=VarType.LOD_RANK_TABLE, stop_gradient=True
    )
    helper.append_op({"X": check_variable(x, "x", "lod_rank_table")}, {"Out": table}, {"level": level})
    return table


def max_sequence_len(rank_table: Variable) -> Variable:
    """The length of the longest sequence of a rank table; int64 [1]."""
    helper = LayerHelper("max_sequence_len")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"RankTable": check_variable(rank_table, "rank_table", "max_sequence_len")}, {"Out": out})
    return out


def lod_tensor_to_array(x: Variable, table: Variable) -> Variable:
    """Cuts the sequences ``x`` into steps: element t of the array has part t of each sequence that is so long, in the
    order of the rank table.
    """
    helper = LayerHelper("lod_tensor_to_array")
    name = free_name("lod_tensor_to_array", helper.main_program)  # a second number, as in Fluid
    array = _array(helper, name, check_variable(x, "x", "lod_tensor_to_array").dtype)
    helper.append_op({"X": x, "RankTable": table}, {"Out": array})
    return array


def array_to_lod_tensor(x: Variable, table: Variable) -> Variable:
    """Puts the steps ``x`` together to sequences, in the order that they had before ``lod_tensor_to_array``."""
    return _by_table("array_to_lod_tensor", x, table)


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """The rows or, with a LoD, the sequences of ``x`` in the order of a rank table."""
    return _by_table("reorder_lod_tensor_by_rank", x, rank_table)


def shrink_memory(x: Variable, i: Variable, table: Variable) -> Variable:
    """The first rows or sequences of ``x``, as many as there are sequences that have a step ``i`` (int64 [1])."""
    return _by_table("shrink_rnn_memory", x, table, I=i)


def _by_table(op_type: str, x: Variable, table: Variable, **inputs: Variable) -> Variable:
    helper = LayerHelper(op_type)
    out = helper.create_variable(check_variable(x, "x", op_type).dtype)
    helper.append_op({"X": x, "RankTable": check_variable(table, "table", op_type), **inputs}, {"Out": out})
    return out


def split_lod_tensor(input: Variable, mask: Variable, level: int = 0) -> tuple[Variable, Variable]:
    """The rows or, with a LoD, the sequences of level ``level`` of ``input`` for which ``mask`` (bool, one element for
    each) is true, and the others.
    """
    helper = LayerHelper("split_lod_tensor")
    dtype = check_variable(input, "input", "split_lod_tensor").dtype
    true, false = helper.create_variable(dtype), helper.create_variable(dtype)
    helper.append_op({"X": input, "Mask": mask}, {"OutTrue": true, "OutFalse": false}, {"level": level})
    return true, false


def merge_lod_tensor(in_true: Variable, in_false: Variable, x: Variable, mask: Variable, level: int = 0) -> Variable:
    """Merges the parts of ``split_lod_tensor``; ``x`` is the input of that layer."""
    helper = LayerHelper("merge_lod_tensor")
    out = helper.create_variable(check_variable(in_true, "in_true", "merge_lod_tensor").dtype)
    helper.append_op({"X": x, "Mask": mask, "InTrue": in_true, "InFalse": in_false}, {"Out": out}, {"level": level})
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
def _inner_block(helper: LayerHelper, append_op: Callable[[Block], object]) -> Iterator[None]:
    """Within it, layers are added to a new block within the current one. Then ``append_op`` adds the operator that runs
    the block, which stays empty if either fails.
    """
    program = helper.main_program
    with program._new_block() as block:
        yield
        with program._block_guard():
            append_op(block)
            helper._skip_generated_name()


def _check_condition(cond: Variable, layer: str, single: bool = True) -> None:
    if check_variable(cond, "cond", layer).dtype != VarType.BOOL:
        raise errors.TypeMismatch(
            f"layers.{layer}: the condition '{cond.name}' must be a bool, got {core.dtype_name(cond.dtype)}"
        )
    if single and any(d not in (1, -1) for d in cond.shape):
        raise errors.TypeMismatch(
            f"layers.{layer}: the condition '{cond.name}' must be a single bool, has shape {list(cond.shape)}"
        )


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

    Variables that the block creates are new in each step; values that should last belong in a variable of the block
    around it. Ctrl-C ends an endless loop. Losses are differentiated through loops: for that, each step's variables are
    kept.

    Args:
        cond: bool [1]; the block has to change it.
        is_test: no gradient is wanted.
    """

    def __init__(self, cond: Variable, is_test: bool = False, name: str | None = None) -> None:
        _check_condition(cond, "While")
        self._is_test = bool(is_test)
        self._helper = LayerHelper("while", name)
        self._cond = cond

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers are added to the loop."""
        with _inner_block(self._helper, self._append_op):
            yield

    def _append_op(self, block: Block) -> None:
        reads, writes = _outer_names(block)
        if self._cond.name not in writes:
            raise errors.InvalidArgument(
                f"layers.While: the block does not change its condition '{self._cond.name}', so that it would never end"
            )
        self._helper.append_op(
            {"X": reads, "Condition": self._cond}, {"Out": writes}, {"sub_block": block, "is_test": self._is_test}
        )


class ConditionalBlock:
    """Runs a block if its conditions hold. Otherwise the variables that it writes keep their values.

    Args:
        inputs: the conditions: bools [1] with ``is_scalar_condition``; otherwise, a tensor holds if it is not empty.
    """

    def __init__(self, inputs: Sequence[Variable], is_scalar_condition: bool = False, name: str | None = None) -> None:
        self._helper = LayerHelper("conditional_block", name)
        self._inputs = check_variables(inputs, "inputs", "ConditionalBlock")
        if not self._inputs:
            raise errors.InvalidArgument("layers.ConditionalBlock: there is no condition")
        for item in self._inputs if is_scalar_condition else ():
            _check_condition(item, "ConditionalBlock")
        self._is_scalar_condition = is_scalar_condition

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Within it, layers are added to the block."""
        with _inner_block(self._helper, self._append_op):
            yield

    def _append_op(self, block: Block) -> None:
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
        with ConditionalBlock([taken], is_scalar_condition=True).block():
            yield
        self._none_before = otherwise

    @contextlib.contextmanager
    def default(self) -> Iterator[None]:
        """Within it, layers are added to the block that runs if no case holds."""
        if self._none_before is None or self._has_default:
            raise errors.FailedPrecondition("layers.Switch: only one default is allowed, after at least one case")
        with ConditionalBlock([self._none_before], is_scalar_condition=True).block():
            yield
        self._has_default = True


class IfElse:
    """Computes one thing for the rows for which a condition is true, another for the others, and puts the results
    together.

    ::

        choice = layers.IfElse(layers.less_than(x, limit))  # bool [rows, 1]
        with choice.true_block():
            choice.output(layers.scale(choice.input(x), 2.0))
        with choice.false_block():
            choice.output(choice.input(x))
        (out,) = choice()

    Both blocks are run, each with its rows, of which there may be none.
    """

    def __init__(self, cond: Variable, name: str | None = None) -> None:
        _check_condition(cond, "IfElse", single=False)
        self._helper = LayerHelper("ifelse", name)
        self._cond = cond
        self._side: bool | None = None  # while a block is described
        self._parted: dict[str, tuple[Variable, Variable]] = {}
        self._outputs: dict[bool, list[Variable]] = {}

    @contextlib.contextmanager
    def _block(self, side: bool) -> Iterator[None]:
        if self._side is not None or side in self._outputs:
            raise errors.FailedPrecondition(
                "layers.IfElse: only one block is allowed for each case, and none within the other"
            )
        self._side, self._outputs[side] = side, []
        try:
            with ConditionalBlock([self._cond]).block():
                yield
        except BaseException:
            del self._outputs[side]
            raise
        finally:
            self._side = None

    def true_block(self) -> contextlib.AbstractContextManager[None]:
        """Within it, layers are added for the rows for which the condition is true."""
        return self._block(True)

    def false_block(self) -> contextlib.AbstractContextManager[None]:
        """Within it, layers are added for the other rows."""
        return self._block(False)

    def input(self, x: Variable) -> Variable:
        """The rows of ``x`` that the block is for."""
        if self._side is None:
            raise errors.FailedPrecondition("layers.IfElse: input must be called in a block")
        x = check_variable(x, "x", "IfElse.input")
        if x.name not in self._parted:
            with self._helper.main_program._block_guard():
                self._parted[x.name] = split_lod_tensor(x, self._cond)
        return self._parted[x.name][0 if self._side else 1]

    def output(self, *outs: Variable) -> None:
        """The results of the block, as many as those of the other."""
        if self._side is None:
            raise errors.FailedPrecondition("layers.IfElse: output must be called in a block")
        for item in outs:
            item = check_variable(item, "output", "IfElse.output")
            with self._helper.main_program._block_guard():
                outer = self._helper.create_variable(item.dtype)
            assign(item, output=outer)
            self._outputs[self._side].append(outer)

    def __call__(self) -> list[Variable]:
        """The results. If only one block was described, its rows alone."""
        if self._side is not None or not self._outputs:
            raise errors.FailedPrecondition("layers.IfElse: the results are available after its blocks")
        true, false = self._outputs.get(True, []), self._outputs.get(False, [])
        if not true or not false:
            return list(true or false)
        if len(true) != len(false):
            raise errors.InvalidArgument(
                f"layers.IfElse: both blocks need the same number of outputs, they have {len(true)} and {len(false)}"
            )
        return [merge_lod_tensor(t, f, self._cond, self._cond) for t, f in zip(true, false)]
