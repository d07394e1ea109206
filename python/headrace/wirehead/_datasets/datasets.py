"""Datasets that read the current generation: by id, by lists of ids, or through a loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.wirehead._datasets.cache_dataset import CacheDataset

# What the base says of all datasets. `python -OO` leaves out docstrings.
_OF_ALL = (CacheDataset.__doc__ or "").partition("\n\n")[2].strip()


class MongoheadDataset(CacheDataset):
    __doc__ = f"""Samples as dicts: the first array is "input", the second "label", further ones go by their kind. Where
    that would give two the same name, the first or second goes by its kind, too.

    ``dataset[3]`` is the sample with id 3; ``dataset[[3, 5]]`` a dict of samples by their ids.

    {_OF_ALL}
    """

    def __getitem__(self, index: Any, out: Any = None) -> Any:
        if _is_list(index):
            return dict(self._many(index))
        return self._sample(index, out)

    @property
    def _names(self) -> list[str]:
        further = self.sample[2:]
        first = [own if alias in further else alias for alias, own in zip(("input", "label"), self.sample)]
        return list(self.sample if len(set(first)) < len(first) else (*first, *further))

    def _structured(self, values: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names, values))

    def _places(self, out: Mapping[str, Any]) -> Sequence[Any]:
        return [out[name] for name in self._names]


class MongoTupleheadDataset(CacheDataset):
    __doc__ = f"""Samples as tuples of arrays, in the order of SAMPLE.

    ``dataset[3]`` is the sample with id 3; ``dataset[[3, 5]]`` a list of samples.

    {_OF_ALL}
    """

    def __getitem__(self, index: Any, out: Any = None) -> Any:
        if _is_list(index):
            return [sample for _, sample in self._many(index)]
        return self._sample(index, out)

    def _structured(self, values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(values)

    def _places(self, out: Sequence[Any]) -> Sequence[Any]:
        return out


def _is_list(index: Any) -> bool:
    return isinstance(index, (list, tuple, range)) or getattr(index, "ndim", 0) == 1
