"""Exceptions of workers, in PyTorch's words."""

from __future__ import annotations

from torch._utils import ExceptionWrapper

from headrace.data import WorkerTraceback


def as_pytorch_says(error: BaseException) -> BaseException:
    """The exception that PyTorch's loader would raise: of the same type, with the worker's traceback in its text, or a
    RuntimeError with this text if the type cannot be made of a text. Its cause is the original one.
    """
    origin = error.__cause__
    if not isinstance(origin, WorkerTraceback):
        return error
    kind = origin.kind or type(error)
    wrapper = ExceptionWrapper((kind, error, None), f"in DataLoader worker process {origin.worker}")
    wrapper.exc_msg = f"{origin.text.rstrip()}\n{origin.culprit}.\n"
    _set_cause(error, None)
    try:
        wrapper.reraise()
    except BaseException as raised:
        rephrased = raised
        if not isinstance(raised, (kind, RuntimeError)):  # PyTorch's attempt has failed, of which nobody needs to know
            rephrased = RuntimeError(f"Caught {kind.__name__} {wrapper.where}.\nOriginal {wrapper.exc_msg}")
        _set_cause(rephrased, error)
        return rephrased.with_traceback(None)
    return error


def _set_cause(error: BaseException, cause: BaseException | None) -> None:
    """Also of an exception whose class refuses to set attributes, as a frozen dataclass does."""
    BaseException.__setattr__(error, "__cause__", cause)
