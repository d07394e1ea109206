"""Plans that resume by replay: of samplers that cannot seek."""

from __future__ import annotations

import array
import sys
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
    plain_integers,
)
from headrace.data._randomness.torch_generators import (
    SamplerDraws,
    draw_torch_seed,
    encode_generator,
)
from headrace.data._samplers.sampler_state import SamplerState
from headrace.data._untold_state import known


class Opened:
    """An iteration of a sampler that begins before the loader draws its seed, as with torch's loader. It makes a
    difference if the sampler draws from the same generator in ``__iter__``.

    Attributes:
        indices: the iterator.
        generators: the state of torch's global generator with which it began, by the key of :class:`SamplerDraws`; {}:
            it has not drawn from that.
    """

    def __init__(self, sampler: Iterable[Any]) -> None:
        before = encode_generator(None)
        self.indices = iter(sampler)
        self.generators = {"torch_global": before} if encode_generator(None) != before else {}


class _Drawn:
    """The known part of an epoch of a replayed sampler.

    Attributes:
        generators: the states of torch's generators with which it began.
        own: the state of the sampler itself with which it began, as :meth:`SamplerState.begin` gives it.
    """

    def __init__(self, first_batch: int) -> None:
        self._first = first_batch
        self._checksums = array.array("I")
        self.generators: dict[str, Any] = {}
        self.own: dict[str, Any] = {}

    @property
    def begun(self) -> bool:
        """Whether anything was drawn."""
        return len(self._checksums) > 0

    def begin(self, checksum: int, generators: dict[str, Any], own: dict[str, Any]) -> None:
        """The indices before the first batch were drawn."""
        self.generators, self.own = generators, own
        self._checksums = array.array("I", [checksum])

    @property
    def next(self) -> int:
        """The batch after those that were drawn."""
        return self._first + len(self._checksums) - 1

    def note(self, indices: Indices) -> None:
        """The indices of the batch ``next`` were drawn."""
        self._checksums.append(index_checksum(indices, self._checksums[-1]))

    def state(self, batch: int) -> dict[str, Any]:
        """Raises FailedPrecondition: the sampler did not tell its state when the epoch began."""
        known = 0 <= batch - self._first < len(self._checksums)
        own = SamplerState.told(self.own)
        return {**self.generators, **own, **({"drawn": self._checksums[batch - self._first]} if known else {})}


class ReplayPlan(IndexPlan):
    """Batches of anything that gives indices when it is iterated over.

    To begin in the middle of an epoch, the indices before are drawn again and dropped. What torch's samplers draw then
    is what they drew at first, and so is what samplers draw that have a state; of any other a checksum tells whether it
    does.

    Args:
        sampler: iterated over once per epoch.
        batch_size, drop_last, rank, world: as in :class:`SeekingPlan`.
        keeps: indices keep their type; otherwise all integers become ``int``.
        own: the state of the sampler.
        seeds_between: the loader draws its seed from torch's global generator after the iteration was :class:`Opened`.

    Attributes:
        opened: its iteration in the epoch that was started, if that has begun.
    """

    opened: Opened | None = None

    def __init__(
        self,
        sampler: Iterable[Any],
        batch_size: int,
        drop_last: bool,
        rank: int,
        world: int,
        keeps: bool,
        own: SamplerState,
        seeds_between: bool,
    ) -> None:
        self._sampler = sampler
        self._seeds_between = seeds_between
        self._keeps = keeps
        self._group_size = batch_size * world
        self._drop_last = drop_last
        self._rank, self._world = rank, world
        self._draws = SamplerDraws(sampler)
        self._own = own
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
        """The torch.Generator that the sampler was given; None if it has none."""
        return self._draws.generator

    def upcoming(self) -> dict[str, Any]:
        """The state of an epoch that has not begun; {}: nothing is known."""
        generator = {} if self.generator is None else {"torch_generator": encode_generator(self.generator)}
        return {**generator, **self._own_upcoming()}

    def _own_upcoming(self) -> dict[str, Any]:
        """The part of it that is the sampler's own.

        If the epoch before was left, the sampler's state may be the place there. Whether that is where the sampler goes
        on, only the first index tells: it is drawn, and the sampler put back. Not if the index depends on a generator
        of torch's, which may draw other numbers until then.
        """
        own = self._own.now()
        if not own or not self._own.left or self.generator is not None:
            return own
        first, draws = self._look_ahead()
        self._own.load(own)
        if self._look_ahead()[0] == first:
            self._own.load(own)  # else each iteration begins anew, unless a state was loaded
        return own if draws else {**own, **({"drawn": 0} if first is None else {self._own.FIRST: first})}

    def _look_ahead(self) -> tuple[int | None, bool]:
        """The checksum of what another iteration would begin with, and whether torch's global generator decides on it,
        which stays as it is.
        """
        here = {"torch_global": encode_generator(None)} if "torch" in sys.modules else {}
        with self._draws.repeated(here) as draws:
            first = self._first_of(iter(self._sampler))[1]
        return first, bool(draws)

    def start(self, epoch: int, batch: int) -> None:
        self._first, self._begun, self.opened = batch, False, None
        self._replayed, self._restored = self._restored, {}
        self._known = _Drawn(batch)

    def let_go(self) -> None:
        self._indices, self.opened = iter(()), None

    def states(self) -> States:
        known = self._known

        def state(batch: int) -> dict[str, Any]:
            if known.begun:
                return known.state(batch)
            return self.upcoming() or known.state(batch)

        return state

    def check(self, state: dict[str, Any]) -> None:
        checksums = ("drawn", SamplerState.FIRST)
        if not set(state) <= {*checksums, SamplerState.KEY, *SamplerDraws.KEYS}:
            check_keys(state, *checksums, SamplerState.KEY, *SamplerDraws.KEYS)
        for key in checksums:
            integer(f"{key} of the state", state.get(key, 0), 0, (1 << 32) - 1)
        self._draws.check(state)
        self._own.check(state)

    def begin_of(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if name != "drawn"}

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
        known = self._known
        for other in range(known.next, batch):  # those that were taken before are not needed
            start = other * self._group_size - first
            known.note(self._checked(drawn[start : start + self._group_size]))
        if known.next == batch:
            known.note(indices)
        self._drawn = (begin, group)
        return self._share(indices)

    def _share(self, indices: Indices) -> Indices | None:
        """This loader's share of a global batch."""
        if self._world == 1:
            return indices
        share = indices[self._rank :: self._world]
        if isinstance(indices, Kept):
            share = Kept(share)
        return share if len(share) else None

    def _checked(self, group: list[Any]) -> Indices:
        """The indices in a list of draws."""
        integers = plain_integers(group)
        if integers is None:
            if self._keeps and set(map(type, group)) != {int}:
                return Kept(group)
            integers = as_integers(group)
        return group if integers is None else integers

    def _begin(self) -> None:
        """Starts the iteration, and draws what comes before the first batch."""
        restored = self._replayed
        own: dict[str, Any] = {}
        generators: dict[str, str] = {}
        first = None
        self._broken_off = False
        try:
            for again in (False, True):
                with self._draws.repeated(restored) as generators:
                    if not again:
                        own = self._own.begin(restored)
                    self._own.has_begun = self._own.left = True
                    opened, self.opened = self.opened, None
                    self._indices = self._iterated(restored) if opened is None else opened.indices
                    drawn, first = self._first_of(self._indices) if own else ([], None)
                    # An epoch of which a state knows what was drawn, but no first index, has none.
                    told = self._own.FIRST in restored or "drawn" in restored
                    is_meant = first == restored.get(self._own.FIRST) if told else first is not None
                    if not again and self._own.KEY in restored and not is_meant:
                        continue
                    checksum = self._pass_over(drawn)
                    break
        except BaseException:
            if known(own.get(self._own.KEY)) is not None and first is not None and self._own.KEY not in restored:
                # Or the sampler would go on after what is lost.
                self._replayed = {**restored, **generators, **own, self._own.FIRST: first}
            raise
        if opened is not None:
            generators = {**generators, **opened.generators}
        if restored.get("drawn", checksum) != checksum or restored.get(self._own.FIRST, first) != first:
            name = type(getattr(self._sampler, "replicated", self._sampler)).__name__  # the user's, of headrace.torch's
            raise errors.FailedPrecondition(
                f"the sampler ({name}) yields other indices than before the state was taken, so the iteration cannot "
                "continue from there: call its set_epoch, if it has one, with the epoch of the state before iterating; "
                "let it depend on nothing but that and a seed, or pass a sampler of headrace.data"
            )
        if first is not None:
            own = {**own, self._own.FIRST: first}
        self._known.begin(checksum, generators, own)
        self._begun = True

    def _iterated(self, restored: dict[str, Any]) -> Iterator[Any]:
        """An iterator that draws what it drew when the state was taken: see :class:`Opened`."""
        indices = iter(self._sampler)
        if self._seeds_between and "torch_global" in restored and encode_generator(None) != restored["torch_global"]:
            draw_torch_seed(None)
        return indices

    def _first_of(self, indices: Iterator[Any]) -> tuple[list[Any], int | None]:
        """What is drawn first, in a list, and its checksum; None: nothing is."""
        drawn = list(next_items(indices, 1))
        return drawn, index_checksum(self._checked(drawn), 0) if drawn else None

    def _pass_over(self, drawn: list[Any]) -> int:
        """Draws the indices before the first batch, of which ``drawn`` are drawn already, and those of that batch.

        Returns the checksum of those before.
        """
        checksum = 0
        for _ in range(self._first):
            group = [*drawn, *next_items(self._indices, self._group_size - len(drawn))]
            if not group:
                break
            checksum = index_checksum(self._checked(group), checksum)
            drawn = []
        self._drawn = (self._first * self._group_size, drawn)
        # With the first index, torch's samplers draw all that they need.
        self._draw(drawn, self._group_size - len(drawn))
        return checksum

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
        if len(drawn) < before + count:
            self._own.left = False


class ReplayBatchPlan(ReplayPlan):
    """As :class:`ReplayPlan`, of anything that gives lists of indices."""

    def __init__(self, batch_sampler: Iterable[Any], keeps: bool, own: SamplerState, seeds_between: bool) -> None:
        super().__init__(batch_sampler, 1, False, 0, 1, keeps, own, seeds_between)

    def _checked(self, group: list[Any]) -> Indices:
        indices = group[0]
        is_list = type(indices) is list  # asking an abstract class takes much longer
        if not is_list and (not isinstance(indices, Iterable) or isinstance(indices, (str, bytes))):
            raise TypeError(f"batch_sampler must give lists of indices, got {indices!r:.200}")
        indices = list(indices)
        if not indices:
            raise ValueError("batch_sampler gave an empty list of indices")
        return super()._checked(indices)
