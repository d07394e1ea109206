"""Writes fluid-names.md: which public names of Paddle Fluid 1.6 are here. `python docs/fluid_names.py`

The names are those that Fluid's modules declare public. Whether one is here is looked up, and why one is not is what
the error says that asking for it raises.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace.fluid as fluid
from headrace.fluid._refused import REFUSED
from headrace.fluid.layers._fluid_modules import FLUID_MODULES

PAGE = Path(__file__).with_name("fluid-names.md")

NAMES = {
    "fluid": """Program Variable default_startup_program default_main_program program_guard name_scope cuda_places
        cpu_places cuda_pinned_places in_dygraph_mode is_compiled_with_cuda load_op_library require_version device_guard
        Executor global_scope scope_guard ParallelExecutor ExecutionStrategy BuildStrategy CompiledProgram DataFeeder
        create_lod_tensor create_random_int_lodtensor DistributeTranspiler DistributeTranspilerConfig memory_optimize
        release_memory ParamAttr WeightNormParamAttr DataFeedDesc CPUPlace CUDAPlace CUDAPinnedPlace Scope LoDTensor
        LoDTensorArray Tensor data embedding one_hot save load gradients io initializer layers nets optimizer backward
        regularizer clip metrics profiler unique_name recordio_writer transpiler contrib dataset DatasetFactory
        InMemoryDataset QueueDataset TrainerDesc MultiTrainer DistMultiTrainer PipelineTrainer HashName RoundRobin
        evaluator average install_check dygraph""",
    "Program": """global_block block current_block clone list_vars all_parameters num_blocks random_seed to_string
        parse_from_string""",
    "Variable": "name shape dtype lod_level persistable stop_gradient type astype to_string",
    "layers": " ".join(dict.fromkeys(name for names in FLUID_MODULES.values() for name in names)),
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
_NO_GPU = "there is no GPU: raises Unimplemented, unless `HEADRACE_CUDA_ON_CPU=1` makes the CPU stand for one"

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
