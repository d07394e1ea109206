"""Whatever here is called raises Unimplemented."""

from __future__ import annotations

from typing import Any, NoReturn

from headrace import errors

__all__ = ["AutoMixedPrecisionLists", "OptimizerWithMixedPrecision", "OptimizerWithMixedPrecison", "decorate"]


def decorate(*args: Any, **kwargs: Any) -> NoReturn:
    """Raises Unimplemented."""
    raise errors.Unimplemented("mixed precision: kernels compute in float32 and float64; use the optimizer as it is")


AutoMixedPrecisionLists = OptimizerWithMixedPrecision = decorate
#: As Fluid spells it.
OptimizerWithMixedPrecison = OptimizerWithMixedPrecision
