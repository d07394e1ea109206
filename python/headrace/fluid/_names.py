"""Names that programs do not have yet."""

from __future__ import annotations

from headrace.fluid import unique_name
from headrace.fluid._protocols import DeclaringProgram

__all__ = ["free_name"]


def free_name(key: str, *programs: DeclaringProgram, bare: bool = False, suffix: str = "") -> str:
    """The next name of ``key`` that none of ``programs`` has: a program that was loaded, or built within
    another guard of ``unique_name``, has names that the counters do not know of. For variables to which the startup
    program gives a first value, see ``layer_helper.initialized_name``.

    Args:
        bare: ``key`` without a number is the first name.
        suffix: follows the number.
    """
    name = f"{key if bare else unique_name.generate(key)}{suffix}"
    while any(program._has_name(name) for program in programs):
        name = f"{unique_name.generate(key)}{suffix}"
    return name
