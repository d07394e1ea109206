"""Runs Paddle Fluid's own tests of its operators on :mod:`headrace.fluid`::

    python tests/python/fluid/fluid_suite.py FOLDER [options of pytest: -n 4, -k pool]

FOLDER is python/paddle/fluid/tests/unittests of https://github.com/PaddlePaddle/Paddle at v1.6.3 (commit fa7ace7cf).
The tests need NumPy 1.23, SciPy, six, pytest-timeout and pytest-xdist.

What runs are copies, in a temporary folder, of the files whose operators are here. They import ``paddle`` and
``op_test``, and get both from this file. A test of an operator compares its outputs and its gradient as the original
does, with the same tolerances. What differs here on purpose, and what a test does that no program should, is expected
to fail: see ``EXPECTED_FAILURES``.
"""

from __future__ import annotations

import collections
import importlib
import os
import pkgutil
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core

# test_NAME.py
FILES = """
accuracy_op activation_nn_grad activation_op adadelta_op adagrad_op adam_op adamax_op add_position_encoding_op
affine_channel_op affine_grid_op anchor_generator_op arg_min_max_op argsort_op array_read_write_op assign_op
assign_value_op attention_lstm_op auc_op auc_single_pred_op backward basic_gru_api basic_gru_unit_op basic_lstm_api
basic_lstm_unit_op batch_norm_op beam_search_decode_op beam_search_op bilinear_interp_op bilinear_tensor_product_op
bipartite_match_op box_clip_op box_coder_op box_decoder_and_assign_op bpr_loss_op calc_gradient cast_op center_loss
chunk_eval_op clip_by_norm_op clip_op collect_fpn_proposals_op compare_op concat_op conditional_block const_value
conv2d_op conv2d_transpose_op conv3d_op conv3d_transpose_op conv_nn_grad conv_shift_op cos_sim_op crf_decoding_op
crop_op crop_tensor_op cross_entropy2_op cross_entropy_op ctc_align cumsum_op data_norm_op debugger decayed_adagrad_op
default_scope_funcs deformable_conv_op deformable_conv_v1_op deformable_psroi_pooling density_prior_box_op
deprecated_memory_optimize_interfaces detection_map_op diag distribute_fpn_proposals_op distributions dpsgd_op
dropout_op dynrnn_gradient_check dynrnn_static_input edit_distance_op elementwise_add_op elementwise_div_op
elementwise_floordiv_op elementwise_max_op elementwise_min_op elementwise_mod_op elementwise_mul_op elementwise_nn_grad
elementwise_pow_op elementwise_sub_op ema executor_and_mul executor_and_use_program_cache expand_as_op expand_op eye_op
fake_dequantize_op fake_quantize_op fc_op feed_fetch_method fetch_var fill_any_like_op fill_constant_batch_size_like_op
fill_constant_op fill_op fill_zeros_like2_op fill_zeros_like_op filter_by_instag_op flatten2_op flatten_op fsp_op
ftrl_op fused_elemwise_activation_op fused_embedding_fc_lstm_op fusion_gru_op fusion_lstm_op
fusion_seqconv_eltadd_relu_op fusion_seqexpand_concat_fc_op fusion_transpose_flatten_concat_op gather_nd_op gather_op
gather_tree_op gaussian_random_batch_size_like_op gaussian_random_op generate_mask_labels_op generate_proposal_labels_op
generate_proposals_op get_tensor_from_selected_rows_op grid_sampler_op group_norm_op gru_op gru_unit_op hash_op
hinge_loss_op hsigmoid_op huber_loss_op im2sequence_op image_classification_layer inplace_softmax_with_cross_entropy
install_check instance_norm_op iou_similarity_op is_empty_op isfinite_op kldiv_loss_op l1_norm_op label_smooth_op
lamb_op layer_norm_op learning_rate_scheduler linear_chain_crf_op linspace load_vars_shape_check lod_array_length_op
lod_rank_table lod_reset_op lod_tensor_array lod_tensor_array_ops log_loss_op logical_op lookup_table_op
lookup_table_v2_op lrn_op lstm_op lstm_unit_op lstmp_op margin_rank_loss_op math_op_patch matmul_op maxout_op mean_iou
mean_op memory_reuse_exclude_feed_var memory_usage merge_ids_op merge_selectedrows_op metrics mine_hard_examples_op
minus_op modified_huber_loss_op momentum_op mul_op multiclass_nms_op multihead_attention multiplex_op
multiprocess_reader_exception name_scope nce nearest_interp_op nn_grad norm_nn_grad norm_op normalization_wrapper
one_hot_op one_hot_v2_op pad2d_op pad_constant_like pad_op parallel_executor_fetch_feed
parallel_executor_run_load_infer_program pixel_shuffle polygon_box_transform pool2d_op pool3d_op pool_max_op
positive_negative_pair_op precision_recall_op prelu_op print_op prior_box_op program proximal_adagrad_op proximal_gd_op
prroi_pool_op psroi_pool_op py_reader_combination py_reader_lod_level_share py_reader_push_pop random_crop_op range
rank_loss_op recurrent_op reduce_op reorder_lod_tensor reshape_op retinanet_detection_output reverse_op rmsprop_op
rnn_cell_api rnn_decode_api roi_align_op roi_perspective_transform_op roi_pool_op row_conv_op rpn_target_assign_op
sampling_id_op scale_op scatter_nd_op scatter_op scope selected_rows selu_op seq_conv seq_pool sequence_concat
sequence_enumerate_op sequence_erase_op sequence_expand sequence_expand_as sequence_mask sequence_pad_op
sequence_reshape sequence_reverse sequence_scatter_op sequence_slice_op sequence_softmax_op sequence_unpad_op sgd_op
shape_op shard_index_op shrink_rnn_memory shuffle_channel_op sigmoid_cross_entropy_with_logits_op sigmoid_focal_loss_op
sign_op similarity_focus_op size_op slice_op smooth_l1_loss_op softmax_op softmax_with_cross_entropy_op
space_to_depth_op spectral_norm_op split_and_merge_lod_tensor_op split_ids_op split_op spp_op square_error_cost
squared_l2_distance_op squared_l2_norm_op squeeze2_op squeeze_op stack_op strided_slice_op sum_op switch
sync_batch_norm_op target_assign_op teacher_student_sigmoid_loss_op temporal_shift_op tensor_to_numpy top_k_op
transpose_op trilinear_interp_op truncated_gaussian_random_op unfold_op uniform_random_batch_size_like_op
uniform_random_op unique unique_name unique_with_counts unpool_op unsqueeze2_op unsqueeze_op unstack_op warpctc_op
weight_normalization where while_op yolo_box_op yolov3_loss_op
"""

_TYPES = "feeds or reads a variable of another dtype than it declares, which is refused"
_INTERNAL = "uses functions of Fluid's core that programs do not use"
_FLOAT32 = "differences in float32"
# What is expected to fail (it matches the beginning of "test_….py::Class::test"), and why.
EXPECTED_FAILURES = {
    r"test_(?!compare|split|squeeze)\w+\.py::Test\w+Error::|test_crop_tensor_op.py::.*Exception": (
        "expects Fluid's kinds of errors, or an error where there is none"
    ),
    r"test_adam_op.py::TestSparseAdamOp": "rows that lazy Adam does not touch are expected to be lost",
    # Without a tolerance for numbers close to 0, of which rounding leaves more or less.
    r"test_basic_(gru|lstm)_\w+.py": _FLOAT32,
    r"test_(bi|tri)linear_interp_op.py::Test\w+Interp_attr_tensor_Case1::test_check_grad": _FLOAT32,
    r"test_softmax_with_cross_entropy_op.py::.*Fp16": "Fluid has it on GPUs only",
    r"test_sum_op.py::TestSelectedRowsSumOp": "adds up SelectedRows that have no value yet",
    r"test_conv3d_op.py::(?!TestFP16).*no_input$": "differentiates by what it says not to differentiate by",
    r"test_lod_rank_table": _TYPES,
    r"test_linear_chain_crf_op.py::TestLinearChainCrfPaddingTensor": "has no input Length, but length",
    r"test_matmul_op.py::test_negative_dims_program": "is no test, but a part of one",
    r"test_multiclass_nms_op.py::.*NMS2.*NoOutput": "expects no rows of no known length",
    r"test_nce.py::TestNCECase1Tensor::test_check_grad": _FLOAT32,
    r"test_nn_grad.py::TestMulGradCheck|test_prroi_pool_op.py::.*backward": _INTERNAL,
    r"test_prroi_pool_op.py::.*output$": "gives output_channels, which the operator of earlier releases has",
    r"test_one_hot_v2_op.py::.*dygraph|test_uniform_random_op.py::.*Dygraph": _INTERNAL,
    r"test_(gather|scatter)_nd_op.py::.*Raise": "expects Fluid's words for an error",
    # In a process of its own, unittest's order and the file's seed give numbers that pass.
    r"test_recurrent_op.py::RecurrentOpSubBlockTest::test_backward": "compares what rounding has left, below 1e-7",
    r"test_split_and_merge_lod_tensor_op.py::.*_2$": "uses an operator of Fluid's inference library",
    r"test_square_error_cost.py": "feeds a variable of the program",
    # 3136 numbers in ten bins, of which each has to have 10 % within 1 %.
    r"test_uniform_random_op.py::.*SelectedRows": "expects the numbers that Fluid's generator gives",
}


def _value(given: Any) -> tuple[np.ndarray, list[list[int]]]:
    """The array and the sequence lengths that a test gives for a variable."""
    array, lengths = given if isinstance(given, tuple) else (given, [])
    return np.asarray(array), [list(map(int, level)) for level in lengths or []]


def _variables(slot: str, given: Any) -> list[tuple[str, Any]]:
    """The variables of a slot and what is given for them. One that is alone has the name of the slot."""
    return [(str(item[0]), item[1]) for item in given] if isinstance(given, list) else [(slot, given)]


def _tensor(given: Any) -> core.LoDTensor:
    array, lengths = _value(given)
    tensor = core.LoDTensor.from_numpy(array, copy=True)
    if lengths:
        tensor.set_recursive_sequence_lengths(lengths)
    return tensor


class OpTest(unittest.TestCase):
    """What tests of operators derive from. They set ``op_type``, ``inputs``, ``outputs`` and ``attrs``."""

    op_type: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    attrs: Mapping[str, Any]
    dtype: Any = "float32"

    @classmethod
    def setUpClass(cls) -> None:
        np.random.seed(123)
        random.seed(124)

    @staticmethod
    def np_dtype_to_fluid_dtype(array: np.ndarray) -> np.ndarray:
        return array

    def _build(self) -> tuple[fluid.Program, dict[str, core.LoDTensor]]:
        """A program of the operator, and what it is fed with."""
        program = fluid.Program()
        block = program.global_block()
        feed: dict[str, core.LoDTensor] = {}
        inputs: dict[str, list[str]] = {}
        outputs: dict[str, list[str]] = {}
        for slot, value in getattr(self, "inputs", {}).items():
            for name, given in _variables(slot, value):
                array, lengths = _value(given)
                if array.dtype == np.float16:
                    self.skipTest("Fluid has float16 on GPUs only")
                dtype = np.float16 if array.dtype == np.uint16 else array.dtype  # fed as its bits
                block.create_var(name, list(array.shape), dtype, len(lengths), stop_gradient=False)
                feed[name] = _tensor(given)
                inputs.setdefault(slot, []).append(name)
        for slot, value in self.outputs.items():
            outputs[slot] = [name for name, _ in _variables(slot, value)]
        slots = core.op_info(self.op_type)["outputs"]
        outputs |= {s["name"]: [s["name"]] for s in slots if s["name"] not in outputs and not s["duplicable"]}
        for name in (name for names in outputs.values() for name in names if not block.has_var(name)):
            block.create_var(name)
        while True:
            try:
                block.append_op(self.op_type, inputs, outputs, dict(getattr(self, "attrs", {})))
                return program, feed
            except errors.InvalidArgument as error:  # of the outputs that need not be given, some must not be
                unwanted = [s for s in outputs if s not in self.outputs and re.search(rf"\b{s}\b", str(error))]
                if not unwanted:
                    raise
                del outputs[unwanted[0]]

    def _run(self, names: Iterable[str]) -> list[core.LoDTensor]:
        program, feed = self._build()
        return fluid.Executor().run(program, feed, list(names), scope=fluid.Scope(), return_numpy=False)

    def check_output_customized(self, checker: Callable[[list[np.ndarray]], None]) -> None:
        names = [name for slot, value in self.outputs.items() for name, _ in _variables(slot, value)]
        checker(sorted(map(np.array, self._run(names)), key=len))

    def check_output(
        self,
        atol: float = 1e-5,
        no_check_set: Iterable[str] | None = None,
        equal_nan: bool = False,
        check_dygraph: bool = False,
        inplace_atol: float | None = None,
    ) -> None:
        slots = [item for item in self.outputs.items() if item[0] not in set(no_check_set or ())]
        expected = dict(pair for slot, value in slots for pair in _variables(slot, value))
        for (name, given), result in zip(expected.items(), self._run(expected)):
            value, lengths = _value(given)
            actual = np.array(result)
            same = np.allclose(actual, value, atol=atol, equal_nan=equal_nan)
            assert same, f"output {name}: expected {value}, got {actual}"
            assert not isinstance(given, tuple) or result.recursive_sequence_lengths() == lengths, f"output {name}"

    def check_output_with_place(self, place: Any, *args: Any, **kwargs: Any) -> None:
        self.check_output(*args, **kwargs)

    def check_grad(
        self,
        inputs_to_check: Sequence[str],
        output_names: Sequence[str] | str,
        no_grad_set: set[str] | None = None,
        numeric_grad_delta: float = 0.005,
        in_place: bool = False,
        max_relative_error: float = 0.005,
        user_defined_grads: Sequence[np.ndarray] | None = None,
    ) -> None:
        outputs = [output_names] if isinstance(output_names, str) else list(output_names)
        actual = self._gradients(inputs_to_check, outputs, no_grad_set)
        for i, (name, found) in enumerate(zip(inputs_to_check, actual)):
            given = (
                user_defined_grads[i] if user_defined_grads else self._differences(name, outputs, numeric_grad_delta)
            )
            expected = np.reshape(given, found.shape)
            size = np.abs(expected)
            difference = np.abs(expected - found) / np.where(size < 1e-3, 1, size)
            at = np.unravel_index(np.argmax(difference), difference.shape)
            message = f"d/d{name}{[int(j) for j in at]}: expected {expected[at]}, got {found[at]}"
            assert difference[at] <= max_relative_error, message

    def check_grad_with_place(self, place: Any, *args: Any, **kwargs: Any) -> None:
        self.check_grad(*args, **kwargs)

    def _gradients(self, inputs: Sequence[str], outputs: Sequence[str], no_grad: set[str] | None) -> list[np.ndarray]:
        """Those of the mean over the means of the outputs."""
        program, feed = self._build()
        block = program.global_block()
        with fluid.program_guard(program, fluid.Program()):
            means = [fluid.layers.mean(block.var(name)) for name in outputs]
            loss = fluid.layers.scale(fluid.layers.sum(means), 1.0 / len(means))
            pairs = fluid.backward.append_backward(loss, list(inputs), no_grad)
        by_name = {variable.name: gradient for variable, gradient in pairs}
        wanted = [by_name[name] for name in inputs]
        return list(map(np.array, fluid.Executor().run(program, feed, wanted, scope=fluid.Scope(), return_numpy=False)))

    def _differences(self, name: str, outputs: Sequence[str], delta: float) -> np.ndarray:
        program, feed = self._build()
        executor, scope = fluid.Executor(), fluid.Scope()
        value, lengths = np.array(feed[name]), feed[name].recursive_sequence_lengths()

        def objective() -> Any:
            fed = {**feed, name: _tensor((value, lengths))}
            results = executor.run(program, fed, list(outputs), scope=scope, return_numpy=False)
            return value.dtype.type(sum(np.array(result).mean(dtype=value.dtype) for result in results) / len(outputs))

        gradient = np.zeros_like(value)
        for at in np.ndindex(value.shape):
            kept = value[at]
            value[at] = kept + delta
            above = objective()
            value[at] = kept - delta
            gradient[at] = (above - objective()) / delta / 2
            value[at] = kept
        return gradient


class Operator:
    """An operator on the variables of a scope; slots and attributes are keywords. What it does not have is ignored."""

    def __init__(self, type: str, **given: Any) -> None:
        self._type = type
        info = core.op_info(type)

        def names(key: str) -> dict[str, list[str]]:
            found = {slot["name"]: given[slot["name"]] for slot in info[key] if slot["name"] in given}
            return {slot: [value] if isinstance(value, str) else list(value) for slot, value in found.items()}

        self._inputs, self._outputs = names("inputs"), names("outputs")
        attrs = {attr["name"] for attr in info["attrs"]}
        self._attrs = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in given.items() if k in attrs}

    def run(self, scope: core.Scope, place: Any) -> None:
        program = fluid.Program()
        block = program.global_block()
        for name in sorted({n for slots in (self._inputs, self._outputs) for names in slots.values() for n in names}):
            block.create_var(name, persistable=True, stop_gradient=True, **_declaration(scope.find_var(name)))
        block.append_op(self._type, self._inputs, self._outputs, self._attrs)
        fluid.Executor().run(program, scope=scope)


def _declaration(variable: core.ScopeVariable | None) -> dict[str, Any]:
    """How a program declares a variable that holds this."""
    if variable is None or not variable.is_initialized():
        return {}
    try:
        tensor = variable.get_tensor()
        return {"shape": tensor.shape(), "dtype": tensor.dtype()} if tensor._is_initialized() else {}
    except TypeError:
        pass
    try:
        rows = variable.get_selected_rows().get_tensor()
    except TypeError:
        array = variable.get_lod_tensor_array()
        return {"type": core.VarType.LOD_TENSOR_ARRAY, **({"dtype": array[0].dtype()} if len(array) else {})}
    known = {"shape": [-1, *rows.shape()[1:]], "dtype": rows.dtype()} if rows._is_initialized() else {}
    return {"type": core.VarType.SELECTED_ROWS, **known}


def _probabilities(batch_size: int, class_num: int, dtype: Any = "float32") -> np.ndarray:
    values = np.random.uniform(0.1, 1.0, size=(batch_size, class_num)).astype(dtype)
    return values / values.sum(axis=1, keepdims=True)


def _module(name: str, **contents: Any) -> ModuleType:
    module = sys.modules[name] = ModuleType(name)
    module.__dict__.update(contents)
    return module


def _install() -> None:
    """Makes the modules that the tests import."""
    _module("paddle", fluid=fluid, __path__=[])
    sys.modules["paddle.fluid"] = fluid
    for found in pkgutil.walk_packages(fluid.__path__, "headrace.fluid."):
        sys.modules["paddle" + found.name.removeprefix("headrace")] = importlib.import_module(found.name)
    fluid.op = _module("paddle.fluid.op", Operator=Operator, DynamicRecurrentOp=None)  # type: ignore[attr-defined]
    _module("paddle.compat", to_text=str, long_type=int, round=lambda x: float(np.copysign(np.floor(abs(x) + 0.5), x)))
    _module("op_test", OpTest=OpTest, randomize_probability=_probabilities)
    _module("testsuite", create_op=None)
    for module, names in (
        (core, {"op_support_gpu": lambda _: False, "EnforceNotMet": errors.HeadraceError}),
        (fluid, {"is_compiled_with_cuda": core.is_compiled_with_cuda}),
        (fluid.framework, {"convert_np_dtype_to_dtype_": core.convert_dtype}),
        (fluid.backward, {"_append_grad_suffix_": lambda name: name + "@GRAD"}),
    ):
        module.__dict__.update(names)
    np.__dict__.update({"int": int, "float": float, "bool": bool, "product": np.prod})  # NumPy 1.19 had them
    np.__dict__.update({"set_seed": np.random.seed})  # which no NumPy had
    collections.__dict__.update({"Sequence": Sequence})  # Python 3.9 had it
    sample = random.sample  # Python 3.10 took sets, too
    random.__dict__["sample"] = lambda population, k: sample(
        tuple(population) if isinstance(population, Set) else population, k
    )


def pytest_configure() -> None:
    """This file is a plugin of the pytest that it starts."""
    _install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for pattern, reason in EXPECTED_FAILURES.items():
            if re.match(pattern, item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=reason))


@pytest.fixture(autouse=True, scope="class")
def programs_and_scope_of_a_class() -> Iterator[None]:
    with (
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.scope_guard(fluid.Scope()),
        fluid.unique_name.guard(),
    ):
        yield


def run(tests: Path, options: Sequence[str]) -> int:
    """Runs the tests of a folder; pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="fluid-suite-") as folder:
        found = [tests / f"test_{name}.py" for name in FILES.split() if (tests / f"test_{name}.py").exists()]
        if not found:
            raise ValueError(f"{tests} has no test_mul_op.py and so on: are these Fluid's tests?")
        # Without the __init__.py beside them, and what it needs.
        helpers = ("decorator_helper", "gradient_checker", "py_precise_roi_pool", "simple_nets")
        for path in [*found, *(tests / f"{name}.py" for name in helpers)]:
            if path.exists():
                shutil.copy(path, folder)
        paths = [folder, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-p", Path(__file__).stem]
        command += ["-p", "no:cacheprovider", "-q", "-ra", "--timeout", "600", *options, folder]
        # The hash seed, since tests are made in loops over sets.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
        return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
