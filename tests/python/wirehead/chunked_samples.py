"""Samples of several chunks, which say in each of them what they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.wirehead._protocol.reader import Reader

CAP = 4


def sample(value: int) -> tuple[Any, Any]:
    return np.full((3, 50), value), np.full(2, value)


def whole(reader: Reader, generation: int, id: int) -> int:
    """The value of a sample in which all is of one piece."""
    arrays = reader.read(generation, id)
    value = int(arrays["label"][1][0])
    assert (arrays["data"][1] == value).all()
    assert (arrays["label"][1] == value).all()
    return value
