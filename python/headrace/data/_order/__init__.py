"""The order of an epoch: the samples of its batches, and the state that is kept to resume there.

The seeded shuffle itself is ``reader/index_permutation.h``. Uses samplers and a loader's arguments. Iterations use it.
"""
