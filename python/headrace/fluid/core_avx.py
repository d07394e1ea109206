"""Fluid's name for ``core`` where it was compiled for processors with AVX."""

from headrace.fluid.core import *  # noqa: F403
from headrace.fluid.core import __all__ as __all__
