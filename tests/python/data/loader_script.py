"""A program with a loader that ends in the way its arguments say; see test_nothing_is_left.py."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

from loader_datasets import Ints, Slow, Stuck, Vectors

from headrace.data import DataLoader


def main() -> None:
    # As at a terminal: in a shell's background job, which may run the tests, Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    context, end = sys.argv[1:]
    dataset: Ints = Vectors(1000, (100, 100))
    if end.startswith("stuck"):
        dataset = Stuck(1000, in_c="in C" in end)
    elif "waiting" in end:
        dataset = Slow(1000, 1000.0, *range(20, 1000))
    num_workers = 0 if context == "none" else 2
    loader = DataLoader(
        dataset, batch_size=5, num_workers=num_workers, multiprocessing_context=None if context == "none" else context
    )
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    if end == "normal":
        for _ in iterator:
            pass
    print("ready", flush=True)
    if end == "exception":
        raise ValueError("on purpose")
    if end in ("break", "stuck", "stuck in C"):
        return  # while the iterator is alive and a sample is being made
    if end == "last global":  # it ends after the modules that were imported after this one
        sys.modules["contextlib"] = sys.modules.pop("contextlib")
        sys.__dict__["kept"] = sys.modules[__name__], contextlib
        globals()["kept"] = iterator
        return
    if end == "globals":
        globals()["kept"] = (loader, iterator, next(iterator))
        return
    if end == "os._exit":
        os._exit(5)
    if end == "sys.exit in the loop":
        for _ in iterator:
            sys.exit(6)
    if "waiting" in end or end.startswith("stuck"):
        next(iterator)
    time.sleep(0 if end == "normal" else 100)


if __name__ == "__main__":
    main()
