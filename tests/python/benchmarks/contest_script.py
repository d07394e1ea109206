"""A contest of which not everybody comes to the end; test_contest.py runs it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from harness import contest, processes


def prepare(effort: contest.Effort) -> None:
    (effort.folder / "figure").write_text("4")


def measure(effort: contest.Effort) -> float:
    print("what a library says")
    return float((effort.folder / "figure").read_text())


def crash(effort: contest.Effort) -> Any:
    raise RuntimeError("out of order")


def hang(effort: contest.Effort) -> Any:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (effort.folder.parent / "child").write_text(str(child.pid))
    time.sleep(600)


def end(effort: contest.Effort) -> Any:
    os._exit(7)


def missing(effort: contest.Effort) -> Any:
    import a_library_that_nobody_has  # noqa: F401


def only_once(effort: contest.Effort) -> float:
    for number in itertools.count():
        path = effort.folder / f"round-{number}"
        if not path.exists():
            path.touch()
            break
    if number:
        raise RuntimeError("the second time")
    return 1.0


def delivers(what: Any) -> Any:
    return lambda effort: what


PEER = contest.PEER
ROW = contest.Row(
    "work",
    "Work",
    "Of many kinds.",
    "samples/s",
    (
        contest.Contestant("wrong", PEER, measure, delivers({"samples": 2, "digest": "b"})),
        contest.Contestant("loop", contest.LOOP, measure, delivers({"samples": 2, "digest": "a"})),
        contest.Contestant("ours", contest.OURS, measure, delivers({"samples": 2, "digest": "a"}), packages=("numpy",)),
        contest.Contestant("unknown", PEER, measure, delivers(None), packages=("a-library-that-nobody-has",)),
        contest.Contestant("missing", PEER, measure, missing),
        contest.Contestant("crashing", PEER, measure, crash),
        contest.Contestant("ending", PEER, measure, end),
        contest.Contestant("once", PEER, only_once, delivers({"samples": 2, "digest": "a"})),
        contest.Contestant("limit", contest.LIMIT, measure, None),
        contest.Contestant("hanging", PEER, measure, hang),
    ),
    prepare=prepare,
)

if __name__ == "__main__":
    _, contestant, what, request = sys.argv[2:]
    processes.serve(ROW, contestant, what, request)
