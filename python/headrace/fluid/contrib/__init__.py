"""Fluid's contrib package: decoders, recurrent networks over padded sequences, an estimate of memory."""

from typing import Any

from headrace.fluid._refused import refusal
from headrace.fluid.contrib import decoder, layers, memory_usage_calc
from headrace.fluid.contrib.memory_usage_calc import memory_usage

__all__ = ["decoder", "layers", "memory_usage", "memory_usage_calc"]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "contrib", name)
