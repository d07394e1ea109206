"""PyTorch's default collation: which samples the writer stacks as that would. All of it needs torch, and none of it
imports torch.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from headrace.data._samples.containers import is_namedtuple
from headrace.data._samples.describe import Description, describe, describe_whole
from headrace.data._samples.tensors import is_tensor, leaves_slot_unchanged, torch_has

# Python's own types that PyTorch stacks or lists as the writer does. Subclasses may mean more.
_VALUES = frozenset((int, float, bool, str, bytes))
# Modules of subclasses of tensors that PyTorch stacks to a plain one.
_PLAIN_WHEN_STACKED = frozenset(
    f"torchvision.tv_tensors._{name}" for name in ("image", "mask", "video", "bounding_boxes", "keypoints")
)


def describe_as_torch_collates(sample: Any) -> Description:
    """Describes the batch that PyTorch's default collation makes; a sample that the writer would stack in another way
    is left to the collate function.
    """
    return describe(sample, as_tensors=True) if _is_stacked(sample) else describe_whole(sample)


def stacks_tensor_samples() -> bool:
    """Whether PyTorch's default collation makes of samples that are tuples of tensors a list of these, stacked, in
    spite of what the program may have put into its ``default_collate_fn_map``.
    """
    return _is_collated_as_usual(()) and _is_collated_as_usual(sys.modules["torch"].empty(0))


def _is_collated_as_usual(value: Any) -> bool:
    """Whether PyTorch's default collation treats such a value as PyTorch does, rather than by a function that the
    program has put into its ``default_collate_fn_map``.
    """
    functions: Any = sys.modules["torch.utils.data"]._utils.collate.default_collate_fn_map
    function = functions.get(type(value))
    if function is None:
        function = next((each for kind, each in functions.items() if isinstance(value, kind)), None)
    return function is None or is_pytorchs_collation(function)


def is_pytorchs_collation(function: Any) -> bool:
    """Whether PyTorch has put a function into its ``default_collate_fn_map``, rather than the program."""
    return getattr(function, "__module__", None) == "torch.utils.data._utils.collate"


def _is_stacked(value: Any) -> bool:
    """Whether the default collation and the writer give the same result for such values."""
    kind = type(value)
    if not _is_collated_as_usual(value):
        return False
    if kind in _VALUES:
        return True
    if is_tensor(value):
        # Stacked to their own type if the program has said so, with set_return_type.
        plain = value.unsqueeze(0) if kind.__module__ in _PLAIN_WHEN_STACKED else value
        return leaves_slot_unchanged(plain)
    if kind is np.ndarray:
        return torch_has(value.dtype)
    if isinstance(value, np.generic):
        # PyTorch takes NumPy's double for Python's float, which it is; others it makes tensors of.
        return not isinstance(value, (str, bytes)) and torch_has(value.dtype) and _takes_scalars(value.dtype)
    if kind is dict:
        return all(map(_is_stacked, value.values()))
    return (kind in (list, tuple) or is_namedtuple(value)) and all(map(_is_stacked, value))


@functools.cache
def _takes_scalars(dtype: np.dtype[Any]) -> bool:
    """Whether PyTorch makes a tensor of the same type of a list of such scalars."""
    try:
        return bool(sys.modules["torch"].as_tensor([dtype.type(1)]).numpy().dtype == dtype)
    except (TypeError, ValueError, RuntimeError):
        return False
