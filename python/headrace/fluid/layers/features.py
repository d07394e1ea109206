"""Layers over features of particular models: of clicks, and of pairs of sentences."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import append_layer, check_integer, check_shape

__all__ = ["continuous_value_model", "similarity_focus"]


def continuous_value_model(input: Variable, cvm: Variable, use_cvm: bool = True) -> Variable:
    """Embeddings for a model of clicks, whose first two columns count shows and clicks.

    Args:
        input: [N, D], or with one level of LoD.
        cvm: [N, 2], or a row for each sequence: shows and clicks, which the gradient of ``input`` has in these columns.
        use_cvm: replace them by log(shows + 1) and log(clicks + 1) - log(shows + 1); else leave them out.

    Returns:
        [N, D] or [N, D - 2].
    """
    return append_layer("cvm", {"X": input, "CVM": cvm}, {"use_cvm": use_cvm}, out_slot="Y")


def similarity_focus(input: Variable, axis: int, indexes: Sequence[int], name: str | None = None) -> Variable:
    """A mask of 1 and 0 for ``input``, where pairs are most similar (He and Lin, 2016).

    In each map that ``indexes`` names along ``axis``, the greatest element is chosen, then the greatest one in another
    row and another column, until rows or columns are used up. All maps of a sample have 1 at the places that are chosen
    in any of these. No gradient goes through it.

    Args:
        input: [N, A, B, C].
        axis: 1, 2 or 3.
    """
    layer = "similarity_focus"
    attrs = {"axis": check_integer(axis, "axis", layer), "indexes": check_shape(indexes, "indexes", layer)}
    return append_layer("similarity_focus", {"X": input}, attrs, name, exact_name=True)
