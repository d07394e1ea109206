"""What all tests share."""

from __future__ import annotations

import signal

# As at a terminal: a shell's background job, which the tests may be part of, ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
