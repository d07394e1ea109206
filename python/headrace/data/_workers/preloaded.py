"""The last module that a forkserver imports before it starts workers: imported modules stay as they are.

A worker's garbage collector would write to each object that it inherited, and so get a copy of its own of most of them.
"""

import functools
import gc
import os
import signal

gc.collect()
gc.freeze()
# The forkserver was started with SIGINT blocked, so that Ctrl-C is not an error of what it imports.
os.register_at_fork(after_in_child=functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, [signal.SIGINT]))
