"""How objects that have no better representation appear in a console or a log."""

from __future__ import annotations

from typing import Any


def short_repr(value: Any) -> str:
    """For instance "<RandomSampler of length 100>": without modules, which may be private, and without an address."""
    name = type(value).__name__
    try:
        return f"<{name} of length {len(value)}>"
    except Exception:  # it has no length, or only the part that it has begun with
        return f"<{name}>"
