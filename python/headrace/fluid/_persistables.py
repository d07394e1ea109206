"""The values of variables that outlive a run: out of a scope to be saved, and, loaded, back into one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid._checks import check_instance
from headrace.fluid.compiler import AnyProgram, program_of
from headrace.fluid.core import LoDTensor, Scope, VarType
from headrace.fluid.framework import Variable

__all__ = ["assign", "is_persistable", "persistables", "put", "values_of"]


def is_persistable(var: Variable) -> bool:
    """A predicate of ``save_vars`` and ``load_vars``: whether ``var`` is a persistable tensor."""
    check_instance(var, Variable, "is_persistable: var")
    return var.persistable and var.type == VarType.LOD_TENSOR


def persistables(program: AnyProgram | None) -> list[Variable]:
    """The tensors of a program that outlive a run, also those that are not to be saved with the parameters; one
    variable for each name, in the order of their names.
    """
    variables = program_of(program).list_vars()
    kept = {var.name: var for var in variables if var.desc.persistable and var.type == VarType.LOD_TENSOR}
    return [kept[name] for name in sorted(kept)]


def values_of(variables: Iterable[Variable], scope: Scope) -> dict[str, LoDTensor]:
    """The values of variables, by name: the scope's own tensors. NotFound if one has none."""
    values = {}
    for var in variables:
        holder = scope.find_var(var.name)
        if holder is None or not holder.is_initialized() or not holder.get_tensor()._is_initialized():
            raise errors.NotFound(f"'{var.name}' has no value in the scope to be saved: run the startup program first")
        values[var.name] = holder.get_tensor()
    return values


def assign(
    variables: Iterable[Variable], values: Mapping[str, LoDTensor | np.ndarray], scope: Scope, source: str = "saved"
) -> None:
    """Gives variables their values, or raises and changes none. A variable of an enclosing scope stays there.

    Args:
        source: what was done with the values, for messages.

    Raises:
        InvalidArgument, TypeMismatch: a value does not have the variable's shape or dtype.
    """
    variables, tensors = list(variables), {}
    computed = _computed(variables)
    for var in variables:
        value, wanted = values[var.name], core.dtype_name(var.dtype)
        if isinstance(value, np.ndarray):
            dtype, shape = value.dtype.name, list(value.shape)
        else:
            dtype, shape = value.dtype(), value.shape()
        if dtype != wanted:
            raise errors.TypeMismatch(f"variable '{var.name}' is {wanted}, but {dtype} was {source}")
        is_scalar = not shape and var.shape == (1,)  # Paddle's later releases store single numbers so
        fits = is_scalar or (len(shape) == len(var.shape) and all(w in (-1, g) for w, g in zip(var.shape, shape)))
        if not fits and var.name not in computed:
            raise errors.InvalidArgument(f"variable '{var.name}' has shape {list(var.shape)}, but {shape} was {source}")
        if is_scalar:
            value = np.array(value).reshape(1)
        tensors[var.name] = LoDTensor.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value
    put(tensors, scope)


def put(tensors: Mapping[str, LoDTensor], scope: Scope) -> None:
    """Has the scope's variables, or those of the scopes around it, take over tensors."""
    for name, tensor in tensors.items():
        (scope.find_var(name) or scope.var(name)).get_tensor()._assign(tensor)


def _computed(variables: Iterable[Variable]) -> set[str]:
    """The names of what operators write without reading it: its value is that of the last run, of whatever shape."""
    blocks = {id(var.block): var.block for var in variables}.values()
    return {name for block in blocks for op in block.ops for name in {*op.output_arg_names} - {*op.input_arg_names}}
