"""A storm: many processes put, get and swap while everything goes wrong that may, and all that they see is checked.

Processes are killed, or suspended together for longer than LEASE; the wall clock is set forwards and backwards, the
machine is suspended, the cache is cleaned; plus faults of the caller's choice, such as a server that fails over.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.wirehead._benchmarks import storm_roles
from headrace.wirehead._benchmarks.child import run_child
from headrace.wirehead._benchmarks.storm_roles import Clocks, Note, Notebook
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.reader import Reader
from headrace.wirehead._stores.open_store import open_store
from headrace.wirehead._stores.store import LEASES
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, StoreError

CAP = 20
_SHORTEST_LEASE = 2.0  # seconds
_REQUESTS = 20  # one after the other that there is time for within LEASE
_MEASURE_EVERY, _MEASURED = 0.5, 20  # seconds; the last ones that count
_MOST_GENERATIONS = 3
_LOOK_EVERY = 0.05  # seconds
_REPORT_EVERY = 60.0  # seconds
_PATIENCE = 180.0, 60.0  # seconds, and times LEASE, without anything done, after which nothing will be
_CHANCES = {"kill": 50, "freeze": 15, "set the clock": 12, "suspend": 5, "clean": 3, "fault": 15}


@dataclasses.dataclass
class StormResult:
    """The result of a storm.

    Attributes:
        operations: samples stored, samples read and swaps.
        happened: the number of faults of each kind: "kill", "freeze", "set the clock", "suspend", "clean", "fault".
        swaps: in all.
        caches: that there were, one after the other.
        most_generations: the largest number of stored generations of one cache.
        longest_lease: the largest LEASE of a process, in seconds.
        problems: violations, in words; expected to be empty.
    """

    operations: int = 0
    happened: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    swaps: int = 0
    caches: int = 0
    most_generations: int = 0
    longest_lease: float = 0
    seconds: float = 0
    problems: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        happened = ", ".join(f"{count} x {what}" for what, count in self.happened.items()) or "nothing"
        return (
            f"{self.operations} operations, {self.swaps} swaps in {self.caches} caches, {self.seconds:.0f} s: "
            f"{happened}; at most {self.most_generations} generations, LEASE at most {self.longest_lease:.1f} s, "
            f"{len(self.problems)} problems"
        )


class Latency:
    """How long a write to a server takes while other processes use it.

    Args:
        config: of a cache of that server; the writes go to a collection of their own.
    """

    def __init__(self, config: Config) -> None:
        self._store = None if config.is_local else open_store(dataclasses.replace(config, counter_collection="latency"))
        self._next, self._numbers = 0.0, itertools.count()
        self._seconds: collections.deque[float] = collections.deque(maxlen=_MEASURED)
        if self._store is not None:
            self._store.use("0" * 16)

    def measure(self) -> None:
        """At most once per ``_MEASURE_EVERY`` seconds."""
        start = time.monotonic()
        if self._store is None or start < self._next:
            return
        self._store.replace(LEASES, "latency", {"beat": next(self._numbers)})
        self._seconds.append(time.monotonic() - start)
        self._next = time.monotonic() + _MEASURE_EVERY

    @property
    def seconds(self) -> float:
        """The mean of the last ``_MEASURED`` writes; 0 in a folder."""
        return statistics.fmean(self._seconds) if self._seconds else 0.0

    def close(self) -> None:
        if self._store is not None:
            self._store.clean()
            self._store.close()


class Storm:
    """Processes, faults, and observations of the cache.

    All durations are proportional to LEASE, and LEASE to the duration of a write: if renewing a lease takes as long as
    the lease lasts, no process lives for long enough to store anything. A process with too short a LEASE is restarted.

    Args:
        location: the keys that say where the cache is, for the processes.
        fault: called now and then, does something to the store and puts it right again.
        own_location: the keys for who looks on.
    """

    def __init__(
        self,
        location: Mapping[str, Any],
        seed: int,
        fault: Callable[[random.Random], None] | None = None,
        own_location: Mapping[str, Any] | None = None,
    ) -> None:
        keys = {"SWAP_CAP": CAP, "CHUNKSIZE": 0.001}
        self.config = Config.load({**location, **keys})
        self._own_config = Config.load({**(own_location or location), **keys})
        self._latency = Latency(self.config)
        self._fault, self._rng = fault, random.Random(f"{seed} whom, how and when")
        self._kinds = random.Random(seed)  # draws as many numbers however many processes there are just now
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([storm_roles.__name__])
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-storm-")
        self.notes = Path(self._folder.name, "notes")
        self.notes.mkdir()
        self._clocks_path = f"{self._folder.name}/clocks"
        self._clocks = Clocks(self._clocks_path)
        self._running: list[tuple[str, Any]] = []
        self._leases: dict[int, float] = {}  # by process
        self._numbers = iter(range(1, 1 << 16))
        self._frozen: dict[int, float] = {}  # until when, by process
        self._cache: Cache | None = None
        self._current: dict[str, int] = {}  # generation that was seen last, by incarnation
        self._cleaners: dict[int, list[float]] = {}  # when each began and ended, by process
        # Incarnation, time, what; of which cleaning may be the cause.
        self._suspicions: list[tuple[str, float, str]] = []
        self._start = time.monotonic()
        self.result = StormResult()

    @property
    def lease(self) -> float:
        """LEASE of a process that begins now."""
        return max(_SHORTEST_LEASE, _REQUESTS * self._latency.seconds)

    @property
    def pace(self) -> float:
        """What to multiply the times with between which something happens."""
        return self.lease / _SHORTEST_LEASE

    def begin(self, role: str) -> None:
        """Another process."""
        number, action = next(self._numbers), getattr(storm_roles, role)
        config = dataclasses.replace(self.config, lease=self.lease)
        self.result.longest_lease = max(self.result.longest_lease, config.lease)
        arguments = (storm_roles.begin_anew, action, config, number, str(self.notes / str(number)))
        process = self._context.Process(target=run_child, args=(*arguments, self._clocks_path), daemon=True)
        before = time.monotonic()
        process.start()
        self._running.append((role, process))
        self._leases[process.pid or 0] = config.lease
        if role == "clean":
            self._cleaners[process.pid or 0] = [before, math.inf]

    def _has_ended(self, role: str, process: Any) -> None:
        process.join()
        if role == "clean":
            self._cleaners[process.pid][1] = time.monotonic()

    def end(self) -> None:
        """Of all processes."""
        for _, process in self._running:
            process.kill()
            process.join()
        self._running.clear()

    def close(self) -> None:
        self.end()
        self._latency.close()
        if self._cache is not None:
            self._cache.close()
        self._folder.cleanup()

    @property
    def operations(self) -> int:
        """So far."""
        return Notebook.count(self.notes) + self.swaps

    @property
    def swaps(self) -> int:
        return sum(self._current.values())

    def disturb(self) -> None:
        """Something goes wrong."""
        possible = [what for what in _CHANCES if what != "fault" or self._fault is not None]
        (what,) = self._kinds.choices(possible, [_CHANCES[what] for what in possible])
        self.result.happened[what] += 1
        if what == "kill":
            self._kill(self._rng.choice(self._running))
        elif what == "freeze":
            some = self._rng.sample(self._running, self._rng.randint(1, len(self._running)))
            until = time.monotonic() + self.lease * self._rng.choice((0.2, 0.7, 1.5, 3))
            for _, process in some:
                _signal(process.pid, signal.SIGSTOP)
                self._frozen[process.pid] = until
        elif what == "set the clock":
            step = self._rng.choice((-3600, -2 * self.lease, 2 * self.lease, 3600))
            self._clocks.set(self._clocks.wall + step, self._clocks.boot)
        elif what == "suspend":
            self._suspend(self.lease * self._rng.choice((0.5, 2, 1800)))
        elif what == "clean":
            self.begin("clean")
        elif self._fault is not None:
            self._fault(self._rng)

    def _kill(self, victim: tuple[str, Any]) -> None:
        role, process = victim
        self._running.remove(victim)
        process.kill()
        self._has_ended(role, process)
        if role != "clean":
            self.begin(role)

    def _suspend(self, seconds: float) -> None:
        """All processes are suspended, and all clocks but the monotonic one continue."""
        pids = [process.pid for _, process in self._running]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        while not all(map(_stands_still, pids)):
            time.sleep(0.001)
        self._clocks.set(self._clocks.wall + seconds, self._clocks.boot + seconds)
        for pid in pids:
            if pid not in self._frozen:
                _signal(pid, signal.SIGCONT)

    def thaw(self, now: float = float("inf")) -> None:
        """Resumes the processes that were suspended for long enough."""
        for pid in [pid for pid, until in self._frozen.items() if until <= now]:
            del self._frozen[pid]
            _signal(pid, signal.SIGCONT)

    def look(self) -> int | None:
        """Looks at the processes and the cache; its current generation, None if there is none just now."""
        for entry in [entry for entry in self._running if not entry[1].is_alive()]:
            role, process = entry
            self._running.remove(entry)
            self._has_ended(role, process)
            if process.exitcode != 0 or role != "clean":
                self.result.problems.append(f"a process that should {role} exited with code {process.exitcode}")
                self.begin(role)
        self._latency.measure()
        for entry in [entry for entry in self._running if self._leases[entry[1].pid] < self.lease / 2]:
            self._kill(entry)
        try:
            return self._look_at_cache()
        except CacheGoneError:
            assert self._cache is not None
            self._cache.close()
            self._cache = None
            return None

    def _look_at_cache(self) -> int | None:
        if self._cache is None:
            self._cache = Cache(self._own_config, create=False, check=False)
        cache = self._cache
        if cache.incarnation is None:
            raise CacheGoneError(self.config.cache)
        cache.check_is_there()
        current, before = cache.current(), self._current.setdefault(cache.incarnation, 0)
        if current > before:
            self._current[cache.incarnation] = current
            swap = cache.swap(current)
            if swap is not None and swap.deleted:
                self._suspect(cache, f"{swap.deleted} samples were discarded, although nothing was damaged")
        count = self.count_generations(cache)
        if count > _MOST_GENERATIONS:
            self._suspect(cache, f"{count} generations were stored: {cache.store.generations()}")
        self.result.most_generations = max(self.result.most_generations, count)
        return current

    def _suspect(self, cache: Cache, what: str) -> None:
        self._suspicions.append((str(cache.incarnation), time.monotonic(), what))

    def count_generations(self, cache: Cache) -> int:
        """The stored generations, without those that were dropped and into which stopped writers have put samples."""
        found = cache.store.generations()
        if len(found) > _MOST_GENERATIONS:  # a listing may show what has gone and what has come meanwhile
            again, current = cache.store.generations(), cache.current()
            writers = sum(role == "write" for role, _ in self._running)
            found = [g for g in found if g in again and (g >= current or cache.fill(g) > 2 * writers)]
        return len(found)

    def is_stuck(self, seen: list[Any], done: int) -> bool:
        """Whether no more has been ``done`` for long. ``seen`` is what this function remembers."""
        now = time.monotonic()
        if not seen or seen[0] != done:
            seen[:] = done, now
        return bool(now - seen[1] > max(_PATIENCE[0], _PATIENCE[1] * self.lease))

    def calm_down(self) -> None:
        """Without faults, swaps continue, and only the generations that are used stay."""
        self.thaw()
        first: int | None = None
        seen: list[Any] = []
        while not self.result.problems:
            time.sleep(_LOOK_EVERY)
            current = self.look()
            if current is not None and self._cache is not None:
                first = current if first is None else min(first, current)
                if current >= first + 2 and len(self._cache.store.generations()) <= _MOST_GENERATIONS:
                    return
            if self.is_stuck(seen, self.swaps):
                self.result.problems.append("there are no more swaps, although there is no fault")

    def check(self) -> None:
        """After the end: :meth:`so_far` finds no problem, and all acknowledged samples exist."""
        self.result = self.so_far()
        acknowledged = [note for note in Notebook.read(self.notes) if note.what == "put"]
        with contextlib.closing(Cache(self._own_config, create=False)) as cache:
            self.result.problems += _lost(cache, acknowledged)
            cache.store.clean()

    def so_far(self) -> StormResult:
        """What was seen under each incarnation, generation and id is one sample, which is whole. Who has not noticed
        that a cache is being cleaned may store entries into it that no longer exist, or exist already.
        """
        notes, problems = list(Notebook.read(self.notes)), list(self.result.problems)
        until = self._until_cleaned(notes)
        seen: dict[tuple[str, int, int], int] = {}
        for note in notes:
            text = f"sample {note.id} of generation {note.generation}"
            if note.what in ("torn", "corrupt"):
                problems.append(f"{text} was {note.what}")
            elif note.time < until[note.incarnation]:
                sample = note.incarnation, note.generation, note.id
                if seen.setdefault(sample, note.value) != note.value:
                    problems.append(f"{text} had two contents")
        problems += [what for of, when, what in self._suspicions if when < until.get(of, math.inf)]
        return dataclasses.replace(
            self.result,
            operations=len(notes) + self.swaps,
            swaps=self.swaps,
            caches=len(self._current),
            seconds=time.monotonic() - self._start,
            problems=problems,
        )

    def _until_cleaned(self, notes: Iterable[Note]) -> dict[str, float]:
        """When a ``clean`` of each incarnation began that had not finished when the incarnation was created."""
        until = {}
        for note in sorted(notes, key=lambda note: note.time):
            if note.incarnation not in until:
                cleaners = self._cleaners.values()
                until[note.incarnation] = min((b for b, end in cleaners if end >= note.time), default=math.inf)
        return until


def _lost(cache: Cache, acknowledged: Iterable[Note]) -> list[str]:
    """The acknowledged samples that can no longer be read."""
    problems = []
    current = cache.current()
    with contextlib.closing(Reader(cache, cache.config.sample)) as reader:
        for note in acknowledged:
            if note.incarnation != cache.incarnation or note.generation < current:
                continue
            try:
                arrays = reader.read(note.generation, note.id)
                found = storm_roles.value_of(note.incarnation, (arrays["data"][1], arrays["label"][1]))
            except StoreError as error:
                problems.append(f"an acknowledged sample is lost: {error}")
            else:
                if found != note.value:
                    problems.append(f"acknowledged sample {note.id} of generation {note.generation} is another one")
    return problems


def storm(
    location: Mapping[str, Any],
    operations: int,
    disturbances: int,
    swaps: int = 0,
    writers: int = 8,
    readers: int = 4,
    managers: int = 2,
    seed: int = 0,
    fault: Callable[[random.Random], None] | None = None,
    own_location: Mapping[str, Any] | None = None,
    seconds: float = float("inf"),
    stop: threading.Event | None = None,
    report: Callable[[StormResult], None] | None = None,
) -> StormResult:
    """Puts, gets and swaps in many processes while all kinds of things go wrong; then checks everything.

    It ends after that many operations, things that went wrong and swaps; or when time is up, or ``stop`` is set.

    Args:
        location, fault, own_location: see :class:`Storm`.
        seed: of the faults. Their effects also depend on timing.
        report: called each minute with the result so far.
    """
    stop = threading.Event() if stop is None else stop
    seen: list[Any] = []
    with contextlib.closing(Storm(location, seed, fault, own_location)) as it:
        for role, count in (("write", writers), ("read", readers), ("manage", managers)):
            for _ in range(count):
                it.begin(role)
        result, start = it.result, time.monotonic()
        next_time, next_report = start + 2, start + _REPORT_EVERY
        while time.monotonic() - start < seconds and not (
            it.operations >= operations and sum(result.happened.values()) >= disturbances and it.swaps >= swaps
        ):
            if stop.wait(_LOOK_EVERY):
                break
            it.look()
            it.thaw(time.monotonic())
            if time.monotonic() >= next_time:
                it.disturb()
                next_time = time.monotonic() + it.pace * it._rng.uniform(0.1, 1.5)
            if report is not None and time.monotonic() >= next_report:
                report(it.so_far())
                next_report = time.monotonic() + _REPORT_EVERY
            if it.is_stuck(seen, it.operations):
                result.problems.append("nothing is done any more")
                break
        it.calm_down()
        it.end()
        it.check()
        return it.result


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX"
    except OSError:
        return True
