"""Iterations of a loader, in the program.

Which epoch comes next, the engine that joins scheduler and workers, iterators, their progress and state, feeding a
queue, and engines that wait for the next epoch. Only the loader uses it.
"""
