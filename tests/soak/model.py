"""What a loader has to give: the epochs of a loader without workers that nothing ever happens to."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from typing import Any

import numpy as np
from cases import Case
from datasets import copy_scales, outcomes

from headrace.data import DataLoader


class Difference(Exception):
    """A loader did not do what the model says."""


def describe(value: Any) -> str:
    """All of a batch, bit for bit: types, dtypes, shapes and values."""
    if isinstance(value, np.ndarray):
        content = (
            str(value.tolist()) if value.size <= 40 else hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()
        )
        return f"{value.dtype}{list(value.shape)}{'' if value.flags.writeable else ' read-only'} {content}"
    if isinstance(value, dict):
        return f"{type(value).__name__}{{{', '.join(f'{key!r}: {describe(part)}' for key, part in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(map(describe, value))}]"
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}({describe(dict(vars(value)))})"
    if isinstance(value, np.generic):
        return f"{value.dtype}({value})"
    return f"{type(value).__name__} {value!r}"


@dataclasses.dataclass
class Iteration:
    """One iteration of a loader: the model's.

    Attributes:
        batches: of the whole epoch.
        seen: the numbers of those that were given, or that a state says were.
        streams: with which the epoch begins; of map-style datasets, nothing.
        begun: those to which the loader goes back if the iteration is given up.
        after: those with which the next epoch begins once this one is over.
        back: what the loader goes back to if nobody reads this one.
    """

    epoch: int
    batches: list[str]
    seen: list[int]
    streams: Any
    begun: Any
    after: Any
    back: Position
    ordered: bool
    asked: bool = False
    finished: bool = False

    def take(self, batch: str) -> None:
        self.asked = True
        left = self._left()
        number = left[0] if left else len(self.batches)
        if self.ordered:
            expected = self.batches[number] if left else "the end"
            if batch != expected:
                raise Difference(f"batch {number} of epoch {self.epoch} is\n    {batch}\n  instead of\n    {expected}")
        else:
            number = next((number for number in left if self.batches[number] == batch), -1)
            if number < 0:
                what = "comes twice" if batch in self.batches else "is none of the epoch's"
                rest = [self.batches[number] for number in left[:4]]
                raise Difference(f"a batch of epoch {self.epoch} {what}:\n    {batch}\n  left are\n    {rest}")
        self.seen.append(number)

    def end(self) -> None:
        self.asked = True
        left = self._left()
        if left:
            rest = [self.batches[number] for number in left[:4]]
            raise Difference(f"epoch {self.epoch} ended before\n    {rest}, {len(left)} in all")
        self.finished = True

    def _left(self) -> list[int]:
        seen = set(self.seen)
        return [number for number in range(len(self.batches)) if number not in seen]

    def position(self) -> Position:
        if self.finished:
            return Position(self.epoch + 1, (), self.after)
        return Position(self.epoch, tuple(self.seen), self.streams, self.begun)


@dataclasses.dataclass
class Position:
    """Where a loader stands: an epoch, the batches of it that were given, and the streams with which it begins.

    Attributes:
        begun: the streams to which it goes back if an epoch of which batches were given is given up; None: nobody has
            said, so they are at their beginning.
    """

    epoch: int
    seen: tuple[int, ...] = ()
    streams: Any = None
    begun: Any = None


class Model:
    """A loader whose epochs are those of fresh loaders without workers.

    An iteration has one dataset: changes count from the next one on. An epoch that nobody has asked for a batch begins
    again. Given up, one leaves streams where it began; one that a state has resumed, at their beginning.

    Args:
        dataset, collate: alike those of the loader, and the model's own.
    """

    def __init__(self, case: Case, dataset: Any, collate: Any) -> None:
        self.case = case
        self.dataset = dataset
        self.collate = collate
        self._fresh = self._streams(dataset)
        self.next = Position(0, streams=self._fresh)
        self.latest: Iteration | None = None
        self._resumes = False

    def begin(self) -> Iteration:
        """The next iteration."""
        position = self.next
        batches, after = self._epoch(position)
        self.latest = Iteration(
            epoch=position.epoch,
            batches=batches,
            seen=list(position.seen),
            streams=position.streams,
            begun=self._begun(position),
            after=after,
            back=position,
            ordered=self.case.ordered,
        )
        self.next = Position(position.epoch + 1, streams=self.latest.begun)
        self._resumes = False
        return self.latest

    def finish(self, iteration: Iteration) -> None:
        """All batches of an iteration were given."""
        iteration.end()
        if iteration is self.latest:
            self.next = Position(iteration.epoch + 1, streams=iteration.after)

    def drop(self, iteration: Iteration) -> None:
        """Nobody refers to an iteration any more."""
        if not iteration.asked and iteration is self.latest:
            self.next = iteration.back
            self._resumes = bool(iteration.back.seen)

    @property
    def position(self) -> Position:
        """What a state says."""
        return self.next if self.latest is None else self.latest.position()

    def move(self, position: Position, by_state: bool) -> None:
        """Another loader goes on there: a copy, or one that has loaded a state."""
        position = dataclasses.replace(position, begun=None) if by_state else position
        self.next, self.latest, self._resumes = position, None, True

    def set_epoch(self, epoch: int) -> None:
        if not self._resumes or epoch != self.next.epoch:
            self.next = Position(epoch, streams=self._begun(self.next))
            self._resumes = False
        self.latest = None

    def _begun(self, position: Position) -> Any:
        """The streams to which the loader goes back if the epoch is given up that goes on there."""
        if not position.seen:
            return position.streams
        return self._fresh if position.begun is None else position.begun

    def _streams(self, dataset: Any) -> Any:
        """The dataset as each worker with a stream of its own has it; or as all have it; None if it is no stream."""
        if not self.case.is_stream:
            return None
        if not self.case.own:
            return [dataset]
        parts = []
        for number in range(int(self.case.workers)):
            part = copy.deepcopy(dataset)
            part.part = (number, int(self.case.workers))
            parts.append(part)
        return parts

    def _epoch(self, position: Position) -> tuple[list[str], Any]:
        """All batches of an epoch, and the streams with which the next one begins."""
        if position.streams is None:
            return self._read(self.dataset, position.epoch), None
        after = copy.deepcopy(position.streams)
        for stream in after:
            copy_scales(self.dataset, stream)
        parts = [self._read(stream, position.epoch) for stream in after]
        turns = max(map(len, parts))
        return [part[turn] for turn in range(turns) for part in parts if turn < len(part)], after

    def _read(self, dataset: Any, epoch: int) -> list[str]:
        arguments = self.case.make_arguments(dataset, self.collate, 0)
        arguments.pop("iterable_sharding", None)
        arguments.pop("in_order", None)
        for name in ("sampler", "batch_sampler"):
            if hasattr(arguments.get(name), "set_epoch"):
                arguments[name].set_epoch(epoch)
        if self.case.in_grains_order:
            arguments = self._in_grains_order(dataset, arguments)
        loader = DataLoader(dataset, **arguments)
        loader.set_epoch(epoch)
        batches = list(outcomes(loader))
        if self.case.deadly:
            batches = self._survivors(batches)
        return [describe(batch) for batch in batches]

    def _in_grains_order(self, dataset: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments that list the batches that Grain's workers would make, each of every W-th record of its shard."""
        arguments = dict(arguments)
        del arguments["order"]
        size, drop_last = arguments.pop("batch_size"), arguments.pop("drop_last", False)
        shard, shards = arguments.pop("shard", (0, 1))
        order = list(arguments.pop("sampler", range(len(dataset))))
        mine = order[shard::shards][: len(order) // shards]
        parts = []
        for worker in range(max(1, int(self.case.workers))):
            records = mine[worker :: max(1, int(self.case.workers))]
            made = [records[first : first + size] for first in range(0, len(records), size)]
            parts.append([batch for batch in made if len(batch) == size or not drop_last])
        turns = max(map(len, parts))
        batches = [part[turn] for turn in range(turns) for part in parts if turn < len(part)]
        return {**arguments, "batch_sampler": batches}

    def _survivors(self, batches: list[Any]) -> list[Any]:
        """Batches of numbers without those that are deadly."""
        if self.case.arguments.get("batch_size") is None and not self.case.sampler.endswith("batches"):
            return [number for number in batches if int(number) not in self.case.deadly]
        left = [batch[~np.isin(batch, self.case.deadly)] for batch in batches]
        return [batch for batch in left if len(batch)]
