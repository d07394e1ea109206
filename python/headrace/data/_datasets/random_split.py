"""Splits of a dataset at random."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.data._argument_checks import is_torch_generator
from headrace.data._datasets.datasets import Subset
from headrace.data._samplers.permuted_range import PermutedRange
from headrace.data._samplers.seeds import fresh_seed, import_torch_data, seed_of


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Any = 0) -> list[Subset]:
    """Splits a dataset at random into parts that do not overlap.

    Args:
        dataset: any map-style dataset.
        lengths: of the parts, which add up to the dataset's; or fractions that add up to 1: each part is rounded down,
            and the remaining samples go to the parts in turn, one each.
        generator: a seed, by default 0, so that every run has the same split; or a NumPy generator, from which a seed
            is drawn; or a torch generator: then the split is exactly torch's. None: a different split each time.

    Raises:
        ValueError: the lengths do not add up, or a fraction is not between 0 and 1.
    """
    total = len(dataset)
    sizes: list[Any] = list(lengths)
    if math.isclose(sum(sizes), 1) and sum(sizes) <= 1:
        for i, fraction in enumerate(sizes):
            if not 0 <= fraction <= 1:
                raise ValueError(f"fraction {i} must be from 0 to 1, got {fraction}")
        sizes = [math.floor(total * fraction) for fraction in sizes]
        for i in range(total - sum(sizes)):
            sizes[i % len(sizes)] += 1
        for i, size in enumerate(sizes):
            if size == 0:
                warnings.warn(f"part {i} of the split is empty", stacklevel=2)
    if sum(sizes) != total:
        raise ValueError(f"the lengths add up to {sum(sizes)}, and the dataset has {total} samples")
    if is_torch_generator(generator):
        torch_parts = import_torch_data().random_split(range(total), sizes, generator)
        return [Subset(dataset, np.array(list(part.indices), np.int64)) for part in torch_parts]
    seed = seed_of(generator)
    order = PermutedRange(total, fresh_seed() if seed is None else seed)
    ends = itertools.accumulate(sizes)
    return [Subset(dataset, order[end - size : end]) for size, end in zip(sizes, ends)]
