"""What a loader's arguments mean for its scheduler, its workers, its streams and the decoder of its batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from headrace.data._argument_checks import start_context
from headrace.data._config import LoaderConfig
from headrace.data._iteration.state import Position
from headrace.data._samples.device_copies import DeviceCopies
from headrace.data._samples.in_process_batches import HandOver
from headrace.data._samples.rebuild import decode_tree
from headrace.data._untold_state import known
from headrace.data._workers.stream_reader import StreamStart, StreamTask
from headrace.data._workers.task import WorkerTask

# Batches that the consumer can keep before further ones are handed out as copies.
_HELD_SLOTS = 256
# As many at least, where address space is limited.
_FEWEST_HELD_SLOTS = 4
# Address space, not memory: a slot takes what its batch needs.
_SLOT_BYTES = 4 << 30
# As many batches as prefetch_factor says may be in flight if they take no more than this; else as many as it takes.
_PREFETCH_BYTES = 16 << 20
# Of each worker, the newest.
_TRACE_EVENTS = 1 << 14


def scheduler_options(config: LoaderConfig, order: str, prefetch: int) -> dict[str, Any]:
    """The scheduler's options that follow from the configuration alone."""
    producers = max(1, config.num_workers * config.threads_per_worker)
    return {
        "order": order,
        "batch_size": config.batch_size or 1,
        "drop_last": config.drop_last,
        "rank": config.shard[0],
        "world": config.shard[1],
        "prefetch": prefetch,
        "prefetch_bytes": _PREFETCH_BYTES,
        "producers": producers,
        "collate": "whole" if config.round_robin else config.collation(producers, prefetch),
        "round_robin": config.round_robin,
        "collators": config.num_workers_batches * config.threads_per_worker,
        "streams": config.num_workers if config.own_streams else 0,
        "pin_memory": config.pin_memory,
        "fence_device": config.device is None,  # else DeviceCopies keeps each batch until its copies have ended
        "look_ahead": config.device is not None,
        "trace_events": _TRACE_EVENTS if config.trace else 0,
        "slot_count": prefetch + _HELD_SLOTS,
        "fewest_slots": prefetch + _FEWEST_HELD_SLOTS,
        "slot_bytes": _SLOT_BYTES,
    }


def is_forked(config: LoaderConfig) -> bool:
    """Whether workers have the files that this process has mapped: forks, and threads."""
    # Asking multiprocessing fixes its default start method for the whole program.
    if config.num_workers == 0:
        return False
    return config.workers == "thread" or start_context(config.multiprocessing_context).get_start_method() == "fork"


def tree_decoder(
    config: LoaderConfig, device: DeviceCopies | None, hand_over: HandOver | None
) -> Callable[[bytes], Any]:
    """What makes batches of slots."""
    decode: Callable[[bytes], Any] = functools.partial(decode_tree, to=config.batch_type)
    if device is not None:
        decode = device.decoder(decode_tree)
    return decode if hand_over is None else hand_over.decoder(decode)


def worker_task(config: LoaderConfig, seed: int, base_seed: int, stream: StreamTask | None, feeds: bool) -> WorkerTask:
    return WorkerTask(
        dataset=config.source,
        collate=None if config.stacks_samples else config.collate,  # the default writes row by row
        convert=not config.batches_samples,
        seed=seed,
        seed_records=config.seed_records,
        num_workers=config.num_workers,
        worker_init_fn=config.worker_init_fn,
        base_seed=base_seed,
        stream=stream,
        feeds=feeds,
    )


def stream_task(config: LoaderConfig, position: Position, initial: Any) -> StreamTask:
    size, starts = config.batch_size or 1, stream_starts(position)
    return StreamTask(config.own_streams, size, *config.shard, config.drop_last, starts, config.tells_epoch, initial)


def stream_starts(position: Position) -> dict[int, StreamStart]:
    """Where streams start, by stream; those that are not mentioned are read up to there."""
    return {
        number: StreamStart(position.epoch, stream.batches - stream.behind, known(stream.state), stream.ended)
        for number, stream in enumerate(position.streams)
        if stream.ended or known(stream.state) is not None
    }
