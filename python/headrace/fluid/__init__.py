"""Programs, layers, optimizers and readers under the names of Paddle Fluid 1.x::

    import headrace.fluid as fluid

A name is where Fluid has it: ``fluid.layers.fc``, ``fluid.optimizer.Adam``, ``fluid.io.save_inference_model``.
"""

from headrace.fluid import (
    backward,
    clip,
    core,
    data_feeder,
    executor,
    framework,
    initializer,
    input,
    io,
    layers,
    lod_tensor,
    nets,
    optimizer,
    param_attr,
    recordio_writer,
    regularizer,
    unique_name,
)
from headrace.fluid._data import data
from headrace.fluid.backward import gradients
from headrace.fluid.core import CPUPlace, LoDTensor, LoDTensorArray, Scope, load_op_library
from headrace.fluid.data_feeder import DataFeeder
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
from headrace.fluid.param_attr import ParamAttr

Tensor = LoDTensor

__all__ = [
    "CPUPlace",
    "DataFeeder",
    "Executor",
    "LoDTensor",
    "LoDTensorArray",
    "ParamAttr",
    "Program",
    "Scope",
    "Tensor",
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
    "embedding",
    "executor",
    "framework",
    "global_scope",
    "gradients",
    "initializer",
    "input",
    "io",
    "layers",
    "load_op_library",
    "lod_tensor",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "param_attr",
    "program_guard",
    "recordio_writer",
    "regularizer",
    "scope_guard",
    "unique_name",
]
