"""Fluid's contrib package: decoders, recurrent networks over padded sequences, a training loop, and more."""

from typing import Any

from headrace.fluid._refused import refusal
from headrace.fluid.contrib import decoder, inferencer, layers, memory_usage_calc, mixed_precision, trainer
from headrace.fluid.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from headrace.fluid.contrib.layers import (
    BasicGRUUnit,
    BasicLSTMUnit,
    basic_gru,
    basic_lstm,
    fused_elemwise_activation,
    multiclass_nms2,
)
from headrace.fluid.contrib.memory_usage_calc import memory_usage

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "BeamSearchDecoder",
    "InitState",
    "StateCell",
    "TrainingDecoder",
    "basic_gru",
    "basic_lstm",
    "decoder",
    "fused_elemwise_activation",
    "inferencer",
    "layers",
    "memory_usage",
    "memory_usage_calc",
    "mixed_precision",
    "multiclass_nms2",
    "trainer",
]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "contrib", name)
