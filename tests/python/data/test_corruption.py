"""Workers gone wild: one overwrites the shared memory of its own loader."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import pickle
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import same

from headrace import errors
from headrace.data import DataLoader

CONTROL, RING, RECORDS, END = 0, 320, 320 + 4 * 1024, 320 + 4 * 1024 + 128 * 512
CLAIMS, DEATHS, LAYOUT = 408, 408 + 8 * 256, 12 << 10


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock that the kernel releases if the worker is killed meanwhile, unlike multiprocessing's."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Arena:
    """This process's mapping of the loader's memory, with the offsets that control_block.h and slot.h assert.

    `facts`, shared by all workers, keeps the size and the number of the slots from before the first stray write.
    """

    def __init__(self, facts: Any) -> None:
        with open("/proc/self/maps") as maps:
            line = next(line for line in maps if "/memfd:headrace" in line)
        self.begin, end = (int(address, 16) for address in line.split()[0].split("-"))
        if not facts[1]:  # written last
            constants = ctypes.string_at(self.begin, 72)
            facts[:] = [*struct.unpack_from("<Q", constants, 8), *struct.unpack_from("<I", constants, 40)]
        self.slot_bytes, self.slots = facts
        self.first_slot = end - self.slots * self.slot_bytes

    def stray(self, chance: random.Random) -> None:
        """Overwrites one of the words through which the scheduler and the workers communicate."""
        slot = self.first_slot + chance.randrange(min(self.slots, 8)) * self.slot_bytes
        regions = [
            (slot, CLAIMS),  # numbers, facts, excluded rows
            (slot + CLAIMS, 8 * 8),
            (slot + DEATHS, 8),
            (slot + LAYOUT, 24 + 2 * 120 + 8),
            (self.begin + CONTROL, RING),
            (self.begin + RING, 4 * 64),
            (self.begin + RECORDS, 3 * 128),
        ]
        begin, size = chance.choice(regions)
        address = begin + chance.randrange(size // 8) * 8
        if chance.random() < 0.5:
            ctypes.memmove(address, chance.randbytes(8), 8)
        else:
            flipped = ctypes.c_uint64.from_address(address)
            flipped.value ^= 1 << chance.randrange(64)


class Wild:
    """Sample i is an array full of i, and a text. Now and then, `left` times in all, it writes where it must not."""

    def __init__(self, seed: int, left: int, lock: Path) -> None:
        self.seed = seed
        self.left: Any = multiprocessing.Value("i", left, lock=False)
        self.facts = multiprocessing.Array("Q", 2, lock=False)
        self.lock = lock

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        with locked(self.lock):
            number = self.left.value
            wild = number > 0 and (number + index) % 3 == 0
            self.left.value -= wild
            arena = Arena(self.facts) if wild else None
        if arena is not None:
            arena.stray(random.Random(f"{self.seed} {number}"))
        return np.full(40, index), f"sample {index}"


def collate(samples: list[Any]) -> Any:
    return np.stack([array for array, _ in samples]), [text for _, text in samples]


def expected(batch: int) -> Any:
    indices = range(batch * 4, batch * 4 + 4)
    return [np.stack([np.full(40, index) for index in indices]), [f"sample {index}" for index in indices]]


@pytest.mark.filterwarnings("ignore:worker:RuntimeWarning")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("collation", ["default", "function"])
def test_stray_writes_give_an_error_or_the_right_batch(seed: int, collation: str, tmp_path: Path) -> None:
    dataset = Wild(seed, 25, tmp_path / "lock")
    function = {"collate_fn": collate} if collation == "function" else {}
    loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True, **function)
    for _ in range(40):
        calm = dataset.left.value == 0
        iterator, number = iter(loader), 0
        while True:
            try:
                batch = list(next(iterator))
            except StopIteration:
                break
            except (errors.DataLoss, errors.WorkerDied):
                pass
            else:
                batch[1] = list(batch[1])
                assert same(batch, expected(number)), (number, batch)
            number += 1
        assert number == 16
        if calm:
            break
    assert dataset.left.value == 0
    # All batches that were begun during the stray writes have been delivered.
    batches = [list(batch) for batch in loader]
    assert len(batches) == 16
    for number, batch in enumerate(batches):
        batch[1] = list(batch[1])
        assert same(batch, expected(number)), number


class OverObjects:
    """Sample i is a text. Sample 5 writes over the pickle of sample 4, in the same batch."""

    def __init__(self) -> None:
        self.facts = multiprocessing.Array("Q", 2, lock=False)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> str:
        if index == 5:
            arena = Arena(self.facts)
            for slot in range(arena.slots):
                side = arena.first_slot + (slot + 1) * arena.slot_bytes - 1024
                at = ctypes.string_at(side, 1024).find(b"the text of sample 4")
                if at >= 0:
                    ctypes.memset(side + at - 2, 0xFF, 1)  # what says that a text follows
        return f"the text of sample {index}"


def test_an_object_whose_pickle_was_written_over_fails_its_batch_once() -> None:
    loader = DataLoader(OverObjects(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    for number in range(4):
        if number == 2:
            with pytest.raises(pickle.UnpicklingError):
                next(iterator)
        else:
            assert next(iterator) == [f"the text of sample {index}" for index in (2 * number, 2 * number + 1)]
        assert loader.state_dict()["batch"] == number + 1
    assert next(iterator, None) is None
