"""PyTorch's datasets, samplers and functions, unchanged, give the same batches in PyTorch's loader and in ours."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

import torch_datasets as td  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402

import headrace as hr  # noqa: E402
from ended_processes import assert_no_process  # noqa: E402
from headrace import data as hr_data  # noqa: E402

Arguments = dict[str, Any]
Loaders = Callable[..., Any]


def assert_equal(got: Any, expected: Any, where: str = "batch") -> None:
    """Checks for the same types, dtypes, shapes and values, all the way down.

    Strings are an exception: PyTorch returns a list or, where they were in a sequence, a tuple; we return a list.
    """
    if isinstance(expected, tuple) and expected and all(isinstance(item, (str, bytes)) for item in expected):
        expected = list(expected)
    assert type(got) is type(expected), f"{where}: {type(got)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        assert got.dtype == expected.dtype, where
        assert got.shape == expected.shape, where
        assert torch.equal(got, expected), f"{where}: {got} instead of {expected}"
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, where
        np.testing.assert_array_equal(got, expected, where)
    elif hasattr(expected, "keys"):
        assert list(got) == list(expected), where
        for key in expected:
            assert_equal(got[key], expected[key], f"{where}[{key!r}]")
    elif hasattr(expected, "__len__") and not isinstance(expected, (str, bytes)):
        assert len(got) == len(expected), f"{where}: {got} instead of {expected}"
        for i, (mine, theirs) in enumerate(zip(got, expected)):
            assert_equal(mine, theirs, f"{where}[{i}]")
    else:
        assert got == expected, where


def epochs(loader: Any, count: int = 2) -> list[Any]:
    return [list(loader) for _ in range(count)]


def compare(dataset: Any, make: Callable[[], Arguments], num_workers: int) -> list[Any]:
    """Runs both loaders, only ours with workers, from the same state of torch's generator. Returns the batches."""
    torch.manual_seed(5)
    theirs = epochs(torch_data.DataLoader(dataset, **make()))
    their_state = torch.get_rng_state()
    torch.manual_seed(5)
    ours = epochs(hr.DataLoader(dataset, **make(), num_workers=num_workers))
    assert_equal(ours, theirs, "epochs")
    assert torch.equal(torch.get_rng_state(), their_state), "what the program draws next differs"
    return ours


# Datasets as users of PyTorch write them.
DATASETS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: td.Items(11, td.number),
    "tensors": lambda: td.Items(11, td.tensor),
    "arrays": lambda: td.Items(11, td.array),
    "pairs": lambda: td.Items(11, td.pair),
    "nested": lambda: td.Items(11, td.nested),
    "every dtype": lambda: td.Items(5, td.every_dtype),
    "containers": lambda: td.Items(5, td.containers),
    "bulk": lambda: td.Bulk(11, td.pair),
    "TensorDataset": lambda: torch_data.TensorDataset(torch.arange(22.0).reshape(11, 2), torch.arange(11)),
    "Subset": lambda: torch_data.Subset(td.Items(30, td.pair), [3, 1, 29, 7, 7, 12]),
    "Subset of bulk": lambda: torch_data.Subset(td.Bulk(30, td.pair), [3, 1, 29, 7, 7, 12]),
    "ConcatDataset": lambda: torch_data.ConcatDataset([td.Items(4, td.pair), td.Items(7, td.pair)]),
    "StackDataset": lambda: torch_data.StackDataset(a=td.Items(11, td.tensor), b=td.Items(11, td.number)),
    "random_split": lambda: torch_data.random_split(
        td.Items(11, td.pair), [0.7, 0.3], generator=torch.Generator().manual_seed(1)
    )[0],
}

# Arguments, made anew for each loader: generators and samplers change when they are used.
ARGUMENTS: dict[str, Callable[[], Arguments]] = {
    "defaults": dict,
    "batches of 3": lambda: {"batch_size": 3},
    "drop_last": lambda: {"batch_size": 3, "drop_last": True},
    "shuffle": lambda: {"batch_size": 3, "shuffle": True},
    "shuffle, generator": lambda: {
        "batch_size": 3,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(8),
        "drop_last": True,
    },
    "batch_size=None": lambda: {"batch_size": None},
    "batch_size=None, shuffle": lambda: {"batch_size": None, "shuffle": True},
}

# The others affect the indices, not the samples: one dataset is enough for them.
INDEX_ARGUMENTS: dict[str, Callable[[], Arguments]] = {
    "a batch larger than the dataset": lambda: {"batch_size": 50},
    "drop_last drops all": lambda: {"batch_size": 50, "drop_last": True},
    "SequentialSampler": lambda: {"sampler": torch_data.SequentialSampler(range(7)), "batch_size": 2},
    "RandomSampler": lambda: {"sampler": torch_data.RandomSampler(range(11)), "batch_size": 4},
    "RandomSampler, generator": lambda: {
        "sampler": torch_data.RandomSampler(range(11), generator=torch.Generator().manual_seed(3))
    },
    "RandomSampler with replacement": lambda: {
        "sampler": torch_data.RandomSampler(range(11), replacement=True, num_samples=40),
        "batch_size": 7,
    },
    "more samples than there are": lambda: {"sampler": torch_data.RandomSampler(range(11), num_samples=25)},
    "SubsetRandomSampler": lambda: {"sampler": torch_data.SubsetRandomSampler([1, 5, 8, 9]), "batch_size": 3},
    "WeightedRandomSampler": lambda: {"sampler": torch_data.WeightedRandomSampler([0.1, 3, 0, 1], 20), "batch_size": 6},
    "weighted, without replacement": lambda: {
        "sampler": torch_data.WeightedRandomSampler([0.1, 3, 1, 1], 3, replacement=False)
    },
    "DistributedSampler": lambda: {
        "sampler": torch_data.DistributedSampler(td.Items(11, td.number), num_replicas=3, rank=2, seed=4),
        "batch_size": 2,
    },
    "a sampler of the user": lambda: {"sampler": td.Backwards(11), "batch_size": 4, "drop_last": True},
    "a list as sampler": lambda: {"sampler": [4, 2, 2, 10], "batch_size": 3},
    "negative indices": lambda: {"sampler": [-1, 2, -11], "batch_size": 2},
    "indices as tensors": lambda: {"sampler": torch.tensor([3, 1, 2]), "batch_size": 2},
    "indices as an array": lambda: {"sampler": np.array([3, 1, 2]), "batch_size": 2},
    "BatchSampler": lambda: {
        "batch_sampler": torch_data.BatchSampler(torch_data.RandomSampler(range(11)), 4, drop_last=False)
    },
    "a batch sampler of the user": lambda: {"batch_sampler": td.GrowingBatches(11)},
    "a list as batch sampler": lambda: {"batch_sampler": [[0, 1], [5], [3, 3, 3]]},
    "a BatchSampler as sampler": lambda: {
        "sampler": torch_data.BatchSampler(torch_data.SequentialSampler(range(4)), 2, drop_last=False),
        "batch_size": None,
    },
    "collate_fn": lambda: {"batch_size": 4, "shuffle": True, "collate_fn": td.sum_up},
    "a collate_fn that does nothing": lambda: {"batch_size": 4, "collate_fn": td.as_it_is},
    "torch's default_collate": lambda: {"batch_size": 4, "collate_fn": torch_data.default_collate},
    "collate_fn, batch_size=None": lambda: {"batch_size": None, "collate_fn": td.as_it_is},
}


@pytest.mark.parametrize(("num_workers", "arguments"), [*((0, name) for name in ARGUMENTS), (2, "shuffle")])
@pytest.mark.parametrize("dataset", DATASETS)
def test_the_same_batches(dataset: str, arguments: str, num_workers: int) -> None:
    assert compare(DATASETS[dataset](), ARGUMENTS[arguments], num_workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("arguments", INDEX_ARGUMENTS)
def test_the_same_batches_of_the_same_indices(arguments: str, num_workers: int) -> None:
    compare(td.Items(11, td.number), INDEX_ARGUMENTS[arguments], num_workers)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"prefetch_factor": 3},
        {"persistent_workers": True},
        {"persistent_workers": False},
        {"timeout": 30},
        {"in_order": True, "pin_memory": False},
    ],
    ids=str,
)
def test_the_same_batches_as_from_workers_of_pytorch(more: Arguments) -> None:
    arguments = {"num_workers": 2, "batch_size": 3, "shuffle": True, **more}
    torch.manual_seed(9)
    theirs = epochs(torch_data.DataLoader(td.Items(20, td.pair), **arguments))
    torch.manual_seed(9)
    ours = epochs(hr.DataLoader(td.Items(20, td.pair), **arguments))
    assert_equal(ours, theirs)


@pytest.mark.parametrize("dataset", ["nested", "every dtype", "bulk", "ConcatDataset"])
def test_the_same_samples_without_batches(dataset: str) -> None:
    assert compare(DATASETS[dataset](), ARGUMENTS["batch_size=None, shuffle"], 2)


def test_keys_that_are_no_numbers() -> None:
    compare(td.Keyed(), lambda: {"sampler": ["two", ("a", 3), "one"], "batch_size": 2}, 2)


def test_a_plain_dataset_gives_arrays_and_tensors_when_asked_to() -> None:
    """A dataset that is not PyTorch's gives tensors only if its samples are tensors."""
    pairs = [(np.float32(i), i) for i in range(6)]
    theirs = list(torch_data.DataLoader(pairs, batch_size=2))
    assert_equal(list(hr.DataLoader(pairs, batch_size=2, to="torch")), theirs)
    ours = list(hr.DataLoader(pairs, batch_size=2))
    assert all(isinstance(leaf, np.ndarray) for batch in ours for leaf in batch)
    tensors = [(torch.tensor(i), i) for i in range(6)]
    assert_equal(list(hr.DataLoader(tensors, batch_size=2)), list(torch_data.DataLoader(tensors, batch_size=2)))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "arguments", [{"batch_size": None}, {"batch_size": 20, "collate_fn": td.as_it_is}], ids=", ".join
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["sparse", "nested", "subclass"])
def test_tensors_that_numpy_cannot_hold_arrive_as_they_are(kind: str, arguments: Arguments, num_workers: int) -> None:
    loader = hr.DataLoader(td.Items(20, td.unusual[kind]), num_workers=num_workers, **arguments)
    batches = list(loader)
    got = batches if arguments["batch_size"] is None else batches[0]
    assert len(got) == 20
    for i, mine in enumerate(got):
        expected = td.unusual[kind](i)
        assert type(mine) is type(expected)
        assert mine.layout == expected.layout
        assert mine.is_nested == expected.is_nested
        dense = [tensor.to_dense() for tensor in (mine, expected)] if kind == "sparse" else [mine, expected]
        assert str(dense[0]) == str(dense[1])


@pytest.mark.parametrize("kind", ["sparse", "nested"])
def test_tensors_that_cannot_be_stacked_are_an_error(kind: str) -> None:
    with pytest.raises(TypeError, match="need a collate_fn"):
        list(hr.DataLoader(td.Items(4, td.unusual[kind]), batch_size=2))


def test_a_dataset_without_a_length_and_a_sampler() -> None:
    for arguments in ({"sampler": [1, 5, 7], "batch_size": 2}, {"batch_sampler": [[1], [5, 7]]}):
        compare(td.Endless(), functools.partial(dict, **arguments), 2)
    with pytest.raises(TypeError, match="__len__"):
        hr.DataLoader(td.Endless())


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_that_raises_stop_iteration_does_not_end_the_epoch_in_silence(num_workers: int) -> None:
    found = outcomes(hr.DataLoader(td.Items(3, td.stop_at_1), num_workers=num_workers))
    assert [type(item) for item in found] == [torch.Tensor, RuntimeError, torch.Tensor]
    assert "StopIteration" in str(found[1])


def test_the_class_can_be_subscripted_in_type_hints() -> None:
    assert hr.DataLoader[int].__origin__ is hr.DataLoader
    assert isinstance(hr.DataLoader([1]), hr.DataLoader)


def test_a_dataset_that_cannot_be_collated_is_an_error_in_both() -> None:
    ragged = [torch.zeros(2), torch.zeros(3)]
    with pytest.raises(RuntimeError, match="equal size"):
        list(torch_data.DataLoader(ragged, batch_size=2))
    with pytest.raises(ValueError, match=r"shape|sample"):
        list(hr.DataLoader(ragged, batch_size=2))


@pytest.mark.parametrize(
    ("dataset", "arguments"),
    [
        (range(10), {}),
        (range(10), {"batch_size": 3}),
        (range(10), {"batch_size": 3, "drop_last": True}),
        (range(10), {"batch_size": 10}),
        (range(10), {"batch_size": None}),
        (range(10), {"batch_size": 11, "drop_last": True}),
        (range(10), {"sampler": [1, 2, 3], "batch_size": 2}),
        (range(10), {"batch_sampler": [[1], [2, 3]]}),
        (range(10), {"shuffle": True, "batch_size": 4, "num_workers": 2}),
    ],
    ids=str,
)
def test_len(dataset: Any, arguments: Arguments) -> None:
    loader = hr.DataLoader(dataset, **arguments)
    assert len(loader) == len(torch_data.DataLoader(dataset, **arguments)) == len(list(loader))


def test_len_of_a_sampler_without_one() -> None:
    for cls in (torch_data.DataLoader, hr.DataLoader):
        with pytest.raises(TypeError, match="len"):
            len(cls(range(4), sampler=iter([1, 2])))


INVALID = [
    {"batch_size": 2, "batch_sampler": [[0]]},
    {"shuffle": True, "batch_sampler": [[0]]},
    {"sampler": [0], "batch_sampler": [[0]]},
    {"drop_last": True, "batch_sampler": [[0]]},
    {"sampler": [0], "shuffle": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 0},
    {"batch_size": -1},
    {"num_workers": -1},
    {"timeout": -1},
    {"prefetch_factor": 2},
    {"prefetch_factor": -1, "num_workers": 2},
    {"persistent_workers": True},
    {"multiprocessing_context": "fork"},
    {"multiprocessing_context": "no such method", "num_workers": 2},
    {"multiprocessing_context": 3, "num_workers": 2},
]


@pytest.mark.parametrize("arguments", INVALID, ids=str)
def test_arguments_that_exclude_one_another(arguments: Arguments) -> None:
    with pytest.raises((ValueError, TypeError)) as theirs:
        torch_data.DataLoader(range(4), **arguments)
    with pytest.raises(theirs.type):
        hr.DataLoader(range(4), **arguments)


@pytest.mark.parametrize("arguments", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}], ids=str)
def test_a_stream_has_an_order_of_its_own(arguments: Arguments) -> None:
    for cls in (torch_data.DataLoader, hr.DataLoader):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            cls(td.Stream(0, 4), **arguments)
    hr.DataLoader(td.Stream(0, 4), shuffle=False)


def test_shuffling_can_be_repeated() -> None:
    def run() -> list[list[int]]:
        return [batch.tolist() for batch in hr.DataLoader(td.Items(50, td.number), 5, shuffle=True, num_workers=2)]

    torch.manual_seed(3)
    first = run()
    assert run() != first
    torch.manual_seed(3)
    assert run() == first


def test_epochs_differ_and_can_be_repeated() -> None:
    def run() -> list[list[list[int]]]:
        generator = torch.Generator().manual_seed(2)
        loader = hr.DataLoader(td.Items(50, td.number), 5, shuffle=True, num_workers=2, generator=generator)
        return [[batch.tolist() for batch in epoch] for epoch in epochs(loader, 3)]

    first = run()
    assert len({str(epoch) for epoch in first}) == 3
    assert run() == first


def test_the_generators_of_a_worker_begin_as_in_pytorch() -> None:
    """And so do the numbers that each draws for its first sample."""

    def drawn(cls: Loaders) -> dict[int, tuple[float, ...]]:
        generator = torch.Generator().manual_seed(42)
        loader = cls(td.Drawn(), batch_size=None, num_workers=2, generator=generator)
        return {worker: tuple(numbers) for worker, *numbers in loader}

    theirs, ours = drawn(torch_data.DataLoader), drawn(hr.DataLoader)
    assert theirs[0] != theirs[1]
    assert ours
    assert ours == {worker: theirs[worker] for worker in ours}


def test_the_generators_of_the_main_process_stay_as_they_are() -> None:
    before = np.random.get_state()[1].copy()  # type: ignore[union-attr, index]
    for num_workers in (0, 2):
        list(hr.DataLoader(td.Items(8, td.number), num_workers=num_workers, shuffle=True))
    assert (np.random.get_state()[1] == before).all()  # type: ignore[union-attr, index]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_worker_draws_the_same_random_numbers_in_both_loaders(shuffle: bool) -> None:
    arguments: Arguments = {"batch_size": 2, "shuffle": shuffle, "num_workers": 1}
    torch.manual_seed(6)
    theirs = epochs(torch_data.DataLoader(td.Items(6, td.drawn), **arguments), 3)
    torch.manual_seed(6)
    ours = epochs(hr.DataLoader(td.Items(6, td.drawn), persistent_workers=False, **arguments), 3)
    assert_equal(ours, theirs, "epochs")
    assert len({float(number) for epoch in ours for batch in epoch for number in batch[1].flatten()}) == 3 * 6


def test_get_worker_info() -> None:
    assert torch_data.get_worker_info() is None
    assert hr_data.get_worker_info() is None
    assert {tuple(row[:4]) for row in hr.DataLoader(td.WhoAmI(), batch_size=None)} == {(-1, -1, -1, -1)}
    rows = list(hr.DataLoader(td.WhoAmI(3), batch_size=None, num_workers=3, multiprocessing_context="fork"))
    assert [row[5] for row in rows] == list(range(32))
    assert {row[0] for row in rows} == {0, 1, 2}
    assert {row[1] for row in rows} == {3}
    seeds = {row[0]: row[2] for row in rows}
    assert [seeds[worker] - seeds[0] for worker in range(3)] == [0, 1, 2]
    assert all(row[2] == row[3] for row in rows), "torch.initial_seed() is the worker's seed"
    assert len({row[4] for row in rows}) == 3
    assert os.getpid() not in {row[4] for row in rows}


@pytest.mark.parametrize("cls", [torch_data.DataLoader, hr.DataLoader])
def test_worker_init_fn(cls: Loaders) -> None:
    loader = cls(td.Items(6, td.number), batch_size=2, num_workers=2, worker_init_fn=td.prepare)
    assert [batch.tolist() for batch in loader] == [[0, -1], [-2, -3], [-4, -5]]


def test_worker_init_fn_that_fails() -> None:
    loader = hr.DataLoader(td.Items(6, td.number), batch_size=2, num_workers=2, worker_init_fn=td.refuse)
    with pytest.raises(PermissionError, match="does not start"):
        next(iter(loader))


CONTEXTS = ["fork", "forkserver", "spawn", multiprocessing.get_context("fork"), None]


@pytest.mark.parametrize("context", CONTEXTS, ids=["fork", "forkserver", "spawn", "object", "None"])
def test_multiprocessing_contexts(context: Any) -> None:
    loader = hr.DataLoader(
        td.Items(6, td.nested), batch_size=4, num_workers=1, multiprocessing_context=context, worker_init_fn=None
    )
    assert_equal(list(loader), list(torch_data.DataLoader(td.Items(6, td.nested), batch_size=4)))


def test_a_context_of_torch_multiprocessing() -> None:
    context = torch.multiprocessing.get_context("fork")
    loader = hr.DataLoader(td.Items(6, td.pair), batch_size=4, num_workers=1, multiprocessing_context=context)
    assert_equal(list(loader), list(torch_data.DataLoader(td.Items(6, td.pair), batch_size=4)))


def outcomes(loader: Any) -> list[Any]:
    """The batches; where one fails, its exception."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("more", [{}, {"collate_fn": td.sum_up}], ids=["default collation", "collate_fn"])
def test_an_error_takes_its_batch_and_no_other(num_workers: int, more: Arguments) -> None:
    dataset = td.Failing(20, 0, 5, 19)
    theirs = outcomes(torch_data.DataLoader(dataset, batch_size=4, num_workers=2, **more))
    ours = outcomes(hr.DataLoader(dataset, batch_size=4, num_workers=num_workers, **more))
    assert len(ours) == len(theirs) == 5
    for mine, their in zip(ours, theirs):
        if isinstance(their, Exception):
            assert type(mine) is type(their) is LookupError
            assert str(mine) in str(their)
        else:
            assert_equal(mine, their)


def test_an_error_says_which_sample_and_where() -> None:
    with pytest.raises(LookupError, match="no sample 5") as caught:
        list(hr.DataLoader(td.Failing(8, 5), batch_size=2, num_workers=2))
    cause = caught.value.__cause__
    assert cause is not None
    assert "index 5" in str(cause)
    assert "torch_datasets.py" in str(cause)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_timeout(persistent: bool) -> None:
    dataset = td.Sleepy(8, 1000, 2)
    loader = hr.DataLoader(dataset, batch_size=2, num_workers=1, timeout=1, persistent_workers=persistent)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 3]
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
        next(iterator)
    assert time.monotonic() - begin >= 1


@pytest.mark.parametrize("persistent", [False, True])
def test_more_workers_than_samples_and_an_epoch_left_in_its_middle(persistent: bool) -> None:
    loader = hr.DataLoader(td.Items(3, td.number), num_workers=5, persistent_workers=persistent)
    assert [batch.tolist() for batch in loader] == [[0], [3], [6]]
    children = {process.pid for process in multiprocessing.active_children()}
    iterator = iter(loader)
    assert next(iterator).tolist() == [0]
    children |= {process.pid for process in multiprocessing.active_children()}
    assert len(children) >= 5
    del iterator, loader
    gc.collect()
    assert_no_process(children)


@pytest.mark.parametrize("cls", [torch_data.DataLoader, hr.DataLoader])
def test_the_dataset_of_a_persistent_worker_is_not_reset(cls: Loaders) -> None:
    loader = cls(td.Counting(), batch_size=5, num_workers=1, persistent_workers=True)
    reads = [int(count) for _ in range(3) for _, counts in loader for count in counts]
    assert reads == list(range(1, 31))


def test_batches_as_they_become_ready() -> None:
    dataset = td.Sleepy(8, 1, 0)
    arguments: Arguments = {"num_workers": 2, "prefetch_factor": 4, "batch_size": 1, "in_order": False}
    theirs = [int(batch) for batch in torch_data.DataLoader(dataset, **arguments)]
    ours = [int(batch) for batch in hr.DataLoader(dataset, **arguments)]
    assert sorted(ours) == sorted(theirs) == list(range(0, 24, 3))
    assert theirs[0] != 0
    assert ours[-1] == 0, "the slow one holds up nothing"
    in_order = hr.DataLoader(dataset, **{**arguments, "in_order": True})
    assert [int(batch) for batch in in_order] == list(range(0, 24, 3))


def test_batches_can_be_written_to_and_kept() -> None:
    loader = hr.DataLoader(td.Items(40, td.tensor), batch_size=2, num_workers=2)
    kept = list(loader)
    for batch in kept:
        batch += 1
    assert_equal(kept, [batch + 1 for batch in torch_data.DataLoader(td.Items(40, td.tensor), batch_size=2)])


SCRIPT = Path(__file__).with_name("torch_script.py")


@pytest.mark.parametrize(
    ("context", "end"),
    [
        ("fork", "normal"),
        ("fork", "iterator kept"),
        ("fork", "iterator dropped"),
        ("fork", "workers killed"),
        ("fork", "loader killed"),
        ("spawn", "loader killed"),
    ],
)
def test_a_proper_exit(context: str, end: str, tmp_path: Path) -> None:
    """However the program ends, its workers end with it; killed workers do not end the program."""
    stderr = tmp_path / "stderr"
    with stderr.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), context, end], stdout=subprocess.PIPE, stderr=file, text=True
        )
    try:
        assert process.stdout is not None
        workers: set[int | None] = {int(pid) for pid in process.stdout.readline().split()}
        assert len(workers) == 2, stderr.read_text()
        if end == "loader killed":
            process.kill()
        output = process.stdout.read()
        process.wait(100)
    finally:
        process.kill()
    errors = stderr.read_text()
    assert process.returncode == (-signal.SIGKILL if end == "loader killed" else 0), errors
    assert "Traceback" not in errors
    if end in ("normal", "workers killed"):
        assert output.split() == [str(i) for i in range(60)]
    assert ("RuntimeWarning" in errors) == (end == "workers killed"), errors
    assert_no_process(workers)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 3},
        {"batch_size": 3, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 3, "collate_fn": td.as_it_is},
    ],
    ids=", ".join,
)
@pytest.mark.parametrize(
    "dataset",
    [
        td.Stream(2, 20),
        td.Stream(2, 20, share=False),
        td.Stream(0, 4),
        td.UnequalStream(),
        torch_data.ChainDataset([td.Stream(0, 7), td.Stream(20, 25)]),
    ],
    ids=["shared", "repeated", "short", "unequal", "ChainDataset"],
)
def test_the_same_batches_of_a_stream(dataset: Any, arguments: Arguments, num_workers: int) -> None:
    arguments = {**arguments, "num_workers": num_workers}
    theirs = list(torch_data.DataLoader(dataset, **arguments))
    loader = hr.DataLoader(dataset, **arguments)
    assert_equal(epochs(loader), [theirs, theirs])


def test_a_stream_that_several_workers_would_repeat() -> None:
    """PyTorch's own streams are repeated by each worker, as in PyTorch; the engine shards ours."""

    class Numbers(hr_data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(10))

    loader = hr.DataLoader(Numbers(), batch_size=3, num_workers=2)
    assert sorted(int(i) for batch in loader for i in batch) == list(range(10))


def test_len_of_a_stream() -> None:
    for arguments in ({"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}):
        for cls in (torch_data.DataLoader, hr.DataLoader):
            assert len(cls(td.MeasuredStream(0, 10), **arguments)) == {3: 4, None: 10}[arguments["batch_size"]] - bool(
                arguments.get("drop_last")
            )
            with pytest.raises(TypeError, match="len"):
                len(cls(td.Stream(0, 10), **arguments))
