"""PyTorch's default collation, with samples written straight to their place in the batch where that gives the same."""

from __future__ import annotations

from typing import Any

from torch.utils.data import default_collate

from headrace.data._samples.torch_collation import describe_as_torch_collates, stacks_tensor_samples


class TorchCollate:
    """``torch.utils.data.default_collate``, for a loader's workers; see ``InPlaceCollate``.

    Attributes:
        makes_once: a worker that is the only one makes each sample once, so that it draws what PyTorch's would draw,
            even if a batch turns out not to fit its place.
        takes_any_number: it makes a batch of what ``__getitems__`` gives, be these fewer samples than were asked for.
        stacks_tensors: it makes of samples that are tuples of tensors a list of these, stacked.
    """

    makes_once = True
    takes_any_number = True
    describe = staticmethod(describe_as_torch_collates)

    @property
    def stacks_tensors(self) -> bool:
        return stacks_tensor_samples()

    def __call__(self, samples: list[Any]) -> Any:
        return default_collate(samples)
