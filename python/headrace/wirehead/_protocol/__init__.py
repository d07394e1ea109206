"""The circular cache: the steps of its processes, and their order, which ensure that nothing is lost.

``cache`` says why; writers, readers and keepers have leases, which are watched. Uses the stores and the format.
"""
