"""Samples on their way from the worker that makes them to the worker that collates them."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from headrace.data._tensors import EXTENSION_TYPES, Form, array_of_tensor, is_tensor, to_torch


def dumps(value: Any) -> bytes:
    """Pickled ``value``."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


class _SamplePickler(pickle.Pickler):
    """Arrays and tensors are left out of the bytes: their elements go into buffers of their own."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            if value.dtype.hasobject or value.flags.forc:
                return NotImplemented  # NumPy's own way leaves the elements out already
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
    """A sample as bytes, and the elements of its arrays and CPU tensors, not copied, as C-contiguous buffers of bytes.

    The buffers are those of the sample: it must not change until they have been copied.

    Raises:
        Exception: whatever pickle raises for a sample that cannot be pickled.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _SamplePickler(file, protocol=5, buffer_callback=buffers.append).dump(sample)
    return file.getvalue(), [buffer.raw() for buffer in buffers]


def loads_sample(data: Any, buffers: Iterable[Any]) -> Any:
    """The sample again. Its arrays and tensors lie in the buffers, which have to be writable for them to be so, and
    aligned for their elements.
    """
    return pickle.loads(data, buffers=buffers)
