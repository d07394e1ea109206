"""Seeds the global generators of :mod:`random` and :mod:`numpy.random` fast enough to do it for every sample.

Both are Mersenne Twisters (MT19937), whose own ways to take a seed or a state cost 4 to 30 µs, more than many samples.
So the state is written where it lies in memory, if it lies where it is looked for, which is made sure of once; else
the same state is set in the generators' own way.
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


def seed_random(seed: int) -> None:
    """Seeds :mod:`random` with 64 bits."""
    generator: Any = random._inst
    memory = _memory_of_random(generator)
    if memory is None:
        generator.setstate((3, (*_key(seed), _KEY_WORDS), None))
        return
    key, position = memory
    _core.fill_mersenne_twister(key, seed)
    position.value = _KEY_WORDS
    generator.gauss_next = None  # the second of two numbers that were drawn together


def seed_numpy(seed: int) -> None:
    """Seeds :mod:`numpy.random` with 64 bits."""
    generator = _bit_generator()
    if not isinstance(generator, np.random.MT19937):  # the program's choice
        np.random.seed(seed & 0xFFFF_FFFF)
        return
    memory = _memory_of_numpy(generator)
    if memory is None:
        np.random.set_state(("MT19937", np.array(_key(seed), np.uint32), _KEY_WORDS, 0, 0.0))
        return
    key, position = memory
    with generator.lock:
        _core.fill_mersenne_twister(key, seed)
        position.value = _KEY_WORDS
    _numpy.set_bit_generator(generator)  # drops the second of two numbers that were drawn together


def _key(seed: int) -> list[int]:
    key = (ctypes.c_uint32 * _KEY_WORDS)()
    _core.fill_mersenne_twister(key, seed)
    return list(key)


# The words of a state, and the position of the next one.
_Memory = tuple[Any, Any]


@functools.lru_cache(maxsize=1)
def _memory_of_random(generator: Any) -> _Memory | None:
    """The state of :mod:`random`: CPython keeps the position and then the words after the object's header."""
    if random.Random.__basicsize__ < object.__basicsize__ + 4 + _KEY_BYTES:
        return None
    begin = id(generator) + object.__basicsize__
    *key, position = generator.getstate()[1]
    return _checked(begin + 4, begin, key, position)


@functools.lru_cache(maxsize=1)
def _memory_of_numpy(generator: Any) -> _Memory | None:
    """The state of a bit generator: NumPy keeps the words and then the position."""
    if not hasattr(_numpy, "set_bit_generator"):
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
