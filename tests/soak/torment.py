"""Kills and stops the worker processes of this process."""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "data"))
from fault_processes import workers_of

# How often what was done.
COUNTS: collections.Counter[str] = collections.Counter()


def _send(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        COUNTS.update({signal.SIGKILL: ["kills"], signal.SIGSTOP: ["stops"]}.get(number, []))
        return True
    return False


def kill(which: int | None) -> None:
    """Kills one worker, or all."""
    workers = sorted(workers_of(os.getpid()))
    for pid in workers if which is None else [workers[which % len(workers)]] if workers else []:
        _send(pid, signal.SIGKILL)


def pause_worker(which: int, seconds: float) -> None:
    """Stops a worker for a moment."""
    workers = sorted(workers_of(os.getpid()))
    if workers and _send(workers[which % len(workers)], signal.SIGSTOP):
        timer = threading.Timer(seconds, _send, (workers[which % len(workers)], signal.SIGCONT))
        timer.daemon = True
        timer.start()


class Storm(threading.Thread):
    """Kills workers at random moments, or stops them for a while."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self._chance = random.Random(seed)
        # Without an end no worker would ever come to a sample where few start slowly.
        self._budget = self._chance.randrange(20)
        self._ending = threading.Event()

    def run(self) -> None:
        stopped: list[int] = []
        kills = 0
        while kills < self._budget and not self._ending.wait(self._chance.choice([0.001, 0.02, 0.1])):
            workers = workers_of(os.getpid())
            chosen = workers if self._chance.random() < 0.1 else self._chance.sample(workers, min(1, len(workers)))
            for pid in chosen:
                if self._chance.random() < 0.2:
                    if _send(pid, signal.SIGSTOP):
                        stopped.append(pid)
                else:
                    kills += _send(pid, signal.SIGKILL)
            if self._chance.random() < 0.7:
                self._let_go(stopped)
        self._let_go(stopped)

    def end(self) -> None:
        self._ending.set()
        self.join()

    @staticmethod
    def _let_go(stopped: list[int]) -> None:
        while stopped:
            # Whatever its state: on a busy machine it may not have stopped yet.
            _send(stopped.pop(), signal.SIGCONT)
