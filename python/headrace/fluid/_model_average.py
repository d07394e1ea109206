"""Averages of parameters over updates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace.fluid import initializer, layers, unique_name
from headrace.fluid._checks import check_integer, check_number
from headrace.fluid.core import array_of
from headrace.fluid.executor import Executor, global_scope
from headrace.fluid.framework import (
    Block,
    OpRole,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from headrace.fluid.layer_helper import create_initialized_var

__all__ = ["ExponentialMovingAverage", "ModelAverage"]

#: Fluid's name of the decay of the last update.
_DECAY = "scheduled_ema_decay_rate"


class _Average:
    """Programs that put averages in the place of parameters, and the parameters back."""

    def __init__(self) -> None:
        self._apply, self._restore = Program(), Program()

    def _keep(self, parameter: Parameter, kept: str) -> None:
        """Keeps the parameter as ``kept`` in the program that replaces it."""
        block = self._apply.global_block()
        layers.assign(_like(parameter, block), _like(parameter, block, kept))
        with program_guard(self._restore, Program()):
            block = self._restore.global_block()
            layers.assign(_like(parameter, block, kept), _like(parameter, block))

    def _check_updated(self) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def apply(self, executor: Executor, need_restore: bool = True) -> Iterator[None]:
        """Within it, the parameters in the global scope are their averages. With ``need_restore`` they are as before in
        the end, else once ``restore`` is called.

        Raises:
            FailedPrecondition: there has been no update.
        """
        self._check_updated()
        executor.run(self._apply)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Executor) -> None:
        """Gives the parameters the values that they had before ``apply``."""
        executor.run(self._restore)


def _averaged(what: str) -> list[Parameter]:
    """Also those that are not trained: batch_norm gathers its statistics in such parameters."""
    parameters = [p for p in default_main_program().global_block().all_parameters() if p.do_model_average]
    if not parameters:
        raise errors.InvalidArgument(f"{what}: the default main program has no parameters to be averaged")
    return parameters


def _value(name: str) -> np.ndarray | None:
    variable = global_scope().find_var(name)
    return array_of(variable.get_tensor()) if variable is not None and variable.is_initialized() else None


class ModelAverage(_Average):
    """Adds up the values that each parameter has after an update, so that their average can take its place::

        optimizer.minimize(loss)
        average = fluid.optimizer.ModelAverage(0.15, min_average_window=100, max_average_window=200)
        executor.run(fluid.default_startup_program())
        ...  # train
        with average.apply(executor):
            ...  # evaluate

    The average is over a window of min(``max_average_window``, updates * ``average_window_rate``) values, but not less
    than ``min_average_window``, and the existing part of the previous window. Construct it after ``minimize``, in the
    same programs.

    Args:
        average_window_rate: the window as a part of all updates.
        regularization, name: Fluid's; the first makes no difference.
    """

    def __init__(
        self,
        average_window_rate: float,
        min_average_window: int = 10000,
        max_average_window: int = 10000,
        regularization: object = None,
        name: str | None = None,
    ) -> None:
        self._name = name
        self._counts: list[str] = []
        super().__init__()
        main = default_main_program()
        attrs = {
            "average_window": check_number(average_window_rate, "optimizer.ModelAverage: average_window_rate"),
            "min_average_window": check_integer(min_average_window, "optimizer.ModelAverage: min_average_window"),
            "max_average_window": check_integer(max_average_window, "optimizer.ModelAverage: max_average_window"),
        }
        parameters = _averaged("ModelAverage")
        with main._role_guard(OpRole.OPTIMIZE):
            for parameter in parameters:
                state = self._accumulate(parameter, attrs)
                self._add_to_programs(parameter, state)

    def _accumulate(self, parameter: Parameter, attrs: dict[str, float | int]) -> dict[str, Variable]:
        """Adds the operator that adds ``parameter`` up; returns its state by the names of the slots."""
        state = {}
        prefix = "" if self._name is None else f"{self._name}_"
        for what in ("sum_1", "sum_2", "sum_3", "num_accumulates", "old_num_accumulates", "num_updates"):
            is_sum = what.startswith("sum")
            state[what] = create_initialized_var(
                default_main_program(),
                default_startup_program(),
                f"{parameter.name}_{prefix}{what}",
                parameter.shape if is_sum else [1],
                parameter.dtype if is_sum else "int64",
                initializer.Constant(0.0),
            )
        parameter.block.append_op(
            "average_accumulates",
            {"param": parameter, **{f"in_{what}": variable for what, variable in state.items()}},
            {f"out_{what}": variable for what, variable in state.items()},
            attrs,
        )
        self._counts.append(state["num_updates"].name)
        return state

    def _add_to_programs(self, parameter: Parameter, state: dict[str, Variable]) -> None:
        kept = unique_name.generate(f"{parameter.name}.average_tmp")
        with program_guard(self._apply, Program()):
            block = self._apply.global_block()
            self._keep(parameter, kept)
            total = layers.sums([_like(state[what], block) for what in ("sum_1", "sum_2", "sum_3")])
            counts = [_like(state[what], block) for what in ("num_accumulates", "old_num_accumulates")]
            count = layers.sums([layers.cast(number, parameter.dtype) for number in counts])
            layers.assign(layers.elementwise_div(total, count), _like(parameter, block))

    def _check_updated(self) -> None:
        for name in self._counts:
            count = _value(name)
            if count is None or not count[0]:
                raise errors.FailedPrecondition("ModelAverage: there is no average before the first update")


class ExponentialMovingAverage(_Average):
    """Means of the values of each parameter that weigh less the older they are::

        optimizer.minimize(loss)
        average = fluid.optimizer.ExponentialMovingAverage(0.999)
        average.update()
        executor.run(fluid.default_startup_program())
        ...  # train
        with average.apply(executor):
            ...  # evaluate

    Each update makes average = decay · average + (1 - decay) · parameter, from zero; a parameter's place is taken by
    average / (1 - decay^updates). Construct it after ``minimize``, in the same programs.

    The averages and the decay are kept under Fluid's names. So is, as "ema_rest_0", the weight that is left of the
    first zero, which Fluid does not keep: without it, training that is resumed would not know it.

    Args:
        thres_steps: a variable of one element, the number of steps: the decay is (1 + steps) / (10 + steps) where that
            is less.
        name: prefix of the names of the variables that it creates.
    """

    def __init__(self, decay: float = 0.999, thres_steps: Variable | None = None, name: str | None = None) -> None:
        super().__init__()
        if not 0 <= check_number(decay, "ExponentialMovingAverage: decay") < 1:
            raise errors.InvalidArgument(f"ExponentialMovingAverage: decay has to be from 0 to below 1, got {decay}")
        self._decay, self._steps = float(decay), thres_steps
        prefix = name or ""
        programs = (default_main_program(), default_startup_program())
        value = initializer.Constant(self._decay)
        self._decay_now = create_initialized_var(*programs, _DECAY, [1], "float32", value, bare=True)
        # The remaining weight of the initial zero of the averages.
        self._rest = _state(f"{prefix}ema_rest", [1], "float32", 1.0)
        self._averages = []
        for parameter in _averaged("ExponentialMovingAverage"):
            average = _state(f"{prefix}{parameter.name}_ema", parameter.shape, parameter.dtype, 0.0)
            self._averages.append((parameter, average))
            with program_guard(self._apply, Program()):
                block = self._apply.global_block()
                self._keep(parameter, unique_name.generate(f"{prefix}{parameter.name}.ema_tmp"))
                weight = layers.cast(1.0 - _like(self._rest, block), parameter.dtype)
                layers.assign(_like(average, block) / weight, _like(parameter, block))

    def update(self) -> None:
        """Adds an update of the averages to the default main program: after the optimizer's."""
        main = default_main_program()
        with main._role_guard(OpRole.OPTIMIZE):
            decay: Variable = layers.fill_constant([1], "float32", self._decay)
            if self._steps is not None:
                steps = layers.cast(self._steps, "float32")
                decay = layers.elementwise_min(decay, (steps + 1.0) / (steps + 10.0))
            layers.assign(decay, self._decay_now)
            layers.assign(self._rest * decay, self._rest)
            for parameter, average in self._averages:
                own = decay if decay.dtype == parameter.dtype else layers.cast(decay, parameter.dtype)
                layers.assign(average * own + parameter * (1.0 - own), average)

    def _check_updated(self) -> None:
        rest = _value(self._rest.name)
        if rest is None or rest[0] == 1:
            raise errors.FailedPrecondition("ExponentialMovingAverage: there is no average before the first update")


def _state(key: str, shape: Sequence[int], dtype: Any, value: float) -> Variable:
    return create_initialized_var(
        default_main_program(), default_startup_program(), key, shape, dtype, initializer.Constant(value)
    )


def _like(variable: Variable, block: Block, name: str | None = None) -> Variable:
    """Declares a persistable variable of the same shape and dtype."""
    return block.create_var(name or variable.name, variable.shape, variable.dtype, persistable=True, stop_gradient=True)
