"""Copies of arrays that belong to the dataset, without workers: the consumer may write to its batches."""

from __future__ import annotations

from typing import Any

from headrace.data._samples.overlapping_arrays import Memory, find_shown, part_of
from headrace.data._samples.planned_arrays import Planned
from headrace.data._samples.rebuild import build_arrays
from headrace.data._samples.tensors import is_tensor, leaves_slot_unchanged
from headrace.data._samples.tree_walk import Walk


def own_copies(batch: Any) -> dict[int, tuple[Any, Any]]:
    """Copies the arrays and tensors in the containers of a batch, such as they would arrive from a worker; but not
    tensors that would arrive changed, such as those that need a gradient.

    Returns:
        Originals and copies, by the ``id`` of the original; none if the batch has objects that may refer to the arrays,
        too.
    """
    shown: dict[int, Any] = {}
    if not find_shown(batch, shown, set()):
        return {}
    copied = {key: value for key, value in shown.items() if not is_tensor(value) or leaves_slot_unchanged(value)}
    parts = {key: part for key, value in copied.items() if (part := part_of(value)) is not None}
    walk = Walk()
    memory = Memory(list(parts.values()), walk)
    entries = [(*memory.leaf(part), part.form, True, part.kind, part.requires_grad) for part in parts.values()]
    leaves = [leaf.make_array() if isinstance(leaf, Planned) else leaf.copy() for leaf in walk.leaves]
    built = build_arrays(entries, [leaf.dtype for leaf in leaves], leaves)
    return {key: (shown[key], copy) for key, copy in zip(parts, built)}
