"""Random words by position: the n-th draw of an epoch needs none of those before."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_LOW = np.uint64(0xFFFF_FFFF)
_HALF = np.uint64(32)


def random_words(seed: int, epoch: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
    """Words ``start`` to ``stop`` of the random 64-bit words of an epoch: Philox 4x64, four words per counter."""
    key = np.frombuffer(hashlib.blake2b(f"sampler,{seed},{epoch}".encode(), digest_size=16).digest(), np.uint64)
    first = start // 4
    return np.random.Philox(key=key, counter=first).random_raw(stop - 4 * first)[start - 4 * first :]


def scaled_words(words: npt.NDArray[np.uint64], length: int) -> npt.NDArray[np.uint64]:
    """Words as numbers below ``length``: the upper 64 bits of the product, which favours no number by more than
    2**-64.
    """
    low, high = np.uint64(length & 0xFFFF_FFFF), np.uint64(length >> 32)
    words_low, words_high = words & _LOW, words >> _HALF
    cross = words_high * low
    middle = (words_low * low >> _HALF) + (cross & _LOW) + words_low * high
    product: npt.NDArray[np.uint64] = words_high * high + (cross >> _HALF) + (middle >> _HALF)
    return product


def unit_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Words as numbers from 0 to less than 1."""
    numbers: npt.NDArray[np.float64] = (words >> np.uint64(11)) * 2.0**-53
    return numbers
