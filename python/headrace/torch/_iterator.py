"""The iterators of the drop-in."""

from __future__ import annotations

from typing import Any

from torch.utils import data as torch_data

from headrace._warnings import warn
from headrace.data._iteration.iterator import BatchIterator

_pinned = torch_data._utils.pin_memory.pin_memory


class Batches(BatchIterator):
    """One epoch, with the attributes of PyTorch's iterators that programs use beyond the protocol."""

    @property
    def _num_yielded(self) -> int:
        progress = self.progress
        return progress.taken - progress.begin.batch - len(progress.begin.skip)

    def _shutdown_workers(self) -> None:
        self.end("the iteration was ended by _shutdown_workers()")


class CheckedBatches(Batches):
    """Batches that this process has to check one by one. Call :meth:`expect` before the first one."""

    def expect(self, dataset: Any, length: int | None, pins: bool) -> None:
        """
        Args:
            length: the declared length of a stream; more batches than that cause a warning, as with PyTorch.
            pins: page-lock each batch, by the ``pin_memory`` of whatever has one.
        """
        assert self._calls is not None
        take, last_batch, acknowledge = self._calls
        progress, begun, has_workers = self.progress, self.progress.taken, bool(self._workers)

        # Before the batch is acknowledged: an interrupt in between loses none. It does not refer to the iterator.
        def take_and_look(first: list[Any] | None = None) -> Any:
            batch = take(first)
            number = progress.taken - begun + 1
            if length is not None and number > length:
                text = (
                    f"Length of IterableDataset {dataset} was reported to be {length}(when accessing "
                    f"len(dataloader)), but {number} samples have been fetched. "
                )
                if has_workers:
                    text += (
                        "For multiprocessing data-loading, this happens unless the dataset gives each worker a share "
                        "of its own: see torch.utils.data.get_worker_info."
                    )
                warn(text, UserWarning)
            return _pinned(batch) if pins else batch

        self._calls = take_and_look, last_batch, acknowledge
        self._source = self._source_of_rest = None
