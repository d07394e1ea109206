"""The exceptions of headrace.

Each derives from :class:`HeadraceError` and from the corresponding built-in exception, so that either can be caught.
An exception that a user's own code raises in a feeder thread or a worker process is not one of these: it arrives as
it was raised.
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "DataLoss",
    "EOFException",
    "FailedPrecondition",
    "HeadraceError",
    "InvalidArgument",
    "IoError",
    "NotFound",
    "OutOfRange",
    "QueueClosedError",
    "ResourceExhausted",
    "Timeout",
    "TypeMismatch",
    "Unimplemented",
    "WorkerDied",
]


class HeadraceError(Exception):
    """The base of all of these. The message says what went wrong and where; attributes name the place, for programs."""

    #: Type of the operator that reported the error, if one did.
    op_type: str | None = None
    #: Name of the variable that the error is about, if it is about one.
    variable: str | None = None
    #: Index of the sample that the error is about, if it is about one.
    sample_index: int | None = None

    def __str__(self) -> str:
        # KeyError would print the repr of the message.
        return Exception.__str__(self)


class InvalidArgument(HeadraceError, ValueError):
    """A value, shape or count that does not fit."""


class TypeMismatch(HeadraceError, TypeError):
    """A dtype or a type of variable that does not fit."""


class OutOfRange(HeadraceError, IndexError):
    """An index outside its range."""


class NotFound(HeadraceError, KeyError):
    """An operator, variable, attribute or file that does not exist."""


class AlreadyExists(HeadraceError, ValueError):
    """A name or registration that is taken."""


class FailedPrecondition(HeadraceError, RuntimeError):
    """A call in a state that does not allow it."""


class Unimplemented(HeadraceError, NotImplementedError):
    """Something that is not implemented, for example a kernel for this dtype."""


class ResourceExhausted(HeadraceError, MemoryError):
    """Memory or slots ran out."""


class DataLoss(HeadraceError, ValueError):
    """A corrupt program or file, or shared memory that a worker has overwritten."""


class IoError(HeadraceError, OSError):
    """A system call failed."""


class Timeout(HeadraceError, TimeoutError, RuntimeError):
    """Something took longer than allowed. A RuntimeError, too, as PyTorch's loader raises."""


class WorkerDied(HeadraceError, RuntimeError):
    """A loader's workers died, and starting new ones did not help."""


class QueueClosedError(HeadraceError, RuntimeError):
    """An operation on a queue that was killed."""


class EOFException(HeadraceError):
    """A pass over the data has ended: call ``reset()`` on the reader, then ``start()`` for the next one."""
