"""Checks of arguments. A wrong one is a TypeError or ValueError that says what was expected."""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import operator
import sys
from typing import Any

import numpy as np

MAX_SEED = (1 << 64) - 1
_MAX_SECONDS = 10**9


def is_torch_generator(generator: Any) -> bool:
    """Whether it is a torch.Generator; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(generator, torch.Generator)


def require_torch(what: str) -> None:
    """Checks that torch is installed, for the argument ``what``, without importing it.

    Raises:
        ImportError: it is not.
    """
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        raise ImportError(f"{what} needs PyTorch: pip install torch")


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


def number(value: Any) -> int | None:
    """``value`` as an int, if it is an integer of Python, NumPy or another library; None if not. A bool is not one."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def flag(name: str, value: Any) -> bool:
    """``value`` as a bool: 0 and 1 count as such, but no text, which might say "no"."""
    if isinstance(value, (bool, np.bool_)) or number(value) in (0, 1):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {value!r:.200}")


def integer(name: str, value: Any, low: int = 0, high: int | None = None) -> int:
    """``value`` as an int, which must be at least ``low``, and at most ``high`` if that is given."""
    checked = number(value)
    if checked is None:
        raise TypeError(f"{name} must be an integer, got {value!r:.200}")
    if checked < low or (high is not None and checked > high):
        expected = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{name} must be {expected}, got {checked}")
    return checked


def positive(name: str, value: Any) -> int:
    """``value`` as a positive int. Whatever is wrong is a ValueError, as with torch's samplers."""
    checked = number(value)
    if checked is None or checked <= 0:
        raise ValueError(f"{name} must be a positive integer, got {value!r:.200}")
    return checked


def seconds(name: str, value: Any) -> float:
    """``value`` as a number of seconds that the system can wait."""
    try:
        if isinstance(value, (bool, str)):
            raise TypeError
        checked = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number of seconds, got {value!r:.200}") from None
    if not 0 <= checked <= _MAX_SECONDS:
        raise ValueError(f"{name} must be from 0 to {_MAX_SECONDS} seconds, got {value!r}")
    return checked


def rank_and_world(shard: Any) -> tuple[int, int]:
    """``shard`` as a pair."""
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise TypeError(f"shard must be (rank, world), got {shard!r:.200}")
    world = integer("the world of shard", shard[1], 1, 1 << 20)
    return integer("the rank of shard", shard[0], 0, world - 1), world


def start_method(context: Any) -> None:
    """Checks that ``context`` is a start method's name, a context of :mod:`multiprocessing`, or None.

    The default start method is not resolved, which would fix it for the whole program.
    """
    if context is None or hasattr(context, "Process"):
        return
    names = multiprocessing.get_all_start_methods()
    if not isinstance(context, str):
        raise TypeError(f"multiprocessing_context must be a start method's name or a context, got {context!r:.200}")
    if context not in names:
        raise ValueError(f"multiprocessing_context must be one of {names}, got {context!r}")


def start_context(context: Any) -> Any:
    """The context of :mod:`multiprocessing` that starts processes, for what :func:`start_method` accepts."""
    return multiprocessing.get_context(context) if context is None or isinstance(context, str) else context
