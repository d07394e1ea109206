"""PyTorch's default collation, with samples written straight to their place in the batch where that gives the same."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from headrace.data._samples.containers import is_namedtuple
from headrace.data._samples.describe import Description, describe, describe_whole
from headrace.data._samples.tensors import is_collated_as_usual, leaves_slot_unchanged, stacks_tensor_samples

# Python's own types that PyTorch stacks or lists as the writer does. Subclasses may mean more.
_VALUES = frozenset((int, float, bool, str, bytes))
# Modules of subclasses of tensors that PyTorch stacks to a plain one.
_PLAIN_WHEN_STACKED = frozenset(
    f"torchvision.tv_tensors._{name}" for name in ("image", "mask", "video", "bounding_boxes", "keypoints")
)


class TorchCollate:
    """``torch.utils.data.default_collate``, for a loader's workers; see :class:`headrace.data.InPlaceCollate`.

    Attributes:
        makes_once: a worker that is the only one makes each sample once, so that it draws what PyTorch's would draw,
            even if a batch turns out not to fit its place.
        takes_any_number: it makes a batch of what ``__getitems__`` gives, be these fewer samples than were asked for.
        stacks_tensors: it makes of samples that are tuples of tensors a list of these, stacked.
    """

    makes_once = True
    takes_any_number = True

    @property
    def stacks_tensors(self) -> bool:
        return stacks_tensor_samples()

    def describe(self, sample: Any) -> Description:
        return describe(sample, as_tensors=True) if _is_stacked(sample) else describe_whole(sample)

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples)


def _is_stacked(value: Any) -> bool:
    """Whether ``default_collate`` and the writer give the same result for such values."""
    kind = type(value)
    if not is_collated_as_usual(value):
        return False
    if kind in _VALUES:
        return True
    if kind is torch.Tensor:
        return leaves_slot_unchanged(value)
    if kind.__module__ in _PLAIN_WHEN_STACKED and isinstance(value, torch.Tensor):
        return leaves_slot_unchanged(value.as_subclass(torch.Tensor))
    if kind is np.ndarray:
        return _is_known(value.dtype)
    if isinstance(value, np.generic):
        # PyTorch takes NumPy's double for Python's float, which it is; others it makes tensors of.
        return not isinstance(value, (str, bytes)) and _is_known(value.dtype) and _takes_scalars(value.dtype)
    if kind is dict:
        return all(map(_is_stacked, value.values()))
    return (kind in (list, tuple) or is_namedtuple(value)) and all(map(_is_stacked, value))


@functools.cache
def _takes_scalars(dtype: np.dtype[Any]) -> bool:
    """Whether PyTorch makes a tensor of the same type of a list of such scalars."""
    try:
        return bool(torch.as_tensor([dtype.type(1)]).numpy().dtype == dtype)
    except (TypeError, ValueError, RuntimeError):
        return False


def _is_known(dtype: np.dtype[Any]) -> bool:
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError):
        return False
    return True
