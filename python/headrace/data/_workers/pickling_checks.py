"""Which argument cannot be sent to workers of the start methods "spawn" and "forkserver", and why."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import types
from typing import Any

import numpy as np

from headrace import errors
from headrace.data._config import LoaderConfig
from headrace.data._samples.tensors import is_tensor


class _MainImports(pickle.Pickler):
    """Records the first class or function of the main module that a pickle needs; writes nothing.

    Attributes:
        found: it; None: there is none.
    """

    def __init__(self) -> None:
        super().__init__(self, pickle.HIGHEST_PROTOCOL)
        self.found: str | None = None

    def write(self, data: Any) -> int:
        return len(data)

    def persistent_id(self, value: Any) -> int | None:
        return 0 if isinstance(value, np.ndarray) or is_tensor(value) else None  # which may be large

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == "__main__":
            self.found = self.found or value.__qualname__
        return NotImplemented


def require_importable(config: LoaderConfig, start_method: str) -> None:
    """Refuses objects that workers would have to import from a main module that they cannot import: in a notebook, an
    interactive session, or the ``__main__.py`` of a package, a folder or an archive.

    Raises:
        PicklingError: one of the arguments needs it.
        FailedPrecondition: the program has no file that workers could import at all.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    # multiprocessing does not even try to.
    is_main_file = spec is not None and spec.name.rpartition(".")[2] == "__main__"
    if file is not None and not is_main_file and not os.path.exists(file):
        raise errors.FailedPrecondition(
            f'workers of the start method "{start_method}" import the main module of the program, and there is no file '
            f'{file!r}: put the program into a file, or pass multiprocessing_context="fork" or workers="thread"'
        )
    if not is_main_file and (file is not None or spec is not None):
        return
    for name in ("dataset", "collate_fn", "worker_init_fn", "sampler"):
        imports = _MainImports()
        with contextlib.suppress(Exception):  # what cannot be pickled is reported when workers start
            imports.dump(getattr(config, name))
        if imports.found is not None:
            of, remedy = ", which this notebook, or interactive session, defines", "a module (a .py file)"
            # Python deletes the __file__ of a program that has run to its end, but not the loader.
            script = getattr(getattr(main, "__loader__", None), "path", None)
            if is_main_file:
                script = file
                of = f" of the main module {script!r}, the __main__.py of a package, a folder or an archive"
                remedy = "another module"
            elif script is not None:
                of, remedy = f" of the main module {script!r}, which has run to its end", "another module"
            raise pickle.PicklingError(
                f'{name} needs {imports.found}{of}, so workers of the start method "{start_method}" cannot import it. '
                f"Define it in {remedy} that the {'notebook' if script is None else 'program'} imports, or "
                'pass multiprocessing_context="fork" or workers="thread".'
            )


def explain_pickling(config: LoaderConfig, start_method: str, error: Exception) -> None:
    """Raises an error that names the argument that cannot be sent to workers, if that caused ``error``."""
    for name in ("dataset", "collate_fn", "worker_init_fn", "sampler"):
        try:
            pickle.dumps(getattr(config, name))
        except Exception as reason:
            if str(reason) != str(error):
                continue
            # What cannot be found by its name is an AttributeError or, from Python 3.14 on, a PicklingError.
            is_local = isinstance(reason, (AttributeError, pickle.PicklingError))
            remedy = (
                "Define it at the top level of a module"
                if is_local
                else "Open files and connections, and make locks, where a worker uses them (in `__getitem__`, say)"
            )
            raise pickle.PicklingError(
                f'{name} cannot be pickled, which the start method "{start_method}" requires: {reason}. {remedy}, or '
                'use multiprocessing_context="fork" or workers="thread".'
            ) from error
