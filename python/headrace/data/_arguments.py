"""Checks of a loader's arguments. What is wrong is a TypeError or ValueError that says what was expected."""

from __future__ import annotations

import importlib
import multiprocessing
import numbers
import sys
from typing import Any

_MAX_SECONDS = 10**9


def is_torch_generator(generator: Any) -> bool:
    """Whether it is a generator of torch's; torch is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(generator, torch.Generator)


def import_tqdm() -> Any:
    """The progress bar."""
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from None


def function(name: str, value: Any) -> Any:
    """``value``, which must be callable or None."""
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")
    return value


def integer(name: str, value: Any, low: int, high: int) -> int:
    """``value`` as an int, which must be from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def seconds(name: str, value: Any) -> float:
    """``value`` as a number of seconds that the system can wait."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    number = float(value)
    if not 0 <= number <= _MAX_SECONDS:
        raise ValueError(f"{name} must be from 0 to {_MAX_SECONDS} seconds, got {value!r}")
    return number


def rank_and_world(shard: Any) -> tuple[int, int]:
    """``shard`` as a pair."""
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise TypeError(f"shard must be (rank, world), got {shard!r}")
    world = integer("the world of shard", shard[1], 1, 1 << 20)
    return integer("the rank of shard", shard[0], 0, world - 1), world


def start_context(context: Any) -> Any:
    """What :mod:`multiprocessing` starts processes with: ``context``, or the one of that name."""
    if context is None or isinstance(context, str):
        try:
            return multiprocessing.get_context(context)
        except ValueError:
            raise ValueError(
                f"multiprocessing_context must be one of {multiprocessing.get_all_start_methods()}, got {context!r}"
            ) from None
    if not hasattr(context, "Process"):
        raise TypeError(f"multiprocessing_context must be a start method's name or a context, got {context!r}")
    return context
