"""headrace.data._random: a record's generator is a function of seed, epoch and index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loader_datasets import Random, same

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
