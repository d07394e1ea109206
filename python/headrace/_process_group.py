"""The rank of this process, and the number of processes, in a distributed program."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["SLURM", "TORCHRUN", "rank_in_world"]

#: The variables in which launchers tell the rank and the number of processes: torchrun and its like; SLURM.
TORCHRUN = ("RANK", "WORLD_SIZE")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS")


def rank_in_world(launchers: Sequence[tuple[str, str]] = (TORCHRUN,)) -> tuple[int, int] | None:
    """Rank and number of processes, by ``torch.distributed`` or the variables that launchers set; None: unknown."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    for names in launchers:
        rank, world = (os.environ.get(name, "") for name in names)
        if rank.isdecimal() and world.isdecimal() and int(rank) < int(world):
            return int(rank), int(world)
    return None
