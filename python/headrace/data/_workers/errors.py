"""Exceptions of workers: how they travel to the consumer, and how they are reported there."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import itertools
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from headrace import _core
from headrace.data._samples.pickling import dumps

# What the claims of one worker are for, in words: the sample with index 5.
Describe = Callable[[Sequence[_core.HeldClaim]], str]


class KeptErrors:
    """Exceptions that stay in this process while their numbers travel through the arena. Any thread."""

    def __init__(self) -> None:
        # By number, with the epoch of the batch.
        self._errors: dict[int, tuple[int, BaseException]] = {}
        self._numbers = itertools.count()  # the same error may befall several batches

    def keep(self, error: BaseException, epoch: int) -> bytes:
        number = next(self._numbers)
        self._errors[number] = epoch, error
        return dumps(number)

    def get(self, message: bytes) -> BaseException:
        kept = self._errors.get(int(pickle.loads(message)))
        return (
            RuntimeError("a sample could not be made, and the reason is no longer known") if kept is None else kept[1]
        )

    def drop(self, message: bytes) -> None:
        """Drops the exception of a message that will not be requested again."""
        self._errors.pop(int(pickle.loads(message)), None)

    def start_epoch(self, epoch: int) -> None:
        """Drops the exceptions of other epochs, except the one that follows, which workers may have started already."""
        for number, (of_epoch, _) in self._errors.copy().items():
            if of_epoch not in (epoch, epoch + 1):
                self._errors.pop(number, None)


def caused_by(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error.with_traceback(cause.__traceback__)


def set_in(error: BaseException, name: str, value: object) -> None:
    """Sets an attribute also of an exception whose class refuses it, as a frozen dataclass does."""
    BaseException.__setattr__(error, name, value)


def add_note(error: BaseException, note: str) -> None:
    if hasattr(error, "add_note"):  # since Python 3.11
        set_in(error, "__notes__", [*getattr(error, "__notes__", ()), note])


def copied_error(error: BaseException) -> BaseException:
    for form in _forms(error):
        with contextlib.suppress(Exception):
            copied: BaseException = copy.copy(form)
            return copied
    return error


def shortened_indices(indices: list[Any]) -> str:
    return repr(indices) if len(indices) <= 8 else f"[{', '.join(map(repr, indices[:7]))}, … ({len(indices)} in all)]"


def described_error(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__qualname__}: {text}" if text else type(error).__qualname__


def encode_error(
    error: BaseException, culprit: str, index: Any, room: int = 1 << 30, worker: int | None = None
) -> bytes:
    """Encodes an exception, its traceback as text and its origin, for :func:`decode_error` in another process.

    Args:
        room: the maximum number of bytes of the result; texts that are too long lose their middle.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    for shortened in (None, room // 8, 64):
        error_text = _shorten_text(described_error(error), shortened)
        trace = _shorten_text(text, shortened)
        pickled = _pickled(error, shortened)
        kind = _pickled_type(error) if pickled is None else None
        for known_index in (index, None):
            try:
                packed_index = dumps(known_index)  # apart: the consumer may be unable to restore it
                texts = error_text, _shorten_text(culprit, shortened), trace
                message = dumps((pickled, *texts, packed_index, worker, kind))
            except Exception:  # an index that cannot travel back
                continue
            if len(message) <= room:
                return message
    return b""


class _Parts:
    """Is unpickled or copied as an exception, without a call of its constructor."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        reduced: Any = self._error.__reduce__()
        kind, arguments, *state = reduced
        return _assembled, (kind, arguments, self._error.args, state[0] if state else None)


def _assembled(
    kind: type[BaseException], arguments: tuple[Any, ...], args: tuple[Any, ...], state: dict[str, Any] | None
) -> BaseException:
    error = kind.__new__(kind, *arguments)
    # It sets what Python's own classes keep outside ``args`` and ``__dict__``: an errno, say, or an encoding.
    built_in: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    built_in.__init__(error, *arguments)
    set_in(error, "args", args)
    if state and kind.__setstate__ is not BaseException.__setstate__:
        error.__setstate__(state)
    elif state:
        for name, value in state.items():
            set_in(error, name, value)
    return error


def _forms(error: BaseException) -> tuple[Any, Any]:
    """What to pickle or copy for an exception: the first that works. Python's own methods call the constructor with
    ``args``, which may be what it has made of its arguments: so the parts go first, unless a class has other methods.
    """
    kind = type(error)
    methods = ("__new__", "__reduce__", "__reduce_ex__")
    own = kind in copyreg.dispatch_table or any(_provider(kind, method).__module__ != "builtins" for method in methods)
    has_slots = any(vars(base).get("__slots__") for base in kind.__mro__)  # which are in none of the parts
    return (error, _Parts(error)) if own or has_slots else (_Parts(error), error)


def _provider(kind: type[Any], method: str) -> type[Any]:
    """The class that a method of ``kind`` comes from."""
    return next(base for base in kind.__mro__ if method in vars(base))


def _pickled(error: BaseException, length: int | None) -> bytes | None:
    """It, if need be with arguments of that length. None: it cannot travel, but its text still does."""
    with contextlib.suppress(Exception):
        for form in _forms(error) if length is None else [_shortened_error(error, length)]:
            with contextlib.suppress(Exception):
                pickled = dumps(form)
                pickle.loads(pickled)
                return pickled
    return None


def _pickled_type(error: BaseException) -> bytes | None:
    """Its type, of an exception that cannot travel; None: nor can that."""
    with contextlib.suppress(Exception):
        pickled = dumps(type(error))
        pickle.loads(pickled)
        return pickled
    return None


def _shorten_text(text: str, length: int | None) -> str:
    if length is None or len(text) <= length:
        return text
    half = length // 2
    return f"{text[:half]} [… {len(text) - 2 * half:,} characters …] {text[-half:] if half else ''}"


def _shortened_error(error: BaseException, length: int) -> BaseException:
    """An exception of the same type, its arguments shortened and as texts."""
    arguments = [_shorten_text(arg if isinstance(arg, str) else repr(arg), length) for arg in error.args]
    return type(error)(*arguments)


class WorkerTraceback(Exception):
    """The cause of an exception that was raised in a worker; shows where.

    Attributes:
        culprit: what failed, in a sentence.
        text: the worker's traceback.
        sample_index: the index of the sample that could not be made; None if it was not a single sample.
        worker: the number of the worker; None if it had none yet.
        kind: the exception's type, if only its text could be sent, as a RuntimeError; None if it was sent itself, or
            the program cannot import its type.
    """

    def __init__(
        self,
        culprit: str,
        text: str,
        sample_index: Any,
        worker: int | None = None,
        kind: type[BaseException] | None = None,
    ) -> None:
        super().__init__(culprit, text, sample_index, worker, kind)
        self.culprit = culprit
        self.text = text
        self.sample_index = sample_index
        self.worker = worker
        self.kind = kind

    def __str__(self) -> str:
        return f"\n\n{self.culprit}:\n\n{self.text}"


def decode_error(message: bytes) -> BaseException:
    """The exception that a worker encoded, with :class:`WorkerTraceback` as its cause."""
    if not message:
        return RuntimeError("a worker failed to make a sample, and the slot had no room for the reason")
    pickled, description, culprit, trace, packed_index, worker, packed_kind = pickle.loads(message)
    unpickled = None if pickled is None else _unpickled(pickled)
    error = unpickled if isinstance(unpickled, Exception) else RuntimeError(description)
    kind = None if packed_kind is None else _unpickled(packed_kind)
    set_in(error, "__cause__", WorkerTraceback(culprit, trace, _unpickled(packed_index), worker, kind))
    return error


def _unpickled(message: bytes) -> Any:
    """The object, or None if it cannot be unpickled: this process may not be able to import modules that the worker
    can. An exception that does not come again is a signal handler's, and is raised.
    """
    try:
        return pickle.loads(message)
    except Exception:
        try:
            pickle.loads(message)
        except Exception:
            return None
        raise
