"""Finds where the global generators of :mod:`random` and :mod:`numpy.random` keep their states.

Both are Mersenne Twisters (MT19937), whose own ways to take a seed or a state cost 4 to 30 µs, more than many samples.
So C++ (``global_generators.cc`` of the bindings) writes the state where it lies in memory, if it lies where it is
looked for, which is made sure of once; else the same state is set in the generators' own way.
"""

from __future__ import annotations

import ctypes
import functools
import random
from typing import Any

import numpy as np

from headrace import _core

# Its types do not tell all that it has.
_numpy: Any = np.random

_KEY_WORDS = 624
_KEY_BYTES = 4 * _KEY_WORDS

# The words of a state, and the position of the next one, where the generator keeps them.
_Memory = tuple[Any, Any]


@functools.cache
def global_generators() -> _core.GlobalGenerators:
    """What seeds the generators of this process."""
    python, numpy = random._inst, _bit_generator()
    return _core.GlobalGenerators(
        python, _state_of_random(python), _seed_random, numpy, _state_of_numpy(numpy), _seed_numpy
    )


def _seed_random(seed: int) -> None:
    """Seeds :mod:`random` with 64 bits."""
    random.setstate((3, (*_core.mersenne_twister_words(seed).tolist(), _KEY_WORDS), None))


def _seed_numpy(seed: int) -> None:
    """Seeds :mod:`numpy.random` with 64 bits; of a generator of the program's choice, with the lower 32."""
    if isinstance(_bit_generator(), np.random.MT19937):
        np.random.set_state(("MT19937", _core.mersenne_twister_words(seed), _KEY_WORDS, 0, 0.0))
    else:
        np.random.seed(seed & 0xFFFF_FFFF)


def _state_of_random(generator: Any) -> _Memory | None:
    """CPython keeps the position and then the words after the object's header."""
    if random.Random.__basicsize__ < object.__basicsize__ + 4 + _KEY_BYTES:
        return None
    begin = id(generator) + object.__basicsize__
    *key, position = generator.getstate()[1]
    return _checked(begin + 4, begin, key, position)


def _state_of_numpy(generator: Any) -> _Memory | None:
    """NumPy keeps the words and then the position."""
    if not isinstance(generator, np.random.MT19937) or not hasattr(_numpy, "set_bit_generator"):
        return None
    state = generator.state["state"]
    begin = generator.ctypes.state_address
    return _checked(begin, begin + _KEY_BYTES, state["key"].tolist(), state["pos"])


def _checked(key_at: int, position_at: int, key: list[int], position: int) -> _Memory | None:
    """What lies at two addresses, if it is the state that the generator says it has."""
    words = (ctypes.c_uint32 * _KEY_WORDS).from_address(key_at)
    index = ctypes.c_uint32.from_address(position_at)
    return (words, index) if list(words) == key and index.value == position else None


def _bit_generator() -> Any:
    get = getattr(_numpy, "get_bit_generator", None)  # since NumPy 1.24
    return _numpy.mtrand._rand._bit_generator if get is None else get()
