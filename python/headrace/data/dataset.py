"""What a dataset has to offer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

from headrace.data.random import record_generator

Sample = TypeVar("Sample", covariant=True)


@runtime_checkable
class Dataset(Protocol[Sample]):
    """Samples by index. Any object with these two methods is one; there is nothing to inherit from.

    A dataset may offer more:

    - ``__getitem__(self, index, rng)``: a parameter named ``rng`` receives a :class:`numpy.random.Generator` of the
      record's own, which depends on the loader's seed, the epoch and the index alone.
    - ``__getitems__(self, indices)``: a list of samples in one call.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Sample: ...


def wants_generator(method: Callable[..., Any]) -> bool:
    """Whether ``method`` has a parameter named ``rng``."""
    try:
        return "rng" in inspect.signature(method).parameters
    except (TypeError, ValueError):  # a method without a signature, written in C
        return False


class Fetcher:
    """Reads samples from a dataset for one loader, handing it the generators that it asks for.

    Not thread-safe: one per worker.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._epoch = 0
        # PyTorch's datasets inherit a __getitems__ that only some of them define.
        bulk = getattr(dataset, "__getitems__", None)
        self.bulk: Callable[[list[Any]], list[Any]] | None = bulk if callable(bulk) else None
        self.getitem: Callable[[Any], Any]
        if wants_generator(dataset.__getitem__):
            self.bulk = None
            self.getitem = self._getitem_with_generator
        else:
            self.getitem = dataset.__getitem__

    def set_epoch(self, epoch: int) -> None:
        """Whose epoch's records are read next."""
        self._epoch = epoch

    def _getitem_with_generator(self, index: Any) -> Any:
        return self._dataset.__getitem__(index, rng=record_generator(self._seed, self._epoch, index))
