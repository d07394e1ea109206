"""Fluid's name for the modules of recurrent networks."""

from headrace.fluid.layers.decoding import BeamSearchDecoder, Decoder, dynamic_decode
from headrace.fluid.layers.recurrent import *  # noqa: F403
from headrace.fluid.layers.recurrent import __all__ as _recurrent
from headrace.fluid.layers.rnn_cells import *  # noqa: F403
from headrace.fluid.layers.rnn_cells import __all__ as _cells
from headrace.fluid.layers.sequence import beam_search, beam_search_decode

__all__ = [
    "BeamSearchDecoder",
    "Decoder",
    "beam_search",
    "beam_search_decode",
    "dynamic_decode",
    *_cells,
    *_recurrent,
]
