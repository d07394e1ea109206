"""Where Fluid has what its ``LayerHelper`` derives from. Here it is one class."""

from headrace.fluid.layer_helper import LayerHelper as LayerHelperBase

__all__ = ["LayerHelperBase"]
