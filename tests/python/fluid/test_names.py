"""Fluid's names: where a program written for Fluid 1.x looks for them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest

import headrace.fluid as fluid
from headrace.fluid._refused import REFUSED
from headrace.fluid.layers._fluid_modules import FLUID_MODULES

#: What Fluid 1.x has at these paths, and so do we, with the arguments in Fluid's order.
FLUID = {
    "CPUPlace": None,
    "DataFeeder": "feed_list place program",
    "Executor": "place",
    "LoDTensor": None,
    "LoDTensorArray": None,
    "ParamAttr": "name initializer learning_rate regularizer trainable gradient_clip",
    "Program": "",
    "Tensor": None,
    "Variable": None,
    "BuildStrategy": "",
    "CUDAPlace": "id",
    "CompiledProgram": "program_or_graph build_strategy",
    "CompiledProgram.with_data_parallel": "self loss_name build_strategy exec_strategy share_vars_from places",
    "ExecutionStrategy": "",
    "ParallelExecutor": "use_cuda loss_name main_program share_vars_from exec_strategy build_strategy",
    "ParallelExecutor.run": "self fetch_list feed feed_dict return_numpy",
    "average.WeightedAverage": "",
    "backward.append_backward": "loss parameter_list no_grad_set callbacks checkpoints",
    "backward.gradients": "targets inputs target_gradients no_grad_set",
    "clip.ClipByGlobalNorm": "clip_norm group_name",
    "clip.ClipByNorm": "clip_norm",
    "clip.ClipByValue": "max min",
    "clip.ErrorClipByValue": "max min",
    "clip.GradientClipByGlobalNorm": "clip_norm group_name",
    "clip.GradientClipByNorm": "clip_norm",
    "clip.GradientClipByValue": "max min",
    "clip.append_gradient_clip_ops": "param_grads",
    "clip.set_gradient_clip": "clip param_list program",
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
    "compiler.CompiledProgram": None,
    "cpu_places": "device_count",
    "cuda_pinned_places": "device_count",
    "cuda_places": "device_ids",
    "default_main_program": "",
    "default_startup_program": "",
    "device_guard": "device",
    "evaluator.ChunkEvaluator": "input label chunk_scheme num_chunk_types excluded_chunk_types",
    "evaluator.DetectionMAP": "input gt_label gt_box gt_difficult class_num background_label overlap_threshold "
    "evaluate_difficult ap_version",
    "evaluator.EditDistance": "input label ignored_tokens",
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
    "initializer.Bilinear": "",
    "initializer.BilinearInitializer": "",
    "gradients": "targets inputs target_gradients no_grad_set",
    "initializer.Constant": "value force_cpu",
    "initializer.ConstantInitializer": "value force_cpu",
    "initializer.MSRA": "uniform fan_in seed",
    "initializer.Normal": "loc scale seed",
    "initializer.NumpyArrayInitializer": "value",
    "initializer.TruncatedNormal": "loc scale seed",
    "initializer.Uniform": "low high seed diag_num diag_step diag_val",
    "initializer.Xavier": "uniform fan_in fan_out seed",
    "in_dygraph_mode": "",
    "install_check.run_check": "",
    "is_compiled_with_cuda": "",
    "io.DataLoader.from_generator": "feed_list capacity use_double_buffer iterable return_list use_multiprocess",
    "io.PyReader": "feed_list capacity use_double_buffer iterable return_list",
    "io.PyReader.decorate_batch_generator": "self reader places",
    "io.PyReader.decorate_sample_generator": "self sample_generator batch_size drop_last places",
    "io.PyReader.decorate_sample_list_generator": "self reader places",
    "io.ComposeNotAligned": None,
    "io.Fake": None,
    "io.PipeReader": None,
    "io.buffered": "reader size",
    "io.cache": "reader",
    "io.chain": "readers",
    "io.compose": "readers",
    "io.firstn": "reader n",
    "io.map_readers": "func readers",
    "io.multiprocess_reader": "readers use_pipe queue_size",
    "io.xmap_readers": "mapper reader process_num buffer_size order",
    "io.batch": "reader batch_size drop_last",
    "io.load_inference_model": "dirname executor model_filename params_filename pserver_endpoints",
    "io.load_params": "executor dirname main_program filename",
    "io.load_persistables": "executor dirname main_program filename",
    "io.load_vars": "executor dirname main_program vars predicate filename",
    "io.save_inference_model": "dirname feeded_var_names target_vars executor main_program model_filename "
    "params_filename export_for_deployment program_only",
    "io.save_params": "executor dirname main_program filename",
    "io.save_persistables": "executor dirname main_program filename",
    "io.save_vars": "executor dirname main_program vars predicate filename",
    "io.shuffle": "reader buf_size",
    "layer_helper.LayerHelper": None,
    "layers.adaptive_pool2d": "input pool_size pool_type require_index name",
    "layers.adaptive_pool3d": "input pool_size pool_type require_index name",
    "layers.auc": "input label curve num_thresholds topk slide_steps",
    "layers.beam_search": "pre_ids pre_scores ids scores beam_size end_id level is_accumulated name return_parent_idx",
    "layers.beam_search_decode": "ids scores beam_size end_id name",
    "layers.bpr_loss": "input label name",
    "layers.chunk_eval": "input label chunk_scheme num_chunk_types excluded_chunk_types seq_length",
    "layers.conv3d": "input num_filters filter_size stride padding dilation groups param_attr bias_attr use_cudnn act "
    "name data_format",
    "layers.conv3d_transpose": "input num_filters output_size filter_size padding stride dilation groups param_attr "
    "bias_attr use_cudnn act name data_format",
    "layers.ctc_greedy_decoder": "input blank input_length padding_value name",
    "layers.data_norm": "input act epsilon param_attr data_layout in_place name moving_mean_name "
    "moving_variance_name do_model_average_for_mean_and_var",
    "layers.dynamic_lstmp": "input size proj_size param_attr bias_attr use_peepholes is_reverse gate_activation "
    "cell_activation candidate_activation proj_activation dtype name",
    "layers.edit_distance": "input label normalized ignored_tokens input_length label_length",
    "layers.gaussian_random": "shape mean std seed dtype",
    "layers.gaussian_random_batch_size_like": "input shape input_dim_idx output_dim_idx mean std seed dtype",
    "layers.cosine_decay": "learning_rate step_each_epoch epochs",
    "layers.exponential_decay": "learning_rate decay_steps decay_rate staircase",
    "layers.inverse_time_decay": "learning_rate decay_steps decay_rate staircase",
    "layers.learning_rate_scheduler.noam_decay": "d_model warmup_steps",
    "layers.linear_lr_warmup": "learning_rate warmup_steps start_lr end_lr",
    "layers.natural_exp_decay": "learning_rate decay_steps decay_rate staircase",
    "layers.noam_decay": "d_model warmup_steps",
    "layers.piecewise_decay": "boundaries values",
    "layers.polynomial_decay": "learning_rate decay_steps end_learning_rate power cycle",
    "layers.hsigmoid": "input label num_classes param_attr bias_attr name path_table path_code is_custom is_sparse",
    "layers.im2sequence": "input filter_size stride padding input_image_size out_stride name",
    "layers.load": "out file_path load_as_fp16",
    "layers.lrn": "input n k alpha beta name data_format",
    "layers.maxout": "x groups name axis",
    "layers.mean_iou": "input label num_classes",
    "layers.nce": "input label num_total_classes sample_weight param_attr bias_attr num_neg_samples name sampler "
    "custom_dist seed is_sparse",
    "layers.pool3d": "input pool_size pool_type pool_stride pool_padding global_pooling use_cudnn ceil_mode name "
    "exclusive data_format",
    "layers.range": "start end step dtype",
    "layers.random_crop": "x shape seed",
    "layers.row_conv": "input future_context_size param_attr act",
    "layers.sampling_id": "x min max seed dtype",
    "layers.sequence_enumerate": "input win_size pad_value name",
    "layers.sequence_mask": "x maxlen dtype name",
    "layers.sequence_reshape": "input new_dim",
    "layers.sequence_scatter": "input index updates name",
    "layers.uniform_random": "shape dtype min max seed",
    "layers.uniform_random_batch_size_like": "input shape dtype input_dim_idx output_dim_idx min max seed",
    "layers.warpctc": "input label blank norm_by_times input_length label_length",
    "layers.Print": "input first_n message summarize print_tensor_name print_tensor_type print_tensor_shape "
    "print_tensor_lod print_phase",
    "layers.autoincreased_step_counter": "counter_name begin step",
    "layers.dice_loss": "input label epsilon",
    "layers.image_resize_short": "input out_short_len resample",
    "layers.lod_append": "x level",
    "layers.mse_loss": "input label",
    "layers.npair_loss": "anchor positive labels l2_reg",
    "layers.ones_like": "x out",
    "layers.rank": "input",
    "layers.sum": "x",
    "layers.zeros_like": "x out",
    "layers.StaticRNN": "name",
    "layers.Switch": "name",
    "layers.While": "cond is_test name",
    "layers.argmin": "x axis",
    "layers.argsort": "input axis descending name",
    "layers.array_length": "array",
    "layers.array_read": "array i",
    "layers.array_write": "x i array",
    "layers.brelu": "x t_min t_max name",
    "layers.clip": "x min max name",
    "layers.clip_by_norm": "x max_norm name",
    "layers.create_array": "dtype",
    "layers.crop": "x shape offsets name",
    "layers.cumsum": "x axis exclusive reverse",
    "layers.elementwise_mod": "x y axis act name",
    "layers.elementwise_pow": "x y axis act name",
    "layers.elu": "x alpha name",
    "layers.equal": "x y cond",
    "layers.expand": "x expand_times name",
    "layers.dynamic_gru": "input size param_attr bias_attr is_reverse gate_activation candidate_activation h_0 "
    "origin_mode",
    "layers.dynamic_lstm": "input size h_0 c_0 param_attr bias_attr use_peepholes is_reverse gate_activation "
    "cell_activation candidate_activation dtype name",
    "layers.gru_unit": "input hidden size param_attr bias_attr activation gate_activation origin_mode",
    "layers.lstm_unit": "x_t hidden_t_prev cell_t_prev forget_bias param_attr bias_attr name",
    "layers.image_resize": "input out_shape scale name resample actual_shape align_corners align_mode data_format",
    "layers.lod_reset": "x y target_lod",
    "layers.resize_bilinear": "input out_shape scale name actual_shape align_corners align_mode data_format",
    "layers.resize_trilinear": "input out_shape scale name actual_shape align_corners align_mode data_format",
    "layers.similarity_focus": "input axis indexes name",
    "layers.continuous_value_model": "input cvm use_cvm",
    "layers.resize_nearest": "input out_shape scale name actual_shape align_corners data_format",
    "layers.sampled_softmax_with_cross_entropy": "logits label num_samples num_true remove_accidental_hits "
    "use_customized_samples customized_samples customized_probabilities seed",
    "layers.sequence_concat": "input name",
    "layers.cos_sim": "X Y",
    "layers.crf_decoding": "input param_attr label length",
    "layers.linear_chain_crf": "input label param_attr length",
    "layers.sequence_conv": "input num_filters filter_size filter_stride padding padding_start bias_attr "
    "param_attr act name",
    "layers.gather": "input index overwrite",
    "layers.group_norm": "input groups epsilon param_attr bias_attr act data_layout name",
    "layers.smooth_l1": "x y inside_weight outside_weight sigma",
    "layers.conv2d_transpose": "input num_filters output_size filter_size padding stride dilation groups param_attr "
    "bias_attr use_cudnn act name data_format",
    "layers.hard_sigmoid": "x slope offset name",
    "layers.hard_swish": "x threshold scale offset name",
    "layers.shuffle_channel": "x group name",
    "layers.huber_loss": "input label delta",
    "layers.is_empty": "x cond",
    "layers.isfinite": "x",
    "layers.l2_normalize": "x axis epsilon name",
    "layers.label_smooth": "label prior_dist epsilon dtype name",
    "layers.less_than": "x y force_cpu cond",
    "layers.log_loss": "input label epsilon name",
    "layers.logical_and": "x y out name",
    "layers.logical_not": "x out name",
    "layers.margin_rank_loss": "label left right margin name",
    "layers.multiplex": "inputs index",
    "layers.one_hot": "input depth",
    "layers.pad": "x paddings pad_value name",
    "layers.pad2d": "input paddings mode pad_value data_format name",
    "layers.pad_constant_like": "x y pad_value name",
    "layers.pixel_shuffle": "x upscale_factor",
    "layers.pow": "x factor name",
    "layers.prelu": "x mode param_attr name",
    "layers.rank_loss": "label left right name",
    "layers.reduce_min": "input dim keep_dim name",
    "layers.reduce_prod": "input dim keep_dim name",
    "layers.relu6": "x threshold name",
    "layers.reverse": "x axis",
    "layers.scatter": "input index updates name overwrite",
    "layers.selu": "x scale alpha name",
    "layers.sequence_expand": "x y ref_level name",
    "layers.sequence_expand_as": "x y name",
    "layers.sequence_pad": "x pad_value maxlen name",
    "layers.sequence_reverse": "x name",
    "layers.sequence_slice": "input offset length name",
    "layers.sequence_unpad": "x length name",
    "layers.shape": "input",
    "layers.slice": "input axes starts ends",
    "layers.soft_relu": "x threshold name",
    "layers.softshrink": "x alpha",
    "layers.stack": "x axis",
    "layers.stanh": "x scale_a scale_b name",
    "layers.swish": "x beta name",
    "layers.unstack": "x axis num",
    "memory_optimize": "input_program skip_opt_set print_log level skip_grads",
    "metrics.Accuracy": "name",
    "metrics.Auc": "name curve num_thresholds",
    "metrics.ChunkEvaluator": "name",
    "metrics.CompositeMetric": "name",
    "metrics.EditDistance": "name",
    "metrics.MetricBase": "name",
    "metrics.Precision": "name",
    "metrics.Recall": "name",
    "release_memory": "input_program skip_opt_set",
    "require_version": "min_version max_version",
    "optimizer.Adadelta": "learning_rate epsilon rho regularization name",
    "optimizer.Adamax": "learning_rate beta1 beta2 epsilon regularization name",
    "optimizer.DecayedAdagrad": "learning_rate decay epsilon regularization name",
    "optimizer.Ftrl": "learning_rate l1 l2 lr_power regularization name",
    "optimizer.Lamb": "learning_rate lamb_weight_decay beta1 beta2 epsilon regularization "
    "exclude_from_weight_decay_fn name",
    "optimizer.LambOptimizer": "learning_rate lamb_weight_decay beta1 beta2 epsilon regularization "
    "exclude_from_weight_decay_fn name",
    "optimizer.LarsMomentum": "learning_rate momentum lars_coeff lars_weight_decay regularization name",
    "layers.accuracy": "input label k correct total",
    "layers.argmax": "x axis",
    "layers.assign": "input output",
    "layers.batch": "reader batch_size",
    "layers.batch_norm": "input act is_test momentum epsilon param_attr bias_attr data_layout in_place name "
    "moving_mean_name moving_variance_name do_model_average_for_mean_and_var use_global_stats fuse_with_relu",
    "layers.cast": "x dtype",
    "layers.concat": "input axis name",
    "layers.conv2d": "input num_filters filter_size stride padding dilation groups param_attr bias_attr use_cudnn act "
    "name data_format",
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
    "layers.fill_constant_batch_size_like": "input shape dtype value input_dim_idx output_dim_idx force_cpu",
    "layers.flatten": "x axis name",
    "layers.increment": "x value in_place",
    "layers.layer_norm": "input scale shift begin_norm_axis epsilon param_attr bias_attr act name",
    "layers.leaky_relu": "x alpha name",
    "layers.matmul": "x y transpose_x transpose_y alpha name",
    "layers.mean": "x name",
    "layers.mul": "x y x_num_col_dims y_num_col_dims name",
    "layers.multi_pass": "reader pass_num",
    "layers.pool2d": "input pool_size pool_type pool_stride pool_padding global_pooling use_cudnn ceil_mode name "
    "exclusive data_format",
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
    "layers.softmax_with_cross_entropy": "logits label soft_label ignore_index numeric_stable_mode return_softmax axis",
    "layers.split": "input num_or_sections dim name",
    "layers.square_error_cost": "input label",
    "layers.squeeze": "input axes name",
    "layers.sums": "input out",
    "layers.tanh": "x name",
    "layers.topk": "input k name",
    "layers.transpose": "x perm name",
    "layers.unsqueeze": "input axes name",
    "layers.where": "condition",
    "layers.zeros": "shape dtype force_cpu",
    "embedding": "input size is_sparse is_distributed padding_idx param_attr dtype",
    "input.embedding": "input size is_sparse is_distributed padding_idx param_attr dtype",
    "input.one_hot": "input depth allow_out_of_range",
    "layers.diag": "diagonal",
    "layers.eye": "num_rows num_columns batch_shape dtype",
    "layers.gather_nd": "input index name",
    "layers.linspace": "start stop num dtype",
    "layers.scatter_nd": "index updates shape name",
    "layers.scatter_nd_add": "ref index updates name",
    "layers.size": "input",
    "layers.strided_slice": "input axes starts ends strides",
    "one_hot": "input depth allow_out_of_range",
    "layers.affine_channel": "x scale bias data_layout name act",
    "layers.instance_norm": "input epsilon param_attr bias_attr name",
    "layers.shard_index": "input index_num nshards shard_id ignore_value",
    "layers.space_to_depth": "x blocksize name",
    "layers.temporal_shift": "x seg_num shift_ratio name",
    "layers.unique": "x dtype",
    "layers.unique_with_counts": "x dtype",
    "layers.add_position_encoding": "input alpha beta name",
    "layers.crop_tensor": "x shape offsets name",
    "layers.filter_by_instag": "ins ins_tag filter_tag is_lod",
    "layers.anchor_generator": "input anchor_sizes aspect_ratios variance stride offset name",
    "layers.box_decoder_and_assign": "prior_box prior_box_var target_box box_score box_clip name",
    "layers.collect_fpn_proposals": "multi_rois multi_scores min_level max_level post_nms_top_n name",
    "layers.distribute_fpn_proposals": "fpn_rois min_level max_level refer_level refer_scale name",
    "layers.generate_mask_labels": "im_info gt_classes is_crowd gt_segms rois labels_int32 num_classes resolution",
    "layers.retinanet_detection_output": "bboxes scores anchors im_info score_threshold nms_top_k keep_top_k "
    "nms_threshold nms_eta",
    "layers.roi_perspective_transform": "input rois transformed_height transformed_width spatial_scale name",
    "layers.generate_proposal_labels": "rpn_rois gt_classes is_crowd gt_boxes im_info batch_size_per_im fg_fraction "
    "fg_thresh bg_thresh_hi bg_thresh_lo bbox_reg_weights class_nums use_random is_cls_agnostic is_cascade_rcnn",
    "layers.generate_proposals": "scores bbox_deltas im_info anchors variances pre_nms_top_n post_nms_top_n nms_thresh "
    "min_size eta name",
    "layers.retinanet_target_assign": "bbox_pred cls_logits anchor_box anchor_var gt_boxes gt_labels is_crowd im_info "
    "num_classes positive_overlap negative_overlap",
    "layers.rpn_target_assign": "bbox_pred cls_logits anchor_box anchor_var gt_boxes is_crowd im_info "
    "rpn_batch_size_per_im rpn_straddle_thresh rpn_fg_fraction rpn_positive_overlap rpn_negative_overlap use_random",
    "layers.deformable_conv": "input offset mask num_filters filter_size stride padding dilation groups "
    "deformable_groups im2col_step param_attr bias_attr modulated name",
    "layers.deformable_roi_pooling": "input rois trans no_trans spatial_scale group_size pooled_height pooled_width "
    "part_size sample_per_part trans_std position_sensitive name",
    "layers.grid_sampler": "x grid name",
    "layers.prroi_pool": "input rois spatial_scale pooled_height pooled_width name",
    "layers.psroi_pool": "input rois output_channels spatial_scale pooled_height pooled_width name",
    "layers.roi_align": "input rois pooled_height pooled_width spatial_scale sampling_ratio name",
    "layers.roi_pool": "input rois pooled_height pooled_width spatial_scale",
    "layers.unfold": "x kernel_sizes strides paddings dilations name",
    "layers.bilinear_tensor_product": "x y size act name param_attr bias_attr",
    "layers.hash": "input hash_size num_hash name",
    "layers.bipartite_match": "dist_matrix match_type dist_threshold name",
    "layers.box_clip": "input im_info name",
    "layers.box_coder": "prior_box prior_box_var target_box code_type box_normalized name axis",
    "layers.density_prior_box": "input image densities fixed_sizes fixed_ratios variance clip steps offset "
    "flatten_to_2d name",
    "layers.detection.prior_box": None,
    "layers.detection.ssd_loss": None,
    "layers.detection_output": "loc scores prior_box prior_box_var background_label nms_threshold nms_top_k keep_top_k "
    "score_threshold nms_eta return_index",
    "layers.detection_map": "detect_res label class_num background_label overlap_threshold evaluate_difficult "
    "has_state input_states out_states ap_version",
    "layers.polygon_box_transform": "input name",
    "layers.sigmoid_focal_loss": "x label fg_num gamma alpha",
    "layers.yolo_box": "x img_size anchors class_num conf_thresh downsample_ratio name",
    "layers.yolov3_loss": "x gt_box gt_label anchors anchor_mask class_num ignore_thresh downsample_ratio gt_score "
    "use_label_smooth name",
    "layers.iou_similarity": "x y name",
    "layers.locality_aware_nms": "bboxes scores score_threshold nms_top_k keep_top_k nms_threshold normalized nms_eta "
    "background_label name",
    "layers.multi_box_head": "inputs image base_size num_classes aspect_ratios min_ratio max_ratio min_sizes max_sizes "
    "steps step_w step_h offset variance flip clip kernel_size pad stride name min_max_aspect_ratios_order",
    "layers.multiclass_nms": "bboxes scores score_threshold nms_top_k keep_top_k nms_threshold normalized nms_eta "
    "background_label name",
    "layers.multiclass_nms2": "bboxes scores score_threshold nms_top_k keep_top_k nms_threshold normalized nms_eta "
    "background_label return_index name",
    "layers.prior_box": "input image min_sizes max_sizes aspect_ratios variance flip clip steps offset name "
    "min_max_aspect_ratios_order",
    "layers.ssd_loss": "location confidence gt_box gt_label prior_box prior_box_var background_label overlap_threshold "
    "neg_pos_ratio neg_overlap loc_loss_weight conf_loss_weight match_type mining_type normalize sample_size",
    "layers.target_assign": "input matched_indices negative_indices mismatch_value name",
    "load_op_library": None,
    "lod_tensor.create_lod_tensor": "data recursive_seq_lens place",
    "metrics.DetectionMAP": "input gt_label gt_box gt_difficult class_num background_label overlap_threshold "
    "evaluate_difficult ap_version",
    "name_scope": "prefix",
    "nets.simple_img_conv_pool": "input num_filters filter_size pool_size pool_stride pool_padding pool_type "
    "global_pooling conv_stride conv_padding conv_dilation conv_groups param_attr bias_attr act use_cudnn",
    "nets.glu": "input dim",
    "nets.img_conv_group": "input conv_num_filter pool_size conv_padding conv_filter_size conv_act param_attr "
    "conv_with_batchnorm conv_batchnorm_drop_rate pool_stride pool_type use_cudnn",
    "nets.scaled_dot_product_attention": "queries keys values num_heads dropout_rate",
    "nets.sequence_conv_pool": "input num_filters filter_size param_attr act pool_type bias_attr",
    "optimizer.ExponentialMovingAverage": "decay thres_steps name",
    "optimizer.Adagrad": "learning_rate epsilon regularization name initial_accumulator_value",
    "optimizer.Adam": "learning_rate beta1 beta2 epsilon regularization name lazy_mode",
    "optimizer.AdamOptimizer": "learning_rate beta1 beta2 epsilon regularization name lazy_mode",
    "optimizer.Momentum": "learning_rate momentum use_nesterov regularization name",
    "optimizer.RMSProp": "learning_rate rho epsilon momentum centered regularization name",
    "optimizer.SGD": "learning_rate regularization name",
    "param_attr.ParamAttr": "name initializer learning_rate regularizer trainable gradient_clip",
    "program_guard": "main_program startup_program",
    "regularizer.L1Decay": "regularization_coeff",
    "regularizer.L1DecayRegularizer": "regularization_coeff",
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


@pytest.mark.parametrize(
    "path",
    [
        "control_flow.StaticRNN",
        "control_flow.DynamicRNN",
        "io.py_reader",
        "learning_rate_scheduler.noam_decay",
        "metric_op.accuracy",
        "metric_op.auc",
        "nn.concat",
        "nn.dynamic_gru",
        "nn.sequence_pool",
        "nn.conv2d",
        "ops.uniform_random",
        "sequence_lod.sequence_pad",
        "tensor.fill_constant",
    ],
)
def test_a_layer_is_in_the_module_that_fluid_has_it_in(path: str) -> None:
    module, _, name = path.partition(".")
    found = importlib.import_module(f"headrace.fluid.layers.{module}")
    assert getattr(found, name) is getattr(fluid.layers, name)
    assert not hasattr(found, "nonsense")


def test_layers_can_be_imported_from_fluids_modules() -> None:
    from headrace.fluid.layers.control_flow import StaticRNN
    from headrace.fluid.layers.nn import dynamic_gru

    assert (StaticRNN, dynamic_gru) == (fluid.layers.StaticRNN, fluid.layers.dynamic_gru)


@pytest.mark.parametrize("module", FLUID_MODULES)
def test_a_star_gives_what_fluids_module_exports(module: str) -> None:
    got: dict[str, object] = {}
    exec(f"from headrace.fluid.layers.{module} import *", got)
    for name in FLUID_MODULES[module]:
        if name in REFUSED["layers"]:
            assert name not in got
        else:
            assert got[name] is getattr(fluid.layers, name)


def test_a_star_gives_what_fluids_framework_exports() -> None:
    got: dict[str, object] = {}
    exec("from headrace.fluid.framework import *", got)
    for name in (
        *("Program", "default_startup_program", "default_main_program", "program_guard", "name_scope", "cuda_places"),
        *("cpu_places", "cuda_pinned_places", "in_dygraph_mode", "is_compiled_with_cuda", "Variable"),
        *("load_op_library", "require_version"),
    ):
        assert got[name] is getattr(fluid, name)


@pytest.mark.parametrize("name", ["cpu_places", "device_guard", "is_compiled_with_cuda", "unique_name"])
def test_the_framework_module_has_what_fluids_has(name: str) -> None:
    assert getattr(fluid.framework, name) is getattr(fluid, name)
    assert not hasattr(fluid.framework, "nonsense")
