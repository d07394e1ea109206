"""Fluid's name for the module of metrics."""

from headrace.fluid.layers.metric import *  # noqa: F403
from headrace.fluid.layers.metric import __all__ as __all__
