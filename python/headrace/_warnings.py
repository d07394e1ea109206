"""Warnings at the line of the program that has led to them."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]


def warn(message: str, category: type[Warning] = RuntimeWarning) -> None:
    """Warns at the line that has called this package, however many of its functions are in between."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "headrace":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
