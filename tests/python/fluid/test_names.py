"""Fluid's names: where a program written for Fluid 1.x looks for them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import headrace.fluid as fluid

#: What Fluid 1.x has at these paths, and so do we, with the arguments in Fluid's order.
FLUID = {
    "CPUPlace": None,
    "DataFeeder": "feed_list place program",
    "Executor": "place",
    "LoDTensor": None,
    "LoDTensorArray": None,
    "ParamAttr": "name initializer learning_rate regularizer trainable",
    "Program": "",
    "Variable": None,
    "backward.append_backward": "loss parameter_list no_grad_set",
    "clip.GradientClipByGlobalNorm": "clip_norm",
    "clip.GradientClipByNorm": "clip_norm",
    "clip.GradientClipByValue": "max min",
    "core.EOFException": None,
    "core.LoDTensor": None,
    "core.LoDTensorBlockingQueue": None,
    "core.Scope": None,
    "core.VarDesc.VarType.FP32": None,
    "core.VarDesc.VarType.READER": None,
    "core.is_compiled_with_cuda": "",
    "create_lod_tensor": "data recursive_seq_lens place",
    "create_random_int_lodtensor": "recursive_seq_lens base_shape place low high",
    "data": "name shape dtype lod_level",
    "data_feeder.DataFeeder": "feed_list place program",
    "default_main_program": "",
    "default_startup_program": "",
    "executor.Executor": "place",
    "executor.global_scope": "",
    "executor.scope_guard": "scope",
    "framework.Block": None,
    "framework.Operator": None,
    "framework.Parameter": None,
    "framework.Program": "",
    "framework.Variable": None,
    "framework.default_main_program": "",
    "framework.default_startup_program": "",
    "framework.grad_var_name": None,
    "framework.name_scope": "prefix",
    "framework.program_guard": "main_program startup_program",
    "framework.switch_main_program": "program",
    "framework.switch_startup_program": "program",
    "global_scope": "",
    "initializer.Constant": "value force_cpu",
    "initializer.ConstantInitializer": "value force_cpu",
    "initializer.MSRA": "uniform fan_in seed",
    "initializer.Normal": "loc scale seed",
    "initializer.NumpyArrayInitializer": "value",
    "initializer.TruncatedNormal": "loc scale seed",
    "initializer.Uniform": "low high seed",
    "initializer.Xavier": "uniform fan_in fan_out seed",
    "io.batch": "reader batch_size drop_last",
    "io.load_inference_model": "dirname executor model_filename params_filename",
    "io.load_params": "executor dirname main_program filename",
    "io.load_persistables": "executor dirname main_program filename",
    "io.load_vars": "executor dirname main_program vars predicate filename",
    "io.save_inference_model": "dirname feeded_var_names target_vars executor main_program model_filename "
    "params_filename export_for_deployment",
    "io.save_params": "executor dirname main_program filename",
    "io.save_persistables": "executor dirname main_program filename",
    "io.save_vars": "executor dirname main_program vars predicate filename",
    "io.shuffle": "reader buf_size",
    "layer_helper.LayerHelper": None,
    "layers.StaticRNN": "name",
    "layers.accuracy": "input label k correct total",
    "layers.argmax": "x axis",
    "layers.assign": "input output",
    "layers.batch": "reader batch_size",
    "layers.batch_norm": "input act is_test momentum epsilon param_attr bias_attr data_layout in_place name "
    "moving_mean_name moving_variance_name do_model_average_for_mean_and_var",
    "layers.cast": "x dtype",
    "layers.concat": "input axis name",
    "layers.conv2d": "input num_filters filter_size stride padding dilation groups param_attr bias_attr use_cudnn act "
    "name",
    "layers.create_global_var": "shape value dtype persistable force_cpu name",
    "layers.create_parameter": "shape dtype name attr is_bias default_initializer",
    "layers.create_py_reader_by_data": "capacity feed_list name use_double_buffer",
    "layers.create_tensor": "dtype name persistable",
    "layers.cross_entropy": "input label soft_label ignore_index",
    "layers.data": "name shape append_batch_size dtype lod_level type stop_gradient",
    "layers.double_buffer": "reader place name",
    "layers.dropout": "x dropout_prob is_test seed name dropout_implementation",
    "layers.elementwise_add": "x y axis act name",
    "layers.elementwise_max": "x y axis act name",
    "layers.embedding": "input size is_sparse is_distributed padding_idx param_attr dtype",
    "layers.exp": "x name",
    "layers.fc": "input size num_flatten_dims param_attr bias_attr act",
    "layers.fill_constant": "shape dtype value force_cpu out",
    "layers.fill_constant_batch_size_like": "input shape dtype value input_dim_idx output_dim_idx",
    "layers.flatten": "x axis name",
    "layers.increment": "x value in_place",
    "layers.layer_norm": "input scale shift begin_norm_axis epsilon param_attr bias_attr act name",
    "layers.leaky_relu": "x alpha name",
    "layers.matmul": "x y transpose_x transpose_y alpha name",
    "layers.mean": "x name",
    "layers.mul": "x y x_num_col_dims y_num_col_dims name",
    "layers.multi_pass": "reader pass_num",
    "layers.pool2d": "input pool_size pool_type pool_stride pool_padding global_pooling use_cudnn ceil_mode",
    "layers.py_reader": "capacity shapes dtypes lod_levels name use_double_buffer",
    "layers.random_data_generator": "low high shapes lod_levels for_parallel",
    "layers.read_file": "reader",
    "layers.reduce_mean": "input dim keep_dim name",
    "layers.reduce_sum": "input dim keep_dim name",
    "layers.relu": "x name",
    "layers.reshape": "x shape",
    "layers.scale": "x scale bias bias_after_scale act name",
    "layers.sequence_first_step": "input",
    "layers.sequence_last_step": "input",
    "layers.sequence_pool": "input pool_type is_test pad_value",
    "layers.sequence_softmax": "input use_cudnn name",
    "layers.shuffle": "reader buffer_size",
    "layers.sigmoid": "x name",
    "layers.sigmoid_cross_entropy_with_logits": "x label ignore_index name normalize",
    "layers.softmax": "input use_cudnn name",
    "layers.softmax_with_cross_entropy": "logits label soft_label ignore_index numeric_stable_mode return_softmax",
    "layers.split": "input num_or_sections dim name",
    "layers.square_error_cost": "input label",
    "layers.squeeze": "input axes name",
    "layers.sums": "input out",
    "layers.tanh": "x name",
    "layers.topk": "input k name",
    "layers.transpose": "x perm name",
    "layers.unsqueeze": "input axes name",
    "layers.zeros": "shape dtype force_cpu",
    "load_op_library": None,
    "lod_tensor.create_lod_tensor": "data recursive_seq_lens place",
    "name_scope": "prefix",
    "nets.simple_img_conv_pool": "input num_filters filter_size pool_size pool_stride pool_padding pool_type "
    "global_pooling conv_stride conv_padding conv_dilation conv_groups param_attr bias_attr act use_cudnn",
    "optimizer.Adagrad": "learning_rate epsilon regularization",
    "optimizer.Adam": "learning_rate beta1 beta2 epsilon regularization",
    "optimizer.AdamOptimizer": "learning_rate beta1 beta2 epsilon regularization",
    "optimizer.Momentum": "learning_rate momentum use_nesterov regularization",
    "optimizer.RMSProp": "learning_rate rho epsilon momentum centered regularization",
    "optimizer.SGD": "learning_rate regularization",
    "param_attr.ParamAttr": "name initializer learning_rate regularizer trainable",
    "program_guard": "main_program startup_program",
    "regularizer.L2Decay": "regularization_coeff",
    "regularizer.L2DecayRegularizer": "regularization_coeff",
    "scope_guard": "scope",
    "unique_name.generate": "key",
    "unique_name.guard": "new_generator",
    "unique_name.switch": "new_generator",
}


@pytest.mark.parametrize("path", FLUID)
def test_it_is_where_fluid_has_it(path: str) -> None:
    found = fluid
    for name in path.split("."):
        found = getattr(found, name)
    if FLUID[path] is not None:
        wanted = FLUID[path].split()
        assert list(inspect.signature(found).parameters)[: len(wanted)] == wanted


MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(fluid.__path__, f"{fluid.__name__}.")
    if not name.rpartition(".")[2].startswith("_")
]


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_says_what_it_exports(name: str) -> None:
    module = importlib.import_module(name)
    assert len(set(module.__all__)) == len(module.__all__)
    for export in module.__all__:
        assert not export.startswith("_")
        assert hasattr(module, export)
