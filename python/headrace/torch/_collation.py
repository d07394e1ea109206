"""PyTorch's default collation: in workers, with samples written straight to their place in the batch where that gives
the same.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from headrace.data._samples.collation import InPlaceCollate, KnownCollate
from headrace.data._samples.torch_collation import (
    describe_as_torch_collates,
    is_pytorchs_collation,
    stacks_tensor_samples,
)


class TorchCollate(InPlaceCollate):
    """``torch.utils.data.default_collate``, for a loader's workers."""

    makes_once = takes_any_number = True
    describe = staticmethod(describe_as_torch_collates)

    @property
    def stacks_tensors(self) -> bool:
        return stacks_tensor_samples()

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples)


class NewCollate(KnownCollate):
    """``torch.utils.data.default_collate``, for a loader without workers."""

    def __init__(self) -> None:
        self._functions: tuple[Any, ...] = ()
        self._makes_new = False

    @property
    def stacks_tensors(self) -> bool:
        return stacks_tensor_samples()

    def makes_new(self) -> bool:
        """Whether all tensors of a batch are new, and nobody's but the consumer's: so they are unless the program has
        put functions of its own into ``default_collate_fn_map``.
        """
        functions = tuple(default_collate_fn_map.values())
        if functions != self._functions:
            self._functions, self._makes_new = functions, all(map(is_pytorchs_collation, functions))
        return self._makes_new

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples)
