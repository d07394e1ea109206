"""headrace.torch.DataLoader beside PyTorch's own: the same batches, orders, attributes, errors and warnings."""

from __future__ import annotations

import collections.abc
import copy
import faulthandler
import fractions
import os
import pickle
import random
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace.data import DataLoader as HeadraceLoader  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402
from headrace.torch._arguments import backing_of  # noqa: E402

TorchLoader = torch_data.DataLoader


def assert_same(got: Any, expected: Any, where: str = "batch") -> None:
    """The same types, dtypes, shapes, layouts and values, all the way down."""
    assert type(got) is type(expected), f"{where}: {type(got)} instead of {type(expected)}"
    if isinstance(expected, torch.Tensor):
        assert (got.dtype, got.layout) == (expected.dtype, expected.layout), where
        assert expected.is_nested or got.shape == expected.shape, where
        if expected.is_nested:
            for mine, theirs in zip(got.unbind(), expected.unbind()):
                assert_same(mine, theirs, where)
        else:
            mine, theirs = (t.to_dense() if t.layout != torch.strided else t for t in (got, expected))
            mine, theirs = (t.dequantize() if t.is_quantized else t for t in (mine, theirs))
            assert torch.equal(mine, theirs), f"{where}: {got} instead of {expected}"
    elif isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, where
        np.testing.assert_array_equal(got, expected, where)
    elif hasattr(expected, "keys"):
        assert list(got) == list(expected), where
        for key in expected:
            assert_same(got[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, (list, tuple, collections.UserList)):
        assert len(got) == len(expected), f"{where}: {got} instead of {expected}"
        for i, (mine, theirs) in enumerate(zip(got, expected)):
            assert_same(mine, theirs, f"{where}[{i}]")
    else:
        assert got == expected, where


class Point(NamedTuple):
    x: Any
    name: str


class Attributes(dict):  # type: ignore[type-arg]
    """A mapping with something to it that is no item."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.note = "note"


def tensors(i: int) -> Any:
    return torch.full((2, 3), float(i))


def pairs(i: int) -> Any:
    return np.full(3, i, np.int16), i


def numbers(i: int) -> Any:
    return {"int": i, "float": i / 2, "bool": i % 2 == 0, "numpy": np.float64(i), "small": np.int8(i)}


def texts(i: int) -> Any:
    return f"text {i}", {"text": f"{i}", "bytes": b"%d" % i}, [str(i), 1.0], Point(torch.tensor(i), f"point {i}")


def mappings(i: int) -> Any:
    return collections.OrderedDict(a=i, b=[i]), Attributes({"c": torch.tensor([i])}), collections.UserList([i, i])


def some_texts(i: int) -> Any:
    return ("text", i) if i % 3 else (i, "text")


def nothing(i: int) -> Any:
    return (i, None) if i == 5 else (i, 0)


def objects(i: int) -> Any:
    return fractions.Fraction(1, 3) if i == 5 else i


def shapes(i: int) -> Any:
    return torch.zeros(i)


def complexes(i: int) -> Any:
    return complex(i, 1)


def nested_sample(i: int) -> Any:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def sparse_sample(i: int) -> Any:
    return {"x": torch.eye(3).to_sparse(), "y": i}


def drawn(i: int) -> Any:
    return torch.rand(()), random.random(), np.random.random()


class Made(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __init__(self, make: Any, length: int = 11) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Stream(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Shared out among workers as PyTorch's documentation does."""

    def __init__(self, make: Any, length: int = 11, said: int | None = None) -> None:
        self.make, self.length, self.said = make, length, said

    def __iter__(self) -> Iterator[Any]:
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.make(i) for i in range(first, self.length, step))

    def __len__(self) -> int:
        if self.said is None:
            raise TypeError("no length")
        return self.said


def keep(samples: list[Any]) -> Any:
    """A batch of everything that a collate function may make."""
    return samples, np.arange(3), torch.arange(3), "text", (1, 2.0), {"first": samples[0]}


class Table(collections.abc.Mapping):  # type: ignore[type-arg]
    """A mapping that is none to torch: like a TensorDict, it iterates over its rows."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    @classmethod
    def __torch_function__(cls, *arguments: Any) -> Any:
        return NotImplemented

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return self.columns[index]
        return Table({name: column[index] for name, column in self.columns.items()})

    def __getitems__(self, indices: list[int]) -> Any:
        return self[indices]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def __len__(self) -> int:
        return len(self.columns["x"])


def as_is(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mapping_that_is_a_tensor_to_torch_stays_whole(workers: int) -> None:
    table = Table({"x": torch.arange(10.0), "y": torch.arange(20).view(10, 2)})
    arguments: dict[str, Any] = {"batch_size": 4, "num_workers": workers, "collate_fn": as_is}
    for dataset in (table, list(table)):
        got, expected = (list(kind(dataset, **arguments)) for kind in (DataLoader, TorchLoader))
        if dataset is not table:
            got, expected = ([row for batch in batches for row in batch] for batches in (got, expected))
        assert {type(each) for each in got} == {Table}
        assert_same([each.columns for each in got], [each.columns for each in expected])


def nested(samples: list[Any]) -> Any:
    return torch.nested.nested_tensor([torch.ones(int(s.sum()) % 3 + 1) for s in samples], layout=torch.jagged)


def sparse(samples: list[Any]) -> Any:
    return torch.stack(samples).to_sparse()


def quantized(samples: list[Any]) -> Any:
    return torch.quantize_per_tensor(torch.stack(samples), 0.1, 0, torch.qint8)


def outcome(loader_class: Any, dataset: Any, count: int, **arguments: Any) -> Any:
    """The batches of some epochs, or the type of what is raised."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    try:
        loader = loader_class(dataset, **arguments)
        return [list(loader) for _ in range(count)], torch.rand(())
    except Exception as error:
        return type(error), str(error)[:20] if arguments.get("num_workers", 0) == 0 else ""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse invariant checks")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        *(tensors, pairs, numbers, texts, mappings, some_texts, nothing, objects, shapes, complexes),
        *(nested_sample, sparse_sample),
    ],
    ids=lambda make: make.__name__,
)
def test_batches_are_those_of_pytorch(make: Any, workers: int) -> None:
    for arguments in ({"batch_size": 4}, {"batch_size": None}):
        got = outcome(DataLoader, Made(make), 1, num_workers=workers, **arguments)
        expected = outcome(TorchLoader, Made(make), 1, num_workers=workers, **arguments)
        assert_same(got, expected)


MANY: dict[str, Any] = {
    "floats": lambda i: [float(i)] * 3000,
    "dict": lambda i: {k: torch.full((2,), i + k) for k in range(3000)},
    "half": lambda i: {"a": [torch.full((k % 3,), i, dtype=torch.bfloat16) for k in range(2000)], "b": f"text {i}"},
    "nested": lambda i: [[i, float(k)] for k in range(1500)],
    "13 dimensions": lambda i: torch.full((1, 2) + (1,) * 11, i),
}


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("name", MANY)
def test_samples_of_many_parts_are_collated_as_by_pytorch(name: str, workers: int) -> None:
    dataset = Made(MANY[name])
    expected = list(TorchLoader(dataset, batch_size=4))
    assert_same(list(DataLoader(dataset, batch_size=4, num_workers=workers)), expected)
    if workers == 1:
        alone = next(iter(DataLoader(dataset, batch_size=4, num_workers=1)))
        while not isinstance(alone, torch.Tensor):
            alone = next(iter(alone.values())) if isinstance(alone, dict) else alone[0]
        assert alone.untyped_storage().nbytes() == alone.nbytes


ROWS = np.arange(12.0).reshape(3, 4)


def unlike(first: Any, other: Any) -> Any:
    """Samples of which the first of each batch of four is of another kind."""
    return lambda i: first(i) if i % 4 == 0 else other(i)


UNLIKE: dict[str, Any] = {
    "tensor, then array": unlike(lambda i: torch.tensor(ROWS), lambda i: ROWS),
    "array, then tensor": unlike(lambda i: ROWS, lambda i: torch.tensor(ROWS)),
    "scalar tensor, then int": unlike(torch.tensor, lambda i: i),
    "int, then scalar tensor": unlike(lambda i: i, torch.tensor),
    "int, then bool": unlike(lambda i: i, lambda i: i > 2),
    "double, then int": unlike(np.float64, lambda i: i),
    "tuple, then list": unlike(lambda i: (i, 1), lambda i: [i, 1]),
    "array, then masked": unlike(lambda i: np.ones(2), lambda i: np.ma.array([1.0, 2.0], mask=[False, True])),
    "some require a gradient": unlike(lambda i: torch.ones(2), lambda i: torch.ones(2, requires_grad=True)),
    "all require a gradient": lambda i: torch.full((2,), float(i), requires_grad=True),
    "unsigned scalars": np.uint64,
    "unsigned arrays": lambda i: np.full(2, i, np.uint64),
    "reversed": lambda i: (ROWS + i)[::-1],
    "some reversed": unlike(lambda i: ROWS, lambda i: ROWS[::-1]),
    "unaligned": lambda i: np.zeros(2, [("a", "u1"), ("b", "f4")])["b"],
    "too large": lambda i: 2**63 + i,
    "too large at times": unlike(lambda i: i, lambda i: 2**63),
    "half complex": lambda i: torch.full((2,), i, dtype=torch.complex32),
    "meta": lambda i: torch.empty(2, device="meta"),
    "conjugate": lambda i: torch.tensor([1j * i, 2.0]).conj(),
    "channels last": lambda i: (torch.arange(24.0).reshape(1, 2, 3, 4) + i).to(memory_format=torch.channels_last)[0],
    "one attribute": lambda i: {"a": i, "b": (np.float32(i), "x")},
}


def test_a_worker_makes_no_arrays_of_tensors_that_say_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = Made(lambda i: (torch.full((2, 3), float(i)), torch.tensor(i)), length=100)
    expected = list(TorchLoader(dataset, batch_size=4))
    calls = tmp_path / "calls"
    array_of = torch.Tensor.numpy

    def numpy(tensor: Any, **options: Any) -> Any:
        with calls.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return array_of(tensor, **options)

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    batches = list(DataLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context="fork"))
    monkeypatch.undo()
    assert_same(batches, expected)
    made = [int(process) for process in calls.read_text().split()]
    arrays = len(made) - made.count(os.getpid())
    # Some are made to see what samples look like.
    assert arrays < 20 if hasattr(torch.Tensor, "__dlpack_c_exchange_api__") else arrays >= 200


def fate(loader_class: Any, make: Any, workers: int) -> Any:
    """The batches, with what ``assert_same`` cannot compare in a form that it can; or the type of what is raised."""
    try:
        batches = list(loader_class(Made(make), batch_size=4, num_workers=workers))
    except Exception as error:
        return type(error)
    if isinstance(batches[0], torch.Tensor) and batches[0].device.type == "meta":
        return [(batch.shape, batch.device) for batch in batches]
    half = isinstance(batches[0], torch.Tensor) and batches[0].dtype == torch.complex32
    return [torch.view_as_real(batch) for batch in batches] if half else batches


# Tensors of two numbers that are not what they look like, or not where.
TENSORS: dict[str, Any] = {
    "a step apart": lambda i: (torch.arange(4.0) + i)[::2],
    "one number": lambda i: torch.tensor(float(i)).expand(2),
    "in the middle": lambda i: (torch.arange(4.0) + i)[1:3],
    "negative": lambda i: torch.tensor([1j * i, 2j]).conj().imag,
    "conjugate": lambda i: torch.tensor([1j * i, 2.0]).conj(),
    "sparse": lambda i: torch.tensor([float(i), 0.0]).to_sparse(),
    "compressed": lambda i: torch.full((1, 2), i + 1.0).to_sparse_csr(),
    "quantized": lambda i: torch.quantize_per_tensor(torch.full((2,), float(i)), 1.0, 0, torch.qint8),
    "elsewhere": lambda i: torch.empty(2, device="meta"),
    "parameter": lambda i: torch.nn.Parameter(torch.full((2,), float(i))),
    "gradient wanted": lambda i: torch.full((2,), float(i), requires_grad=True),
    "doubles": lambda i: torch.full((2,), float(i), dtype=torch.float64),
    "integers": lambda i: torch.full((2,), i, dtype=torch.int32),
    "brain floats": lambda i: torch.full((2,), i, dtype=torch.bfloat16),
    "a row": lambda i: torch.full((1, 2), float(i)),
    "longer": lambda i: torch.full((3,), float(i)),
    "empty": lambda i: torch.empty(0),
    "same": lambda i: torch.full((2,), float(i)),
}
UNLIKE |= {f"{name} after plain tensors": unlike(TENSORS["same"], make) for name, make in TENSORS.items()}
# Not before them: PyTorch 2.6 itself cannot send such a batch.
UNLIKE["zeros without memory after plain tensors"] = unlike(TENSORS["same"], lambda i: torch._efficientzerotensor(2))
UNLIKE |= {f"{name} before plain tensors": unlike(make, TENSORS["same"]) for name, make in TENSORS.items()}
UNLIKE |= {f"all {name}": make for name, make in TENSORS.items()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNLIKE)
def test_samples_that_are_unlike_fare_as_with_pytorch_whoever_makes_them(name: str) -> None:
    expected = {workers: fate(TorchLoader, UNLIKE[name], workers) for workers in (0, 1)}
    for workers in (0, 1, 2, 4):
        got = fate(DataLoader, UNLIKE[name], workers)
        if isinstance(expected[min(workers, 1)], type):
            assert got is expected[min(workers, 1)], workers
        else:
            assert_same(got, expected[min(workers, 1)])


def test_a_loader_and_its_iterator_have_short_representations() -> None:
    loader = DataLoader(Made(pairs), batch_size=4, drop_last=True)
    assert repr(loader) == "DataLoader(Made, batch_size=4, drop_last=True)"
    assert repr(iter(loader)) == "<Batches at batch 0>"


def test_another_seed_records_than_a_flag_is_refused() -> None:
    with pytest.raises(ValueError, match="seed_records must be True, False"):
        DataLoader(Made(pairs), seed_records="positon")  # type: ignore[arg-type]


def test_threads_that_would_not_repeat_are_refused() -> None:
    with pytest.raises(ValueError, match="seed_records=False"):
        list(DataLoader(Made(drawn), batch_size=4, num_workers=2, threads_per_worker=4))
    loader = DataLoader(Made(pairs), batch_size=4, num_workers=2, threads_per_worker=4, seed_records=False)
    assert len(list(loader)) == len(loader)


def test_each_thread_of_a_worker_has_batches_to_make() -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "threads_per_worker": 4, "seed_records": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Made(pairs), collate_fn=keep, **arguments)
        assert len(list(loader)) == len(loader)
        assert loader.stats()["prefetch"] == 16


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [keep, nested, sparse, quantized], ids=lambda collate: collate.__name__)
@pytest.mark.filterwarnings("ignore")
def test_what_collate_fn_makes_arrives(collate: Any, workers: int) -> None:
    # PyTorch's own workers lose what a quantized tensor was quantized with.
    expected = outcome(TorchLoader, Made(tensors), 1, batch_size=4, collate_fn=collate)
    got = outcome(DataLoader, Made(tensors), 1, batch_size=4, collate_fn=collate, num_workers=workers)
    assert_same(got[0], expected[0])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_is_that_of_pytorch(workers: int) -> None:
    for arguments in ({"batch_size": 3}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}):
        for make in (texts, drawn):
            got, expected = (outcome(cls, Stream(make), 2, num_workers=workers, **arguments) for cls in CLASSES)
            assert_same(got, expected)


CLASSES = (DataLoader, TorchLoader)


def orders() -> dict[str, Any]:
    """What decides an order, anew for each loader."""
    return {
        "shuffled": {"shuffle": True, "batch_size": 4},
        "generator": {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
        "replacement": {"sampler": torch_data.RandomSampler(range(11), replacement=True, num_samples=7)},
        "sampler": {"sampler": torch_data.RandomSampler(range(11)), "batch_size": None},
        "subset": {"sampler": torch_data.SubsetRandomSampler(range(3, 9)), "batch_size": 2},
        "lists": {"batch_sampler": [[3, 1], [2], [7, 8, 9]]},
        "distributed": {"sampler": torch_data.DistributedSampler(range(11), 2, 1), "drop_last": True, "batch_size": 2},
    }


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", sorted(orders()))
def test_orders_are_those_of_pytorch_epoch_after_epoch(order: str, workers: int) -> None:
    got, expected = (outcome(cls, Made(pairs), 3, num_workers=workers, **orders()[order]) for cls in CLASSES)
    assert_same(got, expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentations_are_those_of_pytorch_where_one_process_makes_them(workers: int) -> None:
    arguments = {"shuffle": True, "batch_size": 4, "num_workers": workers}
    got, expected = (outcome(cls, Made(drawn), 2, **arguments) for cls in CLASSES)
    assert_same(got, expected)


def drawn_and_odd(i: int) -> Any:
    return torch.rand(()), fractions.Fraction(1, 3) if i == 5 else i, "text" if i % 2 else None


def keep_all(samples: list[Any]) -> Any:
    return samples


class Subclass(torch.Tensor):
    pass


def drawn_subclass(i: int) -> Any:
    return torch.rand(2).as_subclass(Subclass)


@pytest.mark.parametrize("collate", [None, keep_all])
def test_a_worker_alone_draws_for_each_sample_once(collate: Any) -> None:
    for make in (drawn_subclass, drawn_and_odd) if collate else (drawn_subclass,):
        arguments = {"batch_size": 4, "num_workers": 1, "collate_fn": collate}
        got, expected = (outcome(cls, Made(make), 2, **arguments) for cls in CLASSES)
        first, second = ([[str(batch) for batch in epoch] for epoch in each[0]] for each in (got, expected))
        assert first == second


def random_batch(samples: list[Any]) -> Any:
    return samples, torch.rand(2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("collate", [None, random_batch])
def test_augmentations_repeat_whatever_worker_makes_them(persistent: bool, collate: Any) -> None:
    arguments = {"shuffle": True, "batch_size": 4, "persistent_workers": persistent, "collate_fn": collate}
    first, second, other = (outcome(DataLoader, Made(drawn, 40), 2, num_workers=n, **arguments) for n in (2, 2, 3))
    assert_same(first, second)
    assert_same(first, other)
    values = [float(sample[0]) for epoch in first[0] for sample in Flat(epoch)]
    assert len(set(values)) == len(values)


def seed_all_alike(worker: int) -> None:
    torch.manual_seed(12345)


def seed_by_worker(worker: int) -> None:
    random.seed(torch.initial_seed() % 2**32)
    np.random.seed(7 + worker)


def seeds_and_worker(i: int) -> Any:
    info = torch_data.get_worker_info()
    return torch.initial_seed(), info.id, info.seed == torch.initial_seed()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("collate", [None, random_batch])
@pytest.mark.parametrize("seed", [seed_all_alike, seed_by_worker])
def test_what_worker_init_fn_seeds_is_drawn_from(seed: Any, collate: Any, persistent: bool) -> None:
    arguments = {"shuffle": True, "batch_size": 3, "persistent_workers": persistent, "collate_fn": collate}
    mine, theirs = (
        outcome(cls, Made(drawn, 40), 2, num_workers=3, worker_init_fn=seed, **arguments) for cls in CLASSES
    )
    assert_same(mine, theirs)


def test_with_worker_init_fn_each_worker_makes_the_batches_that_pytorchs_would() -> None:
    arguments = {"batch_size": 4, "num_workers": 3, "worker_init_fn": seed_by_worker, "prefetch_factor": 3}
    mine, theirs = (outcome(cls, Made(seeds_and_worker, 50), 1, **arguments) for cls in CLASSES)
    assert_same(mine, theirs)
    loader = DataLoader(Made(seeds_and_worker, 8), batch_size=4, num_workers=2, worker_init_fn=seed_all_alike)
    assert [batch[0].tolist() for batch in loader] == [[12345] * 4] * 2


class Flat:
    """The samples of an epoch, however they are collated."""

    def __init__(self, epoch: Any) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for batch in self.epoch:
            yield from batch[0] if isinstance(batch[0], list) else zip(*batch)


def test_generators_are_left_alone_where_nothing_is_drawn() -> None:
    held = torch_data.TensorDataset(torch.arange(24))
    parts = torch_data.ConcatDataset([held, torch_data.Subset(held, range(5))])
    mixed = torch_data.ConcatDataset([held, Made(drawn)])
    for dataset, collate, seeds in ((held, None, False), (parts, None, False), (mixed, None, True), (held, len, True)):
        loader = DataLoader(dataset, num_workers=2, collate_fn=collate)
        assert bool(backing_of(loader).loader(loader).seed_records) is seeds


def test_seeds_of_samples_look_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeding a GPU's generator takes long, and the program's own draws there must go on as they were."""
    calls: list[Any] = []
    monkeypatch.setattr(torch.random, "manual_seed", calls.append)
    monkeypatch.setattr(torch, "manual_seed", calls.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", calls.append)
    before = torch.get_rng_state()
    batches = list(HeadraceLoader(Made(drawn), 4, seed=1, seed_records=True))
    assert_same(batches, list(HeadraceLoader(Made(drawn), 4, seed=1, seed_records=True)))
    assert torch.equal(torch.get_rng_state(), before)
    assert calls == []


def test_the_warning_that_nobody_shares_the_samples_out_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.data._world._warned", False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.warns(RuntimeWarning, match=r"one of 2.*pass shard=\(rank, 2\), drop_last=True") as caught:
        list(DataLoader(range(4)))
    assert [each.filename for each in caught] == [__file__]


def test_a_random_order_is_not_shared_out_without_a_seed() -> None:
    with pytest.raises(ValueError, match="shard with shuffle needs a seed"):
        DataLoader(Made(tensors), shuffle=True, shard=(0, 2))
    shares = [DataLoader(Made(numbers, 10), shuffle=True, shard=(rank, 2), seed=4) for rank in range(2)]
    assert sorted(int(batch["int"]) for share in shares for batch in share) == list(range(10))


def test_a_record_that_comes_twice_is_drawn_anew() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Made(drawn), sampler=[4] * 20, batch_size=5, num_workers=2)
    values = torch.cat([batch[0] for batch in loader])
    assert len(values.unique()) == 20


def test_it_is_one_of_pytorchs_loaders_and_says_so() -> None:
    arguments = {"batch_size": 3, "shuffle": True, "num_workers": 2, "prefetch_factor": 4, "timeout": 7}
    mine, theirs = (cls(Made(tensors), **arguments) for cls in CLASSES)
    assert isinstance(mine, TorchLoader)
    names = ["batch_size", "num_workers", "prefetch_factor", "timeout", "drop_last", "pin_memory", "generator"]
    names += ["persistent_workers", "collate_fn", "worker_init_fn", "multiprocessing_context", "_auto_collation"]
    names += ["in_order", "pin_memory_device"]
    for name in names:
        assert getattr(mine, name) == getattr(theirs, name), name
    for name in ("sampler", "batch_sampler", "_index_sampler"):
        assert type(getattr(mine, name)) is type(getattr(theirs, name)), name
    assert mine.sampler is mine.sampler
    assert len(mine) == len(theirs) == 4
    assert DataLoader[Any].__origin__ is DataLoader
    with pytest.raises(ValueError, match="batch_size attribute should not be set after DataLoader is initialized"):
        mine.batch_size = 4


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_too_many_workers_are_a_warning() -> None:
    for cls in CLASSES:
        with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
            assert cls(Made(tensors), num_workers=1000).num_workers == 1000


@pytest.mark.filterwarnings("ignore:This DataLoader will create 600")
def test_more_workers_than_there_can_be_are_refused_when_they_are_to_start() -> None:
    loader = DataLoader(Made(tensors), num_workers=600)
    with pytest.raises(ValueError, match="num_workers must be from 0 to 512, got 600"):
        iter(loader)


def test_a_seed_and_a_generator_exclude_one_another() -> None:
    for arguments in ({}, {"shuffle": True}, {"num_workers": 1}):
        with pytest.raises(ValueError, match="generator excludes seed"):
            DataLoader(Made(tensors), generator=torch.Generator(), seed=5, **arguments)


@pytest.mark.parametrize("workers", [False, True])
def test_a_flag_is_a_number_of_workers_as_with_pytorch(workers: bool) -> None:
    mine, theirs = (list(kind(range(6), batch_size=4, num_workers=workers)) for kind in (DataLoader, TorchLoader))
    assert_same(mine, theirs)


def test_a_timeout_without_workers_is_an_error_as_with_pytorch() -> None:
    for cls in CLASSES:
        loader = cls(Made(tensors), timeout=3)
        with pytest.raises(AssertionError, match="timeout" if cls is DataLoader else None):  # PyTorch 2.6 says nothing
            iter(loader)


def own_process(i: int) -> Any:
    return torch_data.get_worker_info().id, os.getpid()


def test_the_workers_are_where_programs_look_for_them() -> None:
    batches = iter(DataLoader(Made(own_process), batch_size=2, num_workers=2))
    workers = batches._workers
    for ids, pids in batches:
        assert pids.tolist() == [workers[i].pid for i in ids.tolist()]
    for worker in workers:
        worker.join(100)
        assert worker.exitcode is not None
    assert list(iter(DataLoader(Made(tensors)))._workers) == []


def die(i: int) -> Any:
    if i == 2:
        faulthandler.disable()  # which would write a stack trace among the tests' results
        os.kill(os.getpid(), signal.SIGSEGV)
    return i


def leave(i: int) -> Any:
    os._exit(3)


def leave_at_start(worker: int) -> None:
    os._exit(3)


SEGFAULT = r"DataLoader worker \(pid \d+\) is killed by signal: Segmentation fault"
EXIT = r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"


@pytest.mark.filterwarnings("ignore:.*worker")
@pytest.mark.parametrize(
    ("make", "init", "text"), [(die, None, SEGFAULT), (leave, None, EXIT), (tensors, leave_at_start, EXIT)]
)
def test_the_death_of_workers_is_reported_as_pytorch_does(make: Any, init: Any, text: str) -> None:
    loader = DataLoader(Made(make), num_workers=1, max_deaths_per_sample=1, worker_init_fn=init)
    with pytest.raises(RuntimeError, match=text):
        list(loader)


class Mortal(Made):
    """Kills its worker the first time that it makes sample 6."""

    def __init__(self, make: Any, length: int, mark: Path) -> None:
        super().__init__(make, length)
        self.mark = mark

    def __getitem__(self, index: int) -> Any:
        if index == 6 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:worker")
@pytest.mark.parametrize("arguments", [{"num_workers": 1}, {"num_workers": 2, "worker_init_fn": seed_by_worker}])
def test_a_worker_in_place_of_another_has_a_seed_of_its_own(arguments: dict[str, Any], tmp_path: Path) -> None:
    loader = DataLoader(Mortal(seeds_and_worker, 24, tmp_path / "mark"), batch_size=2, seed=7, **arguments)
    seeds, workers, agree = (torch.cat(column) for column in zip(*loader))
    assert agree.all()
    replaced = int(workers[6])
    assert seeds[workers == replaced].unique().tolist() == sorted({int(seeds[2 * replaced]), int(seeds[6])})
    assert len(seeds.unique()) == loader.num_workers + 1
    loader = DataLoader(Mortal(drawn, 24, tmp_path / "another"), batch_size=2, seed=7, **arguments)
    numbers = [float(number) for batch in loader for number in batch[0]]
    assert len(set(numbers)) == len(numbers) == 24


def invalid() -> list[Any]:
    made, stream = Made(tensors), Stream(tensors)
    return [
        (made, {"num_workers": -1}),
        (made, {"timeout": -1}),
        (made, {"prefetch_factor": 2}),
        (made, {"persistent_workers": True}),
        (made, {"multiprocessing_context": "fork"}),
        (made, {"multiprocessing_context": "thread", "num_workers": 1}),
        (made, {"multiprocessing_context": object(), "num_workers": 1}),
        (made, {"sampler": [1], "shuffle": True}),
        (made, {"batch_sampler": [[1]], "batch_size": 2}),
        (made, {"batch_size": None, "drop_last": True}),
        (made, {"batch_size": 0}),
        (stream, {"shuffle": True}),
        (stream, {"sampler": [1]}),
        (stream, {"batch_sampler": [[1]]}),
    ]


@pytest.mark.parametrize("number", range(14))
def test_bad_arguments_raise_what_pytorch_raises(number: int) -> None:
    dataset, arguments = invalid()[number]
    raised = []
    for cls in CLASSES:
        with pytest.raises((TypeError, ValueError)) as caught:
            cls(dataset, **arguments)
        raised.append((type(caught.value), str(caught.value).partition(" object at")[0]))
    assert raised[0] == raised[1]


def test_attributes_that_pytorch_lets_change_take_effect_at_the_next_epoch() -> None:
    loader = DataLoader(Made(tensors, 4), batch_size=2, num_workers=1)
    assert_same(next(iter(loader)), torch.stack([tensors(0), tensors(1)]))
    loader.collate_fn = len
    assert list(loader) == [2, 2]
    loader.num_workers = 0
    assert list(loader) == [2, 2]


def test_a_loader_that_was_made_for_workers_goes_on_without_them() -> None:
    loader = DataLoader(
        Made(tensors, 4), 2, num_workers=1, multiprocessing_context="fork", prefetch_factor=3, persistent_workers=True
    )
    expected = list(loader)
    loader.num_workers = 0
    assert_same(list(loader), expected)


def test_a_prefetch_factor_that_is_no_integer_is_refused_as_it_was_given() -> None:
    with pytest.raises(TypeError, match=r"prefetch_factor must be an integer, got 2\.5"):
        DataLoader(range(4), num_workers=2, prefetch_factor=2.5)  # type: ignore[arg-type]


def test_a_number_of_workers_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"num_workers.*'auto'.*headrace\.DataLoader"):
        DataLoader([1, 2], num_workers="auto")  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_in_another_loader(workers: int) -> None:
    def loader() -> DataLoader:
        generator = torch.Generator().manual_seed(2)
        return DataLoader(Made(pairs), 2, shuffle=True, num_workers=workers, generator=generator)

    first = loader()
    batches = iter(first)
    before = [next(batches) for _ in range(2)]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    rest = list(batches)
    assert len(before) + len(rest) == 6
    second = loader()
    second.load_state_dict(state)
    assert_same(list(second), rest)


@pytest.mark.parametrize("order", [{}, {"shuffle": True, "seed": 3}, {"shard": (1, 2)}], ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_copy_goes_on_by_itself(order: dict[str, Any], workers: int) -> None:
    loader = DataLoader(Made(numbers, 20), 2, num_workers=workers, **order)
    epochs = [list(loader) for _ in range(3)]
    loader.set_epoch(0)
    batches = iter(loader)
    next(batches)
    copies = [copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
    for other in copies:
        assert_same(list(other), epochs[0][1:])
        other.set_epoch(2)
        other.num_workers = 0
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 1)
        assert_same(list(other), epochs[2])
    assert_same([*batches, *loader], [*epochs[0][1:], *epochs[1]])


@pytest.mark.parametrize("workers", [0, 2])
def test_more_samples_than_a_stream_has_said_are_a_warning(workers: int) -> None:
    texts = []
    for cls in CLASSES:
        loader = cls(Stream(tensors, 11, said=4), batch_size=2, num_workers=workers)
        assert len(loader) == 2
        with pytest.warns(UserWarning, match="was reported to be 4") as caught:
            assert len(list(loader)) == 6
        messages = [str(each.message) for each in caught if each.category is UserWarning]
        texts.append([message.partition(" have been fetched")[0].partition("reported")[2] for message in messages])
    assert texts[0] == texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(Stream(tensors, 11, said=11), batch_size=2)
        assert len(loader) == len(list(loader))


@pytest.mark.filterwarnings("ignore")
def test_datapipes_are_shuffled_and_shared_out() -> None:
    wrapper = pytest.importorskip("torch.utils.data.datapipes.iter").IterableWrapper
    pipe = wrapper(range(20)).shuffle().sharding_filter()
    loader = DataLoader(pipe, batch_size=2, shuffle=True, num_workers=2)
    values = torch.cat(list(loader)).tolist()
    assert sorted(values) == list(range(20)) != values
    with pytest.raises(TypeError, match="DataPipes"):
        loader.state_dict()


@pytest.mark.filterwarnings("ignore")
def test_the_loader_that_cannot_shard_a_datapipe_names_the_one_that_can() -> None:
    wrapper = pytest.importorskip("torch.utils.data.datapipes.iter").IterableWrapper
    pipe = wrapper(range(20)).sharding_filter()
    with pytest.raises(TypeError, match=r"headrace\.torch\.DataLoader"):
        HeadraceLoader(pipe, batch_size=2, num_workers=2)
    assert torch.cat(list(HeadraceLoader(pipe, batch_size=2))).tolist() == list(range(20))


def test_a_hugging_face_dataset_gives_tensors() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = datasets.Dataset.from_dict(
        {"x": [[i, i + 1] for i in range(6)], "y": list(range(6)), "text": list("abcdef")}
    )
    for workers in (0, 2):
        arguments = {"batch_size": 4, "num_workers": workers}
        assert_same(*(outcome(cls, rows, 1, **arguments) for cls in CLASSES))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", sorted(orders()))
def test_iterators_that_nobody_reads_or_reads_late_change_no_order(order: str, workers: int) -> None:
    epochs = []
    for cls in CLASSES:
        torch.manual_seed(3)
        loader = cls(Made(pairs), num_workers=workers, **orders()[order])
        iter(loader)
        first = list(loader)
        late = iter(loader)
        torch.rand(3)  # the weights of a model, say
        epochs.append((first, list(late), list(loader), torch.rand(())))
    assert_same(*epochs)


@pytest.mark.parametrize("cls", [DataLoader, HeadraceLoader])
def test_set_epoch_chooses_an_order_only_with_a_seed(cls: Any) -> None:
    def orders(**arguments: Any) -> list[list[int]]:
        torch.manual_seed(0)
        loader = cls(range(100), batch_size=100, shuffle=True, **arguments)
        found = []
        for _ in range(2):
            loader.set_epoch(3)
            found += [batch.tolist() for batch in loader]
        return found

    first, second = orders(seed=5)
    assert first == second
    for arguments in ({}, {"generator": torch.Generator()}):
        first, second = orders(**arguments)
        assert first != second


def test_refresh_shows_what_cannot_be_seen() -> None:
    class Hidden:
        value = 1  # of a class, which no comparison looks into

    loader = DataLoader(Made(lambda i: Hidden.value, 1), num_workers=1, persistent_workers=True)
    assert_same(list(loader), [torch.tensor([1])])
    Hidden.value = 2
    assert_same(list(loader), [torch.tensor([1])])
    loader.refresh()
    assert_same(list(loader), [torch.tensor([2])])
