"""Several generator processes: started, seeded apart, restarted when they die, stopped together."""

from __future__ import annotations

import ctypes
import importlib
import inspect
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from headrace.wirehead.config import Config, working_directory
from headrace.wirehead.errors import ConfigError, StoreError
from headrace.wirehead.generator import WireheadGenerator, ending_on_signals, importing

log = logging.getLogger("headrace.wirehead")

# What a process tells its supervisor before it fails, through a pipe: an exit status may be the user's own. Of the last
# two, it has said why, and another process would fail, too.
NOTHING_STORED, WRONG_SAMPLE, WRONG_CONFIG = b"nothing stored", b"wrong sample", b"wrong configuration"
_QUICK = 5.0  # seconds; who is killed sooner, or stores nothing, has probably something that does not go away
_QUICK_DEATHS = 3
_LONGEST_PAUSE = 30.0
_PR_SET_PDEATHSIG = 1


def load_function(name: str) -> Callable[..., Iterable[Any]]:
    """The function that ``module:function`` names; modules of the working directory count.

    Raises:
        ConfigError: there is none, or its module runs a generator when it is imported.
    """
    module_name, _, function_name = name.partition(":")
    if not function_name or not all(map(str.isidentifier, module_name.split("."))):
        raise ConfigError(f"{name} must name a generator function as module:function")
    folder = working_directory()
    if "" not in sys.path and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with importing(module_name):
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise ConfigError(f"there is no module {module_name} (in {folder} or installed)") from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"{module_name} has no function {function_name}")
    return function  # type: ignore[no-any-return]


def run_one(
    name: str,
    config: str,
    index: int,
    count: int,
    seed: Sequence[int],
    n_samples: int | None,
    report: Callable[[bytes], object] = lambda verdict: None,
) -> int:
    """Runs one generator in this process; returns its exit code.

    An error of the generator's is printed.

    ``random``, ``numpy.random`` and, if it has been imported, torch are seeded. Of its parameters the function gets by
    name: ``index``, which of all generator processes this is; ``count``, how many there are, as far as known; ``seed``.

    Args:
        name: ``module:function``.
        seed: numbers that together are different for each process and each restart.
        report: tells the supervisor why it fails.
    """
    try:
        function = load_function(name)
        checked = Config.load(config)
    except (ConfigError, FileNotFoundError, ImportError):
        report(WRONG_CONFIG)
        raise
    state = np.random.SeedSequence(list(seed)).generate_state(2, np.uint64)
    random.seed(int(state[0]))
    np.random.seed(int(state[0]) % 2**32)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int(state[0]) % 2**63)
    offered = {"index": index, "count": count, "seed": int(state[1]) % 2**63}
    parameters = inspect.signature(function).parameters
    runner: WireheadGenerator | None = None
    this = f"generator {index}"
    try:
        samples = function(**{key: value for key, value in offered.items() if key in parameters})
        runner = WireheadGenerator(samples, checked, n_samples)
        runner._name = this
        runner.run()
    except ConfigError:
        report(WRONG_CONFIG)
        raise
    except StoreError:
        raise
    except Exception as error:  # of any type: those that the command itself may raise mean something else there
        if runner is not None and runner._wrong is not None and runner._wrong[1] is error:
            log.error("%s: %s", this, error)
            if runner._wrong[0] == 0:
                report(WRONG_SAMPLE)
            return 1
        traceback.print_exc()
        if runner is None or runner.stored == 0:
            report(NOTHING_STORED)
        return 1
    return 0


def report_to(file: int) -> Callable[[bytes], object]:
    """The ``report`` of :func:`run_one` through a pipe of the supervisor's, which no other process inherits."""
    os.set_inheritable(file, False)
    return lambda verdict: os.write(file, verdict)


def _signal_name(number: int) -> str:
    known: dict[int, str] = {known.value: known.name for known in signal.Signals}
    return known.get(number, f"signal {number}")  # those for real time have no names


class Supervisor:
    """Keeps ``n`` generator processes running until each has ended by itself, or :meth:`run` is stopped.

    A process that is killed, or ends with an error, is started again after a pause that grows while it keeps dying; one
    that three times in a row dies within seconds, or before it has stored anything, is given up. The processes stop
    when this one exits, for any reason.

    Args:
        name: ``module:function``.
        config: path of ``config.yaml``.
        n: how many processes.
        first_index: of the first of them; they get consecutive ones.
        seed: of all; None: another one in every run.
        n_samples: for each process; None: no end.
        grace: seconds that a process has to end before it is killed.
    """

    def __init__(
        self,
        name: str,
        config: str,
        n: int,
        first_index: int = 0,
        seed: int | None = None,
        n_samples: int | None = None,
        grace: float = 30,
    ) -> None:
        self._name, self._config, self._n, self._first = name, config, n, first_index
        self._seed = int.from_bytes(os.urandom(8), "big") if seed is None else seed
        self._samples, self._grace = n_samples, grace
        self.stop = threading.Event()
        self.restarts = 0

    def run(self) -> int:
        """Runs; returns how many processes were given up."""
        running: dict[int, subprocess.Popen[bytes]] = {}
        reports: dict[int, int] = {}  # the pipes that they are read from
        started: dict[int, float] = {}
        starts = dict.fromkeys(range(self._n), 0)
        quick = dict.fromkeys(range(self._n), 0)
        due = dict.fromkeys(range(self._n), 0.0)
        given_up = 0
        with ending_on_signals(self.stop):
            try:
                while (running or due) and not self.stop.is_set():
                    for i in [i for i, when in due.items() if time.monotonic() >= when]:
                        try:
                            running[i], reports[i] = self._start(i, starts[i])
                        except OSError as error:  # too many processes, say: the others go on
                            log.warning("generator %d cannot be started yet: %s", self._first + i, error)
                            due[i] = time.monotonic() + _LONGEST_PAUSE
                            continue
                        del due[i]
                        started[i] = time.monotonic()
                        starts[i] += 1
                    for i, process in list(running.items()):
                        code = process.poll()
                        if code is None:
                            continue
                        del running[i]
                        verdict = _last_word(reports.pop(i))
                        if code == 0:
                            continue
                        if verdict == WRONG_SAMPLE:
                            given_up += 1
                            log.error("generator %d is given up", self._first + i)
                            continue
                        is_quick = verdict == NOTHING_STORED or time.monotonic() - started[i] < _QUICK
                        quick[i] = quick[i] + 1 if is_quick else 0
                        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with status {code}"
                        if verdict == NOTHING_STORED:
                            how = "failed before it had stored a sample"
                        if quick[i] >= _QUICK_DEATHS or verdict == WRONG_CONFIG:
                            given_up += 1
                            log.error("generator %d %s and is given up", self._first + i, how)
                            continue
                        pause = min(_LONGEST_PAUSE, 0.1 * 4 ** quick[i])
                        log.warning("generator %d %s; it is restarted", self._first + i, how)
                        self.restarts += 1
                        due[i] = time.monotonic() + pause
                    self.stop.wait(0.05)
            finally:
                self._end(list(running.values()))
                for pipe in reports.values():
                    os.close(pipe)
        return given_up

    def _start(self, i: int, start: int) -> tuple[subprocess.Popen[bytes], int]:
        """A process, and the pipe that it reports through."""
        index = self._first + i
        arguments = ["--index", str(index), "--count", str(self._first + self._n), "--parent", str(os.getpid())]
        arguments += ["--seeds", f"{self._seed},{index},{start}"]
        if self._samples is not None:
            arguments += ["--samples", str(self._samples)]
        command = [sys.executable, "-m", "headrace.wirehead", "generate", "--config", self._config, self._name]
        reads, writes = os.pipe()
        arguments += ["--report", str(writes)]
        try:
            # Ctrl-C at a terminal reaches this process, which ends the others.
            return subprocess.Popen([*command, *arguments], start_new_session=True, pass_fds=(writes,)), reads
        except BaseException:
            os.close(reads)
            raise
        finally:
            os.close(writes)

    def _end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + self._grace
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("process %d did not exit within %g seconds and is killed", process.pid, self._grace)
                process.kill()
                process.wait()


def _last_word(pipe: int) -> bytes:
    """What a process that has ended has reported, if anything; closes the pipe. Its children may have it still."""
    try:
        os.set_blocking(pipe, False)
        return os.read(pipe, 64)
    except BlockingIOError:
        return b""
    finally:
        os.close(pipe)


def end_with_parent(parent: int) -> None:
    """This process gets SIGTERM when the one with that number ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)
