"""Serializes what leaves a worker: samples that another one collates, and objects in batches."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from headrace.data._samples.tensors import EXTENSION_TYPES, Form, array_of_tensor, is_tensor, to_torch


def dumps(value: Any) -> bytes:
    """Pickles ``value`` with the newest protocol."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unsendable(source: str, error: Exception) -> pickle.PicklingError:
    """The exception for an ``error`` in pickling the result of ``source``, such as "the dataset"."""
    return pickle.PicklingError(
        f"{source} returned something that cannot be sent from a worker ({type(error).__name__}: {error}). Return "
        "arrays, tensors, numbers, strings, containers of these, or other objects that can be pickled; or pass "
        "num_workers=0, with which nothing is sent"
    )


def dumps_from(source: str) -> Callable[[Any], bytes]:
    """As :func:`dumps`, for what ``source`` has returned; it raises :func:`unsendable`."""

    def dumps_or_explain(value: Any) -> bytes:
        try:
            return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        except MemoryError:
            raise
        except Exception as error:
            raise unsendable(source, error) from error

    return dumps_or_explain


class _SamplePickler(pickle.Pickler):
    """Keeps the elements of arrays and tensors out of the pickled bytes: they go into separate buffers."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            if value.dtype.hasobject or value.flags.forc:
                return NotImplemented  # NumPy's own reduction keeps the elements out of band already
            return np.ascontiguousarray(value).__reduce_ex__(5)
        if is_tensor(value) and type(value) is sys.modules["torch"].Tensor:
            try:
                array, form = array_of_tensor(value)
            except TypeError:
                return NotImplemented
            return _tensor_of, (np.ascontiguousarray(array).reshape(array.shape), form, value.requires_grad)
        return NotImplemented


def _tensor_of(array: Any, form: Form, requires_grad: bool) -> Any:
    tensor = to_torch(EXTENSION_TYPES.get(form or "", array.dtype), form)(array)
    return tensor.requires_grad_() if requires_grad else tensor


def dumps_sample(sample: Any) -> tuple[bytes, list[Any]]:
    """Pickles a sample. Returns the elements of its arrays and CPU tensors separately, as C-contiguous byte buffers.

    The buffers are views: the sample must not change until they have been copied.

    Raises:
        Exception: whatever pickle raises if the sample cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _SamplePickler(file, protocol=5, buffer_callback=buffers.append).dump(sample)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def loads_sample(data: Any, buffers: Iterable[Any]) -> Any:
    """Restores a sample. Its arrays and tensors view the buffers, which must be aligned for their elements; they are
    writable if the buffers are.
    """
    return pickle.loads(data, buffers=buffers)
