"""Writes a loader's trace as a timeline, for Perfetto (https://ui.perfetto.dev) or chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

# As ``_core.BatchScheduler.trace`` gives it: kind, worker, begin, end, epoch, batch, slot, begin row, end row, stream.
Event = tuple[str, int, int, int, int, int, int, int, int, int]


_MOMENTS = {"opened": "in progress", "ready": "ready", "taken": "held by the consumer"}
_WORK = {"rows": "samples", "items": "samples", "whole": "batch", "collate": "collation", "stream": "stream"}


def trace_events(events: Iterable[Event], threads: int, first_pid: int = 1) -> list[dict[str, Any]]:
    """Converts events to the Trace Event Format, with tracks for the consumer, each worker and each slot.

    Args:
        events: ordered by begin; times in nanoseconds, of the monotonic clock.
        threads: number of threads per worker process.
        first_pid: the first of the three numbers of processes under which the tracks are shown.
    """
    consumer, workers, slots = range(first_pid, first_pid + 3)
    result: list[dict[str, Any]] = [
        _name("process_name", pid, 0, name)
        for pid, name in ((consumer, "consumer"), (workers, "workers"), (slots, "slots"))
    ]
    result.append(_name("thread_name", consumer, 0, "iteration"))
    named: set[tuple[int, int]] = set()
    # Per slot: when its current state began, the name of that state, and the batch.
    states: dict[int, tuple[int, str, dict[str, int]]] = {}
    for kind, producer, begin, end, epoch, batch, slot, begin_row, end_row, stream in events:
        about = {"epoch": epoch, "batch": batch, "slot": slot}
        if producer >= 0:
            worker, thread = divmod(producer, threads)
            label = f"worker {worker}" if threads == 1 else f"worker {worker}, thread {thread}"
            if (workers, producer) not in named:
                named.add((workers, producer))
                result.append(_name("thread_name", workers, producer, label))
            if kind == "stream":
                about["stream"] = stream
            rows = {"rows": f"{begin_row} to {end_row - 1}"} if end_row > begin_row else {}
            name = f"{_WORK.get(kind, kind)} of batch {batch}"
            result.append(_span(name, workers, producer, begin, end, {**about, **rows}))
        elif kind == "wait":
            result.append(_span("waits for data", consumer, 0, begin, end, {}))
        else:
            if (slots, slot) not in named:
                named.add((slots, slot))
                result.append(_name("thread_name", slots, slot, f"slot {slot}"))
            since = states.pop(slot, None)
            if since is not None:
                result.append(_span(since[1], slots, slot, since[0], begin, since[2]))
            if kind in _MOMENTS:
                states[slot] = (begin, f"batch {batch} {_MOMENTS[kind]}", about)
            if kind == "taken":
                result.append(
                    {
                        "name": f"takes batch {batch}",
                        "ph": "i",
                        "s": "t",
                        "pid": consumer,
                        "tid": 0,
                        "ts": begin / 1000,
                        "args": about,
                    }
                )
    return result


def write_timeline(path: str | os.PathLike[str], events: Iterable[Event], threads: int) -> None:
    """Writes :func:`trace_events` to a JSON file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": trace_events(events, threads), "displayTimeUnit": "ms"}, file)


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _span(name: str, pid: int, tid: int, begin: int, end: int, about: dict[str, Any]) -> dict[str, Any]:
    # The format requires microseconds.
    span = {"name": name, "ph": "X", "pid": pid, "tid": tid, "ts": begin / 1000, "dur": (end - begin) / 1000}
    return {**span, "args": about}
