"""Decorators that keep the signature of the decorated function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

__all__ = ["signature_safe_contextmanager", "wrap_decorator"]

Result = TypeVar("Result")


def wrap_decorator(decorator: Callable[[Callable[..., Any]], Callable[..., Result]]) -> Callable[..., Any]:
    """Makes the result of ``decorator`` keep the name, documentation and signature of the decorated function."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Result]:
        made = functools.wraps(function)(decorator(function))
        made.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return made

    return functools.wraps(decorator)(wrapped)


def signature_safe_contextmanager(
    function: Callable[..., Iterator[Result]],
) -> Callable[..., AbstractContextManager[Result]]:
    """``contextlib.contextmanager``, which keeps signatures."""
    return contextmanager(function)
