"""What is drawn from a ``torch.Generator``, and when, is as with PyTorch's loader: also if loops are left early, and if
several loaders share the generator.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace.torch import DataLoader  # noqa: E402

CLASSES = (DataLoader, torch_data.DataLoader)
KINDS = ("shuffled", "replaced", "again", "twice", "weighted", "subset", "lists", "full lists")


def loader(cls: Any, kind: str, length: int, size: int | None, generator: Any, **arguments: Any) -> Any:
    numbers = range(length)
    samplers = {
        "replaced": lambda: torch_data.RandomSampler(numbers, True, length + 40, generator=generator),
        "again": lambda: torch_data.RandomSampler(numbers, num_samples=2 * length + 1, generator=generator),
        "twice": lambda: torch_data.RandomSampler(numbers, num_samples=2 * length, generator=generator),
        "weighted": lambda: torch_data.WeightedRandomSampler(torch.ones(length), length, generator=generator),
        "subset": lambda: torch_data.SubsetRandomSampler(numbers, generator=generator),
    }
    drops = arguments.pop("drop_last")
    if "lists" in kind:
        sampler = torch_data.RandomSampler(numbers, generator=generator)
        arguments["batch_sampler"] = torch_data.BatchSampler(sampler, size or 2, kind == "full lists")
    else:
        order = {"sampler": samplers[kind]()} if kind in samplers else {"shuffle": True}
        arguments |= {"batch_size": size, "drop_last": drops and size is not None, **order}
    return cls(numbers, generator=generator, **arguments)


def drawn(cls: Any, chosen: random.Random, workers: int) -> list[Any]:
    """The batches of some epochs, and what the generator is like after each."""
    generator = torch.Generator().manual_seed(chosen.randrange(100))
    length, size = chosen.choice([1, 4, 5, 6, 12]), chosen.choice([1, 2, 3, 4, None])
    arguments: dict[str, Any] = {"num_workers": workers, "drop_last": chosen.random() < 0.3}
    if workers > 0:
        arguments |= {"persistent_workers": chosen.random() < 0.5, "prefetch_factor": chosen.choice([1, 2, 3])}
    kinds = chosen.sample(KINDS, chosen.choice([1, 1, 2]))
    loaders = [loader(cls, kind, length, size, generator, **arguments) for kind in kinds]
    epochs: list[Any] = []
    for last in [chosen.choice([-1, 0, 1, 2, 3]) for _ in range(3)]:
        epochs.append([])
        for number, batches in enumerate(zip(*loaders)):
            epochs[-1].append(str(batches))
            if number == last:
                break
        epochs.append(generator.get_state().tolist())
    return epochs


@pytest.mark.parametrize("seed", range(60))
def test_a_generator_is_drawn_from_as_by_pytorch(seed: int) -> None:
    mine, theirs = (drawn(cls, random.Random(seed), 0) for cls in CLASSES)
    assert mine == theirs


@pytest.mark.parametrize("seed", range(8))
def test_workers_draw_no_more_and_no_less(seed: int) -> None:
    mine, theirs = (drawn(cls, random.Random(1000 + seed), 1 + seed % 2) for cls in CLASSES)
    assert mine == theirs


class Failing(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __getitem__(self, index: int) -> None:
        raise KeyError(index)


def test_a_sampler_is_asked_for_more_although_all_batches_fail() -> None:
    batches = iter(DataLoader(Failing(), batch_size=2, sampler=list(range(40)), num_workers=2))
    for _ in range(20):
        with pytest.raises(KeyError):
            next(batches)
    assert list(batches) == []
