"""Headrace: a data loader for PyTorch, NumPy and JAX, and a graph framework that it feeds.

This module has the loader and the names that it shares with the framework. Sub-packages are imported on first use:

* :mod:`headrace.data`: the loader's datasets, samplers and collation.
* :mod:`headrace.torch`: the drop-in for ``torch.utils.data.DataLoader``. Needs PyTorch.
* :mod:`headrace.fluid`: programs, layers, optimizers and readers under Paddle Fluid's names
  (``import headrace.fluid as fluid``).
* :mod:`headrace.reader`: functions of sample readers, which Fluid's programs use.
* :mod:`headrace.wirehead`: a circular cache of synthetic samples.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import headrace._cpu as _cpu

if _missing := _cpu.missing():
    raise ImportError(
        f"headrace was compiled for {_cpu.MARCH}, but this processor lacks {_missing}. "
        "Rebuild it for any x86-64 processor: pip install . --config-settings=cmake.define.HEADRACE_MARCH=x86-64"
    )
if os.path.isdir(os.path.join(_folder := os.path.dirname(_cpu.__file__), "glibc-hwcaps")):
    _cpu.load_kernels(_folder)

from headrace import errors
from headrace._core import LoDTensor
from headrace.data import DataLoader, Dataset, get_worker_info
from headrace.errors import HeadraceError

__version__ = "0.1.0"

__all__ = ["DataLoader", "Dataset", "HeadraceError", "LoDTensor", "errors", "get_worker_info"]

_SUBPACKAGES = ("data", "fluid", "reader", "torch", "wirehead")

# Names that programs know from paddle, and what takes their place.
_REFUSED = {
    "batch": "use headrace.fluid.io.batch",
    "dataset": "write a dataset, a class with __len__ and __getitem__, and pass it to headrace.DataLoader",
}

if TYPE_CHECKING:
    from headrace import data as data
    from headrace import fluid as fluid
    from headrace import reader as reader
    from headrace import torch as torch
    from headrace import wirehead as wirehead
else:  # type checkers would believe that there is every name

    def __getattr__(name: str) -> Any:
        if name in _SUBPACKAGES:
            return importlib.import_module(f"headrace.{name}")
        if name in _REFUSED:
            raise AttributeError(f"headrace has no {name}: {_REFUSED[name]}")
        raise AttributeError(f"module 'headrace' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBPACKAGES, *(name for name in globals() if name.startswith("__"))})
