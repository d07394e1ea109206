"""Finds where the global generators of :mod:`random`, :mod:`numpy.random` and torch keep their states.

All are Mersenne Twisters (MT19937), whose own ways to take a seed or a state cost 1 to 30 µs, more than many samples.
So C++ (``global_generators.cc`` of the bindings) writes the state where it lies in memory, if it lies where it is
looked for, which is made sure of once; else the same state is set in the generators' own way.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import sys
from typing import Any, Optional

import numpy as np

from headrace import _core

# Its types do not tell all that it has.
_numpy: Any = np.random

_KEY_WORDS = 624
_KEY_BYTES = 4 * _KEY_WORDS

# What torch's generators give as their state: the seed, how many words are left, whether they are set, the position of
# the next one, the words; and what follows is 0 if no number was drawn in advance.
_TORCH_STATE = struct.Struct(f"<Qii{1 + _KEY_WORDS}Q40x")
_MOST_BEFORE_STATE = 256  # bytes of a torch generator, which has ten times as many

# See ``MersenneTwister`` in global_generators.h.
_State = tuple[Any, Any, bytes, Any]
_Generator = tuple[Any, Optional[_State], Any, Any]


@functools.cache
def global_generators() -> _core.GlobalGenerators:
    """What seeds the generators of this process."""
    return _core.GlobalGenerators(_random(), _numpy_random(), _torch)


def _random() -> _Generator:
    generator = random._inst
    forget = functools.partial(setattr, generator, "gauss_next", None)
    return generator, _state_of_random(generator), forget, _seed_random


def _numpy_random() -> _Generator:
    generator = _bit_generator()
    state = _state_of_numpy(generator)
    forget = None if state is None else functools.partial(_numpy.set_bit_generator, generator)
    return generator, state, forget, _seed_numpy


def _torch() -> _Generator | None:
    """None while another thread imports it."""
    generator = getattr(sys.modules["torch"], "default_generator", None)
    if generator is None:
        return None
    # Not torch.manual_seed, which looks for devices to seed, too, and takes a hundred times as long.
    return generator, _state_of_torch(generator), functools.partial(generator.manual_seed, 0), _seed_torch


def _seed_random(seed: int) -> None:
    """Seeds :mod:`random` with 64 bits."""
    random.setstate((3, (*_core.mersenne_twister_words(seed).tolist(), _KEY_WORDS), None))


def _seed_numpy(seed: int) -> None:
    """Seeds :mod:`numpy.random` with 64 bits; of a generator of the program's choice, with the lower 32."""
    if isinstance(_bit_generator(), np.random.MT19937):
        np.random.set_state(("MT19937", _core.mersenne_twister_words(seed), _KEY_WORDS, 0, 0.0))
    else:
        np.random.seed(seed & 0xFFFF_FFFF)


def _seed_torch(seed: int) -> None:
    """Seeds torch with 63 bits; a generator whose state looks otherwise, in its own way."""
    torch = sys.modules["torch"]
    generator = torch.default_generator
    if generator.get_state().numel() == _TORCH_STATE.size:
        state = _TORCH_STATE.pack(seed, 1, 1, 0, *_core.mersenne_twister_words(seed).tolist())
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    else:
        generator.manual_seed(seed)


def _state_of_random(generator: Any) -> _State | None:
    """CPython keeps the position and then the words after the object's header."""
    if random.Random.__basicsize__ < object.__basicsize__ + 4 + _KEY_BYTES:
        return None
    begin = id(generator) + object.__basicsize__
    *key, position = generator.getstate()[1]
    return _checked(begin + 4, begin, key, position)


def _state_of_numpy(generator: Any) -> _State | None:
    """NumPy keeps the words and then the position."""
    if not isinstance(generator, np.random.MT19937) or not hasattr(_numpy, "set_bit_generator"):
        return None
    state = generator.state["state"]
    begin = generator.ctypes.state_address
    return _checked(begin, begin + _KEY_BYTES, state["key"].tolist(), state["pos"])


def _checked(key_at: int, position_at: int, key: list[int], position: int) -> _State | None:
    """What lies at two addresses, if it is the state that the generator says it has."""
    words = (ctypes.c_uint32 * _KEY_WORDS).from_address(key_at)
    index = ctypes.c_uint32.from_address(position_at)
    found = list(words) == key and index.value == position
    return (words, index, struct.pack("=I", _KEY_WORDS), None) if found else None


class _TorchState(ctypes.Structure):
    """``at::mt19937_data_pod`` of torch."""

    _fields_ = (
        ("seed", ctypes.c_uint64),
        ("left", ctypes.c_int),
        ("seeded", ctypes.c_bool),
        ("next", ctypes.c_uint32),
        ("words", ctypes.c_uint32 * _KEY_WORDS),
    )


def _state_of_torch(generator: Any) -> _State | None:
    """torch keeps it in its generator's C++ object, after a few other members."""
    state, begin = bytes(generator.get_state().numpy()), getattr(generator, "_cdata", None)
    if len(state) != _TORCH_STATE.size or type(begin) is not int:
        return None
    seed, left, seeded, position, *words = _TORCH_STATE.unpack(state)
    for address in range(begin, begin + _MOST_BEFORE_STATE, ctypes.alignment(_TorchState)):
        found = _TorchState.from_address(address)
        head = found.seed, found.left, int(found.seeded), found.next
        if head == (seed, left, seeded, position) and list(found.words) == words:
            field = _TorchState.left.offset
            size = _TorchState.words.offset - field
            place = (ctypes.c_char * size).from_address(address + field)
            first = bytes(_TorchState(0, 1, True, 0))[field : field + size]
            return found.words, place, first, ctypes.c_uint64.from_address(address)
    return None


def _bit_generator() -> Any:
    get = getattr(_numpy, "get_bit_generator", None)  # since NumPy 1.24
    return _numpy.mtrand._rand._bit_generator if get is None else get()
