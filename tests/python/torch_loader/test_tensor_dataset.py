"""Batches of a TensorDataset are looked up as a whole, and are what PyTorch's loader makes of single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

import headrace  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402

with_and_without_workers = pytest.mark.parametrize("workers", [0, 1, 2])


def columns() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(50, 3, 4, 5, generator=generator)
    return [
        images,
        torch.arange(50),
        images[:, 0, 0, 0].to(torch.bfloat16),
        images.to(torch.complex64)[:, 0],
        images.to(memory_format=torch.channels_last),
        images > 0.5,
        torch.empty(50, 0),
    ]


@with_and_without_workers
@pytest.mark.parametrize("subsets", [0, 2])
def test_batches_are_those_of_single_samples(workers: int, subsets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset: Any = torch_data.TensorDataset(*columns())
    for _ in range(subsets):
        dataset = torch_data.Subset(dataset, torch.arange(len(dataset) - 1, 5, -1))
    torch.manual_seed(1)
    expected = list(torch_data.DataLoader(dataset, batch_size=8, shuffle=True))

    def fail(self: Any, index: Any) -> None:
        raise AssertionError(f"sample {index} was looked up alone")

    monkeypatch.setattr(torch_data.TensorDataset, "__getitem__", fail)
    torch.manual_seed(1)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers)
    got = list(loader)
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected):
        assert type(mine) is list
        assert [tensor.dtype for tensor in mine] == [tensor.dtype for tensor in theirs]
        assert all(map(torch.equal, mine, theirs))


@with_and_without_workers
def test_the_neutral_loader_gives_the_same_and_converts(workers: int) -> None:
    dataset = torch_data.TensorDataset(torch.arange(20).reshape(10, 2), torch.arange(10))
    for to, kind in ((None, torch.Tensor), ("numpy", np.ndarray)):
        first, *_, last = headrace.DataLoader(dataset, batch_size=4, num_workers=workers, to=to)
        assert all(type(column) is kind for column in first)
        assert [column.tolist() for column in last] == [[[16, 17], [18, 19]], [8, 9]]


@with_and_without_workers
def test_a_batch_is_the_consumers_own(workers: int) -> None:
    tensor = torch.arange(8)
    for (batch,) in DataLoader(torch_data.TensorDataset(tensor), batch_size=2, num_workers=workers):
        batch += 100
    assert tensor.tolist() == list(range(8))


class Doubled(torch_data.TensorDataset):  # type: ignore[misc, unused-ignore]
    def __getitem__(self, index: int) -> Any:
        return tuple(2 * tensor[index] for tensor in self.tensors)


class Half(torch_data.Subset):  # type: ignore[misc, type-arg, unused-ignore]
    def __getitems__(self, indices: list[int]) -> Any:
        return [(self.dataset[i][0] / 2,) for i in indices]


@with_and_without_workers
def test_a_subclass_makes_its_own_samples(workers: int) -> None:
    tensor = torch.arange(6.0)
    for dataset, factor in (
        (Doubled(tensor), 2),
        (torch_data.Subset(Doubled(tensor), range(6)), 2),
        (Half(torch_data.TensorDataset(tensor), range(6)), 0.5),
    ):
        (batch,) = DataLoader(dataset, batch_size=6, num_workers=workers)
        assert torch.equal(batch[0], factor * tensor)


@with_and_without_workers
def test_a_collate_function_gets_samples(workers: int) -> None:
    dataset = torch_data.TensorDataset(torch.arange(4), torch.arange(4, 8))
    got = list(DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=sums))
    assert got == [[4, 6], [8, 10]]


def sums(samples: list[Any]) -> list[int]:
    return [int(first + second) for first, second in samples]


@with_and_without_workers
def test_indices_mean_what_they_mean_to_the_dataset(workers: int) -> None:
    dataset = torch_data.TensorDataset(torch.arange(5))
    lists = [[0, 4], [-1, -5]]
    for kind in (DataLoader, torch_data.DataLoader):
        got = list(kind(dataset, batch_sampler=lists, num_workers=workers))
        assert [batch[0].tolist() for batch in got] == [[0, 4], [4, 0]]


@with_and_without_workers
def test_an_index_outside_is_named(workers: int) -> None:
    dataset = torch_data.TensorDataset(torch.arange(5))
    with pytest.raises(IndexError) as caught:
        list(DataLoader(dataset, batch_sampler=[[0, 7]], num_workers=workers))
    notes = [*getattr(caught.value, "__notes__", []), str(caught.value)]
    assert any("The sample with index 7" in note for note in notes)


def test_tensors_that_are_not_their_memory_are_looked_up_one_by_one() -> None:
    for tensor in (torch.tensor([1 + 2j, 3 - 4j]).conj(), torch.tensor([1.0, 0.0]).to_sparse()):
        (batch,) = DataLoader(torch_data.TensorDataset(tensor), batch_size=2)
        assert torch.equal(batch[0].to_dense(), tensor.to_dense())


def test_without_workers_a_batch_keeps_its_gradient() -> None:
    weight = torch.ones(4, requires_grad=True)
    (batch,) = DataLoader(torch_data.TensorDataset(weight), batch_size=4)
    batch[0].sum().backward()
    assert torch.equal(weight.grad, torch.ones(4))


@with_and_without_workers
def test_changes_between_two_epochs_show(workers: int) -> None:
    dataset = torch_data.TensorDataset(torch.zeros(4))
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    assert [batch[0].tolist() for batch in loader] == [[0] * 4]
    dataset.tensors = (torch.ones(4),)
    assert [batch[0].tolist() for batch in loader] == [[1] * 4]


class Shared(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """A tensor and an array with the same elements."""

    def __init__(self) -> None:
        self.array = np.zeros(4, np.float32)
        self.tensor = torch.from_numpy(self.array)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.tensor[index]


@with_and_without_workers
def test_a_change_of_an_array_shows_in_the_tensor_that_shares_it(workers: int) -> None:
    dataset = Shared()
    loader = DataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
    assert [batch.tolist() for batch in loader] == [[0, 0, 0, 0]]
    dataset.array[1] = 7
    assert [batch.tolist() for batch in loader] == [[0, 7, 0, 0]]
