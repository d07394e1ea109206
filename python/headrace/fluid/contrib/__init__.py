"""Fluid's contrib package: decoders, recurrent networks over padded sequences, a training loop, and more."""

from typing import Any

from headrace.fluid._refused import refusal
from headrace.fluid.contrib import decoder, inferencer, layers, memory_usage_calc, mixed_precision, trainer
from headrace.fluid.contrib.memory_usage_calc import memory_usage

__all__ = ["decoder", "inferencer", "layers", "memory_usage", "memory_usage_calc", "mixed_precision", "trainer"]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "contrib", name)
