"""The position of an iteration, and the state of a loader: a small dict that JSON can hold."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from headrace.data._arguments import MAX_SEED, integer
from headrace.data._config import LoaderConfig
from headrace.data._dataset import has_state
from headrace.data._order import batches_per_epoch, make_plan, order_name, order_workers

_VERSION = 1
MAX_EPOCH = MAX_BATCH = (1 << 62) - 1
_IDENTITY = ("length", "global_batch_size", "order", "num_workers", "seed")
_REQUIRED = ("version", "epoch", "batch", *_IDENTITY)
_OPTIONAL = ("skip", "streams", "next_stream", "plan", "dataset")


class StreamPosition(NamedTuple):
    """How far a stream of an iterable dataset was consumed.

    Attributes:
        batches: how many of the epoch.
        state: the dataset's state after them, if it has one.
        ended: whether these were all.
    """

    batches: int = 0
    state: Any = None
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class Position:
    """Where an iteration starts or resumes.

    Attributes:
        epoch: counted from 0.
        batch: how many batches of the epoch were taken without a gap.
        skip: further batches that were taken, in ascending order.
        streams: of an iterable dataset, by stream; empty: at the beginning.
        next_stream: the stream of the next batch.
        plan: what the epoch's order depends on, besides epoch and seed.
    """

    epoch: int
    batch: int = 0
    skip: tuple[int, ...] = ()
    streams: tuple[StreamPosition, ...] = ()
    next_stream: int = 0
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def batch_after(self, count: int) -> int:
        """The number of the batch that comes after ``count`` others from here on: ``skip`` is left out.

        Takes O(log n) for n skipped batches.
        """
        number = self.batch + count
        return number + bisect.bisect_right(self._before_skipped, number)

    @functools.cached_property
    def _before_skipped(self) -> list[int]:
        """For each skipped batch: how many batches before it are not skipped."""
        return [batch - number for number, batch in enumerate(self.skip)]


def encode_state(config: LoaderConfig, seed: int | None, position: Position) -> dict[str, Any]:
    """The state of a loader of ``config`` that stands at ``position``."""
    state: dict[str, Any] = {"version": _VERSION, "epoch": position.epoch, "batch": position.batch}
    if position.plan:
        state["plan"] = dict(position.plan)
    if position.skip:
        state["skip"] = list(position.skip)
    if position.streams:
        state["next_stream"] = position.next_stream
        state["streams"] = [list(stream) for stream in position.streams]
    if not config.iterable and has_state(config.dataset):
        state["dataset"] = config.dataset.state_dict()
    return {**state, **_identity(config), "seed": seed}


def decode_state(config: LoaderConfig, state: Any) -> tuple[Position, int | None]:
    """The position in ``state``, and the seed. Changes nothing.

    Raises:
        TypeError: ``state`` is not a loader's state, or one of its values has the wrong type.
        ValueError: ``state`` belongs to another version, dataset, order or batch size, or one of its values is out of
            range.
    """
    if not isinstance(state, dict):
        raise TypeError(f"not a state of a loader: expected a dict, got {type(state).__name__}")
    missing = [key for key in ("version", "epoch", "batch") if key not in state]
    if missing:
        raise TypeError(f"not a state of a loader: it lacks {missing[0]!r}; it has the keys {list(state)!r:.200}")
    if not _equal(state["version"], _VERSION):
        raise ValueError(f"the state has version {state['version']!r:.80}, this headrace reads {_VERSION}")
    for name, mine in (*_identity(config).items(), *((("seed", config.seed),) if config.seed_is_given else ())):
        if not _equal(state.get(name), mine):
            raise ValueError(
                f"the state was taken of a loader with {name}={state.get(name)!r:.80}, this one has {mine!r}: the "
                "batches that follow would not be those that are missing"
            )
    for name in state:
        if name not in _REQUIRED and name not in _OPTIONAL:
            raise ValueError(f"the state has an unknown key {name!r:.80}")
    if "dataset" in state and (config.iterable or not has_state(config.dataset)):
        kind = type(config.dataset).__name__
        raise ValueError(f"the state holds one of its dataset, and {kind} has no load_state_dict")
    if "seed" not in state:
        raise ValueError("the state lacks 'seed'")
    seed = state["seed"]
    if seed is not None:
        seed = integer("the seed of the state", seed, 0, MAX_SEED)
    epoch = integer("the epoch of the state", state["epoch"], 0, MAX_EPOCH)
    batch = integer("the batch of the state", state["batch"], 0, _most_batches(config, seed))
    streams = _streams(config, state, batch)
    return Position(
        epoch=epoch,
        batch=batch,
        skip=_skip(config, state, batch),
        streams=streams,
        next_stream=integer("next_stream of the state", state.get("next_stream", 0), 0, max(0, len(streams) - 1)),
        plan=_plan(config, state, seed),
    ), seed


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


def _list(state: dict[str, Any], name: str) -> list[Any]:
    values = state.get(name, ())
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"{name} of the state must be a list, got {values!r:.200}")
    return list(values)


def _skip(config: LoaderConfig, state: dict[str, Any], batch: int) -> tuple[int, ...]:
    skip = [integer("skip of the state", number, 0, MAX_BATCH) for number in _list(state, "skip")]
    if skip and config.iterable:
        raise ValueError("the state has skip, which the batches of an iterable dataset do not need")
    if any(number <= batch for number in skip) or len(set(skip)) != len(skip):
        raise ValueError(f"skip of the state must be different batches after batch {batch}, got {skip!r:.200}")
    return tuple(sorted(skip))


def _streams(config: LoaderConfig, state: dict[str, Any], batch: int) -> tuple[StreamPosition, ...]:
    streams = []
    for stream in _list(state, "streams"):
        if not isinstance(stream, (list, tuple)) or len(stream) != 3:
            raise TypeError(f"a stream of the state must be [batches, dataset's state, ended], got {stream!r:.200}")
        batches, dataset_state, ended = stream
        if not isinstance(ended, bool):
            raise TypeError(f"a stream of the state has ended or not: expected true or false, got {ended!r:.200}")
        streams.append(
            StreamPosition(integer("a stream's batches in the state", batches, 0, MAX_BATCH), dataset_state, ended)
        )
    expected = 0 if not config.iterable else config.num_workers if config.own_streams else 1
    if not streams and expected == 1 and batch:
        return (StreamPosition(batch),)
    if len(streams) != expected and (streams or (expected and batch)):
        raise ValueError(f"the state has {len(streams)} streams, this loader has {expected}")
    if streams and sum(stream.batches for stream in streams) != batch:
        raise ValueError(f"the streams of the state do not add up to its {batch} batches")
    return tuple(streams)


def _plan(config: LoaderConfig, state: dict[str, Any], seed: int | None) -> dict[str, Any]:
    if "plan" not in state:
        return {}
    plan = state["plan"]
    if not isinstance(plan, dict):
        raise TypeError(f"plan of the state must be a dict, got {plan!r:.200}")
    mine = None if config.iterable else make_plan(config, seed or 0)[1]
    if mine is None:
        raise ValueError("the state has a plan, which this loader's order does not need")
    mine.check(plan)
    return dict(plan)
