"""The circular cache: what its processes do, and in which order, so that nothing can be lost.

``cache`` says why; writers, readers and keepers have leases, which are watched. Uses the stores and the format.
"""
