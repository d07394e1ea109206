"""What a dataset offers and takes, which its methods tell."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Getitem = TypeVar("Getitem", bound=Callable[..., Any])


def is_torch_dataset(dataset: Any) -> bool:
    """Whether a dataset, or one that it wraps, is a torch dataset; does not import torch."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return False
    if isinstance(dataset, torch_data.Dataset):
        return True
    several = getattr(dataset, "datasets", None) or ()
    parts = [getattr(dataset, "dataset", None), *(several.values() if isinstance(several, dict) else several)]
    return any(part is not None and part is not dataset and is_torch_dataset(part) for part in parts)


def wants_rng(dataset: Any) -> bool:
    """Whether a dataset's ``__getitem__`` takes ``rng``, the record's generator; not if it has a value of its own to
    put there.
    """
    if getattr(dataset.__getitem__, "passes_on", False):
        return any(part.wants_rng for part in dataset._parts)
    return _has_parameter(dataset.__getitem__, "rng")


def wants_out(dataset: Any) -> bool:
    """Whether a dataset's ``__getitem__`` takes ``out``, the sample's place in the batch; not if it has a value of its
    own to put there.
    """
    if getattr(dataset.__getitem__, "passes_on", False):
        return any(part.wants_out for part in dataset._parts)
    return _has_parameter(dataset.__getitem__, "out")


def passes_on(getitem: Getitem) -> Getitem:
    """Marks the ``__getitem__`` of a :class:`ComposedDataset` that passes ``rng`` and ``out`` on to its parts.

    If a subclass overrides it, the new one has no mark, and its own parameters count.
    """
    getitem.passes_on = True  # type: ignore[attr-defined]
    return getitem


def tell_epoch(datasets: Iterable[Any], epoch: int) -> None:
    """Calls ``set_epoch`` of those datasets that have it."""
    for dataset in datasets:
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)


def _has_parameter(method: Callable[..., Any], name: str) -> bool:
    if isinstance(method, (types.BuiltinMethodType, types.MethodWrapperType)):
        # inspect would compile this text, and leave cycles for the garbage collector.
        return name in re.findall(r"\w+", getattr(method, "__text_signature__", None) or "")
    try:
        parameter = inspect.signature(method).parameters.get(name)
    except (TypeError, ValueError):  # a method without a signature, written in C
        return False
    # A parameter of that name with another default means something else to the dataset.
    return parameter is not None and (parameter.default is parameter.empty or parameter.default is None)
