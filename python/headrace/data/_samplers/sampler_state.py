"""The state that a sampler keeps of itself."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._untold_state import UntoldState, told


class SamplerState:
    """The state that a sampler, or the one that it wraps, keeps of itself, if it has ``state_dict`` and
    ``load_state_dict``, as torchdata's loader asks for them: iterating continues from a state that was loaded.

    A sampler may have no state before it is iterated over for the first time: nothing is lost then. If it cannot tell
    its state later, a loader has none, rather than one that would repeat an epoch.

    The state with which an epoch begins may say where the epoch before ended, or was left. Iterating then continues
    there, and only the iteration after that is the epoch's: ``FIRST``, the checksum of its first index, tells.

    Attributes:
        has_begun: whether the sampler was iterated over.
        left: whether the latest iteration over it did not come to its end.
    """

    KEY, FIRST = "sampler", "sampler_first"

    def __init__(self, sampler: Any) -> None:
        self.has_begun = self.left = False
        self._outermost = sampler

    def __bool__(self) -> bool:
        """Whether the sampler is one that has a state."""
        return self._sampler is not None

    @property
    def _sampler(self) -> Any:
        """The one that has a state; None if there is none. A program may replace one that is wrapped."""
        sampler = self._outermost
        for _ in range(8):  # a chain may be a circle
            if isinstance(sampler, SeekableSampler):
                break
            if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
                return sampler
            sampler = getattr(sampler, "sampler", None)
        return None

    def now(self) -> dict[str, Any]:
        """The state, in a dict; {}: there is none. Raises what the sampler raises."""
        sampler = self._sampler
        if sampler is None:
            return {}
        try:
            return {self.KEY: copy.deepcopy(sampler.state_dict())}
        except Exception:
            if self.has_begun:
                raise
            return {}

    def begin(self, restored: dict[str, Any]) -> dict[str, Any]:
        """The state with which an epoch begins, for :meth:`told`: that in ``restored``, which is loaded, or that of
        now. Iterating does not need it: an exception of the sampler is kept.
        """
        if self.KEY in restored:
            self.load(restored)
            return {self.KEY: restored[self.KEY]}
        try:
            return self.now()
        except Exception as error:
            return {self.KEY: UntoldState(self._sampler, error)}

    def load(self, own: dict[str, Any]) -> None:
        """Has the sampler go back to what :meth:`now` has given."""
        self._sampler.load_state_dict(copy.deepcopy(own[self.KEY]))

    @staticmethod
    def told(own: dict[str, Any]) -> dict[str, Any]:
        """What :meth:`begin` has given, if that is a state. Raises FailedPrecondition unless it is."""
        return {name: told(state) for name, state in own.items()}

    def of_another_epoch(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a state with which an epoch begins that holds for one with another number, too.

        A sampler that is told the number may begin with another index. Where only the first index could tell whether it
        goes on from its state, that is left out.
        """
        first = (self.FIRST, "drawn")
        untold = hasattr(self._sampler, "set_epoch") and any(name in state for name in first)
        return {name: value for name, value in state.items() if not (untold and name in (self.KEY, *first))}

    def check(self, state: dict[str, Any]) -> None:
        """Raises ValueError unless :meth:`begin` accepts ``state``, as far as can be told."""
        if self.KEY in state and self._sampler is None:
            raise ValueError(
                "the state includes that of a sampler, but the sampler of this loader has no load_state_dict"
            )
