"""Consumers that pause."""

from __future__ import annotations

import pytest
from fault_harness import run

pytestmark = pytest.mark.timeout(360)


def test_while_the_consumer_rests_nothing_is_done_and_nothing_grows() -> None:
    result = run("rests", ["map", "collation", "streams"], 3)
    # Processor time, which does not grow on a loaded machine.
    assert result["spent"] < 0.15
    assert result["grown"] == [0, 0, 0]
    assert result["exact"] == [True, True, True]
