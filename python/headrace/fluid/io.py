"""Saves and loads variables and programs; small tools for readers.

Variables are saved as NumPy arrays: one ``.npy`` file each, or, if a file name is given, one ``.npz`` file for all.
Nothing is pickled, so loading a file from elsewhere runs none of its code. What Fluid has saved is loaded as well.
"""

from __future__ import annotations

import functools
import os
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid._sample_readers import batch, shuffle
from headrace.fluid.core import Scope, VarType
from headrace.fluid.executor import Executor, global_scope
from headrace.fluid.framework import Parameter, Program, Variable, default_main_program

__all__ = [
    "batch",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_vars",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "shuffle",
]

Predicate = Callable[[Variable], bool]


def _is_parameter(var: Variable) -> bool:
    return isinstance(var, Parameter) or var.desc.is_parameter


def _is_persistable(var: Variable) -> bool:
    return var.persistable and var.type == VarType.LOD_TENSOR


def _select(
    program: Program | None, vars: Sequence[Variable | str] | None, predicate: Predicate | None
) -> list[Variable]:
    program = default_main_program() if program is None else program
    if vars is not None:
        block = program.global_block()
        return [block.var(item) if isinstance(item, str) else item for item in vars]
    return [var for var in program.list_vars() if (predicate or _is_persistable)(var)]


def _file_of(dirname: str, name: str) -> str:
    return os.path.join(dirname, urllib.parse.quote(name, safe="@") + ".npy")


def _check_executor(executor: Executor) -> None:
    if not isinstance(executor, Executor):
        raise errors.TypeMismatch(f"an Executor was expected, got {type(executor).__name__}")


def _write(path: str, write: Callable[[Any], None]) -> None:
    """Writes a file as a whole or not at all."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            write(file)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def save_vars(
    executor: Executor,
    dirname: str,
    main_program: Program | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    scope: Scope | None = None,
) -> None:
    """Saves values from the scope.

    Args:
        vars: what to save; None: the variables of ``main_program`` for which ``predicate`` holds (None: the persistable
            ones).
        filename: one file, in ``dirname``, for all; None: one for each variable.
        scope: None: the global scope.

    Raises:
        NotFound: a variable has no value in the scope: has the startup program been run?
    """
    _check_executor(executor)
    scope = global_scope() if scope is None else scope
    arrays = {}
    for var in _select(main_program, vars, predicate):
        holder = scope.find_var(var.name)
        if holder is None or not holder.is_initialized() or not holder.get_tensor()._is_initialized():
            raise errors.NotFound(f"'{var.name}' has no value in the scope to be saved: run the startup program first")
        arrays[var.name] = np.array(holder.get_tensor())
    os.makedirs(dirname, exist_ok=True)
    if filename is not None:
        _write(os.path.join(dirname, filename), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
        return
    for name, array in arrays.items():
        _write(_file_of(dirname, name), functools.partial(np.save, arr=array, allow_pickle=False))


def load_vars(
    executor: Executor,
    dirname: str,
    main_program: Program | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    scope: Scope | None = None,
) -> None:
    """Loads what ``save_vars`` saved, into the scope. Arguments as there. Either all variables are loaded or, on an
    error, none.

    Raises:
        NotFound: there is no file, or no value for a variable.
        DataLoss: a file is corrupt.
        InvalidArgument, TypeMismatch: a value does not have the variable's shape or dtype.
    """
    _check_executor(executor)
    scope = global_scope() if scope is None else scope
    selected = _select(main_program, vars, predicate)
    arrays = _read_one(os.path.join(dirname, filename), selected) if filename else _read_each(dirname, selected)
    for var in selected:
        array = arrays[var.name]
        wanted = core.dtype_name(var.dtype)
        if array.dtype.name != wanted:
            raise errors.TypeMismatch(f"variable '{var.name}' is {wanted}, but {array.dtype.name} was saved")
        if len(array.shape) != len(var.shape) or any(w not in (-1, g) for w, g in zip(var.shape, array.shape)):
            raise errors.InvalidArgument(
                f"variable '{var.name}' has shape {list(var.shape)}, but {list(array.shape)} was saved"
            )
    for name, array in arrays.items():
        scope.var(name).get_tensor().set(array)


def _read_array(read: Callable[[], Any], name: str, path: str) -> np.ndarray:
    try:
        return np.asarray(read())
    except FileNotFoundError:
        raise errors.NotFound(f"there is no value of '{name}': {path} does not exist") from None
    except OSError as error:
        raise errors.IoError(f"{path} cannot be read: {error}") from error
    except Exception as error:
        raise errors.DataLoss(f"{path} holds no array for '{name}': {error}") from error


def _load_array(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        array = np.load(file, allow_pickle=False)
        if isinstance(array, np.ndarray) and file.read(1):
            raise ValueError(f"there is more behind the array of shape {list(array.shape)}")
    return np.asarray(array)


def _read_each(dirname: str, vars: Iterable[Variable]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for var in vars:
        path = _file_of(dirname, var.name)
        of_fluid = os.path.join(dirname, var.name)
        if not os.path.exists(path) and os.path.isfile(of_fluid):
            arrays |= _read_fluid("load", of_fluid, [var.name])
            continue
        arrays[var.name] = _read_array(functools.partial(_load_array, path), var.name, path)
    return arrays


def _read_fluid(op_type: str, path: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads what Fluid's ``save`` or ``save_combine`` has written."""
    program, scope = Program(), Scope()
    block = program.global_block()
    for name in names:
        block.create_var(name, persistable=True)
    block.append_op(op_type, outputs={"Out": list(names)}, attrs={"file_path": path})
    Executor().run(program, scope=scope)
    return {name: np.array(scope.var(name).get_tensor()) for name in names}


def _read_one(path: str, vars: Sequence[Variable]) -> dict[str, np.ndarray]:
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if file.read(4) == bytes(4):  # the version of Fluid's format; an .npz file begins with "PK"
                return _read_fluid("load_combine", path, sorted(var.name for var in vars))
    try:
        archive = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise errors.NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise errors.IoError(f"{path} cannot be read: {error}") from error
    except Exception as error:
        raise errors.DataLoss(f"{path} is no .npz file: {error}") from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise errors.DataLoss(f"{path} is no .npz file, but a single array")
    with archive:
        arrays = {}
        for var in vars:
            if var.name not in archive:
                raise errors.NotFound(f"{path} has no value of '{var.name}'")
            arrays[var.name] = _read_array(functools.partial(archive.__getitem__, var.name), var.name, path)
        return arrays


def save_params(
    executor: Executor, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Saves the parameters of ``main_program``; see save_vars."""
    save_vars(executor, dirname, main_program, predicate=_is_parameter, filename=filename)


def load_params(
    executor: Executor, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Loads what save_params saved; see load_vars."""
    load_vars(executor, dirname, main_program, predicate=_is_parameter, filename=filename)


def save_persistables(
    executor: Executor, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Saves the persistable tensors of ``main_program``, with the optimizer's, so that training can go on; see
    save_vars.
    """
    save_vars(executor, dirname, main_program, predicate=_is_persistable, filename=filename)


def load_persistables(
    executor: Executor, dirname: str, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Loads what save_persistables saved; see load_vars."""
    load_vars(executor, dirname, main_program, predicate=_is_persistable, filename=filename)


def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[str],
    target_vars: Variable | Sequence[Variable],
    executor: Executor,
    main_program: Program | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
) -> list[str]:
    """Saves what is needed to compute ``target_vars`` when ``feeded_var_names`` are fed: no readers, no backward pass.

    Args:
        feeded_var_names: may be what the program reads from a reader; reading is then left out.
        model_filename: of the program; None: "__model__". It has the operators ``feed`` and ``fetch``, as Fluid's.
        params_filename: one file for the parameters; None: one for each.

    Returns:
        The names of the targets.

    Raises:
        NotFound: the program declares no such variable.
        InvalidArgument: the targets need a reader even when the variables are fed.
    """
    _check_executor(executor)
    if isinstance(feeded_var_names, str):
        feeded_var_names = [feeded_var_names]
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    if not targets:
        raise errors.InvalidArgument("save_inference_model needs a target")
    program = (default_main_program() if main_program is None else main_program).clone(for_test=True)
    pruned = program._prune(targets, feeded_var_names)
    for op in pruned.global_block().ops:
        if op.type == "read":
            read = ", ".join(op.output_arg_names)
            raise errors.InvalidArgument(
                f"the targets depend on what is read from '{op.input('Reader')[0]}' ({read}): feed what they need of it"
            )
    os.makedirs(dirname, exist_ok=True)
    model = os.path.join(dirname, model_filename or "__model__")
    names = [target.name for target in targets]
    _add_feed_and_fetch(pruned, list(feeded_var_names), names)
    _write(model, lambda file: file.write(pruned.serialize_to_string()))
    save_persistables(executor, dirname, pruned, params_filename)
    return names


def _add_feed_and_fetch(program: Program, feeds: Sequence[str], fetches: Sequence[str]) -> None:
    block = program.global_block()
    block.create_var("feed", type=VarType.FEED_MINIBATCH, persistable=True)
    block.create_var("fetch", type=VarType.FETCH_LIST, persistable=True)
    for column, name in reversed(list(enumerate(feeds))):
        block._prepend_op("feed", {"X": "feed"}, {"Out": name}, {"col": column})
    for column, name in enumerate(fetches):
        block.append_op("fetch", {"X": name}, {"Out": "fetch"}, {"col": column})


def _in_columns(program: Program, op_type: str) -> list[str]:
    """The variables that operators of this type take from, or put into, the columns of a list."""
    ops = [op for op in program.global_block().ops if op.type == op_type]
    ops.sort(key=lambda op: op.attr("col"))
    return [(op.output("Out") if op_type == "feed" else op.input("X"))[0] for op in ops]


def load_inference_model(
    dirname: str,
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
) -> tuple[Program, list[str], list[Variable]]:
    """Loads what save_inference_model saved, here or in Fluid; the parameters go into the global scope.

    Returns:
        The program, the names of what to feed, the variables to fetch.

    Raises:
        NotFound: a file is missing, or the program uses an unknown operator.
        DataLoss: a file is corrupt.
    """
    _check_executor(executor)
    model = os.path.join(dirname, model_filename or "__model__")
    try:
        with open(model, "rb") as file:
            binary = file.read()
    except FileNotFoundError as error:
        raise errors.NotFound(f"there is no model: {error.filename} does not exist") from None
    program = Program.parse_from_string(binary)
    fetches = _in_columns(program, "fetch")
    if not fetches:
        raise errors.DataLoss(f"{model} does not say what to fetch: it has no operator fetch")
    load_persistables(executor, dirname, program, params_filename)
    return program, _in_columns(program, "feed"), [program.global_block().var(name) for name in fetches]
