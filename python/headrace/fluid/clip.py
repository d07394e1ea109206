"""Gradient clipping. A sparse gradient stays sparse: the rows that it has are clipped."""

from __future__ import annotations

from headrace import errors
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Parameter, Variable

__all__ = ["GradientClipBase", "GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue"]

ParamGrads = list[tuple[Parameter, Variable]]


def _temporary(like: Variable) -> Variable:
    return like.block.create_var(dtype=like.dtype, stop_gradient=True)


class GradientClipBase:
    """Base of the clips; an optimizer's ``grad_clip``."""

    def __call__(self, params_grads: ParamGrads) -> ParamGrads:
        """Adds the operators that clip; returns the pairs with the clipped gradients."""
        return [(parameter, self._clip(gradient, gradient.block)) for parameter, gradient in params_grads]

    def _clip(self, gradient: Variable, block: Block) -> Variable:
        raise NotImplementedError


class GradientClipByValue(GradientClipBase):
    """Each element into [min, max]; ``min`` is -max unless given."""

    def __init__(self, max: float, min: float | None = None) -> None:
        self.max = float(max)
        self.min = -self.max if min is None else float(min)
        if self.min > self.max:
            raise errors.InvalidArgument(f"nothing lies between {self.min} and {self.max}")

    def _clip(self, gradient: Variable, block: Block) -> Variable:
        out = _temporary(gradient)
        block.append_op("clip", {"X": gradient}, {"Out": out}, {"min": self.min, "max": self.max})
        return out


class GradientClipByNorm(GradientClipBase):
    """Each gradient to a Euclidean norm of at most ``clip_norm``."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def _clip(self, gradient: Variable, block: Block) -> Variable:
        return _scaled(gradient, _factor([gradient], self.clip_norm))


class GradientClipByGlobalNorm(GradientClipBase):
    """All gradients, taken as one vector, to a Euclidean norm of at most ``clip_norm``."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def __call__(self, params_grads: ParamGrads) -> ParamGrads:
        if not params_grads:
            return params_grads
        factor = _factor([gradient for _, gradient in params_grads], self.clip_norm)
        return [(parameter, _scaled(gradient, factor)) for parameter, gradient in params_grads]


def _constant(like: Variable, value: float) -> Variable:
    """A single element of the dtype of ``like``."""
    out = _temporary(like)
    attrs = {"shape": [1], "dtype": int(like.dtype), "value": value}
    like.block.append_op("fill_constant", outputs={"Out": out}, attrs=attrs)
    return out


def _factor(gradients: list[Variable], limit: float) -> Variable:
    """limit / max(limit, the norm of all gradients together)."""
    block = gradients[0].block
    squares = []
    for gradient in gradients:
        if gradient.type == VarType.SELECTED_ROWS:
            merged, gradient_rows = _temporary(gradient), _temporary(gradient)
            block.append_op("merge_selected_rows", {"X": gradient}, {"Out": merged})
            block.append_op("get_tensor_from_selected_rows", {"X": merged}, {"Out": gradient_rows})
            gradient = gradient_rows
        square, total = _temporary(gradient), _temporary(gradient)
        block.append_op("square", {"X": gradient}, {"Out": square})
        block.append_op("reduce_sum", {"X": square}, {"Out": total}, {"reduce_all": True})
        squares.append(total)
    norm, larger, factor = (_temporary(squares[0]) for _ in range(3))
    block.append_op("sum", {"X": squares}, {"Out": norm})
    block.append_op("sqrt", {"X": norm}, {"Out": norm})
    most = _constant(norm, limit)
    block.append_op("elementwise_max", {"X": most, "Y": norm}, {"Out": larger})
    block.append_op("elementwise_div", {"X": most, "Y": larger}, {"Out": factor})
    return factor


def _scaled(gradient: Variable, factor: Variable) -> Variable:
    out = _temporary(gradient)
    gradient.block.append_op("elementwise_mul", {"X": gradient, "Y": factor}, {"Out": out})
    return out
