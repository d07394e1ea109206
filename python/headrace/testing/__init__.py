"""Tools for authors of operators.

:class:`OpTest` compares an operator with a reference in NumPy and its gradient with central differences.
``headrace.testing.strategies`` draws shapes, tensors and LoDs for it with Hypothesis, which has to be installed.
"""

from headrace.testing._op_test import OpTest

__all__ = ["OpTest"]
