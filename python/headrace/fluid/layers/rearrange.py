"""Layers that move elements: slices, padding, rows by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace import errors
from headrace.fluid import core
from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import (
    Ints,
    LayerHelper,
    append_layer,
    as_integers,
    check_integer,
    check_number,
    check_shape,
    check_variable,
    check_variables,
    declare_known,
    ints_argument,
)
from headrace.fluid.layers.tensor import zeros

__all__ = [
    "crop",
    "crop_tensor",
    "expand",
    "expand_as",
    "gather",
    "gather_nd",
    "hash",
    "multiplex",
    "one_hot",
    "pad",
    "pad2d",
    "pad_constant_like",
    "reverse",
    "scatter",
    "scatter_nd",
    "scatter_nd_add",
    "shape",
    "shard_index",
    "size",
    "slice",
    "space_to_depth",
    "stack",
    "strided_slice",
    "unique",
    "unique_with_counts",
    "unstack",
]


def slice(input: Variable, axes: Sequence[int], starts: Ints, ends: Ints) -> Variable:
    """The part of ``input`` from ``starts`` to ``ends`` (exclusive) of the dimensions ``axes``. Negative places count
    from the end; those beyond it stand for it. Among the places may be int32 or int64 variables of one element, or such
    a variable holds all of them.
    """
    return _slice("slice", input, axes, {"starts": starts, "ends": ends})


def strided_slice(input: Variable, axes: Sequence[int], starts: Ints, ends: Ints, strides: Ints) -> Variable:
    """As slice, with each ``strides[i]``-th element of dimension ``axes[i]``. Negative strides go backwards: from
    ``starts``, which then is the greater place.
    """
    return _slice("strided_slice", input, axes, {"starts": starts, "ends": ends, "strides": strides})


def _slice(op_type: str, input: Variable, axes: Sequence[int], ints: dict[str, Ints]) -> Variable:
    inputs: dict[str, Any] = {"Input": input}
    attrs: dict[str, Any] = {"axes": check_shape(axes, "axes", op_type)}
    flags = [1] * len(attrs["axes"])
    for what, places in ints.items():
        slot = f"{what.capitalize()}Tensor"
        given, numbers = ints_argument(places, what, op_type, what, slot, f"{slot}List")
        inputs |= given
        attrs |= numbers
        if isinstance(places, Variable):
            flags = [-1] * len(flags)
        elif given:
            flags = [-1 if isinstance(place, Variable) else flag for place, flag in zip(places, flags)]
    if -1 in flags:
        attrs["infer_flags"] = flags
    return append_layer(op_type, inputs, attrs)


def crop(
    x: Variable,
    shape: Variable | Sequence[int] | None = None,
    offsets: Variable | Sequence[int] | None = None,
    name: str | None = None,
) -> Variable:
    """The part of ``x`` of shape ``shape``, the first number of which may be -1, that of ``x``, or of the shape of that
    variable, from ``offsets`` on (by default 0), which an int32 or int64 variable may hold.
    """
    inputs = {"X": x}
    attrs: dict[str, Any] = {}
    if isinstance(offsets, Variable):
        inputs["Offsets"] = offsets
    elif offsets is not None:
        attrs["offsets"] = check_shape(offsets, "offsets", "crop")
    if isinstance(shape, Variable):
        inputs["Y"] = shape
    elif shape is None:
        raise errors.InvalidArgument("layers.crop: a shape is needed")
    else:
        attrs["shape"] = check_shape(shape, "shape", "crop")
    return append_layer("crop", inputs, attrs, name)


def crop_tensor(
    x: Variable, shape: Ints | None = None, offsets: Ints | None = None, name: str | None = None
) -> Variable:
    """The part of ``x`` of shape ``shape`` from ``offsets`` on (by default 0); -1 stands for all that is left. Among
    the numbers may be int32 or int64 variables of one element, or such a variable holds all of them.
    """
    inputs: dict[str, Any] = {"X": x}
    if shape is None:
        raise errors.InvalidArgument("layers.crop_tensor: a shape is needed")
    given, attrs = ints_argument(shape, "shape", "crop_tensor", "shape", "Shape", "ShapeTensor", -1)
    inputs |= given
    if offsets is not None:
        given, numbers = ints_argument(offsets, "offsets", "crop_tensor", "offsets", "Offsets", "OffsetsTensor", 0)
        inputs |= given
        attrs |= numbers
    return append_layer("crop_tensor", inputs, attrs, name)


def reverse(x: Variable, axis: int | Sequence[int]) -> Variable:
    """The elements in the reverse order along the dimensions ``axis``."""
    return append_layer(
        "reverse",
        {"X": x},
        {"axis": [axis] if isinstance(axis, int) else check_shape(axis, "axis", "reverse")},
    )


def expand(x: Variable, expand_times: Ints, name: str | None = None) -> Variable:
    """x, repeated ``expand_times[d]`` times along dimension d. Among the numbers may be int32 or int64 variables of one
    element, or such a variable holds all of them.
    """
    slots = ("expand_times", "ExpandTimes", "expand_times_tensor")
    inputs, attrs = ints_argument(expand_times, "expand_times", "expand", *slots, 1)
    out = append_layer("expand", {"X": x, **inputs}, attrs, name)
    if inputs:
        times = attrs.get("expand_times", [])
        declare_known(out, [-1 if extent < 0 or n < 0 else extent * n for extent, n in zip(x.shape, times)])
    return out


def expand_as(x: Variable, target_tensor: Variable, name: str | None = None) -> Variable:
    """``x``, repeated along each dimension to the shape of ``target_tensor``, whose extents are multiples of its."""
    return append_layer("expand_as", {"X": x, "target_tensor": target_tensor}, name=name)


def pad(x: Variable, paddings: Sequence[int], pad_value: float = 0.0, name: str | None = None) -> Variable:
    """x with more elements around it: for each dimension, how many before and how many after."""
    return append_layer(
        "pad",
        {"X": x},
        {
            "paddings": check_shape(paddings, "paddings", "pad"),
            "pad_value": check_number(pad_value, "pad_value", "pad"),
        },
        name,
    )


def pad2d(
    input: Variable,
    paddings: Variable | Sequence[int] = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = "NCHW",
    name: str | None = None,
) -> Variable:
    """Images with more pixels around them.

    Args:
        paddings: top, bottom, left, right; or an int32 or int64 variable of these four.
        mode: "constant": the new pixels are ``pad_value``; "reflect": as in a mirror; "edge": the nearest pixel.
    """
    attrs: dict[str, Any] = {
        "mode": mode,
        "pad_value": check_number(pad_value, "pad_value", "pad2d"),
        "data_format": data_format,
    }
    if isinstance(paddings, Variable):
        return append_layer("pad2d", {"X": input, "Paddings": paddings}, attrs, name)
    attrs["paddings"] = check_shape(paddings, "paddings", "pad2d")
    return append_layer("pad2d", {"X": input}, attrs, name)


def pad_constant_like(x: Variable, y: Variable, pad_value: float = 0.0, name: str | None = None) -> Variable:
    """y with more elements after it, so that it has the shape of ``x``."""
    return append_layer(
        "pad_constant_like",
        {"Y": y, "X": x},
        {"pad_value": check_number(pad_value, "pad_value", "pad_constant_like")},
        name,
    )


def gather(input: Variable, index: Variable, overwrite: bool = True) -> Variable:
    """The rows of ``input`` with the numbers ``index``, int32 or int64 [n] or [n, 1].

    Args:
        overwrite: Fluid's; the gradient of a row that is taken more than once is the sum in any case.
    """
    return append_layer("gather", {"X": input, "Index": as_integers(check_variable(index, "index", "gather"))})


def gather_nd(input: Variable, index: Variable, name: str | None = None) -> Variable:
    """The parts of ``input`` whose coordinates, in its first k dimensions, are the rows of ``index``, int32 or int64
    [..., k]; [..., dimensions of ``input`` from k on].
    """
    return append_layer("gather_nd", {"X": input, "Index": index}, name=name, exact_name=True)


def scatter_nd_add(ref: Variable, index: Variable, updates: Variable, name: str | None = None) -> Variable:
    """``ref``, with ``updates`` added to the parts that gather_nd would take."""
    inputs = {"X": ref, "Index": index, "Updates": updates}
    return append_layer("scatter_nd_add", inputs, name=name, exact_name=True)


def scatter_nd(index: Variable, updates: Variable, shape: Sequence[int], name: str | None = None) -> Variable:
    """Zeros of shape ``shape``, with ``updates`` added as by scatter_nd_add."""
    return scatter_nd_add(zeros(shape, check_variable(updates, "updates", "scatter_nd").dtype), index, updates, name)


def scatter(
    input: Variable, index: Variable, updates: Variable, name: str | None = None, overwrite: bool = True
) -> Variable:
    """``input`` with the rows ``index`` replaced by those of ``updates``; without ``overwrite``, by their
    sums.
    """
    return append_layer("scatter", {"X": input, "Ids": index, "Updates": updates}, {"overwrite": overwrite}, name)


def multiplex(inputs: Sequence[Variable], index: Variable) -> Variable:
    """Row r is row r of the variable of ``inputs`` whose number is in row r of ``index``, int32 [rows, 1]."""
    items = check_variables(inputs, "inputs", "multiplex")
    if len(items) < 2:
        raise errors.InvalidArgument(f"layers.multiplex: at least 2 inputs are needed to choose from, got {len(items)}")
    helper = LayerHelper("multiplex")
    out = helper.create_variable(items[0].dtype)
    helper.append_op({"X": items, "Ids": check_variable(index, "index", "multiplex")}, {"Out": out})
    return out


def one_hot(input: Variable, depth: int | Variable, allow_out_of_range: bool = False) -> Variable:
    """For each number of ``input``, int64 [..., 1], ``depth`` elements: 1 at that place, else 0; float32.

    Args:
        depth: may be an int32 or int64 variable of one element.
        allow_out_of_range: other numbers give zeros instead of an error.
    """
    return _one_hot("one_hot", input, depth, allow_out_of_range)


def _one_hot(op_type: str, input: Variable, depth: int | Variable, allow_out_of_range: bool) -> Variable:
    helper = LayerHelper(op_type)
    out = helper.create_variable("float32", stop_gradient=True)
    inputs = {"X": as_integers(check_variable(input, "input", "one_hot"))}
    attrs: dict[str, Any] = {"allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        inputs["depth_tensor"] = depth
    else:
        attrs["depth"] = depth
    helper.append_op(inputs, {"Out": out}, attrs)
    return out


def stack(x: Variable | Sequence[Variable], axis: int = 0) -> Variable:
    """Variables of one shape as slices of one that has a dimension more, ``axis``."""
    items = check_variables(x, "x", "stack")
    if not items:
        raise errors.InvalidArgument("layers.stack: there is nothing to stack")
    helper = LayerHelper("stack")
    out = helper.create_variable(items[0].dtype)
    helper.append_op({"X": items}, {"Y": out}, {"axis": axis})
    return out


def unstack(x: Variable, axis: int = 0, num: int | None = None) -> list[Variable]:
    """The slices of ``x`` along ``axis``; ``num`` says how many, if that is not known."""
    x = check_variable(x, "x", "unstack")
    axis = check_integer(axis, "axis", "unstack")
    extent = x.shape[axis] if -len(x.shape) <= axis < len(x.shape) else -1
    count = extent if num is None else check_integer(num, "num", "unstack")
    if count <= 0:
        raise errors.InvalidArgument(f"layers.unstack: dimension {axis} of '{x.name}' has to be known, or num given")
    helper = LayerHelper("unstack")
    out = [helper.create_variable(x.dtype) for _ in range(count)]
    helper.append_op({"X": x}, {"Y": out}, {"axis": axis, "num": count})
    return out


def shape(input: Variable) -> Variable:
    """The dimensions of ``input``, int32 [rank]; of SelectedRows, those of the rows that they have."""
    helper = LayerHelper("shape")
    out = helper.create_variable("int32", stop_gradient=True)
    helper.append_op({"Input": check_variable(input, "input", "shape")}, {"Out": out})
    return out


def size(input: Variable) -> Variable:
    """The number of elements of ``input``, int64 [1]."""
    helper = LayerHelper("size")
    out = helper.create_variable("int64", stop_gradient=True)
    helper.append_op({"Input": check_variable(input, "input", "size")}, {"Out": out})
    return out


def hash(input: Variable, hash_size: int, num_hash: int = 1, name: str | None = None) -> Variable:
    """``num_hash`` numbers below ``hash_size`` for each row of ``input``, int32 or int64 [N, width]; [N, num_hash, 1]
    in all.
    """
    out = append_layer("hash", {"X": input}, {"mod_by": hash_size, "num_hash": num_hash}, name)
    out.stop_gradient = True
    return out


def unique(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable]:
    """Each number of ``x``, [n], once, in the order in which they first occur; and for each element of ``x`` its place
    among them, int32 or int64 as ``dtype`` says.
    """
    out, index = _unique("unique", x, dtype, ("Out", "Index"))
    return out, index


def unique_with_counts(x: Variable, dtype: Any = "int32") -> tuple[Variable, Variable, Variable]:
    """As unique, and how often each number occurs, in ``dtype``."""
    out, index, count = _unique("unique_with_counts", x, dtype, ("Out", "Index", "Count"))
    return out, index, count


def _unique(op_type: str, x: Variable, dtype: Any, slots: Sequence[str]) -> list[Variable]:
    helper = LayerHelper(op_type)
    dtypes = [check_variable(x, "x", op_type).dtype] + [dtype] * (len(slots) - 1)
    out = {slot: helper.create_variable(of, stop_gradient=True) for slot, of in zip(slots, dtypes)}
    helper.append_op({"X": x}, out, {"dtype": int(core.convert_dtype(dtype))})
    return list(out.values())


def shard_index(input: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Variable:
    """Numbers of rows of a table of ``index_num``, int32 or int64 [..., 1], as numbers within shard ``shard_id`` of
    ``nshards`` of the same size, the last of which may be smaller; ``ignore_value`` for those of other shards.
    """
    attrs = {"index_num": index_num, "nshards": nshards, "shard_id": shard_id, "ignore_value": ignore_value}
    out = append_layer("shard_index", {"X": input}, attrs)
    out.stop_gradient = True
    return out


def space_to_depth(x: Variable, blocksize: int, name: str | None = None) -> Variable:
    """Images [N, C, H, W] as smaller ones with more channels, [N, C · blocksize², H / blocksize, W / blocksize], in
    Fluid's order, that of YOLO v2.
    """
    return append_layer("space_to_depth", {"X": x}, {"blocksize": blocksize}, name, exact_name=True)
