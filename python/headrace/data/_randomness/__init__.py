"""Seeds and generators: of records, and Python's, NumPy's and torch's global ones.

Whoever draws random numbers on a user's behalf uses it.
"""
