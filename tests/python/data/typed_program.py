"""A program that type checkers accept, and that runs; see test_types.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import headrace as hr

if TYPE_CHECKING:
    import numpy.typing as npt

    Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def train(loader: hr.DataLoader[Batch]) -> float:
    total = 0.0
    for x, y in loader:
        total += float(x.sum() + y.sum())
    return total


class Pairs:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.zeros(2, np.float32), index


pairs: hr.DataLoader[Batch] = hr.DataLoader(Pairs(), batch_size=2, seed=3)
assert train(pairs) == 3.0
plain = hr.DataLoader(Pairs(), 2)
size: int | None = plain.batch_size
shard: tuple[int, int] = plain.shard
timeout: float = plain.timeout
names: tuple[str, bool] = (plain.workers, plain.drop_last)
