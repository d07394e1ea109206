"""Random numbers that belong to a sample, not to the process that makes it.

Workers that seed by position do it in C++: ``SeedRow`` in ``python/bindings/shared_memory/batch_producer.cc``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import operator
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace import _core
from headrace.data._randomness.global_generators import global_generators


@functools.lru_cache(maxsize=64)
def epoch_key(seed: int, epoch: int) -> int:
    """What stands for an epoch of a loader with that seed: 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{seed},{epoch}".encode(), digest_size=8).digest(), "little")


def _record_key(index: Any) -> int:
    try:
        number = operator.index(index)
        if -(1 << 63) <= number < 1 << 63:
            return number & 0xFFFF_FFFF_FFFF_FFFF
    except TypeError:
        pass
    return int.from_bytes(hashlib.blake2b(_key_bytes(index), digest_size=8).digest(), "little")


_PLAIN_KEYS = frozenset((str, bytes, int, float, complex, bool, type(None)))


def _key_bytes(key: Any) -> bytes:
    """Bytes that are the same for equal keys in all processes, which the ``repr`` of an object need not be.

    Raises:
        TypeError: the key cannot be pickled.
    """
    if type(key) in _PLAIN_KEYS:
        return repr(key).encode("utf-8", "surrogatepass")
    if type(key) is tuple and all(type(part) in _PLAIN_KEYS for part in key):
        return repr(key).encode("utf-8", "surrogatepass")
    try:
        file = io.BytesIO()
        pickler = _KeyPickler(file, pickle.HIGHEST_PROTOCOL)
        pickler.fast = True  # without marks of which equal parts are one object
        pickler.dump(key)
        return file.getvalue()
    except Exception as error:
        raise TypeError(
            f"a record's random numbers follow from its index, but an index of type {type(key).__name__} cannot be "
            "identified in another process, since it cannot be pickled: use integers, strings or tuples of these"
        ) from error


class _KeyPickler(pickle.Pickler):
    """Pickles sets in an order of their values, not of their hashes, which differ between processes."""

    def persistent_id(self, value: Any) -> Any:
        """The sorted elements of a set; None for anything else."""
        return sorted(map(_key_bytes, value)) if isinstance(value, (set, frozenset)) else None


def record_generator(seed: int, epoch: int, index: Any) -> np.random.Generator:
    """The generator of one record in one epoch.

    Philox 4x64 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) keyed by a hash of (seed, epoch)
    and by the index, so that it is the same whichever worker asks, and streams of different records never overlap.

    Args:
        seed: the loader's seed.
        epoch: the epoch, counted from 0.
        index: the record's index; one that is not an integer of 64 bits counts by its value, as pickled.
    """
    key = np.array([epoch_key(seed, epoch), _record_key(index)], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def worker_base_seed(seed: int, epoch: int, batch: int) -> int:
    """What the global generators of workers are seeded with that start at a batch of an epoch, before each adds its
    number: a function of the arguments, so that a run repeats. 63 bits.
    """
    return _seed_of(f"workers,{seed},{epoch},{batch}")


def successor_seed(base_seed: int, worker_id: int, predecessors: int) -> int:
    """What the global generators of a worker are seeded with instead, before it adds its number, that starts after so
    many others of its number. 63 bits.
    """
    return _seed_of(f"successor,{base_seed},{worker_id},{predecessors}")


def _seed_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


#: What stands for the collation of a batch as a row.
COLLATION_ROW = _core.COLLATION_ROW


def position_key(batch: int, row: int) -> int:
    """What stands for a row of a batch in :func:`seed_generators`; the same as C++ computes."""
    return (batch << 32) ^ row


def seed_generators(seed: int, epoch: int, key: Any) -> None:
    """Seeds the global generators of :mod:`random`, :mod:`numpy.random` and torch, if imported, for one record.

    Args:
        seed, epoch: as of :func:`record_generator`.
        key: what tells the record from others of the epoch: its index, or :func:`position_key`.
    """
    global_generators().seed(epoch_key(seed, epoch), _record_key(key))


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """The global generators are afterwards as they were before."""
    torch = sys.modules.get("torch")
    before = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch is not None:
            torch.set_rng_state(before[2])
