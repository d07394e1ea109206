"""A program with a loader over a PyTorch dataset that ends as its arguments say; see test_torch_acceptance.py."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

from torch_datasets import Items, Sleepy, number

from headrace.data import DataLoader


def main() -> None:
    context, end = sys.argv[1:]
    length = 60 if end in ("normal", "workers killed") else 10_000
    dataset = Items(length, number) if end != "loader killed" else Sleepy(length, 1000, *range(20, length))
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=context)
    iterator = iter(loader)
    seen = next(iterator).tolist()
    workers = [process.pid for process in multiprocessing.active_children()]
    print(*workers, flush=True)
    if end == "workers killed":
        for worker in workers:
            os.kill(worker or 0, signal.SIGKILL)
    if end == "iterator kept":
        globals()["kept"] = iterator
        return
    if end == "iterator dropped":
        del iterator
        return
    for batch in iterator:
        seen += batch.tolist()
    print(*(value // 3 for value in seen))


if __name__ == "__main__":
    main()
