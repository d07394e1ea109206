"""Fluid's messages in Protocol Buffers, as far as programs name them."""

from headrace.fluid.proto import framework_pb2

__all__ = ["framework_pb2"]
