"""Optimizers around others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from headrace import errors
from headrace.fluid import initializer, layers, unique_name
from headrace.fluid.framework import OpRole, Program, Variable, default_startup_program, program_guard
from headrace.fluid.layer_helper import create_initialized_var

__all__ = ["LookaheadOptimizer", "RecomputeOptimizer"]


def _checked(optimizer: Any, what: str) -> Any:
    if not callable(getattr(optimizer, "minimize", None)):
        raise errors.TypeMismatch(f"{what} wraps an optimizer, got {type(optimizer).__name__}")
    return optimizer


class LookaheadOptimizer:
    """Every ``k`` updates of another optimizer, the parameters go back to where they were ``k`` updates before, and
    from there the part ``alpha`` of the way that they have gone since (Zhang et al., 2019).
    """

    def __init__(self, inner_optimizer: Any, alpha: float = 0.5, k: int = 5) -> None:
        self.inner_optimizer = _checked(inner_optimizer, "LookaheadOptimizer")
        if not 0.0 <= alpha <= 1.0:
            raise errors.InvalidArgument(f"LookaheadOptimizer: alpha has to be in [0, 1], got {alpha}")
        if not isinstance(k, int) or k < 1:
            raise errors.InvalidArgument(f"LookaheadOptimizer: k has to be a positive number, got {k!r}")
        self.alpha, self.k = float(alpha), k

    def minimize(self, loss: Variable, startup_program: Program | None = None) -> Any:
        """As ``Optimizer.minimize``; to be called within the programs that ``loss`` belongs to."""
        result = self.inner_optimizer.minimize(loss, startup_program)
        program = loss.block.program
        startup = default_startup_program() if startup_program is None else startup_program
        name = unique_name.generate("lookahead")
        step = create_initialized_var(program, startup, f"{name}.step", [1], "int64", initializer.Constant(0))
        with program_guard(program, startup), program._role_guard(OpRole.OPTIMIZE):
            layers.increment(step)
            due = layers.equal(step % self.k, layers.fill_constant([1], "int64", 0))
            slow = {parameter: self._kept(parameter, name, program, startup) for parameter, _ in result[1]}
            with layers.Switch() as switch, switch.case(due):
                for parameter, kept in slow.items():
                    layers.assign(kept + (parameter - kept) * self.alpha, output=kept)
                    layers.assign(kept, output=parameter)
        return result

    @staticmethod
    def _kept(parameter: Variable, name: str, program: Program, startup: Program) -> Variable:
        """Where the parameter was; in the beginning, its first value."""
        kept = create_initialized_var(
            program, startup, f"{parameter.name}.{name}.slow", parameter.shape, parameter.dtype
        )
        block = startup.global_block()
        block.create_var(kept.name, kept.shape, kept.dtype, persistable=True, stop_gradient=True)
        block.append_op("assign", {"X": parameter.name}, {"Out": kept.name})
        return kept


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
    ) -> Any:
        return self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)

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
        """Fluid's name for apply_gradients."""
        return self._optimizer.apply_gradients(params_grads, startup_program)
