"""Converts between NumPy arrays and torch tensors. Torch is imported only where there are tensors.

The form of an array says what it represents: None, itself; "tensor", a torch tensor; any other string, a torch tensor
of an element type that NumPy lacks, such as "bfloat16", whose bits the array holds as unsigned integers.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

Array = np.ndarray[Any, Any]
Form = Optional[str]

# Element types that NumPy supports only through ml_dtypes, and the unsigned integers of the same size.
EXTENSION_TYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e4m3fnuz": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
    "float8_e5m2fnuz": np.dtype(np.uint8),
    "float8_e8m0fnu": np.dtype(np.uint8),
    "complex32": np.dtype(np.uint32),
}
_SIGNED = {1: "int8", 2: "int16", 4: "int32"}  # available in every version of torch


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor. Never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_plain_tensor(value: Any) -> bool:
    """Whether a tensor is nothing but its elements, and NumPy can view them once they are on the CPU: a subclass may
    carry more, and a tensor on "meta" has none.
    """
    torch = sys.modules["torch"]
    if type(value) is not torch.Tensor or value.is_meta:
        return False
    return value.layout is torch.strided and not value.is_nested and not value.is_quantized


def leaves_slot_unchanged(tensor: Any) -> bool:
    """Whether a tensor survives being written to shared memory and read back unchanged."""
    return is_plain_tensor(tensor) and tensor.device.type == "cpu" and is_its_memory(tensor)


def is_its_memory(tensor: Any) -> bool:
    """Whether a plain tensor's elements are the ones in its memory, rather than their conjugates or negatives, and that
    is all there is to know of it: it needs no gradient.
    """
    return not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def array_of_tensor(tensor: Any) -> tuple[Array, str]:
    """Returns an array that shares the tensor's memory, and its form.

    Raises:
        TypeError: the tensor is not on the CPU, or is sparse, nested or quantized.
    """
    if tensor.device.type != "cpu":
        raise TypeError(f"samples must be on the CPU, but this tensor is on {tensor.device}: use tensor.cpu()")
    if str(tensor.layout) != "torch.strided" or tensor.is_nested or tensor.is_quantized:
        raise TypeError("sparse, nested and quantized tensors need a collate_fn: they cannot be stacked")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).partition(".")[2]
    if name in EXTENSION_TYPES:
        return _bits_of(tensor, EXTENSION_TYPES[name]), name
    if tensor._is_zerotensor():  # zeros that have no memory
        tensor = tensor.clone()
    return tensor.numpy(), "tensor"


def _bits_of(tensor: Any, dtype: np.dtype[Any]) -> Array:
    torch = sys.modules["torch"]
    array: Array = tensor.view(getattr(torch, _SIGNED[dtype.itemsize])).numpy().view(dtype)
    return array


def converters(tensor: Any, form: Form) -> tuple[Callable[[Any], Any], Callable[[Array], Any]] | None:
    """Returns two functions for the sample writer: from tensors like this one, of that form, to arrays, and back. The
    first returns None for a tensor of another form.

    Returns None where the tensor's own ``numpy()`` will do.
    """
    if form is None or (form == "tensor" and is_its_memory(tensor)):
        return None
    torch_dtype, array_dtype = tensor.dtype, array_of_tensor(tensor)[0].dtype

    def bits(other: Any) -> Array | None:
        return array_of_tensor(other)[0] if other.dtype == torch_dtype else None

    return bits, to_torch(array_dtype, form)


def torch_has(dtype: np.dtype[Any]) -> bool:
    """Whether there are tensors of that dtype. Needs torch."""
    try:
        sys.modules["torch"].from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True


def to_torch(dtype: np.dtype[Any], form: Form) -> Callable[[Array], Any]:
    """Returns a function that makes tensors over the memory of arrays, or returns these if torch lacks the dtype."""
    return _to_tensor(importlib.import_module("torch"), dtype, form)


@functools.lru_cache(maxsize=256)
def _to_tensor(torch: Any, dtype: np.dtype[Any], form: Form) -> Callable[[Array], Any]:
    name = dtype.name if form is None or form == "tensor" else form
    if name in EXTENSION_TYPES:
        torch_dtype = getattr(torch, name, None)
        if torch_dtype is None:
            return lambda array: array
        signed = np.dtype(_SIGNED[EXTENSION_TYPES[name].itemsize])
        return lambda array: torch.from_numpy(array.view(signed)).view(torch_dtype)
    if not torch_has(dtype):
        return lambda array: array
    from_numpy: Callable[[Array], Any] = torch.from_numpy
    return from_numpy


def with_torch_strides(array: Array) -> Array:
    """The array, or a copy of one whose strides no tensor has: they are negative, or end between two elements."""
    size = array.itemsize or 1
    return array.copy() if any(stride < 0 or stride % size for stride in array.strides) else array


def to_numpy(form: Form) -> Callable[[Array], Array] | None:
    """Returns a function that gives arrays of this form the element type that they represent; None if they have it.

    Raises:
        TypeError: NumPy lacks that type.
    """
    if form is None or form == "tensor":
        return None
    try:
        dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), form))
    except (ImportError, AttributeError):
        raise TypeError(
            f'NumPy supports {form} only with the package ml_dtypes: install it, or pass to="torch" to get tensors'
        ) from None
    return lambda array: array.view(dtype)
