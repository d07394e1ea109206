"""Fluid's name for the module of sequences."""

from headrace.fluid.layers.sequence import *  # noqa: F403
from headrace.fluid.layers.sequence import __all__ as __all__
