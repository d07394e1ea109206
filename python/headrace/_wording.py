"""Words that messages are made of."""

from __future__ import annotations

from collections.abc import Sized


def counted(number: float | Sized, noun: str) -> str:
    """How many there are: "1 level", "2 levels", "0.5 seconds"."""
    number = len(number) if isinstance(number, Sized) else number
    text = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{text} {noun}{'s' * (number != 1)}"
