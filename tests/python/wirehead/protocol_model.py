"""A model of the world that the cache's protocol lives in: one store in memory, and processes that run one operation at
a time in an order that a seed decides.

Between any two operations a process may be killed or stand still, for longer than LEASE too; the wall clock may be set;
what a process has sent may arrive after its end, or once more; chunks may be lost; somebody may clean the cache, or
restore a backup. The processes run the product's own code. What must not happen is noted down in ``World.problems``.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Union

import pytest
from model_store import Memory
from simulated_threads import Event, Threading

import headrace.wirehead._protocol.cache as caches
import headrace.wirehead._protocol.lease as leases
import headrace.wirehead._protocol.writer as writers
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache, Swap, versions_of
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import SETTINGS, SWAPS, samples_table, version_key
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, CorruptSampleError

LEASE, CAP = 30.0, 3

Tables = dict[tuple[Union[str, None], str], dict[str, Any]]


class _Killed(BaseException):
    """What a process of the model ends with."""


def _taken() -> Any:
    """A lock that one thread releases for another, at a fraction of the cost of a semaphore."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Actor:
    """A thread of a process, which runs only while it has the turn."""

    def __init__(self, world: World, process: int, action: Callable[[], None]) -> None:
        self._world, self.process, self._action = world, process, action
        self._turn, self._back = _taken(), _taken()
        self.has_ended = self.is_killed = False
        self.is_looking = False  # whether it looks at its lease, to act then
        self.is_deciding = False  # whether it has seen that, and is about to act
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self.is_killed:
                self._action()
        except _Killed:
            pass
        except BaseException as error:
            self._world.problems.append(f"{type(error).__name__}: {error}")
        self.has_ended = True
        self._back.release()

    def go(self) -> None:
        """Lets it run to its next pause. Called by the world."""
        self._world.running = self
        self._turn.release()
        self._back.acquire()

    def pause(self) -> None:
        """Gives the turn back. Called by its thread."""
        self._back.release()
        self._turn.acquire()
        if self.is_killed:
            raise _Killed

    def kill(self) -> None:
        self.is_killed = True
        if not self.has_ended:
            self.go()
        self._thread.join()


class World:
    """See the module.

    Args:
        seed: of all that happens.
        cleans: somebody cleans the cache now and then.
        damages: chunks are lost now and then.
        restores: backups are made, and restored, now and then: each is the state at one moment. What the requirements
            of the protocol exclude does not happen: no request outlives a restore, and none comes between a manager's
            last look and what it does then. A process that was there before may be wrong until it notices,
            but makes no swap that lacks a sample; and for those that come after it, all is as it should be.
        tells: other processes tell readers of earlier generations now and then, which may be gone.
        block: samples per block; CAP or more: there is one block, of which managers write down nothing.
    """

    def __init__(
        self,
        seed: int,
        cleans: bool = False,
        damages: bool = False,
        restores: bool = False,
        tells: bool = False,
        block: int = CAP,
    ) -> None:
        self.tells, self.block = tells, block
        self.rng = random.Random(seed)
        self.cleans, self.damages, self.restores = cleans, damages, restores
        self.time, self.wall = 1000.0, 1e9
        self.tables: Tables = {}
        self.problems: list[str] = []
        self.swaps = 0
        self.running: Actor | None = None
        self._actors: list[Actor] = []
        self._numbers = iter(range(1, 1 << 30))
        self._asleep: dict[int, float] = {}  # until when, by process
        self._late: list[Callable[[], object]] = []  # what arrives some time
        self._damaged: set[str] = set()  # chunks
        self._cleaned: set[str] = set()  # incarnations
        self.dropped: set[tuple[str | None, int]] = set()
        self._backups: list[Tables] = []
        self._era = 0  # how many backups have been restored
        self._acknowledged: dict[tuple[str | None, int, int], int] = {}
        self._read: dict[tuple[str | None, int, int], int] = {}
        self.config = Config.load({"DBNAME": "model", "SWAP_CAP": CAP, "LEASE": LEASE, "MONGOHOST": "model"})

    def run(self, steps: int, writers: int = 2, readers: int = 1, managers: int = 2) -> World:
        """So many operations."""
        for role, count in ((self._write, writers), (self._keep, managers), (self._read_all, readers)):
            for _ in range(count):
                self._begin(role)
        try:
            for _ in range(steps):
                self._disturb()
                awake = [a for a in self._actors if self._asleep.get(a.process, 0) <= self.time]
                if not awake:
                    self.time += 1
                    continue
                actor = self.rng.choice(awake)
                actor.go()
                self.time += self.rng.choice((0.01, 0.1, 0.5))
                if actor.has_ended:
                    self._actors.remove(actor)
                if self.problems:
                    break
            self._check()
        finally:
            for actor in self._actors:
                actor.kill()
        return self

    def operation(self, action: Callable[[], Any], repeats: bool = False) -> Any:
        """One operation of a store: something else may happen before it and after it."""
        self._pause()
        if repeats and self.rng.random() < 0.03:
            self._late.append(action)
        result = action()
        if self.rng.random() < 0.3:
            self._pause()
        return result

    def _pause(self) -> None:
        actor = self.running
        if actor is not None and not actor.is_killed and threading.current_thread() is actor._thread:
            actor.pause()

    def looks(self) -> None:
        """Called when a document is looked up."""
        if self.running is not None and self.running.is_looking:
            self.running.is_deciding = True

    def wait(self, seconds: float | None, is_set: bool) -> None:
        """What it is to wait for an event."""
        self._pause()

    def start_thread(self, action: Callable[[], None]) -> None:
        """Another thread of the process that runs."""
        assert self.running is not None
        self._actors.append(Actor(self, self.running.process, action))

    def _begin(self, role: Callable[[], None]) -> None:
        def again() -> None:
            while True:
                with contextlib.suppress(CacheGoneError):  # a supervisor starts it anew
                    role()
                self._pause()

        again.role = role  # type: ignore[attr-defined]
        self._actors.append(Actor(self, next(self._numbers), again))

    def _disturb(self) -> None:
        chance = self.rng.random()
        if chance < 0.004:
            process = self.rng.choice(self._actors).process
            self._asleep[process] = self.time + self.rng.choice((3, LEASE / 2, LEASE * 1.5, LEASE * 4))
        elif chance < 0.012:
            self.wall += self.rng.choice((-3600, -LEASE, LEASE, 3600))
        elif chance < 0.014:
            victim = self.rng.choice(self._actors).process
            for actor in [actor for actor in self._actors if actor.process == victim]:
                self._actors.remove(actor)
                actor.kill()
                if (role := getattr(actor._action, "role", None)) is not None:
                    self._begin(role)
        elif chance < 0.015:  # the machine was suspended
            self.time += 2 * LEASE
            self._asleep = {process: until + 2 * LEASE for process, until in self._asleep.items()}
        elif chance < 0.025 and self._late:
            self._late.pop(self.rng.randrange(len(self._late)))()
        elif chance < 0.026 and self.damages:
            self._lose_a_chunk()
        elif chance < 0.0264 and self.cleans:
            self._clean()
        elif chance < 0.04 and self.restores:
            self._backups = [*self._backups[-3:], self._copy(self.tables)]
        elif (
            chance < (0.06 if getattr(self.running, "is_looking", False) else 0.041)
            and self.restores
            and self._backups
            and not any(actor.is_deciding for actor in self._actors)
        ):
            self._restore()

    def _clean(self) -> None:
        self._cleaned |= {str(settings["incarnation"]) for settings in self.tables.get((None, SETTINGS), {}).values()}
        self.tables.clear()

    @staticmethod
    def _copy(tables: Tables) -> Tables:
        return {name: dict(table) for name, table in tables.items()}

    def _restore(self) -> None:
        self.tables.clear()
        self.tables.update(self._copy(self.rng.choice(self._backups)))
        self._late.clear()
        for of_before in (self._acknowledged, self._read, self.dropped):
            of_before.clear()
        self._era += 1

    def _lose_a_chunk(self) -> None:
        tables = [table for (_, name), table in self.tables.items() if name.endswith(".chunks") and table]
        if tables:
            table = self.rng.choice(tables)
            name = self.rng.choice(sorted(table))
            del table[name]
            self._damaged.add(name)

    def _cache(self) -> Cache:
        return Cache(self.config, Memory(self), clock=lambda: self.time)

    def _write(self) -> None:
        era, cache = self._era, self._cache()
        stop: Any = Event(self.wait)
        writer = Writer(cache, stop)
        while True:
            value = next(self._numbers)
            stored = writer.put((value, value))
            assert stored is not None
            if era < self._era:
                continue
            key = (cache.incarnation, *stored)
            is_clean = cache.incarnation in self._cleaned
            if key in self._acknowledged and not is_clean and not self._is_damaged(cache, *stored):
                self.problems.append(f"{stored} was acknowledged twice")
            self._acknowledged[key] = value

    def _keep(self) -> None:
        manager = _Manager(self, self._cache())
        while True:
            swap = manager.step()
            self.swaps += swap is not None
            self._pause()

    def _read_all(self) -> None:
        era, cache = self._era, self._cache()
        reader = Reader(cache, ("data", "label"))
        while True:
            try:
                generation = reader.pin_current(-1, keep=self.tells and self.rng.random() < 0.5)
            except TimeoutError:
                self._pause()
                continue
            if self.tells and generation > 1 and self.rng.random() < 0.5:
                generation = max(1, generation - self.rng.choice((1, 1, 2)))
                reader.pin(generation)
            for id in self.rng.choices(range(CAP), k=self.rng.choice((1, 3, 100))):
                try:
                    value = int(reader.read(generation, id)["label"][1])
                except CorruptSampleError as error:
                    if not reader.is_certain(generation) or era < self._era:
                        break
                    if not self._is_damaged(cache, generation, id):
                        with contextlib.suppress(CacheGoneError):
                            cache.check_is_there()
                            self.problems.append(f"a pinned generation cannot be read: {error}")
                    continue
                key = cache.incarnation, generation, id
                if era < self._era:
                    continue
                if cache.incarnation not in self._cleaned and self._read.setdefault(key, value) != value:
                    self.problems.append(f"sample {id} of generation {generation} had two contents")

    def _described(self, incarnation: str | None, generation: int, id: int) -> dict[str, Any]:
        """The table of a sample's description."""
        return self.tables.get((incarnation, samples_table(generation, id // self.block)), {})

    def _is_damaged(self, cache: Cache, generation: int, id: int) -> bool:
        """Whether a chunk of a sample was lost."""
        stored = self._described(cache.incarnation, generation, id)
        versions = [stored.get(version_key(id, version)) for version in range(10)]
        return any(d is not None and self._damaged.intersection(chunk_names(d, [0])) for d in versions)

    def _check(self) -> None:
        """Nothing that was acknowledged is lost, unless it was dropped as it should be."""
        self.running = None
        settings = self.tables.get((None, SETTINGS), {}).get("settings")
        if settings is None:
            return
        cache = self._cache()
        current = cache.current()
        of = cache.incarnation
        for (incarnation, generation, id), value in self._acknowledged.items():
            if incarnation != of or generation < current:
                continue
            description = cache.sample(generation, id)
            if description is None or self._is_damaged(cache, generation, id):
                if not self._is_damaged(cache, generation, id):
                    self.problems.append(f"acknowledged sample {id} of generation {generation} is gone")
                continue
            stored = self.tables.get((of, f"{generation:012d}.chunks"), {})
            if any(name not in stored for name in chunk_names(description, [0])):
                self.problems.append(f"chunks of acknowledged sample {id} of generation {generation} are gone")
            elif self._read.get((of, generation, id), value) != value:
                self.problems.append(f"acknowledged sample {id} of generation {generation} is another one")

    def swapped(self, incarnation: str | None, generation: int) -> None:
        """Called at a swap: it must be whole, if it is not one that comes long after another one has done it."""
        others = [int(name[:12]) for name, entry in self.tables[incarnation, SWAPS].items() if "void" not in entry]
        if max(others) > generation:
            return
        if others.count(generation) > 1:
            self.problems.append(f"generation {generation} was swapped twice")
        chunks = self.tables.get((incarnation, f"{generation:012d}.chunks"), {})
        entries = sorted(self.tables[incarnation, SWAPS].items())
        versions = versions_of(entry for name, entry in entries if int(name[:12]) == generation)
        for id in range(CAP if incarnation not in self._cleaned else 0):
            stored = self._described(incarnation, generation, id)
            description = stored.get(version_key(id, versions.get(id, 0)))
            lost = description is None or not chunks.keys() >= set(chunk_names(description, [0]))
            if lost and not (self.damages and description is not None):
                self.problems.append(f"generation {generation} was swapped without sample {id}")

    def count_generations(self, incarnation: str | None) -> None:
        """Called when something is stored."""
        if self._era:  # who has not noticed a restored backup yet goes on where it was
            return
        kept = {int(name[:12]) for (of, name), table in self.tables.items() if of == incarnation and name[0].isdigit()}
        kept = {generation for generation in kept if (incarnation, generation) not in self.dropped}
        if len(kept) > 3:
            self.problems.append(f"more than three generations are stored: {sorted(kept)}")


class _Manager(GenerationManager):
    """Tells the world what it is about to do."""

    def __init__(self, world: World, cache: Cache) -> None:
        super().__init__(cache)
        self._world = world

    def step(self) -> Swap | None:
        actor = self._world.running
        assert actor is not None
        try:
            return super().step()
        finally:
            actor.is_looking = actor.is_deciding = False

    def _holds(self) -> bool:
        assert self._world.running is not None
        self._world.running.is_looking = True
        return super()._holds()


class _Lock:
    """A lock whose waiters give the turn back."""

    def __init__(self, world: World) -> None:
        self._world, self._is_held = world, False

    def __enter__(self) -> None:
        while self._is_held:
            self._world._pause()
        self._is_held = True

    def __exit__(self, *exception: object) -> None:
        self._is_held = False


def explore(patch: pytest.MonkeyPatch, seeds: Sequence[int], steps: int, **what: Any) -> tuple[list[str], int]:
    """The problems of the first world that has some, and how many swaps there were."""
    swaps = 0
    for seed in seeds:
        world = World(seed, **what)
        threads = Threading(world.wait, lambda world=world: _Lock(world), world.start_thread)  # type: ignore[misc]
        patch.setattr(leases, "threading", threads)
        patch.setattr(caches, "block_size", lambda swap_cap, block=world.block: block)
        patch.setattr(writers, "random", world.rng)
        patch.setattr(uuid, "uuid4", lambda rng=world.rng: uuid.UUID(int=rng.getrandbits(128)))
        world.run(steps)
        swaps += world.swaps
        if world.problems:
            return [f"seed {seed}: {problem}" for problem in world.problems], swaps
    return [], swaps
