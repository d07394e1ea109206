"""What all tests share."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

import headrace as fluid

# As at a terminal: a shell's background job, which the tests may be part of, ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test has programs, a scope and names of its own."""
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
    ):
        yield


@pytest.fixture
def exe() -> fluid.Executor:
    return fluid.Executor(fluid.CPUPlace())
