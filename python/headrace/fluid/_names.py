"""Names that programs do not have yet."""

from __future__ import annotations

from headrace.fluid import unique_name
from headrace.fluid._protocols import DeclaringProgram

__all__ = ["free_name"]


def free_name(key: str, *programs: DeclaringProgram, bare: bool = False, suffix: str = "") -> str:
    """The next name of ``key`` that none of ``programs`` has: a program that was loaded, or built within
    another guard of ``unique_name``, has names that the counters do not know of. For a variable that persists,
    ``programs`` include the one that gives it its first value.

    Args:
        bare: ``key`` without a number is the first name.
        suffix: follows the number.
    """
    name = f"{key if bare else unique_name.generate(key)}{suffix}"
    while any(program._has_name(name) for program in programs):
        name = f"{unique_name.generate(key)}{suffix}"
    return name
