#!/usr/bin/env python3
"""Texts of different lengths that a Python collate function pads: headrace beside a plain loop, and torch's loader.

A sample is an array of 4 to 400 numbers (50 on average) and a label, a batch 64 samples in random order. All run in
turns in one process; figures are medians over the rounds. "CPU" is processor time per batch, which other programs on
the machine change little: if there are as many processors as workers, a batch takes no less than main and workers
together, divided by that number, and "x loop by CPU" compares this with the loop's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from loader_benchmark import Contestant, installed
from texts import Texts, pad

import headrace as hr

BATCH_SIZE = 64


class Case:
    """What :class:`Contestant` needs to know of an epoch."""

    def __init__(self, batches: int) -> None:
        self.batches = batches


def loop(dataset: Texts) -> Iterator[Any]:
    order = np.random.default_rng().permutation(len(dataset))
    for begin in range(0, len(dataset) - BATCH_SIZE + 1, BATCH_SIZE):
        yield pad([dataset[index] for index in order[begin : begin + BATCH_SIZE].tolist()])


def contestants(dataset: Texts, workers: list[int]) -> list[tuple[Contestant, int]]:
    """Each with its number of workers."""
    arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "collate_fn": pad, "drop_last": True}
    field = [(Contestant("loop", lambda: loop(dataset)), 0)]
    for number in workers:
        # Workers that live as long as the loader, of both: the texts are too many objects for a snapshot.
        arguments["persistent_workers"] = number > 0
        loader = hr.DataLoader(dataset, num_workers=number, seed=1, **arguments)
        field.append((Contestant(f"headrace, {number}", loader.__iter__, loader.shutdown), number))
        if installed("torch"):
            data = importlib.import_module("torch.utils.data")
            peer = data.DataLoader(dataset, num_workers=number, **arguments)
            field.append((Contestant(f"torch, {number}", peer.__iter__), number))
    return field


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    dataset = Texts(arguments.batches * BATCH_SIZE)
    case = Case(arguments.batches)
    field = contestants(dataset, arguments.workers)
    for each, _ in field:
        each.run(case, arguments.seconds, measure=False)
    for number in range(arguments.rounds):
        turn = number % len(field)
        for each, _ in field[turn:] + field[:turn]:
            each.run(case, arguments.seconds, measure=True)
    rows = []
    reference = field[0][0]
    for each, workers in field:
        each.close()
        main, together = statistics.median(each.cpu), statistics.median(each.total_cpu)
        bound = together / workers if workers else main
        rows.append(
            {
                "loader": each.name,
                "batches_per_s": statistics.median(each.rates),
                "ratio_to_loop": statistics.median([a / b for a, b in zip(each.rates, reference.rates)]),
                "main_cpu_us_per_batch": main * 1e6,
                "workers_cpu_us_per_batch": (together - main) * 1e6 if workers else 0.0,
                "cpu_ratio_to_loop": statistics.median(reference.cpu) / bound,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2], help="numbers of workers (default: 0 1 2)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to take the median of (default: 5)")
    parser.add_argument("--seconds", type=float, default=1, help="the most that one run takes (default: 1)")
    parser.add_argument("--batches", type=int, default=1500, help="batches per epoch (default: 1500)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    rows = measure(arguments)
    if arguments.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        return
    print(f"{'':14}{'batches/s':>11}{'x loop':>8}{'CPU µs/batch: main':>20}{'workers':>9}{'x loop by CPU':>15}")
    for row in rows:
        print(
            f"{row['loader']:14}{row['batches_per_s']:>11,.0f}{row['ratio_to_loop']:>8.2f}"
            f"{row['main_cpu_us_per_batch']:>20.1f}{row['workers_cpu_us_per_batch']:>9.1f}"
            f"{row['cpu_ratio_to_loop']:>15.2f}"
        )


if __name__ == "__main__":
    main()
