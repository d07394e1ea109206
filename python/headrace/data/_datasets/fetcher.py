"""How samples are read from a dataset: with the arguments that it takes, one by one or in bulk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.data._datasets.capabilities import wants_out, wants_rng
from headrace.data._datasets.datasets import adopted, bulk_method
from headrace.data._randomness.sample_seeds import record_generator


class Fetcher:
    """Reads samples from a dataset for one loader, passing the generators that it takes.

    Not thread-safe: one per worker.

    Attributes:
        wants_rng: the dataset gets the record's generator.
        wants_out: ``getitem`` is called with the index and ``out``; else with the index alone.
        bulk: the dataset's ``__getitems__``, if it has one that can be used.
        getitem: makes one sample.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        dataset = adopted(dataset)
        self._dataset = dataset
        self._seed = seed
        self._epoch = 0
        self.wants_rng = wants_rng(dataset)
        self.wants_out = wants_out(dataset)
        self.bulk = bulk_method(dataset)
        self.getitem: Callable[..., Any]
        if self.wants_rng:
            self.getitem = self._getitem_filling_with_generator if self.wants_out else self._getitem_with_generator
        else:
            self.getitem = self._getitem_filling if self.wants_out else dataset.__getitem__

    def set_epoch(self, epoch: int) -> None:
        """Selects the epoch of the records that are read next."""
        self._epoch = epoch

    def _getitem_with_generator(self, index: Any) -> Any:
        return self._dataset.__getitem__(index, rng=record_generator(self._seed, self._epoch, index))

    def _getitem_filling(self, index: Any, out: Any = None) -> Any:
        return self._dataset.__getitem__(index, out=out)

    def _getitem_filling_with_generator(self, index: Any, out: Any = None) -> Any:
        return self._dataset.__getitem__(index, rng=record_generator(self._seed, self._epoch, index), out=out)
