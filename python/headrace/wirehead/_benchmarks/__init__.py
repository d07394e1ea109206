"""The parts of ``python -m headrace.wirehead bench``.

Measurements, the published algorithm that they compare with, and the storm, which ``tests/soak`` runs for longer. Only
the command line uses it.
"""
