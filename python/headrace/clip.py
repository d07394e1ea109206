"""Gradient clipping."""

from __future__ import annotations

from headrace.framework import Block, Parameter, Variable

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

    def _clip(self, gradient: Variable, block: Block) -> Variable:
        out = _temporary(gradient)
        block.append_op("clip", {"X": gradient}, {"Out": out}, {"min": self.min, "max": self.max})
        return out


class GradientClipByNorm(GradientClipBase):
    """Each gradient to a Euclidean norm of at most ``clip_norm``."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def _clip(self, gradient: Variable, block: Block) -> Variable:
        out = _temporary(gradient)
        block.append_op("clip_by_norm", {"X": gradient}, {"Out": out}, {"max_norm": self.clip_norm})
        return out


class GradientClipByGlobalNorm(GradientClipBase):
    """All gradients, taken as one vector, to a Euclidean norm of at most ``clip_norm``."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = float(clip_norm)

    def __call__(self, params_grads: ParamGrads) -> ParamGrads:
        if not params_grads:
            return params_grads
        block = params_grads[0][1].block
        squares = []
        for _, gradient in params_grads:
            square, total = _temporary(gradient), _temporary(gradient)
            block.append_op("square", {"X": gradient}, {"Out": square})
            block.append_op("reduce_sum", {"X": square}, {"Out": total}, {"reduce_all": True})
            squares.append(total)
        norm, limit, larger, factor = (_temporary(squares[0]) for _ in range(4))
        block.append_op("sum", {"X": squares}, {"Out": norm})
        block.append_op("sqrt", {"X": norm}, {"Out": norm})
        attrs = {"shape": [1], "dtype": int(norm.dtype), "value": self.clip_norm}
        block.append_op("fill_constant", outputs={"Out": limit}, attrs=attrs)
        block.append_op("elementwise_max", {"X": limit, "Y": norm}, {"Out": larger})
        block.append_op("elementwise_div", {"X": limit, "Y": larger}, {"Out": factor})
        clipped: ParamGrads = []
        for parameter, gradient in params_grads:
            out = _temporary(gradient)
            block.append_op("elementwise_mul", {"X": gradient, "Y": factor}, {"Out": out})
            clipped.append((parameter, out))
        return clipped
