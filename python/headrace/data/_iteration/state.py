"""The position of an iteration, and the state of a loader: a small dict that JSON can hold."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace._warnings import warn
from headrace.data._argument_checks import MAX_SEED, integer
from headrace.data._config import LoaderConfig
from headrace.data._datasets.datasets import has_state
from headrace.data._iteration.packed_state import pack, unpack
from headrace.data._order.choose_order import batches_per_epoch, make_plan, order_name, order_workers
from headrace.data._samplers.sampler_state import SamplerState
from headrace.data._untold_state import told

_VERSION = 2
MAX_EPOCH = MAX_BATCH = (1 << 62) - 1
_KEYS = ("version", "epoch", "batch", "length", "global_batch_size", "order", "num_workers", "seed")
# Keys that only some states need. Those of version 1 have them next to the others, later ones in "details".
_DETAILS = ("skip", "streams", "next_stream", "plan", "dataset")


class StreamPosition(NamedTuple):
    """The position in a stream of an iterable dataset.

    Attributes:
        batches: the number of batches consumed in this epoch.
        state: the dataset's state there, if it has one.
        ended: whether these were all.
        behind: the number of batches by which the state is behind: they are read again, and dropped.
    """

    batches: int = 0
    state: Any = None
    ended: bool = False
    behind: int = 0


@dataclasses.dataclass(frozen=True)
class Position:
    """Where an iteration starts or resumes.

    Attributes:
        epoch: counted from 0.
        batch: the first batch of the epoch that was not taken.
        skip: later ones that were, in ascending order.
        streams: of an iterable dataset, by stream; empty: at the beginning.
        next_stream: the stream of the next batch.
        plan: the state that the epoch's order depends on, besides epoch and seed.
        begins: within an epoch, the positions where its streams began, to which they return if it is abandoned; None:
            unknown. A loader and its copies know them; a state does not contain them.
    """

    epoch: int
    batch: int = 0
    skip: tuple[int, ...] = ()
    streams: tuple[StreamPosition, ...] = ()
    next_stream: int = 0
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    begins: tuple[StreamPosition, ...] | None = None

    @property
    def begun(self) -> bool:
        """Whether a batch of the epoch was taken: what the epoch draws from torch's generators was drawn before."""
        return self.batch > 0 or bool(self.skip)

    def batch_after(self, count: int) -> int:
        """The number of the batch that comes after ``count`` others from here on: ``skip`` is left out.

        Takes O(log n) for n skipped batches.
        """
        number = self.batch + count
        return number + bisect.bisect_right(self._before_skipped, number)

    def from_batch(self, batch: int) -> dict[str, Any]:
        """``batch`` and ``skip`` of a position of which the batches before ``batch`` were taken, too."""
        skip = list(itertools.dropwhile(batch.__gt__, self.skip))
        for number in skip.copy():
            if number != batch:
                break
            skip.pop(0)
            batch += 1
        return {"batch": batch, "skip": tuple(skip)}

    @functools.cached_property
    def _before_skipped(self) -> list[int]:
        """For each skipped batch: how many batches before it are not skipped."""
        return [batch - number for number, batch in enumerate(self.skip)]


def encode_state(config: LoaderConfig, seed: int | None, position: Position) -> dict[str, Any]:
    """The state of a loader of ``config`` that stands at ``position``: it has the same keys always.

    Raises:
        FailedPrecondition: a stream has not told its state.
    """
    details: dict[str, Any] = {}
    if position.plan:
        details["plan"] = dict(position.plan)
    if position.skip:
        details["skip"] = list(position.skip)
    if position.streams:
        details["next_stream"] = position.next_stream
        details["streams"] = [list(stream._replace(state=told(stream.state))) for stream in position.streams]
    if not config.iterable and has_state(config.dataset):
        details["dataset"] = config.dataset.state_dict()
    values = (_VERSION, position.epoch, position.batch, *_identity(config).values(), seed)
    return {**dict(zip(_KEYS, values)), "details": pack(details)}


class Decoded(NamedTuple):
    """The contents of a state.

    Attributes:
        position: where to continue.
        seed: of the loader that it was taken of.
        dataset: the state of the dataset, in a tuple; empty: it has none.
    """

    position: Position
    seed: int | None
    dataset: tuple[Any, ...]


def decode_state(config: LoaderConfig, state: Any) -> Decoded:
    """What ``state`` says. Changes nothing.

    Raises:
        TypeError: ``state`` is not a loader's state, or one of its values has the wrong type.
        ValueError: ``state`` belongs to another version; or, unless the loader adapts such states, to another dataset,
            order or batch size, or one of its values is out of range.
    """
    details = _details(state)
    try:
        return _decode(config, state, details)
    except ValueError as error:
        if config.on_state_mismatch != "adapt":
            raise
        return _adapted(config, state, details, error)


def _decode(config: LoaderConfig, state: dict[str, Any], details: dict[str, Any]) -> Decoded:
    for name, mine in (*_identity(config).items(), *((("seed", config.seed),) if config.seed_is_given else ())):
        if not _equal(state.get(name), mine):
            raise ValueError(
                f"the state was taken from a loader with {name}={state.get(name)!r:.80}, but this one has {mine!r}: "
                "continuing would repeat or skip samples. Create the loader with the same arguments, or pass "
                'on_state_mismatch="adapt" to use the parts of the state that still apply'
            )
    if "dataset" in details and (config.iterable or not has_state(config.dataset)):
        kind = type(config.dataset).__name__
        raise ValueError(f"the state includes one of its dataset, but {kind} has no load_state_dict")
    if "seed" not in state:
        raise ValueError("the state lacks 'seed'")
    seed = _seed(state)
    epoch = integer("the epoch of the state", state["epoch"], 0, MAX_EPOCH)
    batch = integer("the batch of the state", state["batch"], 0, _most_batches(config, seed))
    streams = _streams(config, details, batch)
    position = Position(
        epoch=epoch,
        batch=batch,
        skip=_skip(config, details, batch),
        streams=streams,
        next_stream=integer("next_stream of the state", details.get("next_stream", 0), 0, max(0, len(streams) - 1)),
        plan=_plan(config, details, seed),
    )
    return Decoded(position, seed, (details["dataset"],) if "dataset" in details else ())


def _adapted(config: LoaderConfig, state: dict[str, Any], details: dict[str, Any], why: ValueError) -> Decoded:
    """What makes sense of a state that is not this loader's, with a warning unless it loses and repeats nothing."""
    try:
        adapted, repeated = _resized(config, state, details)
    except (TypeError, ValueError):
        epoch = integer("the epoch of the state", state["epoch"], 0, MAX_EPOCH)
        seed = config.seed if config.seed_is_given else _seed(state)
        own = has_state(config.dataset) and not config.iterable and "dataset" in details
        plan, given = _plan_of_restart(config, state, details, seed), details.get("plan")
        dropped = isinstance(given, dict) and SamplerState.KEY in given and SamplerState.KEY not in plan
        warn(f"{why}. The epoch restarts" + (", without the sampler's part of the state" if dropped else ""))
        return Decoded(Position(epoch, plan=plan), seed, (details["dataset"],) if own else ())
    if repeated:
        warn(
            f"the state was taken from a loader with global_batch_size={state['global_batch_size']}, but this one has "
            f"{config.global_batch_size}: its next batch begins with {repeated} samples that were already delivered"
        )
    return adapted


def _resized(config: LoaderConfig, state: dict[str, Any], details: dict[str, Any]) -> tuple[Decoded, int]:
    """A state with another batch size, adapted: the batch with the next sample, and the number of samples before it
    there.

    Raises:
        TypeError, ValueError: more than the size differs, or the contents of batches depend on it.
    """
    mine = config.global_batch_size
    size = integer("global_batch_size of the state", state.get("global_batch_size"), 1, MAX_BATCH)
    plan = _begin_of_plan(config, details, _seed(state))
    # Of a sampler whose state has nothing of its order, only its batches tell whether it repeats that.
    by_sample = order_name(config) in ("sequential", "shuffled", "torch", "stream") or (config.order is None and plan)
    streams = [_stream(values) for values in _list(details, "streams")]
    if mine is None or not by_sample or details.get("skip") or any(s.ended or s.state is not None for s in streams):
        raise ValueError("the batches are not successive samples of one order")
    batch, repeated = divmod(integer("the batch of the state", state["batch"], 0, MAX_BATCH) * size, mine)
    others = {name: value for name, value in details.items() if name not in ("streams", "next_stream", "plan")}
    others |= {"plan": plan} if plan else {}
    return _decode(config, {**state, "global_batch_size": mine, "batch": batch}, others), repeated


def _begin_of_plan(config: LoaderConfig, details: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """What a state says of the order of its epoch, whatever the batches. Raises as :func:`_plan`."""
    plan = _plan(config, details, seed)
    mine = make_plan(config, seed or 0)[1] if plan else None
    return plan if mine is None else mine.begin_of(plan)


def _plan_of_restart(
    config: LoaderConfig, state: dict[str, Any], details: dict[str, Any], seed: int | None
) -> dict[str, Any]:
    """What a state that is not this loader's says of the order of its epoch, as far as that is of the same kind."""
    if not _equal(state.get("order"), order_name(config)):
        return {}
    try:
        plan = _begin_of_plan(config, details, seed)
    except (TypeError, ValueError):
        return {}
    if not _equal(state.get("length"), _identity(config)["length"]):  # the order need not begin with the same index
        plan.pop(SamplerState.FIRST, None)
    return plan


def _seed(state: dict[str, Any]) -> int | None:
    seed = state.get("seed")
    return None if seed is None else integer("the seed of the state", seed, 0, MAX_SEED)


def _details(state: Any) -> dict[str, Any]:
    """What only some states need, of a state of any version that can be read."""
    if not isinstance(state, dict):
        raise TypeError(f"not a state of a loader: expected a dict, got {type(state).__name__}")
    missing = [key for key in ("version", "epoch", "batch") if key not in state]
    if missing:
        raise ValueError(f"not a state of a loader: it lacks {missing[0]!r}; it has the keys {list(state)!r:.200}")
    version = state["version"]
    if not any(_equal(version, known) for known in (1, _VERSION)):
        raise ValueError(
            f"unsupported state version {version!r:.80} (this version of headrace reads versions 1 to {_VERSION})"
        )
    if version == 1:
        details = {name: state[name] for name in _DETAILS if name in state}
        unknown = state.keys() - {*_KEYS, *_DETAILS}
    elif "details" not in state:
        raise ValueError("the state lacks 'details'")
    else:
        details = unpack(state["details"])
        unknown = (state.keys() - {*_KEYS, "details"}) | (details.keys() - {*_DETAILS})
    if unknown:
        raise ValueError(f"the state has an unknown key {min(unknown, key=str)!r:.80}")
    return details


def _most_batches(config: LoaderConfig, seed: int | None) -> int:
    """The greatest possible number of batches: that of an epoch, if it is known for certain."""
    known = not config.iterable and all(
        given is None or getattr(given, "seekable", False) for given in (config.index_sampler, config.batch_sampler)
    )
    return batches_per_epoch(config, seed or 0) if known else MAX_BATCH


def _identity(config: LoaderConfig) -> dict[str, Any]:
    """What must be the same for a state to make sense."""
    return {
        "length": None if config.iterable else config.dataset_length(),
        "global_batch_size": config.global_batch_size,
        "order": order_name(config),
        "num_workers": order_workers(config),
    }


def _equal(value: Any, mine: int | str | None) -> bool:
    return type(value) is type(mine) and bool(value == mine)


def _list(details: dict[str, Any], name: str) -> list[Any]:
    values = details.get(name, ())
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{name} of the state must be a list, got {values!r:.200}")
    return list(values)


def _skip(config: LoaderConfig, details: dict[str, Any], batch: int) -> tuple[int, ...]:
    skip = [integer("skip of the state", number, 0, MAX_BATCH) for number in _list(details, "skip")]
    if skip and config.iterable:
        raise ValueError("the state has skip, which the batches of an iterable dataset do not need")
    if any(number <= batch for number in skip) or len(set(skip)) != len(skip):
        raise ValueError(f"skip of the state must be different batches after batch {batch}, got {skip!r:.200}")
    return tuple(sorted(skip))


def _streams(config: LoaderConfig, details: dict[str, Any], batch: int) -> tuple[StreamPosition, ...]:
    streams = [_stream(values) for values in _list(details, "streams")]
    expected = 0 if not config.iterable else config.num_workers if config.own_streams else 1
    if not streams and expected == 1 and batch:
        return (StreamPosition(batch),)
    if len(streams) != expected and (streams or (expected and batch)):
        raise ValueError(f"the state has {len(streams)} streams, but this loader has {expected}")
    if streams and sum(stream.batches for stream in streams) != batch:
        raise ValueError(f"the streams of the state do not add up to its {batch} batches")
    return tuple(streams)


def _stream(values: Any) -> StreamPosition:
    if not isinstance(values, (list, tuple)) or len(values) not in (3, 4):  # version 1 has three
        raise TypeError(
            f"a stream of the state must be [batches, dataset's state, ended, batches behind], got {values!r:.200}"
        )
    batches, dataset_state, ended, *behind = values
    if not isinstance(ended, bool):
        raise TypeError(f"a stream of the state has ended or not: expected true or false, got {ended!r:.200}")
    batches = integer("a stream's batches in the state", batches, 0, MAX_BATCH)
    return StreamPosition(
        batches, dataset_state, ended, *(integer("batches behind in the state", each, 0, batches) for each in behind)
    )


def _plan(config: LoaderConfig, details: dict[str, Any], seed: int | None) -> dict[str, Any]:
    if "plan" not in details:
        return {}
    plan = details["plan"]
    if not isinstance(plan, dict):
        raise TypeError(f"plan of the state must be a dict, got {plan!r:.200}")
    mine = None if config.iterable else make_plan(config, seed or 0)[1]
    if mine is None:
        raise ValueError("the state has a plan, which this loader's order does not need")
    mine.check(plan)
    return dict(plan)
