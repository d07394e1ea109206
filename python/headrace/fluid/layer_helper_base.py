"""The module of the base class of Fluid's ``LayerHelper``. In Headrace they are one class."""

from headrace.fluid.layer_helper import LayerHelper as LayerHelperBase

__all__ = ["LayerHelperBase"]
