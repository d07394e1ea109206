"""Map-style datasets, and those made of others."""

from __future__ import annotations

import abc
import bisect
import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from headrace.data._datasets.capabilities import passes_on, tell_epoch, wants_out, wants_rng
from headrace.data._datasets.iterable_datasets import is_iterable_dataset
from headrace.data._short_repr import short_repr

Sample = TypeVar("Sample", covariant=True)


@runtime_checkable
class Dataset(Protocol[Sample]):
    """Samples by index. Any object with these two methods is a dataset; there is no class to inherit from.

    A dataset may offer more:

    - ``__getitem__(self, index, rng)``: a parameter named ``rng`` receives a :class:`numpy.random.Generator` that
      belongs to the record and depends only on the loader's seed, the epoch and the index.
    - ``__getitem__(self, index, out)``: a parameter named ``out`` receives the sample's place in the batch: arrays,
      nested like a sample, to be filled. It is None while the loader does not yet know the structure of a sample. A
      method that has filled it returns ``out`` or None.
    - ``sample_spec``: describes a sample, so that ``out`` is available from the first sample on.
    - ``__getitems__(self, indices)``: returns a list of samples in one call: those of a batch, or of a part of one.
    - ``name_of(index)``: the name of a sample that cannot be batched, for error messages; default: its index.
    - ``state_dict()``, ``load_state_dict(state)``: the state that the loader keeps with its own. It is the state of the
      dataset in the program's process; workers have copies.
    """

    # Abstract, so that a class that inherits all the same and lacks one cannot be used.
    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: Any, /) -> Sample: ...

    # Classes that inherit can be added, as torch's. Not a method here, which each dataset would have to have.
    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not hasattr(cls, "__add__"):
            cls.__add__ = concatenated  # type: ignore[operator]


def concatenated(first: Any, second: Any) -> ConcatDataset:
    """``first + second``, of map-style datasets."""
    return ConcatDataset([first, second])


def is_concatenation(dataset: Any) -> bool:
    """Whether a dataset is a ConcatDataset, ours or torch's; does not import torch."""
    torchs = getattr(sys.modules.get("torch.utils.data"), "ConcatDataset", ConcatDataset)
    return isinstance(dataset, (ConcatDataset, torchs))


def bulk_method(dataset: Any) -> Callable[[list[Any]], list[Any]] | None:
    """A dataset's ``__getitems__``, if it can be used: not if each record gets something of its own."""
    return Part(dataset).bulk


def has_state(dataset: Any) -> bool:
    """Whether a dataset, or a part of it, has a state to be kept."""
    if isinstance(dataset, ComposedDataset):
        return any(has_state(part.dataset) for part in dataset._parts)
    return hasattr(dataset, "state_dict") and hasattr(dataset, "load_state_dict")


class Part:
    """A wrapped dataset: the arguments it accepts, and how it is read."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset = adopted(dataset)
        self.wants_rng = hasattr(dataset, "__getitem__") and wants_rng(dataset)
        self.wants_out = hasattr(dataset, "__getitem__") and wants_out(dataset)

    @property
    def bulk(self) -> Callable[[list[Any]], list[Any]] | None:
        # PyTorch's datasets inherit a __getitems__ that only some of them define.
        bulk = None if self.wants_rng or self.wants_out else getattr(self.dataset, "__getitems__", None)
        return bulk if callable(bulk) else None

    @property
    def sample_spec(self) -> Any:
        return getattr(self.dataset, "sample_spec", None)

    def get(self, index: Any, rng: np.random.Generator | None, out: Any) -> Any:
        if not self.wants_rng and not self.wants_out:
            return self.dataset[index]
        wanted: dict[str, Any] = {}
        if self.wants_rng:
            if rng is None:
                raise TypeError(f"{type(self.dataset).__name__} takes rng, which only a loader of headrace passes")
            wanted["rng"] = rng
        if self.wants_out:
            wanted["out"] = out
        return self.dataset.__getitem__(index, **wanted)

    def get_many(self, indices: list[Any]) -> list[Any]:
        bulk = self.bulk
        if bulk is None:
            return [self.dataset[index] for index in indices]
        samples = bulk(indices)
        if len(samples) != len(indices):
            raise ValueError(
                f"__getitems__ of {type(self.dataset).__name__} was asked for {len(indices)} samples "
                f"and gave {len(samples)}"
            )
        return samples


class ComposedDataset:
    """Base class of datasets that wrap others, their parts.

    ``rng`` and ``out`` are passed on to the parts that take them; ``state_dict``, ``load_state_dict`` and ``set_epoch``
    to the parts that have them.

    A subclass defines ``__len__``, ``__getitem__``, marked with :func:`passes_on`, and ``_get_many``.
    """

    _parts: list[Part]

    __add__ = concatenated
    __repr__ = short_repr

    @property
    def __getitems__(self) -> Callable[[list[Any]], list[Any]] | None:
        """Reads many samples in one call; None, as with torch's datasets, if this is no faster than single reads."""
        # Must not bypass a __getitem__ that a subclass defines.
        own = not getattr(type(self).__getitem__, "passes_on", False)
        return None if own or not any(part.bulk for part in self._parts) else self._get_many

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def _get_many(self, indices: list[Any]) -> list[Any]:
        raise NotImplementedError

    def _gather(self, places: list[tuple[int, Any]]) -> list[Any]:
        """The samples at places (number of the part, index there), with one call per part."""
        rows_of: dict[int, list[int]] = {}
        for row, (number, _) in enumerate(places):
            rows_of.setdefault(number, []).append(row)
        samples: list[Any] = [None] * len(places)
        for number, rows in rows_of.items():
            for row, sample in zip(rows, self._parts[number].get_many([places[row][1] for row in rows])):
                samples[row] = sample
        return samples

    @property
    def sample_spec(self) -> Any:
        """The first part's; None if it has none."""
        return self._parts[0].sample_spec

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the parts that have ``set_epoch``."""
        tell_epoch([part.dataset for part in self._parts], epoch)

    def state_dict(self) -> dict[str, Any]:
        """The states of the parts, None for those that have none."""
        return {"parts": [part.dataset.state_dict() if has_state(part.dataset) else None for part in self._parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives each part its state.

        Raises:
            ValueError: the state has another number of parts.
        """
        if len(state["parts"]) != len(self._parts):
            raise ValueError(
                f"the state was saved with {len(state['parts'])} datasets, but this one has {len(self._parts)}"
            )
        for part, inner in zip(self._parts, state["parts"]):
            if inner is not None:
                part.dataset.load_state_dict(inner)


class Subset(ComposedDataset):
    """The samples of a dataset at the given indices.

    Args:
        dataset: any map-style dataset.
        indices: a sequence of its indices.
    """

    def __init__(self, dataset: Any, indices: Sequence[Any] | npt.NDArray[Any]) -> None:
        self.dataset = dataset
        self.indices = indices
        self._parts = [Part(dataset)]

    def __len__(self) -> int:
        return len(self.indices)

    @passes_on
    def __getitem__(self, index: Any, *, rng: np.random.Generator | None = None, out: Any = None) -> Any:
        if isinstance(index, list):
            return self.dataset[[self._inner(i) for i in index]]
        return self._parts[0].get(self._inner(index), rng, out)

    def _get_many(self, indices: list[Any]) -> list[Any]:
        return self._parts[0].get_many([self._inner(index) for index in indices])

    def _inner(self, index: Any) -> Any:
        inner = self.indices[index]
        return int(inner) if isinstance(inner, np.integer) else inner


class ConcatDataset(ComposedDataset):
    """The concatenation of datasets.

    Args:
        datasets: map-style datasets, at least one.

    Raises:
        ValueError: there are none.
        TypeError: one of them is iterable; use :class:`ChainDataset` for those.
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset needs at least one dataset")
        for dataset in self.datasets:
            if is_iterable_dataset(dataset):
                raise TypeError(
                    f"ConcatDataset needs datasets with __getitem__, and {type(dataset).__name__} is iterable; "
                    "use ChainDataset for iterable datasets"
                )
        self.cumulative_sizes = list(itertools.accumulate(map(len, self.datasets)))
        self._parts = list(map(Part, self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    @passes_on
    def __getitem__(self, index: Any, *, rng: np.random.Generator | None = None, out: Any = None) -> Any:
        number, inner = self._locate(index)
        return self._parts[number].get(inner, rng, out)

    def _get_many(self, indices: list[Any]) -> list[Any]:
        return self._gather([self._locate(index) for index in indices])

    def _locate(self, index: Any) -> tuple[int, int]:
        index = in_range(index, len(self))
        number = bisect.bisect_right(self.cumulative_sizes, index)
        return number, index - (self.cumulative_sizes[number - 1] if number else 0)


class StackDataset(ComposedDataset):
    """Datasets of one length side by side: sample i is the tuple, or the dict, of their samples i.

    Args:
        args: datasets whose samples make a tuple.
        kwargs: datasets whose samples make a dict; excludes ``args``.

    Raises:
        ValueError: no datasets, both kinds of arguments, or datasets of different lengths.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset needs datasets either as arguments, for tuples, or by keyword, for dicts")
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        self._parts = list(map(Part, args or kwargs.values()))
        lengths = [len(part.dataset) for part in self._parts]
        if len(set(lengths)) > 1:
            raise ValueError(f"the datasets of a StackDataset must be of one length, got {lengths}")
        self._length = lengths[0]

    def __len__(self) -> int:
        return self._length

    @passes_on
    def __getitem__(self, index: Any, *, rng: np.random.Generator | None = None, out: Any = None) -> Any:
        keys = list(self.datasets) if isinstance(self.datasets, dict) else range(len(self._parts))
        samples = []
        for key, part in zip(keys, self._parts):
            place = None if out is None else out[key]
            sample = part.get(index, rng, place)
            samples.append(place if sample is None and part.wants_out else sample)
        return self._joined(samples)

    def _get_many(self, indices: list[Any]) -> list[Any]:
        columns = [part.get_many(indices) for part in self._parts]
        return [self._joined(row) for row in zip(*columns)]

    def _joined(self, samples: Iterable[Any]) -> Any:
        return dict(zip(self.datasets, samples)) if isinstance(self.datasets, dict) else tuple(samples)

    @property
    def sample_spec(self) -> Any:
        """The parts', side by side; None if one has none."""
        specs = [part.sample_spec for part in self._parts]
        return None if any(spec is None for spec in specs) else self._joined(specs)


def adopted(dataset: Any) -> Any:
    """The dataset to read: ours in place of torch's class, if that would keep ``rng`` or ``out`` from its parts."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None:
        return dataset
    ours: ComposedDataset
    if type(dataset) is torch_data.Subset:
        ours = Subset(dataset.dataset, dataset.indices)
    elif type(dataset) is torch_data.ConcatDataset:
        ours = ConcatDataset(dataset.datasets)
    elif type(dataset) is torch_data.StackDataset:
        parts = dataset.datasets
        ours = StackDataset(**parts) if isinstance(parts, dict) else StackDataset(*parts)
    else:
        return dataset
    return ours if wants_rng(ours) or wants_out(ours) else dataset


class TensorDataset:
    """The rows of arrays or tensors: sample i is the tuple of their i-th rows.

    Args:
        tensors: NumPy arrays or torch tensors, equally long.

    Raises:
        ValueError: none, or of different lengths.
    """

    __add__ = concatenated
    __repr__ = short_repr

    def __init__(self, *tensors: Any) -> None:
        lengths = [len(tensor) for tensor in tensors]
        if len(set(lengths)) != 1:
            raise ValueError(f"TensorDataset needs arrays of one length, got lengths {lengths}")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple([tensor[index] for tensor in self.tensors])


def in_range(index: Any, length: int) -> int:
    """The index, counted from the front; IndexError if it is out of range."""
    number = operator.index(index)
    if not -length <= number < length:
        raise IndexError(f"index {number} is out of range: the dataset has {length} samples")
    return number + length if number < 0 else number
