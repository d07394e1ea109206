"""The warning that all processes of a distributed program read the same samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from headrace._process_group import rank_in_world
from headrace._warnings import warn

_warned = False


def warn_of_shared_samples(shard: tuple[int, int], sampler: Any, batch_sampler: Any, shuffles_unseeded: bool) -> None:
    """Warns, once in a process, if it is one of several and nothing in sight shares the samples out among them. To be
    called for datasets with indices: whether an iterable one does so itself cannot be told.
    """
    global _warned
    if _warned or shard[1] > 1:
        return
    _, world = rank_in_world() or (0, 1)
    if world < 2 or any(map(sharing_sampler, (sampler, batch_sampler))):
        return
    _warned = True
    warn(
        f"this process is one of {world}, each of which gets all samples: "
        + _remedy(world, batch_sampler is not None, shuffles_unseeded)
    )


def sharing_sampler(sampler: Any) -> Any:
    """A sampler, or one that it is made of, that gives each process a share, like ``DistributedSampler``; or None."""
    for _ in range(8):  # a chain may be a circle
        if hasattr(sampler, "num_replicas") or hasattr(sampler, "num_processes"):
            return sampler
        sampler = getattr(sampler, "sampler", None)
    return None


def check_sharing(shard: tuple[int, int], *samplers: Any) -> None:
    """Raises ValueError if both ``shard`` and a sampler give this process a share: together, a share of a share."""
    for sampler in filter(None, map(sharing_sampler, samplers)):
        among = getattr(sampler, "num_replicas", None) or getattr(sampler, "num_processes", None)
        if shard[1] > 1 and among != 1:
            if _in_charge() == "Lightning":
                way = (
                    "Lightning puts such a sampler into each loader: leave out shard=, or pass "
                    "use_distributed_sampler=False to the Trainer, or to Fabric's setup_dataloaders"
                )
            else:
                way = "Leave out shard=, or the sampler"
            raise ValueError(
                f"shard={shard} and the sampler ({type(sampler).__name__}) would each take a share of the samples, and "
                f"most samples would never be delivered. {way}."
            )


def _remedy(world: int, has_batch_sampler: bool, shuffles_unseeded: bool) -> str:
    """The remedy, for the library that runs the program."""
    if has_batch_sampler:
        return (
            "let batch_sampler draw from a sampler that divides them among the processes, such as "
            "DistributedSampler(dataset)."
        )
    rest = "drop_last=True"
    if shuffles_unseeded:
        rest += ", seed=0"
    equal = "drop_last is for processes that must take the same number of steps, as under DistributedDataParallel."
    who = _in_charge()
    if who == "Lightning":
        return (
            "leave out use_distributed_sampler=False, or keep it and make the loader with "
            f"shard=(trainer.global_rank, trainer.world_size), {rest}. {equal}"
        )
    if who == "Trainer":
        return (
            "have get_train_dataloader return a loader with shard=(self.accelerator.process_index, "
            f"self.accelerator.num_processes), {rest}; or self.accelerator.prepare(loader), whose batches PyTorch's "
            f"workers make. {equal}"
        )
    if who == "Accelerate":
        return (
            f"make the loader with shard=(accelerator.process_index, accelerator.num_processes), {rest}, and do not "
            f"prepare it; or use accelerator.prepare(loader), whose batches PyTorch's workers make. {equal}"
        )
    return f"pass shard=(rank, {world}), {rest}; or sampler=DistributedSampler(dataset). {equal}"


# Who a module belongs to.
_LIBRARIES = {
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "lightning_fabric": "Lightning",
    "transformers": "Trainer",
    "accelerate": "Accelerate",
}


def _in_charge() -> str:
    """The library that makes or reads the loader, by the calls that led here; "": the program itself."""
    for frame in _frames():
        library = _LIBRARIES.get(str(frame.f_globals.get("__name__")).partition(".")[0])
        if library is not None:
            return library
    state: Any = sys.modules.get("accelerate.state")
    in_use = state is not None and getattr(state.PartialState, "_shared_state", None)
    return "Accelerate" if in_use else ""


def _frames() -> Iterator[Any]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]
