"""Layers that draw random numbers.

A seed of 0 means other numbers in each run: the same ones when training is repeated or resumed, if the program has a
``random_seed``. Any other seed means the same numbers in each run. ``Program.clone(for_test=True)`` and models for
inference draw afresh in each run, and what they draw changes nothing in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import core, initializer
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    Ints,
    LayerHelper,
    check_number,
    check_shape,
    check_variable,
    create_initialized_var,
    declare_known,
    ints_argument,
)

__all__ = [
    "gaussian_random",
    "gaussian_random_batch_size_like",
    "random_crop",
    "sampling_id",
    "truncated_gaussian_random",
    "uniform_random",
    "uniform_random_batch_size_like",
]


def _fill(
    op_type: str, shape: Sequence[int], dtype: Any, attrs: dict[str, Any], input: Variable | None, seed: int
) -> Variable:
    helper = LayerHelper(op_type)
    out = helper.create_variable(dtype, stop_gradient=True)
    inputs = {} if input is None else {"Input": check_variable(input, "input", op_type)}
    attrs = {"shape": check_shape(shape, "shape", op_type), "dtype": int(core.convert_dtype(dtype)), **attrs}
    helper.append_random_op(inputs, {"Out": out}, attrs, seed)
    return out


def uniform_random(shape: Ints, dtype: Any = "float32", min: float = -1.0, max: float = 1.0, seed: int = 0) -> Variable:
    """Numbers uniform in [min, max).

    Args:
        shape: integers; int32 or int64 variables of one element may be among them; or such a variable that holds all.
    """
    helper = LayerHelper("uniform_random")
    out = helper.create_variable(dtype, stop_gradient=True)
    inputs, extents = ints_argument(shape, "shape", "uniform_random", "shape", "ShapeTensor", "ShapeTensorList", 0)
    attrs = {
        "dtype": int(core.convert_dtype(dtype)),
        "min": check_number(min, "min", "uniform_random"),
        "max": check_number(max, "max", "uniform_random"),
    }
    helper.append_random_op(inputs, {"Out": out}, {**extents, **attrs}, seed)
    if inputs:
        declare_known(out, extents.get("shape", []))
    return out


def uniform_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    dtype: Any = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
) -> Variable:
    """As uniform_random, with dimension ``output_dim_idx`` taken from dimension ``input_dim_idx`` of ``input``."""
    attrs: dict[str, Any] = {"input_dim_idx": input_dim_idx, "output_dim_idx": output_dim_idx}
    attrs |= {
        "min": check_number(min, "min", "uniform_random_batch_size_like"),
        "max": check_number(max, "max", "uniform_random_batch_size_like"),
    }
    return _fill("uniform_random_batch_size_like", shape, dtype, attrs, input, seed)


def gaussian_random(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """Normally distributed numbers."""
    return _fill(
        "gaussian_random",
        shape,
        dtype,
        {
            "mean": check_number(mean, "mean", "gaussian_random"),
            "std": check_number(std, "std", "gaussian_random"),
        },
        None,
        seed,
    )


def truncated_gaussian_random(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "float32"
) -> Variable:
    """Normally distributed numbers, those further than 2 · ``std`` from ``mean`` are drawn again."""
    attrs = {
        "mean": check_number(mean, "mean", "truncated_gaussian_random"),
        "std": check_number(std, "std", "truncated_gaussian_random"),
    }
    return _fill("truncated_gaussian_random", shape, dtype, attrs, None, seed)


def gaussian_random_batch_size_like(
    input: Variable,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: Any = "float32",
) -> Variable:
    """As gaussian_random, with dimension ``output_dim_idx`` taken from dimension ``input_dim_idx`` of ``input``."""
    attrs: dict[str, Any] = {"input_dim_idx": input_dim_idx, "output_dim_idx": output_dim_idx}
    attrs |= {
        "mean": check_number(mean, "mean", "gaussian_random_batch_size_like"),
        "std": check_number(std, "std", "gaussian_random_batch_size_like"),
    }
    return _fill("gaussian_random_batch_size_like", shape, dtype, attrs, input, seed)


def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0, dtype: Any = "float32") -> Variable:
    """A class for each row of ``x``, [N, classes], drawn from its probabilities; int64 [N].

    Args:
        min, max: the random number that says how far into the row the class lies is uniform in [min, max).
        dtype: Fluid's; has no effect.
    """
    helper = LayerHelper("sampling_id")
    out = helper.create_variable("int64", stop_gradient=True)
    attrs = {
        "min": check_number(min, "min", "sampling_id"),
        "max": check_number(max, "max", "sampling_id"),
    }
    helper.append_random_op({"X": check_variable(x, "x", "sampling_id")}, {"Out": out}, attrs, seed)
    return out


def random_crop(x: Variable, shape: Sequence[int], seed: int | Variable | None = None) -> Variable:
    """A part of ``shape`` of each instance of ``x``, at a random place. No gradient passes through it.

    Args:
        x: the last dimensions, as many as ``shape`` has, are those of an instance.
        seed: the places of the first run follow from it, those of each other run from the run before; or a variable,
            int64 [1], that holds it and then that of the next run. None: from the program's ``random_seed``, and
            another one for each program that has none.
    """
    helper = LayerHelper("random_crop")
    if seed is None:
        seed = helper.main_program._next_seed() or int(np.random.randint(-65536, 65536))
    if isinstance(seed, int):
        init = initializer.Constant(seed)
        programs = helper.main_program, helper.startup_program
        seed = create_initialized_var(*programs, f"{helper.name}.seed", [1], "int64", init, bare=True)
    elif not isinstance(seed, Variable):
        raise errors.TypeMismatch(
            f"layers.random_crop: seed must be an int, a Variable or None, got {type(seed).__name__}"
        )
    out = helper.create_variable(check_variable(x, "x", "random_crop").dtype, stop_gradient=True)
    attrs = {"shape": check_shape(shape, "shape", "random_crop")}
    helper.append_op({"X": x, "Seed": seed}, {"Out": out, "SeedOut": seed}, attrs)
    return out
