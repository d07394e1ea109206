"""Fluid's mixed precision, for programs that import it and may do without: kernels compute in float32 and float64."""

from headrace.fluid.contrib.mixed_precision import decorator, fp16_utils
from headrace.fluid.contrib.mixed_precision.decorator import (
    AutoMixedPrecisionLists,
    OptimizerWithMixedPrecision,
    decorate,
)

__all__ = ["AutoMixedPrecisionLists", "OptimizerWithMixedPrecision", "decorate", "decorator", "fp16_utils"]
