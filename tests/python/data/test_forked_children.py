"""Batches in children that the user's program forks while it holds them: no one changes what a child can read."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fault_processes import open_descriptors
from loader_datasets import Ints

from headrace.data import DataLoader

CONTEXT = multiprocessing.get_context("fork")


class Child:
    """Compares what it was given with copies made before it began, once it is told to."""

    def __init__(self, batches: list[Any]) -> None:
        self._receiver, self._sender = CONTEXT.Pipe(duplex=False)
        copies = [batch.copy() for batch in batches]
        self.process = CONTEXT.Process(target=_compare, args=(batches, copies, self._receiver))
        self.process.start()  # and forgets its arguments

    def keeps_its_batches(self) -> bool:
        self._sender.send(None)
        self.process.join(100)
        self._sender.close()
        self._receiver.close()
        return self.process.exitcode == 0


def _compare(batches: list[Any], before: list[Any], receiver: Any) -> None:
    receiver.recv()
    os._exit(0 if all(map(np.array_equal, batches, before)) else 1)


@contextlib.contextmanager
def children() -> Iterator[list[Child]]:
    forked: list[Child] = []
    try:
        yield forked
    finally:
        for child in forked:
            child.process.kill()
            child.process.join()


class Arrays(Ints):
    def __getitem__(self, index: int) -> Any:
        return np.full(100, index)


@pytest.mark.parametrize("collate", [None, np.stack], ids=["default", "own"])
def test_a_child_keeps_a_batch_that_its_parent_lets_go(collate: Any) -> None:
    with children() as forked:
        for number, batch in enumerate(DataLoader(Arrays(400), batch_size=4, num_workers=2, collate_fn=collate)):
            if number % 20 == 3:
                forked.append(Child([batch]))
            del batch
        assert all(child.keeps_its_batches() for child in forked)


class Refers(Ints):
    """To a batch, which it replaces when asked."""

    def __init__(self, batch: Any) -> None:
        super().__init__(300)
        self.batch = batch

    def __getitem__(self, index: int) -> Any:
        return self.batch[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_keep_the_batches_of_another_loader_that_their_dataset_refers_to(persistent: bool) -> None:
    others = iter(DataLoader(Arrays(4000), batch_size=4, num_workers=2))
    dataset = Refers(next(others))
    loader = DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    assert (next(iterator) == 0).all()
    dataset.batch = None
    gc.collect()
    for batch in iterator:
        next(others)
        assert (batch == 0).all()


def test_a_loader_that_is_gone_leaves_its_childrens_batches() -> None:
    loader = DataLoader(Arrays(400), batch_size=4, num_workers=2, persistent_workers=True)
    with children() as forked:
        for batch in loader:
            forked.append(Child([batch]))
            break
        del batch, loader
        gc.collect()
        assert forked[0].keeps_its_batches()


# The plain twin of a batch is its copy in the child.
@pytest.mark.parametrize("seed", range(6))
def test_batches_in_children_of_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    before = open_descriptors()
    with children() as forked:
        for _ in range(3):
            workers = rng.choice(["process", "thread"])
            loader = DataLoader(Arrays(rng.choice([40, 200])), batch_size=rng.choice([2, 4]), num_workers=2, seed=seed,
                                workers=workers, persistent_workers=rng.random() < 0.5)  # fmt: skip
            held: list[Any] = []
            for _ in range(rng.choice([1, 2])):
                for batch in loader:
                    held.append(batch)
                    while len(held) > rng.choice([0, 1, 3, 6]):
                        held.pop(rng.randrange(len(held)))
                    if held and rng.random() < 0.1:
                        forked.append(Child(held))
                    if forked and rng.random() < 0.1:
                        assert forked.pop(rng.randrange(len(forked))).keeps_its_batches()
                    del batch
                    if rng.random() < 0.02:
                        break
            held.clear()
            del loader
            gc.collect()
        while forked:
            assert forked.pop(rng.randrange(len(forked))).keeps_its_batches()
    gc.collect()
    deadline = time.monotonic() + 100
    while open_descriptors() - before:
        assert time.monotonic() < deadline, open_descriptors() - before
        time.sleep(0.01)
