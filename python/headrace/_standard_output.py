"""The standard output of commands: it may lack letters, be full, or have nobody who reads it."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable

_UNWRITABLE = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))


def run_command(program: str, command: Callable[[], int]) -> int:
    """Runs a command that prints. Returns its exit status: 1 if nobody reads the output, or it cannot be written, which
    a line on standard error then says; 130 after Ctrl-C.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may be in letters that its encoding does not have
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the program that reads the output has ended, as `head` does
        discard_output()
        return 1
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        print(f"{program}: standard output cannot be written: {error.strerror}", file=sys.stderr)
        discard_output()
        return 1
    except KeyboardInterrupt:
        return 130


def drop_unwritten() -> None:
    """Forgets what an error has kept from standard output: from Python 3.14 on, each flush would try that again."""
    standard_output = sys.stdout.fileno()
    kept = os.dup(standard_output)
    try:
        discard_output()
        sys.stdout.flush()
    finally:
        os.dup2(kept, standard_output)
        os.close(kept)


def discard_output() -> None:
    """Nothing is written to standard output from now on: flushing it at exit would fail, too."""
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())
