"""Fluid's graph that passes rewrite, for programs that import it and may do without."""

from __future__ import annotations

from typing import Any

from headrace import errors

__all__ = ["IrGraph"]


class IrGraph:
    """Making one raises Unimplemented: no pass rewrites programs here."""

    def __init__(self, graph: Any, for_test: bool = False) -> None:
        raise errors.Unimplemented(
            "framework.IrGraph: no pass rewrites programs here. To quantise a program, do that elsewhere, and load the "
            "result with io.load_inference_model; to change one, use its blocks and operators"
        )
