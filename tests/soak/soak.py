"""Loaders of random kinds and sizes under random faults, for as long as asked: every batch is compared, bit for bit,
with that of a loader without workers, and what this process holds afterwards must not grow.

    make soak                               ten minutes
    SOAK_SECONDS=60 make soak               one
    python tests/soak/soak.py --seconds 60 --seed 7

Prints figures, as text and as JSON. Exits with status 1 if a batch differs, a worker is left, or something grows.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "data"))
from fault_processes import workers_of
from fault_programs import OfWorker, Stream, digest

import headrace.fluid as fluid
from headrace.data import DataLoader, get_worker_info
from headrace.fluid import core

# What may be more at the end than after the first rounds: allocators keep some of what they once had.
_SLACK_BYTES = 48 << 20


class Samples:
    """Arrays of one size that depend on the index and on the record's generator; in a worker each takes a while."""

    def __init__(self, length: int, size: int, seconds: float) -> None:
        self.length = length
        self.size = size
        self.seconds = seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int, rng: np.random.Generator) -> Any:
        if self.seconds and get_worker_info() is not None:
            time.sleep(self.seconds)
        return np.resize(rng.integers(0, 256, 64, np.uint8), self.size), index


class Ragged(Samples):
    """Arrays of sizes that differ."""

    def __getitem__(self, index: int, rng: np.random.Generator) -> Any:
        array, index = super().__getitem__(index, rng)
        return array[: 1 + index * 37 % self.size], index


def concatenate(samples: list[Any]) -> Any:
    return {"all": np.concatenate([array for array, _ in samples]), "indices": [index for _, index in samples]}


@dataclasses.dataclass(frozen=True)
class Round:
    """One loader and what befalls it."""

    kind: str
    samples: int
    size: int
    seconds: float
    batch_size: int
    workers: int
    threads: int
    context: str
    prefetch: int
    consumer: str
    epochs: int
    kills: bool

    def dataset(self) -> Any:
        if self.kind in ("stream", "streams"):
            return Stream(self.samples, self.seconds)
        kind = Ragged if self.kind in ("ragged", "collation") else Samples
        return kind(self.samples, self.size, self.seconds)

    def arguments(self) -> dict[str, Any]:
        by_kind: dict[str, dict[str, Any]] = {
            "collation": {"collate_fn": concatenate, "shuffle": True},
            "ragged": {"ragged": "pad", "shuffle": True},
            "single": {"batch_size": None, "shuffle": True},
            "sampler": {"sampler": range(self.samples - 1, -1, -1)},
            "stream": {},
            "streams": {"iterable_sharding": "dataset"},
        }
        return {"batch_size": self.batch_size, "seed": 5, **by_kind.get(self.kind, {"shuffle": True})}

    def expected(self, epoch: int) -> list[str]:
        dataset, arguments = self.dataset(), self.arguments()
        if self.kind == "streams":
            parts = [OfWorker(dataset, number, self.workers).batches(self.batch_size) for number in range(self.workers)]
            turns = [part[turn] for turn in range(max(map(len, parts))) for part in parts if turn < len(part)]
            return [digest(batch) for batch in turns]
        loader = DataLoader(dataset, **arguments)
        loader.set_epoch(epoch)
        return [digest(batch) for batch in loader]


def draw(chance: random.Random, number: int) -> Round:
    kind = chance.choice(["map", "map", "collation", "ragged", "single", "sampler", "stream", "streams"])
    contexts = ["forkserver", "spawn"] if number < 2 else ["fork"] * 8 + ["forkserver", "spawn"]
    context = contexts[number] if number < 2 else chance.choice(contexts)
    size = int(2 ** chance.uniform(0, 19))
    streams = kind in ("stream", "streams")
    consumers = ["fast", "slow", "keeps", "abandons", "resumes"] + (["feeds"] if kind in ("map", "sampler") else [])
    return Round(
        kind=kind,
        samples=chance.randrange(40, 400) if size < 1 << 16 else chance.randrange(20, 60),
        size=size,
        seconds=chance.choice([0, 0, 0.0002, 0.002]),
        batch_size=chance.choice([1, 3, 8, 32]),
        workers=chance.randrange(1, 5),
        threads=1 if streams else chance.choice([1, 1, 2]),
        context=context,
        prefetch=chance.randrange(1, 9),
        consumer=chance.choice(consumers),
        epochs=chance.randrange(1, 4),
        kills=chance.random() < 0.8,
    )


class Tormentor(threading.Thread):
    """Kills workers at random moments, or stops them for a while."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.kills = 0
        self.stops = 0
        self._chance = random.Random(seed)
        # Without an end no worker would ever come to a sample where few start slowly.
        self._budget = self._chance.randrange(60)
        self._ending = threading.Event()

    def run(self) -> None:
        stopped: list[int] = []
        while self.kills < self._budget and not self._ending.wait(self._chance.choice([0.001, 0.02, 0.1, 0.3])):
            workers = workers_of(os.getpid())
            chosen = workers if self._chance.random() < 0.1 else self._chance.sample(workers, min(1, len(workers)))
            for pid in chosen:
                with contextlib.suppress(ProcessLookupError):
                    if self._chance.random() < 0.2:
                        os.kill(pid, signal.SIGSTOP)
                        stopped.append(pid)
                        self.stops += 1
                    else:
                        os.kill(pid, signal.SIGKILL)
                        self.kills += 1
            if self._chance.random() < 0.7:
                self._let_go(stopped)
        self._let_go(stopped)

    def end(self) -> None:
        self._ending.set()
        self.join()

    @staticmethod
    def _let_go(stopped: list[int]) -> None:
        while stopped:
            # Whatever its state: on a busy machine it may not have stopped yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped.pop(), signal.SIGCONT)


def feed(loader: DataLoader, size: int) -> Iterator[Any]:
    queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 3, [[-1, size], [-1]])
    feeding = loader._feed(queue)
    try:
        while True:
            try:
                yield [np.asarray(tensor) for tensor in queue.pop(timeout=120)]
            except core.EOFException:
                return
    finally:
        feeding.stop()


def consume(chosen: Round, loader: DataLoader, chance: random.Random) -> Iterator[tuple[int, list[str], bool]]:
    """Epochs: their number, the batches, and whether these are all."""
    for epoch in range(chosen.epochs):
        got: list[str] = []
        batches = feed(loader, chosen.size) if chosen.consumer == "feeds" else iter(loader)
        kept = []
        for batch in batches:
            got.append(digest(batch))
            if chosen.consumer == "slow":
                time.sleep(chance.uniform(0, 0.004))
            elif chosen.consumer == "keeps":
                kept.append((batch, got[-1]))
            elif chosen.consumer == "abandons" and chance.random() < 0.1:
                break
            elif chosen.consumer == "resumes" and chance.random() < 0.05:
                state = loader.state_dict()
                loader.load_state_dict(json.loads(json.dumps(state)))
                got += [digest(rest) for rest in loader]
                break
        assert all(digest(batch) == before for batch, before in kept), "a batch that is kept has changed"
        complete = chosen.consumer != "abandons"
        del kept, batches
        yield epoch, got, complete


@dataclasses.dataclass
class Holdings:
    """What this process has, with no loader under way."""

    anonymous_bytes: int
    shared_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return cls(
            int(fields["RssAnon"].split()[0]) << 10,
            int(fields["RssShmem"].split()[0]) << 10,
            len(os.listdir("/proc/self/fd")),
            int(fields["Threads"]),
        )


def soak(seconds: float, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    figures: dict[str, Any] = dict.fromkeys(("rounds", "epochs", "batches", "kills", "stops", "worker_deaths"), 0)
    wrong: list[str] = []
    holdings: list[Holdings] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or figures["rounds"] < 4:
        chosen = draw(chance, figures["rounds"])
        loader = DataLoader(
            chosen.dataset(),
            num_workers=chosen.workers,
            threads_per_worker=chosen.threads,
            multiprocessing_context=chosen.context,
            prefetch_factor=chosen.prefetch,
            max_deaths_per_sample=20,  # the kills are random: a few in a row may hit the same sample
            **chosen.arguments(),
        )
        tormentor = Tormentor(chance.randrange(1 << 30))
        if chosen.kills:
            tormentor.start()
        try:
            for epoch, got, complete in consume(chosen, loader, chance):
                expected = chosen.expected(epoch)
                if got != (expected if complete else expected[: len(got)]):
                    wrong.append(f"epoch {epoch} of {chosen}")
                figures["epochs"] += 1
                figures["batches"] += len(got)
                if time.monotonic() > end:
                    break
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error} in {chosen}")
        if chosen.kills:
            tormentor.end()
        figures["worker_deaths"] += loader.stats().get("worker_deaths", 0)
        loader.shutdown()
        del loader
        left = workers_of(os.getpid())
        if left:
            wrong.append(f"workers {left} are left after {chosen}")
        figures["rounds"] += 1
        figures["kills"] += tormentor.kills
        figures["stops"] += tormentor.stops
        holdings.append(Holdings.now())
    early, late = holdings[: max(2, len(holdings) // 4)], holdings[-max(2, len(holdings) // 4) :]
    growth = {}
    for field in dataclasses.fields(Holdings):
        before, after = (min(getattr(each, field.name) for each in some) for some in (early[-2:], late))
        most = max(getattr(each, field.name) for each in early)
        growth[field.name] = {"early": before, "early, at most": most, "late": after}
        if after > most + (_SLACK_BYTES if field.name.endswith("bytes") else 0):
            wrong.append(f"{field.name} grew from {most} to {after}")
    return {**figures, "seconds": round(seconds), "seed": seed, "holdings": growth, "wrong": wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "600")))
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is drawn (default: the time)")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)  # each death is one
    result = soak(options.seconds, options.seed)
    for name, value in result.items():
        if name not in ("wrong", "holdings"):
            print(f"{name:>16} {value:,}" if name != "seed" else f"{name:>16} {value}")
    for name, values in result["holdings"].items():
        print(f"{name:>16} " + ", ".join(f"{when} {value:,}" for when, value in values.items()))
    for line in result["wrong"]:
        print("WRONG:", line)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
