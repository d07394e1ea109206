"""The timeline that a loader writes."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from loader_datasets import Ints

from headrace import errors
from headrace.data import DataLoader
from headrace.data._workers.stalls import TimeLimit


class Gathering(Ints):
    """Once ``gate`` is set, as many threads make the first samples at the same time."""

    def __init__(self, length: int, threads: int) -> None:
        super().__init__(length)
        self.gate = multiprocessing.get_context("fork").Event()
        self.threads = threads
        self.barrier = multiprocessing.get_context("fork").Barrier(threads)

    def __getitem__(self, index: int) -> Any:
        if index < self.threads:
            self.gate.wait()
            self.barrier.wait()
        return index


def timeline(loader: DataLoader, path: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The events, by process and thread."""
    loader.write_trace(path)
    events = json.loads(path.read_text())["traceEvents"]
    names: dict[Any, str] = {}
    for event in events:
        if event["ph"] == "M":
            key = event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])
            names[key] = event["args"]["name"]
    tracks: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        if event["ph"] != "M":
            tracks[names[event["pid"]]][names[event["pid"], event["tid"]]].append(event)
    return tracks


@pytest.mark.parametrize("arguments", [{}, {"threads_per_worker": 2}, {"workers": "thread"}], ids=str)
def test_workers_slots_and_consumer_have_tracks(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Gathering(40, 2 * arguments.get("threads_per_worker", 1))
    # Called when a batch has taken half of the timeout: sample 0 is made only after the consumer has waited for it.
    monkeypatch.setattr(TimeLimit, "note", lambda limit: dataset.gate.set())
    begin = time.monotonic()
    loader = DataLoader(dataset, 4, num_workers=2, trace=True, persistent_workers=False, timeout=0.2, **arguments)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator)
    tracks = timeline(loader, tmp_path / "trace.json")
    end = time.monotonic()
    assert set(tracks) == {"consumer", "workers", "slots"}
    assert len(tracks["workers"]) == 2 * arguments.get("threads_per_worker", 1)
    rows = sorted(
        (event["args"]["batch"], row)
        for track in tracks["workers"].values()
        for event in track
        if event["args"]["epoch"] == 0
        for row in range(int(event["args"]["rows"].split()[0]), int(event["args"]["rows"].split()[2]) + 1)
    )
    assert rows == [(batch, row) for batch in range(10) for row in range(4)]
    taken = [event["name"] for event in tracks["consumer"]["iteration"] if event["ph"] == "i"]
    assert taken == [f"takes batch {batch}" for batch in range(10)]
    assert any(event["name"] == "waits for data" for event in tracks["consumer"]["iteration"])
    for kinds in tracks.values():
        for track in kinds.values():
            spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in track if event["ph"] == "X")
            assert all(begin * 1e6 <= first <= last <= end * 1e6 for first, last in spans)
            assert all(one[1] <= other[0] + 1e-3 for one, other in zip(spans, spans[1:])), "one thing at a time"
    states = {event["name"].split(" ", 2)[2] for track in tracks["slots"].values() for event in track}
    assert {"in progress", "held by the consumer"} <= states


def test_without_a_trace_there_is_nothing_to_write(tmp_path: Path) -> None:
    loader = DataLoader(Ints(4))
    list(loader)
    with pytest.raises(errors.FailedPrecondition, match="trace=True"):
        loader.write_trace(tmp_path / "trace.json")
    with pytest.raises(errors.FailedPrecondition, match="iterated"):
        DataLoader(Ints(4), trace=True).write_trace(tmp_path / "trace.json")
