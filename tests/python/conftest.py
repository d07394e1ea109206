"""What all tests share."""

from __future__ import annotations

import gc
import signal
from typing import Any

import pytest

# As at a terminal: a shell's background job, which the tests may be part of, ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempts what has been imported from garbage collection, which many tests ask for and which takes long then."""
    gc.collect()
    gc.freeze()


_random_states: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order(request: pytest.FixtureRequest) -> None:
    """Sets a module's ``RNG`` to its beginning, so that no test's numbers depend on the tests before it."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        rng.bit_generator.state = _random_states.setdefault(request.module.__file__, rng.bit_generator.state)
