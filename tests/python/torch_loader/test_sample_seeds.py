"""The global generators, torch's too, that are seeded for a sample by writing their states where they lie in memory,
beside their plain twins: the same states, set in the generators' own ways.
"""

from __future__ import annotations

import random
import struct
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from headrace.data._randomness import global_generators  # noqa: E402
from headrace.data._randomness.sample_seeds import generators_restored  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_generators")


@pytest.fixture
def own_generators() -> Iterator[None]:
    with generators_restored():
        yield


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What seeds without knowing any state."""
    for name in ("_state_of_random", "_state_of_numpy", "_state_of_torch"):
        monkeypatch.setattr(global_generators, name, lambda generator: None)
    found = global_generators.global_generators.__wrapped__()
    found.seed(0, 0)  # looks for torch's
    monkeypatch.undo()
    return found


def states() -> tuple[Any, ...]:
    """Of all generators, with the numbers that they have drawn in advance."""
    numpy = np.random.get_state(legacy=False)
    key = numpy["state"]["key"].tolist(), numpy["state"]["pos"], numpy["has_gauss"]
    return random.getstate(), key, bytes(torch.get_rng_state().numpy()), torch.initial_seed()


def test_the_state_of_the_installed_torch_is_found() -> None:
    for count in (0, 1, 623, 624, 1000):
        torch.rand(count)
        found = global_generators._state_of_torch(torch.default_generator)
        assert found is not None
        words, position, first_position, seed = found
        _, left, _, place, *own = struct.unpack_from("<Qii625Q", bytes(torch.get_rng_state().numpy()))
        assert list(words) == own
        assert struct.unpack("=ii4x", first_position[:12])[0] == 1
        assert struct.unpack("=i4xI", bytes(position)) == (left, place)
        assert seed.value == torch.initial_seed()


class Elsewhere:
    """A generator whose state does not lie where torch's does."""

    def __init__(self, state: Any, **attributes: Any) -> None:
        self.get_state = lambda: state
        self.__dict__ |= attributes


def test_a_state_that_lies_elsewhere_is_not_touched() -> None:
    own = torch.default_generator
    other = torch.Generator().manual_seed(own.initial_seed() ^ 1).get_state()
    longer = torch.cat([own.get_state(), other[:8]])
    changed = own.get_state()
    changed[24 + 8 * 600] ^= 1
    for state in (other, longer, changed):
        assert global_generators._state_of_torch(Elsewhere(state, _cdata=own._cdata)) is None
    assert global_generators._state_of_torch(Elsewhere(own.get_state())) is None


def act(chosen: random.Random, kept: list[Any]) -> None:
    """Something that a sample may do to the generators."""
    actions = {
        "nothing": lambda: None,
        "random": lambda: random.random(),
        "gauss": lambda: random.gauss(0, 1),
        "numpy": lambda: np.random.random(chosen.choice([1, 3, 312, 700])),
        "normal": lambda: np.random.standard_normal(),
        "torch": lambda: torch.rand(chosen.choice([1, 3, 624, 700])),
        "torch normal": lambda: torch.randn(chosen.choice([1, 3, 16])),
        "torch double": lambda: torch.randn(chosen.choice([1, 3, 16]), dtype=torch.float64),
        "words": lambda: torch.empty(624, dtype=torch.int32).random_(),
        "reseed": lambda: (random.seed(3), np.random.seed(4), torch.manual_seed(5)),
        "keep": lambda: kept.append((random.getstate(), np.random.get_state(), torch.get_rng_state())),
        "other": lambda: torch.Generator().manual_seed(1),
    }
    name = chosen.choice([*actions, "restore"])
    if name != "restore":
        actions[name]()
    elif kept:
        before = chosen.choice(kept)
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@pytest.mark.parametrize("seed", range(40))
def test_a_sample_is_seeded_as_by_the_generators_themselves(seed: int, slow: Any) -> None:
    chosen, kept = random.Random(seed), []
    fast = global_generators.global_generators()
    for _ in range(25):
        keys = chosen.randrange(4), chosen.randrange(4)
        slow.seed(*keys)
        expected = states()
        act(chosen, kept)
        fast.seed(*keys)
        assert states() == expected
        for _ in range(chosen.choice([0, 0, 1, 3])):
            act(chosen, kept)


def test_a_generator_whose_state_looks_otherwise_is_seeded_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_generators, "_TORCH_STATE", struct.Struct("8x"))
    other = global_generators.global_generators.__wrapped__()
    numbers = []
    for _ in range(2):
        other.seed(1, 2)
        assert torch.initial_seed() < 1 << 63
        numbers.append((torch.randn(1).item(), torch.rand(700).tolist()))
    other.seed(1, 3)
    assert numbers[0] == numbers[1] != (torch.randn(1).item(), torch.rand(700).tolist())


def test_torch_is_left_alone_while_it_is_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = global_generators.global_generators.__wrapped__()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    found.seed(1, 2)
    expected = random.random()
    monkeypatch.undo()
    torch.manual_seed(7)
    found.seed(1, 2)
    assert random.random() == expected
    assert torch.initial_seed() != 7
