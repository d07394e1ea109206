"""Names of Fluid that are not supported, and alternatives. Accessing one raises an error with the alternative."""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

__all__ = ["REFUSED", "refusal"]

_OPERATOR = "there is no such operator; add one with fluid.load_op_library, or compute it in Python with layers.py_func"
_ONE_MACHINE = (
    "programs run on one machine; to share a dataset among machines, use headrace.DataLoader(shard=(rank, world))"
)
_FEEDING = "feed programs with layers.py_reader or io.DataLoader, with a headrace.DataLoader as source"
_QUANTISED = (
    "programs cannot be quantised or pruned here: do that elsewhere, and load the result with io.load_inference_model"
)
_PROGRAMS = "layers are added to a program, which an Executor runs"
_PREDICTOR = "load the model with io.load_inference_model, and run it with an Executor"
_DRAWING = "draw a program with fluid.debugger.draw_block_graphviz"
_HDFS = "copy files with the tools of HDFS"

#: Module → name → what to do.
REFUSED: dict[str, dict[str, str]] = {
    "fluid": {
        "AsyncExecutor": _FEEDING,
        "DataFeedDesc": _FEEDING,
        "DatasetFactory": _FEEDING,
        "DistributeTranspiler": _ONE_MACHINE,
        "DistributeTranspilerConfig": _ONE_MACHINE,
        **dict.fromkeys(["DistMultiTrainer", "MultiTrainer", "PipelineTrainer", "TrainerDesc"], _FEEDING),
        "HashName": _ONE_MACHINE,
        "InMemoryDataset": _FEEDING,
        "QueueDataset": _FEEDING,
        "RoundRobin": _ONE_MACHINE,
        "communicator": _ONE_MACHINE,
        **dict.fromkeys(["data_feed_desc", "device_worker", "trainer_desc", "trainer_factory"], _FEEDING),
        "dataset": _FEEDING,
        "distribute_lookup_table": _ONE_MACHINE,
        "distributed": _ONE_MACHINE,
        "disable_dygraph": _PROGRAMS,
        "dygraph": _PROGRAMS,
        "dygraph_grad_clip": _PROGRAMS,
        "enable_dygraph": _PROGRAMS,
        "graphviz": _DRAWING,
        "incubate": _ONE_MACHINE,
        "inferencer": "use fluid.contrib.inferencer",
        "load_dygraph": "load arrays with io.load_program_state or numpy.load",
        "net_drawer": _DRAWING,
        "save_dygraph": "save what persists in a program with fluid.save",
    },
    "transpiler": {
        "DistributeTranspiler": _ONE_MACHINE,
        "DistributeTranspilerConfig": _ONE_MACHINE,
        "HashName": _ONE_MACHINE,
        "RoundRobin": _ONE_MACHINE,
        "collective": _ONE_MACHINE,
        "details": _ONE_MACHINE,
        "distribute_transpiler": _ONE_MACHINE,
        "ps_dispatcher": _ONE_MACHINE,
    },
    "core": {
        **dict.fromkeys(
            ["AnalysisConfig", "NativeConfig", "PaddleBuf", "PaddleDType", "PaddleTensor", "create_paddle_predictor"],
            _PREDICTOR,
        ),
        "Graph": _QUANTISED,
    },
    "layers": {
        "append_LARS": "use optimizer.LarsMomentum",
        "ListenAndServ": _ONE_MACHINE,
        "Recv": _ONE_MACHINE,
        "Send": _ONE_MACHINE,
        "collective": _ONE_MACHINE,
        "lstm": "it needs cuDNN in Fluid, too: use layers.rnn, contrib.layers.basic_lstm or layers.dynamic_lstm",
        "tree_conv": _OPERATOR,
    },
    "optimizer": {
        "DGCMomentumOptimizer": f"{_ONE_MACHINE}; on one machine, use optimizer.Momentum",
        "PipelineOptimizer": "programs run on one device: use the wrapped optimizer itself",
    },
    "metrics": {},
    "contrib": {
        "Calibrator": _QUANTISED,
        "Compressor": _QUANTISED,
        "HDFSClient": _HDFS,
        "QuantizeTranspiler": _QUANTISED,
        "convert_dist_to_sparse_program": _ONE_MACHINE,
        "ctr_metric_bundle": "use metrics.Auc, or compute the measures in NumPy from what is fetched",
        "distributed_batch_reader": "give headrace.DataLoader shard=(rank, world)",
        "extend_with_decoupled_weight_decay": "use fluid.optimizer.AdamW",
        "fused_embedding_seq_pool": "use layers.embedding and layers.sequence_pool",
        "int8_inference": _QUANTISED,
        "load_persistables_for_increment": _ONE_MACHINE,
        "load_persistables_for_inference": _ONE_MACHINE,
        "match_matrix_tensor": _OPERATOR,
        "multi_download": _HDFS,
        "multi_upload": _HDFS,
        "op_freq_statistic": "count op.type for op in the ops of program.blocks",
        "quantize": _QUANTISED,
        "reader": "give headrace.DataLoader shard=(rank, world)",
        "sequence_topk_avg_pooling": _OPERATOR,
        "slim": _QUANTISED,
        "tree_conv": _OPERATOR,
        "var_conv_2d": _OPERATOR,
    },
}


def refusal(module: str, part: str, name: str) -> AttributeError:
    """The error for a name that a module does not have.

    Args:
        part: the key of the module in ``REFUSED``.
    """
    if name in REFUSED[part]:
        return AttributeError(f"{module} has no {name}: {REFUSED[part][name]}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class _Importing(importlib.abc.MetaPathFinder):
    """Has ``import headrace.fluid.dygraph``, and ``from`` it, say the same: for these, Python drops the message of an
    AttributeError.
    """

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        package, _, name = fullname.rpartition(".")
        module = getattr(sys.modules.get(package), "__name__", "")  # programs know headrace.fluid as paddle.fluid, too
        part = module.rpartition(".")[2]
        if module in ("headrace.fluid", f"headrace.fluid.{part}") and name in REFUSED.get(part, {}):
            # Without its name, with which Python would take it for an attribute that is no module.
            raise ModuleNotFoundError(str(refusal(module, part, name)))


sys.meta_path.append(_Importing())  # the last one: it is asked only for what does not exist
