"""Distributions, of parameters that a program computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import check_shape
from headrace.fluid.layers.elementwise import elementwise_add, elementwise_mul
from headrace.fluid.layers.nn import matmul, softmax
from headrace.fluid.layers.ops import exp, log, square
from headrace.fluid.layers.random import (
    gaussian_random,
    gaussian_random_batch_size_like,
    uniform_random,
    uniform_random_batch_size_like,
)
from headrace.fluid.layers.reductions import reduce_max, reduce_sum
from headrace.fluid.layers.tensor import assign, cast, reshape, zeros_like

__all__ = ["Categorical", "MultivariateNormalDiag", "Normal", "Uniform"]

#: A parameter of a distribution.
Value = Union[float, Sequence[float], np.ndarray, Variable]


def _variable(value: Value, what: str) -> Variable:
    if isinstance(value, Variable):
        return value
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError) as error:
        raise errors.TypeMismatch(f"{what} has to be a number, numbers or a variable, got {value!r}") from error
    return assign(array.reshape(array.shape or (1,)))


#: Stands for an extent that only the run knows: greater than any other.
_UNKNOWN = 2**31


def _known(x: Variable) -> tuple[int, ...]:
    return tuple(_UNKNOWN if extent < 0 else extent for extent in x.shape)


def _together(a: Variable, b: Variable) -> tuple[Variable, Variable]:
    """Both in the shape of the greater one."""

    def wide(x: Variable, like: Variable) -> Variable:
        return zeros_like(like) + x if math.prod(_known(x)) < math.prod(_known(like)) else x

    return wide(a, b), wide(b, a)


def _are_numbers(*values: Value) -> bool:
    return all(isinstance(value, (int, float, np.number)) for value in values)


# What draws numbers of a standard distribution in a given shape, and in one with an extent of another variable.
_Draws = tuple[Callable[..., Variable], Callable[..., Variable]]
_UNIFORM: _Draws = partial(uniform_random, min=0.0), partial(uniform_random_batch_size_like, min=0.0)
_GAUSSIAN: _Draws = gaussian_random, gaussian_random_batch_size_like


def _noise(draws: _Draws, shape: Sequence[int], values: Sequence[Variable], one: bool, seed: int) -> Variable:
    """Numbers of a standard distribution: ``shape``, then, unless they are of ``one`` distribution, the shape of the
    parameters broadcast together, of which only the run may know the first extent.
    """
    draw, draw_like = draws
    if one and shape:
        values = ()
    try:
        batch = np.broadcast_shapes(*map(_known, values))
    except ValueError as error:
        shapes = [list(value.shape) for value in values]
        raise errors.InvalidArgument(f"the parameters of a distribution are not compatible: {shapes}") from error
    if _UNKNOWN in batch[1:]:
        shown = [-1 if extent == _UNKNOWN else extent for extent in batch]
        raise errors.InvalidArgument(
            f"samples need parameters of a known shape, except for their first extent, but these have {shown}"
        )
    whole, at = [*shape, *batch], len(shape)
    if batch[:1] != (_UNKNOWN,):
        return draw(whole, seed=seed)
    whole[at] = 1
    like = next(value for value in values if len(value.shape) == len(batch) and value.shape[0] < 0)
    return draw_like(like, whole, input_dim_idx=0, output_dim_idx=at, seed=seed)


class Uniform:
    """Uniform between ``low`` and ``high``: numbers, or float32 arrays or variables, that are broadcast together."""

    def __init__(self, low: Value, high: Value) -> None:
        self.low, self.high = _together(_variable(low, "Uniform: low"), _variable(high, "Uniform: high"))
        self._one = _are_numbers(low, high)

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """``shape``, then that of the parameters, unless both are numbers. ``seed`` 0: others in each run."""
        noise = _noise(_UNIFORM, check_shape(shape, "shape", "Uniform.sample"), (self.low, self.high), self._one, seed)
        return elementwise_add(elementwise_mul(noise, self.high - self.low), self.low)

    def log_prob(self, value: Variable) -> Variable:
        """The logarithm of the density; that of 0 where ``value`` is not between the two."""
        inside = elementwise_mul(
            cast(value > self.low, "float32"),
            cast(value < self.high, "float32"),
        )
        return log(inside) - log(self.high - self.low)

    def entropy(self) -> Variable:
        return log(self.high - self.low)


class Normal:
    """Normal with mean ``loc`` and standard deviation ``scale``: numbers, or float32 arrays or variables, that are
    broadcast together.
    """

    def __init__(self, loc: Value, scale: Value) -> None:
        self.loc, self.scale = _together(_variable(loc, "Normal: loc"), _variable(scale, "Normal: scale"))
        self._one = _are_numbers(loc, scale)

    def sample(self, shape: Sequence[int], seed: int = 0) -> Variable:
        """``shape``, then that of the parameters, unless both are numbers. ``seed`` 0: others in each run."""
        noise = _noise(_GAUSSIAN, check_shape(shape, "shape", "Normal.sample"), (self.loc, self.scale), self._one, seed)
        return elementwise_add(elementwise_mul(noise, self.scale), self.loc)

    def log_prob(self, value: Variable) -> Variable:
        """The logarithm of the density."""
        return square(value - self.loc) / square(self.scale) * -0.5 - log(self.scale) - 0.5 * math.log(2 * math.pi)

    def entropy(self) -> Variable:
        return log(self.scale) + (0.5 + 0.5 * math.log(2 * math.pi))

    def kl_divergence(self, other: Normal) -> Variable:
        """The Kullback-Leibler divergence of this distribution from ``other``."""
        _check_same(self, other)
        ratio = square(self.scale / other.scale)
        return (ratio + square((self.loc - other.loc) / other.scale) - 1.0 - log(ratio)) * 0.5


class Categorical:
    """Classes whose probabilities are the softmax of ``logits``, [..., classes]."""

    def __init__(self, logits: Value) -> None:
        self.logits = _variable(logits, "Categorical: logits")

    def _shifted(self) -> Variable:
        """The logits, less their greatest."""
        return self.logits - reduce_max(self.logits, dim=-1, keep_dim=True)

    def _log_probabilities(self) -> Variable:
        shifted = self._shifted()
        return shifted - log(reduce_sum(exp(shifted), dim=-1, keep_dim=True))

    def entropy(self) -> Variable:
        """[..., 1]."""
        return reduce_sum(softmax(self.logits) * self._log_probabilities(), dim=-1, keep_dim=True) * -1.0

    def kl_divergence(self, other: Categorical) -> Variable:
        """The Kullback-Leibler divergence of this distribution from ``other``, [..., 1]."""
        _check_same(self, other)
        difference = self._log_probabilities() - other._log_probabilities()
        return reduce_sum(softmax(self.logits) * difference, dim=-1, keep_dim=True)


class MultivariateNormalDiag:
    """Normal in D dimensions that do not depend on each other.

    Args:
        loc: [D], the mean.
        scale: [D, D], the covariance, of which the diagonal counts.
    """

    def __init__(self, loc: Value, scale: Value) -> None:
        self.loc = _variable(loc, "MultivariateNormalDiag: loc")
        self.scale = _variable(scale, "MultivariateNormalDiag: scale")
        width = self.loc.shape[-1]
        if len(self.loc.shape) != 1 or width < 1 or self.scale.shape != (width, width):
            raise errors.InvalidArgument(
                "MultivariateNormalDiag: loc has to be [D], scale [D, D]; they are "
                f"{list(self.loc.shape)} and {list(self.scale.shape)}"
            )

    def _variances(self) -> Variable:
        width = self.loc.shape[0]
        diagonal = elementwise_mul(self.scale, assign(np.eye(width, dtype=np.float32)))
        return reshape(matmul(diagonal, assign(np.ones((width, 1), np.float32))), [width])

    def entropy(self) -> Variable:
        """[1]."""
        constant = self.loc.shape[0] * (1 + math.log(2 * math.pi))
        return (reshape(reduce_sum(log(self._variances())), [1]) + constant) * 0.5

    def kl_divergence(self, other: MultivariateNormalDiag) -> Variable:
        """The Kullback-Leibler divergence of this distribution from ``other``, [1]."""
        _check_same(self, other)
        mine, others = self._variances(), other._variances()
        ratio = mine / others
        terms = ratio + square(other.loc - self.loc) / others - 1.0 - log(ratio)
        return reshape(reduce_sum(terms), [1]) * 0.5


def _check_same(one: Any, other: Any) -> None:
    if type(one) is not type(other):
        raise errors.TypeMismatch(f"kl_divergence takes a {type(one).__name__}, got {type(other).__name__}")
