"""What all tests share."""

from __future__ import annotations

import fnmatch
import gc
import signal
from pathlib import Path
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expected-skips",
        type=Path,
        metavar="FILE",
        help="fail if a test is skipped for a reason that this file does not list",
    )


_unexpected = pytest.StashKey[list[str]]()


@pytest.hookimpl(tryfirst=True)  # before the terminal summary
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run, of the controller of workers, too, that has skipped what it should not have."""
    unexpected = session.config.stash[_unexpected] = _unexpected_skips(session.config)
    if unexpected and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    unexpected = config.stash.get(_unexpected, [])  # nothing if the session has not begun
    if unexpected:
        terminalreporter.section(f"skipped, but not listed in {config.getoption('--expected-skips')}", red=True)
        for line in unexpected:
            terminalreporter.line(line)


def _unexpected_skips(config: pytest.Config) -> list[str]:
    path: Path | None = config.getoption("--expected-skips")
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if path is None or reporter is None:
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    patterns = [line for line in lines if line and not line.startswith("#")]
    found = []
    for report in reporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        if not any(fnmatch.fnmatchcase(reason, pattern) for pattern in patterns):
            found.append(f"{report.nodeid}: {reason}")
    return sorted(found)
