"""Layers: functions that add operators to the default main program and give their outputs."""

from headrace.fluid.layers import (
    control_flow,
    dynamic_rnn,
    image,
    io,
    learning_rate_scheduler,
    loss,
    metric,
    nn,
    ops,
    python_function,
    random,
    rearrange,
    recurrent,
    selected_rows,
    sequence,
    static_rnn,
    tensor,
)
from headrace.fluid.layers.control_flow import *  # noqa: F403
from headrace.fluid.layers.dynamic_rnn import *  # noqa: F403
from headrace.fluid.layers.image import *  # noqa: F403
from headrace.fluid.layers.io import *  # noqa: F403
from headrace.fluid.layers.learning_rate_scheduler import *  # noqa: F403
from headrace.fluid.layers.loss import *  # noqa: F403
from headrace.fluid.layers.metric import *  # noqa: F403
from headrace.fluid.layers.nn import *  # noqa: F403
from headrace.fluid.layers.ops import *  # noqa: F403
from headrace.fluid.layers.python_function import *  # noqa: F403
from headrace.fluid.layers.random import *  # noqa: F403
from headrace.fluid.layers.rearrange import *  # noqa: F403
from headrace.fluid.layers.recurrent import *  # noqa: F403
from headrace.fluid.layers.selected_rows import *  # noqa: F403
from headrace.fluid.layers.sequence import *  # noqa: F403
from headrace.fluid.layers.static_rnn import *  # noqa: F403
from headrace.fluid.layers.tensor import *  # noqa: F403

__all__ = [
    *control_flow.__all__,
    *dynamic_rnn.__all__,
    *image.__all__,
    *io.__all__,
    *learning_rate_scheduler.__all__,
    *loss.__all__,
    *metric.__all__,
    *nn.__all__,
    *ops.__all__,
    *python_function.__all__,
    *random.__all__,
    *rearrange.__all__,
    *recurrent.__all__,
    *selected_rows.__all__,
    *sequence.__all__,
    *static_rnn.__all__,
    *tensor.__all__,
]
