"""Samplers: the order of indices.

By position wherever possible, so that an epoch resumes without a replay. Part of the public interface. Knows nothing of
loaders.
"""
