"""Seeds of samplers: checked, taken from generators, or fresh."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from typing import Any

import numpy as np

from headrace.data._argument_checks import MAX_SEED, integer, number


def import_torch_data() -> Any:
    return importlib.import_module("torch.utils.data")


def seed_of(generator: Any) -> int | None:
    """The seed that a ``generator`` argument stands for; None: a fresh one is to be drawn."""
    if generator is None:
        return None
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(0, 1 << 63))
    return checked_seed(generator)


def checked_seed(seed: Any) -> int:
    checked = number(seed)
    if checked is None:
        raise TypeError(f"generator must be a seed, a NumPy generator or a torch generator, got {type(seed).__name__}")
    return integer("a seed", checked, 0, MAX_SEED)


def fresh_seed() -> int:
    """A fresh seed; in a program that has imported torch it is drawn from torch, so that ``torch.manual_seed``
    determines it.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.empty((), dtype=torch.int64).random_().item())
    return int.from_bytes(os.urandom(8), "little") >> 1


def pass_seed(seed: int, number: int) -> int:
    """The seed of an epoch's ``number``-th permutation; the first has the sampler's own."""
    if number == 0:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed},{number}".encode(), digest_size=8).digest(), "little")
