"""The status of a cache, for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.store import seconds


@dataclasses.dataclass(frozen=True)
class Process:
    """A generator or reader that holds a lease.

    Attributes:
        process: host and process number.
        generations: that it uses.
        lag: how many generations a reader is behind the current one.
        age: seconds since it last renewed its lease.
    """

    process: str
    generations: list[int]
    lag: int
    age: float


@dataclasses.dataclass(frozen=True)
class Status:
    """A cache at one moment.

    Attributes:
        database, location: DBNAME, and where it is.
        exists: whether it has been created, and not removed since.
        generation: the current one; 0 before the first swap.
        fill, swap_cap: samples in the generation that is being filled, and how many it takes.
        samples: generated in all, those of ``fill`` and of the generation after it included.
        samples_per_second, seconds_per_sample: between the last swaps (at most 10), and since then, once that has been
            longer than between two of them; None before the second one.
        swaps: so far.
        last_swap_seconds: duration of the last swap.
        last_swap_age: seconds since the last swap.
        deleted: incomplete or damaged samples discarded, in all, up to the last swap.
        generations: those of which anything is stored.
        bytes, bytes_current, bytes_filling: of all samples stored, of the current generation's, and of ``fill``.
        manager: the process that manages; None: no process.
        generators, readers: those that are alive.
    """

    database: str
    location: str
    exists: bool
    generation: int
    fill: int
    swap_cap: int
    samples: int
    samples_per_second: float | None
    seconds_per_sample: float | None
    swaps: int
    last_swap_seconds: float | None
    last_swap_age: float | None
    deleted: int
    generations: list[int]
    bytes: int
    bytes_current: int
    bytes_filling: int
    manager: str | None
    generators: list[Process]
    readers: list[Process]

    def to_dict(self) -> dict[str, Any]:
        """The status as a dict that JSON can hold."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        bar = "#" * round(30 * self.fill / self.swap_cap)
        rate = "no rate yet: it takes two swaps"
        if self.samples_per_second is not None:
            rate = f"{self.samples_per_second:.3g} samples/s, {self.seconds_per_sample:.3g} s/sample"
        last = ""
        if self.last_swap_age is not None and self.last_swap_seconds is not None:
            last = f", the last {self.last_swap_age:.0f} s ago in {1000 * self.last_swap_seconds:.1f} ms"
        stored = ", ".join(map(str, self.generations)) or "none"
        cache = f"{self.database} at {self.location}"
        lines = [
            cache if self.exists else f"there is no cache {cache}",
            f"generation  {self.generation} (stored: {stored}; {self.bytes / 2**20:.1f} MiB)",
            f"fill        [{bar:30}] {self.fill}/{self.swap_cap}",
            f"samples     {self.samples}, {rate}",
            f"swaps       {self.swaps}{last}",
            f"deleted     {self.deleted}",
            f"manager     {self.manager or 'none'}",
            f"generators  {len(self.generators)}",
            *(f"  {process.process}, {process.age:.0f} s ago" for process in self.generators),
            f"readers     {len(self.readers)}",
            *(
                f"  {process.process}, generation {', '.join(map(str, process.generations)) or 'none'}, "
                f"lag {process.lag}, {process.age:.0f} s ago"
                for process in self.readers
            ),
        ]
        return "\n".join(lines)


def status_of(cache: Cache) -> Status:
    """Asks the store.

    Raises:
        StoreError: it does not answer.
    """
    cache.look_again()
    store, config = cache.store, cache.config
    now = store.now()
    swaps = cache.swaps()
    current = swaps[-1].generation if swaps else 0
    last = swaps[-1] if swaps else None
    leases = cache.leases().values()
    generations = store.generations()
    # The newest first: if one has entries, those before it are full.
    newest_first = sorted({*generations, current + 1}, reverse=True)
    lengths = {generation: _lengths(cache, generation) for generation in newest_first}
    fill = len(lengths[current + 1])
    samples = (last.samples if last else 0) + sum(len(lengths[g]) for g in lengths if g > current)
    rate = None
    if last is not None and last.before:
        first, count = last.before[0]
        is_late = now - last.time > (last.time - first) / len(last.before)  # generators are slower now, or have ended
        until, made = (now, samples) if is_late else (last.time, last.samples)
        rate = (made - count) / (until - first) if until > first else None

    def processes(role: str) -> list[Process]:
        found = []
        for lease in leases:
            if lease.get("role") == role:
                generations = [int(g) for g in lease.get("generations", ())]
                lag = current - max(generations, default=current)
                age = round(max(0.0, now - seconds(lease["time"])), 3)
                found.append(Process(str(lease["process"]), generations, max(0, lag), age))
        return sorted(found, key=lambda process: process.process)

    managers = [str(lease["process"]) for lease in leases if lease.get("role") == "manager"]
    return Status(
        database=config.dbname,
        location=config.location,
        exists=cache.incarnation is not None,
        generation=current,
        fill=fill,
        swap_cap=config.swap_cap,
        samples=samples,
        samples_per_second=rate,
        seconds_per_sample=1 / rate if rate else None,
        swaps=current,
        last_swap_seconds=last.seconds if last else None,
        last_swap_age=round(max(0.0, now - last.time), 3) if last else None,
        deleted=last.deleted if last else 0,
        generations=generations,
        bytes=sum(map(sum, lengths.values())),
        bytes_current=sum(lengths.get(current, ())),
        bytes_filling=sum(lengths[current + 1]),
        manager=managers[0] if managers else None,
        generators=processes("generator"),
        readers=processes("reader"),
    )


def _lengths(cache: Cache, generation: int) -> list[int]:
    """Bytes stored of each sample of a generation."""
    samples = (cache.samples(generation, block) for block in cache.blocks)
    return [
        sum(int(kind["length"]) for kind in description.get("kinds", ()))
        for block in samples
        for description in block.values()
    ]
