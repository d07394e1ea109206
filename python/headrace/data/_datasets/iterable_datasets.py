"""Datasets that are read as streams, and those made of others."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from headrace import errors
from headrace.data._datasets.capabilities import tell_epoch
from headrace.data._short_repr import short_repr

Sample = TypeVar("Sample", covariant=True)


class IterableDataset(Generic[Sample]):
    """A stream of samples, for data that cannot be indexed. A subclass defines ``__iter__``.

    It may offer more:

    - ``__len__``: how many samples there are.
    - ``set_epoch(epoch)``: called before each iteration.
    - ``state_dict()``: the position of the latest iteration, which JSON can hold; ``load_state_dict(state)``: the next
      iteration resumes there, and the one after it starts from the beginning.
    """

    def __iter__(self) -> Iterator[Sample]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")

    def __add__(self, other: Any) -> ChainDataset:
        return ChainDataset([self, other])

    __repr__ = short_repr


class ChainDataset(IterableDataset[Any]):
    """The concatenation of iterable datasets.

    Its state is that of the current dataset, if it has one, or else how many of its samples to skip.

    Args:
        datasets: iterable datasets.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        self._number = 0  # of the current dataset
        self._samples = 0  # that it has yielded
        self._resumed: dict[str, Any] | None = None

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self.datasets)

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        first, samples = (resumed["dataset"], resumed["samples"]) if resumed is not None else (0, 0)
        for number, dataset in enumerate(self.datasets):
            if not is_iterable_dataset(dataset):
                raise TypeError(f"ChainDataset needs iterable datasets, and {type(dataset).__name__} is not one")
            if number < first:
                continue
            skipped = samples if number == first else 0
            self._number, self._samples = number, skipped
            if number == first and resumed is not None and resumed["state"] is not None:
                dataset.load_state_dict(resumed["state"])
                skipped = 0
            for sample in itertools.islice(dataset, skipped, None):
                self._samples += 1
                yield sample

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the datasets that have ``set_epoch``."""
        tell_epoch(self.datasets, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest iteration."""
        if self._resumed is not None:
            return self._resumed
        state = None
        if self._samples and hasattr(self.datasets[self._number], "state_dict"):
            state = self.datasets[self._number].state_dict()
        return {"dataset": self._number, "samples": self._samples, "state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration resumes where ``state`` was taken."""
        self._resumed = dict(state)


def is_iterable_dataset(dataset: Any) -> bool:
    """Whether ``dataset`` is read as a stream rather than by index.

    Streams are :class:`IterableDataset`, ours or torch's, and anything with ``__iter__`` but no ``__getitem__``.
    """
    if isinstance(dataset, IterableDataset):
        return True
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def is_iter_datapipe(dataset: Any) -> bool:
    """Whether a dataset is an iterable DataPipe of torch; does not import torch."""
    pipe = getattr(sys.modules.get("torch.utils.data"), "IterDataPipe", None)
    return pipe is not None and isinstance(dataset, pipe)


# The modules of iterators that never begin anew.
_OF_ITERATORS = getattr(sys, "stdlib_module_names", frozenset({"builtins", "itertools", "_csv", "_io", "csv"}))


def is_read_once(dataset: Any) -> bool:
    """Whether an iterable dataset is a generator, a file or another built-in iterator, which is empty once it
    was read. A class of the program that returns itself from ``__iter__`` may begin anew.
    """
    kind = type(dataset)
    return hasattr(kind, "__next__") and str(kind.__module__).partition(".")[0] in _OF_ITERATORS


def read_twice() -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        "dataset is an iterator, which can be read only once; pass an object whose __iter__ returns a new iterator"
    )
