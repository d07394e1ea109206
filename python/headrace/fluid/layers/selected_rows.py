"""Sparse gradients as variables."""

from __future__ import annotations

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import append_layer

__all__ = ["get_tensor_from_selected_rows", "merge_selected_rows"]


def merge_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """SelectedRows with each row once, in ascending order: rows that occur several times are added up."""
    return append_layer("merge_selected_rows", {"X": x}, name=name)


def get_tensor_from_selected_rows(x: Variable, name: str | None = None) -> Variable:
    """The rows that SelectedRows have, [rows, ...], as they are and without their numbers."""
    return append_layer("get_tensor_from_selected_rows", {"X": x}, name=name)
