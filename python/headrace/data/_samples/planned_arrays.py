"""Arrays of a batch that are planned first, and then made in their place in the slot: concatenated, padded, stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.data._samples.tensors import (
    Array,
    Form,
    to_torch,
)


@dataclasses.dataclass(frozen=True)
class Planned:
    """An array of a batch that is not made until its place is known.

    Attributes:
        fill: writes the elements into an array of this shape and dtype.
        meaning: the kind of the elements, for C++: the name of an element type that NumPy lacks; "offsets"; or "". With
            "storage", memory that is no array of the batch itself, and "view", numbers that locate an array in another
            leaf, C++ knows no tensor: a queue of a program does not take such batches.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Callable[[Array], None]
    form: Form = None
    meaning: str = ""

    def make(self) -> Any:
        """Makes the array, or tensor, in memory of its own."""
        array = self.make_array()
        return array if self.form is None else to_torch(self.dtype, self.form)(array)

    def make_array(self) -> Array:
        """Makes the array in memory of its own."""
        array = np.empty(self.shape, self.dtype)
        self.fill(array)
        return array


def copying(source: Array) -> Callable[[Array], None]:
    """Returns a :attr:`Planned.fill` that copies ``source``."""
    return lambda place: np.copyto(place, source)
