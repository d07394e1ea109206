"""A generator that gets a number of its own, to choose what it generates from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

SUBJECTS = ["subject-a", "subject-b", "subject-c"]  # label maps to start from, say


def create_generator(index: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Volumes (uint8, 32 x 32 x 32), each with the number of what it was made from (int64)."""
    rng = np.random.default_rng(seed)
    subject = index % len(SUBJECTS)
    print(f"generator {index} uses {SUBJECTS[subject]}", flush=True)
    while True:
        yield rng.integers(0, 256, (32, 32, 32), dtype=np.uint8), subject
