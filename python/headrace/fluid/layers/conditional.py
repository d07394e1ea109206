"""Choices and loops as functions of functions, over the blocks of :mod:`headrace.fluid.layers.control_flow`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from headrace import errors
from headrace.fluid._names import free_name
from headrace.fluid.core import VarType, dtype_name
from headrace.fluid.framework import Variable, default_main_program
from headrace.fluid.layer_helper import check_list, check_variable
from headrace.fluid.layers.control_flow import ConditionalBlock, While, _check_condition, equal, logical_not
from headrace.fluid.layers.structure import flatten, map_structure, pack
from headrace.fluid.layers.tensor import assign, cast, fill_constant

__all__ = ["case", "cond", "switch_case", "while_loop"]

#: Adds layers, and returns a variable, a structure of variables or None.
Branch = Callable[[], Any]


class _Result:
    """What two branches give: a variable around them for each variable of theirs."""

    def __init__(self, layer: str) -> None:
        self._layer = layer
        self._structure: Any = None
        self._outer: list[Variable] = []

    def take(self, given: Any, is_first: bool) -> None:
        """Copies the results of the branch whose block is being defined."""
        items = [] if given is None else [self._checked(item) for item in flatten(given)]
        if is_first:
            self._structure = given
            self._outer = [self._declared(item) for item in items]
            for outer, item in zip(self._outer, items):
                assign(item, output=outer)
            return
        if (given is None) != (self._structure is None):
            raise errors.InvalidArgument(f"layers.{self._layer}: one branch returns variables, another None")
        if given is None:
            return
        map_structure(lambda a, b: None, self._structure, given)
        for outer, item in zip(self._outer, items):
            if outer.dtype != item.dtype:
                raise errors.TypeMismatch(
                    f"layers.{self._layer}: the branches return {dtype_name(outer.dtype)} and {dtype_name(item.dtype)} "
                    "in the same place"
                )
            known = outer.shape
            assign(item, output=outer)
            outer.stop_gradient = outer.stop_gradient and item.stop_gradient
            outer.desc.shape = _either(known, item.shape)

    def _checked(self, item: Any) -> Variable:
        if not isinstance(item, Variable):
            raise errors.TypeMismatch(
                f"layers.{self._layer}: a branch has to return variables, got {type(item).__name__}; create one with "
                "layers.fill_constant or layers.assign"
            )
        return item

    def _declared(self, item: Variable) -> Variable:
        """A variable of the block around the one that is being described."""
        program = default_main_program()
        with program._block_guard():
            name = free_name(self._layer, program)
            return program.current_block().create_var(name, dtype=item.dtype, stop_gradient=item.stop_gradient)

    def value(self) -> Any:
        return None if self._structure is None else pack(self._structure, self._outer)


def _either(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """The shape of a variable that may have either shape."""
    if len(a) != len(b):
        return list(b)
    return [x if x == y else -1 for x, y in zip(a, b)]


def cond(pred: Variable, true_fn: Branch | None = None, false_fn: Branch | None = None, name: str | None = None) -> Any:
    """The result of ``true_fn`` if ``pred`` holds, else of ``false_fn``; only that one is computed.

    ::

        out = layers.cond(layers.less_than(a, b), lambda: a + b, lambda: a * b)

    Losses are differentiated through the branch that has been taken.

    Args:
        pred: bool [1].
        true_fn, false_fn: add layers, and return a variable, a structure (lists, tuples, dicts) of variables, or None;
            both the same, with the same dtypes. None: nothing.

    Raises:
        InvalidArgument, TypeMismatch: the branches return different structures or dtypes, or ``pred`` is no bool [1].
    """
    _check_condition(pred, "cond")
    branches = [(pred, true_fn), (None, false_fn)]
    result = _Result("cond")
    described = False
    for holds, branch in branches:
        if branch is None:
            continue
        if not callable(branch):
            raise errors.TypeMismatch(f"layers.cond: true_fn and false_fn are functions, got {type(branch).__name__}")
        with ConditionalBlock([logical_not(pred) if holds is None else holds], is_scalar_condition=True).block():
            result.take(branch(), is_first=not described)
        described = True
    if (true_fn is None) != (false_fn is None) and result.value() is not None:
        raise errors.InvalidArgument("layers.cond: one branch returns variables, the other is None")
    return result.value()


def case(
    pred_fn_pairs: Sequence[tuple[Variable, Branch]], default: Branch | None = None, name: str | None = None
) -> Any:
    """The result of the function of the first condition that holds, else of ``default``.

    Args:
        pred_fn_pairs: conditions, bool [1], and functions as of cond.
        default: None: the last function.
    """
    if not isinstance(pred_fn_pairs, (list, tuple)) or not pred_fn_pairs:
        raise errors.TypeMismatch("layers.case: pred_fn_pairs has to be a list of (condition, function) with elements")
    for pair in pred_fn_pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not callable(pair[1]):
            raise errors.TypeMismatch(
                f"layers.case: pred_fn_pairs has to consist of (condition, function), got {pair!r}"
            )
        _check_condition(pair[0], "case")
    pairs = list(pred_fn_pairs)
    if default is None:
        default = pairs.pop()[1]
    if not callable(default):
        raise errors.TypeMismatch(f"layers.case: default is a function, got {type(default).__name__}")
    otherwise: Branch = default
    for pred, function in reversed(pairs):
        otherwise = _chosen(pred, function, otherwise)
    return otherwise()


def _chosen(pred: Variable, function: Branch, otherwise: Branch) -> Branch:
    return lambda: cond(pred, function, otherwise)


Branches = Union[Mapping[int, Branch], Sequence[Union[Branch, tuple[int, Branch]]]]


def switch_case(
    branch_index: Variable, branch_fns: Branches, default: Branch | None = None, name: str | None = None
) -> Any:
    """The result of the function for the number ``branch_index``, else of ``default``.

    Args:
        branch_index: int32 or int64 [1].
        branch_fns: functions as of cond, by their numbers: a dict, pairs, or a list whose places are the numbers.
        default: None: the function of the greatest number.
    """
    branch_index = check_variable(branch_index, "branch_index", "switch_case")
    if branch_index.dtype not in (VarType.INT32, VarType.INT64, VarType.UINT8):
        raise errors.TypeMismatch(
            f"layers.switch_case: branch_index has to be an integer, is {dtype_name(branch_index.dtype)}"
        )
    listed = (
        list(branch_fns.items())
        if isinstance(branch_fns, Mapping)
        else check_list(branch_fns, "branch_fns", "switch_case")
    )
    functions: dict[int, Branch] = {}
    for place, item in enumerate(listed):
        number, function = item if isinstance(item, tuple) else (place, item)
        if not isinstance(number, int) or not callable(function):
            raise errors.TypeMismatch(
                f"layers.switch_case: branch_fns has to consist of functions, or of (number, function), got {item!r}"
            )
        if number in functions:
            raise errors.InvalidArgument(f"layers.switch_case: there are two functions for {number}")
        functions[number] = function
    if not functions:
        raise errors.InvalidArgument("layers.switch_case: branch_fns has no function")
    index = branch_index if branch_index.dtype == VarType.INT64 else cast(branch_index, "int64")
    ordered = sorted(functions.items())
    if default is None:
        default = ordered.pop()[1]
        if not ordered:
            return default()
    pairs = [(equal(index, fill_constant([1], "int64", number)), function) for number, function in ordered]
    return case(pairs, default)


def while_loop(
    cond: Callable[..., Variable],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    is_test: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Calls ``body`` with its previous results, first with ``loop_vars``, while ``cond`` of these holds.

    ::

        i, total = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "float32", 0)
        i, total = layers.while_loop(lambda i, s: i < n, lambda i, s: [layers.increment(i), s + x], [i, total])

    Losses are differentiated through loops: for that, each step's variables are kept.

    Args:
        cond: of the loop's variables, to a bool [1].
        body: of the loop's variables, to as many of the same structure, shapes and dtypes; arrays that it has written
            to are returned as they are.
        loop_vars: variables, or structures of them. They themselves are not changed, arrays excepted.
        is_test: no gradient is wanted.

    Returns:
        The loop's variables in the end, as many as ``loop_vars``.

    Raises:
        InvalidArgument, TypeMismatch: an argument or a result does not fit.
    """
    if not callable(cond) or not callable(body):
        raise errors.TypeMismatch("layers.while_loop: cond and body are functions")
    if not isinstance(loop_vars, (list, tuple)) or not loop_vars:
        raise errors.TypeMismatch("layers.while_loop: loop_vars has to be a list or tuple of variables with elements")
    for item in flatten(loop_vars):
        item = check_variable(item, "loop_vars", "while_loop")
    state = map_structure(lambda item: item if _is_array(item) else assign(item), list(loop_vars))
    going = cond(*state)
    _check_condition(going, "while_loop")
    going = assign(going)
    loop = While(going, is_test, name)
    with loop.block():
        returned = body(*state)
        after = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        if len(after) != len(state):
            raise errors.InvalidArgument(
                f"layers.while_loop: body has to return {len(state)} values, as many as loop_vars has, got {len(after)}"
            )
        map_structure(_check_successor, state, after)
        replace_all(state, after)
        assign(cond(*state), output=going)
    return state  # type: ignore[no-any-return]


def replace_all(variables: Any, values: Any) -> None:
    """Has the next step of a loop find ``values`` in ``variables``, of the same structure. All are read before one is
    written: they may change places.
    """
    written = {variable.name for variable in flatten(variables)}
    kept = map_structure(
        lambda old, new: assign(new) if new.name in written and new.name != old.name else new, variables, values
    )
    map_structure(lambda old, new: old if new.name == old.name else assign(new, output=old), variables, kept)


def _is_array(item: Any) -> bool:
    return isinstance(item, Variable) and item.type == VarType.LOD_TENSOR_ARRAY


def _check_successor(old: Variable, new: Any) -> None:
    new = check_variable(new, "what body returns", "while_loop")
    if _is_array(old) and new.name != old.name:
        raise errors.InvalidArgument(
            f"layers.while_loop: body has to return the array '{old.name}' itself, written to, got '{new.name}'"
        )
    if old.dtype != new.dtype:
        raise errors.TypeMismatch(
            f"layers.while_loop: '{old.name}' is {dtype_name(old.dtype)}, but body returns {dtype_name(new.dtype)} for "
            "it"
        )
