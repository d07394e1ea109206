"""Saves and loads variables and programs; small tools for readers.

The files have Fluid's format, so either can load the files of the other: one file for each variable, under
its name, or one file for all. Files of earlier versions, NumPy's ``.npy`` and ``.npz``, are loaded as
well. Nothing is pickled, so loading a file from elsewhere runs none of its code.

All files of one call are replaced together: whatever happens, including a crash or a power cut, a later load (by
these functions) gets either all old files or all new ones.
"""

from __future__ import annotations

import contextlib
import functools
import os
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._warnings import warn
from headrace.fluid import core
from headrace.fluid._checkpoint import load_checkpoint, save_checkpoint
from headrace.fluid._checks import check_function, check_instance, check_list, check_optional, check_path
from headrace.fluid._persistables import assign, is_persistable, persistables, values_of
from headrace.fluid._program_state import load, load_program_state, save, set_program_state
from headrace.fluid.compiler import AnyProgram, program_of
from headrace.fluid.core import LoDTensor, Scope, VarType
from headrace.fluid.executor import Executor, _fetch_var, check_executor, global_scope
from headrace.fluid.framework import Parameter, Program, Variable
from headrace.fluid.reader import DataLoader, PyReader
from headrace.reader import (
    ComposeNotAligned,
    Fake,
    PipeReader,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "Fake",
    "PipeReader",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_parameter_value",
    "get_parameter_value_by_name",
    "is_parameter",
    "is_persistable",
    "load",
    "load_checkpoint",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "save",
    "save_checkpoint",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "xmap_readers",
]

#: The file of a program, unless it is named.
_MODEL = "__model__"

#: What the operator scale takes.
_SCALED = (VarType.FP32, VarType.FP64, VarType.INT32, VarType.INT64)

Predicate = Callable[[Variable], bool]


def is_belong_to_optimizer(var: Variable) -> bool:
    """A predicate of ``save_vars`` and ``load_vars``: whether ``var`` persists and is neither a parameter nor fed."""
    return is_persistable(var) and not isinstance(var, Parameter) and not var._is_fed_as_declared


def is_parameter(var: Variable) -> bool:
    """A predicate of ``save_vars`` and ``load_vars``: whether ``var`` is a parameter."""
    check_instance(var, Variable, "is_parameter: var")
    return isinstance(var, Parameter) or var.desc.is_parameter


def _select(
    given: AnyProgram | None, vars: Sequence[Variable | str] | None, predicate: Predicate | None, done: str
) -> list[Variable]:
    """The variables to save or load; warns that nothing is ``done`` if there are none."""
    program, predicate = program_of(given), is_persistable if predicate is None else predicate
    check_function(predicate, "predicate")
    if vars is not None:
        block = program.global_block()
        items = [block.var(item) if isinstance(item, str) else item for item in check_list(vars, "vars")]
        selected = [check_instance(item, Variable, "each of vars") for item in items]
    else:
        selected = [var for var in program.list_vars() if predicate(var)]
    if not selected:
        kinds: dict[Predicate, str] = {is_parameter: "parameters", is_persistable: "persistable variables"}
        missing = kinds.get(predicate, "variables for which predicate holds")
        reason = f"the program has no {missing}" if vars is None else "vars is empty"
        is_default = vars is None and given is None
        hint = "; if the network was built under program_guard, pass main_program" if is_default else ""
        warn(f"{reason}: nothing is {done}{hint}", UserWarning)
    return selected


def get_parameter_value(para: Parameter, executor: Executor) -> np.ndarray:
    """The value of the parameter in the global scope. TypeMismatch if ``para`` is not a parameter."""
    check_instance(para, Variable, "get_parameter_value: para")
    if not is_parameter(para):
        raise errors.TypeMismatch(f"get_parameter_value: '{para.name}' is not a parameter")
    check_executor(executor)
    return np.array(_fetch_var(para))


def get_parameter_value_by_name(name: str, executor: Executor, program: AnyProgram | None = None) -> np.ndarray:
    """``get_parameter_value`` of the parameter of that name, of the main program unless another is given."""
    check_instance(name, str, "get_parameter_value_by_name: name")
    program = program_of(program)
    return get_parameter_value(program.global_block().var(name), executor)  # type: ignore[arg-type]


def _files_of(values: dict[str, LoDTensor], filename: str | None) -> dict[str, list[LoDTensor]]:
    """Which file holds what: as in Fluid, the tensors of one file are in the order of their names."""
    if filename is None:
        return {core.variable_file_name(name): [value] for name, value in values.items()}
    return {filename: [values[name] for name in sorted(values)]}


def save_vars(
    executor: Executor,
    dirname: str,
    main_program: AnyProgram | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    scope: Scope | None = None,
) -> None:
    """Saves values from the scope, with their LoDs. Warns if there is no variable to save.

    Args:
        dirname: a folder, which is made if need be.
        vars: variables to save; None: the variables of ``main_program`` for which ``predicate`` holds (None: the
            persistable ones).
        filename: one file, in ``dirname``, for all; None: one for each variable, of its name.
        scope: None: the global scope.

    Raises:
        NotFound: a variable has no value in the scope: has the startup program been run?
        IoError: a file cannot be written; then all are as before.
    """
    check_executor(executor)
    folder, filename = _split(dirname, filename)
    selected = _select(main_program, vars, predicate, "saved")
    if not selected:
        return
    values = values_of(selected, check_optional(scope, Scope, "scope") or global_scope())
    core.replace_files(folder, _files_of(values, filename))


def _split(dirname: str, filename: str | None) -> tuple[str, str | None]:
    """The folder and the name in it of a file, which may be given with folders of its own."""
    dirname = check_path(dirname, "dirname")
    if filename is None:
        return dirname, None
    folder, name = os.path.split(os.path.join(dirname, check_path(filename, "filename")))
    return folder, name


def load_vars(
    executor: Executor,
    dirname: str,
    main_program: AnyProgram | None = None,
    vars: Sequence[Variable | str] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
    scope: Scope | None = None,
) -> None:
    """Loads the files of ``save_vars`` into the scope. Same arguments. Either all variables are loaded or, on an
    error, none. Warns if there is no variable to load. Fluid's files lack the counters of random operators, which stay
    as they are then.

    Raises:
        NotFound: there is no file, or no value for a variable.
        DataLoss: a file is corrupt.
        InvalidArgument, TypeMismatch: a value does not have the variable's shape or dtype.
    """
    check_executor(executor)
    folder, filename = _split(dirname, filename)
    scope = check_optional(scope, Scope, "scope") or global_scope()
    selected = _select(main_program, vars, predicate, "loaded")
    if not selected:
        return
    with core.FileSetLock(folder):
        values = _read(folder, filename, selected)
    assign([var for var in selected if var.name in values], values, scope)


def _read(folder: str, filename: str | None, variables: Sequence[Variable]) -> dict[str, LoDTensor]:
    earlier = _earlier_names(variables)
    counters = _counters(variables)
    if filename is not None:
        path, names = os.path.join(folder, filename), sorted({var.name for var in variables})
        try:
            return _read_one(path, names, earlier)
        except errors.DataLoss:
            if not counters:
                raise
            with contextlib.suppress(errors.DataLoss):
                return _read_one(path, [name for name in names if name not in counters], earlier)
            raise
    values = {}
    for var in variables:
        try:
            values[var.name] = _read_each(folder, var.name, earlier)
        except errors.NotFound:
            if var.name not in counters:
                raise
    return values


def _counters(variables: Sequence[Variable]) -> set[str]:
    """The names of those that count the runs of random operators."""
    programs = {id(var.block.program): var.block.program for var in variables}.values()
    return {name for program in programs for name in program._counters()}


def _earlier_names(variables: Sequence[Variable]) -> dict[str, str]:
    """The names of optimizers' variables in versions that wrote ``.npy`` and ``.npz`` files: they put the
    optimizer's type behind the parameter's name.
    """
    names = {}
    for block in {var.block for var in variables}:
        for op in block.ops:
            for parameter in op.input("Param"):
                for name in op.input_arg_names:
                    if name.startswith(f"{parameter}_"):
                        names[name] = f"{parameter}_{op.type}{name[len(parameter) :]}"
    return names


def _read_each(folder: str, name: str, earlier: dict[str, str]) -> LoDTensor:
    path = os.path.join(folder, core.variable_file_name(name))
    if os.path.isfile(path):
        return core.read_tensors(path, [name])[0]
    for known in (name, earlier.get(name, name)):
        path = os.path.join(folder, urllib.parse.quote(known, safe="@") + ".npy")
        if os.path.exists(path):
            return _read_array(functools.partial(_load_array, path), name, path)
    raise errors.NotFound(
        f"no value is stored for '{name}': {folder} has no file of that name; if one file has all values, pass its "
        "name as filename or params_filename"
    )


def _read_array(read: Callable[[], Any], name: str, path: str) -> LoDTensor:
    try:
        return LoDTensor.from_numpy(read())
    except OSError as error:
        raise errors.IoError(f"{path} cannot be read: {error}") from error
    except Exception as error:
        raise errors.DataLoss(f"{path} holds no array for '{name}': {error}") from error


def _load_array(path: str) -> np.ndarray:
    with open(path, "rb") as file:
        array = np.load(file, allow_pickle=False)
        if isinstance(array, np.ndarray) and file.read(1):
            raise ValueError(f"there is more data after the array of shape {list(array.shape)}")
    return np.asarray(array)


def _read_one(path: str, names: Sequence[str], earlier: dict[str, str]) -> dict[str, LoDTensor]:
    try:
        with open(path, "rb") as file:
            is_archive = file.read(2) == b"PK"  # an .npz file of earlier versions; Fluid's format begins with zeros
    except FileNotFoundError:
        raise errors.NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise errors.IoError(f"{path} cannot be read: {error}") from error
    if not is_archive:
        return dict(zip(names, core.read_tensors(path, names)))
    try:
        archive = np.load(path, allow_pickle=False)
    except Exception as error:
        raise errors.DataLoss(f"{path} is not an .npz file: {error}") from error
    with archive:
        values = {}
        for name in names:
            known = name if name in archive else earlier.get(name, name)
            if known not in archive:
                raise errors.NotFound(f"{path} has no value of '{name}'")
            values[name] = _read_array(functools.partial(archive.__getitem__, known), name, path)
        return values


def save_params(
    executor: Executor, dirname: str, main_program: AnyProgram | None = None, filename: str | None = None
) -> None:
    """Saves the parameters of ``main_program``; see save_vars."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_params(
    executor: Executor, dirname: str, main_program: AnyProgram | None = None, filename: str | None = None
) -> None:
    """Loads the files of save_params; see load_vars."""
    load_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_persistables(
    executor: Executor, dirname: str, main_program: AnyProgram | None = None, filename: str | None = None
) -> None:
    """Saves the persistable tensors of ``main_program``, including the optimizer's, so that training can continue; see
    save_vars.
    """
    save_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def load_persistables(
    executor: Executor, dirname: str, main_program: AnyProgram | None = None, filename: str | None = None
) -> None:
    """Loads the files of save_persistables; see load_vars."""
    load_vars(executor, dirname, main_program, predicate=is_persistable, filename=filename)


def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[str],
    target_vars: Variable | Sequence[Variable],
    executor: Executor,
    main_program: AnyProgram | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Saves the part of a program that computes ``target_vars`` from ``feeded_var_names``: no readers, no backward
    pass.

    Args:
        feeded_var_names: may be variables that the program reads from a reader; the reading is then left out.
        model_filename: of the program; None: "__model__". It has the operators ``feed`` and ``fetch``, as Fluid's.
        params_filename: one file for the parameters; None: one for each.
        export_for_deployment: False: the whole program is saved, with its readers and its backward pass, as
            "__model__.main_program", and all persistable variables; feeds and targets make no difference.
        program_only: write no parameters, and need none.

    Returns:
        The names of the targets in the model: as in Fluid, copies of the variables under the names
        "save_infer_model/scale_0" and so on, which only the saved program has; without ``export_for_deployment``, the
        names of the variables.

    Raises:
        NotFound: the program declares no such variable.
        InvalidArgument: there is no target, or the targets need a reader or other data even when the variables are fed.
        TypeMismatch: an argument is of another type.
    """
    check_executor(executor)
    dirname = check_path(dirname, "save_inference_model: dirname")
    model_filename = check_path(model_filename or _MODEL, "save_inference_model: model_filename")
    params_filename = check_path(params_filename, "save_inference_model: params_filename") if params_filename else None
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else _list("feeded_var_names", feeded_var_names)
    for feed in feeds:
        if not isinstance(feed, str):
            raise errors.TypeMismatch(f"feeded_var_names takes the names of variables, got {feed!r}")
    targets = [target_vars] if isinstance(target_vars, Variable) else _list("target_vars", target_vars)
    for target in targets:
        if not isinstance(target, Variable):
            raise errors.TypeMismatch(f"target_vars takes Variables, got {target!r}")
    names = [target.name for target in targets]
    program = program_of(main_program)
    if not export_for_deployment:
        _save_model(dirname, f"{model_filename}.main_program", program, params_filename, program_only)
        return names
    program, names = _with_named_targets(program, targets)
    inference = program.desc.inference_program(feeds, names)
    _check_fed(inference.block(0))
    model = Program.parse_from_string(inference.serialize_to_string())
    _save_model(dirname, model_filename, model, params_filename, program_only)
    return names


def _check_fed(block: core.BlockDesc) -> None:
    """Raises InvalidArgument if a model computes with data that it is not fed with."""
    ops = block.ops()
    written = {name for op in ops for name in op.output_arg_names()}
    for op in ops:
        for name in op.input_arg_names():
            var = block.find_var(name)
            if name not in written and var is not None and var.attrs.get("is_data"):
                raise errors.InvalidArgument(
                    f"what is fetched depends on '{name}', which operator '{op.type}' reads: "
                    "feeded_var_names has to have it, too"
                )


def _with_named_targets(program: Program, targets: Sequence[Variable]) -> tuple[Program, list[str]]:
    """A copy of a program that has Fluid's names for what it computes, and these names."""
    program = program.clone()
    block, names = program.global_block(), []
    for index, target in enumerate(targets):
        name = f"save_infer_model/scale_{index}"
        scaled = target.type == VarType.LOD_TENSOR and target.dtype in _SCALED
        if not scaled or not block.has_var(target.name) or block.has_var(name):  # a loaded model has the names already
            names.append(target.name)
            continue
        out = block.create_var(name, target.shape, target.dtype, lod_level=target.lod_level)
        block.append_op("scale", {"X": target.name}, {"Out": out}, {"scale": 1.0})
        names.append(name)
    return program, names


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise errors.TypeMismatch(f"{name} has to be a list, got {value!r}")
    return list(value)


def _save_model(dirname: str, model: str, program: Program, params_filename: str | None, program_only: bool) -> None:
    """Writes a program and, unless ``program_only``, what persists in it."""
    files: dict[str, Any] = {model: program.serialize_to_string()}
    if program_only:
        core.replace_files(dirname, files)
        return
    parameters = _files_of(values_of(persistables(program), global_scope()), params_filename)
    if model in parameters:
        raise errors.InvalidArgument(f"'{model}' cannot be the file of the program and of parameters")
    core.replace_files(dirname, files | parameters)


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
    pserver_endpoints: Sequence[str] | None = None,
) -> tuple[Program, list[str], list[Variable]]:
    """Loads a model saved by save_inference_model of Headrace or Fluid; the parameters go into the global scope.
    ``pserver_endpoints`` are Fluid's, and have to be None.

    Returns:
        The program, the names of the variables to feed, the variables to fetch.

    Raises:
        NotFound: a file is missing, or the program uses an unknown operator.
        DataLoss: a file is corrupt.
        IoError: a file cannot be read.
        Unimplemented: there are ``pserver_endpoints``.
    """
    check_executor(executor)
    if pserver_endpoints is not None:
        raise errors.Unimplemented("load_inference_model: pserver_endpoints: programs run on one machine")
    dirname = check_path(dirname, "load_inference_model: dirname")
    model_filename = check_path(model_filename or _MODEL, "load_inference_model: model_filename")
    if params_filename is not None:
        params_filename = check_path(params_filename, "load_inference_model: params_filename")
    model = os.path.join(dirname, model_filename)
    with core.FileSetLock(dirname):
        try:
            with open(model, "rb") as file:
                binary = file.read()
        except FileNotFoundError as error:
            raise errors.NotFound(f"no model found: {error.filename} does not exist") from None
        except OSError as error:
            raise errors.IoError(f"the model {model} cannot be read: {error}") from error
        try:
            program = Program.parse_from_string(binary)
        except errors.HeadraceError as error:
            raise type(error)(f"the model {model}: {error}") from error
        fetches = _in_columns(program, "fetch")
        if not fetches:
            raise errors.DataLoss(f"{model} does not say what to fetch: it has no operator fetch")
        selected = persistables(program)
        values = _read(dirname, params_filename, selected)
    assign(selected, values, global_scope())
    feeds = _in_columns(program, "feed")
    for name in feeds:
        program.global_block().var(name).persistable = False  # a file of Fluid's has the values of feeds, too
    return program, feeds, [program.global_block().var(name) for name in fetches]
