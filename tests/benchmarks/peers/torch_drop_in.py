"""headrace.torch.DataLoader, in the place of torch's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from harness import contest
from harness.jobs import Job, Loader

from peers import torch_loader

NAME = "headrace.torch"
KIND = contest.OURS
PACKAGES = ("headrace", "torch")
SETTING = "`headrace.torch.DataLoader` with the dataset and the arguments of torch's."


@contextlib.contextmanager
def make(job: Job) -> Iterator[Loader]:
    import headrace.torch

    loader: Any = headrace.torch.DataLoader(**torch_loader.arguments(job))
    try:
        yield Loader(lambda: loader)
    finally:
        loader.shutdown()
