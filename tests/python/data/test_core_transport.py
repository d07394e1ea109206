"""The transport's bindings, claim by claim, with worker and consumer in one process."""

import gc
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace import _core, errors
from headrace._core import WaitOutcome
from headrace.data._samples.describe import describe


def decode_tree(_: bytes) -> tuple[Any, list[Any]]:
    return (lambda leaves: leaves[0]), [np.dtype(np.float32)]


def make(**options: Any) -> tuple[_core.BatchScheduler, _core.BatchProducer]:
    settings: dict[str, Any] = {
        "order": "sequential",
        "dataset_length": 10,
        "seed": 0,
        "batch_size": 4,
        "drop_last": False,
        "prefetch": 3,
        "producers": 1,
        "cross_epochs": False,
        "slot_count": 8,
        "slot_bytes": 1 << 22,
        "decode_tree": decode_tree,
        "decode_problem": lambda problem: RuntimeError(problem.message.decode(), problem.stream, problem.stream_batch),
        "unpickle": pickle.loads,
    }
    scheduler = _core.BatchScheduler(**{**settings, **options})
    return scheduler, _core.BatchProducer(scheduler.arena_fd, 0, scheduler.completion_fd, describe, pickle.dumps)


def claims(producer: _core.BatchProducer) -> Iterator[_core.Claim]:
    while (claim := producer.try_claim()) is not None:
        yield claim


def samples_of(claim: _core.Claim, length: int = 2) -> list[Any]:
    return [np.full(length, row, np.float32) for row in range(claim.begin, claim.end)]


def test_last_tells_which_batch_it_was_also_of_an_error() -> None:
    scheduler, producer = make()
    assert scheduler.last is None
    scheduler.start_epoch(3, 1)
    for claim in claims(producer):
        if claim.batch == 1:
            producer.fill_from(claim, samples_of(claim))
        else:
            producer.fail(claim, b"torn")
    scheduler.next()
    assert scheduler.last is not None
    assert (scheduler.last.epoch, scheduler.last.batch, scheduler.last.rows) == (3, 1, 4)
    scheduler.acknowledge()
    for _ in range(2):  # given again until it is acknowledged
        with pytest.raises(RuntimeError, match="torn"):
            scheduler.next()
        assert (scheduler.last.epoch, scheduler.last.batch) == (3, 2)
    scheduler.acknowledge()
    assert scheduler.next() == WaitOutcome.END_OF_EPOCH


def test_ranks_and_batches_to_skip() -> None:
    scheduler, producer = make(rank=1, world=2, batch_size=1)
    assert scheduler.batches_per_epoch == 5
    scheduler.start_epoch(0, 1, skip=[2, 4])
    seen = []
    for claim in claims(producer):
        seen += producer.indices(claim, pickle.loads)
        producer.fill_from(claim, samples_of(claim))
    assert seen == [3, 7]


def test_batches_come_as_they_are_complete() -> None:
    scheduler, producer = make(in_order=False, batch_size=1, prefetch=2)
    scheduler.start_epoch(0)
    first, second = producer.try_claim(), producer.try_claim()
    assert first is not None
    assert second is not None
    producer.fill_from(second, samples_of(second))
    scheduler.next(0)
    assert scheduler.last is not None
    assert scheduler.last.batch == 1


def test_a_retired_worker_is_told_to_end_once() -> None:
    scheduler, producer = make()
    scheduler.start_epoch(0)
    scheduler.retire_producer(0)
    assert producer.wait() is None
    assert not producer.stopped
    assert producer.wait() is not None


def test_plain_claims_are_filled_without_a_step_between_them() -> None:
    scheduler, producer = make()
    scheduler.start_epoch(0)

    def getitem(index: int) -> Any:
        if index == 9:
            scheduler.retire_producer(0)
        return np.full(2, index, np.float32)

    assert producer.fill_plain(getitem, 0) is None
    for rows in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9]):
        assert scheduler.next()[:, 0].tolist() == rows
        scheduler.acknowledge()


def test_a_claim_of_another_epoch_or_kind_is_not_plain() -> None:
    for options in ({}, {"collate": "whole"}):
        scheduler, producer = make(**options)
        scheduler.start_epoch(1)
        claim = producer.fill_plain(pytest.fail, 1 if options else 0)
        assert claim is not None
        assert (claim.epoch, claim.batch, claim.begin) == (1, 0, 0)
        producer.fill_from(claim, samples_of(claim))
        assert producer.failed_claim is None


def test_the_claim_for_which_getitem_raises_is_still_the_callers() -> None:
    scheduler, producer = make()
    scheduler.start_epoch(0)

    def getitem(index: int) -> Any:
        if index == 5:
            raise ValueError("torn")
        return np.full(2, index, np.float32)

    with pytest.raises(ValueError, match="torn"):
        producer.fill_plain(getitem, 0)
    failed = producer.failed_claim
    assert failed is not None
    assert (failed.batch, producer.row) == (1, 1)
    producer.fail(failed, b"row 1")
    for claim in claims(producer):
        producer.fill_from(claim, samples_of(claim))
    assert scheduler.next().shape == (4, 2)
    scheduler.acknowledge()
    with pytest.raises(RuntimeError, match="row 1"):
        scheduler.next()


def test_kept_samples_are_writable_aligned_views() -> None:
    scheduler, producer = make(collate="split", dataset_length=4)
    scheduler.start_epoch(0)
    kinds = []
    for claim in claims(producer):
        kinds.append(claim.kind)
        if claim.kind == "items":
            for row, sample in enumerate(samples_of(claim), claim.begin):
                producer.keep(claim, row, b"row %d" % row, [sample, b"", memoryview(b"odd")])
            producer.complete(claim)
        else:
            kept = producer.kept(claim)
            assert [bytes(data) for data, _ in kept] == [b"row %d" % row for row in range(4)]
            for row, (_, buffers) in enumerate(kept):
                assert [len(buffer) for buffer in buffers] == [8, 0, 3]
                array = np.frombuffer(buffers[0], np.float32)
                assert array.flags.writeable
                assert array.ctypes.data % 64 == 0
                array *= 2
                assert list(array) == [2 * row] * 2
            producer.write_batch(claim, b"tree", [np.stack([np.frombuffer(b[0], np.float32) for _, b in kept])])
    assert kinds[-1] == "collate"
    assert set(kinds[:-1]) == {"items"}
    assert scheduler.next(0)[:, 0].tolist() == [0, 2, 4, 6]
    del scheduler, producer
    gc.collect()
    assert len(bytes(kept[0][1][0])) == 8  # the memory lives as long as anybody views it


def test_a_sample_that_cannot_be_kept_has_the_batch_made_as_a_whole() -> None:
    scheduler, producer = make(collate="split", dataset_length=4)
    scheduler.start_epoch(0)
    for claim in claims(producer):
        producer.mismatch(claim)
    assert scheduler.next(0) == WaitOutcome.TIMED_OUT
    claim = producer.try_claim()
    assert claim is not None
    assert claim.kind == "whole"
    assert claim.kind == "whole"


def test_claims_are_ended_in_their_own_way_only() -> None:
    scheduler, producer = make(collate="split")
    scheduler.start_epoch(0)
    claim = producer.try_claim()
    assert claim is not None
    for wrong in (
        lambda: producer.fill(claim, lambda index: index),
        lambda: producer.fill_from(claim, samples_of(claim)),
        lambda: producer.write_batch(claim, b"", []),
        lambda: producer.kept(claim),
        lambda: producer.end_stream(claim),
    ):
        with pytest.raises(errors.FailedPrecondition):
            wrong()
    with pytest.raises(errors.OutOfRange):
        producer.keep(claim, claim.end, b"", [])


def test_a_stream_carries_states_and_ends() -> None:
    scheduler, producer = make(order="stream", dataset_length=0)
    scheduler.start_epoch(0)
    claim = producer.try_claim()
    assert claim is not None
    assert (claim.kind, claim.stream, claim.stream_batch, claim.rows) == ("stream", 0, 0, 4)
    with pytest.raises(errors.InvalidArgument, match="4 rows, got 3"):
        producer.fill_from(claim, samples_of(claim)[:3])
    assert producer.fill_from(claim, samples_of(claim), attachment=b"state")
    claim = producer.try_claim()
    assert claim is not None
    producer.fail(claim, b"torn", attachment=b"state of the torn")
    claim = producer.try_claim()
    assert claim is not None
    assert producer.fill_from(claim, samples_of(claim)[:1], ended=True)
    assert scheduler.next(0).shape == (4, 2)
    assert scheduler.last is not None
    assert scheduler.last.attachment == b"state"
    scheduler.acknowledge()
    with pytest.raises(RuntimeError, match=r"\('torn', 0, 1\)"):
        scheduler.next(0)
    assert scheduler.last.attachment == b"state of the torn"
    scheduler.acknowledge()
    assert scheduler.next(0).shape == (1, 2)
    scheduler.acknowledge()
    assert (scheduler.last.rows, scheduler.last.stream_batch) == (1, 2)
    assert scheduler.next(0) == WaitOutcome.END_OF_EPOCH


def test_samples_of_a_stream_that_do_not_fit_are_the_claimants() -> None:
    scheduler, producer = make(order="stream", dataset_length=0)
    scheduler.start_epoch(0)
    claim = producer.try_claim()
    assert claim is not None
    assert not producer.fill_from(claim, [*samples_of(claim)[:3], np.zeros(3, np.float32)])
    producer.write_batch(claim, b"tree", [np.ones((7, 3), np.float32)], rows=4)
    assert scheduler.next(0).shape == (7, 3)
    assert scheduler.last is not None
    assert scheduler.last.rows == 4


def test_streams_take_turns_from_where_they_are() -> None:
    scheduler, _ = make(order="stream", dataset_length=0, streams=3)
    scheduler.start_epoch(5, 9, streams=[(4, False), (2, True), (4, False)], next_stream=2)
    taken = []
    for stream in (0, 2):
        producer = _core.BatchProducer(scheduler.arena_fd, stream, scheduler.completion_fd, describe, pickle.dumps)
        for claim in claims(producer):
            assert claim.stream == stream
            producer.fill_from(claim, samples_of(claim))
    while len(taken) < 3 and scheduler.next(0) is not WaitOutcome.TIMED_OUT:
        last = scheduler.last
        assert last is not None
        taken.append((last.batch, last.stream, last.stream_batch))
        scheduler.acknowledge()
    assert taken == [(9, 2, 4), (10, 0, 4), (11, 2, 5)]


def test_figures_and_trace() -> None:
    scheduler, producer = make(trace_events=100)
    scheduler.start_epoch(0)
    for claim in claims(producer):
        producer.add_time(dataset_ns=1_000_000)
        producer.fill_from(claim, samples_of(claim))
    assert scheduler.stats()["ready_batches"] == 3
    scheduler.next()
    stats = scheduler.stats()
    assert stats["bytes"] == 32
    assert stats["dataset_s"] == pytest.approx(1e-3 * stats["claims"])
    assert stats["copy_s"] > 0
    assert stats["producers"][0]["samples"] == stats["samples"] == 10
    trace = scheduler.trace()
    kinds = [event[0] for event in trace]
    assert kinds.count("opened") == 3
    assert kinds.count("rows") == stats["claims"]
    assert kinds.count("ready") == kinds.count("taken") == 1
    assert all(begin <= end for _, _, begin, end, *_ in trace)
    assert make()[0].trace() == []
