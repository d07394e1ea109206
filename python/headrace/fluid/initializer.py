"""Initial values of parameters: each initializer adds an operator to the startup program."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid._checks import check_integer, check_number
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Operator, Variable

__all__ = [
    "MSRA",
    "Bilinear",
    "BilinearInitializer",
    "Constant",
    "ConstantInitializer",
    "Initializer",
    "MSRAInitializer",
    "Normal",
    "NormalInitializer",
    "NumpyArrayInitializer",
    "TruncatedNormal",
    "TruncatedNormalInitializer",
    "Uniform",
    "UniformInitializer",
    "Xavier",
    "XavierInitializer",
    "force_init_on_cpu",
    "init_on_cpu",
]

_on_cpu = False


def force_init_on_cpu() -> bool:
    """Whether this is within ``init_on_cpu``."""
    return _on_cpu


@contextlib.contextmanager
def init_on_cpu() -> Iterator[None]:
    """Fluid's; within it, parameters are initialised on the CPU, as they are outside."""
    global _on_cpu
    before, _on_cpu = _on_cpu, True
    try:
        yield
    finally:
        _on_cpu = before


class Initializer:
    """Base of the initializers: callable with a variable and the block to which the operator is added."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        raise NotImplementedError

    @staticmethod
    def _seed(seed: int, block: Block) -> int:
        return seed if seed != 0 else block.program._next_seed()

    @staticmethod
    def _fans(var: Variable) -> tuple[int, int]:
        """How many inputs and outputs each element of the parameter connects."""
        shape = var.shape
        if len(shape) < 2:
            fan = shape[0] if shape else 1
            return fan, fan
        if len(shape) == 2:
            return shape[0], shape[1]
        receptive = math.prod(shape[2:])
        return shape[1] * receptive, shape[0] * receptive


def _random(op_type: str, var: Variable, block: Block, attrs: dict[str, Any]) -> Operator:
    return block.append_op(
        op_type, outputs={"Out": var}, attrs={"shape": list(var.shape), "dtype": int(var.dtype), **attrs}
    )


class ConstantInitializer(Initializer):
    """Every element is ``value``."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        self.value = value

    def __call__(self, var: Variable, block: Block) -> Operator:
        attrs = {
            "shape": list(var.shape),
            "dtype": int(var.dtype),
            "value": core.exact_float(self.value, "initializer.Constant: value"),
        }
        return block.append_op("fill_constant", outputs={"Out": var}, attrs=attrs)


class UniformInitializer(Initializer):
    """Uniform in [low, high), but for ``diag_num`` elements that are ``diag_val``: those at 0, ``diag_step`` + 1,
    2 (``diag_step`` + 1), …, which are the diagonal of a matrix of ``diag_step`` columns.
    """

    def __init__(
        self,
        low: float = -1.0,
        high: float = 1.0,
        seed: int = 0,
        diag_num: int = 0,
        diag_step: int = 0,
        diag_val: float = 1.0,
    ) -> None:
        diag_num = check_integer(diag_num, "UniformInitializer: diag_num")
        diag_step = check_integer(diag_step, "UniformInitializer: diag_step")
        if (diag_num, diag_step) != (0, 0) and (diag_num <= 0 or diag_step <= 0):
            raise errors.InvalidArgument(
                "UniformInitializer: expected diag_num and diag_step to be both 0 or both positive, got "
                f"{diag_num} and {diag_step}"
            )
        self.low, self.high, self.seed = low, high, seed
        self._diagonal = {"diag_num": diag_num, "diag_step": diag_step, "diag_val": diag_val} if diag_num else {}

    def __call__(self, var: Variable, block: Block) -> Operator:
        attrs = {"min": self.low, "max": self.high, "seed": self._seed(self.seed, block), **self._diagonal}
        return _random("uniform_random", var, block, attrs)


class NormalInitializer(Initializer):
    """Normally distributed with mean ``loc`` and standard deviation ``scale``."""

    _op_type = "gaussian_random"

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        self.loc, self.scale, self.seed = loc, scale, seed

    def __call__(self, var: Variable, block: Block) -> Operator:
        attrs = {"mean": self.loc, "std": self.scale, "seed": self._seed(self.seed, block)}
        return _random(self._op_type, var, block, attrs)


class TruncatedNormalInitializer(NormalInitializer):
    """As NormalInitializer, but within two standard deviations of the mean."""

    _op_type = "truncated_gaussian_random"


class XavierInitializer(Initializer):
    """Keeps the variance of activations and gradients (Glorot and Bengio, 2010).

    Args:
        uniform: draw uniformly, else normally.
        fan_in, fan_out: connections of an element; None: from the parameter's shape.
    """

    def __init__(
        self, uniform: bool = True, fan_in: float | None = None, fan_out: float | None = None, seed: int = 0
    ) -> None:
        self.uniform, self.seed = uniform, seed
        self.fan_in = None if fan_in is None else check_number(fan_in, "XavierInitializer: fan_in")
        self.fan_out = None if fan_out is None else check_number(fan_out, "XavierInitializer: fan_out")

    def __call__(self, var: Variable, block: Block) -> Operator:
        fans = self._fans(var)
        fan_in = fans[0] if self.fan_in is None else self.fan_in
        fan_out = fans[1] if self.fan_out is None else self.fan_out
        if self.uniform:
            limit = math.sqrt(6.0 / (fan_in + fan_out))
            return UniformInitializer(-limit, limit, self.seed)(var, block)
        return NormalInitializer(0.0, math.sqrt(2.0 / (fan_in + fan_out)), self.seed)(var, block)


class MSRAInitializer(Initializer):
    """Keeps the variance of activations through rectifiers (He et al., 2015). Arguments as of XavierInitializer."""

    def __init__(self, uniform: bool = True, fan_in: float | None = None, seed: int = 0) -> None:
        self.uniform, self.seed = uniform, seed
        self.fan_in = None if fan_in is None else check_number(fan_in, "MSRAInitializer: fan_in")

    def __call__(self, var: Variable, block: Block) -> Operator:
        fan_in = self._fans(var)[0] if self.fan_in is None else self.fan_in
        if self.uniform:
            limit = math.sqrt(6.0 / fan_in)
            return UniformInitializer(-limit, limit, self.seed)(var, block)
        return NormalInitializer(0.0, math.sqrt(2.0 / fan_in), self.seed)(var, block)


class BilinearInitializer(Initializer):
    """Filters [..., size, size] with which conv2d_transpose resizes images as bilinear interpolation does."""

    def __call__(self, var: Variable, block: Block) -> Operator:
        shape = var.shape
        if len(shape) != 4 or shape[2] != shape[3]:
            raise errors.InvalidArgument(f"'{var.name}' has to be [..., ..., size, size], got {list(shape)}")
        factor = math.ceil(shape[3] / 2)
        center = (2 * factor - 1 - factor % 2) / (2 * factor)
        weights = 1 - np.abs(np.arange(shape[3]) / factor - center)
        return NumpyArrayInitializer(np.broadcast_to(np.outer(weights, weights), shape))(var, block)


class NumpyArrayInitializer(Initializer):
    """The elements of an array, which becomes part of the startup program. bool, float32, int32 and int64
    variables.
    """

    _ATTRS: ClassVar = {
        VarType.BOOL: "bool_values",
        VarType.FP32: "fp32_values",
        VarType.INT32: "int32_values",
        VarType.INT64: "int64_values",
    }

    def __init__(self, value: np.ndarray) -> None:
        self.value = np.asarray(value)

    def __call__(self, var: Variable, block: Block) -> Operator:
        if var.shape != self.value.shape:
            raise errors.InvalidArgument(
                f"variable '{var.name}' has shape {list(var.shape)}, its initial value {list(self.value.shape)}"
            )
        if var.dtype not in self._ATTRS:
            raise errors.TypeMismatch(
                f"an array can initialise bool, float32, int32 and int64; '{var.name}' is {core.dtype_name(var.dtype)}"
            )
        with np.errstate(invalid="ignore"):
            values = self.value.astype(core.dtype_name(var.dtype))
        if values.dtype.kind in "bi" and not core.is_same(values, self.value):
            raise errors.InvalidArgument(
                f"variable '{var.name}' is {core.dtype_name(var.dtype)}, which cannot hold all values that it is to "
                "have: round them or choose another dtype"
            )
        if var.dtype == VarType.BOOL:
            values = values.astype("int32")  # as Fluid keeps them
        attrs = {"shape": list(var.shape), "dtype": int(var.dtype), self._ATTRS[var.dtype]: values.ravel().tolist()}
        return block.append_op("assign_value", outputs={"Out": var}, attrs=attrs)


Bilinear = BilinearInitializer
Constant = ConstantInitializer
Uniform = UniformInitializer
Normal = NormalInitializer
TruncatedNormal = TruncatedNormalInitializer
Xavier = XavierInitializer
MSRA = MSRAInitializer
