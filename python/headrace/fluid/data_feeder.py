"""``DataFeeder`` and ``create_lod_tensor``: turn samples into the tensors that feed a program, and check them."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from headrace import errors
from headrace._wording import counted
from headrace.fluid import core
from headrace.fluid._checks import check_function, check_list, check_optional
from headrace.fluid.core import CPUPlace, LoDTensor
from headrace.fluid.device import cpu_places
from headrace.fluid.framework import Program, Variable, default_main_program

__all__ = ["DataFeeder"]

#: NumPy's name of an element type.
convert_dtype = core.dtype_name


class _Column:
    """Gathers one variable's part of the samples of a batch."""

    def __init__(self, name: str, shape: Sequence[int], dtype: Any, lod_level: int) -> None:
        self.name = name
        self.shape = list(shape)
        self.dtype = core.dtype_name(dtype)
        self.lod_level = lod_level
        self._takes_integers = self.dtype.startswith(("int", "uint"))

    def convert(self, values: list[Any], place: CPUPlace | None) -> LoDTensor:
        lengths: list[list[int]] = [[] for _ in range(self.lod_level)]
        rows: list[np.ndarray] = []
        for index, value in enumerate(values):
            self._flatten(value, 0, lengths, rows, index)
        array = self._pack(rows)
        tensor = LoDTensor()
        tensor.set(array, place)
        if self.lod_level > 0:
            try:
                tensor.set_recursive_sequence_lengths(lengths)
            except errors.InvalidArgument as error:  # all sequences of a level are empty
                raise errors.InvalidArgument(f"variable '{self.name}': {error}") from None
        return tensor

    def _flatten(self, value: Any, level: int, lengths: list[list[int]], rows: list[np.ndarray], index: int) -> None:
        if level == self.lod_level:
            rows.extend(self._rows(value, index))
            return
        if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, (str, bytes)):
            raise errors.TypeMismatch(
                f"variable '{self.name}' has {counted(self.lod_level, 'level')} of sequences, but "
                f"sample {index} has a value of type {type(value).__name__} at level {level}, not a sequence"
            )
        lengths[level].append(len(value))
        for item in value:
            self._flatten(item, level + 1, lengths, rows, index)

    def _rows(self, value: Any, index: int) -> Iterable[np.ndarray]:
        """The value in the declared shape. It may come flat, or with other neighbouring dimensions merged, or as a
        number without its dimension of 1. Without LoD, as in Fluid, it may be several rows: a batch that was made
        elsewhere; and images and the like may have other extents, which operators check, but not the declared ones in
        another order.
        """
        try:
            with np.errstate(invalid="ignore"):
                row = np.asarray(value, dtype=self.dtype)
            kept = not self._takes_integers or row is value or core.is_same(row, np.asarray(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.InvalidArgument(
                f"variable '{self.name}': sample {index} cannot be converted to an array of {self.dtype}: {error}"
            ) from error
        if not kept:
            raise errors.InvalidArgument(
                f"variable '{self.name}': sample {index} has {value!r}, which {self.dtype} cannot hold: round it or "
                f"choose another dtype"
            )
        wanted = self.shape[1:]
        if -1 not in wanted and row.size == math.prod(wanted) and _merges(row.shape, wanted):
            return [row.reshape(wanted)]
        is_row, is_rows = row.ndim == len(wanted), self.lod_level == 0 and row.ndim == len(self.shape)
        fits = all(w in (-1, g) for w, g in zip(wanted, row.shape[1:] if is_rows else row.shape))
        if is_rows and fits:
            return row
        is_image = self.lod_level == 0 and row.ndim > 1
        if is_row and (fits or (is_image and sorted(row.shape) != sorted(wanted))):
            return [row]
        raise errors.InvalidArgument(
            f"variable '{self.name}' takes values of shape {wanted} (-1 is any), "
            f"but sample {index} has {list(row.shape)}"
        )

    def _pack(self, rows: list[np.ndarray]) -> np.ndarray:
        """The rows on top of one another."""
        if not rows:
            return np.zeros([0, *(max(d, 0) for d in self.shape[1:])], dtype=self.dtype)
        for index, row in enumerate(rows):
            if row.shape != rows[0].shape:
                raise errors.InvalidArgument(
                    f"variable '{self.name}': the samples of a batch need the same shape, "
                    f"but sample 0 has {list(rows[0].shape)} and sample {index} {list(row.shape)}"
                )
        return np.stack(rows)


def _merges(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether one of two shapes of the same size has neighbouring dimensions of the other merged, or one of 1 more."""
    runs_a, runs_b = ({1, *itertools.accumulate(shape, operator.mul)} for shape in (a, b))
    return runs_a <= runs_b or runs_b <= runs_a


class DataFeeder:
    """Makes batches of a program's input variables out of lists of samples.

    A sample is a tuple with a value for each variable of ``feed_list``. The value of a variable without LoD is a
    number, or a nested list or array of its shape without the first dimension (or flat, but not transposed). With a
    LoD level of n it is n times nested sequences of such values.

    Thread-safety: immutable; any thread may use it.

    Args:
        feed_list: variables, or their names in ``program``.
        place: where the tensors live.
        program: None: the default main program.
    """

    def __init__(
        self, feed_list: Sequence[Variable | str], place: CPUPlace | None = None, program: Program | None = None
    ) -> None:
        check_optional(program, Program, "program")
        block = (default_main_program() if program is None else program).global_block()
        self.place = place
        self._columns = []
        for item in check_list(feed_list, "feed_list"):
            variable = block.var(item) if isinstance(item, str) else item
            if not isinstance(variable, Variable):
                raise errors.TypeMismatch(f"feed_list takes Variables or their names, got {type(item).__name__}")
            self._columns.append(_Column(variable.name, variable.shape, variable.dtype, variable.lod_level))

    @classmethod
    def _of_specs(cls, specs: Iterable[tuple[str, Sequence[int], Any, int]]) -> DataFeeder:
        """A feeder for (name, shape, dtype, LoD level) of each variable."""
        feeder = cls([])
        feeder._columns = [_Column(*spec) for spec in specs]
        return feeder

    def feed(self, iterable: Iterable[Sequence[Any]]) -> dict[str, LoDTensor]:
        """The batch of the given samples, to be used as ``Executor.run(feed=…)``.

        Raises:
            InvalidArgument: there are no samples, or a sample has the wrong number of values, a value of the wrong
                shape, or one that the variable's integers do not hold: 1.7, or one out of their range.
            TypeMismatch: ``iterable`` or a sample is none, or a value is no sequence where the LoD wants one.
        """
        return dict(zip((column.name for column in self._columns), self._tensors(iterable)))

    def _tensors(self, iterable: Iterable[Sequence[Any]]) -> list[LoDTensor]:
        try:
            samples = enumerate(iterable)
        except TypeError as error:
            raise errors.TypeMismatch(f"a batch has to be a list of samples, got {type(iterable).__name__}") from error
        columns: list[list[Any]] = [[] for _ in self._columns]
        names = ", ".join(column.name for column in self._columns)
        for index, sample in samples:
            if not isinstance(sample, (Sequence, np.ndarray)) or isinstance(sample, (str, bytes)):
                raise errors.TypeMismatch(
                    f"sample {index} has to be a tuple with a value for each variable ({names}), "
                    f"got {type(sample).__name__}"
                )
            if len(sample) != len(columns):
                raise errors.InvalidArgument(
                    f"sample {index} has to have a value for each variable ({names}), got {len(sample)}"
                )
            for column, value in zip(columns, sample):
                column.append(value)
        if not columns or not columns[0]:
            raise errors.InvalidArgument("a batch needs at least one sample")
        return [column.convert(values, self.place) for column, values in zip(self._columns, columns)]

    def feed_parallel(
        self, iterable: Sequence[Iterable[Sequence[Any]]], num_places: int | None = None
    ) -> Iterator[dict[str, LoDTensor]]:
        """``feed`` of one list of samples for each place. A list of the results is fed to a ParallelExecutor or to a
        CompiledProgram, which joins them.

        Args:
            num_places: None: that of ``cpu_places()``.

        Raises:
            InvalidArgument: there are not as many lists as places.
        """
        wanted, batches = len(cpu_places(num_places)), check_list(iterable, "feed_parallel: iterable")
        if len(batches) != wanted:
            raise errors.InvalidArgument(
                f"feed_parallel takes a list of samples for each of {wanted} places, got {len(batches)}"
            )
        return map(self.feed, batches)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Iterable[Sequence[Any]]]],
        multi_devices: bool = False,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """A reader that applies ``feed`` to the batches of ``reader``.

        Args:
            multi_devices: it yields lists of what ``feed`` returns, for as many batches as there are places.
            num_places: None: as many as ``cpu_places()``.
            drop_last: whether batches at the end that are not enough for all places are left out.
        """
        check_function(reader, "decorate_reader: reader")

        def decorated() -> Iterator[Any]:
            for batch in reader():
                yield self.feed(batch)

        def of_places() -> Iterator[list[dict[str, LoDTensor]]]:
            count = len(cpu_places(num_places))
            feeds = decorated()
            while group := list(itertools.islice(feeds, count)):
                if len(group) == count or not drop_last:
                    yield group

        return of_places if multi_devices else decorated
