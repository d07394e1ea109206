"""num_workers=0 is plain Python: what the dataset and the collate function make arrives unchanged."""

from __future__ import annotations

import array
import collections
import collections.abc
import dataclasses
import datetime
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints, Samples, Vectors, same

from headrace.data import DataLoader


class Anything:
    """An object that cannot be pickled and that equals nothing but itself."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()


def test_what_collate_fn_makes_arrives_itself() -> None:
    made: list[tuple[int, ...]] = []

    def collate(samples: list[Any]) -> Any:
        batch = [Anything(samples[0]), np.array(samples), lambda: samples]
        made.append((id(batch), *map(id, batch)))
        return batch

    for _ in range(2):
        batches = list(DataLoader(Ints(5), batch_size=2, collate_fn=collate))
        assert [(id(batch), *map(id, batch)) for batch in batches] == made
        made.clear()


def test_the_samples_are_handed_to_collate_fn_themselves() -> None:
    samples = [Anything(i) for i in range(4)]
    assert list(DataLoader(Samples(samples), batch_size=2, collate_fn=list)) == [samples[:2], samples[2:]]


def test_without_batches_samples_arrive_themselves() -> None:
    samples = [Anything(0), threading.Lock(), "text"]
    assert [got is sample for got, sample in zip(DataLoader(Samples(samples), batch_size=None), samples)] == [True] * 3


class Reversed(collections.abc.Sequence[Any]):
    def __init__(self, items: Any) -> None:
        self.items = list(items)[::-1]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


class Squares(collections.abc.Mapping[int, int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __getitem__(self, key: int) -> int:
        return key * key


class Store(collections.abc.MutableMapping[str, Any]):
    def __init__(self, items: Any = ()) -> None:
        self.items_of_its_own = dict(items)

    def __len__(self) -> int:
        return len(self.items_of_its_own)

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_of_its_own)

    def __getitem__(self, key: str) -> Any:
        return self.items_of_its_own[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_of_its_own[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_of_its_own[key]


class Counted(dict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, (value, 1))


class Scaled(collections.namedtuple("Scaled", "x y")):
    def __new__(cls, x: Any, y: Any) -> Any:
        return super().__new__(cls, [x], y)


class Twice(collections.namedtuple("Twice", "x y")):
    def __new__(cls, x: Any) -> Any:
        return super().__new__(cls, x, x)


class Marked(collections.namedtuple("Marked", "x")):
    mark = ""


def marked(value: Any) -> Marked:
    made = Marked(value)
    made.mark = "here"
    return made


OF_ITS_OWN: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda value: Reversed([value, 2]),
    "squares": lambda value: Squares(3),
    "store": lambda value: Store({"a": value}),
    "counted": lambda value: Counted(a=value),
    "scaled": lambda value: Scaled(value, 2),
    "twice": lambda value: Twice(value),
    "marked": marked,
    "range": lambda value: range(1000, 1003),
    "array": lambda value: array.array("i", [1, 2]),
    "deque": lambda value: collections.deque([value, 2], maxlen=2),
    "chain": lambda value: collections.ChainMap({"a": 1}, {"b": 2}),
    "text": lambda value: collections.UserString("ab"),
}


# Of these, pickle makes something else, or nothing.
NOT_FOR_WORKERS = ("counted", "scaled", "twice")


@pytest.mark.parametrize(
    ("kind", "num_workers"),
    [*((kind, 0) for kind in OF_ITS_OWN), *((kind, 1) for kind in OF_ITS_OWN if kind not in NOT_FOR_WORKERS)],
)
@pytest.mark.parametrize("batch_size", [2, None])
@pytest.mark.parametrize("value", [7, np.arange(3)], ids=["number", "array"])
def test_a_container_of_a_type_of_its_own_arrives_as_it_is(
    kind: str, num_workers: int, batch_size: int | None, value: Any
) -> None:
    samples = [OF_ITS_OWN[kind](value) for _ in range(2)]
    before = [pickle.dumps(sample) for sample in samples]
    collate = {"collate_fn": list if batch_size else lambda sample: sample}
    got = list(DataLoader(Samples(samples), batch_size=batch_size, num_workers=num_workers, **collate))
    assert [pickle.dumps(sample) for sample in (got[0] if batch_size else got)] == before
    assert [pickle.dumps(sample) for sample in samples] == before


def test_a_container_is_made_again_only_if_an_array_in_it_is_copied() -> None:
    samples = [collections.deque([1, "text"]), collections.UserDict(x=np.arange(3)), [np.arange(3)]]
    got = list(DataLoader(Samples(samples), batch_size=None, collate_fn=lambda sample: sample))
    assert got[0] is samples[0]
    assert all(batch is not sample for batch, sample in zip(got[1:], samples[1:]))


def test_a_tensor_that_hides_its_memory_arrives_itself() -> None:
    torch = pytest.importorskip("torch")

    class Strict(torch.Tensor):  # type: ignore[misc]
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise NotImplementedError(func)

    samples = [{"x": torch.ones(3).as_subclass(Strict)}]
    (batch,) = DataLoader(Samples(samples), batch_size=1, collate_fn=list)
    assert batch == samples


class Table:
    """Its samples are rows of its own memory."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return self.table[index]


@dataclasses.dataclass
class Held:
    values: Any

    def __post_init__(self) -> None:
        self.note = "kept"


PASS_ON: dict[str, Any] = {
    "list": list,
    "first": lambda samples: samples[0],
    "dict": lambda samples: {"x": samples[0], "y": [samples[1], "text", None, 3]},
    "tuple": lambda samples: ((samples[0],), samples[1]),
    "dataclass": lambda samples: Held(samples[0]),
    "user dict": lambda samples: collections.UserDict(x=samples[0]),
    "views": lambda samples: [samples[0][1:], samples[0][::-1]],
}


@pytest.mark.parametrize("workers", [0, 1])
def test_arrays_become_tensors_whatever_their_strides(workers: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    records = np.zeros(3, [("odd", "u1"), ("value", "<i4")])
    records["value"] = [1, 2, 3]
    samples = [np.arange(6).reshape(2, 3)[::-1, ::-1], records["value"], np.arange(3)[::-2]]
    loader = DataLoader(Samples(samples), batch_size=None, to="torch", num_workers=workers)
    for got, sample in zip(loader, samples, strict=True):
        assert torch.equal(got, torch.tensor(sample.tolist(), dtype=got.dtype))
        got += 1
    assert records["value"].tolist() == [1, 2, 3]


def scribble(batch: Any) -> None:
    """Writes to all arrays and tensors in a batch."""
    if isinstance(batch, (list, tuple)):
        for value in batch:
            scribble(value)
    elif isinstance(batch, (dict, collections.UserDict)):
        scribble(list(batch.values()))
    elif isinstance(batch, Held):
        assert batch.note == "kept"
        scribble(batch.values)
    elif hasattr(batch, "shape"):
        batch += 1


@pytest.mark.parametrize("kind", ["array", "list of arrays", "read-only", "tensor", "tensors", "from_numpy"])
@pytest.mark.parametrize("pass_on", [None, *PASS_ON])
def test_a_batch_may_be_written_to_and_the_dataset_stays(pass_on: str | None, kind: str) -> None:
    table = np.zeros((4, 3))
    rows: Any = table
    if kind == "list of arrays":
        rows = list(table)
    elif kind == "read-only":
        rows = [row.copy() for row in table]
        for row in rows:
            row.flags.writeable = False
    elif kind != "array":
        torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
        if "first" in kind or pass_on == "views":
            pytest.skip("torch knows no negative strides")
        rows = torch.zeros(4, 3)
        if kind == "tensors":
            rows = list(rows.clone())
        elif kind == "from_numpy":
            rows = [torch.from_numpy(row) for row in table]
    arguments = {"batch_size": None} if pass_on is None else {"batch_size": 2, "collate_fn": PASS_ON[pass_on]}
    for batch in DataLoader(Table(rows), **arguments):
        scribble(batch)
    assert [float(row.sum()) for row in rows] == [0.0] * 4


@pytest.mark.parametrize("more", [{}, {"path": Path("a"), "date": datetime.date(2026, 1, 2)}], ids=["plain", "values"])
@pytest.mark.parametrize("pass_on", [None, "list", "first", "dict", "tuple", "dataclass", "user dict"])
def test_a_batch_of_containers_that_the_dataset_keeps_may_be_written_to(
    pass_on: str | None, more: dict[str, Any]
) -> None:
    """Only the container has their arrays, but the dataset has the container."""
    samples = [{"x": np.zeros(3), "list": [np.zeros(2)], "tuple": (np.zeros(1),), **more} for _ in range(4)]
    arguments = {"batch_size": None} if pass_on is None else {"batch_size": 2, "collate_fn": PASS_ON[pass_on]}
    for batch in DataLoader(Samples(samples), **arguments):
        scribble(batch)
    for sample in samples:
        assert [sample["x"].sum(), sample["list"][0].sum(), sample["tuple"][0].sum()] == [0, 0, 0]


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize("beside", ["fresh", "shared", "namedtuple"])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_tensors_keep_their_gradients(is_leaf: bool, beside: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    weight, mask = torch.ones(2, requires_grad=True), torch.ones(3)

    def collate(samples: list[int]) -> Any:
        other = mask if beside == "shared" else torch.tensor(samples)
        values = (weight if is_leaf else weight * 2, other)
        return Pair(*values) if beside == "namedtuple" else values

    for x, other in DataLoader(Ints(2), batch_size=2, collate_fn=collate):
        x.sum().backward()
        other += 1
    assert weight.grad.tolist() == ([1, 1] if is_leaf else [2, 2])
    assert mask.tolist() == [1, 1, 1]


@pytest.mark.parametrize("pass_on", [None, "list", "dict"])
@pytest.mark.parametrize("kind", ["array", "view", "tensor"])
def test_what_nobody_else_has_is_not_copied(kind: str, pass_on: str | None) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    addresses = []

    class Fresh(Ints):
        def __getitem__(self, index: int) -> Any:
            array = np.arange(6).reshape(2, 3) if kind == "view" else np.arange(6)
            addresses.append(array.__array_interface__["data"][0])
            if kind == "tensor":
                tensor = torch.ones(6)
                addresses[-1] = tensor.data_ptr()
                return tensor
            return array

    collate = None if pass_on is None else lambda samples: samples if pass_on == "list" else {"x": samples[0]}
    loader = DataLoader(Fresh(3), None if pass_on is None else 1, collate_fn=collate)
    for batch, address in zip(loader, addresses):
        value = batch if pass_on is None else batch[0] if pass_on == "list" else batch["x"]
        there = value.data_ptr() if kind == "tensor" else value.__array_interface__["data"][0]
        assert there == addresses[-1] == address


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_dataset_may_return_one_buffer_again_and_again(num_workers: int) -> None:
    class OneBuffer(Ints):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.buffer = np.zeros(2, np.int64)

        def __getitem__(self, index: int) -> Any:
            self.buffer[:] = index
            return {"x": self.buffer, "y": index}

    loader = DataLoader(OneBuffer(8), 4, num_workers=num_workers)
    assert [batch["x"][:, 0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_default_collation_keeps_objects_and_local_classes() -> None:
    Local = collections.namedtuple("Local", "x thing")

    @dataclasses.dataclass
    class LocalFields:
        inner: Any

    samples = [LocalFields(Local(np.full(2, i, np.float32), Anything(i))) for i in range(4)]
    for batch, begin in zip(DataLoader(Samples(samples), batch_size=2), (0, 2)):
        assert type(batch) is LocalFields
        assert type(batch.inner) is Local
        assert same(batch.inner.x, np.array([[begin] * 2, [begin + 1] * 2], np.float32))
        assert batch.inner.thing == [samples[begin].inner.thing, samples[begin + 1].inner.thing]


@pytest.mark.parametrize("late", [0, 1, 2, 3])
def test_each_sample_is_made_once_whatever_it_is(late: int) -> None:
    things = [Anything(i) for i in range(6)]

    made: list[int] = []

    class Counted(Ints):
        def __getitem__(self, index: int) -> Any:
            made.append(index)
            return things[index] if index >= late else f"sample {index}"

    batches = list(DataLoader(Counted(6), batch_size=2))
    assert [sample for batch in batches for sample in batch][late:] == things[late:]
    assert made == list(range(6))


def test_samples_that_cannot_be_written_in_place_from_the_second_batch_on() -> None:
    samples: list[Any] = [np.zeros(3), np.ones(3), np.array([1, "a", None], object), np.array([2, "b", []], object)]
    batches = list(DataLoader(Samples(samples), batch_size=2))
    assert same(batches[0], np.stack(samples[:2]))
    assert [got is sample for got, sample in zip(batches[1], samples[2:])] == [True, True]


def test_a_stream_arrives_as_it_is() -> None:
    things = [Anything(i) for i in range(5)]
    loader = DataLoader((thing for thing in things), batch_size=2)  # type: ignore[arg-type]
    assert [thing for batch in loader for thing in batch] == things
    loader = DataLoader(iter(things), batch_size=2, collate_fn=tuple)  # type: ignore[arg-type]
    assert list(loader) == [tuple(things[:2]), tuple(things[2:4]), tuple(things[4:])]


def test_a_batch_that_was_handed_over_is_let_go() -> None:
    loader = DataLoader(Ints(2), collate_fn=lambda samples: Anything(samples[0]))
    batches = iter(loader)
    first = weakref.ref(next(batches))
    second = weakref.ref(next(batches))
    assert first() is None
    assert second() is None
    assert next(batches, None) is None


def test_states_stats_and_errors_are_as_ever() -> None:
    def collate(samples: list[Any]) -> Any:
        if samples[0] == 4:
            raise KeyError("four")
        return tuple(samples)

    loader = DataLoader(Ints(8), batch_size=2, collate_fn=collate, seed=1)
    batches = iter(loader)
    assert next(batches) == (0, 1)
    resumed = DataLoader(Ints(8), batch_size=2, collate_fn=collate, seed=1)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)) == (2, 3) == next(batches)
    with pytest.raises(KeyError, match="four"):
        next(batches)
    assert list(batches) == [(6, 7)]
    assert loader.stats()["batches"] == 4
    assert loader.stats()["samples"] == 6


def test_breaking_off_and_going_back_gives_new_samples() -> None:
    counter = iter(range(100))

    class Counter(Ints):
        def __getitem__(self, index: int) -> Any:
            return "text" if index else [next(counter)]

    loader = DataLoader(Counter(1), batch_size=2)
    assert list(loader) == [[np.array([0])]]
    loader.set_epoch(0)
    assert list(loader) == [[np.array([1])]]


@pytest.mark.parametrize("to", ["numpy", None])
def test_the_default_arrays_are_as_with_workers(to: Any) -> None:
    here, there = (list(DataLoader(Vectors(5), batch_size=2, to=to, num_workers=number)) for number in (0, 2))
    assert all(same(one, other) for one, other in zip(here, there))


class Object:
    """No container, for a batch."""


def tensor_of(kind: str) -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    tensor = torch.eye(2)
    return {
        "plain": lambda: tensor,
        "sparse": tensor.to_sparse,
        "CSR": tensor.to_sparse_csr,
        "quantized": lambda: torch.quantize_per_tensor(tensor, 0.5, 0, torch.qint8),
        "meta": lambda: tensor.to("meta"),
        "parameter": lambda: torch.nn.Parameter(tensor),
        "none": lambda: 3,
    }[kind]()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("to", [None, "numpy", "torch"])
@pytest.mark.parametrize("kind", ["plain", "sparse", "CSR", "quantized", "meta", "parameter", "none"])
def test_what_arrays_become_without_batches_is_as_with_workers(kind: str, to: Any) -> None:
    tensor = tensor_of(kind)
    samples = [
        (tensor, np.arange(2), 3),
        (np.arange(2), {"x": [tensor]}),
        (Object(), np.arange(2), tensor),
        [datetime.date(2026, 1, 2), Object(), {"x": np.arange(2)}, (tensor,)],
    ]

    def types(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [type(value), *map(types, value)]
        return {key: types(each) for key, each in value.items()} if isinstance(value, dict) else type(value)

    here, *there = (
        [types(sample) for sample in DataLoader(Samples(samples), batch_size=None, to=to, **arguments)]
        for arguments in ({}, {"num_workers": 1}, {"num_workers": 1, "workers": "thread"})
    )
    assert there == [here, here]


def test_samples_on_a_device_are_stacked_there() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    samples = [{"x": torch.empty(2, 3, device="meta"), "y": (torch.empty((), device="meta"), i)} for i in range(4)]
    first, second = DataLoader(Samples(samples), batch_size=2)
    for batch, indices in ((first, [0, 1]), (second, [2, 3])):
        assert batch["x"].device.type == batch["y"][0].device.type == "meta"
        assert (batch["x"].shape, batch["y"][0].shape) == ((2, 2, 3), (2,))
        assert batch["y"][1].tolist() == indices
    different = [torch.empty(i, device="meta") for i in (2, 3)]
    with pytest.raises(ValueError, match=r"sample 1 cannot be batched.*shape \(3,\), expected shape \(2,\)"):
        list(DataLoader(Samples(different), batch_size=2))
    mixed = [torch.empty(2, device="meta"), torch.empty(2)]
    with pytest.raises(TypeError, match="on the CPU"):
        list(DataLoader(Samples(mixed), batch_size=2))


def test_collate_fn_may_move_samples_to_a_device() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")

    def move(samples: list[Any]) -> Any:
        return torch.tensor(samples).to("meta")

    batches = list(DataLoader(Ints(5), batch_size=2, collate_fn=move))
    assert [(batch.device.type, len(batch)) for batch in batches] == [("meta", 2), ("meta", 2), ("meta", 1)]
