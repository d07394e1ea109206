"""Packing: records of different lengths, joined into rows of one length.

A row states for each of its positions which record it belongs to and where in that record it lies, so that attention
can be confined to the records. Rows have the format of Grain's packing: each feature ``x`` of the samples comes with
``x_segment_ids``, counted from 1, with 0 for padding, and ``x_positions``, counted from 0; both are int32.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from headrace.data._argument_checks import positive
from headrace.data._datasets.capabilities import passes_on, tell_epoch
from headrace.data._datasets.datasets import ComposedDataset, Part, has_state, in_range
from headrace.data._datasets.first_fit import FirstFit
from headrace.data._datasets.iterable_datasets import IterableDataset, is_iterable_dataset
from headrace.data._samplers.permuted_range import Int64Array

# The length of a row: one for all features, or by feature.
RowLength = Union[int, Mapping[Any, int]]
# The feature's name where samples are arrays.
_VALUES = "values"


class _Features:
    """The features to pack: their names, and the lengths of their rows."""

    def __init__(self, row_length: RowLength) -> None:
        self.single = not isinstance(row_length, Mapping)
        lengths = dict(row_length) if isinstance(row_length, Mapping) else {_VALUES: row_length}
        if not lengths:
            raise ValueError("row_length must name at least one feature")
        self.row_lengths = {name: positive("row_length", length) for name, length in lengths.items()}

    def of(self, sample: Any, index: Any) -> dict[Any, npt.NDArray[Any]]:
        """A sample's features as arrays; a number counts as an array of one."""
        if self.single:
            if isinstance(sample, Mapping):
                raise TypeError(
                    f"sample {index!r} is of type {type(sample).__name__}: row_length has to be a dict, with a length "
                    "for each feature to pack"
                )
            if isinstance(sample, (tuple, list)) and any(getattr(part, "ndim", 0) for part in sample):
                raise TypeError(
                    f"sample {index!r}, of type {type(sample).__name__}, holds arrays: to pack several features, "
                    "return a dict and give row_length a length for each"
                )
            return {_VALUES: np.atleast_1d(np.asarray(sample))}
        if not isinstance(sample, Mapping):
            raise TypeError(
                f"row_length names features, and sample {index!r} is of type {type(sample).__name__}, not a dict"
            )
        missing = [name for name in self.row_lengths if name not in sample]
        if missing:
            raise KeyError(f"sample {index!r} has no feature {missing[0]!r}")
        return {name: np.atleast_1d(np.asarray(sample[name])) for name in self.row_lengths}

    def lengths(self, features: dict[Any, npt.NDArray[Any]], index: Any) -> list[int]:
        return self.checked([len(values) for values in features.values()], index)

    def checked(self, lengths: list[int], index: Any) -> list[int]:
        for (name, row_length), length in zip(self.row_lengths.items(), lengths):
            if length > row_length:
                what = "" if self.single else f" in feature {name!r}"
                raise ValueError(
                    f"sample {index!r} has a length of {length}{what}, but a row holds {row_length}: cut it, or make "
                    "the rows longer"
                )
        return lengths

    def row(self, samples: Sequence[dict[Any, npt.NDArray[Any]]], out: Any = None) -> Any:
        """A row made of samples; in ``out``, if that is given."""
        row = out if out is not None else self._empty(samples)
        for name in self.row_lengths:
            values, segments, positions = row[name], row[f"{name}_segment_ids"], row[f"{name}_positions"]
            end = 0
            for number, sample in enumerate(samples, 1):
                part = sample[name]
                if len(part) == 0:
                    continue
                if part.dtype != values.dtype or part.shape[1:] != values.shape[1:]:
                    raise ValueError(
                        f"records in one row must have one dtype and shape: feature {name!r} has {values.dtype} of "
                        f"shape {values.shape[1:]} and {part.dtype} of shape {part.shape[1:]}"
                    )
                start, end = end, end + len(part)
                values[start:end] = part
                segments[start:end] = number
                positions[start:end] = np.arange(end - start)
            for array in (values, segments, positions):
                array[end:] = np.zeros((), array.dtype)
        return row

    def _empty(self, samples: Sequence[dict[Any, npt.NDArray[Any]]]) -> dict[Any, npt.NDArray[Any]]:
        row: dict[Any, npt.NDArray[Any]] = {}
        for name, length in self.row_lengths.items():
            # An empty list does not tell its dtype.
            typical = next((sample[name] for sample in samples if len(sample[name])), samples[0][name])
            row[name] = np.empty((length, *typical.shape[1:]), typical.dtype)
            row[f"{name}_segment_ids"] = np.empty(length, np.int32)
            row[f"{name}_positions"] = np.empty(length, np.int32)
        return row


class PackedDataset(ComposedDataset):
    """Records of a map-style dataset, packed into rows: each record goes into the first row that has room for it.

    The rows are planned once, when this object is made, from the lengths of all records.

    Args:
        dataset: a map-style dataset whose samples are arrays or sequences of numbers, or dicts of these.
        row_length: the length of a row. If samples are dicts, a dict: the features to pack, with the lengths of their
            rows; other features are dropped.
        lengths: of the records, in order: a sequence of integers, or, with features, a dict of sequences. Default:
            every record is read to find its length, which may take long.

    Raises:
        ValueError: a record is longer than a row, or ``lengths`` belongs to another number of records.
        TypeError: the dataset is iterable; use :class:`PackedIterableDataset`.
    """

    def __init__(self, dataset: Any, row_length: RowLength, lengths: Any = None) -> None:
        if is_iterable_dataset(dataset):
            raise TypeError(f"{type(dataset).__name__} is iterable; use PackedIterableDataset for iterable datasets")
        self.dataset = dataset
        self._features = _Features(row_length)
        self._parts = [Part(dataset)]
        columns = self._measured() if lengths is None else self._given(lengths)
        for column, row_length in zip(columns, self._features.row_lengths.values()):
            for index in np.flatnonzero(column > row_length)[:1].tolist():
                self._features.checked([int(other[index]) for other in columns], index)
        place = FirstFit(list(self._features.row_lengths.values())).place
        rows = np.array([place(sizes) for sizes in zip(*[column.tolist() for column in columns])], dtype=np.int64)
        # The records by row, and where each row's begin.
        self._records = np.argsort(rows, kind="stable")
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(rows))]).astype(np.int64)

    def _measured(self) -> list[npt.NDArray[Any]]:
        part, features = self._parts[0], self._features
        if part.wants_rng or part.wants_out:
            raise TypeError(
                "the records depend on arguments that only a loader passes (rng or out): pass their lengths"
            )
        table = [
            [len(values) for values in features.of(self.dataset[index], index).values()]
            for index in range(len(self.dataset))
        ]
        return list(np.array(table, np.int64).reshape(-1, len(features.row_lengths)).T)

    def _given(self, lengths: Any) -> list[npt.NDArray[Any]]:
        names = list(self._features.row_lengths)
        columns = [lengths] if self._features.single else [lengths[name] for name in names]
        arrays = [np.asarray(column) for column in columns]
        for array in arrays:
            if array.shape != (len(self.dataset),) or (array.size and array.dtype.kind not in "iu"):
                raise ValueError(
                    f"lengths must be an integer for each of the {len(self.dataset)} records, got "
                    f"{array.dtype} of shape {array.shape}"
                )
            if array.size and array.min() < 0:
                raise ValueError(f"lengths must be at least 0, got {array.min()}")
        return arrays

    def __len__(self) -> int:
        return len(self._starts) - 1

    def records(self, row: int) -> Int64Array:
        """The indices of the records in a row, in their order there."""
        row = in_range(row, len(self))
        return self._records[self._starts[row] : self._starts[row + 1]]

    @passes_on
    def __getitem__(self, index: Any, *, rng: np.random.Generator | None = None, out: Any = None) -> Any:
        records = self.records(index).tolist()
        part = self._parts[0]
        if part.bulk is not None:
            samples = part.get_many(records)
        else:
            samples = [part.get(record, rng, None) for record in records]
        return self._row(records, samples, out)

    @property
    def sample_spec(self) -> Any:
        """None: the structure of a row is known only once there is one."""
        return None

    def _row(self, records: list[int], samples: list[Any], out: Any = None) -> Any:
        features = [self._features.of(sample, record) for record, sample in zip(records, samples)]
        ends = [0] * len(self._features.row_lengths)
        for record, feature in zip(records, features):
            ends = [end + length for end, length in zip(ends, self._features.lengths(feature, record))]
            if any(end > length for end, length in zip(ends, self._features.row_lengths.values())):
                raise ValueError(f"sample {record} does not fit into its row: it is longer than its given length")
        return self._features.row(features, out)

    def _get_many(self, indices: list[Any]) -> list[Any]:
        rows = [self.records(index).tolist() for index in indices]
        samples = iter(self._parts[0].get_many(list(itertools.chain.from_iterable(rows))))
        return [self._row(records, list(itertools.islice(samples, len(records)))) for records in rows]


class PackedIterableDataset(IterableDataset[Any]):
    """Records of an iterable dataset, packed into rows.

    ``bins`` rows are filled at a time. Each record goes into the first one that has room for it; when none has, the
    rows are yielded in order, and the record is the first of the next ones. More rows at a time leave less padding.

    Its state is where the current rows began. To resume, their records are read and packed again; earlier records are
    read and dropped, unless the dataset has a state of its own.

    Args:
        dataset: an iterable dataset; its samples as for :class:`PackedDataset`.
        row_length: as for :class:`PackedDataset`.
        bins: how many rows are filled at a time.

    Raises:
        TypeError, ValueError: an argument is invalid; while iterating, a record is longer than a row.
    """

    def __init__(self, dataset: Any, row_length: RowLength, bins: int = 64) -> None:
        if not is_iterable_dataset(dataset):
            raise TypeError(f"{type(dataset).__name__} is not iterable; use PackedDataset for map-style datasets")
        self.dataset = dataset
        self.bins = positive("bins", bins)
        self._features = _Features(row_length)
        self._resumed: dict[str, Any] | None = None
        # Where the rows under way began: how many records before, after a state, how many records; and how many of the
        # rows were given.
        self._records = 0
        self._state: Any = None
        self._behind = 0
        self._rows = 0

    def __iter__(self) -> Iterator[Any]:
        resumed, self._resumed = self._resumed, None
        self._records, self._state, self._behind, self._rows = 0, None, 0, 0
        if resumed is not None:
            self._records, self._state, self._rows = resumed["records"], resumed["state"], resumed["rows"]
            self._behind = resumed.get("behind", 0)
        if self._state is not None:
            self.dataset.load_state_dict(self._state)
            return self._iterate(itertools.islice(self.dataset, self._behind, None))
        return self._iterate(itertools.islice(self.dataset, self._records, None))

    def _iterate(self, samples: Iterator[Any]) -> Iterator[Any]:
        features, capacity = self._features, list(self._features.row_lengths.values())
        stateful = has_state(self.dataset)
        record = self._records
        bins: list[list[dict[Any, npt.NDArray[Any]]]] = []
        room: list[list[int]] = []
        skipped = self._rows
        # The latest state, and how many records came before: no later than where the next rows begin.
        state, noted = None, 0
        while True:
            sample = next(samples, _END)
            if sample is not _END:
                arrays = features.of(sample, record)
                lengths = features.lengths(arrays, record)
                row = next((i for i, free in enumerate(room) if all(map(int.__le__, lengths, free))), len(room))
            if sample is _END or row == self.bins:
                for number in range(skipped, len(bins)):
                    self._rows = number + 1
                    yield features.row(bins[number])
                if sample is _END:
                    return
                self._records, self._state, self._rows = record, state, 0
                self._behind = record - noted if stateful else 0
                bins, room, row, skipped = [], [], 0, 0
            opens = row == len(room)
            if opens:
                bins.append([])
                room.append(list(capacity))
            bins[row].append(arrays)
            room[row] = [free - length for free, length in zip(room[row], lengths)]
            record += 1
            if stateful and opens and len(bins) == self.bins:
                state, noted = self.dataset.state_dict(), record

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the dataset, if that has ``set_epoch``."""
        tell_epoch([self.dataset], epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the latest iteration."""
        if self._resumed is not None:
            return self._resumed
        return {"state": self._state, "behind": self._behind, "records": self._records, "rows": self._rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next iteration resumes where ``state`` was taken."""
        self._resumed = dict(state)


_END = object()
