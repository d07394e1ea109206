"""What a batch costs beside its samples, in calls of this package's Python functions: time is too noisy for a test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

import headrace  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402

PACKAGE = str(Path(headrace.__file__).parent)
BATCHES = 20


def calls_per_batch(batches: Iterator[Any]) -> float:
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    next(batches)
    sys.setprofile(count)
    try:
        for _ in range(BATCHES):
            next(batches)
    finally:
        sys.setprofile(None)
    return calls / BATCHES


class Stream(torch_data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(1000))


NUMBERS, PAIRS = range(1000), [(torch.ones(2), 1)] * 1000
LOADERS: dict[str, tuple[Any, dict[str, Any], int]] = {
    "numbers": (NUMBERS, {}, 17),
    "pairs": (PAIRS, {}, 17),
    "collate_fn": (NUMBERS, {"collate_fn": len}, 16),
    "shuffle": (NUMBERS, {"shuffle": True}, 22),
    "sampler": (NUMBERS, {"sampler": torch_data.WeightedRandomSampler([1.0] * 1000, 1000)}, 31),
    "stream": (Stream(), {}, 25),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_batch_takes_few_calls_without_workers(name: str) -> None:
    dataset, arguments, most = LOADERS[name]
    assert calls_per_batch(iter(DataLoader(dataset, 4, **arguments))) <= most
