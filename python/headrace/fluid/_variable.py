"""Variables of a program, and the operators that their arithmetic and indexing add."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar, Union

import numpy as np

from headrace import errors
from headrace.fluid import core
from headrace.fluid._names import free_name
from headrace.fluid._protocols import DeclaringBlock, ErrorClip
from headrace.fluid._stored_objects import from_attributes, to_attributes
from headrace.fluid.core import GRAD_VAR_SUFFIX, VarType

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

__all__ = ["SlotValue", "Variable", "grad_var_name"]

#: The argument for an operator's slot: one variable or several, by name or as objects.
SlotValue = Union["Variable", str, Sequence[Union["Variable", str]], None]


_INTEGERS = {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_FRACTIONS = ("float32", "float64")
# What arithmetic casts on the right side of which dtype. Not fractions to integers, which would cut them.
_CAST_TO = {
    "float32": {*_FRACTIONS, *_INTEGERS},
    "float64": {*_FRACTIONS, *_INTEGERS},
    "int32": _INTEGERS,
    "int64": _INTEGERS,
}


def grad_var_name(name: str) -> str:
    """Name of the gradient of the variable ``name``."""
    return name + GRAD_VAR_SUFFIX


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _takes_numpy(method: _Method) -> _Method:
    """An operator whose other side may be a scalar of NumPy, which counts as the number that it holds."""

    @functools.wraps(method)
    def of_numbers(self: Variable, other: Any) -> Any:
        return method(self, other.item() if isinstance(other, np.generic) else other)

    return of_numbers  # type: ignore[return-value]


class Variable:
    """A variable of a program: a name with a type, a shape and a dtype. Its value lives in the scope in which the
    program is run.

    ``+ - * / // % ** < <= > >= == !=`` and the unary ``-`` add the operators that compute them to the current block of
    the variable's program; the other side may be a number, including NumPy's scalars. So does indexing:
    ``x[0, 1:-1, ..., ::-1]``. Whether two are the same variable, ``is`` tells; ``==`` with an object that is neither a
    variable nor a number, such as None, is False.
    """

    # Python would ask for x[0], x[1], … without end.
    __iter__ = None

    def __init__(self, block: DeclaringBlock, name: str) -> None:
        self.block = block
        self._name = name
        desc = block.desc.find_var(name)
        if desc is None:
            raise errors.NotFound(f"block {block.idx} and its ancestors declare no variable '{name}'")
        self.desc = desc
        # Of properties that attributes of the description store (see ``_stored_objects``): the given objects.
        self._objects: dict[str, Any] = {}
        self._op: Any = None

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
        """The kind of its value: VarType.LOD_TENSOR, READER, …"""
        return VarType(self.desc.kind)

    @property
    def persistable(self) -> bool:
        """Whether the value lives in the scope that the program is run in, survives the run, and is saved."""
        return self.desc.persistable and "unsaved" not in self.desc.attrs

    @persistable.setter
    def persistable(self, value: bool) -> None:
        self.desc.persistable = value
        self._store("unsaved", {})

    @property
    def _is_fed_as_declared(self) -> bool:
        """Whether it is one of ``fluid.data``: a feed of another shape or dtype is refused."""
        return "need_check_feed" in self.desc.attrs

    @property
    def op(self) -> Any:
        """The operator of its block that writes it last, unless a program has set another; None if none does."""
        return self._op or next((op for op in reversed(self.block.ops) if self.name in op.output_arg_names), None)

    @op.setter
    def op(self, op: Any) -> None:
        self._op = op

    def _keep_unsaved(self) -> None:
        """Has the value survive a run, although it does not count as persistable: no file of parameters has it."""
        self.desc.persistable = True
        self._store("unsaved", {"unsaved": True})

    @property
    def stop_gradient(self) -> bool:
        """Whether gradients stop here."""
        return self.desc.stop_gradient

    @stop_gradient.setter
    def stop_gradient(self, value: bool) -> None:
        self.desc.stop_gradient = value

    @property
    def is_data(self) -> bool:
        """Whether the value comes from outside the program."""
        return bool(self.desc.attrs.get("is_data", False))

    @is_data.setter
    def is_data(self, value: bool) -> None:
        self._store("is_data", {"is_data": True} if value else {})

    @property
    def error_clip(self) -> ErrorClip | None:
        """How an optimizer clips the gradient of the variable, before it passes it on; None: not at all."""
        clip: ErrorClip | None = self._stored("error_clip")
        return clip

    @error_clip.setter
    def error_clip(self, value: ErrorClip | None) -> None:
        self._store("error_clip", to_attributes("error_clip", value), value)

    def _stored(self, key: str) -> Any:
        """The object under ``key``. FailedPrecondition if it has not been stored with the program."""
        if key not in self._objects:
            self._objects[key] = from_attributes(key, self.desc.attrs, f"'{self.name}'")
        return self._objects[key]

    def _store(self, key: str, attributes: Mapping[str, Any], value: Any = None) -> None:
        """Puts attributes of the description, named ``key`` or "``key``.…", in the place of those that are there."""
        others = {
            name: kept for name, kept in self.desc.attrs.items() if name != key and not name.startswith(f"{key}.")
        }
        self.desc.attrs = {**others, **attributes}
        self._objects[key] = value

    def _set_error_clip(self, error_clip: ErrorClip | None) -> None:
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
        one, ``...`` stands for dimensions as they are. Each integer may be a variable, int32 or int64 [1]; if the step
        of a slice is one, the slice needs a start and a stop.
        """
        cuts: list[tuple[int, list[int | Variable]]] = []
        strided: list[tuple[int, list[int | Variable]]] = []
        dropped, reversed_axes = [], []
        for axis, index in _indices(self, item):
            if not isinstance(index, slice):
                end = _END if isinstance(index, int) and index == -1 else index + 1
                cuts.append((axis, [index, end]))
                dropped.append(axis)
                continue
            start, stop, step = _parts(self, index)
            whole = start is None and stop is None
            if isinstance(step, int) and step == 1:
                if not whole:
                    cuts.append((axis, [0 if start is None else start, _END if stop is None else stop]))
            elif isinstance(step, int) and step == -1 and whole:
                reversed_axes.append(axis)
            else:
                first, last = (_END, -_END) if isinstance(step, int) and step < 0 else (0, _END)
                strided.append((axis, [first if start is None else start, last if stop is None else stop, step]))
        out = self
        if reversed_axes:
            out = _append_op("reverse", {"X": out}, {"axis": reversed_axes}, key=f"{out.name}_slice_reverse")
        if strided:
            out = _cut("strided_slice", out, strided, {}, f"{self.name}_slice")
        if cuts:
            out = _cut("slice", out, cuts, {"decrease_axis": dropped}, f"{self.name}_slice")
        return out

    def __neg__(self) -> Variable:
        return _scale(self, -1.0, 0.0)

    # NumPy's scalars and arrays leave operators to the variable.
    __array_ufunc__ = None

    @_takes_numpy
    def __add__(self, other: Operand) -> Variable:
        return _scale(self, 1.0, other) if _fits_scale(other) else _elementwise("elementwise_add", self, other)

    @_takes_numpy
    def __radd__(self, other: float) -> Variable:
        return self + other

    @_takes_numpy
    def __sub__(self, other: Operand) -> Variable:
        return _scale(self, 1.0, -other) if _fits_scale(other) else _elementwise("elementwise_sub", self, other)

    @_takes_numpy
    def __rsub__(self, other: float) -> Variable:
        if not _is_number(other):
            return _elementwise("elementwise_sub", self, other)
        return _scale(self, -1.0, other) if _fits_scale(other) else -self + other

    @_takes_numpy
    def __mul__(self, other: Operand) -> Variable:
        return _scale(self, other, 0.0) if _fits_scale(other) else _elementwise("elementwise_mul", self, other)

    @_takes_numpy
    def __rmul__(self, other: float) -> Variable:
        return self * other

    @_takes_numpy
    def __truediv__(self, other: Operand) -> Variable:
        if not _is_number(other):
            return _elementwise("elementwise_div", self, other)
        if other == 0:
            raise errors.InvalidArgument(f"'{self.name}' cannot be divided by 0")
        if core.dtype_name(self.dtype) in _INTEGERS:
            return _elementwise("elementwise_div", self, _number(self, other))  # the truncated quotient
        return _scale(self, 1.0 / other, 0.0)

    @_takes_numpy
    def __rtruediv__(self, other: float) -> Variable:
        if not _is_number(other):
            return _elementwise("elementwise_div", self, other)
        return _reflected("elementwise_div", other, self)

    @_takes_numpy
    def __floordiv__(self, other: Operand) -> Variable:
        return _elementwise("elementwise_floordiv", self, _operand(self, other))

    @_takes_numpy
    def __mod__(self, other: Operand) -> Variable:
        return _elementwise("elementwise_mod", self, _operand(self, other))

    @_takes_numpy
    def __rfloordiv__(self, other: float) -> Variable:
        return _reflected("elementwise_floordiv", other, self)

    @_takes_numpy
    def __rmod__(self, other: float) -> Variable:
        return _reflected("elementwise_mod", other, self)

    @_takes_numpy
    def __pow__(self, other: Operand) -> Variable:
        return _elementwise("elementwise_pow", self, _operand(self, other))

    @_takes_numpy
    def __rpow__(self, other: float) -> Variable:
        return _reflected("elementwise_pow", other, self)

    @_takes_numpy
    def __lt__(self, other: Operand) -> Variable:
        return _compare("less_than", self, other)

    @_takes_numpy
    def __le__(self, other: Operand) -> Variable:
        return _compare("less_equal", self, other)

    @_takes_numpy
    def __gt__(self, other: Operand) -> Variable:
        return _compare("greater_than", self, other)

    @_takes_numpy
    def __ge__(self, other: Operand) -> Variable:
        return _compare("greater_equal", self, other)

    @_takes_numpy
    def __eq__(self, other: object) -> Any:
        return _compare("equal", self, other) if _is_comparable(other) else NotImplemented

    @_takes_numpy
    def __ne__(self, other: object) -> Any:
        return _compare("not_equal", self, other) if _is_comparable(other) else NotImplemented

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        """True, so that ``if bias:`` asks whether there is a variable. TypeMismatch if it holds bools, as the result of
        a comparison does: those it gets only when the program runs.
        """
        if self.type == VarType.LOD_TENSOR and self.dtype == VarType.BOOL:
            raise errors.TypeMismatch(
                f"variable '{self.name}' has no value while the program is being built, so Python's if, while, and, or "
                f"and not cannot test it: choose with layers.cond, loop with layers.while_loop, combine with "
                f"layers.logical_and, logical_or and logical_not, or fetch it from a run. To test whether there is a "
                f"variable, write 'is not None'; to compare variables themselves, use 'is' or names, not '==' or 'in'"
            )
        return True

    def _refuse_value(self) -> NoReturn:
        raise errors.TypeMismatch(
            f"variable '{self.name}' has no value while the program is being built: fetch it from a run, "
            f"executor.run(fetch_list=[variable])"
        )

    # What asks for the value, each with Python's or NumPy's arguments. Without them, NumPy makes an array of objects.

    def __float__(self) -> float:
        self._refuse_value()

    def __int__(self) -> int:
        self._refuse_value()

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        self._refuse_value()

    def __format__(self, spec: str) -> str:
        if spec:
            self._refuse_value()
        return str(self)

    def numpy(self) -> np.ndarray:
        """Raises TypeMismatch: a run gives the value."""
        self._refuse_value()

    def item(self, *index: int) -> Any:
        """Raises TypeMismatch: a run gives the value."""
        self._refuse_value()


#: The other side of an arithmetic operator.
Operand = Union[Variable, float]
#: The index of a dimension. Ellipsis has no name in Python 3.9.
Index = Any

#: The end of a slice that extends to the end.
_END = 2**31 - 1


def _integer(value: SupportsIndex) -> int:
    """The integer as an attribute holds it: beyond any extent if it is great."""
    return max(-_END, min(operator.index(value), _END))


def _is_integer(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:  # arrays may have the method, and refuse
        return False
    return True


def _check_integer(variable: Variable, index: Any, how: str) -> None:
    """Raises unless ``index`` is an integer, or a variable that holds one; ``how`` says what ``variable`` is."""
    if not isinstance(index, Variable):
        if isinstance(index, bool) or not _is_integer(index):
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
    """Start, stop and step: None, an int or a Variable each; the step is neither None nor 0."""
    parts = [index.start, index.stop, 1 if index.step is None else index.step]
    for part in parts:
        if part is not None:
            _check_integer(variable, part, "sliced with integers")
    if isinstance(index.step, Variable):
        if index.start is None or index.stop is None:
            raise errors.InvalidArgument(
                f"'{variable.name}' is sliced with the variable '{index.step.name}' as step, and only a run knows its "
                "sign, which decides where the slice begins: give start and stop as well"
            )
    elif index.step == 0:
        raise errors.InvalidArgument(f"'{variable.name}' cannot be sliced with step 0")
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


def _is_comparable(value: object) -> TypeGuard[Operand]:
    return isinstance(value, (Variable, int, float))


def _fits_scale(value: Operand) -> TypeGuard[float]:
    """Whether it is a number that the attributes of the operator ``scale``, which are doubles, hold exactly."""
    return _is_number(value) and not (isinstance(value, int) and int(float(value)) != value)


def _append_op(
    op_type: str,
    inputs: Mapping[str, SlotValue],
    attrs: Mapping[str, Any] | None = None,
    dtype: VarType | None = None,
    stop_gradient: bool = False,
    key: str = "tmp",
) -> Variable:
    """Adds an operator to the current block of the program of its first input, a Variable. Returns its output, which
    has that input's dtype unless another is given. ``key``: of its name; those of arithmetic are Fluid's.
    """
    first = next(iter(inputs.values()))
    assert isinstance(first, Variable)
    block = first.block.program.current_block()
    out: Variable = block.create_var(
        name=free_name(key, block.program),
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


def _cut(
    op_type: str, x: Variable, cuts: Sequence[tuple[int, list[int | Variable]]], attrs: dict[str, Any], key: str
) -> Variable:
    """Adds the operator that cuts dimensions, each with its start, its end and, for strided_slice, its stride."""
    inputs: dict[str, SlotValue] = {"Input": x}
    attrs = {"axes": [axis for axis, _ in cuts], **attrs}
    for what, places in zip(("starts", "ends", "strides"), zip(*(parts for _, parts in cuts))):
        attrs[what] = [-1 if isinstance(place, Variable) else place for place in places]
        like = next((place for place in places if isinstance(place, Variable)), None)
        if like is not None:
            inputs[f"{what.capitalize()}TensorList"] = [
                place if isinstance(place, Variable) else _number(like, place) for place in places
            ]
    if len(inputs) > 1:
        attrs["infer_flags"] = [-1 if any(isinstance(part, Variable) for part in parts) else 1 for _, parts in cuts]
    return _append_op(op_type, inputs, attrs, key=key)


def _number(like: Variable, value: float) -> Variable:
    """A single element of the dtype of ``like``."""
    dtype = core.dtype_name(like.dtype)
    if dtype in _INTEGERS and not float(value).is_integer():
        raise errors.TypeMismatch(f"'{like.name}' holds integers ({dtype}): cast it before arithmetic with fractions")
    block = like.block.program.current_block()
    out: Variable = block.create_var(
        name=free_name("tmp", block.program), shape=[1], dtype=like.dtype, stop_gradient=True
    )
    attrs: dict[str, Any] = {"shape": [1], "dtype": int(like.dtype), "value": float(value)}
    if isinstance(value, int):
        attrs["str_value"] = str(value)  # all of its digits
    block.append_op("fill_constant", outputs={"Out": out}, attrs=attrs)
    return out


def _operand(x: Variable, other: Operand) -> Operand:
    """``other``; a number as a variable that goes with ``x``."""
    return _number(x, other) if _is_number(other) else other


def _elementwise(op_type: str, x: Variable, y: Operand) -> Variable:
    y = _operand(x, y)
    if not isinstance(y, Variable):
        raise errors.TypeMismatch(f"arithmetic with '{x.name}' takes a Variable or a number, got {type(y).__name__}")
    types = core.dtype_name(x.dtype), core.dtype_name(y.dtype)
    if types[0] != types[1] and types[1] in _CAST_TO.get(types[0], ()):
        y = y.astype(x.dtype)  # as Fluid does for all
    if len(x.shape) < len(y.shape) and op_type in ("elementwise_add", "elementwise_mul"):
        x, y = y, x  # the larger one comes first; these two commute
    # A batch meets a batch.
    return _append_op(op_type, {"X": x, "Y": y}, {"axis": 0 if y.shape[:1] == (-1,) else -1})


def _reflected(op_type: str, number: Operand, y: Variable) -> Variable:
    """An operator with a number on its left side, which is made as large as the other side."""
    if not _is_number(number):
        return _elementwise(op_type, y, number)  # raises an error with the accepted types
    zeros = _append_op("fill_zeros_like", {"X": y}, stop_gradient=True, key="zeros")
    # By an addition, since an attribute of scale is a double, which does not hold every integer.
    full = _scale(zeros, 1.0, number) if _fits_scale(number) else zeros + number
    full.stop_gradient = True
    return _elementwise(op_type, full, y)


def _compare(op_type: str, x: Variable, y: Operand) -> Variable:
    y = _operand(x, int(y) if isinstance(y, bool) else y)
    if isinstance(y, Variable):
        types = {core.dtype_name(x.dtype), core.dtype_name(y.dtype)}
        if types.intersection(_INTEGERS) and types.intersection(_FRACTIONS):
            x, y = x.astype(VarType.FP64), y.astype(VarType.FP64)  # Fluid rounds the right side as the left one needs
        elif {"int32", "int64"} == types:
            x, y = x.astype(VarType.INT64), y.astype(VarType.INT64)
    out = _elementwise(op_type, x, y)
    out.stop_gradient = True
    return out
