"""A stack of scopes, a thread's own, whose last one is the current scope. Executors do not look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from headrace import errors
from headrace.fluid.core import Scope, ScopeVariable

__all__ = ["enter_local_scope", "find_var", "get_cur_scope", "leave_local_scope", "scoped_function", "var"]


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes = [Scope()]


_STACK = _Stack()


def get_cur_scope() -> Scope:
    """The current scope: at first one that is empty."""
    return _STACK.scopes[-1]


def enter_local_scope() -> None:
    """Makes a scope the current one, which sees the variables of the one before."""
    _STACK.scopes.append(get_cur_scope().new_scope())


def leave_local_scope() -> None:
    """Goes back to the scope before, and forgets the current one.

    Raises:
        FailedPrecondition: none has been entered.
    """
    if len(_STACK.scopes) == 1:
        raise errors.FailedPrecondition("leave_local_scope: no scope has been entered")
    _STACK.scopes.pop()


def var(name: str) -> ScopeVariable:
    """The variable ``name`` of the current scope, created if it does not exist."""
    return get_cur_scope().var(name)


def find_var(name: str) -> ScopeVariable | None:
    """The variable ``name`` of the current scope or of one before it."""
    return get_cur_scope().find_var(name)


def scoped_function(func: Callable[[], object]) -> None:
    """Calls ``func`` in a scope of its own."""
    enter_local_scope()
    try:
        func()
    finally:
        leave_local_scope()
