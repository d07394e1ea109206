"""Workers gone wild: one overwrites the shared memory of its own loader."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import multiprocessing
import pickle
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, same

from headrace import errors
from headrace.data import DataLoader, IterableDataset
from headrace.data._iteration import engine

CONTROL, RING, RECORDS, END = 0, 320, 320 + 4 * 1024, 320 + 4 * 1024 + 128 * 512
LAYOUT_STATE, CLAIMS, DEATHS, LAYOUT = 96, 408, 408 + 8 * 256, 12 << 10


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

    def garbage(self, region: str, chance: random.Random) -> None:
        """Overwrites a part of a region, or all of it, in one slot after the other."""
        slots = [self.first_slot + slot * self.slot_bytes for slot in range(min(self.slots, 8))]
        places = {
            "control": [(self.begin + CONTROL, RECORDS)],
            "records": [(self.begin + RECORDS, 4 * 128)],
            "slots": [(slot, LAYOUT) for slot in slots],
            "layouts": [(slot + LAYOUT, 512) for slot in slots],
            "side": [(slot + self.slot_bytes - 4096, 4096) for slot in slots],
        }
        for begin, size in places[region]:
            length = chance.choice([8, 64, 512, size])
            pattern = chance.choice(
                [chance.randbytes(8), b"\0" * 8, b"\xff" * 8, struct.pack("<Q", chance.randrange(20))]
            )
            offset = chance.randrange((size - min(length, size)) // 8 + 1) * 8
            ctypes.memmove(begin + offset, pattern * (length // 8), min(length, size))


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


class Wilder(Ints):
    """Sample i is an array full of i, and a text. Every now and then a worker writes over a whole region."""

    def __init__(self, length: int, seed: int, region: str, lock: Path) -> None:
        super().__init__(length)
        self.seed, self.region, self.lock = seed, region, lock
        self.made: Any = multiprocessing.Value("i", 0, lock=False)
        self.facts = multiprocessing.Array("Q", 2, lock=False)

    def __getitem__(self, index: int) -> Any:
        with locked(self.lock):
            self.made.value += 1
            number = self.made.value
            arena = Arena(self.facts) if number % 7 == 3 and number < 60 else None
        if arena is not None:
            arena.garbage(self.region, random.Random(f"{self.seed} {self.region} {number}"))
        time.sleep(0.0005)
        return np.full(40, index), f"sample {index}"


class WilderStream(IterableDataset[Any]):
    def __init__(self, dataset: Wilder) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return map(self.dataset.__getitem__, range(len(self.dataset)))


@pytest.mark.filterwarnings("ignore:worker:RuntimeWarning")
@pytest.mark.parametrize("region", ["control", "records", "slots", "layouts", "side"])
@pytest.mark.parametrize("kind", ["default", "function", "stream", "sampler"])
def test_whatever_is_written_over_nobody_waits_for_ever(
    kind: str, region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even without ``timeout``: whoever waits looks for what cannot come."""
    options = engine.scheduler_options
    monkeypatch.setattr(engine, "scheduler_options", lambda *args: {**options(*args), "recheck_ms": 20})
    for seed in range(3):
        dataset: Any = Wilder(96, seed, region, tmp_path / "lock")
        arguments: dict[str, Any] = {
            "function": {"collate_fn": collate},
            "sampler": {"sampler": list(range(96))},
        }.get(kind, {})
        dataset = WilderStream(dataset) if kind == "stream" else dataset
        loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork", **arguments)
        for _ in range(2):
            iterator, number = iter(loader), 0
            while number < 25:
                try:
                    batch = list(next(iterator))
                except StopIteration:
                    break
                except (errors.DataLoss, errors.WorkerDied, pickle.UnpicklingError, EOFError):
                    pass
                else:
                    assert region == "side" or kind == "stream" or same(batch[0], expected(number)[0]), (seed, number)
                number += 1
            assert number == 24 or kind == "stream"
        assert [len(batch[1]) for batch in loader] == [4] * 24  # by now nobody writes any more
        loader.shutdown()


class Eight:
    """A dataset of eight samples, whose workers find their arena by ``Arena(self.facts)``."""

    def __init__(self) -> None:
        self.facts = multiprocessing.Array("Q", 2, lock=False)

    def __len__(self) -> int:
        return 8


class OverObjects(Eight):
    """Sample i is a text. Sample 5 writes over the pickle of sample 4, in the same batch."""

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


class OverLayoutState(Eight):
    """Sample i is an array full of i, and a text. Sample 5 declares the missing layout of its batch to be ready."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            arena = Arena(self.facts)
            for slot in range(arena.slots):
                state = ctypes.c_uint32.from_address(arena.first_slot + slot * arena.slot_bytes + LAYOUT_STATE)
                state.value = state.value or 2  # ready, written by producer 0
        return np.full(40, index), f"sample {index}"


def test_a_layout_that_was_declared_ready_fails_its_batch() -> None:
    loader = DataLoader(
        OverLayoutState(),
        batch_size=2,
        num_workers=1,
        prefetch_factor=1,
        collate_fn=collate,
        multiprocessing_context="fork",
    )
    iterator = iter(loader)
    for number in range(4):
        if number == 2:
            with pytest.raises(errors.DataLoss, match="written over"):
                next(iterator)
        else:
            array, texts = next(iterator)
            assert same(array, np.stack([np.full(40, 2 * number), np.full(40, 2 * number + 1)]))
            assert list(texts) == [f"sample {2 * number}", f"sample {2 * number + 1}"]
    assert next(iterator, None) is None
