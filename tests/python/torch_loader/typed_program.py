"""A program that type checkers accept, and that runs; see test_torch_types.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from headrace.torch import DataLoader


class Pairs(data.Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(2), torch.ones(1)


def train(loader: DataLoader[tuple[Tensor, Tensor]]) -> float:
    return sum(float(x.sum() + y.sum()) for x, y in loader)


def validate(loader: data.DataLoader[tuple[Tensor, Tensor]]) -> int:
    return len(loader)


pairs: DataLoader[tuple[Tensor, Tensor]] = DataLoader(Pairs(), batch_size=2, shuffle=True, seed=3)
assert train(pairs) == 3.0
assert validate(pairs) == 2
plain = DataLoader([1, 2], 2)
state: dict[str, Any] = plain.state_dict()
seed: int | None = plain.seed
shard: tuple[int, int] = plain.shard
size: int | None = plain.batch_size


class Own(DataLoader[int]):
    def __init__(self) -> None:
        super().__init__([1])
        self.note = "note"
