"""Layers: functions that add operators to the default main program and give their outputs.

Fluid's modules have other borders than ours, and moved from version to version: a layer is an attribute of each module
here, so that ``from headrace.fluid.layers.nn import dynamic_gru`` works as it did, and what Fluid's module exports is
exported by ours, too.
"""

import functools
import importlib
import sys
from typing import Any

from headrace.fluid import core as core
from headrace.fluid._refused import REFUSED, refusal
from headrace.fluid.framework import Variable as Variable
from headrace.fluid.layers import (
    class_losses,
    conditional,
    control_flow,
    convolution,
    decoding,
    detection,
    distributions,
    dynamic_rnn,
    elementwise,
    features,
    image,
    io,
    learning_rate_scheduler,
    loss,
    metric,
    nn,
    normalization,
    ops,
    pooling,
    python_function,
    random,
    rcnn,
    rearrange,
    recurrent,
    reductions,
    regions,
    resize,
    rnn_cells,
    selected_rows,
    sequence,
    ssd,
    static_rnn,
    tensor,
    yolo,
)
from headrace.fluid.layers import device as device
from headrace.fluid.layers import metric_op as metric_op
from headrace.fluid.layers import sequence_lod as sequence_lod
from headrace.fluid.layers import utils as utils
from headrace.fluid.layers._fluid_modules import FLUID_MODULES
from headrace.fluid.layers.class_losses import *  # noqa: F403
from headrace.fluid.layers.conditional import *  # noqa: F403
from headrace.fluid.layers.control_flow import *  # noqa: F403
from headrace.fluid.layers.convolution import *  # noqa: F403
from headrace.fluid.layers.decoding import *  # noqa: F403
from headrace.fluid.layers.detection import *  # noqa: F403
from headrace.fluid.layers.device import *  # noqa: F403
from headrace.fluid.layers.distributions import *  # noqa: F403
from headrace.fluid.layers.dynamic_rnn import *  # noqa: F403
from headrace.fluid.layers.elementwise import *  # noqa: F403
from headrace.fluid.layers.features import *  # noqa: F403
from headrace.fluid.layers.image import *  # noqa: F403
from headrace.fluid.layers.io import *  # noqa: F403
from headrace.fluid.layers.learning_rate_scheduler import *  # noqa: F403
from headrace.fluid.layers.loss import *  # noqa: F403
from headrace.fluid.layers.metric import *  # noqa: F403
from headrace.fluid.layers.nn import *  # noqa: F403
from headrace.fluid.layers.normalization import *  # noqa: F403
from headrace.fluid.layers.ops import *  # noqa: F403
from headrace.fluid.layers.pooling import *  # noqa: F403
from headrace.fluid.layers.python_function import *  # noqa: F403
from headrace.fluid.layers.random import *  # noqa: F403
from headrace.fluid.layers.rcnn import *  # noqa: F403
from headrace.fluid.layers.rearrange import *  # noqa: F403
from headrace.fluid.layers.recurrent import *  # noqa: F403
from headrace.fluid.layers.reductions import *  # noqa: F403
from headrace.fluid.layers.regions import *  # noqa: F403
from headrace.fluid.layers.resize import *  # noqa: F403
from headrace.fluid.layers.rnn_cells import *  # noqa: F403
from headrace.fluid.layers.selected_rows import *  # noqa: F403
from headrace.fluid.layers.sequence import *  # noqa: F403
from headrace.fluid.layers.ssd import *  # noqa: F403
from headrace.fluid.layers.static_rnn import *  # noqa: F403
from headrace.fluid.layers.tensor import *  # noqa: F403
from headrace.fluid.layers.yolo import *  # noqa: F403

__all__ = [
    *class_losses.__all__,
    *conditional.__all__,
    *control_flow.__all__,
    *convolution.__all__,
    *decoding.__all__,
    *detection.__all__,
    *device.__all__,
    *distributions.__all__,
    *dynamic_rnn.__all__,
    *elementwise.__all__,
    *features.__all__,
    *image.__all__,
    *io.__all__,
    *learning_rate_scheduler.__all__,
    *loss.__all__,
    *metric.__all__,
    *nn.__all__,
    *normalization.__all__,
    *ops.__all__,
    *pooling.__all__,
    *python_function.__all__,
    *random.__all__,
    *rcnn.__all__,
    *rearrange.__all__,
    *recurrent.__all__,
    *reductions.__all__,
    *regions.__all__,
    *resize.__all__,
    *rnn_cells.__all__,
    *selected_rows.__all__,
    *sequence.__all__,
    *ssd.__all__,
    *static_rnn.__all__,
    *tensor.__all__,
    *yolo.__all__,
]


# Its import makes the attribute the module: the function of that name takes it back.
importlib.import_module(f"{__name__}.rnn")
rnn = rnn_cells.rnn


def _layer(module: str, name: str) -> Any:
    """A layer that another module defines."""
    if name in __all__:
        return globals()[name]
    raise refusal(module, "layers", name)


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "layers", name)


for _module in (name for name in tuple(sys.modules) if name.startswith(f"{__name__}.")):
    sys.modules[_module].__dict__.setdefault("__getattr__", functools.partial(_layer, _module))

for _module, _names in FLUID_MODULES.items():
    _found = sys.modules[f"{__name__}.{_module}"].__dict__
    _found["__all__"] = list(dict.fromkeys([*_found["__all__"], *(n for n in _names if n not in REFUSED["layers"])]))
