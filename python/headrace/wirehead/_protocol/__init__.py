"""The circular cache: the steps of its processes, and their order, which ensure that nothing is lost.

``cache`` says why; ``generation_manager`` verifies, swaps and drops; writers, readers and managers have leases, which
are watched. Uses the stores and the format.
"""
