"""What samples may contain, and what arrives: with and without workers, and compared with PyTorch."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Point, Samples, same

from headrace.data import DataLoader, default_collate, default_convert
from headrace.data._samples.collation import collate_in_place
from headrace.data._samples.containers import circle_in
from headrace.data._samples.flatten import Flattener
from headrace.data._samples.pickling import dumps_sample, loads_sample
from headrace.data._samples.rebuild import decode_tree


class Color(enum.IntEnum):
    RED = 1
    BLUE = 2


class NamedList(list):  # type: ignore[type-arg]
    pass


class NamedDict(dict):  # type: ignore[type-arg]
    pass


class Pair(tuple):  # type: ignore[type-arg]
    """A tuple without named fields."""


class Frozen(Mapping):  # type: ignore[type-arg]
    def __init__(self, items: Any) -> None:
        self.items_ = dict(items)

    def __getitem__(self, key: Any) -> Any:
        return self.items_[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


@dataclasses.dataclass
class Example:
    image: Any
    label: Any
    name: str = "x"


@dataclasses.dataclass(frozen=True)
class Checked:
    """Its __init__ accepts samples only."""

    value: float
    double: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.value, float):
            raise TypeError("a float is wanted")
        object.__setattr__(self, "double", 2 * self.value)


def equal(left: Any, right: Any) -> bool:
    """As ``same``, also for dataclasses, tensors and other mappings; types must match everywhere."""
    if type(left) is not type(right):
        return False
    if hasattr(left, "detach"):
        return bool(left.dtype == right.dtype and left.shape == right.shape and (left == right).all())
    if dataclasses.is_dataclass(left):
        return equal(vars(left), vars(right))
    if isinstance(left, Mapping):
        return list(left) == list(right) and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple, collections.deque)):
        return len(left) == len(right) and all(map(equal, left, right))
    return same(left, right)


def collated_here(samples: list[Any]) -> Any:
    return default_collate(samples)


def load(samples: list[Any], **arguments: Any) -> Any:
    """Makes a batch of the samples without workers, with two, and by a collate function, and checks that all agree."""
    (here,) = DataLoader(Samples(samples), batch_size=len(samples), **arguments)
    (there,) = DataLoader(Samples(samples), batch_size=len(samples), num_workers=2, **arguments)
    (collated,) = DataLoader(Samples(samples), batch_size=len(samples), collate_fn=collated_here, **arguments)
    assert equal(here, there)
    assert equal(here, collated)
    return here


def rebuilt(tree: bytes, leaves: list[Any], to: str | None) -> Any:
    """Takes a batch apart and rebuilds it."""
    build, _ = decode_tree(tree, to)
    made = [leaf.make() if hasattr(leaf, "make") else leaf for leaf in leaves]
    return build([_bits(leaf) if hasattr(leaf, "detach") else leaf for leaf in made])


def _bits(tensor: Any) -> Any:
    from headrace.data._samples.tensors import array_of_tensor

    return array_of_tensor(tensor)[0]


def column(*values: Any, dtype: Any = np.int64) -> Any:
    return np.array(values, dtype)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([Example(1, 2.0, "a"), Example(3, 4.0, "b")], Example(column(1, 3), column(2, 4, dtype=float), ["a", "b"])),
        ([NamedList([1, 2]), NamedList([3, 4])], NamedList([column(1, 3), column(2, 4)])),
        ([NamedDict(a=1), NamedDict(a=2)], NamedDict(a=column(1, 2))),
        ([Frozen({"a": 1}), Frozen({"a": 2})], Frozen({"a": column(1, 2)})),
        ([Pair((1, 2)), Pair((3, 4))], [column(1, 3), column(2, 4)]),
        ([range(2), range(2)], [column(0, 0), column(1, 1)]),
        ([collections.deque([1, 2], 2), collections.deque([3, 4], 2)], collections.deque([column(1, 3), column(2, 4)])),
        ([collections.OrderedDict(b=1, a=2)] * 2, collections.OrderedDict(b=column(1, 1), a=column(2, 2))),
        ([collections.defaultdict(list, a=1)] * 2, collections.defaultdict(list, a=column(1, 1))),
        ([collections.Counter(a=1)] * 2, collections.Counter(a=column(1, 1))),
        ([types.MappingProxyType({"a": 1})] * 2, types.MappingProxyType({"a": column(1, 1)})),
        ([collections.UserDict(a=1)] * 2, collections.UserDict(a=column(1, 1))),
        pytest.param(
            [array.array("i", [1, 2])] * 2,
            [column(1, 1), column(2, 2)],
            marks=pytest.mark.skipif(sys.version_info < (3, 10), reason="no Sequence for Python 3.9"),
        ),
        ([Color.RED, Color.BLUE], column(1, 2)),
        ([1j, 2.0], np.array([1j, 2])),
        ([b"a", b"bc"], [b"a", b"bc"]),
        ([{"none": None, "bytes": b"x"}] * 2, {"none": [None, None], "bytes": [b"x", b"x"]}),
        ([Point(None, Example(1, 2))] * 2, Point([None, None], Example(column(1, 1), column(2, 2), ["x", "x"]))),  # type: ignore[arg-type]
    ],
    ids=lambda value: str(value)[:50].partition(" at 0x")[0],
)
def test_containers_keep_their_type(samples: list[Any], expected: Any) -> None:
    if isinstance(samples[0], types.MappingProxyType):  # cannot be pickled, and so cannot be sent either
        assert equal(default_collate(samples), expected)
        return
    assert equal(load(samples), expected)


def test_a_bounded_deque_stays_bounded() -> None:
    assert load([collections.deque([1, 2], 2)] * 2).maxlen == 2


def test_attributes_of_a_container_are_those_of_the_batchs_first_sample() -> None:
    samples = [NamedDict(a=i) for i in range(8)]
    for i, sample in enumerate(samples):
        sample.origin = f"origin {i}"  # type: ignore[attr-defined]
    for num_workers in (0, 1, 3):
        loader = DataLoader(Samples(samples), batch_size=2, num_workers=num_workers)
        assert [batch.origin for batch in loader] == [f"origin {i}" for i in (0, 2, 4, 6)]
    assert [sample["a"] for sample in samples] == list(range(8))


def tagged(container: Any, tag: int) -> Any:
    if tag >= 2:
        container.tag = tag
    return container


def partly_filled(index: int) -> Example:
    sample = Example(np.zeros(2), index)
    if index < 2:
        del sample.label
    return sample


# Samples of the same types, of which the third and fourth are not to be collated as the first and second.
CHANGING: dict[str, Callable[[int], Any]] = {
    "objects, then numbers": lambda i: np.array([i, i], float if i >= 2 else object),
    "numbers, then objects": lambda i: np.array([i, i], object if i >= 2 else float),
    "records of objects": lambda i: np.zeros(1, [("a", "i4" if i >= 2 else "O")])[0],
    "attributes of a dict": lambda i: tagged(NamedDict(a=i), i),
    "attributes of a list": lambda i: tagged(NamedList([i]), i),
    "attributes of an OrderedDict": lambda i: tagged(collections.OrderedDict(a=i), i),
    "fields of a dataclass": partly_filled,
}


@pytest.mark.parametrize("kind", CHANGING)
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_samples_of_the_batches_before_do_not_matter(kind: str, num_workers: int) -> None:
    samples = [CHANGING[kind](i) for i in range(4)]
    got = list(DataLoader(Samples(samples), batch_size=2, num_workers=num_workers))
    for batch, expected in zip(got, (default_collate(samples[:2]), default_collate(samples[2:]))):
        assert equal(batch, expected)
        assert getattr(batch, "tag", None) == getattr(expected, "tag", None)


def test_a_dataclass_of_a_batch_is_made_without_its_init() -> None:
    got = load([Checked(1.0), Checked(2.0)])
    assert type(got) is Checked
    assert got.value.tolist() == [1, 2]
    assert got.double.tolist() == [2, 4]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataclasses_that_do_not_go_together_are_a_clear_error(num_workers: int) -> None:
    samples = [Example(1, 2), Example(1, 2), Checked(1.0)]
    loader = DataLoader(Samples(samples), batch_size=3, num_workers=num_workers)
    with pytest.raises(
        ValueError, match=r"sample 2 .*type Checked, expected type Example with the fields image, label"
    ):
        next(iter(loader))
    with pytest.raises(ValueError, match=r"sample 1 .* at \.image: got shape \(2,\)"):
        default_collate([Example(np.zeros(1), 1), Example(np.zeros(2), 1)])


def test_object_arrays_become_a_list() -> None:
    samples = [np.array([None, "a"], object), np.array([{}], object)]
    (got,) = DataLoader(Samples(samples), batch_size=2, num_workers=1)
    assert [each.tolist() for each in got] == [[None, "a"], [{}]]


def test_equal_keys_of_several_types() -> None:
    """Each batch has the keys of its own samples, whatever those before it had."""
    samples: list[Any] = [{key: np.ones(2)} for key in (1, 1, True, True, 1.0, 1.0, True, 1)]
    loader = DataLoader(Samples(samples), batch_size=2, num_workers=1)
    assert [repr(list(batch)) for batch in loader] == ["[1]", "[True]", "[1.0]", "[True]"]


def test_structured_arrays_stay_structured() -> None:
    dtype = np.dtype([("a", "i4"), ("b", "f8", (2,))])
    samples = [np.array([(i, (i, i))], dtype) for i in range(3)]
    assert load(samples).dtype == dtype
    assert load(samples)["a"].tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("dtype", [">i4", ">M8[s]", np.dtype([("a", "i1"), ("b", "f8")], align=True)], ids=str)
@pytest.mark.parametrize("shape", [(), (2,)], ids=str)
def test_elements_keep_their_order_of_bytes_and_their_padding(shape: tuple[int, ...], dtype: Any) -> None:
    samples = [np.ones(shape, dtype), np.zeros(shape, dtype)]
    batches = [default_collate(samples)]
    for num_workers in (0, 1):
        batches += DataLoader(Samples(samples), batch_size=2, num_workers=num_workers)
    for batch in batches:
        assert repr(batch.dtype) == repr(np.dtype(dtype))
        assert batch.tolist() == [sample.tolist() for sample in samples]


def test_numbers_with_fields_keep_these() -> None:
    dtype = np.dtype(("<i4", [("low", "<i2"), ("high", "<i2")]))
    got = load([np.full(2, i << 16, dtype) for i in range(3)])
    assert got.dtype.names == ("low", "high")
    assert got["high"].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (np.float32(1), np.array(1, np.float32)),
        ((1, "a", None), [1, "a", None]),
        (Point(np.int8(1), [b"x"]), Point(np.array(1, np.int8), [b"x"])),
        (NamedDict(a=(np.zeros(2),)), NamedDict(a=[np.zeros(2)])),
        (NamedList([np.float64(2)]), NamedList([np.array(2.0)])),
        (Example(np.zeros(1), (1,)), Example(np.zeros(1), [1])),
        (range(2), [0, 1]),
        ("text", "text"),
        (None, None),
    ],
    ids=str,
)
def test_a_single_sample_is_converted(sample: Any, expected: Any) -> None:
    assert equal(default_convert(sample), expected)


def test_arrays_of_a_single_sample_stay_the_same_object() -> None:
    values, text = np.zeros(3), np.array(["a"])
    assert default_convert([values, text])[0] is values
    assert default_convert([values, text])[1] is text


# Compared with PyTorch: the same nesting, types, dtypes and values.


def nested(torch: Any) -> list[tuple[str, list[Any]]]:
    """Names and batches of samples for which both collate functions have a rule."""
    tensor, numpy = torch.tensor, np
    arrays = [
        (str(np.dtype(dtype)), [np.ones((2, 3), dtype), np.zeros((2, 3), dtype)])
        for dtype in ("bool", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
    ]
    tensors = [
        (f"tensor {dtype}", [torch.ones(2, 3).to(dtype), torch.zeros(2, 3).to(dtype)])
        for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32, torch.bfloat16)
    ]
    return [
        *arrays,
        *tensors,
        ("numbers", [1, 2]),
        ("floats", [1.5, 2.5]),
        ("bools", [True, False]),
        ("scalars", [numpy.float32(1), numpy.float32(2)]),
        ("0-d arrays", [numpy.array(1), numpy.array(2)]),
        ("0-d tensors", [tensor(1.0), tensor(2.0)]),
        ("mixed tensors", [tensor([1]), tensor([2.5])]),
        ("half and bfloat", [torch.zeros(1, dtype=torch.float16), torch.ones(1, dtype=torch.bfloat16)]),
        ("conjugate", [torch.tensor([1 + 1j]).conj(), torch.tensor([2j])]),
        ("strided", [torch.arange(6).reshape(2, 3).T, torch.zeros(3, 2, dtype=torch.int64)]),
        ("gradient", [torch.ones(2, requires_grad=True).detach(), torch.ones(2)]),
        ("no elements", [torch.zeros(0, 3), torch.zeros(0, 3)]),
        ("strings", ["a", "b"]),
        ("bytes", [b"a", b"b"]),
        ("pairs", [(1, tensor([2.0])), (3, tensor([4.0]))]),
        ("lists", [[1, 2], [3, 4]]),
        ("named tuples", [Point(1, 2.0), Point(3, 4.0)]),
        ("dicts", [{"a": [1, {"b": numpy.zeros(2)}]}, {"a": [2, {"b": numpy.ones(2)}]}]),
        ("ordered", [collections.OrderedDict(b=1, a=2)] * 2),
        ("default", [collections.defaultdict(int, a=1)] * 2),
        ("kept dict", [NamedDict(a=1), NamedDict(a=2)]),
        ("kept list", [NamedList([1, 2]), NamedList([3, 4])]),
        ("range", [range(2), range(2)]),
        ("tuple type", [Pair((1, 2)), Pair((3, 4))]),
        ("enum", [Color.RED, Color.BLUE]),
        ("empty", [(), ()]),
    ]


def test_batches_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, samples in nested(torch):
        expected = torch.utils.data.default_collate(samples)
        assert equal(rebuilt(*Flattener().collated(default_collate(samples)), "torch"), expected), name
        assert equal(rebuilt(*Flattener().collated(collate_in_place(samples)), "torch"), expected), name
        for num_workers in (0, 2):
            (batch,) = DataLoader(Samples(samples), batch_size=2, num_workers=num_workers, to="torch")
            assert equal(batch, expected), name


def test_single_samples_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for name, samples in nested(torch):
        expected = torch.utils.data._utils.collate.default_convert(samples[0])
        assert equal(rebuilt(*Flattener().result(default_convert(samples[0])), "torch"), expected), name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda torch: torch.eye(2).to_sparse(), "sparse"),
        (lambda torch: torch.empty(2, device="meta"), "on meta: use tensor.cpu"),
    ],
    ids=["sparse", "elsewhere"],
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_tensors_that_cannot_be_stacked_are_a_clear_error(make: Any, words: str, num_workers: int) -> None:
    torch = pytest.importorskip("torch")
    samples = [torch.ones(2, 2), make(torch)]
    with pytest.raises(TypeError, match=words):
        list(
            DataLoader(
                Samples(samples),
                batch_size=2,
                num_workers=num_workers,
                multiprocessing_context="fork" if num_workers else None,
            )
        )


def test_tensors_are_arrays_or_tensors_as_asked() -> None:
    torch = pytest.importorskip("torch")
    samples = [(torch.ones(2), np.zeros(2), 1, "x", np.zeros(2, "M8[s]"))] * 2
    kinds = {
        to: [type(each) for each in rebuilt(*Flattener().collated(collate_in_place(samples)), to)]
        for to in ("numpy", "torch", None)
    }
    assert kinds["numpy"] == [np.ndarray] * 3 + [list, np.ndarray]
    assert kinds["torch"] == kinds[None] == [torch.Tensor] * 3 + [list, np.ndarray]
    assert type(rebuilt(*Flattener().collated(collate_in_place([np.ones(2)])), None)) is np.ndarray


def test_torch_is_not_imported_for_arrays() -> None:
    code = """
import sys
from test_samples import *
load([(np.ones(2), 1, "x")] * 2)
rebuilt(*Flattener().collated(collate_in_place([(np.ones(2), 1)])), None)
print("torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_bfloat16_without_ml_dtypes_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tree, leaves = Flattener().collated(collate_in_place([torch.ones(2, dtype=torch.bfloat16)]))
    assert rebuilt(tree, leaves, "torch").dtype == torch.bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=r'bfloat16 only with the package ml_dtypes.*to="torch"'):
        decode_tree(tree, "numpy")


def test_bfloat16_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    samples = [np.full(3, i, ml_dtypes.bfloat16) for i in range(4)]
    got = load(samples)
    assert got.dtype == ml_dtypes.bfloat16
    assert got[:, 0].astype(float).tolist() == [0, 1, 2, 3]


def test_bfloat16_of_ml_dtypes_and_torch() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch")
    batch = load([np.full(3, i, ml_dtypes.bfloat16) for i in range(4)], to="torch")
    assert batch.dtype == torch.bfloat16
    assert batch[:, 0].tolist() == [0, 1, 2, 3]
    (from_tensors,) = DataLoader(Samples([torch.ones(2, dtype=torch.bfloat16)]), num_workers=1, to="numpy")
    assert from_tensors.dtype == ml_dtypes.bfloat16


# Samples on their way between workers.


def there_and_back(sample: Any) -> Any:
    data, buffers = dumps_sample(sample)
    return loads_sample(data, [bytearray(buffer) for buffer in buffers])


@pytest.mark.parametrize(
    "sample",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(12).reshape(3, 4).T,
        np.arange(12)[::2],
        np.zeros((0, 3)),
        np.array(5),
        np.float32(5),
        np.zeros(2, [("a", "i4"), ("b", "S2")]),
        np.array(["a", "bc"]),
        (1, "text", None, {"a": Point(b"x", np.ones(2))}),
    ],
    ids=lambda value: str(value)[:30].replace("\n", " "),
)
def test_a_sample_travels_to_another_worker(sample: Any) -> None:
    assert equal(there_and_back(sample), sample)


def test_arrays_of_a_sample_are_left_out_of_its_pickle() -> None:
    values = np.arange(1000)
    data, buffers = dumps_sample({"a": values, "b": (values[::2], "x")})
    assert len(data) < 500
    assert [len(buffer) for buffer in buffers] == [8000, 4000]
    assert np.shares_memory(np.frombuffer(buffers[0], np.int64), values)


def test_arrays_of_a_sample_lie_in_the_buffers_and_can_be_written() -> None:
    data, buffers = dumps_sample(np.zeros(3))
    memory = bytearray(buffers[0])
    loads_sample(data, [memory])[:] = 1
    assert np.frombuffer(memory).tolist() == [1, 1, 1]


def test_a_sample_that_cannot_be_pickled_is_an_error() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        dumps_sample([np.zeros(1), lambda: None])


def test_tensors_of_a_sample_lie_in_the_buffers() -> None:
    torch = pytest.importorskip("torch")
    for tensor in (
        torch.arange(6).reshape(2, 3).T,
        torch.ones(3, dtype=torch.bfloat16),
        torch.zeros(0, 2),
        torch.tensor(1.5),
        torch.tensor([1 + 1j]).conj(),
    ):
        data, buffers = dumps_sample((tensor, 1))
        memory = [bytearray(buffer) for buffer in buffers]
        got = loads_sample(data, memory)[0]
        assert equal(got, tensor.resolve_conj())
        if got.numel():
            got[...] = 0
            assert not any(memory[0])
    wanting = torch.ones(2, requires_grad=True)
    assert there_and_back(wanting).requires_grad
    assert type(there_and_back(torch.nn.Parameter(torch.ones(2)))) is torch.nn.Parameter


def circular(kind: str, index: int) -> Any:
    """A sample that contains itself."""
    sample: Any = [np.ones(2), index] if "list" in kind else {"index": index}
    part = (sample,) if "tuple" in kind else sample
    if "list" in kind:
        sample.append(part)
    else:
        sample["itself"] = part
    return sample


@pytest.mark.parametrize("batch_size", [3, None])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "where"),
    [
        *(("list", r"\[2\]"), ("dict", r"\['itself'\]")),
        *(("list in a tuple", r"\[2\]\[0\]"), ("dict in a tuple", r"\['itself'\]\[0\]")),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_a_sample_that_contains_itself_is_an_error_that_names_it(
    kind: str, where: str, num_workers: int, batch_size: int | None
) -> None:
    dataset = Samples([[np.ones(2), i, []] if "list" in kind else {"index": i, "itself": {}} for i in range(6)])
    dataset.samples[3] = circular(kind, 3)
    for i in (4, 5) if batch_size else ():
        dataset.samples[i] = circular(kind, i)
    batches = iter(DataLoader(dataset, batch_size, num_workers=num_workers))
    for _ in range(1 if batch_size else 3):
        next(batches)
    with pytest.raises(ValueError, match=rf"^sample 3 cannot be collated: its element {where} contains itself\. "):
        next(batches)


def test_a_circle_is_found_wherever_it_is_and_nowhere_else() -> None:
    part = [1, [2]]
    assert circle_in(part) is None
    assert circle_in([part, {"a": (part, part)}]) is None
    circle: Any = [part]
    circle.append([part, circle])
    assert circle_in([part, [part, circle]]) == "[1][1][1][1]"


@pytest.mark.usefixtures("no_collection")
def test_of_a_sample_that_is_only_deep_the_error_is_pythons() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        list(DataLoader(Samples([deep]), 1))
    while deep:  # the interpreter's own recursion has limits, too
        deep = deep[0]
