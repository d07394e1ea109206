"""What a collate function gets is what the dataset returned; what it returns arrives as it was, and dies in time."""

from __future__ import annotations

import collections
import dataclasses
import gc
import io
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from loader_datasets import Ints, Samples

from headrace.data import DataLoader, Ragged

MISSING = object()
WAYS: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 3}]
WAYS.append({"num_workers": 1, "workers": "thread"})


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Measured:
    values: Any

    def __post_init__(self) -> None:
        self.count = len(self.values)


class Tagged(dict):  # type: ignore[type-arg]
    """A dict with an attribute."""

    def __init__(self, items: Any = (), tag: str = "") -> None:
        super().__init__(items)
        self.tag = tag


class Attributes(collections.UserDict):  # type: ignore[type-arg]
    """As transformers' batches: a mapping whose attributes are not its items."""

    def __init__(self, items: Any = (), sequences: int = 0) -> None:
        super().__init__(items)
        self.sequences = sequences


class Graph:
    """An object with arrays in it."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.view = x[1:]


class Named(np.ndarray):  # type: ignore[type-arg]
    """A subclass without anything of its own."""


# What a collate function sees.


class Marked(Ints):
    """Every other sample is the sentinel."""

    def __getitem__(self, index: int) -> Any:
        return index, (MISSING if index % 2 else "text")


class OneObject(Ints):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.shared = [0]

    def __getitem__(self, index: int) -> Any:
        return self.shared


def count_missing(samples: list[Any]) -> int:
    return sum(value is MISSING for _, value in samples)


def count_objects(samples: list[Any]) -> int:
    return len({id(sample) for sample in samples})


@pytest.mark.parametrize("way", [*WAYS, {"num_workers": 4, "prefetch_factor": 2}, {"num_workers": "auto"}], ids=str)
@pytest.mark.filterwarnings("ignore:prefetch_factor")
def test_samples_are_the_objects_that_the_dataset_returned(way: dict[str, Any]) -> None:
    assert list(DataLoader(Marked(24), 4, collate_fn=count_missing, **way)) == [2] * 6
    assert list(DataLoader(OneObject(24), 4, collate_fn=count_objects, **way)) == [1] * 6


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_samples_are_copies_only_where_that_was_asked_for(num_workers: int) -> None:
    split = DataLoader(OneObject(24), 4, collate_fn=count_objects, num_workers=num_workers, num_workers_batches=1)
    assert list(split) == [4] * 6


# What arrives.


def significant(shape: Any, strides: Any) -> list[int]:
    """The strides of the axes that have one."""
    return [stride for extent, stride in zip(shape, strides) if extent > 1 and 0 not in shape]


def signature(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All of a batch that can be seen, in a form to compare: types, values, strides, identity, memory."""
    seen = {} if seen is None else seen
    if isinstance(value, (int, float, complex, str, bytes, np.generic, type(None))):
        return type(value).__name__, repr(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    kind = type(value).__name__
    if hasattr(value, "detach"):
        tensor = value.detach()
        numbers = tensor.float() if tensor.dtype.is_floating_point else tensor
        strides = significant(value.shape, value.stride())
        return kind, str(value.dtype), tuple(value.shape), strides, value.requires_grad, numbers.tolist()
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.shape, significant(value.shape, value.strides), value.tolist()
    if isinstance(value, collections.abc.Mapping):
        items = [(signature(key, seen), signature(value[key], seen)) for key in value]
        return kind, items, sorted(set(vars(value)) - {"data"}) if hasattr(value, "__dict__") else None
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, [signature(child, seen) for child in value]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, value))
    if not hasattr(value, "__dict__"):
        return kind, repr(value)
    return kind, [(name, signature(child, seen)) for name, child in vars(value).items()]


def numpy_results() -> dict[str, Any]:
    x = np.arange(24.0).reshape(2, 3, 4)
    shared = np.arange(6)
    return {
        "plain": {"x": x, "y": [1, "a", None], "z": (x[0].copy(), 2.5)},
        "transposed": x.transpose(2, 0, 1),
        "fortran": np.asfortranarray(x),
        "strided": x[:, ::2, 1:],
        "reversed": x[::-1, :, ::-1],
        "same array twice": {"a": shared, "b": shared},
        "a list of one array": [shared] * 50,
        "views": {"inputs": shared[:-1], "targets": shared[1:]},
        "view first": [shared[2:], shared],
        "bytes of one array": [shared, shared.view(np.uint8)],
        "nested list twice": (lambda inner: [inner, inner])([np.arange(2), "x"]),
        "matrix": np.matrix([[1.0, 2.0]]),
        "subclass": np.arange(3).view(Named),
        "masked": np.ma.array([1.0, 2.0], mask=[False, True]),
        "records": np.zeros(2, [("a", "i4"), ("b", "f8")]),
        "objects": np.array([1, "a", None], object),
        "big-endian": np.arange(3, dtype=">i4"),
        "empty": [np.zeros((0, 3)), np.zeros((3, 0)).T],
        "scalars": [np.float32(3), np.int64(4), True, 2 + 1j],
        "keys": {1: x, True if False else (1, 2): "tuple", b"b": 2},
        "attributes": Tagged({"x": x}, tag="train"),
        "user dict": Attributes({"x": x}, sequences=4),
        "dataclass": Measured(np.arange(3)),
        "object": Graph(np.arange(4)),
        "ragged": Ragged(np.arange(5), np.array([0, 2, 5])),
        "point": Point(x, [x.copy()]),
        "deque": collections.deque([x], maxlen=3),
        "ordered": collections.OrderedDict(b=x, a=1),
        "default": collections.defaultdict(list, a=[x]),
        "sets": [{1, 2}, frozenset("ab")],
        "many": [np.full(2, i) for i in range(300)],
        "many lengths": [np.ones(i % 5) for i in range(100)],
        "many types": [np.ones(i % 5, [np.float32, np.int64][i % 2]) for i in range(100)],
        "many strided": [np.ones((3, 4)).T for _ in range(40)],
        "many from one": list(np.arange(80).reshape(40, 2)),
        "none": None,
        "text": "abc",
        "nothing": [[], {}, ()],
    }


def torch_results() -> dict[str, Any]:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    x = torch.arange(48.0).reshape(2, 2, 3, 4)
    labels = torch.arange(6)
    return {
        "channels last": x.to(memory_format=torch.channels_last),
        "transposed": x.transpose(0, 1),
        "expanded": torch.ones(1, 2).expand(3, 2),
        "strided": x[:, :, ::2],
        "same tensor twice": {"input_ids": labels, "labels": labels},
        "views": {"inputs": labels[:-1], "targets": labels[1:]},
        "bfloat16": x.bfloat16().transpose(0, 1),
        "complex32": torch.ones(2, dtype=torch.complex32),
        "unsigned": torch.ones(2, dtype=torch.uint16),
        "bool": torch.tensor([True, False]),
        "requires a gradient": torch.ones(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "with NumPy's memory": (lambda array: [array, torch.from_numpy(array)])(np.arange(4.0)),
        "many": [torch.full((2,), float(i)) for i in range(300)],
        "many channels last": [torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last) for _ in range(40)],
        "dataclass": Measured(torch.ones(3)),
        "object": Graph(torch.ones(4)),
        "packed": torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)]),
        "size": x.shape,
        "dtype": [torch.float16, torch.device("cpu")],
        "scalar": torch.tensor(3.0),
    }


def comes_as_made(make: Any, names: list[str]) -> None:
    """Checks that workers deliver the same as no workers for each of the named results."""

    def collate(samples: list[int]) -> Any:
        return make()[names[samples[0]]]

    here = [signature(batch) for batch in DataLoader(Ints(len(names)), 1, collate_fn=collate)]
    for way in WAYS[1:]:
        loader = DataLoader(Ints(len(names)), 1, collate_fn=collate, **way)
        for name, batch, expected in zip(names, loader, here):
            assert signature(batch) == expected, (name, way)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_results_arrive_as_they_were_made() -> None:
    comes_as_made(numpy_results, list(numpy_results()))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_tensors_arrive_as_they_were_made() -> None:
    comes_as_made(torch_results, list(torch_results()))


def only(result: Any, **arguments: Any) -> Any:
    """The one batch of a loader whose collate function returns that."""
    (batch,) = DataLoader(Ints(1), 1, collate_fn=lambda samples: result() if callable(result) else result, **arguments)
    return batch


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_arrays_that_share_memory_still_do(way: dict[str, Any]) -> None:
    array = np.arange(6)
    batch = only({"a": array[:-1], "b": array[1:]}, **way)
    batch["a"][3] = 100
    assert batch["b"].tolist() == [1, 2, 100, 4, 5]
    batch = only({"a": array, "b": array, "c": Graph(array)}, **way)
    assert batch["a"] is batch["b"] is batch["c"].x


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_tensors_that_share_memory_still_do(way: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    labels = torch.arange(6)
    batch = only({"ids": labels, "labels": labels, "rest": labels[1:]}, **way)
    assert batch["ids"] is batch["labels"]
    batch["ids"][3] = -100
    assert batch["rest"].tolist() == [1, 2, -100, 4, 5]
    assert batch["rest"].untyped_storage().data_ptr() == batch["ids"].untyped_storage().data_ptr()


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_arrays_that_repeat_their_elements_may_be_written_to(way: dict[str, Any]) -> None:
    batch = only(np.broadcast_to(np.arange(3.0), (2, 3)), **way)
    batch[0] += 1
    assert batch.tolist() == [[1, 2, 3], [0, 1, 2]]


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
@pytest.mark.parametrize("shape", [(100, 100), (10, 1000)])
def test_each_tensor_is_saved_alone(way: dict[str, Any], shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")

    def saved(tensor: Any) -> int:
        file = io.BytesIO()
        torch.save(tensor, file)
        return len(file.getvalue())

    whole = torch.zeros(*shape)
    alone = saved(whole)
    batch = only([whole + i for i in range(64)], **way)
    assert saved(batch[0]) == saved(batch[63]) == alone
    mixed = only(Tagged({"list": [whole + i for i in range(64)], "t": [(whole + i).T for i in range(3)]}), **way)
    assert saved(mixed["list"][5]) == saved(mixed["t"][2]) == alone


def test_a_tensor_that_autograd_would_go_on_from_is_refused_by_workers() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")

    def grown() -> Any:
        return torch.ones(2, requires_grad=True) * 2

    assert only(grown).requires_grad
    for way in WAYS[1:]:
        with pytest.raises(RuntimeError, match=r"detach\(\)"):
            only(grown, **way)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_lies_within_objects_is_not_converted(way: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")
    batch = only(lambda: Tagged({"array": np.ones(2), "graph": Graph(np.ones(2))}), to="torch", **way)
    assert isinstance(batch["array"], torch.Tensor)
    assert isinstance(batch["graph"].x, np.ndarray)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_result_that_contains_itself(way: dict[str, Any]) -> None:
    def endless() -> Any:
        batch: list[Any] = [np.arange(2)]
        batch.append(batch)
        return batch

    batch = only(endless, **way)
    assert batch[1] is batch
    assert batch[0].tolist() == [0, 1]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_arrays_of_the_program_in_a_result_that_contains_itself(way: dict[str, Any]) -> None:
    own = np.arange(2)
    within: dict[str, Any] = {"array": own, "value": "text", "again": [own]}
    within["within"] = (within, [within])

    batch = only(lambda: [within, within], **way)
    assert batch[0] is batch[1] is batch[0]["within"][0] is batch[0]["within"][1][0]
    assert batch[0]["array"] is batch[0]["again"][0]
    assert list(batch[0]) == ["array", "value", "again", "within"]
    batch[0]["array"][0] = 7
    assert own.tolist() == [0, 1]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_result_that_contains_itself_is_converted(way: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed; make test-peers does")

    def endless() -> Any:
        batch: list[Any] = [np.arange(2), "text"]
        batch.append({"within": batch})
        return batch

    batch = only(endless, to="torch", **way)
    assert batch[2]["within"] is batch
    assert isinstance(batch[0], torch.Tensor)
    assert batch[0].tolist() == [0, 1]


# What dies, and when.


class Counting:
    """A collate function that tells how many samples and results of earlier batches are still alive."""

    def __init__(self, result: str) -> None:
        gc.disable()
        self.result = result
        self.alive: list[weakref.ref[Any]] = []

    def __reduce__(self) -> Any:
        return Counting, (self.result,)

    def __call__(self, samples: list[Any]) -> Any:
        left = sum(reference() is not None for reference in self.alive)
        made = np.stack([np.asarray(sample) for sample in samples])
        self.alive = [weakref.ref(value) for value in (*samples, made)]
        kinds = {"plain": [made], "pickled": Tagged({"x": made}), "many": [made + i for i in range(20)]}
        return {"left": left, "result": kinds[self.result], "unreachable": gc.collect()}


class Arrays(Ints):
    def __getitem__(self, index: int) -> Any:
        return np.full(50, index)


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("result", ["plain", "pickled", "many"])
@pytest.mark.parametrize("way", [*WAYS, {"num_workers": 1, "multiprocessing_context": "spawn"}], ids=str)
@pytest.mark.usefixtures("without_collector")
def test_samples_and_results_die_with_their_batch(way: dict[str, Any], result: str) -> None:
    loader = DataLoader(Arrays(60), 3, collate_fn=Counting(result), **way)
    batches = 0
    for number, batch in enumerate(loader):
        batches += 1
        # The consumer may still hold the batch before, which is the result itself if there are no workers.
        assert batch["left"] <= (1 if way["num_workers"] == 0 or "workers" in way else 0), number
        assert number < 4 or batch["unreachable"] == 0, number
    assert batches == 20


class Stream:
    def __iter__(self) -> Iterator[Any]:
        return (np.full(50, index) for index in range(60))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1]], ids=str)
@pytest.mark.usefixtures("without_collector")
def test_samples_of_streams_and_single_ones_die_with_their_batch(way: dict[str, Any]) -> None:
    count = Counting("plain")
    for loader in (
        DataLoader(Stream(), 3, collate_fn=count, **way),  # type: ignore[arg-type]
        DataLoader(Arrays(30), None, collate_fn=lambda sample: count([sample]), **way),
    ):
        for number, batch in enumerate(loader):
            assert batch["left"] <= (1 if way["num_workers"] == 0 else 0), number
            assert number < 4 or batch["unreachable"] == 0, number


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["default", "ragged", "whole", "objects", "streams", "converted", "shared"])
@pytest.mark.usefixtures("without_collector")
def test_the_main_process_makes_no_garbage(way: dict[str, Any], kind: str) -> None:
    samples: list[Any] = {
        "whole": [{"x": collections.deque([np.ones(3)]), "i": i if i % 2 else float(i)} for i in range(60)],
        "objects": [(Point(i, f"sample {i}"), None) for i in range(60)],
    }.get(kind, [{"x": np.full(3, i), "y": (i, float(i))} for i in range(60)])
    arguments: dict[str, Any] = {}
    if kind == "streams":
        if "workers" in way:
            pytest.skip("streams need processes")
        loader = DataLoader(Stream(), 3, **way)  # type: ignore[arg-type]
    else:
        if kind == "ragged":
            samples, arguments["ragged"] = [np.ones(i % 4 + 1) for i in range(60)], "pad"
        if kind == "converted":
            arguments["batch_size"] = None
        if kind == "shared":
            arguments["collate_fn"] = lambda samples: Tagged({"a": samples[0]["x"], "b": samples[0]["x"][1:]})
        loader = DataLoader(Samples(samples), **{"batch_size": 3, **arguments, **way})
    found = []
    for number, batch in enumerate(loader):
        if "workers" not in way:  # a thread may be in the middle of a batch
            found.append(gc.collect() if number > 5 else 0)
        del batch
    assert not any(found), found
