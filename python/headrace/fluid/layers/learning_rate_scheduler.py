"""Learning rates that change from step to step. Pass the result to an optimizer::

    rate = fluid.layers.exponential_decay(0.1, decay_steps=10000, decay_rate=0.5)
    fluid.optimizer.SGD(rate).minimize(loss)

All rates of a program follow one persistable counter, which each run of the program counts up: its first step is 0, or
1 if the program's first rate is ``noam_decay``. ``Program.clone(for_test=True)`` leaves counter and rates out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Union

from headrace import errors
from headrace.fluid import initializer
from headrace.fluid.framework import Variable, default_main_program, default_startup_program
from headrace.fluid.layer_helper import check_list, check_number, create_initialized_var
from headrace.fluid.layers import control_flow, elementwise, nn, ops, tensor

__all__ = [
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
]

_COUNTER = "@LR_DECAY_COUNTER@"

Rate = Union[float, Variable]


@contextlib.contextmanager
def _schedule() -> Iterator[None]:
    """Within it, layers belong to training: a test computes no rates and must not count."""
    with default_main_program()._lr_schedule_guard():
        yield


def _decay_step_counter(begin: int = 0) -> Variable:
    """The number of the run, float32 [1], for schedules of your own. ``begin``: that of the first run, if the program
    has no counter yet.
    """
    step = tensor.cast(nn.autoincreased_step_counter(_COUNTER, begin), "float32")
    step.stop_gradient = True
    return step


def _constant(value: float) -> Variable:
    return tensor.fill_constant([1], "float32", float(value))


def _quotient(step: Variable, count: float, down: bool = False) -> Variable:
    """step / count, perhaps rounded down. A product with 1 / count could miss an integer."""
    out = elementwise.elementwise_div(step, _constant(count))
    return ops.floor(out) if down else out


def _check_rate(value: Rate, what: str, layer: str) -> None:
    if not isinstance(value, (int, float, Variable)) or isinstance(value, bool):
        raise errors.TypeMismatch(f"layers.{layer}: {what} must be a number or a Variable, got {type(value).__name__}")


def _check_positive(value: float, what: str, layer: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise errors.TypeMismatch(f"layers.{layer}: {what} must be a number, got {type(value).__name__}")
    if not 0 < value < math.inf:
        raise errors.InvalidArgument(f"layers.{layer}: {what} must be positive, got {value}")


def noam_decay(d_model: float, warmup_steps: float) -> Variable:
    """d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), from step 1 on (Vaswani et al., 2017).

    Args:
        d_model: the width of the model.
        warmup_steps: how many steps the rate grows.
    """
    _check_positive(d_model, "d_model", "noam_decay")
    _check_positive(warmup_steps, "warmup_steps", "noam_decay")
    with _schedule():
        step = _decay_step_counter(begin=1)
        least = elementwise.elementwise_min(ops.pow(step, factor=-0.5), step * math.pow(warmup_steps, -1.5))
        return least * math.pow(d_model, -0.5)


def exponential_decay(learning_rate: Rate, decay_steps: int, decay_rate: float, staircase: bool = False) -> Variable:
    """learning_rate · decay_rate^(step / decay_steps). With ``staircase``, the exponent is rounded down."""
    _check_rate(learning_rate, "learning_rate", "exponential_decay")
    _check_positive(decay_steps, "decay_steps", "exponential_decay")
    with _schedule():
        exponent = _quotient(_decay_step_counter(), decay_steps, staircase)
        return elementwise.elementwise_pow(_constant(decay_rate), exponent) * learning_rate


def natural_exp_decay(learning_rate: Rate, decay_steps: int, decay_rate: float, staircase: bool = False) -> Variable:
    """learning_rate · e^(-decay_rate · step / decay_steps). With ``staircase``, the quotient is rounded down."""
    _check_rate(learning_rate, "learning_rate", "natural_exp_decay")
    _check_positive(decay_steps, "decay_steps", "natural_exp_decay")
    with _schedule():
        return (
            ops.exp(
                _quotient(_decay_step_counter(), decay_steps, staircase)
                * -check_number(decay_rate, "decay_rate", "natural_exp_decay")
            )
            * learning_rate
        )


def inverse_time_decay(learning_rate: Rate, decay_steps: int, decay_rate: float, staircase: bool = False) -> Variable:
    """learning_rate / (1 + decay_rate · step / decay_steps). With ``staircase``, the quotient is rounded down."""
    _check_rate(learning_rate, "learning_rate", "inverse_time_decay")
    _check_positive(decay_steps, "decay_steps", "inverse_time_decay")
    with _schedule():
        return learning_rate / (
            _quotient(_decay_step_counter(), decay_steps, staircase)
            * check_number(decay_rate, "decay_rate", "inverse_time_decay")
            + 1.0
        )


def polynomial_decay(
    learning_rate: Rate,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Variable:
    """(learning_rate - end_learning_rate) · (1 - step / decay_steps)^power + end_learning_rate, and after
    ``decay_steps`` ``end_learning_rate``.

    Args:
        cycle: then the rate jumps up instead: ``decay_steps`` is taken as often as the step needs.
    """
    _check_rate(learning_rate, "learning_rate", "polynomial_decay")
    _check_positive(decay_steps, "decay_steps", "polynomial_decay")
    with _schedule():
        step, steps = _decay_step_counter(), _constant(decay_steps)
        if cycle:
            steps *= elementwise.elementwise_max(ops.ceil(elementwise.elementwise_div(step, steps)), _constant(1))
        else:
            step = elementwise.elementwise_min(step, steps)
        left = ops.pow(
            1.0 - elementwise.elementwise_div(step, steps), factor=check_number(power, "power", "polynomial_decay")
        )
        return left * (learning_rate - end_learning_rate) + end_learning_rate


def piecewise_decay(boundaries: Sequence[float], values: Sequence[float]) -> Variable:
    """values[0] before step boundaries[0], values[1] from there to boundaries[1], and so on.

    Args:
        boundaries: ascending.
        values: one more.
    """
    boundaries = check_list(boundaries, "boundaries", "piecewise_decay")
    values = check_list(values, "values", "piecewise_decay")
    if len(values) != len(boundaries) + 1:
        raise errors.InvalidArgument(
            f"layers.piecewise_decay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, got {len(values)}"
        )
    if list(boundaries) != sorted(boundaries):
        raise errors.InvalidArgument(f"layers.piecewise_decay: boundaries must be ascending, got {list(boundaries)}")
    with _schedule():
        step = _decay_step_counter()
        if not boundaries:
            return _constant(values[0])
        rate = _rate_variable("learning_rate")
        with control_flow.Switch() as switch:
            for boundary, value in zip(boundaries, values):
                with switch.case(control_flow.less_than(step, _constant(boundary))):
                    tensor.assign(_constant(value), rate)
            with switch.default():
                tensor.assign(_constant(values[-1]), rate)
        return rate


def cosine_decay(learning_rate: Rate, step_each_epoch: int, epochs: int) -> Variable:
    """learning_rate / 2 · (cos(π · epoch / epochs) + 1), where the epoch is step / step_each_epoch, rounded down
    (Loshchilov and Hutter, 2017).
    """
    _check_rate(learning_rate, "learning_rate", "cosine_decay")
    _check_positive(step_each_epoch, "step_each_epoch", "cosine_decay")
    _check_positive(epochs, "epochs", "cosine_decay")
    with _schedule():
        epoch = _quotient(_decay_step_counter(), step_each_epoch, down=True)
        return (ops.cos(epoch * (math.pi / epochs)) + 1.0) * 0.5 * learning_rate


def linear_lr_warmup(learning_rate: Rate, warmup_steps: int, start_lr: float, end_lr: float) -> Variable:
    """start_lr + (end_lr - start_lr) · step / warmup_steps before step ``warmup_steps``, then ``learning_rate``, which
    may be one that changes.
    """
    _check_rate(learning_rate, "learning_rate", "linear_lr_warmup")
    _check_positive(warmup_steps, "warmup_steps", "linear_lr_warmup")
    with _schedule():
        step = _decay_step_counter()
        rate = _rate_variable("learning_rate_warmup")
        then = learning_rate if isinstance(learning_rate, Variable) else _constant(learning_rate)
        with control_flow.Switch() as switch:
            with switch.case(control_flow.less_than(step, _constant(warmup_steps))):
                tensor.assign(
                    _quotient(step, warmup_steps) * float(end_lr - start_lr)
                    + check_number(start_lr, "start_lr", "linear_lr_warmup"),
                    rate,
                )
            with switch.default():
                tensor.assign(then, rate)
        return rate


def _rate_variable(name: str) -> Variable:
    """A variable that the cases of a ``Switch`` write. Programs find it by the name that Fluid gives it."""
    programs = default_main_program(), default_startup_program()
    return create_initialized_var(*programs, name, [1], "float32", initializer.Constant(0.0), bare=True)
