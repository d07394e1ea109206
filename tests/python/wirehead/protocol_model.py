"""A model of the world that the cache's protocol lives in: one store in memory, and processes that run one operation at
a time in an order that a seed decides.

Between any two operations a process may be killed or stand still, for longer than LEASE too; the wall clock may be set;
what a process has sent may arrive after its end, or once more; it may read what was there a while ago; chunks may be
lost; somebody may clean the cache, or restore a backup. The clocks of two processes differ in speed by up to 9%. In the
end, none of this happens any more, and all must go on. The processes run the product's own code. What must not happen
is noted down in ``World.problems``.
"""

from __future__ import annotations

import contextlib
import random
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import SWAPS, samples_table, version_key
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, CorruptSampleError

LEASE, CAP = 30.0, 3
_QUIET = 6000  # operations in which all must go on, once nothing disturbs them any more

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
        self.sent: Callable[[], object] | None = None  # what it waits for
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
        lags: a process may see for a while no more than it has seen or written already, as it does at a replica set
            whose primary changes.
        tells: other processes tell readers of earlier generations now and then, which may be gone.
        block: samples per block; CAP or more: there is one block, of which managers write down nothing.
    """

    def __init__(
        self,
        seed: int,
        cleans: bool = False,
        damages: bool = False,
        restores: bool = False,
        lags: bool = False,
        tells: bool = False,
        block: int = CAP,
    ) -> None:
        self.tells, self.block = tells, block
        self.rng = random.Random(seed)
        self.cleans, self.damages, self.restores, self.lags = cleans, damages, restores, lags
        self.time, self.wall = 1000.0, 1e9
        self.tables: Tables = {}
        self.states: list[Tables] = [{}]  # after each write, if it lags
        self.problems: list[str] = []
        self.swaps = 0
        self._is_quiet = False
        self.running: Actor | None = None
        self._actors: list[Actor] = []
        self._leases: dict[int, Callable[[], Lease | None]] = {}  # of a process
        self._numbers = iter(range(1, 1 << 30))
        self._asleep: dict[int, float] = {}  # until when, by process
        self._late: list[Callable[[], object]] = []  # what arrives some time
        self._damaged: set[str] = set()  # chunks
        self._cleaned: set[str] = set()  # incarnations
        self.dropped: set[tuple[str | None, int]] = set()
        self._backups: list[Tables] = []
        self._era = 0  # how many backups have been restored
        self._newest = 0  # the highest generation that was current when one was
        self._losses = 0  # how many backups have been restored and caches cleaned
        self._acknowledged: dict[tuple[str | None, int, int], int] = {}
        self._origins: dict[tuple[str | None, int, int], tuple[str, int]] = {}  # lease and number they were put under
        self._of_swaps: dict[tuple[str | None, int, int], tuple[str, int]] = {}  # of the samples in generations swapped
        self._read: dict[tuple[str | None, int, int], int] = {}
        keys = {"DBNAME": "model", "SWAP_CAP": CAP, "MONGOHOST": "model"}
        self._configs = [Config.load({**keys, "LEASE": lease}) for lease in (LEASE, LEASE, 2 * LEASE)]

    def run(self, steps: int, writers: int = 2, readers: int = 1, managers: int = 2) -> World:
        """So many operations."""
        for role, count in ((self._write, writers), (self._keep, managers), (self._read_all, readers)):
            for _ in range(count):
                self._begin(role)
        try:
            for _ in range(steps):
                self._disturb()
                self._go()
                if self.problems:
                    return self
            self._calm_down()
            self._check()
        finally:
            for actor in self._actors:
                actor.kill()
        return self

    def _go(self) -> None:
        """One operation of some process."""
        awake = [actor for actor in self._actors if self._asleep.get(actor.process, 0) <= self.time]
        if not awake:
            self.time += 1
            return
        actor = self.rng.choice(awake)
        actor.go()
        self.time += self.rng.choice((0.01, 0.1, 0.5))
        if actor.has_ended:
            self._end(actor.process)

    def _calm_down(self) -> None:
        """All that is under way arrives; nothing else happens from now on. There are swaps, and no leftovers."""
        while self._late:
            self._deliver()
        self._asleep.clear()
        self._is_quiet, swaps = True, self.swaps
        for _ in range(_QUIET):
            self._go()
            if self.problems or (self.swaps >= swaps + 2 and len({of for of, _ in self.tables if of}) == 1):
                return
        self.problems.append("the cache stands still, or keeps what was cleaned")

    def operation(self, action: Callable[[], Any], repeats: bool = False) -> Any:
        """One operation of a store: something else may happen before it and after it."""
        actor = self.running
        if actor is not None:
            actor.sent = action
        self._pause()
        if actor is not None:
            actor.sent = None
        if repeats and not self._is_quiet and self.rng.random() < 0.03:
            self._late.append(action)
        result = action()
        if self.rng.random() < 0.3:
            self._pause()
        return result

    def _pause(self) -> None:
        actor = self.running
        if actor is not None and not actor.is_killed and threading.current_thread() is actor._thread:
            actor.pause()

    def wrote(self) -> int:
        """The number of the state after a write."""
        if self.lags:
            self.states.append(self._copy(self.tables))
        return len(self.states) - 1

    def begins_to_lag(self) -> float:
        """Until when a process does, from a moment on when it reads."""
        begins = self.lags and not self._is_quiet and self.rng.random() < 0.02
        return self.time + self.rng.choice((3, LEASE, 3 * LEASE)) if begins else 0.0

    def looks(self) -> None:
        """Called when a document is looked up."""
        if self.running is not None and self.running.is_looking:
            self.running.is_deciding = True

    def wait(self, seconds: float | None, is_set: bool) -> None:
        """What it is to wait for an event."""
        self._pause()

    def start_thread(self, action: Callable[[], None]) -> None:
        """Another thread of the process that runs."""
        self._actors.append(Actor(self, self._process, action))

    def _begin(self, role: Callable[[], None]) -> None:
        def begin() -> None:
            losses = self._losses
            try:
                role()
            except CacheGoneError as error:  # a supervisor starts it anew
                if losses == self._losses:
                    self.problems.append(f"a process ended although its cache was there: {error}")

        begin.role = role  # type: ignore[attr-defined]
        self._actors.append(Actor(self, next(self._numbers), begin))

    def _end(self, process: int) -> None:
        """It has ended, or is killed; if it has a role, another one takes it."""
        for actor in [actor for actor in self._actors if actor.process == process]:
            self._actors.remove(actor)
            self._leases.pop(process, None)
            if actor.sent is not None and not self._is_quiet and self.rng.random() < 0.5:
                self._late.append(actor.sent)
            actor.kill()
            if (role := getattr(actor._action, "role", None)) is not None:
                self._begin(role)

    def _disturb(self) -> None:
        chance = self.rng.random()
        for share, happen in self._troubles():
            if chance < share:
                happen()
                return
            chance -= share

    def _troubles(self) -> Iterator[tuple[float, Callable[[], None]]]:
        """What may happen, and how often."""
        yield 0.004, self._suspend
        yield 0.008, self._set_the_clock
        yield 0.002, lambda: self._end(self.rng.choice(self._actors).process)
        yield 0.001, self._suspend_the_machine
        yield 0.01, self._deliver
        if self.damages:
            yield 0.001, self._lose_a_chunk
        if self.cleans:
            yield 0.0006, self._clean
        if self.restores:
            yield 0.014, self._back_up
            yield 0.02 if getattr(self.running, "is_looking", False) else 0.001, self._restore

    def _suspend(self) -> None:
        process = self.rng.choice(self._actors).process
        self._asleep[process] = self.time + LEASE * self.rng.choice((0.1, 0.1, 0.5, 0.5, 1.5, 1.5, 4, 4, 12))

    def _set_the_clock(self) -> None:
        self.wall += self.rng.choice((-3600, -LEASE, LEASE, 3600))

    def _suspend_the_machine(self) -> None:
        self.time += 2 * LEASE
        self._asleep = {process: until + 2 * LEASE for process, until in self._asleep.items()}

    def _deliver(self) -> None:
        if self._late:
            self._late.pop(self.rng.randrange(len(self._late)))()

    def _clean(self) -> None:
        self._actors.append(Actor(self, next(self._numbers), lambda: Memory(self).clean()))

    def cleaned(self, incarnation: str) -> None:
        """Called when the settings are removed."""
        self._cleaned.add(incarnation)
        self._losses += 1

    def _back_up(self) -> None:
        self._backups = [*self._backups[-3:], self._copy(self.tables)]

    @staticmethod
    def _copy(tables: Tables) -> Tables:
        return {name: dict(table) for name, table in tables.items()}

    def _restore(self) -> None:
        if not self._backups or any(actor.is_deciding for actor in self._actors):
            return
        self._newest = max(self._newest, *map(self._current, {of for of, _ in self.tables}), 0)
        self.tables.clear()
        self.tables.update(self._copy(self.rng.choice(self._backups)))
        self._late.clear()
        for of_before in (self._acknowledged, self._origins, self._of_swaps, self._read, self.dropped, self._leases):
            of_before.clear()
        self._era += 1
        self._losses += 1

    def _lose_a_chunk(self) -> None:
        tables = [table for (_, name), table in self.tables.items() if name.endswith(".chunks") and table]
        if tables:
            table = self.rng.choice(tables)
            name = self.rng.choice(sorted(table))
            del table[name]
            self._damaged.add(name)
            self.wrote()

    def _cache(self) -> Cache:
        config, speed = self.rng.choice(self._configs), self.rng.choice((0.955, 1, 1.045))
        return Cache(config, Memory(self, config), clock=lambda: self.time * speed)

    def _write(self) -> None:
        era, cache = self._era, self._cache()
        stop: Any = Event(self.wait)
        writer = Writer(cache, stop)
        self._leases[self._process] = lambda: writer._lease
        while True:
            value = next(self._numbers)
            stored = writer.put((value, value))
            assert stored is not None
            if era < self._era:
                continue
            key = (cache.incarnation, *stored)
            is_clean = cache.incarnation in self._cleaned
            if key in self._acknowledged and not is_clean and not self._is_damaged(*key):
                self.problems.append(f"{stored} was acknowledged twice")
            assert writer._lease is not None
            self._acknowledged[key], self._origins[key] = value, (writer._lease.key, writer._number - 1)
            if not is_clean and not self._is_damaged(*key):
                is_swapped = self._current(key[0]) >= stored[0]
                there = [self._of_swaps.get(key)] if is_swapped else map(_origin, self._described(*key).values())
                if self._origins[key] not in there:
                    self.problems.append(f"{stored} is acknowledged, but not there")

    def _keep(self) -> None:
        manager = _Manager(self, self._cache())
        while True:
            swap = manager.step()
            self.swaps += swap is not None
            self._pause()

    def _read_all(self) -> None:
        era, cache = self._era, self._cache()
        reader = Reader(cache, ("data", "label"))
        self._leases[self._process] = lambda: reader._lease
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
                    if not self._is_damaged(cache.incarnation, generation, id):
                        with contextlib.suppress(CacheGoneError):
                            cache.check_is_there()
                            self.problems.append(f"a pinned generation cannot be read: {error}")
                    continue
                key = cache.incarnation, generation, id
                if era < self._era:
                    continue
                if cache.incarnation not in self._cleaned and self._read.setdefault(key, value) != value:
                    self.problems.append(f"sample {id} of generation {generation} had two contents")

    @property
    def _process(self) -> int:
        """The one that runs."""
        assert self.running is not None
        return self.running.process

    def buried(self, dead: set[str]) -> None:
        """Called with the keys of the leases that a manager takes for dead: none of them may act on its lease."""
        for lease_of in self._leases.values():
            lease = lease_of()
            if lease is not None and lease.key in dead and lease._is_alive():
                self.problems.append(f"{lease.key} is taken for dead, but lives")

    def _described(self, incarnation: str | None, generation: int, id: int) -> dict[str, Any]:
        """The table of a sample's description."""
        return self.tables.get((incarnation, samples_table(generation, id // self.block)), {})

    def _is_damaged(self, incarnation: str | None, generation: int, id: int) -> bool:
        """Whether a chunk of a sample was lost."""
        stored = self._described(incarnation, generation, id)
        versions = [stored.get(version_key(id, version)) for version in range(10)]
        return any(d is not None and self._damaged.intersection(chunk_names(d, [0])) for d in versions)

    def _check(self) -> None:
        """Nothing that was acknowledged is lost, unless it was dropped as it should be."""
        self.running = None
        cache = self._cache()
        current = cache.current()
        for (of, generation, id), value in self._acknowledged.items():
            if of != cache.incarnation:
                if of not in self._cleaned:
                    self.problems.append(f"sample {id} of generation {generation} was acknowledged for another cache")
                continue
            if generation < current or self._is_damaged(of, generation, id):
                continue
            description = cache.sample(generation, id)
            if description is None:
                self.problems.append(f"acknowledged sample {id} of generation {generation} is gone")
                continue
            stored = self.tables.get((of, f"{generation:012d}.chunks"), {})
            if any(name not in stored for name in chunk_names(description, [0])):
                self.problems.append(f"chunks of acknowledged sample {id} of generation {generation} are gone")
            elif self._read.get((of, generation, id), value) != value:
                self.problems.append(f"acknowledged sample {id} of generation {generation} is another one")

    def described(self, incarnation: str | None, generation: int, description: Mapping[str, Any]) -> None:
        """Called when a description is stored: the chunks were there before."""
        chunks = self.tables.get((incarnation, f"{generation:012d}.chunks"), {})
        missing = set(chunk_names(description, [0])) - chunks.keys() - self._damaged
        is_late = self.restores or incarnation in self._cleaned or (incarnation, generation) in self.dropped
        if missing and not is_late:
            self.problems.append(f"a sample of generation {generation} is described before it is there")

    def decided(self, incarnation: str | None, generation: int, entry: Mapping[str, Any]) -> None:
        """Called at a manager's entry."""
        if "void" not in entry:
            self._swapped(incarnation, generation)
        elif not (self.damages or self.restores or incarnation in self._cleaned):
            self.problems.append(f"samples of generation {generation} are annulled, but nothing is damaged")

    def _swapped(self, incarnation: str | None, generation: int) -> None:
        """It must be whole, if it is not one that comes long after another one has done it."""
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
            if description is None or self._is_damaged(incarnation, generation, id):
                continue
            key = incarnation, generation, id
            self._of_swaps[key] = _origin(description)
            if self._origins.get(key, _origin(description)) != _origin(description):
                self.problems.append(f"generation {generation} was swapped with another sample {id}")

    def count_generations(self, incarnation: str | None) -> None:
        """Called when something is stored."""
        kept = {int(name[:12]) for (of, name), table in self.tables.items() if of == incarnation and name[0].isdigit()}
        kept = {generation for generation in kept if (incarnation, generation) not in self.dropped}
        # Who has not noticed yet that a backup was restored goes on where it was.
        most = 3 if self._current(incarnation) > self._newest else 3 + 2 * self._era
        if len(kept) > most:
            self.problems.append(f"more than {most} generations are stored: {sorted(kept)}")

    def _current(self, incarnation: str | None) -> int:
        entries = self.tables.get((incarnation, SWAPS), {}).items()
        return max((int(name[:12]) for name, entry in entries if "void" not in entry), default=0)


def _origin(description: Mapping[str, Any]) -> tuple[str, int]:
    return description["writer"], description["number"]


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
            self._world.buried(self._watch.dead)

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
