"""Layers that Fluid has in its module of contributions."""

from typing import Any

from headrace.fluid._refused import refusal
from headrace.fluid.contrib.layers import nn, rnn_impl
from headrace.fluid.contrib.layers.nn import fused_elemwise_activation
from headrace.fluid.contrib.layers.rnn_impl import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm
from headrace.fluid.layers.detection import multiclass_nms2

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "basic_gru",
    "basic_lstm",
    "fused_elemwise_activation",
    "multiclass_nms2",
    "nn",
    "rnn_impl",
]


def __getattr__(name: str) -> Any:
    raise refusal(__name__, "contrib", name)
