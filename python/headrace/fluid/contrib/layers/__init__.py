"""Layers that Fluid has in its module of contributions."""

from headrace.fluid.contrib.layers import rnn_impl
from headrace.fluid.contrib.layers.rnn_impl import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm", "rnn_impl"]
