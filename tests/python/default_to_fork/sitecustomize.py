"""Python imports this as it starts, in the programs that tests run; see ``conftest.py``."""

import multiprocessing
import multiprocessing.context

# The default, which programs may still change: ``set_start_method`` would be their choice already.
multiprocessing.context._default_context._default_context = multiprocessing.get_context("fork")  # type: ignore[attr-defined]
