"""Exceptions of workers, in PyTorch's words."""

from __future__ import annotations

from torch._utils import ExceptionWrapper

from headrace.data import WorkerTraceback


def as_pytorch_says(error: BaseException) -> BaseException:
    """The exception that PyTorch's loader would raise: of the same type, with the worker's traceback in its text. Its
    cause is the original one.
    """
    origin = error.__cause__
    if not isinstance(origin, WorkerTraceback):
        return error
    wrapper = ExceptionWrapper((type(error), error, None), f"in DataLoader worker process {origin.worker}")
    wrapper.exc_msg = f"{origin.text.rstrip()}\n{origin.culprit}.\n"
    error.__cause__ = None
    try:
        wrapper.reraise()
    except BaseException as rephrased:
        rephrased.__cause__ = error
        return rephrased.with_traceback(None)
    return error
