"""The statistics of a loader, in numbers and in a sentence."""

from __future__ import annotations

from typing import Any

# Below this share of the time, waiting does not matter.
_LITTLE = 0.05
# Above it, one side is busy.
_MUCH = 0.75


def summarize(counters: dict[str, Any], workers: int, threads: int) -> dict[str, Any]:
    """Counters of the scheduler, with rates and the bottleneck.

    Args:
        counters: of ``_core.BatchScheduler.stats``.
        workers, threads: how many workers there are now, and threads in each.
    """
    elapsed = max(float(counters["elapsed_s"]), 1e-9)
    result = dict(counters)
    result["samples_per_s"] = counters["samples"] / elapsed
    result["bytes_per_s"] = counters["bytes"] / elapsed
    result["workers"] = workers
    result["bottleneck"] = bottleneck(counters, max(1, workers) * threads)
    return result


def bottleneck(counters: dict[str, Any], workers: int) -> str:
    """Who waits for whom, and what would help.

    Args:
        counters: as of :func:`summarize`.
        workers: threads that make samples.
    """
    elapsed = float(counters["elapsed_s"])
    if counters["batches"] == 0 or elapsed <= 0:
        return "No batch has been taken yet."
    wait = counters["consumer_wait_s"] / elapsed
    busy = counters["worker_busy_s"] / (elapsed * workers)
    seen = f"The consumer waited for data {wait:.0%} of the time; the workers were busy {busy:.0%} of it"
    if wait < _LITTLE:
        return f"{seen}: the consumer is the bottleneck, the loader keeps up."
    stages = {
        "the dataset": (counters["dataset_s"], "a faster __getitem__"),
        "collation": (counters["collate_s"], "a faster collate_fn, or the default one"),
        "copying": (counters["copy_s"], "samples that fill their row themselves (`out`), or smaller dtypes"),
    }
    rest = counters["worker_busy_s"] - sum(spent for spent, _ in stages.values())
    stages["the handling of single samples"] = (rest, "a __getitems__ that makes many in one call")
    name, (seconds, remedy) = max(stages.items(), key=lambda stage: stage[1][0])
    if busy < _MUCH:
        return (
            f"{seen}: neither side is the bottleneck. Single slow samples or other load on the CPU may cause the "
            "waits; a larger prefetch_factor helps if single samples are slow."
        )
    share = seconds / max(counters["worker_busy_s"], 1e-9)
    return (
        f"{seen}: the workers are the bottleneck, {name} takes {share:.0%} of their time. "
        f"More workers would help, or {remedy}."
    )
