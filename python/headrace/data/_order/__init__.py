"""The order of an epoch: which samples its batches consist of, and what is kept to resume there.

Uses samplers and a loader's arguments. Iterations use it.
"""
