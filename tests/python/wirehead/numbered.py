"""Samples that say their number, and generations of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.writer import Writer


def numbered(start: int, count: int) -> Iterator[tuple[Any, Any]]:
    """Samples that say their number everywhere."""
    for number in range(start, start + count):
        yield np.full((4, 3), number, np.float32), np.full(7, number, np.int16)


def fill(cache: Cache, start: int, writer: Writer | None = None) -> None:
    """A generation of numbered samples."""
    writer = writer or Writer(cache)
    for sample in numbered(start, cache.config.swap_cap):
        assert writer.put(sample) is not None
    writer.close()


def swaps(cache: Cache, start: int, count: int) -> None:
    """Several generations, of which only the last may be left."""
    manager = GenerationManager(cache)
    for generation in range(count):
        fill(cache, start + 10 * generation)
        while manager.step() is None:
            time.sleep(0.01)
    while manager._retire():
        time.sleep(0.01)
    manager.close()
