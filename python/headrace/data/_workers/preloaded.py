"""The last module that a forkserver imports before it starts workers: imported modules stay as they are.

A worker's garbage collector would write to each object that it inherited, and so get a copy of its own of most of them.
"""

import gc

gc.collect()
gc.freeze()
