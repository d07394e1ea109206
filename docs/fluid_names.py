"""Writes fluid-names.md: which public names of Paddle Fluid 1.6 are here. `python docs/fluid_names.py`

The names are those that Fluid's modules declare public. Whether one is here is looked up, and why one is not is what
the error says that asking for it raises.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace.fluid as fluid
from headrace.fluid._refused import REFUSED

PAGE = Path(__file__).with_name("fluid-names.md")

NAMES = {
    "fluid": """Program Variable default_startup_program default_main_program program_guard name_scope cuda_places
        cpu_places cuda_pinned_places in_dygraph_mode is_compiled_with_cuda load_op_library require_version device_guard
        Executor global_scope scope_guard ParallelExecutor ExecutionStrategy BuildStrategy CompiledProgram DataFeeder
        create_lod_tensor create_random_int_lodtensor DistributeTranspiler DistributeTranspilerConfig memory_optimize
        release_memory ParamAttr WeightNormParamAttr DataFeedDesc CPUPlace CUDAPlace CUDAPinnedPlace Scope LoDTensor
        LoDTensorArray Tensor data embedding one_hot save load gradients io initializer layers nets optimizer backward
        regularizer clip metrics profiler unique_name recordio_writer transpiler contrib dataset DatasetFactory
        evaluator average install_check dygraph""",
    "Program": """global_block block current_block clone list_vars all_parameters num_blocks random_seed to_string
        parse_from_string""",
    "Variable": "name shape dtype lod_level persistable stop_gradient type astype to_string",
    "layers": """fc embedding linear_chain_crf crf_decoding cos_sim chunk_eval conv2d conv3d softmax pool2d pool3d
        adaptive_pool2d adaptive_pool3d batch_norm instance_norm data_norm conv2d_transpose conv3d_transpose reduce_sum
        reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any dropout split ctc_greedy_decoder
        l2_normalize matmul topk transpose im2sequence row_conv multiplex layer_norm group_norm spectral_norm smooth_l1
        one_hot autoincreased_step_counter reshape squeeze unsqueeze lod_reset lod_append lrn pad pad_constant_like
        label_smooth roi_pool roi_align dice_loss image_resize image_resize_short resize_bilinear resize_trilinear
        resize_nearest gather gather_nd scatter scatter_nd_add scatter_nd random_crop mean_iou relu selu log crop
        crop_tensor elu relu6 pow stanh hard_sigmoid swish prelu brelu leaky_relu soft_relu flatten stack pad2d unstack
        unique unique_with_counts expand expand_as scale elementwise_add elementwise_div elementwise_sub elementwise_mul
        elementwise_max elementwise_min elementwise_pow elementwise_mod elementwise_floordiv
        uniform_random_batch_size_like gaussian_random sampling_id gaussian_random_batch_size_like sum slice
        strided_slice shape rank size logical_and logical_or logical_xor logical_not clip clip_by_norm mean mul maxout
        space_to_depth affine_grid affine_channel similarity_focus hash grid_sampler log_loss add_position_encoding
        bilinear_tensor_product merge_selected_rows get_tensor_from_selected_rows shuffle_channel temporal_shift py_func
        psroi_pool prroi_pool pixel_shuffle fsp_matrix continuous_value_model where sign deformable_conv unfold
        deformable_roi_pooling filter_by_instag shard_index hard_swish gather_tree uniform_random sequence_conv
        sequence_softmax sequence_pool sequence_concat sequence_first_step sequence_last_step sequence_slice
        sequence_expand sequence_expand_as sequence_pad sequence_unpad sequence_reshape sequence_scatter
        sequence_enumerate sequence_mask sequence_reverse center_loss bpr_loss cross_entropy square_error_cost
        edit_distance warpctc nce hsigmoid sampled_softmax_with_cross_entropy softmax_with_cross_entropy rank_loss
        margin_rank_loss sigmoid_cross_entropy_with_logits teacher_student_sigmoid_loss huber_loss kldiv_loss npair_loss
        mse_loss While Switch increment array_write create_array less_than less_equal greater_than greater_equal equal
        not_equal array_read array_length cond IfElse DynamicRNN StaticRNN reorder_lod_tensor_by_rank Print is_empty
        case switch_case while_loop create_tensor create_parameter create_global_var cast tensor_array_to_tensor concat
        sums assign fill_constant_batch_size_like fill_constant argmin argmax argsort ones zeros reverse has_inf has_nan
        isfinite range linspace zeros_like ones_like diag eye data read_file double_buffer py_reader
        create_py_reader_by_data load prior_box density_prior_box multi_box_head bipartite_match target_assign
        detection_output ssd_loss rpn_target_assign retinanet_target_assign sigmoid_focal_loss anchor_generator
        roi_perspective_transform generate_proposal_labels generate_proposals generate_mask_labels iou_similarity
        box_coder polygon_box_transform yolov3_loss yolo_box box_clip multiclass_nms locality_aware_nms
        retinanet_detection_output distribute_fpn_proposals box_decoder_and_assign collect_fpn_proposals accuracy auc
        exponential_decay natural_exp_decay inverse_time_decay polynomial_decay piecewise_decay noam_decay cosine_decay
        linear_lr_warmup exp tanh tanh_shrink sqrt rsqrt abs ceil floor cos acos asin atan sin round reciprocal square
        softplus softsign sigmoid logsigmoid softshrink hard_shrink cumsum thresholded_relu gelu erf RNNCell GRUCell
        LSTMCell Decoder BeamSearchDecoder rnn dynamic_decode dynamic_lstm dynamic_lstmp dynamic_gru gru_unit lstm_unit
        lstm beam_search beam_search_decode Uniform Normal Categorical MultivariateNormalDiag""",
    "contrib": """memory_usage op_freq_statistic InitState StateCell TrainingDecoder BeamSearchDecoder basic_gru
        basic_lstm BasicGRUUnit BasicLSTMUnit fused_elemwise_activation sequence_topk_avg_pooling var_conv_2d
        match_matrix_tensor tree_conv fused_embedding_seq_pool ctr_metric_bundle load_persistables_for_increment
        load_persistables_for_inference convert_dist_to_sparse_program""",
    "io": """save_vars save_params save_persistables load_vars load_params load_persistables save_inference_model
        load_inference_model batch save load load_program_state set_program_state PyReader DataLoader cache map_readers
        buffered compose chain shuffle ComposeNotAligned firstn xmap_readers multiprocess_reader""",
    "optimizer": """SGD Momentum Adagrad Adam Adamax Dpsgd DecayedAdagrad Ftrl SGDOptimizer MomentumOptimizer
        AdagradOptimizer AdamOptimizer AdamaxOptimizer DpsgdOptimizer DecayedAdagradOptimizer RMSPropOptimizer
        FtrlOptimizer Adadelta AdadeltaOptimizer ModelAverage LarsMomentum LarsMomentumOptimizer DGCMomentumOptimizer
        LambOptimizer ExponentialMovingAverage PipelineOptimizer LookaheadOptimizer RecomputeOptimizer""",
    "initializer": """Constant Uniform Normal TruncatedNormal Xavier Bilinear MSRA ConstantInitializer
        UniformInitializer NormalInitializer TruncatedNormalInitializer XavierInitializer BilinearInitializer
        MSRAInitializer NumpyArrayInitializer force_init_on_cpu init_on_cpu""",
    "nets": "simple_img_conv_pool sequence_conv_pool glu scaled_dot_product_attention img_conv_group",
    "metrics": "MetricBase CompositeMetric Precision Recall Accuracy ChunkEvaluator EditDistance DetectionMAP Auc",
    "clip": "set_gradient_clip ErrorClipByValue GradientClipByValue GradientClipByNorm GradientClipByGlobalNorm",
    "regularizer": "L1Decay L2Decay L1DecayRegularizer L2DecayRegularizer",
    "backward": "append_backward gradients",
    "transpiler": """DistributeTranspiler memory_optimize release_memory HashName RoundRobin
        DistributeTranspilerConfig""",
    "profiler": "profiler cuda_profiler reset_profiler start_profiler stop_profiler",
    "unique_name": "generate switch guard",
    "param_attr": "ParamAttr WeightNormParamAttr",
}

_ONE_CPU = "the devices asked for are one CPU, which computes the whole batch"
_NO_GPU = "there is no GPU: raises Unimplemented, which says so"

#: What is here, but does something else than in Fluid.
DIFFERENT = {
    "contrib.memory_usage": "the persistable variables, and all of them; Fluid multiplies a total by 1.05 and 1.1",
    "fluid.BuildStrategy": "accepted; has no effect",
    "fluid.CUDAPinnedPlace": _NO_GPU,
    "fluid.CUDAPlace": _NO_GPU,
    "fluid.CompiledProgram": _ONE_CPU,
    "fluid.ExecutionStrategy": "accepted; has no effect",
    "fluid.ParallelExecutor": _ONE_CPU,
    "fluid.cpu_places": _ONE_CPU,
    "fluid.cuda_pinned_places": _NO_GPU,
    "fluid.cuda_places": _NO_GPU,
    "fluid.memory_optimize": "changes nothing: the executor shares memory by itself",
    "fluid.release_memory": "changes nothing: the executor shares memory by itself",
    "initializer.force_init_on_cpu": "has no effect: everything is on the CPU",
    "initializer.init_on_cpu": "has no effect: everything is on the CPU",
    "optimizer.RecomputeOptimizer": "the optimizer that it wraps: gradients are the same, no memory is saved",
    "profiler.cuda_profiler": _NO_GPU,
    "profiler.profiler": "the file is a timeline for Perfetto or chrome://tracing, without a conversion",
    "profiler.stop_profiler": "the file is a timeline for Perfetto or chrome://tracing, without a conversion",
    "transpiler.memory_optimize": "changes nothing: the executor shares memory by itself",
    "transpiler.release_memory": "changes nothing: the executor shares memory by itself",
}


def owner(part: str) -> Any:
    """What has the names of a part."""
    if part == "Program":
        return fluid.Program()
    if part == "Variable":
        return fluid.Variable
    return fluid if part == "fluid" else getattr(fluid, part)


def status(part: str, name: str) -> tuple[str, str]:
    """ "here", "different", "refused" or "missing", and why."""
    if hasattr(owner(part), name):
        why = DIFFERENT.get(f"{part}.{name}", "")
        return ("different" if why else "here"), why
    why = REFUSED.get(part, {}).get(name, "")
    return ("refused" if why else "missing"), why


def page() -> str:
    """The text of the page."""
    rows = {part: {name: status(part, name) for name in names.split()} for part, names in NAMES.items()}
    flat = [what for names in rows.values() for what, _ in names.values()]
    count = {what: flat.count(what) for what in ("here", "different", "refused", "missing")}
    lines = [
        "# Names of Paddle Fluid 1.6",
        "",
        "Generated by `docs/fluid_names.py`. For each module: the public names that are supported; those that are",
        "supported, but differ from Fluid; and those that are refused. Accessing a refused name raises an",
        "`AttributeError`, importing it an `ImportError`, with the text of the last column.",
        "",
        f"Of {len(flat)} names, {count['here'] + count['different']} are supported, {count['different']} of them "
        f"with differences; {count['refused']} are refused.",
        "",
    ]
    for part, names in rows.items():
        here = [name for name, (what, _) in names.items() if what == "here"]
        title = {"fluid": "fluid", "Program": "fluid.Program", "Variable": "fluid.Variable"}.get(part, f"fluid.{part}")
        lines += [f"## {title}", ""]
        if here:
            lines += [f"Supported: {', '.join(f'`{name}`' for name in here)}.", ""]
        others = [(name, what, why) for name, (what, why) in names.items() if what != "here"]
        if others:
            lines += ["| name | | reason and alternative |", "| --- | --- | --- |"]
            lines += [f"| `{name}` | {what} | {why} |" for name, what, why in others]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
