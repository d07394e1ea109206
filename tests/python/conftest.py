"""What all tests share."""

from __future__ import annotations

import fnmatch
import gc
import json
import os
import re
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# As at a terminal: a shell's background job, which the tests may be part of, ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# NumPy's BLAS starts threads when it is imported, which spin until they have waited for 2 to the 26th ticks. Here they
# sleep sooner, since the tests start many processes that import NumPy and do no algebra.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# Tests, and the programs that they run, mean fork if they choose no start method; from Python 3.14 on, they would get
# forkserver.
if sys.version_info >= (3, 14):
    folder = Path(__file__).with_name("default_to_fork")
    runpy.run_path(str(folder / "sitecustomize.py"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


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


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Collects no garbage during a test that recurses as deep as Python lets it: finalizers of other tests' objects
    would find no stack left, and fail.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expected-skips",
        type=Path,
        metavar="FILE",
        help="fail if a test is skipped for a reason that this file does not list",
    )
    parser.addoption("--write-skips", type=Path, metavar="FILE", help="after all tests: which were skipped, and why")
    parser.addoption(
        "--run-skipped",
        type=Path,
        metavar="FILE",
        help="run those that --write-skips has listed with a reason that --because matches, and fail if one is missing",
    )
    parser.addoption("--because", metavar="REGEX", default="", help="for --run-skipped; upper and lower case are alike")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-skipped") is not None:
        wanted = {_function(nodeid) for nodeid, _ in _listed(config)}
        kept: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            (kept if {_function(item.nodeid), _module(item.nodeid)} & wanted else others).append(item)
        config.hook.pytest_deselected(items=others)
        items[:] = kept


_problems = pytest.StashKey[dict[str, list[str]]]()


@pytest.hookimpl(tryfirst=True)  # before the terminal summary
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run, of the controller of workers, too, that has skipped, or lacked, what it should not have."""
    config = session.config
    if config.pluginmanager.get_plugin("terminalreporter") is None:
        return
    problems = config.stash[_problems] = {
        f"skipped, but not listed in {config.getoption('--expected-skips')}": _unexpected_skips(config),
        f"listed in {config.getoption('--run-skipped')}, but not run": _not_run(config),
    }
    if any(problems.values()) and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS and not config.getoption("keyword")
    path: Path | None = config.getoption("--write-skips")
    if path is not None and whole and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        path.write_text(json.dumps(sorted(set(_skips(config))), indent=0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for title, lines in config.stash.get(_problems, {}).items():  # nothing if the session has not begun
        if lines:
            terminalreporter.section(title, red=True)
            for line in lines:
                terminalreporter.line(line)


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _function(nodeid: str) -> str:
    """A test without its parameters, which may depend on what is installed; or a module."""
    return nodeid.partition("[")[0]


def _skips(config: pytest.Config) -> list[tuple[str, str]]:
    """Which tests, or modules, were skipped, and why."""
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    return [
        (report.nodeid, report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else "")
        for report in reporter.stats.get("skipped", [])
    ]


def _listed(config: pytest.Config) -> list[list[str]]:
    """What --run-skipped is to run: which tests, or modules, and why they were skipped."""
    because = re.compile(config.getoption("--because"), re.IGNORECASE)
    return [skip for skip in json.loads(config.getoption("--run-skipped").read_text()) if because.search(skip[1])]


def _unexpected_skips(config: pytest.Config) -> list[str]:
    path: Path | None = config.getoption("--expected-skips")
    if path is None:
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    patterns = [line for line in lines if line and not line.startswith("#")]
    return sorted(
        f"{nodeid}: {reason}"
        for nodeid, reason in _skips(config)
        if not any(fnmatch.fnmatchcase(reason, pattern) for pattern in patterns)
    )


def _not_run(config: pytest.Config) -> list[str]:
    """Listed tests that are missing, in whole or in part, and those that are skipped once more for the same reason."""
    if config.getoption("--run-skipped") is None:
        return []
    listed = _listed(config)
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    ran = {report.nodeid for reports in reporter.stats.values() for report in reports if hasattr(report, "outcome")}
    ran -= {nodeid for nodeid, reason in _skips(config) if [nodeid, reason] in listed}
    found = Counter(name for nodeid in ran for name in {_function(nodeid), _module(nodeid)})
    expected = Counter(_function(nodeid) for nodeid in {nodeid for nodeid, _ in listed})
    return sorted(name for name, count in expected.items() if found[name] < count) or ([] if listed else ["nothing is"])
