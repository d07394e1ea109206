"""Collates samples into batches.

If the samples of a batch have the same structure, the C++ writer copies each to its row, and nothing here runs. This
module makes the other batches: of samples that differ, or with the user's own collate function.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Union

import numpy as np

from headrace._wording import counted
from headrace.data._samples.containers import (
    field_names,
    is_dataclass,
    is_mapping,
    is_namedtuple,
    is_other_array,
    is_plain_array,
    is_sequence,
    make_dataclass,
    make_mapping,
    make_sequence,
    parts_of,
    shell_of,
    with_parts,
)
from headrace.data._samples.describe import Description
from headrace.data._samples.planned_arrays import Planned, copying
from headrace.data._samples.ragged import Ragged
from headrace.data._samples.tensors import EXTENSION_TYPES, Array, Form, array_of_tensor, is_tensor

# None, "pad", ("pad", value), "list", "lod", or a mapping from keys (positions, fields) to these.
RaggedRule = Union[None, str, tuple[str, Any], Mapping[Any, Any]]

# By the kind of a dtype, what is no number.
_FAMILIES = {"S": "text", "U": "text", "T": "text", "M": "date", "m": "duration"}


def default_collate(samples: Sequence[Any], indices: Sequence[Any] | None = None, ragged: RaggedRule = None) -> Any:
    """Stacks samples into a batch, by the rules of PyTorch's ``default_collate`` wherever it has any.

    Arrays and numbers are stacked along a new first axis; so are torch tensors, which stay tensors. Arrays of other
    libraries that follow the array API standard, such as JAX's, become NumPy arrays. Tuples become
    lists; other sequences, mappings, named tuples and dataclasses keep their type, and their elements are collated one
    by one. Strings, bytes, None, object arrays and anything else become a list.

    Args:
        samples: at least one sample.
        indices: their dataset indices, for messages.
        ragged: the rule for arrays of at least one axis whose shapes differ:

            - None: an error.
            - "pad", ("pad", value): each is padded at the end of each axis, to the longest in the batch, with the
              value; "pad" with zeros.
            - "list": a list of arrays.
            - "lod": a :class:`Ragged`; only the first axis may differ.
            - a mapping: the rule for each key of a mapping, position in a sequence or name of a field (either of them
              in a named tuple); None for those that are missing.

    Raises:
        ValueError: samples that differ in shape or structure; the message names the first that differs. Or ``ragged``
            has a rule for a key, position or field that the samples lack.
        TypeError: samples whose types cannot be batched together.
    """
    return _collate_all(samples, indices, ragged, planned=False)


def collate_in_place(samples: Sequence[Any], indices: Sequence[Any] | None = None, ragged: RaggedRule = None) -> Any:
    """As :func:`default_collate`, for :class:`Flattener`: arrays are :class:`Planned`, and stacked right at their
    place in the batch.
    """
    return _collate_all(samples, indices, ragged, planned=True)


@dataclasses.dataclass(frozen=True)
class DefaultCollate:
    """The collate function of a loader with rules for ragged arrays; see :func:`collate_in_place`."""

    ragged: RaggedRule

    def __call__(self, samples: Sequence[Any], indices: Sequence[Any] | None = None) -> Any:
        return collate_in_place(samples, indices, self.ragged)


class KnownCollate:
    """A collate function of Headrace's own, of which the loader knows more than that it can be called. A base class,
    since a user's function may have attributes of any name.

    Attributes:
        makes_once: a worker that is the only one makes each sample once, so that it draws what PyTorch's would draw,
            even if a batch turns out not to fit its place.
        takes_any_number: it makes a batch of what ``__getitems__`` gives, be these fewer samples than were asked for.
        stacks_tensors: it makes of samples that are tuples of tensors a list of these, stacked.
    """

    makes_once = takes_any_number = False

    @property
    def stacks_tensors(self) -> bool:
        return False

    def makes_new(self) -> bool:
        """Whether all tensors of a batch are new, and nobody's but the consumer's."""
        return False

    def __call__(self, samples: list[Any]) -> Any:
        raise NotImplementedError


class InPlaceCollate(KnownCollate):
    """A collate function that is called only for batches whose samples the writer cannot stack in the same way."""

    def describe(self, sample: Any) -> Description:
        """Describes the batch that the writer makes of samples like this one; it must equal the result of a call.
        Returns the result of :func:`describe` or :func:`describe_whole`.
        """
        raise NotImplementedError


def _collate_all(samples: Sequence[Any], indices: Sequence[Any] | None, ragged: RaggedRule, planned: bool) -> Any:
    if not samples:
        raise ValueError("cannot make a batch of no samples")
    check_ragged_rule(ragged)
    return _Collation(list(indices) if indices is not None else list(range(len(samples))), planned).collate(
        samples, "", ragged
    )


def check_ragged_rule(rule: Any) -> None:
    """Raises ValueError unless :func:`default_collate` accepts ``rule``."""
    if isinstance(rule, Mapping):
        for each in rule.values():
            check_ragged_rule(each)
        return
    padded = isinstance(rule, tuple) and len(rule) == 2 and rule[0] == "pad"
    if not padded and rule is not None and rule not in ("pad", "list", "lod"):
        raise ValueError(
            f'ragged must be None, "pad", ("pad", value), "list", "lod" or a mapping of these, got {rule!r}'
        )


def default_convert(sample: Any) -> Any:
    """Converts a sample for a loader that does not batch: NumPy scalars become arrays, tuples lists; containers are
    converted element by element; everything else stays as it is.
    """
    if isinstance(sample, np.generic) and is_plain_array(sample):
        return np.asarray(sample)
    if isinstance(sample, np.ndarray) or is_tensor(sample) or isinstance(sample, Ragged):
        return sample
    parts = parts_of(sample)
    if parts is None:
        return sample
    converted = list(map(default_convert, parts))
    return converted if isinstance(sample, tuple) and not is_namedtuple(sample) else with_parts(sample, converted)


class _Collation:
    """Collates one batch.

    Args:
        planned: large arrays are left as :class:`Planned`.
    """

    def __init__(self, indices: list[Any], planned: bool) -> None:
        self._indices = indices
        self._planned = planned

    def collate(self, samples: Sequence[Any], where: str, rule: Any) -> Any:
        first = samples[0]
        if isinstance(rule, Mapping):
            rule = _rule_by_key(rule, first, where)
        if _is_numeric(first):
            return self._arrays(samples, where, None if isinstance(rule, Mapping) else rule)
        if is_mapping(first):
            for i, sample in enumerate(samples):
                if not is_mapping(sample) or set(sample) != set(first):
                    got = f"keys {sorted(map(str, sample))}" if is_mapping(sample) else _describe_short(sample)
                    raise ValueError(self._differs(i, where, got, f"keys {sorted(map(str, first))}"))
            columns = {key: self._column([sample[key] for sample in samples], where, key, rule) for key in first}
            return make_mapping(type(first), shell_of(first), columns)
        if is_dataclass(first):
            return self._dataclass(samples, where, rule)
        if is_sequence(first):
            return self._sequence(samples, where, rule)
        return list(samples)

    def _column(self, values: list[Any], where: str, key: Any, rule: Any) -> Any:
        return self.collate(values, f"{where}[{key!r}]", rule.get(key) if isinstance(rule, Mapping) else rule)

    def _sequence(self, samples: Sequence[Any], where: str, rule: Any) -> Any:
        first = samples[0]
        for i, sample in enumerate(samples):
            if not is_sequence(sample) or len(sample) != len(first):
                got = counted(len(sample), "element") if is_sequence(sample) else _describe_short(sample)
                hint = " Only arrays can be ragged." if rule is not None and is_sequence(sample) else ""
                raise ValueError(self._differs(i, where, got, counted(len(first), "element")) + hint)
        columns = [self._column(list(column), where, i, rule) for i, column in enumerate(zip(*samples))]
        if is_namedtuple(first):
            return type(first)(*columns)
        return columns if isinstance(first, tuple) else make_sequence(type(first), shell_of(first), columns)

    def _dataclass(self, samples: Sequence[Any], where: str, rule: Any) -> Any:
        first = samples[0]
        names = field_names(first)
        for i, sample in enumerate(samples):
            if type(sample) is not type(first) or field_names(sample) != names:
                expected = f"type {type(first).__name__} with the fields {', '.join(names)}"
                raise ValueError(self._differs(i, where, _describe_short(sample), expected))
        columns: dict[str, Any] = {}
        for name in names:
            inner = rule.get(name) if isinstance(rule, Mapping) else rule
            columns[name] = self.collate([getattr(sample, name) for sample in samples], f"{where}.{name}", inner)
        return make_dataclass(type(first), columns)

    def _arrays(self, samples: Sequence[Any], where: str, rule: Any) -> Any:
        """Stacks arrays, tensors, scalars and numbers, in a type that holds them all."""
        kind = type(samples[0])
        if kind in (bool, int, float) and all(type(sample) is kind for sample in samples):
            try:
                return np.array(samples, dtype=_number_dtype(samples[0]))
            except OverflowError:
                pass  # which one is found below
        if issubclass(kind, (np.number, np.bool_)) and all(type(sample) is kind for sample in samples):
            return np.array(samples)
        if kind is np.ndarray and _of_one_type(samples):
            return self._joined(list(samples), None, samples, where, rule)
        if rule is None and not self._planned and all(map(_is_on_device, samples)):
            self._check_shapes(samples, samples, where)
            return sys.modules["torch"].stack(list(samples))
        pairs = [self._array(i, sample, samples[0], where) for i, sample in enumerate(samples)]
        forms = {form for _, form in pairs}
        form: Form = None
        if None not in forms:
            if len(forms) > 1 or any(array.dtype != pairs[0][0].dtype for array, _ in pairs):
                return self._arrays(_promoted(samples), where, rule)
            form = pairs[0][1]
        elif any(each in EXTENSION_TYPES for each in forms):
            raise TypeError(f"arrays{_at(where)} cannot be stacked with tensors of a type that NumPy lacks")
        arrays = [array for array, _ in pairs]
        if rule != "list" or arrays[0].ndim == 0:  # these are stacked under any rule
            self._check_dtypes(arrays, where)
        return self._joined(arrays, form, samples, where, rule)

    def _joined(self, arrays: list[Array], form: Form, samples: Sequence[Any], where: str, rule: Any) -> Any:
        """Stacks arrays of one type, or packs, pads or lists ragged ones."""
        if rule is not None and arrays[0].ndim > 0:
            return self._ragged(arrays, form, samples, where, rule)
        self._check_shapes(arrays, samples, where)
        if arrays[0].ndim == 0 and form is None:
            # NumPy makes the bytes native and packs records.
            return np.stack(arrays).astype(_common_dtype(arrays), copy=False)
        return self._stacked(arrays, form)

    def _check_dtypes(self, arrays: list[Array], where: str) -> None:
        """Refuses numbers mixed with strings, which NumPy would turn into strings, and the like."""
        expected = arrays[0].dtype
        for i, array in enumerate(arrays):
            if _FAMILIES.get(array.dtype.kind) != _FAMILIES.get(expected.kind):
                raise TypeError(self._differs(i, where, f"dtype {array.dtype}", f"dtype {expected}"))

    def _check_shapes(self, arrays: Sequence[Any], samples: Sequence[Any], where: str) -> None:
        expected = tuple(arrays[0].shape)
        for i, array in enumerate(arrays):
            shape = tuple(array.shape)
            if shape != expected:
                got = f"shape {shape}" if shape else _describe_short(samples[i])
                hint = (
                    ' To batch arrays of different shapes, pass ragged="pad", "list" or "lod".'
                    if len(shape) == len(expected)
                    else ""
                )
                raise ValueError(self._differs(i, where, got, f"shape {expected}") + hint)

    def _stacked(self, arrays: list[Array], form: Form) -> Any:
        shape = (len(arrays), *arrays[0].shape)

        def fill(place: Array) -> None:
            if arrays[0].ndim == 0:
                np.stack(arrays, out=place, casting="unsafe")
            elif place.size:  # the same in one call
                np.concatenate(arrays, out=place.reshape(-1, *shape[2:]), casting="unsafe")

        return self._planned_array(shape, arrays, form, fill)

    def _array(self, i: int, sample: Any, first: Any, where: str) -> tuple[Array, Form]:
        if is_tensor(sample):
            return array_of_tensor(sample)
        if not _is_numeric(sample):
            raise TypeError(self._differs(i, where, _describe_short(sample), _describe_short(first)))
        try:
            return np.asarray(sample, dtype=_number_dtype(sample)), None
        except OverflowError:
            raise OverflowError(
                f"sample {self._indices[i]!r}{_at(where)}: {sample} does not fit into 64 bits"
            ) from None

    def _planned_array(
        self, shape: tuple[int, ...], arrays: list[Array], form: Form, fill: Callable[[Array], Any]
    ) -> Any:
        planned = Planned(shape, _common_dtype(arrays), fill, form, form if form in EXTENSION_TYPES else "")
        return planned if self._planned else planned.make()

    def _ragged(self, arrays: list[Array], form: Form, samples: Sequence[Any], where: str, rule: Any) -> Any:
        first = arrays[0]
        for i, array in enumerate(arrays):
            if array.ndim == 0:
                got = _describe_short(samples[i])
                raise ValueError(self._differs(i, where, got, "an array of at least one axis"))
        if rule == "list":
            # The loader copies these to the batch; any other caller gets memory of its own.
            own = form is not None or not self._planned
            return [Planned(each.shape, each.dtype, copying(each), form).make() for each in arrays] if own else arrays
        for i, array in enumerate(arrays):
            if array.ndim != first.ndim:
                raise ValueError(self._differs(i, where, f"shape {array.shape}", counted(first.ndim, "dimension")))
            if rule == "lod" and array.shape[1:] != first.shape[1:]:
                expected = f"shape (…, {', '.join(map(str, first.shape[1:]))})"
                raise ValueError(self._differs(i, where, f"shape {array.shape}", expected))
        if rule == "lod":
            lengths = [len(array) for array in arrays]
            values = self._planned_array(
                (sum(lengths), *first.shape[1:]),
                arrays,
                form,
                lambda place: np.concatenate(arrays, out=place, casting="unsafe"),
            )
            offsets: Any = np.cumsum([0, *lengths], dtype=np.int64)
            if form is not None and not self._planned:
                offsets = sys.modules["torch"].from_numpy(offsets)
            return Ragged(values, offsets)
        dtype = _common_dtype(arrays)
        padding = _padding(0 if rule == "pad" else rule[1], dtype, form)
        longest = tuple(max(extents) for extents in zip(*(array.shape for array in arrays)))

        def fill(place: Array) -> None:
            place[...] = padding
            for row, array in zip(place, arrays):
                row[tuple(map(slice, array.shape))] = array

        return self._planned_array((len(arrays), *longest), arrays, form, fill)

    def _differs(self, i: int, where: str, got: str, expected: str) -> str:
        return (
            f"sample {self._indices[i]!r} cannot be batched with sample {self._indices[0]!r}{_at(where)}: "
            f"got {got}, expected {expected}. Return equal structures and shapes, or pass a collate_fn."
        )


def _rule_by_key(rule: Mapping[Any, Any], sample: Any, where: str) -> Mapping[Any, Any]:
    """A rule with the keys, positions or fields of the sample.

    Raises:
        ValueError: it names others.
    """
    has: Collection[Any] = ()
    what = "keys"
    if is_mapping(sample):
        has = sample
    elif is_dataclass(sample):
        has, what = field_names(sample), "fields"
    elif is_sequence(sample):
        has, what = range(len(sample)), "positions"
        if is_namedtuple(sample):
            positions = {name: i for i, name in enumerate(type(sample)._fields)}
            rule = {positions.get(key, key): each for key, each in rule.items()}
    for key in rule:
        if key not in has:
            names = ", ".join(map(repr, has))
            found = f"the {what} {names}" if names else "no keys, positions or fields"
            raise ValueError(f"ragged has a rule for {key!r}, but samples{_at(where)} have {found}")
    return rule


def _is_numeric(value: Any) -> bool:
    is_ours = is_plain_array(value) or is_tensor(value) or isinstance(value, (bool, int, float, complex))
    return is_ours or is_other_array(value)


def _is_on_device(value: Any) -> bool:
    """Whether it is a tensor in other memory than NumPy's arrays."""
    return is_tensor(value) and value.device.type != "cpu"


def _of_one_type(samples: Sequence[Any]) -> bool:
    """Whether all are arrays with elements of one type."""
    dtype = samples[0].dtype
    return all(type(sample) is np.ndarray and sample.dtype == dtype for sample in samples)


def _number_dtype(value: Any) -> type[np.generic] | None:
    """An explicit type for Python's numbers: NumPy's default for an int depends on the value."""
    if isinstance(value, (np.generic, np.ndarray)):
        return None
    for kind, dtype in ((bool, np.bool_), (int, np.int64), (float, np.float64), (complex, np.complex128)):
        if isinstance(value, kind):
            return dtype
    return None


def _common_dtype(arrays: list[Array]) -> np.dtype[Any]:
    dtypes = {array.dtype for array in arrays}
    return np.result_type(*dtypes) if len(dtypes) > 1 else arrays[0].dtype


def _promoted(tensors: Sequence[Any]) -> list[Any]:
    torch = sys.modules["torch"]
    dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
    return [tensor.to(dtype) for tensor in tensors]


def _padding(value: Any, dtype: np.dtype[Any], form: Form) -> Any:
    """A 0-d array of that value, to pad with."""
    if form in EXTENSION_TYPES:
        torch = sys.modules["torch"]
        return array_of_tensor(torch.tensor(value, dtype=getattr(torch, str(form))))[0]
    element = np.zeros((), dtype)
    if isinstance(value, (int, float)) and value == 0:
        return element  # of any type: an empty string, a record of zeros
    try:
        element[...] = value
        if dtype.kind not in "iubSU" or element == value:  # neither truncated nor wrapped around
            return element
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"cannot pad with {value!r}: {dtype} cannot hold that value")


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _describe_short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"a value of type {type(value).__name__}"
