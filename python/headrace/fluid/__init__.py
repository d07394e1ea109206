"""Programs, layers, optimizers and readers under the names of Paddle Fluid 1.x::

    import headrace.fluid as fluid

A name is where Fluid has it: ``fluid.layers.fc``, ``fluid.optimizer.Adam``, ``fluid.io.save_inference_model``.
"""

from typing import Any

from headrace.fluid import (
    average,
    backward,
    clip,
    compiler,
    contrib,
    core,
    core_avx,
    data_feeder,
    debugger,
    default_scope_funcs,
    device,
    evaluator,
    executor,
    framework,
    initializer,
    input,
    install_check,
    io,
    layer_helper,
    layer_helper_base,
    layers,
    lod_tensor,
    metrics,
    nets,
    optimizer,
    parallel_executor,
    param_attr,
    profiler,
    recordio_writer,
    regularizer,
    transpiler,
    unique_name,
    version,
    wrapped_decorator,
)
from headrace.fluid._data import data
from headrace.fluid._program_state import load, load_program_state, save, set_program_state
from headrace.fluid._refused import refusal
from headrace.fluid.backward import gradients
from headrace.fluid.compiler import BuildStrategy, CompiledProgram, ExecutionStrategy, memory_optimize, release_memory
from headrace.fluid.core import CPUPlace, LoDTensor, LoDTensorArray, Scope, load_op_library
from headrace.fluid.data_feeder import DataFeeder
from headrace.fluid.device import (
    CUDAPinnedPlace,
    CUDAPlace,
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    device_guard,
    in_dygraph_mode,
    is_compiled_with_cuda,
)
from headrace.fluid.executor import Executor, global_scope, scope_guard
from headrace.fluid.framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    name_scope,
    program_guard,
)
from headrace.fluid.input import embedding, one_hot
from headrace.fluid.lod_tensor import create_lod_tensor, create_random_int_lodtensor
from headrace.fluid.parallel_executor import ParallelExecutor
from headrace.fluid.param_attr import ParamAttr, WeightNormParamAttr
from headrace.fluid.version import require_version

Tensor = LoDTensor


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "fluid", name)


__all__ = [
    "BuildStrategy",
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "CompiledProgram",
    "DataFeeder",
    "ExecutionStrategy",
    "Executor",
    "LoDTensor",
    "LoDTensorArray",
    "ParallelExecutor",
    "ParamAttr",
    "Program",
    "Scope",
    "Tensor",
    "Variable",
    "WeightNormParamAttr",
    "average",
    "backward",
    "clip",
    "compiler",
    "contrib",
    "core",
    "core_avx",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "data_feeder",
    "debugger",
    "default_main_program",
    "default_scope_funcs",
    "default_startup_program",
    "device",
    "device_guard",
    "embedding",
    "evaluator",
    "executor",
    "framework",
    "global_scope",
    "gradients",
    "in_dygraph_mode",
    "initializer",
    "input",
    "install_check",
    "io",
    "is_compiled_with_cuda",
    "layer_helper",
    "layer_helper_base",
    "layers",
    "load",
    "load_op_library",
    "load_program_state",
    "lod_tensor",
    "memory_optimize",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "parallel_executor",
    "param_attr",
    "profiler",
    "program_guard",
    "recordio_writer",
    "regularizer",
    "release_memory",
    "require_version",
    "save",
    "scope_guard",
    "set_program_state",
    "transpiler",
    "unique_name",
    "version",
    "wrapped_decorator",
]
