"""What a loader knows only as long as somebody else refers to it."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from loader_datasets import Ints

from headrace.data import DataLoader


def test_the_end_of_an_iteration_runs_no_callback_that_would_swallow_an_interrupt() -> None:
    """Those of weakref.WeakSet and the like are written in Python. Threads and processes have theirs from Python."""
    loader = DataLoader(Ints(8), batch_size=2)
    batches = iter(loader)
    next(batches)
    callbacks = {weakref.WeakSet.__module__, weakref.__name__}
    met: list[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_globals.get("__name__") in callbacks and "remove" in frame.f_code.co_name:
            met.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        del batches
        loader.shutdown()
        del loader
    finally:
        sys.setprofile(None)
    assert met == []
