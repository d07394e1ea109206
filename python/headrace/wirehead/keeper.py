"""Keeping: verifying samples, swapping, and dropping what is not used any more."""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from headrace.wirehead.cache import Cache, Swap, this_process, whose
from headrace.wirehead.errors import StoreError
from headrace.wirehead.sample import check_description, chunk_lengths
from headrace.wirehead.store import LEASES, ROUNDS, SWAPS, Document, key, samples_table

log = logging.getLogger("headrace.wirehead")

_KEPT_SWAPS, _KEPT_HISTORY = 4, 10
_FEW = 8  # samples: so many are looked up one by one, more by reading their block
_MOST = 512  # samples whose chunks are looked for at once
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


class Keeper:
    """Verifies samples as they come, swaps, and drops what is not used any more. Not thread-safe: one per thread.

    Several may run, in any processes: they take turns, the others wait until that one ends or dies.

    Args:
        cache: of what.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._me = f"{this_process()}-{uuid.uuid4().hex[:8]}"
        self._renewed = float("-inf")
        self._asked = float("-inf")
        self._swept = float("-inf")
        self._generation = 0
        self._succeeds = False  # another manager, which may have died in the middle of something
        self._verified: set[int] = set()  # samples of the generation
        self._full_since: float | None = None
        self._thrown_away = 0  # since the last swap
        self._last: Swap | None = None
        self._progress = (0.0, 0)  # time and verified samples at the step before
        self._rate = 0.0  # verified samples per second
        self._has_old = False  # generations to drop
        self.blocked: str | None = None
        self.pause = _LONGEST_PAUSE

    def step(self) -> Swap | None:
        """Does what is to be done now. Returns the swap, if it was that. Call it again after ``pause`` seconds.

        Raises:
            StoreError: the store failed.
        """
        start = time.monotonic()
        if not self._leads():
            self.pause = _LONGEST_PAUSE
            return None
        swap = self._step()
        self.pause = self._until_next(start)
        return swap

    def _step(self) -> Swap | None:
        generation = self._cache.current() + 1
        if generation != self._generation:
            self._generation, self._verified, self._full_since, self._thrown_away = generation, set(), None, 0
            self._last = self._cache.swap(generation - 1)
            self._progress = (time.monotonic(), 0)
            self._swept = float("-inf")
        if self._succeeds:
            self._cache.store.repair(generation)
            self._succeeds = False
        self._verify()
        self._sweep()
        if len(self._verified) < self._cache.config.swap_cap:
            return None
        if self._full_since is None:
            self._full_since = time.monotonic()
        if any(g < generation - 1 for g in self._retire()):
            self.blocked = self._cache.blocked_by(generation) or self.blocked
            return None
        self.blocked = None
        return self._swap()

    def _until_next(self, start: float) -> float:
        """Half the time in which the generation may be full, if it goes on as it did; so that there are few looks while
        there is time, many when it matters, and little is left to verify then.
        """
        now, verified = time.monotonic(), len(self._verified)
        since, before = self._progress
        self._progress = (now, verified)
        if verified > before:
            self._rate = (verified - before) / max(now - since, 1e-3)
        else:
            self._rate /= 2
        left = self._cache.config.swap_cap - verified
        expected = left / self._rate / 2 if self._rate > 1e-9 else math.inf
        # Looking shall not be what the server is busy with. But what held up a look, such as the disk, is over by now.
        return min(max(4 * (now - start), _SHORTEST_PAUSE, expected), _LONGEST_PAUSE)

    def close(self) -> None:
        """Lets another one manage."""
        found = self._cache.store.find(LEASES, "manager")
        if found is not None and found.get("holder") == self._me:
            self._cache.store.remove(LEASES, "manager")
        self._renewed = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether it is this one's turn."""
        return time.monotonic() - self._renewed < self._cache.config.lease

    def _leads(self) -> bool:
        store, lease = self._cache.store, self._cache.config.lease
        now = time.monotonic()
        if now - self._renewed < lease / 3:
            return True
        if now - self._renewed >= lease and now - self._asked < min(1.0, lease / 3):
            return False  # somebody else had it a moment ago
        self._asked = now
        found = store.find(LEASES, "manager")
        mine = {"holder": self._me, "role": "manager", **whose(), "generations": []}
        if found is not None and found.get("holder") != self._me:
            if not self._cache.is_expired(found, store.now()):
                return False
            store.remove(LEASES, "manager")
            found = None
        if found is None and not store.insert(LEASES, "manager", {**mine, "time": store.now()}):
            return False
        if found is not None:
            store.replace(LEASES, "manager", mine)
        self._succeeds = self._succeeds or found is None
        self._renewed = now
        return True

    def _verify(self) -> None:
        """Looks at the samples that have come since."""
        for block in self._cache.blocks:
            missing = [id for id in self._cache.ids_of(block) if id not in self._verified]
            if not missing:
                continue
            come = self._come(block, missing)
            if not come:
                return  # blocks are filled one after the other, more or less
            ids = sorted(come)
            for start in range(0, len(ids), _MOST):
                part = ids[start : start + _MOST]
                for id, problem in zip(part, self._problems([come[id] for id in part])):
                    if problem is None:
                        self._verified.add(id)
                        continue
                    log.warning("sample %d of generation %d is thrown away: %s", id, self._generation, problem)
                    self._cache.store.remove(samples_table(self._generation, block), key(id))
                    self._thrown_away += 1

    def _come(self, block: int, missing: Sequence[int]) -> dict[int, Document]:
        """Those of the missing samples of a block that are there."""
        if len(missing) > _FEW:
            all = self._cache.samples(self._generation, block)
            return {id: all[id] for id in missing if id in all}
        found = ((id, self._cache.sample(self._generation, id)) for id in missing)
        return {id: description for id, description in found if description is not None}

    def _problems(self, descriptions: Sequence[Document]) -> list[str | None]:
        """What is wrong with each sample."""
        problems: list[str | None] = []
        names: list[dict[str, int]] = []
        for description in descriptions:
            problem, chunks = None, {}
            try:
                kinds = tuple(kind.name for kind in check_description(description))
                if kinds != self._cache.config.sample:
                    problem = f"it has {list(kinds)}, SAMPLE is {list(self._cache.config.sample)}"
                chunks = chunk_lengths(description)
            except (KeyError, TypeError, ValueError) as error:
                problem = f"its description is wrong: {error}"
            problems.append(problem)
            names.append(chunks)
        lengths = {name: length for part in names for name, length in part.items()}
        missing = set(self._cache.store.missing_chunks(self._generation, lengths))
        for i, part in enumerate(names):
            lost = len(missing.intersection(part))
            if lost and problems[i] is None:
                problems[i] = f"{lost} of {len(part)} chunks are missing or cut off"
        return problems

    def _sweep(self) -> None:
        """Once in a while: throws away what the dead have left, and drops generations."""
        now = time.monotonic()
        cache = self._cache
        # What is left of the last swap soon, so that the next one finds nothing to drop.
        period = cache.config.lease / 3
        if now - self._swept < (min(1.0, period) if self._has_old else period):
            return
        self._swept = now
        store_now = cache.store.now()
        for holder, lease in cache.store.scan(LEASES).items():
            if holder != "manager" and cache.is_expired(lease, store_now):
                if not self._leads():  # many deaths take their time
                    return
                if lease.get("role") == "generator":
                    self._throw_away(holder, lease)
                cache.store.remove(LEASES, holder)
        self._retire()

    def _throw_away(self, writer: str, lease: Document) -> None:
        """Removes the chunks of the one sample that a dead writer may have left half done."""
        store = self._cache.store
        first = min(lease.get("generations", ()), default=math.inf)
        # It may have gone on to a newer one, without its lease saying so yet.
        generations = [generation for generation in store.generations() if generation >= first]
        numbers = [
            int(sample["number"])
            for generation in generations
            for block in self._cache.blocks
            for sample in self._cache.samples(generation, block).values()
            if sample.get("writer") == writer
        ]
        number = max(int(lease.get("number", 0)), *(n + 1 for n in numbers), 0)
        for generation in generations:
            if store.remove_sample(generation, writer, number):
                log.warning("%s died in the middle of a put; its sample is thrown away", lease.get("process"))
                self._thrown_away += 1

    def _retire(self) -> list[int]:
        """Drops the generations that nobody uses; which are left of those before the current one."""
        cache = self._cache
        current = cache.current()
        old = [generation for generation in cache.store.generations() if generation < current]
        if old:
            pinned = (g for lease in cache.leases().values() for g in lease.get("generations", ()))
            first = min(pinned, default=current)  # a lease keeps all from the first that it names on
            for generation in [g for g in old if g < first]:
                cache.store.drop(generation)
                old.remove(generation)
        self._has_old = bool(old)
        return old

    def _swap(self) -> Swap | None:
        cache, generation = self._cache, self._generation
        assert self._full_since is not None
        last = self._last
        history = () if last is None else (*last.before, (last.time, last.samples))[-_KEPT_HISTORY:]
        swap = Swap(
            generation=generation,
            time=cache.store.now(),
            samples=(last.samples if last else 0) + cache.config.swap_cap,
            deleted=(last.deleted if last else 0) + self._thrown_away,
            seconds=round(time.monotonic() - self._full_since, 6),
            by=this_process(),
            before=history,
        )
        if not cache.store.insert(SWAPS, key(generation), dataclasses.asdict(swap)):
            return None
        cache.store.remove(SWAPS, key(generation - _KEPT_SWAPS))
        for name, agreed in cache.store.scan(ROUNDS).items():
            if agreed.get("generation", 0) < generation - 2:
                cache.store.remove(ROUNDS, name)
        self._swept = float("-inf")
        return swap


def run_keeper(keeper: Keeper, stop: threading.Event, on_swap: Callable[[Swap], None] | None = None) -> None:
    """Calls ``keeper.step`` until ``stop`` is set; a store that fails is tried again."""
    while not stop.is_set():
        try:
            swap = keeper.step()
            if swap is not None:
                if on_swap is not None:
                    on_swap(swap)
                continue
        except StoreError as error:
            log.error("%s", error)
            stop.wait(1)
        stop.wait(keeper.pause)
