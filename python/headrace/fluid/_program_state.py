"""``fluid.save`` and ``fluid.load``: a program with all that persists, under one path.

Three files: ``path.pdparams`` has the parameters and ``path.pdopt`` all other persistable variables, mainly optimizers'
state, both dicts of arrays by name; ``path.pdmodel`` has the program. Fluid pickles the dicts, and so it is done here;
but files may contain only names and arrays, so a foreign file cannot run code.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._warnings import warn
from headrace.fluid import core
from headrace.fluid._checks import check_instance, check_list, check_path
from headrace.fluid._persistables import assign, is_persistable, persistables, values_of
from headrace.fluid.compiler import AnyProgram, program_of
from headrace.fluid.executor import Executor, global_scope
from headrace.fluid.framework import Parameter, Variable

__all__ = ["load", "load_program_state", "save", "set_program_state"]

_PARAMETERS, _OTHERS, _MODEL = ".pdparams", ".pdopt", ".pdmodel"

#: The parts of a pickled array.
_HARMLESS = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


class _ArraysOnly(pickle.Unpickler):
    """Loads arrays, and refuses whatever else has a class or a function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no array needs")
        return super().find_class(module, name)


def _split(variables: Iterable[Variable]) -> tuple[list[Variable], list[Variable]]:
    """The parameters of variables, and the others."""
    parameters: list[Variable] = []
    others: list[Variable] = []
    for var in variables:
        (parameters if isinstance(var, Parameter) else others).append(var)
    return parameters, others


def _parts(model_path: str | os.PathLike[str]) -> tuple[str, str]:
    path = check_path(model_path, "model_path")
    folder, base = os.path.split(path)
    if not base:
        raise errors.InvalidArgument(f"model_path is a prefix of files, such as 'folder/name', got {path!r}")
    return folder or ".", base


def _pickled(variables: Iterable[Variable]) -> bytes:
    arrays = {name: np.array(value) for name, value in values_of(variables, global_scope()).items()}
    return pickle.dumps(arrays, protocol=2)


def save(program: AnyProgram, model_path: str | os.PathLike[str]) -> None:
    """Saves parameters and all else that persists, from the global scope, and the program, as three files: see the
    module. They are replaced together.

    Args:
        model_path: prefix of the files' names, "folder/name". The folder is created if necessary.

    Raises:
        NotFound: a variable has no value: has the startup program been run?
        IoError: a file cannot be written; then all are as before.
    """
    parameters, others = _split(filter(is_persistable, persistables(program)))
    folder, base = _parts(model_path)
    core.replace_files(
        folder,
        {
            base + _PARAMETERS: _pickled(parameters),
            base + _OTHERS: _pickled(others),
            base + _MODEL: program_of(program).serialize_to_string(),
        },
    )


def _read(path: str) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        raise errors.NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise errors.IoError(f"{path} cannot be read: {error}") from error
    stream = io.BytesIO(raw)
    try:
        state = _ArraysOnly(stream, encoding="latin1").load()
    except Exception as error:
        raise errors.DataLoss(f"{path} holds no named arrays: {str(error) or type(error).__name__}") from error
    if stream.read(1):
        raise errors.DataLoss(f"{path} has more data after its arrays")
    if not isinstance(state, dict):
        raise errors.DataLoss(f"{path} holds no named arrays, but {type(state).__name__}")
    state.pop("StructuredToParameterName@@", None)  # Paddle's later releases put it there
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, (np.ndarray, np.generic)) or value.dtype.hasobject:
            raise errors.DataLoss(f"{path} has no array of numbers for {name!r}")
    return {name: np.asarray(value) for name, value in state.items()}


def load_program_state(
    model_path: str | os.PathLike[str], var_list: Sequence[Variable] | None = None
) -> dict[str, np.ndarray]:
    """The arrays that ``save`` has saved, here or in Fluid, by the names of the variables.

    Args:
        model_path: the path that ``save`` was given, or that of one of its files.
        var_list: give the values of these only.

    Raises:
        NotFound: there is no file of parameters, or no value for one of ``var_list``.
        DataLoss: a file is corrupt, or has something else than arrays.
        TypeMismatch: ``var_list`` has something else than variables.
    """
    folder, base = _parts(model_path)
    for suffix in (_PARAMETERS, _OTHERS, _MODEL):
        base = base[: -len(suffix)] if base.endswith(suffix) else base
    wanted = None if var_list is None else check_list(var_list, "var_list")
    for var in wanted or ():
        if not isinstance(var, Variable):
            raise errors.TypeMismatch(f"var_list takes Variables, got {var!r}")
    with core.FileSetLock(folder):
        state = _read(os.path.join(folder, base + _PARAMETERS))
        others = os.path.join(folder, base + _OTHERS)
        if os.path.exists(others):
            state.update(_read(others))
    if wanted is None:
        return state
    for var in wanted:
        if var.name not in state:
            raise errors.NotFound(f"{os.path.join(folder, base)} has no value of '{var.name}'")
    return {var.name: state[var.name] for var in wanted}


def set_program_state(program: AnyProgram, state_dict: Mapping[str, Any]) -> None:
    """Gives those variables of a program that persist the values that ``state_dict`` has of them, in the global scope;
    all, or on an error none. Warns of values for which the program has no variable.

    Raises:
        InvalidArgument, TypeMismatch: a value does not have the variable's shape or dtype.
    """
    check_instance(state_dict, Mapping, "set_program_state: state_dict")
    known = {var.name: var for var in persistables(program)}
    values = {name: np.asarray(value) for name, value in state_dict.items() if name in known}
    assign([known[name] for name in values], values, global_scope(), "given")
    unused = [name for name in state_dict if name not in known]
    if unused:
        warn(f"the program has no variables for {', '.join(unused)}", UserWarning)


def load(
    program: AnyProgram,
    model_path: str | os.PathLike[str],
    executor: Executor | None = None,
    var_list: Sequence[Variable] | None = None,
) -> None:
    """Loads the files of ``save``, of Headrace or Fluid, into the global scope: all variables, or on an error none.

    Args:
        model_path, var_list: as in ``load_program_state``.
        executor: Fluid's; makes no difference.

    Raises:
        NotFound: there is no file, or no value for a variable.
        DataLoss: a file is corrupt.
        InvalidArgument, TypeMismatch: a value does not have the variable's shape or dtype.
    """
    known = filter(is_persistable, persistables(program))
    wanted = list(known) if var_list is None else check_list(var_list, "var_list")
    assign(wanted, load_program_state(model_path, wanted), global_scope())
