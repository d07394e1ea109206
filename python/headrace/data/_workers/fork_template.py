"""Forks workers from the dataset as it was when an epoch began, whatever the program has made of it since.

The template is a process that is forked together with the first workers of a pool, and then only waits. A worker that
starts later, in the place of one that died, say, is forked from it, rather than from the main process.

It is a child of the main process all the same, which alone learns how its children end: the template forks a process
that forks the worker and ends, and meanwhile the main process is the one that adopts orphans among its descendants
(``PR_SET_CHILD_SUBREAPER``).

Memory: the template shares it with the workers that were forked together with it. Pages that the main process changes
later, it keeps as it was, as these workers do.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import multiprocessing.popen_fork
import multiprocessing.process
import os
import pickle
import signal
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import util
from typing import Any

from headrace import _core, errors
from headrace.data._system.deferred_signals import ignore_interrupts, interrupts_blocked
from headrace.data._system.memory_kills import offer_to_out_of_memory_killer
from headrace.data._workers.processes import close

_PR_SET_NAME = 15
_PR_GET_NAME = 16
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
# Length of a request; a pid, or errno.
_LENGTH = struct.Struct("<Q")
_PID = struct.Struct("<q")
# What ps calls it.
_NAME = b"hr-template"
# How often one is forked, if it is killed as it starts.
_ATTEMPTS = 3
# How long a fork may take, in seconds: a template that is stopped would be waited for without end.
_PATIENCE = 60.0


class TemplateGone(Exception):
    """The template has died, or does not answer."""


class Template:
    """The main process's end. One thread at a time.

    Args:
        context: of the start method "fork".
        run: the function of a worker, called with the arguments of a request. The template keeps it, this object does
            not.
        life: of the program with which the template exits; see :class:`LifeLine`.
    """

    def __init__(self, context: Any, run: Callable[..., None], life: int) -> None:
        for attempts_left in reversed(range(_ATTEMPTS)):
            self._socket, theirs = _connection()
            self._socket.settimeout(_PATIENCE)
            self._process: multiprocessing.process.BaseProcess = context.Process(
                target=_serve, args=(theirs, self._socket, run, life), name="headrace-template", daemon=True
            )
            try:
                with interrupts_blocked():
                    self._process.start()
                theirs.close()
                if self._socket.recv(1) or attempts_left == 0:
                    break
            except BaseException:
                self.close()
                raise
            finally:
                theirs.close()
            self.close()  # it was killed before it was ready; the dataset has not changed yet
        # It is not a worker: multiprocessing.active_children() must not count it.
        children: set[multiprocessing.process.BaseProcess] = getattr(multiprocessing.process, "_children", set())
        children.discard(self._process)

    def process(self, name: str, **arguments: Any) -> multiprocessing.process.BaseProcess:
        """A process that its ``start`` forks from the template, to call ``run`` with ``arguments``. ``start`` raises
        OSError if the system has no room for it, and TemplateGone.
        """
        return _FromTemplate(name, self._fork, arguments)

    def _fork(self, name: str, arguments: dict[str, Any]) -> int:
        request = pickle.dumps((name, arguments))
        with _gate() as (gate, theirs), _adopting():
            try:
                socket.send_fds(self._socket, [_LENGTH.pack(len(request))], [theirs.fileno()])
                self._socket.sendall(request)
                (pid,) = _PID.unpack(_receive(self._socket, _PID.size))
                if pid > 0:
                    gate.sendall(b"g")
            except (OSError, EOFError) as error:
                self.close()  # an answer that comes late would be taken for that to another request
                raise TemplateGone from error
            except BaseException:  # a signal handler's
                self._take_back()
                raise
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return int(pid)

    def _take_back(self) -> None:
        """Kills the process that a request may have started, of which the pool will not know."""
        self._socket.settimeout(1.0)
        with contextlib.suppress(OSError, EOFError):
            (pid,) = _PID.unpack(_receive(self._socket, _PID.size))
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.close()

    def close(self) -> None:
        """Ends the template. Idempotent."""
        with contextlib.suppress(ValueError):  # closed already
            if self._process.pid is not None:  # it has started
                self._process.kill()
                # `join` would wait for its sentinel, which workers that were forked from it keep open. An error: it has
                # ended already, or no descriptor is left.
                with contextlib.suppress(OSError), _pidfd(self._process.pid) as ended:
                    multiprocessing.connection.wait([ended], 5)
                close(self._process)
        self._socket.close()  # after the kill: one that is about to say that it is there must not print an error


class _FromTemplate(multiprocessing.context.ForkProcess):
    """A process that multiprocessing starts in its own way, except for the fork."""

    def __init__(self, name: str, fork: Callable[[str, dict[str, Any]], int], arguments: dict[str, Any]) -> None:
        super().__init__(name=name, daemon=True)
        self._fork, self._arguments = fork, arguments

    def _Popen(self, process_obj: Any) -> _Adopted:  # type: ignore[override]
        pid = self._fork(self.name, self._arguments)
        del self._fork, self._arguments
        return _Adopted(process_obj, pid)


class _Adopted(multiprocessing.popen_fork.Popen):
    """A child that runs already."""

    def __init__(self, process_obj: Any, pid: int) -> None:
        self.pid = pid
        super().__init__(process_obj)

    def _launch(self, process_obj: Any) -> None:
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except ProcessLookupError:  # it has ended, and the program has reaped it: a pipe that has, too
            self.sentinel, writer = os.pipe()
            os.close(writer)
        self.finalizer = util.Finalize(self, os.close, (self.sentinel,))


_prctl = ctypes.CDLL(None, use_errno=True).prctl
_adopting_lock = threading.Lock()


def _renew_lock() -> None:
    global _adopting_lock
    _adopting_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def _pidfd(pid: int | None) -> Iterator[int]:
    descriptor = os.pidfd_open(pid or 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _connection() -> tuple[socket.socket, socket.socket]:
    """Two ends that wait as long as it takes, whatever the program's ``socket.setdefaulttimeout``."""
    ends = socket.socketpair()
    for end in ends:
        end.settimeout(None)
    return ends


@contextlib.contextmanager
def _gate() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a connection: what is forked waits at the second one, and ends if nothing comes from the first one.

    So no process runs of which nobody here knows, however a request fails.
    """
    ours, theirs = _connection()
    with ours, theirs:
        try:
            yield ours, theirs
        finally:
            ours.shutdown(socket.SHUT_WR)  # closing would not do: another thread may have forked a process meanwhile


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile, descendants of this process whose parents end become its children."""
    with _adopting_lock:
        before = ctypes.c_int()
        _check(_prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before)))
        _check(_prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1)))
        try:
            yield
        finally:
            _check(_prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(before.value)))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def _serve(requests: socket.socket, ours: socket.socket, run: Callable[..., None], life: int) -> None:
    """The template. Returns when it is no longer wanted, and in each worker when that has run."""
    ours.close()
    offer_to_out_of_memory_killer()  # the workers, too: each is as good a victim from its first moment on
    ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    on_child = signal.getsignal(signal.SIGCHLD)
    if on_child is not None:  # or it is not Python's
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _core.exit_with(life)
    except errors.ResourceExhausted:  # no thread can start
        return
    name_before = ctypes.create_string_buffer(16)
    _prctl(_PR_GET_NAME, name_before)
    _prctl(_PR_SET_NAME, _NAME)
    try:
        requests.sendall(b"r")  # it is there
        name, arguments = _forked_for(requests)
    except (EOFError, ConnectionError):  # nobody needs it, or what it has forked, any more
        return
    if on_child is not None:
        signal.signal(signal.SIGCHLD, on_child)
    _prctl(_PR_SET_NAME, name_before)
    multiprocessing.current_process().name = name
    run(**arguments)


def _forked_for(requests: socket.socket) -> tuple[str, dict[str, Any]]:
    """Forks a process for each request, and returns that in the process.

    Raises:
        EOFError, ConnectionError: there are no more requests or, in the process, the one who asked for it is gone.
    """
    while True:
        length, gates, _, _ = socket.recv_fds(requests, _LENGTH.size, 1)
        if not length:
            raise EOFError
        request: tuple[str, dict[str, Any]] = pickle.loads(_receive(requests, *_LENGTH.unpack(length)))
        if not gates:
            requests.sendall(_PID.pack(-errno.EMFILE))
            continue
        with socket.socket(fileno=gates[0]) as gate:
            gate.settimeout(None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of libraries that had threads in the main process; here are none
                pid = _fork_orphan()
            if pid == 0:
                requests.close()
                _receive(gate, 1)
                return request
        requests.sendall(_PID.pack(pid))


def _fork_orphan() -> int:
    """As os.fork, but the new process is soon not a child of this one; or minus the number of the error."""
    reader, writer = os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return -(error.errno or 1)
    if between == 0:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid != 0:
            os.write(writer, _PID.pack(pid))
            os._exit(0)
        os.close(reader)
        os.close(writer)
        while os.getppid() == parent:  # it is about to end
            time.sleep(0.0001)
        return 0
    os.close(writer)
    with contextlib.suppress(ChildProcessError):  # the program reaps its children
        os.waitpid(between, 0)
    answer = os.read(reader, _PID.size)
    os.close(reader)
    return int(_PID.unpack(answer)[0]) if len(answer) == _PID.size else -1
