"""Optimizers around others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import initializer, layers
from headrace.fluid._checks import check_number
from headrace.fluid.clip import GradientClipBase
from headrace.fluid.framework import (
    Block,
    Operator,
    OpRole,
    Program,
    Variable,
    default_startup_program,
    program_guard,
)
from headrace.fluid.layer_helper import create_initialized_var

__all__ = ["LookaheadOptimizer", "RecomputeOptimizer"]


def _checked(optimizer: Any, what: str) -> Any:
    if not callable(getattr(optimizer, "minimize", None)):
        raise errors.TypeMismatch(f"{what} wraps an optimizer, got {type(optimizer).__name__}")
    return optimizer


class LookaheadOptimizer:
    """Every ``k`` updates of another optimizer, the parameters go back to where they were ``k`` updates before, and
    from there the part ``alpha`` of the way that they have gone since (Zhang et al., 2019). As in Fluid, these are all
    parameters of the program: the statistics of batch_norm, too.
    """

    def __init__(self, inner_optimizer: Any, alpha: float = 0.5, k: int = 5) -> None:
        self.inner_optimizer = _checked(inner_optimizer, "LookaheadOptimizer")
        if not 0.0 <= check_number(alpha, "LookaheadOptimizer: alpha") <= 1.0:
            raise errors.InvalidArgument(f"LookaheadOptimizer: alpha has to be in [0, 1], got {alpha}")
        if not isinstance(k, int) or k < 1:
            raise errors.InvalidArgument(f"LookaheadOptimizer: k has to be a positive number, got {k!r}")
        self.alpha, self.k = float(alpha), k

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> Any:
        """As ``Optimizer.minimize``; to be called within the programs that ``loss`` belongs to."""
        result = self.inner_optimizer.minimize(loss, startup_program)
        program = loss.block.program
        startup = default_startup_program() if startup_program is None else startup_program
        block = program.global_block()
        with program_guard(program, startup), program._role_guard(OpRole.OPTIMIZE):
            k, alpha, step = (
                create_initialized_var(program, startup, f"lookahead_{what}", [1], dtype, value, bare=True)
                for what, dtype, value in (
                    ("k", "int32", initializer.Constant(self.k)),
                    ("alpha", "float32", initializer.Constant(self.alpha)),
                    ("step", "int32", initializer.Constant(0)),
                )
            )
            layers.increment(step)
            due = layers.equal(step % k, layers.fill_constant([1], "int32", 0))
            # Where a parameter was; in the beginning, its first value.
            slow = {
                p: create_initialized_var(
                    program, startup, f"{p.name}@SLOW", p.shape, p.dtype, _FirstValueOf(p), bare=True
                )
                for p in block.all_parameters()
            }
            with layers.Switch() as switch, switch.case(due):
                for parameter, kept in slow.items():
                    part = alpha if parameter.dtype == alpha.dtype else layers.cast(alpha, parameter.dtype)
                    layers.assign(kept + (parameter - kept) * part, output=kept)
                    layers.assign(kept, output=parameter)
        return result


class _FirstValueOf(initializer.Initializer):
    """The first value of another variable of the startup program."""

    def __init__(self, source: Variable) -> None:
        self._source = source

    def __call__(self, var: Variable, block: Block) -> Operator:
        source = self._source
        if not block.has_var(source.name):
            block.create_var(name=source.name, shape=source.shape, dtype=source.dtype, persistable=True)
        return block.append_op("assign", {"X": source.name}, {"Out": var})


class RecomputeOptimizer:
    """In Fluid, an optimizer whose backward pass computes parts of the forward pass again, which saves memory. Here it
    is the optimizer that it wraps: the gradients are the same, and no memory is saved.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = _checked(optimizer, "RecomputeOptimizer")

    def _set_checkpoints(self, checkpoints: Sequence[Variable | str]) -> None:
        """Fluid's: what would not be computed again."""

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        grad_clip: GradientClipBase | None = None,
    ) -> Any:
        return self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set, grad_clip)

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Sequence[Callable[..., Any]] | None = None,
        checkpoints: Sequence[Variable | str] | None = None,
    ) -> Any:
        """As of the optimizer. ``checkpoints`` are Fluid's; they make no difference."""
        return self._optimizer.backward(loss, startup_program, parameter_list, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Any) -> Any:
        return self._optimizer.apply_gradients(params_grads)

    def apply_optimize(self, loss: Variable, startup_program: Program | None, params_grads: Any) -> Any:
        return self._optimizer.apply_optimize(loss, startup_program, params_grads)
