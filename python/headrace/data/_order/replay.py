"""Plans that resume by replay: of samplers that cannot seek."""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator
from typing import Any

from headrace import errors
from headrace._next_items import next_items
from headrace.data._argument_checks import integer
from headrace.data._order.index_plan import (
    IndexPlan,
    Indices,
    Kept,
    States,
    as_integers,
    check_keys,
    index_checksum,
)
from headrace.data._randomness.torch_generators import (
    SamplerDraws,
    encode_generator,
)


class _Drawn:
    """The known part of an epoch of a replayed sampler.

    Attributes:
        generators: the states of torch's generators with which it began.
    """

    def __init__(self, first_batch: int) -> None:
        self._first = first_batch
        self._checksums = array.array("I")
        self.generators: dict[str, str] = {}

    @property
    def begun(self) -> bool:
        """Whether anything was drawn."""
        return len(self._checksums) > 0

    def begin(self, checksum: int, generators: dict[str, str]) -> None:
        """The indices before the first batch were drawn."""
        self.generators = generators
        self._checksums = array.array("I", [checksum])

    @property
    def next(self) -> int:
        """The batch after those that were drawn."""
        return self._first + len(self._checksums) - 1

    def note(self, indices: Indices) -> None:
        """The indices of the batch ``next`` were drawn."""
        self._checksums.append(index_checksum(indices, self._checksums[-1]))

    def state(self, batch: int) -> dict[str, Any]:
        known = 0 <= batch - self._first < len(self._checksums)
        return {**self.generators, **({"drawn": self._checksums[batch - self._first]} if known else {})}


class ReplayPlan(IndexPlan):
    """Batches of anything that gives indices when it is iterated over.

    To begin in the middle of an epoch, the indices before are drawn again and dropped. What torch's samplers draw then
    is what they drew at first; of any other sampler a checksum tells whether it does.

    Args:
        sampler: iterated over once per epoch.
        batch_size, drop_last, rank, world: as in :class:`SeekingPlan`.
        keeps: indices keep their type; otherwise all integers become ``int``.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        batch_size: int,
        drop_last: bool,
        rank: int = 0,
        world: int = 1,
        keeps: bool = False,
    ) -> None:
        self._sampler = sampler
        self._keeps = keeps
        self._group_size = batch_size * world
        self._drop_last = drop_last
        self._rank, self._world = rank, world
        self._draws = SamplerDraws(sampler)
        self._restored: dict[str, Any] = {}
        self._replayed: dict[str, Any] = {}  # the restored plan of this epoch
        self._first = 0
        self._begun = False
        self._known = _Drawn(0)
        self._indices: Iterator[Any] = iter(())
        # The position of the first of these, and those drawn from it on: replaced in one step, and otherwise only
        # extended, so that an interrupt leaves nothing half done.
        self._drawn: tuple[int, list[Any]] = (0, [])
        self._broken_off = False

    @property
    def generator(self) -> Any:
        """The generator of torch's that the sampler was given; None if it has none."""
        return self._draws.generator

    def start(self, epoch: int, batch: int) -> None:
        self._first, self._begun = batch, False
        self._replayed, self._restored = self._restored, {}
        self._known = _Drawn(batch)

    def states(self) -> States:
        known, generator = self._known, self.generator

        def state(batch: int) -> dict[str, Any]:
            upcoming = {} if generator is None or known.begun else {"torch_generator": encode_generator(generator)}
            return upcoming or known.state(batch)

        return state

    def check(self, state: dict[str, Any]) -> None:
        if not set(state) <= {"drawn", *SamplerDraws.KEYS}:
            check_keys(state, "drawn", *SamplerDraws.KEYS)
        integer("drawn of the state", state.get("drawn", 0), 0, (1 << 32) - 1)
        self._draws.check(state)

    def restore(self, state: dict[str, Any], begun: bool) -> None:
        self._restored = state

    def take(self, batch: int) -> Indices | None:
        if not self._begun:
            self._begin()
        first, drawn = self._drawn
        begin = batch * self._group_size
        self._draw(drawn, begin + self._group_size - first - len(drawn))
        group = drawn[begin - first : begin - first + self._group_size]
        if len(group) < (self._group_size if self._drop_last else 1):
            return None
        indices = self._checked(group)
        for other in range(self._known.next, batch):  # those that were taken before are not needed
            start = other * self._group_size - first
            self._known.note(self._checked(drawn[start : start + self._group_size]))
        if self._known.next == batch:
            self._known.note(indices)
        self._drawn = (begin, group)
        return self._share(indices)

    def _share(self, indices: Indices) -> Indices | None:
        """This loader's share of a global batch."""
        share = indices[self._rank :: self._world]
        if isinstance(indices, Kept):
            share = Kept(share)
        return share if len(share) else None

    def _checked(self, group: list[Any]) -> Indices:
        """The indices in a list of draws."""
        if self._keeps and set(map(type, group)) != {int}:
            return Kept(group)
        integers = as_integers(group)
        return group if integers is None else integers

    def _begin(self) -> None:
        """Starts the iteration, and draws what comes before the first batch."""
        restored, checksum = self._replayed, 0
        self._broken_off = False
        with self._draws.repeated(restored) as generators:
            self._indices = iter(self._sampler)
            for _ in range(self._first):
                group = list(next_items(self._indices, self._group_size))
                if not group:
                    break
                checksum = index_checksum(self._checked(group), checksum)
            drawn: list[Any] = []
            self._drawn = (self._first * self._group_size, drawn)
            self._draw(drawn, self._group_size)  # with the first index, torch's samplers draw all that they need
        if restored.get("drawn", checksum) != checksum:
            name = type(getattr(self._sampler, "replicated", self._sampler)).__name__  # the user's, of headrace.torch's
            raise errors.FailedPrecondition(
                f"the sampler ({name}) yields other indices than before the state was taken, so the iteration cannot "
                "continue from there: call its set_epoch, if it has one, with the epoch of the state before iterating; "
                "let it depend on nothing but that and a seed, or pass a sampler of headrace.data"
            )
        self._known.begin(checksum, generators)
        self._begun = True

    def _draw(self, drawn: list[Any], count: int) -> None:
        if count <= 0:
            return
        before = len(drawn)
        # An exception, the sampler's or an interrupt, may end the iterator: a generator does not survive one.
        was_broken_off, self._broken_off = self._broken_off, True
        drawn.extend(next_items(self._indices, count))
        if was_broken_off and len(drawn) == before and getattr(self._indices, "gi_frame", self) is None:
            raise errors.FailedPrecondition(
                "the sampler was interrupted while it was running and cannot continue: resume from the current "
                "state_dict(), or start a new iteration"
            )
        self._broken_off = False


class ReplayBatchPlan(ReplayPlan):
    """As :class:`ReplayPlan`, of anything that gives lists of indices."""

    def __init__(self, batch_sampler: Iterable[Any], keeps: bool = False) -> None:
        super().__init__(batch_sampler, 1, False, keeps=keeps)

    def _checked(self, group: list[Any]) -> Indices:
        indices = group[0]
        if not isinstance(indices, Iterable) or isinstance(indices, (str, bytes)):
            raise TypeError(f"batch_sampler must give lists of indices, got {indices!r:.200}")
        indices = list(indices)
        if not indices:
            raise ValueError("batch_sampler gave an empty list of indices")
        return super()._checked(indices)
