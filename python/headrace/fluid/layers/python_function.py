"""Python functions as operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import LayerHelper, check_variable

__all__ = ["py_func"]

Variables = Union[Variable, Sequence[Variable], None]


def py_func(
    func: Callable[..., Any],
    x: Variables,
    out: Variables,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Variables = None,
) -> Variables:
    """Calls ``func`` with the values of ``x``, as LoDTensors, whenever the program runs; its results become
    ``out``.

    A function must not change its arguments, nor run the program that calls it. Its exceptions are raised by
    ``Executor.run`` as it is. A program that calls functions cannot be loaded by another process.

    Args:
        x: a variable, several, or None.
        out: as ``x``; made by ``Block.create_var`` with the dtypes and shapes (-1: any) that ``func`` returns: a
            LoDTensor or an array for each, in a tuple if there are several.
        backward_func: is called with ``x``, ``out`` and the gradients of ``out`` (None where there is none) and returns
            the gradients of ``x``, None where none is wanted. None: no gradient passes.
        skip_vars_in_backward_input: variables of ``x`` and ``out`` that ``backward_func`` is not called with.

    Returns:
        ``out``.

    Raises:
        TypeMismatch: a function cannot be called, or a variable is none; when the program runs: a result has another
            dtype than its variable.
        InvalidArgument: a variable of ``out`` has no shape, or one to be skipped is neither in ``x`` nor in ``out``;
            when the program runs: a result is missing or has another shape than its variable.
    """
    if not callable(func):
        raise errors.TypeMismatch(f"layers.py_func: func has to be a function, got {func!r}")
    inputs, outputs, skipped = (
        _variables(x, "x"),
        _variables(out, "out"),
        _variables(skip_vars_in_backward_input, "skip"),
    )
    for variable in outputs:
        if not variable.shape:
            raise errors.InvalidArgument(f"layers.py_func: the shape of '{variable.name}' in out has to be given")
    known = {variable.name for variable in (*inputs, *outputs)}
    for variable in skipped:
        if variable.name not in known or backward_func is None:
            raise errors.InvalidArgument(
                f"layers.py_func: skip_vars_in_backward_input has '{variable.name}', which backward_func would not get"
            )
    functions = [core.PyFunction(f) for f in (func, backward_func) if f is not None]
    attrs: dict[str, Any] = {"forward_callable_id": functions[0].id}
    if backward_func is not None:
        attrs["backward_callable_id"] = functions[1].id
        attrs["backward_skip_vars"] = [variable.name for variable in skipped]
    LayerHelper("py_func").append_op({"X": inputs}, {"Out": outputs}, attrs)
    return out


def _variables(value: Variables, what: str) -> list[Variable]:
    items = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
    return [check_variable(item, what, "py_func") for item in items]
