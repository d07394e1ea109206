"""What the tests of programs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headrace.fluid as fluid


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Each test has programs, a scope and names of its own. Its parameters begin with the same numbers in every run."""
    startup = fluid.Program()
    startup.random_seed = 1
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), startup), fluid.unique_name.guard():
        yield


@pytest.fixture
def exe() -> fluid.Executor:
    return fluid.Executor(fluid.CPUPlace())
