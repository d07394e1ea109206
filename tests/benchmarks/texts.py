"""Ragged samples that Python pads: what a collate_fn for text does."""

from __future__ import annotations

from typing import Any

import numpy as np


class Texts:
    """Numbers of words, 4 to 400 in a text and 50 on average, and a label."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        lengths = np.clip(rng.lognormal(3.8, 0.6, count).astype(int), 4, 400)
        ends = np.cumsum(lengths)
        words = rng.integers(0, 30_000, ends[-1])
        self.texts = [words[end - length : end] for end, length in zip(ends, lengths)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Any:
        return {"ids": self.texts[index], "label": index % 2}


def pad(samples: list[Any]) -> Any:
    """A batch: texts padded with 0 to the longest, their lengths, and the labels."""
    longest = max(len(sample["ids"]) for sample in samples)
    ids = np.zeros((len(samples), longest), np.int64)
    for row, sample in zip(ids, samples):
        row[: len(sample["ids"])] = sample["ids"]
    lengths = np.array([len(sample["ids"]) for sample in samples])
    return {"ids": ids, "lengths": lengths, "labels": np.array([sample["label"] for sample in samples])}
