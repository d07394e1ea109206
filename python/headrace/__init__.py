"""Headrace: a feeding engine, and the Paddle-style graph framework that it feeds.

    import headrace as fluid

has Fluid's names: programs, layers, optimizers, executors, py_reader. ``headrace.DataLoader`` has torch's.
"""

import headrace._cpu as _cpu

if _missing := _cpu.missing():
    raise ImportError(
        f"headrace was compiled for {_cpu.MARCH}, but this processor lacks {_missing}. "
        "Rebuild it for any x86-64 processor: pip install . --config-settings=cmake.define.HEADRACE_MARCH=x86-64"
    )


from headrace import (
    backward,
    clip,
    core,
    data,
    data_feeder,
    errors,
    executor,
    framework,
    initializer,
    io,
    layers,
    lod_tensor,
    nets,
    optimizer,
    param_attr,
    regularizer,
    unique_name,
)
from headrace.core import CPUPlace, LoDTensor, LoDTensorArray, Scope, load_op_library
from headrace.data import DataLoader, Dataset, get_worker_info
from headrace.data_feeder import DataFeeder
from headrace.errors import HeadraceError
from headrace.executor import Executor, global_scope, scope_guard
from headrace.framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    name_scope,
    program_guard,
)
from headrace.lod_tensor import create_lod_tensor, create_random_int_lodtensor
from headrace.param_attr import ParamAttr

__version__ = "0.1.0"

__all__ = [
    "CPUPlace",
    "DataFeeder",
    "DataLoader",
    "Dataset",
    "Executor",
    "HeadraceError",
    "LoDTensor",
    "LoDTensorArray",
    "ParamAttr",
    "Program",
    "Scope",
    "Variable",
    "backward",
    "clip",
    "core",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "data",
    "data_feeder",
    "default_main_program",
    "default_startup_program",
    "errors",
    "executor",
    "framework",
    "get_worker_info",
    "global_scope",
    "initializer",
    "io",
    "layers",
    "load_op_library",
    "lod_tensor",
    "name_scope",
    "nets",
    "optimizer",
    "param_attr",
    "program_guard",
    "regularizer",
    "scope_guard",
    "unique_name",
]
