"""What takes the place of a state that its owner did not tell."""

from __future__ import annotations

from typing import Any

from headrace import errors


class UntoldState:
    """The state of a sampler or a dataset whose ``state_dict`` has failed where iterating does not need it. A loader
    that needs it raises :meth:`error`: to leave it out would repeat an epoch.
    """

    def __init__(self, owner: Any, error: Exception) -> None:
        # No exception, whose frames refer to the loader, and which may not be picklable.
        self._text = f"state_dict() of {type(owner).__name__} failed ({type(error).__name__}: {error})"

    def error(self) -> errors.FailedPrecondition:
        return errors.FailedPrecondition(
            f"{self._text} where an epoch begins or ends, so the loader has no state that depends on it"
        )


def known(state: Any) -> Any:
    """The state; None if it is an untold one."""
    return None if isinstance(state, UntoldState) else state


def told(state: Any) -> Any:
    """The state. Raises FailedPrecondition if it is an untold one."""
    if isinstance(state, UntoldState):
        raise state.error()
    return state
