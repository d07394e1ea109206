"""Names that are given out once.

Not thread-safe: names are given while a program is built, which is one thread's work.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

from headrace.fluid._checks import check_instance

__all__ = ["UniqueNameGenerator", "generate", "guard", "switch"]


class UniqueNameGenerator:
    """Counts per key: ``fc_0``, ``fc_1``, ``conv2d_0``, …"""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._next: defaultdict[str, int] = defaultdict(int)

    def __call__(self, key: str) -> str:
        number = self._next[key]
        self._next[key] += 1
        return f"{self._prefix}{key}_{number}"


#: The present one.
generator = UniqueNameGenerator()


def generate(key: str) -> str:
    """``key`` and a number that it has not had yet."""
    return generator(check_instance(key, str, "unique_name.generate: key"))


generate_with_ignorable_key = generate  # Fluid's, whose keys matter here, too


def switch(new_generator: UniqueNameGenerator | None = None) -> UniqueNameGenerator:
    """Puts a generator in the place of the present one, which is returned."""
    global generator
    old = generator
    generator = UniqueNameGenerator() if new_generator is None else new_generator
    return old


@contextlib.contextmanager
def guard(new_generator: UniqueNameGenerator | str | None = None) -> Iterator[None]:
    """Restarts the numbering of names: two programs built in separate guards use the same names, so they share
    parameters.
    """
    if isinstance(new_generator, str):
        new_generator = UniqueNameGenerator(new_generator)
    old = switch(new_generator)
    try:
        yield
    finally:
        switch(old)
