"""What many processes of headrace.wirehead ask of a server, in requests a second.

The processes run the package's own code in one program, by a clock that jumps from one event to the next, with a store
in memory that counts. Run: python tests/benchmarks/wirehead_scale.py [--generators N] [--readers N] [--cap N]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import heapq
import itertools
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import headrace.wirehead._protocol.lease as leases
from headrace.wirehead._protocol.cache import Cache, Swap
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import LEASES, SWAPS, VERIFIED, Document, key, samples_table
from headrace.wirehead.config import Config

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "wirehead"))
from simulated_threads import Event, Threading

LEASE = 30.0
SAMPLE_EVERY, READ_EVERY = 10.0, 1.0  # seconds: a generator's sample, a reader's


class _Ended(BaseException):
    pass


class Simulation:
    """Actors that take turns: each runs until it sleeps, and time goes on to the next that wakes up.

    Attributes:
        requests, documents: what has been asked for and returned, by (role, kind of request).
    """

    def __init__(self, generators: int, readers: int, cap: int) -> None:
        self.generators, self.readers, self.cap = generators, readers, cap
        self.config = Config.load({"DBNAME": "scale", "SWAP_CAP": cap, "LEASE": LEASE, "MONGOHOST": "none"})
        self.now = 1000.0
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self.documents: collections.Counter[tuple[str, str]] = collections.Counter()
        self.tables: dict[str, dict[str, Any]] = collections.defaultdict(dict)
        self.role = ""
        self.stop = Event(self.wait)
        self.managers: dict[int, GenerationManager] = {}
        self.all_readers: list[Reader] = []
        self._events: list[tuple[float, int, threading.Semaphore]] = []
        self._numbers = itertools.count()
        self._back = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._current: tuple[str, threading.Semaphore] | None = None
        self._has_ended = False
        self._stopped: set[int] = set()
        self.pace: float | None = None  # seconds between two samples of a generator, if it is another one by now
        self.writers: list[Writer] = []

    def cache(self) -> Cache:
        return Cache(self.config, Memory(self), clock=lambda: self.now)

    def start(self, role: str, action: Callable[[], None], after: float = 0.0) -> None:
        turn = threading.Semaphore(0)

        def run() -> None:
            turn.acquire()
            self._current = role, turn
            self.role = role
            try:
                if not self._has_ended:
                    action()
            except _Ended:
                pass
            self._back.release()

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        heapq.heappush(self._events, (self.now + after, next(self._numbers), turn))

    def sleep(self, seconds: float) -> None:
        """Called by an actor."""
        assert self._current is not None
        current = self._current
        heapq.heappush(self._events, (self.now + max(seconds, 1e-4), next(self._numbers), current[1]))
        self._back.release()
        current[1].acquire()
        self._current, self.role = current, current[0]
        if self._has_ended:
            raise _Ended

    def wait(self, seconds: float | None, is_set: bool) -> None:
        """What it is to wait for an event."""
        if not is_set:
            self.sleep(1.0 if seconds is None else seconds)

    def threading(self) -> Threading:
        """What leases have of that module. Their threads are actors, if they are those of one."""

        def start(target: Callable[[], None]) -> None:
            if self.role:
                self.start(f"{self.role}'s lease", target)

        return Threading(self.wait, threading.Lock, start)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Lets time pass; returns how much did."""
        start, self.requests, self.documents = self.now, collections.Counter(), collections.Counter()
        while self._events and self._events[0][0] <= start + seconds and not until():
            self.now, _, turn = heapq.heappop(self._events)
            turn.release()
            self._back.acquire()
        self.now = max(self.now, start + seconds) if not until() else self.now
        return self.now - start

    def end(self) -> None:
        self._has_ended = True
        while self._events:
            heapq.heappop(self._events)[2].release()
            self._back.acquire()
        for thread in self._threads:
            thread.join()

    def fill(self) -> None:
        """Generation 1 is current and full; 2 is full but for 60 samples of each generator, and a manager has verified
        what it could.
        """
        cache = self.cache()
        writer = Writer(cache)
        self._current = None
        stored = writer.put((1, 1))
        assert stored is not None
        description = next(iter(self.tables[samples_table(1, 0)].values()))
        (chunk,) = self.tables[f"{key(1)}.chunks"].items()
        writer.abandon()
        self.tables[LEASES].clear()
        self.left = 60 * self.generators
        keys = [key(id) for id in range(self.cap)]
        for generation, count in (1, self.cap), (2, self.cap - self.left):
            self.tables[f"{key(generation)}.chunks"][chunk[0]] = chunk[1]
            for block in cache.blocks:
                ids = [id for id in cache.ids_of(block) if id < count]
                self.tables[samples_table(generation, block)] = {keys[id]: description for id in ids}
                if generation == 2 and len(ids) == len(cache.ids_of(block)) and len(cache.blocks) > 1:
                    self.tables[VERIFIED][f"{key(2)}.{block:06d}" if block else key(2)] = {"entries": 0}
        swap = Swap(1, self.now, self.cap, 0, 0.01, "host:1")
        self.tables[SWAPS][key(1)] = dataclasses.asdict(swap)

    def start_all(self) -> None:
        rng = random.Random(0)
        for number in range(self.generators):
            self.start("writer", lambda: self._write(SAMPLE_EVERY), rng.uniform(0, SAMPLE_EVERY))
            self.start("manager", lambda n=number: self._keep(n), rng.uniform(0, 1))  # type: ignore[misc]
        for number in range(self.readers):
            self.start("reader", lambda n=number: self._read(n), rng.uniform(0, 5))  # type: ignore[misc]

    def kill_manager(self) -> None:
        """The one that leads."""
        self._stopped |= {n for n, manager in self.managers.items() if manager.leads}

    def has_manager(self) -> bool:
        """Whether one leads that lives."""
        return any(manager.leads for n, manager in self.managers.items() if n not in self._stopped)

    def bury_later(self, count: int) -> None:
        """So many generators have died."""
        for number in range(count):
            lease = {"role": "generator", "process": f"gone:{number}", "generations": [2], "time": 0, "joined": 0}
            self.tables[LEASES][f"generator-{number:016x}"] = lease

    def _write(self, every: float) -> None:
        writer = Writer(self.cache(), self.stop)  # type: ignore[arg-type]
        self.writers.append(writer)
        while True:
            self.sleep(self.pace if self.pace is not None else every)
            writer.put((1, 1))

    def _keep(self, number: int) -> None:
        manager = GenerationManager(self.cache())
        self.managers[number] = manager
        while number not in self._stopped:
            swap = manager.step()
            if swap is None:
                self.sleep(manager.pause)

    def _read(self, number: int) -> None:
        reader, rng = Reader(self.cache(), ("data", "label")), random.Random(number)
        self.all_readers.append(reader)
        while True:
            generation = reader.pin_current(0)
            for _ in range(50):
                self.sleep(READ_EVERY)
                reader.read(generation, rng.randrange(self.cap))


class Memory:
    """A store: see :class:`headrace.wirehead._stores.store.Store`."""

    parallel = 1

    def __init__(self, simulation: Simulation) -> None:
        self._simulation, self.config = simulation, simulation.config
        self._incarnation: str | None = None

    def _count(self, name: str, documents: int = 0) -> None:
        self._simulation.requests[self._simulation.role, name] += 1
        self._simulation.documents[self._simulation.role, name] += documents

    def use(self, incarnation: str | None) -> None:
        self._incarnation = incarnation

    def incarnations(self) -> list[str]:
        self._count("list")
        return [str(self._incarnation)]

    def drop_incarnation(self, incarnation: str) -> None:
        raise NotImplementedError

    def insert(self, table: str, key: str, document: Mapping[str, Any]) -> bool:
        self._count(f"insert {table.rpartition('.samples')[1] or table}")
        return self._simulation.tables[table].setdefault(key, stored := dict(document)) is stored

    def find(self, table: str, key: str) -> Document | None:
        self._count(f"find {table.rpartition('.samples')[1] or table}", 1)
        found = self._simulation.tables.get(table, {}).get(key)
        return None if found is None else dict(found)

    def scan(self, table: str) -> dict[str, Document]:
        found = dict(self._simulation.tables.get(table, {}))
        self._count(f"scan {table.rpartition('.samples')[1] or table}", len(found))
        return found

    def replace(self, table: str, key: str, document: Mapping[str, Any]) -> None:
        self._count(f"replace {table}")
        self._simulation.tables[table][key] = {**document, "time": self._simulation.now}

    def remove(self, table: str, key: str) -> None:
        self._count(f"remove {table}")
        self._simulation.tables[table].pop(key, None)

    def now(self) -> float:
        self._count("now")
        return self._simulation.now

    def write_chunks(self, generation: int, chunks: Mapping[str, Any]) -> None:
        self._count("write chunks")
        self._simulation.tables[f"{key(generation)}.chunks"].update({n: bytes(c) for n, c in chunks.items()})

    def read_chunks(self, generation: int, names: Sequence[str]) -> Iterator[memoryview | None]:
        self._count("read chunks", len(names))
        chunks = self._simulation.tables[f"{key(generation)}.chunks"]
        return (memoryview(chunks[name]) if name in chunks else None for name in names)

    def missing_chunks(self, generation: int, lengths: Mapping[str, int]) -> list[str]:
        self._count("look for chunks", len(lengths))
        chunks = self._simulation.tables[f"{key(generation)}.chunks"]
        return [name for name in lengths if name not in chunks]

    def generations(self) -> list[int]:
        self._count("list")
        return sorted({int(name[:12]) for name in self._simulation.tables if name[0].isdigit()})

    def drop(self, generation: int) -> None:
        for name in [name for name in self._simulation.tables if name.startswith(key(generation))]:
            self._count("drop")
            del self._simulation.tables[name]

    def close(self) -> None: ...


@dataclasses.dataclass
class Phase:
    """What was asked for in a time.

    Attributes:
        rates: requests a second, by role.
        documents: returned in all, by role.
        samples: of these, descriptions of samples, by role.
    """

    name: str
    seconds: float
    rates: dict[str, float]
    documents: dict[str, int]
    samples: dict[str, int]

    @classmethod
    def of(cls, name: str, simulation: Simulation, seconds: float) -> Phase:
        rates: collections.Counter[str] = collections.Counter()
        documents: collections.Counter[str] = collections.Counter()
        samples: collections.Counter[str] = collections.Counter()
        for (role, _), count in simulation.requests.items():
            rates[role] += count
        for (role, kind), count in simulation.documents.items():
            documents[role] += count
            samples[role] += count if kind.endswith(".samples") else 0
        return cls(name, seconds, {r: c / seconds for r, c in rates.items()}, dict(documents), dict(samples))

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.seconds:.0f} s): {sum(self.rates.values()):.0f} requests/s"]
        for role in sorted(self.rates):
            lines.append(
                f"  {role:16} {self.rates[role]:9.1f} requests/s, {self.documents.get(role, 0):10d} documents "
                f"returned, {self.samples.get(role, 0)} of them descriptions"
            )
        return "\n".join(lines)


def simulate(generators: int, readers: int, cap: int) -> Iterator[Phase]:
    """One phase after the other."""
    simulation = Simulation(generators, readers, cap)
    original = leases.threading
    leases.threading = simulation.threading()  # type: ignore[assignment]
    try:
        simulation.fill()
        simulation.start_all()
        seconds = simulation.run(60)
        yield Phase.of("all begin", simulation, seconds)
        yield Phase.of("all at work", simulation, simulation.run(120))
        simulation.bury_later(generators)
        seconds = simulation.run(3 * LEASE)
        yield Phase.of(f"{generators} generators have died", simulation, seconds)
        assert not any(name.startswith("generator-000000") for name in simulation.tables[LEASES])
        simulation.kill_manager()
        seconds = simulation.run(3 * LEASE, until=simulation.has_manager)
        yield Phase.of("the manager has died", simulation, seconds)
        yield Phase.of("another one takes over", simulation, simulation.run(10))
        simulation.pace = SAMPLE_EVERY / 10
        seconds = simulation.run(3600, until=lambda: key(2) in simulation.tables[SWAPS])
        yield Phase.of("ten times as fast, up to the swap", simulation, seconds)
        simulation.pace = None
        yield Phase.of("from the swap on", simulation, simulation.run(30))
    finally:
        leases.threading = original
        simulation.end()


def simulate_waiting(generators: int, cap: int) -> Phase:
    """Generators that wait: two generations are full, and nobody swaps."""
    simulation = Simulation(generators, 0, cap)
    original = leases.threading
    leases.threading = simulation.threading()  # type: ignore[assignment]
    try:
        simulation.fill()
        description = next(iter(simulation.tables[samples_table(1, 0)].values()))
        cache = simulation.cache()
        for generation in (2, 3):
            for block in cache.blocks:
                table = simulation.tables[samples_table(generation, block)]
                table.update({key(id): description for id in cache.ids_of(block)})
        simulation.pace = 0.0
        for _ in range(generators):
            simulation.start("writer", lambda: simulation._write(0.0))
        simulation.run(120)
        return Phase.of("all generators wait", simulation, simulation.run(600))
    finally:
        leases.threading = original
        simulation.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generators", type=int, default=100)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--cap", type=int, default=1_000_000)
    options = parser.parse_args()
    logging.getLogger("headrace.wirehead").setLevel(logging.ERROR)  # generators that wait say so
    for phase in simulate(options.generators, options.readers, options.cap):
        print(phase, flush=True)
    print(simulate_waiting(options.generators, options.cap))


if __name__ == "__main__":
    main()
