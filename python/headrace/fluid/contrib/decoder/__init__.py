"""Decoders around a cell whose step is a function of the program's own."""

from headrace.fluid.contrib.decoder import beam_search_decoder
from headrace.fluid.contrib.decoder.beam_search_decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder", "beam_search_decoder"]
