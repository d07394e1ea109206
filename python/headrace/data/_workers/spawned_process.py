"""A spawned process that is known, and waited for, from its first instruction on.

:mod:`multiprocessing` spawns it, and then writes what it is to do into a pipe. If that fails, it forgets the process,
which would stay a zombie until the program ends. From Python 3.14 on, it fails if the process has died meanwhile.
"""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.popen_spawn_posix
from typing import Any


class SpawnedProcess(multiprocessing.context.SpawnProcess):
    """One that has died before it has read what it is to do has started, as far as ``start`` is concerned: its exit
    status tells the rest. If ``start`` raises, there is no process.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> _Launched:
        return _Launched(process_obj)


class _Launched(multiprocessing.popen_spawn_posix.Popen):
    pid = 0  # until it is spawned

    def _launch(self, process_obj: Any) -> None:
        try:
            super()._launch(process_obj)  # type: ignore[misc]
        except BaseException as error:
            if self.pid == 0:
                raise
            if not isinstance(error, BrokenPipeError):
                self.kill()
                self.wait()
                self.close()
                raise
