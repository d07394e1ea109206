"""Names of Fluid that are not supported, and alternatives. Accessing one raises an error with the alternative."""

from __future__ import annotations

__all__ = ["REFUSED", "refusal"]

_OPERATOR = "there is no such operator; add one with fluid.load_op_library, or compute it in Python with layers.py_func"
_ONE_MACHINE = (
    "programs run on one machine; to share a dataset among machines, use headrace.DataLoader(shard=(rank, world))"
)
_FEEDING = "feed programs with layers.py_reader or io.DataLoader, with a headrace.DataLoader as source"
_QUANTISED = (
    "programs cannot be quantised or pruned here: do that elsewhere, and load the result with io.load_inference_model"
)
_HDFS = "copy files with the tools of HDFS"

#: Module → name → what to do.
REFUSED: dict[str, dict[str, str]] = {
    "fluid": {
        "DataFeedDesc": _FEEDING,
        "DatasetFactory": _FEEDING,
        "DistributeTranspiler": _ONE_MACHINE,
        "DistributeTranspilerConfig": _ONE_MACHINE,
        "dataset": _FEEDING,
        "distributed": _ONE_MACHINE,
        "dygraph": "layers are added to a program, which an Executor runs",
        "incubate": _ONE_MACHINE,
    },
    "transpiler": {
        "DistributeTranspiler": _ONE_MACHINE,
        "DistributeTranspilerConfig": _ONE_MACHINE,
        "HashName": _ONE_MACHINE,
        "RoundRobin": _ONE_MACHINE,
    },
    "layers": {
        "filter_by_instag": _OPERATOR,
        "lstm": "it needs cuDNN in Fluid, too: use layers.rnn, contrib.layers.basic_lstm or layers.dynamic_lstm",
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
        "distributed_batch_reader": "give headrace.DataLoader shard=(rank, world)",
        "extend_with_decoupled_weight_decay": "use fluid.optimizer.AdamW",
        "int8_inference": _QUANTISED,
        "mixed_precision": "kernels compute in float32 and float64",
        "multi_download": _HDFS,
        "multi_upload": _HDFS,
        "quantize": _QUANTISED,
        "reader": "give headrace.DataLoader shard=(rank, world)",
        "slim": _QUANTISED,
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
