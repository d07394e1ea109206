"""Averages of parameters over the last updates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from headrace import errors
from headrace.fluid import initializer, layers, unique_name
from headrace.fluid.executor import Executor, global_scope
from headrace.fluid.framework import (
    Block,
    Parameter,
    Program,
    Variable,
    default_main_program,
    default_startup_program,
    program_guard,
)
from headrace.fluid.layer_helper import create_initialized_var

__all__ = ["ModelAverage"]


class ModelAverage:
    """Adds up the values that each trained parameter has after an update, so that their average can take its place::

        optimizer.minimize(loss)
        average = fluid.optimizer.ModelAverage(0.15, min_average_window=100, max_average_window=200)
        executor.run(fluid.default_startup_program())
        ...  # train
        with average.apply(executor):
            ...  # evaluate

    The average is over a window of min(``max_average_window``, updates * ``average_window_rate``) values, but not less
    than ``min_average_window``, and what is there of the window before. Construct it after ``minimize``, in the same
    programs.

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
        self._name = unique_name.generate("model_average") if name is None else name
        self._counts: list[str] = []
        self._apply, self._restore = Program(), Program()
        main = default_main_program()
        attrs = {
            "average_window": float(average_window_rate),
            "min_average_window": int(min_average_window),
            "max_average_window": int(max_average_window),
        }
        parameters = [p for p in main.global_block().all_parameters() if p.trainable]
        if not parameters:
            raise errors.InvalidArgument("ModelAverage: the default main program has no parameters to be averaged")
        with main._backward_guard():
            for parameter in parameters:
                state = self._accumulate(parameter, attrs)
                self._add_to_programs(parameter, state)

    def _accumulate(self, parameter: Parameter, attrs: dict[str, float | int]) -> dict[str, Variable]:
        """Adds the operator that adds ``parameter`` up; returns its state by the names of the slots."""
        state = {}
        for what in ("sum_1", "sum_2", "sum_3", "num_accumulates", "old_num_accumulates", "num_updates"):
            is_sum = what.startswith("sum")
            state[what] = create_initialized_var(
                default_main_program(),
                default_startup_program(),
                unique_name.generate(f"{self._name}.{parameter.name}.{what}"),
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
        kept = unique_name.generate(f"{self._name}.{parameter.name}.kept")
        with program_guard(self._apply, Program()):
            block = self._apply.global_block()
            value, before = _like(parameter, block), _like(parameter, block, kept)
            layers.assign(value, before)
            total = layers.sums([_like(state[what], block) for what in ("sum_1", "sum_2", "sum_3")])
            counts = [_like(state[what], block) for what in ("num_accumulates", "old_num_accumulates")]
            count = layers.sums([layers.cast(number, parameter.dtype) for number in counts])
            layers.assign(layers.elementwise_div(total, count), value)
        with program_guard(self._restore, Program()):
            block = self._restore.global_block()
            layers.assign(_like(parameter, block, kept), _like(parameter, block))

    @contextlib.contextmanager
    def apply(self, executor: Executor, need_restore: bool = True) -> Iterator[None]:
        """Within it, the parameters in the global scope are their averages. With ``need_restore`` they are as before in
        the end, else once ``restore`` is called.

        Raises:
            FailedPrecondition: there has been no update.
        """
        for name in self._counts:
            count = global_scope().find_var(name)
            if count is None or not count.is_initialized() or not np.asarray(count.get_tensor())[0]:
                raise errors.FailedPrecondition("ModelAverage: there is no average before the first update")
        executor.run(self._apply)
        try:
            yield
        finally:
            if need_restore:
                self.restore(executor)

    def restore(self, executor: Executor) -> None:
        """Gives the parameters the values that they had before ``apply``."""
        executor.run(self._restore)


def _like(variable: Variable, block: Block, name: str | None = None) -> Variable:
    """Declares a persistable variable of the same shape and dtype."""
    return block.create_var(name or variable.name, variable.shape, variable.dtype, persistable=True, stop_gradient=True)
