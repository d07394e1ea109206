"""headrace.data.DataLoader: which batches arrive, in which order, and which guarantees hold for them."""

from __future__ import annotations

import copy
import enum
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import DTYPES as ALL_DTYPES
from loader_datasets import (
    Bulk,
    Everything,
    Gated,
    Ints,
    Mappings,
    Meeting,
    Memory,
    OfDtype,
    Point,
    Random,
    Samples,
    Vectors,
    add_up,
    same,
)

from headrace import errors
from headrace.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
)

CONTEXTS = ["fork", "forkserver", "spawn"]


def batches(dataset: Any, epochs: int = 1, **arguments: Any) -> list[Any]:
    loader = DataLoader(dataset, **arguments)
    return [batch for _ in range(epochs) for batch in loader]


def test_samples_come_in_order_in_full_batches_and_a_rest() -> None:
    got = batches(Ints(10), batch_size=4, num_workers=2)
    assert [batch.tolist() for batch in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_default_batch_is_one_sample() -> None:
    assert [batch.tolist() for batch in DataLoader(Ints(3))] == [[0], [1], [2]]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("dataset", [Everything(23), Random(23), Bulk(23)], ids=lambda dataset: type(dataset).__name__)
def test_batches_do_not_depend_on_the_number_of_workers(dataset: Any, num_workers: int) -> None:
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5}
    expected = batches(dataset, 2, **arguments)
    assert len(expected) == 12
    assert same(batches(dataset, 2, num_workers=num_workers, **arguments), expected)


@pytest.mark.parametrize("context", CONTEXTS)
def test_batches_do_not_depend_on_the_start_method(context: str) -> None:
    arguments = {"batch_size": 4, "shuffle": True, "seed": 5}
    expected = batches(Everything(10), 2, **arguments)
    assert same(batches(Everything(10), 2, num_workers=2, multiprocessing_context=context, **arguments), expected)


def test_a_loader_that_is_made_leaves_the_start_method_open() -> None:
    program = (
        "import multiprocessing; from headrace.data import DataLoader\n"
        "list(DataLoader(range(3))); loader = DataLoader(range(3), num_workers=1)\n"
        "multiprocessing.set_start_method('forkserver')\n"
        "assert len(list(loader)) == 3; assert multiprocessing.get_start_method() == 'forkserver'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_loaders_that_share_a_random_order_need_the_same() -> None:
    for sampled in ({"shuffle": True}, {"sampler": RandomSampler(Ints(8))}):
        with pytest.raises(ValueError, match=r"shard .*needs"):
            DataLoader(Ints(8), shard=(0, 2), **sampled)
    same_order = ({"shuffle": True, "seed": 3}, {"sampler": RandomSampler(Ints(8), generator=3)})
    for sampled in same_order:
        shares = [DataLoader(Ints(8), batch_size=4, shard=(rank, 2), **sampled) for rank in range(2)]
        assert sorted(i for share in shares for batch in share for i in batch.tolist()) == list(range(8))


def test_what_ends_an_iteration_can_be_caught_as_one_family() -> None:
    for error in (errors.Timeout, errors.WorkerDied, errors.FailedPrecondition):
        assert issubclass(error, RuntimeError)
        assert issubclass(error, errors.HeadraceError)


def test_context_objects_are_accepted() -> None:
    context = multiprocessing.get_context("fork")
    assert len(batches(Ints(3), num_workers=1, multiprocessing_context=context)) == 3


def test_shuffle_is_a_permutation_that_the_seed_decides() -> None:
    def order(seed: int) -> list[int]:
        return [int(i) for batch in DataLoader(Ints(50), batch_size=7, shuffle=True, seed=seed) for i in batch]

    assert order(1) == order(1)
    assert sorted(order(1)) == list(range(50))
    assert order(1) != list(range(50))
    assert order(1) != order(2)


def test_without_a_seed_orders_differ_and_the_seed_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)  # whose generator would decide
    first, second = DataLoader(Ints(50), shuffle=True), DataLoader(Ints(50), shuffle=True)
    order = np.concatenate(list(first))
    assert order.tolist() != np.concatenate(list(second)).tolist()
    again = DataLoader(Ints(50), shuffle=True, seed=first.seed)
    assert order.tolist() == np.concatenate(list(again)).tolist()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_differ_and_set_epoch_goes_back(num_workers: int) -> None:
    loader = DataLoader(Random(20), batch_size=5, shuffle=True, seed=3, num_workers=num_workers)
    first, second = list(loader), list(loader)
    assert not same(first, second)
    loader.set_epoch(1)
    assert same(list(loader), second)
    loader.set_epoch(0)
    assert same(list(loader), first)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_sampler_gives_the_indices_anew_each_epoch(num_workers: int) -> None:
    loader = DataLoader(Ints(10), batch_size=2, sampler=[7, 1, np.int32(3), 0, -1], num_workers=num_workers)
    expected = [[7, 1], [3, 0], [-1]]
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == expected
    assert len(loader) == 3


def test_drop_last_leaves_out_the_rest() -> None:
    for arguments in ({}, {"sampler": range(7)}):
        loader = DataLoader(Ints(7), batch_size=3, drop_last=True, num_workers=1, **arguments)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5]]
        assert len(loader) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batch_sampler_decides_the_batches(num_workers: int) -> None:
    lists = [[1, 2, 3], [4], (5, 6)]
    loader = DataLoader(Ints(10), batch_sampler=lists, num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == [[1, 2, 3], [4], [5, 6]]
    assert len(loader) == 3


class Restarting:
    """Yields the items of a sequence; ``iter`` returns it, back at its beginning."""

    def __init__(self, items: Any) -> None:
        self.items = items
        self.left: Any = iter(())

    def __iter__(self) -> Restarting:
        self.left = iter(self.items)
        return self

    def __next__(self) -> Any:
        return next(self.left)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_sampler_may_begin_anew_whenever_it_is_asked_for_an_iterator(num_workers: int, drop_last: bool) -> None:
    lists = [[0, 1], [2, 3], [4, 5], [6]]
    for arguments in (
        {"batch_sampler": Restarting(lists)},
        {"batch_sampler": BatchSampler(Restarting(range(7)), 2, False)},
        {"sampler": Restarting(range(7)), "batch_size": 2, "drop_last": drop_last},
    ):
        expected = lists[:-1] if drop_last and "sampler" in arguments else lists
        loader = DataLoader(Ints(7), num_workers=num_workers, **arguments)
        for _ in range(2):
            assert [batch.tolist() for batch in itertools.islice(loader, 10)] == expected
        epoch = iter(loader)
        assert [next(epoch).tolist() for _ in range(2)] == expected[:2]
        again = DataLoader(Ints(7), num_workers=num_workers, **arguments)
        again.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in itertools.islice(again, 10)] == expected[2:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_keys_need_not_be_integers(num_workers: int) -> None:
    dataset = {"a": 1, ("b", 2): 2, 1 << 70: 3}
    loader = DataLoader(dataset, batch_size=2, sampler=list(dataset), num_workers=num_workers)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_infinite_sampler_is_read_as_it_is_needed(num_workers: int) -> None:
    given = []

    def forever() -> Any:
        index = 0
        while True:
            given.append(index)
            yield index % 10
            index += 1

    prefetch = 3 if num_workers else None
    loader = DataLoader(Ints(10), batch_size=2, sampler=forever(), num_workers=num_workers, prefetch_factor=prefetch)
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(6)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [0, 1]]
    assert len(given) <= 20


@pytest.mark.parametrize(
    "arguments", [{}, {"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2, "prefetch_factor": 8}]
)
@pytest.mark.parametrize("kind", ["sampler", "batch_sampler"])
def test_an_error_of_the_sampler_reaches_the_caller_after_the_batches_before_it(
    kind: str, arguments: dict[str, Any]
) -> None:
    def broken() -> Any:
        yield from range(11) if kind == "sampler" else [[i, i + 1] for i in range(0, 10, 2)]
        raise LookupError("no more indices")

    chosen = {"sampler": broken(), "batch_size": 2} if kind == "sampler" else {"batch_sampler": broken()}
    loader = DataLoader(Ints(20), **chosen, **arguments)
    iterator = iter(loader)
    assert [next(iterator).tolist() for _ in range(5)] == [[i, i + 1] for i in range(0, 10, 2)]
    with pytest.raises(LookupError, match="no more indices"):
        next(iterator)
    assert loader.state_dict()["batch"] == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_collate_fn_makes_the_batch(num_workers: int) -> None:
    got = batches(Ints(5), batch_size=3, collate_fn=add_up, num_workers=num_workers)
    assert [batch["sum"] for batch in got] == [3, 7]
    assert same(got[1]["items"], np.array([3, 4]))
    assert got[0]["text"] == "xxx"
    assert got[0]["pair"] == (1, [2.5, None])


def test_length_is_the_number_of_batches() -> None:
    assert [len(DataLoader(Ints(10), batch_size=size)) for size in (1, 3, 5, 10, 11)] == [10, 4, 2, 1, 1]
    assert len(iter(DataLoader(Ints(10), batch_size=3))) == 4


@pytest.mark.parametrize(
    ("dtype", "num_workers"),
    # Workers copy in the same way, so a few are enough there.
    [*((dtype, 0) for dtype in ALL_DTYPES), *((dtype, 2) for dtype in ("float16", "U3", "M8[ns]", ALL_DTYPES[-1]))],
    ids=str,
)
def test_every_dtype_arrives_as_it_left(dtype: Any, num_workers: int) -> None:
    dataset = OfDtype(5, dtype)
    (got,) = batches(dataset, batch_size=5, num_workers=num_workers)
    assert got[0].dtype == got[2].dtype == dataset.dtype
    assert got[2].shape == (5, 0)
    for row in range(5):
        array, scalar, _ = dataset[row]
        assert got[0][row].tobytes() == array.tobytes()
        assert np.asarray(got[1][row]).tobytes() == np.asarray(scalar).tobytes()


def test_arrays_of_objects_and_masked_arrays_stay_objects() -> None:
    masked = np.ma.masked_array([1, 2], [True, False])
    table = np.array([(1, "x")], [("a", "i4"), ("b", "O")])
    samples = [(np.array([None, i], object), masked, table) for i in range(3)]
    objects, masks, tables = next(iter(DataLoader(Samples(samples), batch_size=3, num_workers=1)))
    assert [o.tolist() for o in objects] == [[None, 0], [None, 1], [None, 2]]
    assert [m.mask.tolist() for m in masks] == [[True, False]] * 3
    assert [t["b"][0] for t in tables] == ["x"] * 3


def test_a_named_tuple_and_a_mapping_keep_their_types() -> None:
    (batch,) = batches(Samples([Point(i, np.float32(i)) for i in range(3)]), batch_size=3, num_workers=1)
    assert type(batch) is Point
    assert batch.x.tolist() == [0, 1, 2]
    (batch,) = batches(Mappings(3), batch_size=3, num_workers=1)
    assert type(batch) is type(Mappings(3)[0])
    assert batch["x"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_batches_are_those_of_default_collate() -> None:
    dataset = Everything(6)
    (batch,) = batches(dataset, batch_size=6, num_workers=2)
    assert same(batch, default_collate([dataset[i] for i in range(6)]))


def test_samples_whose_structure_changes_between_batches() -> None:
    samples = [np.zeros(2), np.ones(2), {"a": 1}, {"a": 2}, "x", "y"]
    got = batches(Samples(samples), batch_size=2, num_workers=2)
    assert same(got, [np.array([[0.0, 0], [1, 1]]), {"a": np.array([1, 2])}, ["x", "y"]])


def test_larger_batches_than_before_fit() -> None:
    samples = [np.full(8 << (2 * i), i, np.uint8) for i in range(11)]
    got = batches(Samples(samples), num_workers=1, prefetch_factor=1)
    assert [batch.shape[1] for batch in got] == [8 << (2 * i) for i in range(11)]
    assert all((batch == i).all() for i, batch in enumerate(got))


def test_more_than_256_samples_in_a_batch() -> None:
    (batch,) = batches(Vectors(5000), batch_size=5000, num_workers=2)
    assert batch[1].tolist() == list(range(5000))
    assert (batch[0][:, 0, 0] == np.arange(5000)).all()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_kept_batches_never_change(num_workers: int) -> None:
    loader = DataLoader(Vectors(1200), batch_size=2, num_workers=num_workers)
    kept = list(loader)  # more than the number of slots
    assert [batch[1].tolist() for batch in kept] == [[i, i + 1] for i in range(0, 1200, 2)]
    for _ in loader:
        pass
    assert all((batch[0][:, 0, 0] == batch[1]).all() and batch[1][0] == 2 * i for i, batch in enumerate(kept))


def test_views_outlive_the_loader() -> None:
    loader = DataLoader(Vectors(6), batch_size=3, num_workers=1)
    kept = list(loader)
    del loader
    gc.collect()
    assert [batch[1].tolist() for batch in kept] == [[0, 1, 2], [3, 4, 5]]
    row = kept[0][0][2]
    del kept
    gc.collect()
    assert (row == 2).all()


def test_a_slot_goes_back_with_the_last_view() -> None:
    loader = DataLoader(Vectors(8), batch_size=2, num_workers=1)
    iterator = iter(loader)
    batch = next(iterator)
    assert loader.stats()["held_slots"] == 1
    row = batch[0][1, 2:]
    del batch
    gc.collect()
    assert loader.stats()["held_slots"] == 1
    assert (row == 1).all()
    del row
    gc.collect()
    assert loader.stats()["held_slots"] == 0


def test_batches_are_writable_and_writes_stay_private() -> None:
    loader = DataLoader(Ints(4), batch_size=2, num_workers=1)
    first, second = loader
    first += 100
    assert first.tolist() == [100, 101]
    assert second.tolist() == [2, 3]
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def test_breaking_off_and_starting_anew() -> None:
    loader = DataLoader(Random(40), batch_size=2, num_workers=2, seed=1, shuffle=True)
    expected = [list(loader) for _ in range(3)]
    loader.set_epoch(0)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            assert same(batch, expected[epoch][number])
            if number == 5 * epoch:
                break


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "make_arguments",
    [
        lambda: {"shuffle": True, "seed": 3, "batch_size": 4},
        lambda: {"sampler": RandomSampler(Ints(24), generator=3), "batch_size": 4},
        lambda: {"sampler": WeightedRandomSampler([1.0] * 24, 24, generator=3), "batch_size": 4},
        lambda: {"sampler": DistributedSampler(Ints(24), num_replicas=1, rank=0, seed=3), "batch_size": 4},
        lambda: {"batch_sampler": BatchSampler(RandomSampler(Ints(24), generator=3), 4, False)},
    ],
    ids=["shuffle", "random", "weighted", "distributed", "batches"],
)
def test_an_iteration_keeps_its_order_while_another_begins(make_arguments: Any, num_workers: int) -> None:
    plain = DataLoader(Ints(24), **make_arguments())
    expected = [[batch.tolist() for batch in plain] for _ in range(2)]
    assert expected[0] != expected[1]
    loader = DataLoader(
        Ints(24), num_workers=num_workers, prefetch_factor=2 if num_workers else None, **make_arguments()
    )
    first = iter(loader)
    begin = next(first).tolist()
    second = iter(loader)
    other = next(second).tolist()
    assert [begin, *[batch.tolist() for batch in first]] == expected[0]
    assert [other, *[batch.tolist() for batch in second]] == expected[1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_iterations_of_one_loader_may_be_under_way_at_once(num_workers: int) -> None:
    loader = DataLoader(Ints(6), num_workers=num_workers, shuffle=True, seed=3)
    expected = [int(batch[0]) for epoch in range(7) for batch in loader]
    loader.set_epoch(0)
    got = []
    for outer in loader:
        got.append([int(outer[0]), *(int(inner[0]) for inner in loader)])
    assert [row[0] for row in got] == expected[:6]
    assert [i for row in got for i in row[1:]] == expected[6:]
    assert len(multiprocessing.active_children()) == num_workers  # one pool is kept for the next iteration


def test_an_iteration_that_was_broken_off_leaves_its_workers_to_the_next() -> None:
    loader = DataLoader(Meeting(20, 0), batch_size=2, num_workers=2)
    pids = set()
    for _ in range(5):
        for batch in loader:
            pids |= {*batch.pid.tolist()}
            break
    assert len(pids) <= 2


def test_an_iterator_that_has_ended_stays_ended() -> None:
    iterator = iter(DataLoader(Ints(2), num_workers=1))
    assert len(list(iterator)) == 2
    assert next(iterator, None) is None
    assert next(iterator, None) is None


def test_workers_persist_over_epochs() -> None:
    loader = DataLoader(Meeting(20, 2), num_workers=2)
    epochs = [{int(who.pid[0]) for who in loader} for _ in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(epochs[0] - {os.getpid()}) == 2


def test_shutdown_ends_the_workers_and_the_next_iteration_starts_new_ones() -> None:
    loader = DataLoader(Meeting(20, 2), num_workers=2)
    first = {int(who.pid[0]) for who in loader}
    iterator = iter(loader)
    next(iterator)
    loader.shutdown()
    assert not multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="shut down"):
        list(iterator)
    assert not first & {int(who.pid[0]) for who in loader}
    loader.shutdown()
    loader.shutdown()


def test_get_worker_info_says_who_asks() -> None:
    got = list(DataLoader(Meeting(30, 2), num_workers=2, seed=9))
    assert {int(who.worker[0]) for who in got} == {0, 1}
    assert all(who.workers[0] == 2 and who.has_dataset[0] for who in got)
    assert len({int(who.seed[0] - who.worker[0]) for who in got}) == 1
    assert get_worker_info() is None
    assert next(iter(DataLoader(Meeting(2, 2)))).worker == -1


def test_lambdas_work_under_fork() -> None:
    class Local:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return (lambda i: i * i)(index)

    loader = DataLoader(
        Local(),
        batch_size=2,
        num_workers=2,
        multiprocessing_context="fork",
        collate_fn=lambda samples: np.array(samples) + 1,
        worker_init_fn=lambda worker_id: None,
    )
    assert [batch.tolist() for batch in loader] == [[1, 2], [5, 10]]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_empty_dataset_gives_no_batch(num_workers: int, shuffle: bool) -> None:
    loader = DataLoader(Ints(0), num_workers=num_workers, shuffle=shuffle)
    assert len(loader) == 0
    for _ in range(3):
        assert list(loader) == []


def test_an_empty_sampler_gives_no_batch() -> None:
    for num_workers in (0, 1):
        assert list(DataLoader(Ints(0), sampler=[], num_workers=num_workers)) == []


def test_a_dataset_that_grows_is_read_anew() -> None:
    samples = [1, 2]
    loader = DataLoader(samples, batch_size=2, num_workers=1)
    assert len(list(loader)) == 1
    samples += [3, 4]
    assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_copy_of_a_loader_runs_on_its_own(num_workers: int) -> None:
    loader = DataLoader(Ints(6), batch_size=2, num_workers=num_workers, shuffle=True, seed=1)
    iterator = iter(loader)
    next(iterator)
    copies = [copy.copy(loader), pickle.loads(pickle.dumps(loader))]
    taken = [[batch.tolist() for batch in other] for other in copies]
    rest = [batch.tolist() for batch in iterator]
    assert len(rest) == 2
    assert taken == [rest, rest]


def test_iteration_in_another_thread() -> None:
    loader = DataLoader(Ints(100), batch_size=2, num_workers=2)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.extend(loader))
    thread.start()
    thread.join()
    assert [batch.tolist() for batch in got] == [[i, i + 1] for i in range(0, 100, 2)]


def test_the_thread_that_started_the_workers_may_end() -> None:
    loader = DataLoader(Ints(100), batch_size=2, num_workers=2, prefetch_factor=2)
    got: list[Any] = []

    def begin() -> None:
        iterator = iter(loader)
        got.extend([iterator, next(iterator).tolist()])

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    iterator, first = got
    assert [first, *(batch.tolist() for batch in iterator)] == [[i, i + 1] for i in range(0, 100, 2)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_signal_handler_may_end_the_wait_for_a_batch(num_workers: int) -> None:
    def handler(number: int, frame: Any) -> None:
        raise InterruptedError("enough")

    before = signal.signal(signal.SIGUSR1, handler)
    # To the process, so that any of its threads may receive it.
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    dataset = Gated(2, 1)
    try:
        iterator = iter(DataLoader(dataset, num_workers=num_workers))
        assert next(iterator).tolist() == [0]
        with pytest.raises(InterruptedError, match="enough"):
            timer.start()
            next(iterator)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    dataset.gate.set()
    # Without workers it is raised in __getitem__, like any exception of the dataset.
    assert [batch.tolist() for batch in iterator] == ([[1]] if num_workers else [])


def test_other_threads_run_while_one_waits_for_a_batch() -> None:
    dataset, got, waits = Gated(2, 1), [], threading.Event()

    def iterate() -> None:
        for batch in DataLoader(dataset, num_workers=1, prefetch_factor=1):
            got.append(batch.tolist())
            waits.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    waits.wait()
    for _ in range(50):  # until that thread waits for the second batch as well
        time.sleep(0.001)
        assert got == [[0]]
    dataset.gate.set()
    thread.join()
    assert got == [[0], [1]]


def test_a_timeout_is_an_error_and_iteration_goes_on(tmp_path: Path) -> None:
    class SlowOnce(Ints):
        def __getitem__(self, index: int) -> int:
            if index == 1 and not (tmp_path / "made").exists():
                (tmp_path / "made").touch()
                time.sleep(60)
            return index

    iterator = iter(DataLoader(SlowOnce(3), num_workers=1, timeout=1, multiprocessing_context="fork"))
    got, timeouts = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the dead worker is replaced
        while len(got) < 3:
            try:
                got.append(next(iterator).tolist())
            except errors.Timeout as error:
                timeouts.append(error)
    assert got == [[0], [1], [2]]
    assert "timed out after 1 seconds" in str(timeouts[0])
    assert isinstance(timeouts[0], RuntimeError)  # as PyTorch users expect
    assert isinstance(timeouts[0], TimeoutError)


def test_a_loader_works_in_a_forked_child_and_leaves_the_parents_alone() -> None:
    for num_workers in (0, 1):
        loader = DataLoader(Ints(20), batch_size=2, num_workers=num_workers)
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1]
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    next(iterator)
                except RuntimeError:
                    code = 2
                if (
                    code == 2
                    and loader.stats() == {}
                    and [batch.tolist()[0] for batch in loader] == list(range(0, 20, 2))
                ):
                    code = 0
                loader.shutdown()
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert [batch.tolist()[0] for batch in iterator] == list(range(2, 20, 2))


def test_a_dataset_that_refers_to_its_loader_is_collected() -> None:
    class Trainer(Ints):
        def __init__(self) -> None:
            super().__init__(4)
            self.loader = DataLoader(self, num_workers=1, collate_fn=self.collate)

        def collate(self, samples: list[int]) -> int:
            return sum(samples)

    trainer = Trainer()
    assert list(trainer.loader) == [0, 1, 2, 3]
    assert multiprocessing.active_children()
    del trainer
    gc.collect()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2, 8, 32])
def test_shared_memory_is_bounded_by_the_batches_in_flight(workers: int) -> None:
    size, prefetch = 1 << 20, 3
    loader = DataLoader(Memory(40, size), batch_size=2, num_workers=workers, prefetch_factor=prefetch)
    for epoch in range(2):
        for number, batch in enumerate(loader):
            assert (batch[0] == 2 * number % 251).all()
            stats = loader.stats()
            assert stats["open_batches"] <= prefetch
            # The loop holds one batch while it asks for the next; a slot's description takes less than 300 KiB.
            assert stats["resident_bytes"] <= (prefetch + 2) * (2 * size + (300 << 10)) + (1 << 20), (epoch, stats)
    assert loader.stats()["slots_used"] <= prefetch + 2


def test_stats_count_what_happened() -> None:
    loader = DataLoader(Ints(10), batch_size=2, num_workers=1)
    assert loader.stats() == {}
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["batches"] == 5
    assert stats["samples"] >= 10
    assert stats["worker_busy_s"] > 0


def test_dataset_protocol() -> None:
    assert isinstance(Ints(1), Dataset)
    assert isinstance([], Dataset)
    assert not isinstance(iter([]), Dataset)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be from 1"),
        ({"batch_size": -1}, ValueError, "batch_size"),
        ({"batch_size": 1 << 31}, ValueError, "batch_size"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be an integer"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer"),
        ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None"),
        ({"batch_size": None, "ragged": "pad"}, ValueError, "batch_size=None makes no batches, so ragged"),
        ({"num_workers": -1}, ValueError, "num_workers must be from 0"),
        ({"num_workers": 100_000}, ValueError, "num_workers"),
        ({"num_workers": "2"}, TypeError, "num_workers must be an integer"),
        ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be from 1"),
        ({"prefetch_factor": 10_000}, ValueError, "prefetch_factor"),
        ({"prefetch_factor": 1.5}, TypeError, "prefetch_factor must be an integer"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": "x"}, TypeError, "seed"),
        ({"timeout": -1}, ValueError, "timeout must be from 0"),
        ({"timeout": float("nan")}, ValueError, "timeout"),
        ({"timeout": float("inf")}, ValueError, "timeout"),
        ({"timeout": "1"}, TypeError, "timeout must be a number"),
        ({"multiprocessing_context": "thread"}, ValueError, "multiprocessing_context must be one of"),
        ({"multiprocessing_context": 3}, TypeError, "multiprocessing_context"),
        ({"collate_fn": 3}, TypeError, "collate_fn must be callable"),
        ({"worker_init_fn": 3}, TypeError, "worker_init_fn must be callable"),
        ({"sampler": [1], "shuffle": True}, ValueError, "sampler excludes shuffle"),
        ({"sampler": 5}, TypeError, "sampler must be an iterable of indices, got 5"),
        ({"batch_sampler": 5}, TypeError, "batch_sampler must be an iterable of lists of indices, got 5"),
        ({"seed_records": "positon"}, ValueError, "seed_records must be True, False or \"position\", got 'positon'"),
        ({"ragged": "padding"}, ValueError, 'ragged must be None, "pad"'),
        ({"shuffle": "False"}, TypeError, "shuffle must be True or False, got 'False'"),
        ({"drop_last": "no"}, TypeError, "drop_last must be True or False, got 'no'"),
        ({"in_order": "no"}, TypeError, "in_order must be True or False"),
        ({"persistent_workers": "no", "num_workers": 1}, TypeError, "persistent_workers must be True or False"),
        ({"pin_memory": 2}, TypeError, "pin_memory must be True or False, got 2"),
        ({"trace": "no"}, TypeError, "trace must be True or False"),
        ({"progress": None}, TypeError, "progress must be True or False"),
        ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "batch_sampler excludes"),
        ({"batch_sampler": [[1]], "shuffle": True}, ValueError, "batch_sampler excludes"),
        ({"batch_sampler": [[1]], "drop_last": True}, ValueError, "batch_sampler excludes"),
        ({"batch_sampler": [[1]], "sampler": [1]}, ValueError, "batch_sampler excludes"),
        ({"to": "jax"}, ValueError, 'to must be "numpy", "torch" or None'),
        ({"generator": 1.5}, TypeError, "generator must be"),
        ({"generator": 1, "seed": 1}, ValueError, "generator excludes seed"),
        ({"prefetch_factor": 2}, ValueError, "prefetch_factor needs workers"),
        ({"persistent_workers": True}, ValueError, "persistent_workers=True needs workers"),
        ({"multiprocessing_context": "spawn"}, ValueError, "multiprocessing_context needs workers"),
        ({"timeout": 1}, ValueError, "timeout needs workers"),
        ({"workers": "thread"}, ValueError, "needs workers"),
        ({"workers": "fiber", "num_workers": 1}, ValueError, 'workers must be "process" or "thread"'),
        ({"workers": "thread", "num_workers": 1, "multiprocessing_context": "spawn"}, ValueError, "for processes"),
        ({"threads_per_worker": 0}, ValueError, "threads_per_worker must be from 1"),
        ({"threads_per_worker": 256, "num_workers": 4}, ValueError, "must be at most 512"),
        ({"seed_records": True, "num_workers": 1, "threads_per_worker": 2}, ValueError, "seed_records=False"),
        ({"seed_records": "position", "num_workers": 2, "workers": "thread"}, ValueError, "seed_records=False"),
        ({"num_workers_batches": 0}, ValueError, "num_workers_batches must be from 1"),
        ({"ragged": "pad", "collate_fn": list}, ValueError, "collate_fn excludes ragged"),
        ({"shard": 3}, TypeError, "shard must be"),
        ({"shard": (2, 2)}, ValueError, "the rank of shard must be from 0 to 1"),
        ({"shard": (0, 2), "batch_sampler": [[1]]}, ValueError, "shard excludes batch_sampler"),
        ({"order": "torch"}, ValueError, "order must be"),
        ({"order": "grain", "batch_sampler": [[1]]}, ValueError, "needs a map-style dataset"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_a_clear_error(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        DataLoader(Ints(4), **arguments)


@pytest.mark.parametrize("yes", [True, 1, np.True_, np.int64(1)])
def test_a_flag_may_be_a_number_or_one_of_numpys(yes: Any) -> None:
    loader = DataLoader(Ints(5), batch_size=2, shuffle=yes, drop_last=yes, in_order=yes, trace=yes)
    assert (loader.shuffle, loader.drop_last, loader.in_order, loader.trace) == (True,) * 4
    assert DataLoader(Ints(5), shuffle=0).shuffle is False


def test_a_dataset_without_length_or_items_is_refused() -> None:
    with pytest.raises(TypeError, match="has no __len__"):
        DataLoader(3)
    with pytest.raises(TypeError, match="has no __len__"):
        DataLoader(type("Endless", (), {"__getitem__": lambda self, index: index})())


def test_a_class_or_a_function_in_place_of_a_dataset_is_told_how_to_be_called() -> None:
    for kind in (Ints, type("Stream", (), {"__iter__": lambda self: iter([1])}), object):
        with pytest.raises(TypeError, match=rf"; got the class {kind.__name__}: write {kind.__name__}\(\.\.\.\)"):
            DataLoader(kind)

    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="got a function; if it is a generator function, call it"):
        DataLoader(numbers)
    assert next(iter(DataLoader(enum.Enum("Color", "red blue"), batch_sampler=[["red"]])))


@pytest.mark.parametrize(
    ("lists", "error", "words"),
    [([[1], []], ValueError, "empty list"), ([3], TypeError, "lists of indices"), (["ab"], TypeError, "lists of")],
    ids=str,
)
def test_a_wrong_batch_sampler_is_a_clear_error(lists: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        list(DataLoader(Ints(4), batch_sampler=lists, num_workers=1))


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_a_wrong_epoch_is_a_clear_error(epoch: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="epoch"):
        DataLoader(Ints(4)).set_epoch(epoch)


@pytest.mark.parametrize("workers", ["process", "thread"])
def test_worker_init_fn_runs_in_each_worker(workers: str) -> None:
    here = threading.local()

    def initialize(worker_id: int) -> None:
        here.initialized = worker_id

    class Initialized(Meeting):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index).worker, here.initialized

    loader = DataLoader(Initialized(6, 3), num_workers=3, worker_init_fn=initialize, workers=workers)
    got = [(int(worker[0]), int(initialized[0])) for worker, initialized in loader]
    assert {*got} == {(0, 0), (1, 1), (2, 2)}


def test_to_torch_gives_tensors_over_the_slot() -> None:
    torch = pytest.importorskip("torch")
    loader = DataLoader(Vectors(4), batch_size=2, num_workers=1, to="torch")
    first, second = loader
    assert isinstance(first[0], torch.Tensor)
    assert first[0].dtype == torch.float32
    assert second[1].tolist() == [2, 3]
    assert loader.stats()["held_slots"] == 2


def test_tensors_of_torch_are_collated_like_arrays() -> None:
    torch = pytest.importorskip("torch")
    samples = [(torch.full((2, 3), float(i)).T, torch.tensor(i)) for i in range(4)]
    (batch,) = batches(Samples(samples), batch_size=4, num_workers=2)
    assert isinstance(batch[1], torch.Tensor)
    assert batch[1].tolist() == [0, 1, 2, 3]
    assert batch[0].shape == (4, 3, 2)
    assert batch[0][:, 1, 1].tolist() == [0, 1, 2, 3]


def test_a_loader_says_what_it_is() -> None:
    assert repr(DataLoader(Ints(4), 2, shuffle=True, seed=3)) == "DataLoader(Ints, batch_size=2, shuffle=True, seed=3)"


def test_iterators_samplers_and_datasets_have_short_representations() -> None:
    batches = iter(DataLoader(Ints(4), 2))
    assert repr(batches) == "<BatchIterator at batch 0>"
    next(batches)
    assert repr(batches) == "<BatchIterator at batch 1>"
    source = Ints(4)
    sized = {
        "SequentialSampler": SequentialSampler(source),
        "RandomSampler": RandomSampler(source),
        "WeightedRandomSampler": WeightedRandomSampler([1] * 4, 4),
        "BatchSampler": BatchSampler(range(8), 2, False),
        "Subset": Subset(source, range(4)),
        "ConcatDataset": ConcatDataset([source]),
        "TensorDataset": TensorDataset(np.ones(4)),
    }
    assert list(map(repr, sized.values())) == [f"<{name} of length 4>" for name in sized]

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(())

    assert repr(ChainDataset([Stream()])) == "<ChainDataset>"


def test_pinned_memory_without_cuda_is_said_once_and_changes_nothing() -> None:
    loader = DataLoader(Ints(10), 2, num_workers=1, pin_memory=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [batch.tolist() for batch in loader] == [[i, i + 1] for i in range(0, 10, 2)]
    messages = [str(warning.message) for warning in caught if "pin_memory" in str(warning.message)]
    if messages:  # there is no GPU
        assert len(messages) == 1
        assert "pin_memory has no effect" in messages[0]
    else:
        assert loader.stats()["pinned_bytes"] > 0


def test_what_was_not_given_can_be_read() -> None:
    loader = DataLoader(Ints(10), 4, shuffle=True, seed=3)
    assert [list(indices) for indices in loader.batch_sampler] == [batch.tolist() for batch in loader]
    assert len(loader.sampler) == 10
    assert loader.collate_fn is default_collate
    assert DataLoader(Ints(10), None).collate_fn is default_convert
    assert DataLoader(Ints(10), None).batch_sampler is None
    given = [3, 1]
    assert DataLoader(Ints(10), sampler=given).sampler is given


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batch_sampler_shows_the_next_epoch(num_workers: int) -> None:
    loader = DataLoader(Ints(10), 4, shuffle=True, seed=3, num_workers=num_workers)
    for epoch in range(3):
        shown = [list(loader.batch_sampler), list(loader.batch_sampler), list(loader.sampler)]
        batches = iter(loader)
        got = [next(batches).tolist()]
        assert list(loader.batch_sampler) != shown[0], "the epoch after the one that has begun"
        got += [batch.tolist() for batch in batches]
        assert shown == [got, got, [index for batch in got for index in batch]], epoch
    loader.set_epoch(1)
    shown = list(loader.batch_sampler)
    assert shown == [batch.tolist() for batch in loader]


def test_there_is_no_batch_sampler_whose_lists_are_not_the_batches() -> None:
    assert DataLoader(Ints(10), 4, order="grain", num_workers=2).batch_sampler is None


@pytest.mark.parametrize("name", ["batch_size", "drop_last", "sampler", "shuffle"])
def test_the_batch_sampler_of_a_loader_cannot_be_changed(name: str) -> None:
    loader = DataLoader(Ints(10), 4)
    with pytest.raises(ValueError, match=f"{name} of a loader's batch_sampler cannot be changed; create a new loader"):
        setattr(loader.batch_sampler, name, 3)


@pytest.mark.parametrize("name", ["batch_size", "dataset", "sampler", "drop_last", "num_workers", "collate_fn"])
def test_arguments_cannot_be_changed_later(name: str) -> None:
    loader = DataLoader(Ints(10), 4)
    with pytest.raises(ValueError, match=f"{name} cannot be changed"):
        setattr(loader, name, 3)
