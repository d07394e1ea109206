"""Whether other processes of a distributed program iterate over the same samples."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from headrace.data._config import LoaderConfig

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_warned = False


def warn_of_shared_samples(config: LoaderConfig) -> None:
    """Warns, once in a process, if it is one of several and nothing in sight shares the samples out among them.

    Whether iterable datasets do so themselves cannot be told.
    """
    global _warned
    if _warned or config.iterable or config.shard[1] > 1:
        return
    world = _world_size()
    if world < 2 or any(map(_is_distributed, (config.sampler, config.batch_sampler))):
        return
    _warned = True
    warnings.warn(
        f"this process is one of {world}, and each of them is given all samples: pass shard=(rank, {world}) or "
        "sampler=DistributedSampler(dataset) to share them out.",
        RuntimeWarning,
        stacklevel=_level_of_program(),
    )


def _level_of_program() -> int:
    """The caller's ``stacklevel`` of the first frame that is not this package's."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level + 1


def _world_size() -> int:
    """Processes of this program, by torch.distributed or by the variables that launchers set."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if "RANK" in os.environ and size.isdecimal() else 1


def _is_distributed(sampler: Any) -> bool:
    """Whether a sampler, or one that it is made of, gives each process a share."""
    while sampler is not None:
        if hasattr(sampler, "num_replicas") or hasattr(sampler, "num_processes"):
            return True
        sampler = getattr(sampler, "sampler", None)
    return False
