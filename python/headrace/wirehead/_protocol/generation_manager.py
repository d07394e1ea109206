"""Managing generations: verifying samples, swapping, and dropping what nobody uses; and the lease of who does it.

Any manager may swap: the rules in ``cache`` make that safe. That one of them leads only saves work.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace.wirehead._format.sample import check_description, chunk_lengths
from headrace.wirehead._protocol.cache import Cache, Swap, entry_key, is_entry_key, versions_of
from headrace.wirehead._protocol.process import this_process, whose
from headrace.wirehead._protocol.watch import MANAGER, Watch
from headrace.wirehead._stores.store import DROPS, LEASES, ROUNDS, SWAPS, VERIFIED, Document, key, round_key
from headrace.wirehead.errors import CacheGoneError, StoreError

log = logging.getLogger("headrace.wirehead")

_KEPT_SWAPS, _KEPT_HISTORY = 4, 10
_KEPT_GROUPS = 1000  # generations for which it is known which rounds a group of readers has begun
_FEW = 8  # samples: up to this many are looked up one by one, more by reading their block
_MOST = 512  # samples whose chunks are looked up together
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25  # seconds between two looks
_LONGEST_REST = 1.0  # after one that took long
# Where a generation takes its time, so do looks: this share of the time that it has taken, and seconds at most.
_SHARE, _RAREST = 0.03, 5.0


#: Of a sample's description: the lease it was put under, and its number there, which no other sample has.
Origin = tuple[Any, Any]


class GenerationManager:
    """Verifies samples as they arrive, swaps, and drops unused generations. Not thread-safe: one per thread.

    Several may run, in any processes: they take turns, the others wait until that one ends or dies. That saves work;
    nothing depends on it.

    Args:
        cache: the cache.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._watch = Watch(cache)
        self._me = f"{this_process()}-{uuid.uuid4().hex[:8]}"
        self._turn = 0  # how often it has renewed its lease
        self._acknowledged = 0  # the turn of the last renewal that the store has confirmed
        self._renewed = float("-inf")
        self._asked = float("-inf")
        # Dead processes of a folder are known immediately; with a server, it takes LEASE seconds.
        self._patience = min(1.0, cache.config.lease / 3) if cache.config.is_local else cache.config.lease / 10
        self._swept = float("-inf")
        self._generation = 0
        self._entries = 0  # about the generation, that others have written down or this one
        self._versions: dict[int, int] = {}  # by them
        # Samples of the generation, in these versions, and who has put them; None: another manager has verified it.
        self._verified: dict[int, Origin | None] = {}
        self._whole: set[int] = set()  # blocks of which all are
        self._since = cache.clock()  # when the generation began, more or less
        self._checked = float("-inf")  # when it last saw that the cache is there
        self._full_since: float | None = None
        self._thrown_away = 0  # since the last swap
        self._last: Swap | None = None
        self._progress = (0.0, 0)  # time and verified samples at the step before
        self._rate = 0.0  # verified samples per second
        self._has_old = False  # generations to drop
        self.blocked: str | None = None
        self.pause = _LONGEST_PAUSE

    def step(self) -> Swap | None:
        """Does the work that is due. Returns the swap, if there was one. Call it again after ``pause`` seconds.

        Raises:
            StoreError: the store failed.
        """
        start = self._cache.clock()
        if not self._leads():
            self.pause = _LONGEST_PAUSE
            return None
        swap = self._step()
        self.pause = self._until_next(start)
        return swap

    def _step(self) -> Swap | None:
        generation, is_new = self._cache.current() + 1, False
        if generation != self._generation:
            self._generation, self._verified, self._full_since, self._thrown_away = generation, {}, None, 0
            self._whole, self._versions, self._entries = set(), {}, 0
            is_new = True
            self._last = self._cache.swap(generation - 1)
            age = 0.0 if self._last is None else max(0.0, self._cache.store.now() - self._last.time)
            self._since = self._cache.clock() - age
            self._progress = (self._cache.clock(), 0)
            self._swept = float("-inf")
        entries = self._cache.entries(generation)
        if any("void" not in entry for entry in entries):
            return None  # another one has swapped it just now
        if len(entries) < self._entries:
            self._generation = 0  # a backup was restored
            return None
        versions = versions_of(entries)
        self._doubt(id for id, version in versions.items() if version != self._versions.get(id, 0))
        self._entries, self._versions = len(entries), versions
        if is_new:
            self._whole = self._cache.verified_blocks(generation, entries)
            self._verified.update((id, None) for block in self._whole for id in self._cache.ids_of(block))
        self._thrown_away = sum(len(entry.get("void", ())) for entry in entries)
        # What takes long, takes its time between two renewals: or another one would do it again, meanwhile.
        if not self._verify() or not self._still_leads(generation):
            return None
        self._sweep()
        if len(self._verified) < self._cache.config.swap_cap or not self._still_leads(generation):
            return None
        if self._full_since is None:
            self._full_since = self._cache.clock()
        if any(g < generation - 1 for g in self._retire()):
            self.blocked = self._cache.blocked_by(generation) or self.blocked
            return None
        self.blocked = None
        is_kept = self._is_kept(self._cache.blocks) and not self._stored_before(generation - 1)
        if not is_kept or not self._holds():
            self._full_since = None
            return None
        return self._swap()

    def _until_next(self, start: float) -> float:
        """Half the time in which the generation may be full, at the current rate; so that there are few looks while
        there is time, many when it matters, and little is left to verify then.
        """
        now, verified = self._cache.clock(), len(self._verified)
        since, before = self._progress
        self._progress = (now, verified)
        if verified > before:
            self._rate = (verified - before) / max(now - since, 1e-3)
        else:
            self._rate /= 2
        left = self._cache.config.swap_cap - verified
        expected = left / self._rate / 2 if self._rate > 1e-9 else math.inf
        longest = min(max(_LONGEST_PAUSE, _SHARE * (now - self._since)), _RAREST, self._cache.config.lease / 6)
        # So that checks do not keep the server busy.
        return max(min(4 * (now - start), _LONGEST_REST), min(max(_SHORTEST_PAUSE, expected), longest))

    def close(self) -> None:
        """Lets another one manage."""
        found = self._cache.store.find(LEASES, MANAGER)
        if found is not None and found.get("holder") == self._me:
            self._cache.store.remove(LEASES, MANAGER)
        self._renewed = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether it is this one's turn: its document among the leases was renewed recently enough."""
        return self._cache.clock() - self._renewed < self._cache.config.lease

    def _leads(self, anew: bool = False) -> bool:
        """Whether it is its turn, which it takes if it is nobody's.

        Args:
            anew: it renews its lease, even if that is not due.
        """
        store, lease = self._cache.store, self._cache.config.lease
        now = self._cache.clock()
        if now - self._renewed < lease / 3 and not anew:
            return True
        if now - self._renewed >= lease and now - self._asked < self._patience:
            return False  # another process had it a moment ago
        self._asked = now
        if now - self._checked >= lease / 3:
            self._cache.check_is_there()
            self._checked = now
        found = store.find(LEASES, MANAGER)
        mine = {"holder": self._me, "role": MANAGER, **whose(), "generations": [], "lease": lease}
        if not self._is_ours(found):
            self._generation = 0  # another one may have led, or a backup been restored: what was verified may be gone
        if found is not None and found.get("holder") != self._me:
            since = self._watch.since(MANAGER, found, self._cache.clock())
            if now - since <= self._cache.lasts(found) and not self._cache.has_ended(found):
                return False
            store.remove(LEASES, MANAGER)
            found = None
        self._turn += 1
        if found is not None:
            store.replace(LEASES, MANAGER, {**mine, "beat": self._turn})
        elif not store.insert(LEASES, MANAGER, {**mine, "beat": self._turn, "time": store.now()}):
            return False
        self._renewed, self._acknowledged = now, self._turn
        return True

    def _still_leads(self, generation: int) -> bool:
        """Whether it leads without an interruption since it began to look at a generation."""
        return self._leads() and self._generation == generation

    def _holds(self) -> bool:
        """Whether the store has its last renewal. If not, what was verified may be gone."""
        if not self._is_ours(self._cache.store.find(LEASES, MANAGER)):
            self._generation = 0
            return False
        return True

    def _is_kept(self, blocks: Iterable[int]) -> bool:
        """Whether the store has all samples of these blocks still, which were verified, after a renewal of the lease: a
        backup may have been restored since. False: what it lacks is not verified any more. The note of a whole block
        is enough: a backup that has it has the block's samples. See 8 in :mod:`headrace.wirehead._protocol.cache`.
        """
        generation = self._generation
        if not self._leads(anew=True) or not self._still_leads(generation):
            return False
        entries = self._cache.entries(generation)
        if len(entries) != self._entries:
            return False
        for block in sorted(set(blocks) - self._cache.verified_blocks(generation, entries)):
            if not self._still_leads(generation):  # many large blocks may take longer than LEASE
                return False
            stored = self._cache.samples(generation, block, self._versions)
            ids = self._cache.ids_of(block)
            lost = [id for id in ids if id not in stored or self._verified[id] != _origin(stored[id])]
            if lost:
                self._doubt(lost)
                self._cache.store.remove(VERIFIED, entry_key(generation, block))
                return False
        return True

    def _is_ours(self, lease: Document | None) -> bool:
        """Whether a lease is this one's last renewal. An earlier one may have arrived late, after another manager had
        removed the last; or a backup has been restored.
        """
        return lease is not None and lease.get("holder") == self._me and lease.get("beat", 0) >= self._acknowledged

    def _verify(self) -> bool:
        """Looks at the samples that have come since, and annuls those that are damaged. False if another manager has
        written down something meanwhile, or the store has lost something: then all has to be looked at again.
        """
        for block in self._cache.blocks:
            if block in self._whole:
                continue
            missing = [id for id in self._cache.ids_of(block) if id not in self._verified]
            if not missing:
                if not self._note_whole(block):
                    return False
                continue
            come = self._come(block, missing)
            if not come:
                return True  # blocks are filled one after the other, more or less
            ids = sorted(come)
            for start in range(0, len(ids), _MOST):
                part = ids[start : start + _MOST]
                problems = dict(zip(part, self._problems([come[id] for id in part])))
                self._verified.update((id, _origin(come[id])) for id, problem in problems.items() if problem is None)
                if not self._annul({id: problem for id, problem in problems.items() if problem is not None}):
                    return False
            if all(id in self._verified for id in self._cache.ids_of(block)) and not self._note_whole(block):
                return False
        return True

    def _note_whole(self, block: int) -> bool:
        """All samples of a block are verified: so that another manager need not do it again, it is written down. False
        if they are not there any more.
        """
        if len(self._cache.blocks) > 1:
            if not (self._is_kept([block]) and self._holds()):
                return False
            self._cache.store.insert(VERIFIED, entry_key(self._generation, block), {"entries": self._entries})
        self._whole.add(block)
        return True

    def _doubt(self, ids: Iterable[int]) -> None:
        """These samples are not verified."""
        for id in ids:
            self._verified.pop(id, None)
            self._whole.discard(self._cache.block_of(id))

    def _annul(self, problems: Mapping[int, str]) -> bool:
        """Records that these samples do not count, unless another process has recorded something; whether it did."""
        if not problems:
            return True
        problems = self._found_again(problems)
        if not problems:
            return False
        void = [[id, self._versions.get(id, 0)] for id in problems]
        if not self._cache.store.insert(SWAPS, entry_key(self._generation, self._entries), {"void": void}):
            return False
        for id, problem in problems.items():
            log.warning("sample %d of generation %d is discarded: %s", id, self._generation, problem)
        self._entries += 1
        self._versions.update((id, version + 1) for id, version in void)
        self._thrown_away += len(void)
        return True

    def _found_again(self, problems: Mapping[int, str]) -> dict[int, str]:
        """Those of the damaged samples that are so, as the cache is now; none if it is an earlier state of itself, or
        another manager has written down something meanwhile.
        """
        generation = self._generation
        if not self._leads(anew=True) or not self._still_leads(generation):
            return {}
        if len(self._cache.entries(generation)) != self._entries:
            return {}
        found = ((id, self._cache.version(generation, id, self._versions.get(id, 0))) for id in problems)
        there = {id: description for id, description in found if description is not None}
        again = zip(there, self._problems(list(there.values())))
        still = {id: problem for id, problem in again if problem is not None}
        return still if self._holds() else {}

    def _come(self, block: int, missing: Sequence[int]) -> dict[int, Document]:
        """Those of the missing samples of a block that are there."""
        if len(missing) > _FEW:
            all = self._cache.samples(self._generation, block, self._versions)
            return {id: all[id] for id in missing if id in all}
        found = ((id, self._cache.version(self._generation, id, self._versions.get(id, 0))) for id in missing)
        return {id: description for id, description in found if description is not None}

    def _problems(self, descriptions: Sequence[Document]) -> list[str | None]:
        """The problem with each damaged sample."""
        problems: list[str | None] = []
        names: list[dict[str, int]] = []
        for description in descriptions:
            problem, chunks = None, {}
            try:
                kinds = tuple(kind.name for kind in check_description(description))
                if kinds != self._cache.config.sample:
                    problem = f"it has {list(kinds)}, but SAMPLE is {list(self._cache.config.sample)}"
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
        """Once in a while: drops generations, and removes leftovers of dead processes and cleaned caches."""
        now = self._cache.clock()
        cache = self._cache
        # Leftovers of the last swap soon, so that the next one finds nothing to drop.
        period = cache.config.lease / 3
        if now - self._swept < (min(1.0, period) if self._has_old else period):
            return
        self._swept = now
        self._retire()
        self._watch.clear()
        others = cache.store.incarnations()
        if len(others) > 1:  # processes that had not heard of it have stored something after they were cleaned
            cache.check_is_there()  # so whatever was there before is older
            for other in others:
                if other != cache.incarnation:
                    cache.store.drop_incarnation(other)

    def _retire(self) -> list[int]:
        """Drops unused generations. Returns the remaining ones before the current one."""
        old, unused = self._old()
        if unused:
            # Before the leases are read again: who pins one of these after that finds this.
            self._cache.note_drop(unused[-1])
        # Only a look between a renewal and its being there still is one at the cache as it is now; see 8 in cache.
        if unused and self._leads(anew=True):
            noted = self._cache.dropped()
            old, unused = self._old()
            unused = [generation for generation in unused if generation <= noted]
            if unused and self._holds():
                for generation in unused:
                    self._cache.store.drop(generation)
                    old.remove(generation)
        self._has_old = bool(old)
        return old

    def _old(self) -> tuple[list[int], list[int]]:
        """The generations before the current one; and those of them that nobody uses."""
        current = self._cache.current()
        old = self._stored_before(current)
        pinned = (g for lease in self._watch.look().values() for g in lease.get("generations", ()))
        first = min(pinned, default=current)  # a lease keeps all from the first that it names on
        return old, [generation for generation in old if generation < first]

    def _stored_before(self, current: int) -> list[int]:
        return [generation for generation in self._cache.store.generations() if generation < current]

    def _swap(self) -> Swap | None:
        """Makes the generation at hand, which is full and verified, the one that is read."""
        cache, generation = self._cache, self._generation
        assert self._full_since is not None
        last = self._last
        history = () if last is None else (*last.before, (last.time, last.samples))[-_KEPT_HISTORY:]
        swap = Swap(
            generation=generation,
            time=cache.store.now(),
            samples=(last.samples if last else 0) + cache.config.swap_cap,
            deleted=(last.deleted if last else 0) + self._thrown_away,
            seconds=round(cache.clock() - self._full_since, 6),
            by=this_process(),
            before=history,
        )
        if not cache.store.insert(SWAPS, entry_key(generation, self._entries), dataclasses.asdict(swap)):
            return None
        # Of drops, the last one says that all before have begun, too: of those before the generation that was current.
        for table, first in (SWAPS, generation - _KEPT_SWAPS + 1), (VERIFIED, generation), (DROPS, generation - 2):
            for name in cache.store.scan(table):
                if is_entry_key(name) and name < key(first):
                    cache.store.remove(table, name)
        self._forget_rounds()
        self._swept = float("-inf")
        return swap

    def _forget_rounds(self) -> None:
        """Removes what readers have agreed on about generations that are gone, but for the fact that they had."""
        store, now = self._cache.store, self._generation
        rounds = store.scan(ROUNDS)
        gone: dict[str, int] = {}
        for name, agreed in rounds.items():
            group, _, number = name.rpartition(".")
            if number.isdecimal() and agreed.get("generation", now) < now - 2:
                gone[group] = max(gone.get(group, -1), int(number))
        for group, last in gone.items():
            before = rounds.get(round_key(group, None), {}).get("beat", -1)
            store.replace(ROUNDS, round_key(group, None), {"beat": max(last, before), "generation": now})
        for name, agreed in rounds.items():
            kept = 2 if name.rpartition(".")[2].isdecimal() else _KEPT_GROUPS
            if agreed.get("generation", now) < now - kept:
                store.remove(ROUNDS, name)


def _origin(description: Document) -> Origin:
    return description.get("writer"), description.get("number")


def manage_generations(
    manager: GenerationManager, stop: threading.Event, on_swap: Callable[[Swap], None] | None = None
) -> None:
    """Calls ``manager.step`` until ``stop`` is set; a store that fails is tried again.

    Raises:
        CacheGoneError: the cache is not the one that it was.
    """
    while not stop.is_set():
        try:
            swap = manager.step()
            if swap is not None:
                if on_swap is not None:
                    on_swap(swap)
                continue
        except CacheGoneError:
            raise
        except StoreError as error:
            log.error("%s", error)
            stop.wait(1)
        stop.wait(manager.pause)
