"""Gradient clipping. A sparse gradient stays sparse: the rows that it has are clipped."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid._checks import check_instance, check_list, check_number, check_object, check_optional, check_pairs
from headrace.fluid._protocols import DeclaringBlock, DeclaringProgram, GradientClip
from headrace.fluid._stored_objects import stored
from headrace.fluid.core import VarType
from headrace.fluid.framework import Block, Parameter, Program, Variable, default_main_program

__all__ = [
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "ErrorClipByValue",
    "GradientClipBase",
    "GradientClipByGlobalNorm",
    "GradientClipByNorm",
    "GradientClipByValue",
    "append_error_clip_ops",
    "append_gradient_clip_ops",
    "error_clip_callback",
    "find_error_clips",
    "set_gradient_clip",
]

ParamGrads = list[tuple[Parameter, Variable]]


def _temporary(like: Variable) -> Variable:
    made: Variable = like.block.create_var(dtype=like.dtype, stop_gradient=True)
    return made


class GradientClipBase:
    """Base of the clips: a parameter's ``gradient_clip``, or an optimizer's ``grad_clip``. Parameters' clips of the
    classes below are stored with the program; a subclass of your own has to be set again.
    """

    def __call__(self, params_grads: ParamGrads) -> ParamGrads:
        """Adds the operators that clip; returns the pairs with the clipped gradients."""
        pairs = check_pairs(params_grads, f"clip.{type(self).__name__}: params_grads")
        return [(parameter, self._clip(gradient, gradient.block)) for parameter, gradient in pairs]

    def _clip(self, gradient: Variable, block: DeclaringBlock) -> Variable:
        raise NotImplementedError


def _norm_limit(clip_norm: float, what: str) -> float:
    if not 0 < check_number(clip_norm, f"clip.{what}: clip_norm") < math.inf:
        raise errors.InvalidArgument(f"clip.{what}: clip_norm must be positive and finite, got {clip_norm}")
    return float(clip_norm)


def _bounds(max: float, min: float | None, what: str) -> tuple[float, float]:
    high = check_number(max, f"clip.{what}: max")
    low = -high if min is None else check_number(min, f"clip.{what}: min")
    if not low <= high:
        raise errors.InvalidArgument(f"clip.{what}: nothing lies between min={low} and max={high}; max comes first")
    return low, high


@stored("max", "min")
class GradientClipByValue(GradientClipBase):
    """Each element into [min, max]; ``min`` is -max unless given."""

    def __init__(self, max: float, min: float | None = None) -> None:
        self.min, self.max = _bounds(max, min, "GradientClipByValue")

    def _clip(self, gradient: Variable, block: DeclaringBlock) -> Variable:
        out = _temporary(gradient)
        block.append_op("clip", {"X": gradient}, {"Out": out}, {"min": self.min, "max": self.max})
        return out


@stored("clip_norm")
class GradientClipByNorm(GradientClipBase):
    """Each gradient to a Euclidean norm of at most ``clip_norm``, a positive number."""

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = _norm_limit(clip_norm, "GradientClipByNorm")

    def _clip(self, gradient: Variable, block: DeclaringBlock) -> Variable:
        return _scaled(gradient, _factor([gradient], self.clip_norm))


@stored("clip_norm", "group_name")
class GradientClipByGlobalNorm(GradientClipBase):
    """All gradients of a group, taken as one vector, to a Euclidean norm of at most ``clip_norm``, a positive number.

    Args:
        group_name: parameters whose own clips have the same one form a group, and need the same ``clip_norm``.
    """

    def __init__(self, clip_norm: float, group_name: str = "default_group") -> None:
        if not isinstance(group_name, str):
            raise errors.TypeMismatch(
                f"clip.GradientClipByGlobalNorm: group_name must be a str, got {type(group_name).__name__}"
            )
        self.clip_norm = _norm_limit(clip_norm, "GradientClipByGlobalNorm")
        self.group_name = group_name

    def __call__(self, params_grads: ParamGrads) -> ParamGrads:
        pairs = check_pairs(params_grads, "clip.GradientClipByGlobalNorm: params_grads")
        if not pairs:
            return []
        factor = _factor([gradient for _, gradient in pairs], self.clip_norm)
        return [(parameter, _scaled(gradient, factor)) for parameter, gradient in pairs]


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
    if len({total.dtype for total in squares}) > 1:
        squares = [cast(total, VarType.FP64) for total in squares]
    norm, larger, factor = (_temporary(squares[0]) for _ in range(3))
    block.append_op("sum", {"X": squares}, {"Out": norm})
    block.append_op("sqrt", {"X": norm}, {"Out": norm})
    most = _constant(norm, limit)
    block.append_op("elementwise_max", {"X": most, "Y": norm}, {"Out": larger})
    block.append_op("elementwise_div", {"X": most, "Y": larger}, {"Out": factor})
    return factor


def _scaled(gradient: Variable, factor: Variable) -> Variable:
    out = _temporary(gradient)
    gradient.block.append_op("elementwise_mul", {"X": gradient, "Y": cast(factor, gradient.dtype)}, {"Out": out})
    return out


def cast(variable: Variable, dtype: VarType) -> Variable:
    """``variable``, or its values in another dtype, in its own block."""
    if variable.dtype == dtype:
        return variable
    out: Variable = variable.block.create_var(dtype=dtype, stop_gradient=True)
    attrs = {"in_dtype": int(variable.dtype), "out_dtype": int(dtype)}
    variable.block.append_op("cast", {"X": variable}, {"Out": out}, attrs)
    return out


def set_gradient_clip(
    clip: GradientClipBase, param_list: Sequence[Parameter | str] | None = None, program: Program | None = None
) -> None:
    """Has the gradients of parameters clipped; to be called before the optimizer's ``minimize``.

    Args:
        param_list: parameters or their names; None: all that the program has.
        program: where names are looked up; None: the default main program.

    Raises:
        TypeMismatch: ``clip`` is no clip, or an item of ``param_list`` no parameter.
        NotFound: the program has no variable of a name.
    """
    check_object(clip, GradientClipBase, "GradientClipByValue(1.0)", "clip.set_gradient_clip: clip")
    if not isinstance(clip, GradientClipBase):
        raise errors.TypeMismatch(f"clip.set_gradient_clip: clip must be a clip, got {clip!r}")
    check_optional(program, Program, "clip.set_gradient_clip: program")
    root = (default_main_program() if program is None else program).global_block()
    items = root.all_parameters() if param_list is None else check_list(param_list, "set_gradient_clip: param_list")
    parameters = [root.var(item) if isinstance(item, str) else item for item in items]
    for parameter in parameters:
        if not isinstance(parameter, Parameter):
            what = f"variable '{parameter.name}'" if isinstance(parameter, Variable) else type(parameter).__name__
            raise errors.TypeMismatch(f"clip.set_gradient_clip: param_list takes parameters or names, got {what}")
        parameter.gradient_clip_attr = clip


def append_gradient_clip_ops(param_grads: ParamGrads, grad_clip: GradientClipBase | None = None) -> ParamGrads:
    """Adds the operators that clip gradients, each as its parameter's ``gradient_clip`` says.

    Args:
        param_grads: (parameter, gradient) pairs.
        grad_clip: for the parameters that have no clip of their own.

    Returns:
        The pairs with the clipped gradients, in the same order, without those whose gradient is None.

    Raises:
        InvalidArgument: parameters of one group of GradientClipByGlobalNorm have different limits.
    """
    check_object(grad_clip, GradientClipBase, "GradientClipByValue(1.0)", "append_gradient_clip_ops: grad_clip")
    pairs = check_pairs(param_grads, "append_gradient_clip_ops: param_grads")
    param_grads = [(parameter, gradient) for parameter, gradient in pairs if gradient is not None]
    groups: dict[int | str, tuple[GradientClip, list[int]]] = {}
    limits: dict[str, float] = {}
    for place, (parameter, _) in enumerate(param_grads):
        clip = parameter.gradient_clip_attr or grad_clip
        if clip is None:
            continue
        key: int | str = id(clip)
        if clip is not grad_clip and isinstance(clip, GradientClipByGlobalNorm):
            key = clip.group_name
            limit = limits.setdefault(key, clip.clip_norm)
            if clip.clip_norm != limit:
                raise errors.InvalidArgument(
                    f"clip.GradientClipByGlobalNorm: parameter '{parameter.name}' has clip_norm {clip.clip_norm}, "
                    f"others of its group '{key}' have {limit}"
                )
        groups.setdefault(key, (clip, []))[1].append(place)
    clipped = list(param_grads)
    for clip, members in groups.values():
        pairs = [param_grads[place] for place in members]
        with pairs[0][0].block.program._optimized_guard(()):
            for place, pair in zip(members, clip(pairs)):
                clipped[place] = pair
    return clipped


@stored("max", "min")
class ErrorClipByValue:
    """Each element of the gradient of a variable into [min, max], before it is passed on to the operators that the
    variable was computed from; ``min`` is -max unless given. To be set as the variable's ``error_clip``.
    """

    def __init__(self, max: float, min: float | None = None) -> None:
        self.min, self.max = _bounds(max, min, "ErrorClipByValue")


#: By block, the clips of its variables.
ErrorClips = dict[int, dict[str, ErrorClipByValue]]

_GRADIENT = re.compile(r"(?P<of>.+?)(@VERSION@\d+)?@GRAD(@\d+)?")


def find_error_clips(program: DeclaringProgram) -> ErrorClips:
    """The variables that ``append_error_clip_ops`` will clip. TypeMismatch if an ``error_clip`` is no clip, or that of
    no tensor.
    """
    found: ErrorClips = {}
    for variable in program.list_vars():
        clip = variable.error_clip
        if clip is not None:
            if not isinstance(clip, ErrorClipByValue):
                raise errors.TypeMismatch(
                    f"error_clip of '{variable.name}' must be an ErrorClipByValue or None, got {type(clip).__name__}"
                )
            if variable.type != VarType.LOD_TENSOR:
                raise errors.TypeMismatch(
                    f"'{variable.name}' has an error_clip, but is a {variable.type.name}, expected a LOD_TENSOR"
                )
            found.setdefault(variable.block.idx, {})[variable.name] = clip
    return found


def append_error_clip_ops(program: Program, clips: ErrorClips, first_block: int, first_op: int) -> None:
    """Adds the operators that clip gradients of variables; those of the variables of a loop are clipped in each step.

    Args:
        clips: from ``find_error_clips``.
        first_block, first_op: the backward pass consists of the blocks from ``first_block`` on and, in the root block,
            of the operators from ``first_op`` on.
    """
    _clip_errors(program.global_block(), first_op, clips.get(0, {}))
    for block in program.blocks[first_block:]:
        _clip_errors(block, 0, clips.get(block.parent_idx, {}))


def error_clip_callback(block: Block, context: Any = None) -> None:
    """Clips the output of the last operator of ``block`` if it is the gradient of a variable with an ``error_clip``.
    To be given to ``backward.append_backward`` as a callback, as ``minimize`` does by itself.
    """
    check_instance(block, Block, "error_clip_callback: block")
    _clip_errors(block, len(block.ops) - 1, find_error_clips(block.program).get(block.idx, {}))


def _clip_errors(block: Block, first_op: int, clips: dict[str, ErrorClipByValue]) -> None:
    for index in range(len(block.ops) - 1, first_op - 1, -1):
        for name in block.ops[index].output_arg_names:
            match = _GRADIENT.fullmatch(name)
            clip = clips.get(match["of"]) if match else None
            if clip is not None:
                block._insert_op(index + 1, "clip", {"X": name}, {"Out": name}, {"min": clip.min, "max": clip.max})


ClipByValue = GradientClipByValue
ClipByNorm = GradientClipByNorm
ClipByGlobalNorm = GradientClipByGlobalNorm
