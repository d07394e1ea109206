"""What all tests share."""

from __future__ import annotations

import gc
import signal

import pytest

# As at a terminal: a shell's background job, which the tests may be part of, ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempts what has been imported from garbage collection, which many tests ask for and which takes long then."""
    gc.collect()
    gc.freeze()
