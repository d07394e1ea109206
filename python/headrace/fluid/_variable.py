"""What a program consists of, as Python sees it: variables, parameters and operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, SupportsIndex, Union

from headrace import errors
from headrace.fluid import core, unique_name
from headrace.fluid.core import VarType

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

    from headrace.fluid.clip import ErrorClipByValue, GradientClipBase
    from headrace.fluid.framework import Block, SlotValue
    from headrace.fluid.regularizer import WeightDecayRegularizer

__all__ = ["Operator", "Parameter", "Variable", "grad_var_name"]

_GRAD_SUFFIX = "@GRAD"

_INTEGERS = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}


def grad_var_name(name: str) -> str:
    """Name of the gradient of the variable ``name``."""
    return name + _GRAD_SUFFIX


class Variable:
    """A variable of a program: a name with a type, a shape and a dtype. Its value lives in the scope in which the
    program is run.

    ``+ - * / // % ** < <= > >=`` and the unary ``-`` add the operators that compute them to the current block of the
    variable's program; the other side may be a number. So does indexing: ``x[0, 1:-1, ..., ::-1]``. ``==`` compares the
    variables themselves; ``layers.equal`` compares their values.
    """

    # Python would ask for x[0], x[1], … without end.
    __iter__ = None

    def __init__(self, block: Block, name: str) -> None:
        self.block = block
        self._name = name
        desc = block.desc.find_var(name)
        if desc is None:
            raise errors.NotFound(f"block {block.idx} and its ancestors declare no variable '{name}'")
        self.desc = desc
        #: Whether the value comes from outside the program.
        self.is_data = False
        #: How an optimizer clips the gradient of the variable, before it passes it on; None: not at all.
        self.error_clip: ErrorClipByValue | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions; -1 is known only at run time."""
        return tuple(self.desc.shape)

    @property
    def dtype(self) -> VarType:
        """The element type; ``core.dtype_name`` gives NumPy's name."""
        return VarType(self.desc.dtype)

    @property
    def lod_level(self) -> int:
        """How many levels of sequences the first dimension packs."""
        return self.desc.lod_level

    @property
    def type(self) -> VarType:
        """What it holds: VarType.LOD_TENSOR, READER, …"""
        return VarType(self.desc.kind)

    @property
    def persistable(self) -> bool:
        """Whether the value lives in the scope that the program is run in, and survives the run."""
        return self.desc.persistable

    @persistable.setter
    def persistable(self, value: bool) -> None:
        self.desc.persistable = value

    @property
    def stop_gradient(self) -> bool:
        """Whether gradients stop here."""
        return self.desc.stop_gradient

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.desc.stop_gradient = value

    def _set_error_clip(self, error_clip: ErrorClipByValue | None) -> None:
        """Fluid's way to set ``error_clip``; to be called before the optimizer's ``minimize``."""
        self.error_clip = error_clip

    def astype(self, dtype: Any) -> Variable:
        """The same values in another dtype (a ``cast`` operator)."""
        target = core.convert_dtype(dtype)
        attrs = {"in_dtype": int(self.dtype), "out_dtype": int(target)}
        return _append_op("cast", {"X": self}, attrs, dtype=target)

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """A line about the variable. The arguments are Fluid's and make no difference."""
        return str(self)

    def __repr__(self) -> str:
        if self.type == VarType.READER:
            return f"{type(self).__name__}({self.name}, reader)"
        return f"{type(self).__name__}({self.name}, shape={self.shape}, dtype={core.dtype_name(self.dtype)})"

    def __getitem__(self, item: Index | tuple[Index, ...]) -> Variable:
        """A part: integers take one element of a dimension, which is left out then, and slices several; -1 is the last
        one, ``...`` stands for dimensions as they are. An integer may be a variable, int32 or int64 [1]. The step of a
        slice is 1, or -1 for a whole dimension.
        """
        axes: list[int] = []
        starts: list[int | Variable] = []
        ends: list[int | Variable] = []
        dropped, reversed_axes = [], []
        for axis, index in _indices(self, item):
            if not isinstance(index, slice):
                axes.append(axis)
                starts.append(index)
                ends.append(_END if isinstance(index, int) and index == -1 else index + 1)
                dropped.append(axis)
                continue
            start, stop, step = _parts(self, index)
            if step == -1 and start is None and stop is None:
                reversed_axes.append(axis)
            elif step not in (None, 1):
                raise errors.Unimplemented(
                    f"'{self.name}' cannot be sliced with step {step}: it has to be 1, or -1 for a whole dimension"
                )
            elif start is not None or stop is not None:
                axes.append(axis)
                starts.append(0 if start is None else start)
                ends.append(_END if stop is None else stop)
        out = self
        if reversed_axes:
            out = _append_op("reverse", {"X": out}, {"axis": reversed_axes})
        if axes:
            inputs: dict[str, SlotValue] = {"Input": out}
            attrs: dict[str, Any] = {"axes": axes, "decrease_axis": dropped}
            for what, places in (("starts", starts), ("ends", ends)):
                attrs[what] = [-1 if isinstance(place, Variable) else place for place in places]
                like = next((place for place in places if isinstance(place, Variable)), None)
                if like is not None:
                    variables = [place if isinstance(place, Variable) else _number(like, place) for place in places]
                    inputs[f"{what.capitalize()}TensorList"] = variables
            if len(inputs) > 1:
                attrs["infer_flags"] = [
                    -1 if isinstance(start, Variable) or isinstance(end, Variable) else 1
                    for start, end in zip(starts, ends)
                ]
            out = _append_op("slice", inputs, attrs)
        return out

    def __neg__(self) -> Variable:
        return _scale(self, -1.0, 0.0)

    def __add__(self, other: Operand) -> Variable:
        return _scale(self, 1.0, other) if _is_number(other) else _elementwise("elementwise_add", self, other)

    def __radd__(self, other: float) -> Variable:
        return self + other

    def __sub__(self, other: Operand) -> Variable:
        return _scale(self, 1.0, -other) if _is_number(other) else _elementwise("elementwise_sub", self, other)

    def __rsub__(self, other: float) -> Variable:
        return _scale(self, -1.0, other) if _is_number(other) else _elementwise("elementwise_sub", self, other)

    def __mul__(self, other: Operand) -> Variable:
        return _scale(self, other, 0.0) if _is_number(other) else _elementwise("elementwise_mul", self, other)

    def __rmul__(self, other: float) -> Variable:
        return self * other

    def __truediv__(self, other: Operand) -> Variable:
        if not _is_number(other):
            return _elementwise("elementwise_div", self, other)
        if other == 0:
            raise errors.InvalidArgument(f"'{self.name}' cannot be divided by 0")
        if core.dtype_name(self.dtype) in _INTEGERS:
            return _elementwise("elementwise_div", self, _number(self, other))  # the truncated quotient
        return _scale(self, 1.0 / other, 0.0)

    def __rtruediv__(self, other: float) -> Variable:
        if not _is_number(other):
            return _elementwise("elementwise_div", self, other)
        zeros = _append_op("fill_zeros_like", {"X": self}, stop_gradient=True)
        numerator = _scale(zeros, 1.0, other)
        numerator.stop_gradient = True
        return _elementwise("elementwise_div", numerator, self)

    def __floordiv__(self, other: Operand) -> Variable:
        return _elementwise("elementwise_floordiv", self, _operand(self, other))

    def __mod__(self, other: Operand) -> Variable:
        return _elementwise("elementwise_mod", self, _operand(self, other))

    def __pow__(self, other: Operand) -> Variable:
        return _elementwise("elementwise_pow", self, _operand(self, other))

    def __lt__(self, other: Operand) -> Variable:
        return _compare("less_than", self, other)

    def __le__(self, other: Operand) -> Variable:
        return _compare("less_equal", self, other)

    def __gt__(self, other: Operand) -> Variable:
        return _compare("greater_than", self, other)

    def __ge__(self, other: Operand) -> Variable:
        return _compare("greater_equal", self, other)

    def __bool__(self) -> bool:
        raise errors.TypeMismatch(
            f"variable '{self.name}' has no value while the program is being built; fetch it from a run"
        )


#: The other side of an arithmetic operator.
Operand = Union[Variable, float]
#: What a dimension is indexed with. Ellipsis has no name in Python 3.9.
Index = Any

#: Where a slice ends that goes on to the end.
_END = 2**31 - 1


def _integer(value: SupportsIndex) -> int:
    """The integer as an attribute holds it: beyond any extent if it is great."""
    return max(-_END, min(operator.index(value), _END))


def _check_integer(variable: Variable, index: Any, how: str) -> None:
    """Raises unless ``index`` is an integer, or a variable that holds one; ``how`` says what ``variable`` is."""
    if not isinstance(index, Variable):
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise errors.TypeMismatch(f"'{variable.name}' is {how}, got {type(index).__name__}")
    elif index.dtype not in (VarType.INT32, VarType.INT64):
        raise errors.TypeMismatch(
            f"'{variable.name}' is {how}, got variable '{index.name}' of {core.dtype_name(index.dtype)}"
        )
    elif any(extent not in (1, -1) for extent in index.shape):
        raise errors.InvalidArgument(
            f"'{variable.name}' is {how}, got variable '{index.name}' of shape {list(index.shape)} for one"
        )


def _parts(variable: Variable, index: slice) -> list[Any]:
    """Start, stop and step: None, an int or a Variable each; the step is no Variable."""
    parts = [index.start, index.stop, index.step]
    for part in parts:
        if part is not None:
            _check_integer(variable, part, "sliced with integers")
    if isinstance(index.step, Variable):
        raise errors.Unimplemented(f"the step of a slice of '{variable.name}' cannot be a variable")
    return [part if part is None or isinstance(part, Variable) else _integer(part) for part in parts]


def _indices(variable: Variable, item: Index | tuple[Index, ...]) -> list[tuple[int, Any]]:
    """The dimensions that are indexed, each with an int, a Variable or a slice."""
    items = list(item) if isinstance(item, tuple) else [item]
    rank = len(variable.shape)
    wholes = [i for i, index in enumerate(items) if index is Ellipsis]
    if len(wholes) > 1 or len(items) - len(wholes) > rank:
        raise errors.OutOfRange(
            f"'{variable.name}' of shape {list(variable.shape)} cannot be indexed with {len(items)} indices, "
            f"{len(wholes)} of them '...'"
        )
    out: list[tuple[int, Any]] = []
    for i, index in enumerate(items):
        axis = i if not wholes or i < wholes[0] else i + rank - len(items)
        if index is Ellipsis:
            continue
        if isinstance(index, slice):
            out.append((axis, index))
            continue
        _check_integer(variable, index, "indexed with integers, slices and '...'")
        if isinstance(index, Variable):
            out.append((axis, index))
            continue
        place, extent = operator.index(index), variable.shape[axis]
        if not -_END <= place < _END or (extent >= 0 and not -extent <= place < extent):
            raise errors.OutOfRange(
                f"index {place} is outside of dimension {axis} of '{variable.name}' of shape {list(variable.shape)}"
            )
        out.append((axis, place))
    return out


def _is_number(value: Operand) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _append_op(
    op_type: str,
    inputs: Mapping[str, SlotValue],
    attrs: Mapping[str, Any] | None = None,
    dtype: VarType | None = None,
    stop_gradient: bool = False,
) -> Variable:
    """Adds an operator to the current block of the program of its first input, a Variable. Returns its output, which
    has that input's dtype unless another is given.
    """
    first = next(iter(inputs.values()))
    assert isinstance(first, Variable)
    block = first.block.program.current_block()
    out = block.create_var(
        name=unique_name.generate(f"{unique_name.generate(op_type)}.tmp"),
        dtype=first.dtype if dtype is None else dtype,
        stop_gradient=stop_gradient,
    )
    block.append_op(op_type, inputs, {"Out": out}, attrs)
    return out


def _scale(x: Variable, scale: float, bias: float) -> Variable:
    dtype = core.dtype_name(x.dtype)
    if dtype in _INTEGERS and not (float(scale).is_integer() and float(bias).is_integer()):
        raise errors.TypeMismatch(f"'{x.name}' holds integers ({dtype}): cast it before arithmetic with fractions")
    return _append_op("scale", {"X": x}, {"scale": float(scale), "bias": float(bias)})


def _number(like: Variable, value: float) -> Variable:
    """A single element of the dtype of ``like``."""
    dtype = core.dtype_name(like.dtype)
    if dtype in _INTEGERS and not float(value).is_integer():
        raise errors.TypeMismatch(f"'{like.name}' holds integers ({dtype}): cast it before arithmetic with fractions")
    block = like.block.program.current_block()
    out = block.create_var(
        name=unique_name.generate("fill_constant.tmp"), shape=[1], dtype=like.dtype, stop_gradient=True
    )
    attrs = {"shape": [1], "dtype": int(like.dtype), "value": float(value)}
    block.append_op("fill_constant", outputs={"Out": out}, attrs=attrs)
    return out


def _operand(x: Variable, other: Operand) -> Operand:
    """``other``; a number as a variable that goes with ``x``."""
    return _number(x, other) if _is_number(other) else other


def _elementwise(op_type: str, x: Variable, y: Operand) -> Variable:
    if not isinstance(y, Variable):
        raise errors.TypeMismatch(f"arithmetic with '{x.name}' takes a Variable or a number, got {type(y).__name__}")
    if len(x.shape) < len(y.shape) and op_type in ("elementwise_add", "elementwise_mul"):
        x, y = y, x  # the larger one comes first; these two commute
    # A batch meets a batch.
    return _append_op(op_type, {"X": x, "Y": y}, {"axis": 0 if y.shape[:1] == (-1,) else -1})


def _compare(op_type: str, x: Variable, y: Operand) -> Variable:
    out = _elementwise(op_type, x, _operand(x, y))
    out.stop_gradient = True
    return out


class Parameter(Variable):
    """A variable that optimizers train."""

    def __init__(
        self,
        block: Block,
        name: str,
        trainable: bool = True,
        regularizer: WeightDecayRegularizer | None = None,
        learning_rate: float = 1.0,
        gradient_clip: GradientClipBase | None = None,
    ) -> None:
        super().__init__(block, name)
        self.trainable = trainable
        self.regularizer = regularizer
        self.gradient_clip_attr = gradient_clip
        #: Factor on the optimizer's learning rate, under the key "learning_rate".
        self.optimize_attr = {"learning_rate": learning_rate}


class Operator:
    """An operator of a block, as it was when it was added."""

    def __init__(self, block: Block, desc: core.OpDesc, is_backward: bool, namescope: str) -> None:
        self.block = block
        self.desc = desc
        #: Whether a backward pass or an optimizer added it: ``clone(for_test=True)`` leaves it out.
        self.is_backward = is_backward
        #: The name scopes it was added in: "/encoder/layer_0/".
        self.namescope = namescope
        # The Python functions that a program calls live as long as its operators.
        self._functions: list[core.PyFunction] = []
        if desc.type == "py_func":
            ids = (desc.attrs()["forward_callable_id"], desc.attrs()["backward_callable_id"])
            self._functions = [core.PyFunction.find(id) for id in ids if id >= 0]

    @property
    def type(self) -> str:
        return self.desc.type

    @property
    def input_names(self) -> list[str]:
        """Names of the input slots."""
        return self.desc.input_names()

    @property
    def output_names(self) -> list[str]:
        """Names of the output slots."""
        return self.desc.output_names()

    @property
    def input_arg_names(self) -> list[str]:
        """Names of all input variables."""
        return self.desc.input_arg_names()

    @property
    def output_arg_names(self) -> list[str]:
        """Names of all output variables."""
        return self.desc.output_arg_names()

    def input(self, slot: str) -> list[str]:
        """Names of the variables in an input slot."""
        return self.desc.input(slot)

    def output(self, slot: str) -> list[str]:
        """Names of the variables in an output slot."""
        return self.desc.output(slot)

    @property
    def attr_names(self) -> list[str]:
        return list(self.desc.attrs())

    def has_attr(self, name: str) -> bool:
        return name in self.desc.attrs()

    def attr(self, name: str) -> Any:
        """The value of an attribute. NotFound if there is none of that name."""
        attrs = self.desc.attrs()
        if name not in attrs:
            raise errors.NotFound(f"operator '{self.type}' has no attribute '{name}'; it has {', '.join(attrs)}")
        return attrs[name]

    def all_attrs(self) -> dict[str, Any]:
        return self.desc.attrs()

    def _set_attr(self, name: str, value: Any) -> None:
        position = next(i for i, op in enumerate(self.block.ops) if op is self)
        self.block.desc.set_attr(position, name, value)
        self.desc = self.block.desc.ops()[position]

    def to_string(self, throw_on_error: bool = False) -> str:
        """A line about the operator. The argument is Fluid's and makes no difference."""
        return str(self)

    def __repr__(self) -> str:
        return str(self.desc)
