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

from headrace.data import DataLoader, IterableDataset

CONTEXT = multiprocessing.get_context("fork")


class Child:
    """Compares what it was given with copies made before it began, once it is told to."""

    def __init__(self, batches: list[Any]) -> None:
        self._start(_compare, batches, [batch.copy() for batch in batches])

    def _start(self, target: Any, *arguments: Any) -> None:
        self._receiver, self._sender = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=target, args=(*arguments, self._receiver))
        self.process.start()  # and forgets its arguments

    def keeps_its_batches(self) -> bool:
        self._sender.send(None)
        self.process.join(100)
        self._sender.close()
        self._receiver.close()
        return self.process.exitcode == 0


class Reading(Child):
    """Reads the next epoch of a loader, too, once it is told to."""

    def __init__(self, loader: DataLoader, epoch: list[Any]) -> None:
        self._start(_read, loader, epoch)


def _read(loader: DataLoader, epoch: list[Any], receiver: Any) -> None:
    receiver.recv()
    same = values(loader) == epoch
    loader.shutdown()  # os._exit would leave its workers to themselves
    os._exit(0 if same else 1)


def values(batches: Any) -> list[Any]:
    return [batch[:, 0].tolist() for batch in batches]


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


class Counting(IterableDataset[Any]):
    """A stream that goes on from epoch to epoch."""

    at = passes = 0

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.length:
            self.at += 1
            yield np.full(100, self.at + 1000 * self.passes)
        self.at = 0
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


# HEADRACE_FORKS=500 tries so many programs. The plain twin of a loader is one without workers, which nobody forks.
@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADRACE_FORKS", "5"))))
def test_epochs_around_children_of_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    dataset = rng.choice([Arrays, Arrays, Counting])
    more: dict[str, Any] = {"workers": "thread"} if dataset is Arrays and rng.random() < 0.2 else {}
    more |= {"prefetch_factor": rng.randrange(3, 7)} if rng.random() < 0.4 else {}
    more |= {"persistent_workers": rng.choice([True, True, None, False]), "num_workers": rng.randrange(1, 4)}
    length, size, shuffle = rng.randrange(1, 60), rng.choice([1, 2, 4]), dataset is Arrays and rng.random() < 0.5

    def make(**options: Any) -> DataLoader:
        return DataLoader(dataset(length), size, shuffle=shuffle, seed=seed, **options)

    twin, loader = make(), make(**more)
    epochs = [values(twin) for _ in range(7)]
    epoch, held = 0, []
    with children() as forked:
        while epoch < 6:
            if rng.random() < 0.4:
                forked.append(Reading(loader, epochs[epoch]) if rng.random() < 0.5 else Child(held))
            if forked and rng.random() < 0.3:
                assert forked.pop(rng.randrange(len(forked))).keeps_its_batches()
            workers = [process for process in multiprocessing.active_children() if "headrace" in process.name]
            if workers and rng.random() < 0.1:
                rng.choice(workers).kill()
            took = rng.choice([len(epochs[epoch]), len(epochs[epoch]), rng.randrange(len(epochs[epoch]))])
            batches = iter(loader)
            for expected in epochs[epoch][:took]:
                held.append(next(batches))
                assert held[-1][:, 0].tolist() == expected
                while len(held) > rng.choice([0, 1, 3, 6]):
                    held.pop(rng.randrange(len(held)))
            if took == len(epochs[epoch]):
                assert list(batches) == []
            del batches
            # A stream that was left early begins that epoch again, and so does any that nobody has read.
            epoch += took == len(epochs[epoch]) or (took > 0 and dataset is Arrays)
        while forked:
            assert forked.pop(rng.randrange(len(forked))).keeps_its_batches()


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
