"""A storm: many processes put, get and swap while they are killed at random, and everything is checked afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from headrace.wirehead.cache import Cache
from headrace.wirehead.config import Config
from headrace.wirehead.dataset import MongoTupleheadDataset
from headrace.wirehead.errors import CorruptSampleError, StoreError
from headrace.wirehead.keeper import Keeper, run_keeper
from headrace.wirehead.reader import Reader
from headrace.wirehead.writer import Writer


@dataclasses.dataclass
class StormResult:
    """What a storm left.

    Attributes:
        operations: samples stored, samples read and swaps.
        kills: processes killed.
        swaps: in all.
        most_generations: stored at once.
        problems: what must not happen, in words; empty.
    """

    operations: int = 0
    kills: int = 0
    swaps: int = 0
    most_generations: int = 0
    seconds: float = 0
    problems: list[str] = dataclasses.field(default_factory=list)


def storm(
    place: dict[str, Any],
    operations: int,
    kills: int,
    swaps: int = 0,
    writers: int = 8,
    readers: int = 4,
    managers: int = 2,
    seed: int = 0,
) -> StormResult:
    """Puts, gets and swaps in many processes, one of which is killed every now and then; then checks everything.

    Each sample has a number of its own in all its elements. Processes write down, one line for each, which number was
    acknowledged or read under which generation and id. It ends after that many operations, kills and swaps.
    """
    config = Config.load({**place, "SWAP_CAP": 20, "LEASE": 2, "CHUNKSIZE": 0.001})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["headrace.wirehead.storm"])
    rng = random.Random(seed)
    roles: dict[str, Callable[..., None]] = {"writer": _storm_write, "reader": _storm_read, "manager": _storm_manage}
    wanted = {"writer": writers, "reader": readers, "manager": managers}
    result = StormResult()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Cache(config)) as cache:
        running: list[tuple[str, Any]] = []
        numbers = iter(range(1, 1 << 30))

        def begin(role: str) -> None:
            number = next(numbers)
            path = f"{folder}/{role}-{number}"
            process = context.Process(target=run_child, args=(roles[role], config, number, path), daemon=True)
            process.start()
            running.append((role, process))

        for role, count in wanted.items():
            for _ in range(count):
                begin(role)
        kill_at = time.monotonic() + 2
        try:
            while True:
                time.sleep(0.1)
                generations = cache.store.generations()
                result.most_generations = max(result.most_generations, len(generations))
                lines = sum(path.stat().st_size for path in Path(folder).iterdir()) // _LINE
                if lines + cache.current() >= operations and result.kills >= kills and cache.current() >= swaps:
                    break
                if time.monotonic() >= kill_at:
                    kill_at = time.monotonic() + rng.uniform(0.1, 0.8)
                    role, process = running.pop(rng.randrange(len(running)))
                    process.kill()
                    process.join()
                    result.kills += 1
                    begin(role)
                for entry in [entry for entry in running if not entry[1].is_alive()]:
                    running.remove(entry)
                    entry[1].join()
                    result.problems.append(f"a {entry[0]} ended by itself with code {entry[1].exitcode}")
                    begin(entry[0])
        finally:
            for _, process in running:
                process.kill()
                process.join()
        result.swaps = cache.current()
        result.seconds = time.monotonic() - start
        _check_storm(Path(folder), cache, result)
        result.operations = result.operations + result.swaps
        cache.store.clean()
    return result


_LINE = 40  # bytes of a line that a process writes down, in one system call


def _note(file: int, *numbers: int) -> None:
    os.write(file, (" ".join(map(str, numbers)).ljust(_LINE - 1) + "\n").encode())


def _storm_write(config: Config, number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.closing(Cache(config)) as cache:
        writer = Writer(cache)
        for sequence in range(1 << 20):
            value = (number << 20) + sequence
            place = writer.put((np.full(300 + sequence % 7, value), np.full(3, value)))
            assert place is not None
            _note(file, *place, value)


def _storm_read(config: Config, number: int, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rng = random.Random(number)
    with MongoTupleheadDataset(config, to="numpy", timeout=300) as dataset:
        while True:
            id = rng.randrange(config.swap_cap)
            try:
                data, label = dataset[id]
            except CorruptSampleError as error:
                _note(file, error.generation, id, -1)
                continue
            value = int(label[0])
            whole = (data == value).all() and (label == value).all() and len(data) == 300 + (value & 0xFFFFF) % 7
            _note(file, dataset.generation, id, value if whole else -2)


def _storm_manage(config: Config, number: int, path: str) -> None:
    with contextlib.closing(Cache(config)) as cache:
        run_keeper(Keeper(cache), threading.Event())


def _check_storm(folder: Path, cache: Cache, result: StormResult) -> None:
    """One number under each generation and id; none twice among the acknowledged; none of these lost."""
    seen: dict[tuple[int, int], int] = {}
    acknowledged: dict[int, tuple[int, int]] = {}
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines():
            generation, id, value = map(int, line.split())
            result.operations += 1
            if value < 0:
                result.problems.append(f"sample {id} of generation {generation} was not whole")
            elif seen.setdefault((generation, id), value) != value:
                result.problems.append(f"sample {id} of generation {generation} had two contents")
            if path.name.startswith("writer"):
                acknowledged[value] = (generation, id)
    current = cache.current()
    reader = Reader(cache, cache.config.sample)
    stored = set(cache.store.generations())
    for value, (generation, id) in acknowledged.items():
        if generation >= current:
            try:
                found = int(reader.read(generation, id)["label"][1][0])
            except StoreError as error:
                result.problems.append(f"an acknowledged sample is lost: {error}")
            else:
                if found != value:
                    result.problems.append(f"an acknowledged sample is lost: {id} of generation {generation}")
        elif generation not in stored and generation > current:
            result.problems.append(f"generation {generation} is lost")
    reader.close()
    counts = [seen_generation for seen_generation, _ in acknowledged.values() if seen_generation <= current]
    if len(counts) > current * cache.config.swap_cap:
        result.problems.append("more samples were acknowledged than the generations hold")


def run_child(action: Callable[..., None], *arguments: Any) -> None:
    """What a process of a benchmark does; it ends when the benchmark does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    action(*arguments)
