"""The generators of records, which are functions of seed, epoch and index, and the global generators of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loader_datasets import GloballyRandom, Random, same

from headrace.data import DataLoader, record_generator


def draw(seed: int, epoch: int, index: Any) -> list[int]:
    return record_generator(seed, epoch, index).integers(0, 1 << 62, 4).tolist()


def test_the_same_record_draws_the_same() -> None:
    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert draw(1, 2, "name") == draw(1, 2, "name")
    assert draw(1, 2, np.int32(3)) == draw(1, 2, 3)


def test_each_of_seed_epoch_and_index_matters() -> None:
    keys = [
        (seed, epoch, index) for seed in range(4) for epoch in range(4) for index in (0, 1, 2, -1, 1 << 64, "0", (0, 1))
    ]
    assert len({tuple(draw(*key)) for key in keys}) == len(keys)


def test_seed_and_epoch_do_not_add_up() -> None:
    assert draw(0, 1, 0) != draw(1, 0, 0)
    assert draw(11, 1, 0) != draw(1, 11, 0)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_the_loader_hands_each_record_its_generator(num_workers: int) -> None:
    loader = DataLoader(Random(7), batch_size=3, seed=4, shuffle=False, num_workers=num_workers)
    for epoch in range(2):
        numbers = np.concatenate([batch[0] for batch in loader])
        for index in range(7):
            assert same(numbers[index], record_generator(4, epoch, index).integers(0, 1 << 30, 3))


def drawn(batches: Any) -> tuple[float, ...]:
    return tuple(float(number) for batch in batches for column in batch for number in column)


def test_workers_that_start_anew_draw_other_numbers() -> None:
    loader = DataLoader(GloballyRandom(4), batch_size=2, num_workers=2, persistent_workers=False, seed=5)
    epochs = [drawn(loader) for _ in range(3)]
    epochs += [drawn(pair) for pair in zip(*zip(loader, loader))]
    loader.shutdown()
    epochs.append(drawn(loader))
    assert len({number for epoch in epochs for number in epoch}) == 6 * 8


def test_iterations_at_once_draw_different_numbers() -> None:
    loader = DataLoader(GloballyRandom(4), batch_size=2, num_workers=2, seed=5)
    first, second = iter(loader), iter(loader)
    pairs = list(zip(first, second))
    loader.shutdown()
    numbers = [drawn(batches) for batches in (*zip(*pairs), loader)]
    assert len({number for each in numbers for number in each}) == 3 * 8


def test_a_seed_repeats_what_the_workers_draw() -> None:
    def epochs(seed: int | None) -> list[Any]:
        loader = DataLoader(GloballyRandom(4), batch_size=2, num_workers=1, persistent_workers=False, seed=seed)
        return [drawn(loader) for _ in range(2)]

    assert epochs(7) == epochs(7)
    assert epochs(7) != epochs(8)
    assert epochs(None) != epochs(None)


def test_workers_that_go_on_within_an_epoch_do_not_repeat_its_beginning() -> None:
    loader = DataLoader(GloballyRandom(8), batch_size=4, num_workers=1, seed=7)
    batches = iter(loader)
    before = drawn([next(batches)])
    loader.load_state_dict(loader.state_dict())
    loader.shutdown()
    assert not set(before) & set(drawn(loader))
