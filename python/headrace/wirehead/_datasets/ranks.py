"""The rank of this process among those that train together."""

from __future__ import annotations

from typing import Any

from headrace._process_group import SLURM, TORCHRUN, rank_in_world
from headrace._warnings import warn

_warned = False


def warn_of_same_samples(remedy: str) -> None:
    """Warns, once per process, if it is one of several that train together and all get the same samples.

    Args:
        remedy: what to write instead.
    """
    global _warned
    # A task of SLURM's need not train together with the others.
    found = None if _warned else rank_in_world()
    if found is not None and found[1] > 1:
        _warned = True
        warn(
            f"this process is one of {found[1]}, each of which reads all samples of a generation: pass {remedy} to "
            "divide them"
        )


def checked_shard(shard: Any) -> tuple[int, int]:
    """Rank and number of processes of a ``shard`` argument: a pair, or "environment".

    Raises:
        TypeError, ValueError: it is neither, or the environment does not define them.
    """
    if isinstance(shard, str):
        if shard != "environment":
            raise ValueError(f'shard must be (rank, world), "environment" or None, got {shard!r}')
        found = rank_in_world((TORCHRUN, SLURM))
        if found is None:
            raise ValueError(
                'shard="environment": neither torch.distributed nor the variables RANK and WORLD_SIZE (torchrun) or '
                "SLURM_PROCID and SLURM_NTASKS (SLURM) say which process this is: pass shard=(rank, world)"
            )
        return found
    if not isinstance(shard, (tuple, list)) or len(shard) != 2 or not all(type(number) is int for number in shard):
        raise TypeError(f"shard must be (rank, world), two whole numbers, got {shard!r}")
    rank, world = shard
    if not 0 <= rank < world:
        raise ValueError(f"shard must be (rank, world) with 0 <= rank < world, got {(rank, world)}")
    return rank, world
