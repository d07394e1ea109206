"""Processes as the system and :mod:`multiprocessing` know them: how one ended, what it has run, who may end it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import glob
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.process
import multiprocessing.resource_tracker
import os
import signal
import site
import sys
from typing import Any

from headrace import errors
from headrace._weak_collections import WeakBag
from headrace.data._system import kernel_files
from headrace.data._system.deferred_signals import interrupts_blocked
from headrace.data._system.limits import limit_named

# Worker processes of this process.
worker_processes: WeakBag[multiprocessing.process.BaseProcess] = WeakBag()
_is_fork = False
# It lets processes of the forkserver have SIGINT, which is blocked there.
_LAST_PRELOADED = "headrace.data._workers.preloaded"


@dataclasses.dataclass
class WorkerProcess:
    """A running worker process.

    Attributes:
        started: when, by the monotonic clock.
        killed_for: why this process has killed it, in words that follow "worker 3"; empty if it has not.
        seen: whether it was seen at work.
    """

    process: multiprocessing.process.BaseProcess
    started: float
    killed_for: str = ""
    seen: bool = False

    def kill(self, fault: str) -> None:
        """Kills it for that ``fault``."""
        self.killed_for = fault
        self.process.kill()

    @property
    def fault(self) -> str:
        """What it was killed for; empty if it was not, or had ended before."""
        return self.killed_for if self.process.exitcode in (None, -signal.SIGKILL) else ""

    def describe_exit(self) -> str:
        """What happened, in words that follow "worker 3"."""
        return self.fault or describe_exit(self.process.exitcode)

    @property
    def was_killed(self) -> bool:
        """Whether it was killed from outside: by the kernel, for example, because memory ran out."""
        return not self.fault and self.process.exitcode == -signal.SIGKILL

    def has_lost_main_thread(self) -> bool:
        """Whether it lives without its main thread, which makes samples: C code has called ``pthread_exit``. Then the
        kernel calls it a zombie although it has not ended.
        """
        state = kernel_files.read(f"/proc/{self.process.pid}/stat").rpartition(")")[2].split()[:1]
        return state == ["Z"] and not has_ended(self.process)


def describe_exit(code: int | None) -> str:
    """For instance "was killed by SIGKILL" or "exited with status 1"."""
    if code is None:
        return "died"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with status {code}"


def in_pytorchs_words(process: multiprocessing.process.BaseProcess) -> str:
    """A sentence on a worker's exit in the words of PyTorch's loader, which programs look for."""
    code = process.exitcode
    if code is None or code >= 0:
        return f"DataLoader worker (pid(s) {process.pid}) exited unexpectedly. "
    return f"DataLoader worker (pid {process.pid}) is killed by signal: {signal.strsignal(-code) or -code}. "


def processor_seconds(pid: int | None) -> float:
    """The time that all threads of a process have run, and waited to run; 0 if the system does not report it."""
    nanoseconds = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            ran, waited, _ = file.read().split()
            nanoseconds += int(ran) + int(waited)
    return nanoseconds * 1e-9


def open_pidfd(pid: int) -> int:
    try:
        with limit_named("cannot watch a worker"):
            return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
        raise errors.IoError(
            f"worker processes need the system call pidfd_open: {error.strerror}. The kernel is older than 5.3, or a "
            'container\'s seccomp profile forbids it; workers="thread" and num_workers=0 do without'
        ) from error


def forkserver_sockets(context: Any) -> str:
    """The folder of the forkserver's socket, which is left behind if this process is killed; empty if there is none."""
    if _is_fork or context.get_start_method() != "forkserver" or multiprocessing.parent_process() is not None:
        return ""  # it may belong to another process
    if _preloads() and _is_installed():
        multiprocessing.resource_tracker.ensure_running()  # which would unblock SIGINT
        with interrupts_blocked():  # until it ignores that, which it does when it has imported everything
            multiprocessing.forkserver.ensure_running()
    else:
        multiprocessing.forkserver.ensure_running()
    configuration: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    return str(configuration.get("tempdir") or "")


def _preloads() -> bool:
    """Makes a forkserver that has not started yet import the modules of all workers, so that they share their memory.

    The user's own choice of modules stands.

    Returns:
        Whether one that starts now does.
    """
    server = multiprocessing.forkserver._forkserver
    chosen = getattr(server, "_preload_modules", None)
    if getattr(server, "_forkserver_pid", None) is not None:
        return False
    if chosen == ["__main__"]:
        torch = ["torch"] if "torch" in sys.modules else []
        chosen = ["__main__", "numpy", "headrace.data._workers.start_reports", *torch, _LAST_PRELOADED]
        multiprocessing.set_forkserver_preload(chosen)
    return isinstance(chosen, list) and chosen[-1:] == [_LAST_PRELOADED]


def _is_installed() -> bool:
    """Whether a new interpreter finds this package, whatever the program has done to ``sys.path``: only then does a
    forkserver import it before anything else.
    """
    folders = [*site.getsitepackages(), site.getusersitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    here = os.path.dirname(os.path.realpath(sys.modules["headrace"].__path__[0]))
    return here in [os.path.realpath(folder) for folder in folders if folder]


def _forget_workers() -> None:
    """In a forked child: forgets the workers, which are the parent's.

    Otherwise multiprocessing's exit handler would end them with the child.
    """
    global _is_fork
    _is_fork = True
    children: set[multiprocessing.process.BaseProcess] = getattr(multiprocessing.process, "_children", set())
    children.difference_update(worker_processes)
    worker_processes.clear()


def join(process: multiprocessing.process.BaseProcess, timeout: float) -> None:
    with contextlib.suppress(ValueError):  # closed already
        process.join(timeout)


def has_ended(process: multiprocessing.process.BaseProcess) -> bool:
    """Whether a process has exited; :mod:`multiprocessing` never says so of one that the program has reaped itself, or
    has the system reap (``SIGCHLD``).
    """
    with contextlib.suppress(ValueError):
        return process.exitcode is not None or bool(multiprocessing.connection.wait([process.sentinel], 0))
    return True  # its object is closed already


def close_descriptors(process: multiprocessing.process.BaseProcess) -> None:
    """Closes the descriptors of an exited process; unlike ``close``, keeps its exit status."""
    popen = getattr(process, "_popen", None)
    if popen is not None and (popen.returncode is not None or has_ended(process)):
        _forget(process)
        popen.close()


def close(process: multiprocessing.process.BaseProcess) -> None:
    """Closes a process that has exited. Idempotent."""
    try:
        process.close()
    except ValueError:  # the program has reaped it, and multiprocessing would signal its pid at the end
        _forget(process)


def _forget(process: multiprocessing.process.BaseProcess) -> None:
    getattr(multiprocessing.process, "_children", set()).discard(process)


os.register_at_fork(after_in_child=_forget_workers)
