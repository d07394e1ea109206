"""Datasets: their protocols, datasets made of others, and how samples are fetched from them.

The others are subsets, mixtures and packed sequences. Part of the public interface. Knows nothing of loaders.
"""
