"""The tree of a batch: how its leaves, which lie in shared memory, form its structure.

:mod:`describe <headrace.data._samples.describe>` makes it of a sample, :mod:`flatten
<headrace.data._samples.flatten>` of a collated batch, and :mod:`rebuild <headrace.data._samples.rebuild>` makes a batch
of it again. A tree is a nested tuple. Its leaves are numbered in order; for ``form`` see
:mod:`headrace.data._samples.tensors`.

    ("leaf", i, form)                            an array; a list of objects, if the leaf has no dtype
    ("object", i)                                a leaf's only object
    ("objects", i)                               a leaf's objects, as a tuple
    ("list", children), ("tuple", children)
    ("namedtuple", type, children)
    ("sequence", type, shell, children)          another kind of sequence
    ("dict", type, shell, keys, children)        any mapping
    ("dataclass", type, names, children)
    ("ragged", values, offsets)                  a Ragged
    ("joined", values, shapes)                   a list of arrays, concatenated in `values`
    ("pickled", i, arrays, has_tensors)          any object: leaf i is its pickle, without the `arrays` in it; whether
                                                 it has tensors, which may be in the pickle as well
    ("packed", body, arrays, objects)            a tree of which the layout has no room; three leaves hold all of it

A shell is what pickle would store for the container without its items: (function, arguments, state).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.data._samples.pickling import unsendable

Structure = tuple[Any, ...]
# Of the leaves: None for objects; a string where NumPy makes the dtype of that, because a batch may have thousands.
Dtypes = list[Union[np.dtype[Any], str, None]]


# What a slot's layout has room for, with a margin: leaves, bytes of the tree, and dimensions (batch_layout.h).
LAYOUT_LEAVES = 1024
LAYOUT_TREE_BYTES = 96 * 1024
LAYOUT_DIMS = 12


def fits_layout(leaves: int, tree: bytes) -> bool:
    """Whether the layout of a slot has room for a tree and the descriptions of this many leaves."""
    return leaves <= LAYOUT_LEAVES and len(tree) <= LAYOUT_TREE_BYTES


def dtype_in_tree(dtype: np.dtype[Any] | None) -> np.dtype[Any] | str | None:
    """What stands for a dtype in :data:`Dtypes`."""
    if dtype is None or dtype.names is not None or dtype.metadata is not None:
        return dtype
    return dtype.str if dtype.kind in "biufcmMSU" else dtype


def dtype_of_tree(dtype: np.dtype[Any] | str | None) -> np.dtype[Any] | None:
    """The inverse of :func:`dtype_in_tree`."""
    return np.dtype(dtype) if isinstance(dtype, str) else dtype


def places_by_name(names: Sequence[str], tree: bytes) -> list[int]:
    """Which of a batch's arrays the variables of a program take that have these names: in a mapping or dataclass, those
    of their names.

    Returns:
        A place for each name; an empty list if the arrays are in the order of the variables.

    Raises:
        InvalidArgument: a mapping or dataclass has other names, or several arrays under one.
        TypeMismatch: there is something else than an array for a variable.
    """
    structure, dtypes = pickle.loads(tree)[:2]
    named = structure[0] in ("dict", "dataclass")
    children = structure[-1] if named or structure[0] in ("list", "tuple", "namedtuple", "sequence") else [structure]
    keys = list(structure[-2]) if named else list(names)
    if named and set(keys) != set(names):
        raise errors.InvalidArgument(
            f"the loader's batches have {', '.join(map(repr, keys))}, but the variables are "
            f"{', '.join(map(repr, names))}"
        )
    for key, child in zip(keys, children) if len(keys) == len(children) else ():
        if child[0] in ("object", "objects") or (child[0] == "leaf" and dtypes[child[1]] is None):
            raise errors.TypeMismatch(f"'{key}' takes an array, but the loader's batches have other objects there")
        if named and child[0] not in ("leaf", "ragged"):
            raise errors.InvalidArgument(f"'{key}' takes one array, but the loader's batches have several there")
    return [keys.index(name) for name in names] if named else []


def dumps_tree(value: Any) -> bytes:
    """Pickles such that equal values give equal bytes, which workers compare.

    Pickle's memo would break this: it depends on which equal parts are the same object.
    """
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(value)
    except MemoryError:
        raise
    except Exception as error:
        raise unsendable("the dataset or collate_fn", error) from error
    return buffer.getvalue()
