"""Torch tensors and the element types that NumPy lacks, without importing torch unless there are tensors.

The form of an array says what it stands for: None, an array as it is; "tensor", a torch tensor; any other text, a torch
tensor whose element type NumPy does not know ("bfloat16"), with its elements' bits as unsigned integers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

Array = np.ndarray[Any, Any]
Form = Optional[str]

# Element types that NumPy knows only through ml_dtypes, and the integers of their size.
EXTENSION_TYPES: dict[str, np.dtype[Any]] = {
    "bfloat16": np.dtype(np.uint16),
    "float8_e4m3fn": np.dtype(np.uint8),
    "float8_e4m3fnuz": np.dtype(np.uint8),
    "float8_e5m2": np.dtype(np.uint8),
    "float8_e5m2fnuz": np.dtype(np.uint8),
    "float8_e8m0fnu": np.dtype(np.uint8),
}
_SIGNED = {1: "int8", 2: "int16"}  # every torch has these


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a torch tensor; torch is never imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_plain_tensor(value: Any) -> bool:
    """Whether a tensor is its elements and no more: no subclass, which may say more, nor one that NumPy cannot view."""
    if type(value) is not sys.modules["torch"].Tensor:
        return False
    return str(value.layout) == "torch.strided" and not value.is_nested and not value.is_quantized


def leaves_slot_unchanged(tensor: Any) -> bool:
    """Whether a tensor is the same after it was written to shared memory and read back."""
    return is_plain_tensor(tensor) and tensor.device.type == "cpu" and not tensor.requires_grad


def array_of_tensor(tensor: Any) -> tuple[Array, str]:
    """The elements of a tensor as an array over the same memory, and its form.

    Raises:
        TypeError: a tensor that is not a plain one on the CPU.
    """
    if tensor.device.type != "cpu":
        raise TypeError(f"samples are made on the CPU, and this tensor is on {tensor.device}: use tensor.cpu()")
    if str(tensor.layout) != "torch.strided" or tensor.is_nested or tensor.is_quantized:
        raise TypeError("sparse, nested and quantized tensors need a collate_fn: they cannot be stacked")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    name = str(tensor.dtype).partition(".")[2]
    if name in EXTENSION_TYPES:
        return _bits_of(tensor, EXTENSION_TYPES[name]), name
    return tensor.numpy(), "tensor"


def _bits_of(tensor: Any, dtype: np.dtype[Any]) -> Array:
    torch = sys.modules["torch"]
    array: Array = tensor.view(getattr(torch, _SIGNED[dtype.itemsize])).numpy().view(dtype)
    return array


def converters(form: Form) -> tuple[Callable[[Any], Any], Callable[[Array], Any]] | None:
    """How the sample writer goes from tensors of this form to arrays (None for a tensor of another form) and back.

    None where the tensor's own ``numpy()`` is the way.
    """
    if form is None or form == "tensor":
        return None
    torch_dtype = getattr(sys.modules["torch"], form)

    def bits(tensor: Any) -> Array | None:
        return _bits_of(tensor.detach(), EXTENSION_TYPES[form]) if tensor.dtype == torch_dtype else None

    return bits, to_torch(EXTENSION_TYPES[form], form)


def to_torch(dtype: np.dtype[Any], form: Form) -> Callable[[Array], Any]:
    """What makes tensors over the memory of arrays; torch has no type for some dtypes, which stay arrays."""
    torch = importlib.import_module("torch")
    name = dtype.name if form is None or form == "tensor" else form
    if name in EXTENSION_TYPES:
        torch_dtype = getattr(torch, name, None)
        if torch_dtype is None:
            return lambda array: array
        signed = np.dtype(_SIGNED[EXTENSION_TYPES[name].itemsize])
        return lambda array: torch.from_numpy(array.view(signed)).view(torch_dtype)
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return lambda array: array
    from_numpy: Callable[[Array], Any] = torch.from_numpy
    return from_numpy


def to_numpy(form: Form) -> Callable[[Array], Array] | None:
    """What makes arrays of their own type of arrays of a form; None: they are that already.

    Raises:
        TypeError: NumPy does not know the type.
    """
    if form is None or form == "tensor":
        return None
    try:
        dtype = np.dtype(getattr(importlib.import_module("ml_dtypes"), form))
    except (ImportError, AttributeError):
        raise TypeError(
            f'NumPy knows {form} only with the package ml_dtypes: install it, or use to="torch" for tensors'
        ) from None
    return lambda array: array.view(dtype)
