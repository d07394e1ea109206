"""The protocol in a world where anything may happen between two operations; and that world finds what is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from protocol_model import CAP, explore

import headrace.wirehead._protocol.cache as caches
import headrace.wirehead._protocol.lease as leases
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.lease import Lease
from headrace.wirehead._protocol.watch import Watch
from headrace.wirehead._stores.store import LEASES, key, samples_table

SEEDS, STEPS = range(10), 5000


@pytest.mark.parametrize(
    "what",
    [
        {},
        {"lags": True},
        {"damages": True},
        {"cleans": True},
        {"restores": True},
        {"tells": True, "damages": True},
    ],
)
@pytest.mark.parametrize("block", [CAP, 2], ids=["one block", "two blocks"])
def test_nothing_is_lost_torn_or_mixed(monkeypatch: pytest.MonkeyPatch, what: dict[str, Any], block: int) -> None:
    problems, swaps = explore(monkeypatch, SEEDS, STEPS, block=block, **what)
    assert problems == []
    assert swaps >= 4 * len(SEEDS)


def watch_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    def look(self: Watch) -> dict[str, Any]:
        self.dead = set(self._cache.store.scan(LEASES)) - set(self._cache.leases()) - {"manager"}
        return self._cache.leases()

    patch.setattr(Watch, "look", look)


def trust_a_lease_for_longer_than_it_lasts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leases, "_TRUST", 4)


def acknowledge_without_a_look_at_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "_is_alive", lambda self: True)
    patch.setattr(Lease, "_lapsed", lambda self: False)


def annul_by_removing(patch: pytest.MonkeyPatch) -> None:
    def annul(self: GenerationManager, problems: Any) -> bool:
        for id in problems:
            self._cache.store.remove(samples_table(self._generation, self._cache.block_of(id)), key(id))
        return True

    patch.setattr(GenerationManager, "_annul", annul)


def drop_without_a_look_at_the_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watch, "look", lambda self: {})


def drop_without_a_note(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "note_drop", lambda self, generation: None)


def clean_without_an_incarnation(patch: pytest.MonkeyPatch) -> None:
    class Same:
        hex = "0" * 32

    patch.setattr(caches, "uuid", SimpleNamespace(uuid4=Same))


def swap_what_was_verified_without_another_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GenerationManager, "_is_kept", lambda self, blocks: True)


def note_blocks_that_were_verified_without_another_look(patch: pytest.MonkeyPatch) -> None:
    is_kept = GenerationManager._is_kept

    def look_before_swaps(self: GenerationManager, blocks: Any) -> bool:
        return len(blocks) == 1 or is_kept(self, blocks)

    patch.setattr(GenerationManager, "_is_kept", look_before_swaps)


@pytest.mark.parametrize(
    ("leave_out", "what", "seed"),  # of a world that has missed it, which saves the search unless the protocol changes
    [
        (watch_by_the_wall_clock, {}, 0),
        (trust_a_lease_for_longer_than_it_lasts, {}, 0),
        (acknowledge_without_a_look_at_the_lease, {}, 0),
        (drop_without_a_look_at_the_leases, {}, 0),
        (drop_without_a_note, {"tells": True}, 0),
        (annul_by_removing, {"damages": True}, 0),
        (clean_without_an_incarnation, {"cleans": True}, 0),
        (swap_what_was_verified_without_another_look, {"restores": True}, 531),
        (note_blocks_that_were_verified_without_another_look, {"restores": True, "block": 2}, 6),
    ],
)
def test_whatever_is_left_out_is_missed(
    monkeypatch: pytest.MonkeyPatch, leave_out: Any, what: dict[str, Any], seed: int
) -> None:
    leave_out(monkeypatch)
    problems, _ = explore(monkeypatch, [seed, *range(120)], STEPS, **what)
    assert problems != []
