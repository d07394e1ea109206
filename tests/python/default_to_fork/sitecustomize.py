"""Python imports this as it starts, in the programs that tests run; see ``conftest.py``."""

import multiprocessing

multiprocessing.set_start_method("fork", force=True)
