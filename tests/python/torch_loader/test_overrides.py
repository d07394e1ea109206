"""What programs and libraries replace in PyTorch's loader, its subclasses' attributes and methods among it, works with
the drop-in.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402
from torch.utils.data._utils.collate import default_collate_fn_map  # noqa: E402

from headrace.torch import DataLoader  # noqa: E402

TorchLoader = torch_data.DataLoader
CLASSES = (DataLoader, TorchLoader)
both = pytest.mark.parametrize("workers", [0, 2])


class Pairs(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), float(index)), f"text {index}"


# What a program may have default collation do instead, by the type of the samples.


def halved(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return torch.stack(batch).half()


def joined(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return "|".join(batch)


def first_of(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return batch[0]


OVERRIDES = [(torch.Tensor, halved), (str, joined), (tuple, first_of)]


@both
@pytest.mark.parametrize(("kind", "function"), OVERRIDES)
@pytest.mark.parametrize("held", [False, True])
def test_functions_of_the_default_collation_are_those_of_the_program(
    held: bool, kind: Any, function: Any, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(default_collate_fn_map, kind, function)
    dataset = torch_data.TensorDataset(torch.rand(10, 3), torch.arange(10)) if held else Pairs()
    mine, theirs = (list(cls(dataset, batch_size=4, num_workers=workers)) for cls in CLASSES)
    assert str(mine) == str(theirs)


@both
def test_a_batch_that_a_function_of_the_program_takes_from_the_dataset_is_the_consumers_own(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = list(torch.zeros(4, 2).unbind())
    loader = DataLoader(dataset, batch_size=2, num_workers=workers)
    next(iter(loader)).add_(1)  # PyTorch's functions make new tensors
    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, first_of)
    for batch in loader:
        batch += 1
    assert torch.equal(torch.stack(dataset), torch.zeros(4, 2))


class Collator:
    """Has attributes that PyTorch's loader does not ask for."""

    stacks_tensors = makes_once = takes_any_number = True

    def describe(self) -> str:
        return "counts"

    def makes_new(self) -> bool:
        return True

    def __call__(self, samples: list[Any]) -> Any:
        return [len(samples), samples]


@both
@pytest.mark.parametrize("held", [False, True])
def test_attributes_of_a_collate_function_are_its_own(held: bool, workers: int) -> None:
    rows = torch.arange(10)
    dataset: Any = torch_data.TensorDataset(rows) if held else rows
    mine, theirs = (list(cls(dataset, 4, collate_fn=Collator(), num_workers=workers)) for cls in CLASSES)
    assert str(mine) == str(theirs)
    for _, samples in mine:
        for sample in samples:
            (sample[0] if held else sample).zero_()
    assert torch.equal(rows, torch.arange(10))


class Options(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Its parameters mean something else than Headrace's."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int, out: str = "text", *, rng: tuple[int, int] = (0, 1)) -> Any:
        return index, out, rng


@both
def test_parameters_with_defaults_of_their_own_keep_these(workers: int) -> None:
    mine, theirs = (list(cls(Options(), 2, num_workers=workers)) for cls in CLASSES)
    assert str(mine) == str(theirs)


class Lists(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Each is what a batch consists of."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> list[Any]:
        return [(torch.full((2,), float(i)), i, f"text {i}") for i in range(index + 1)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_without_batches_the_default_collation_makes_one_of_each_sample(workers: int) -> None:
    arguments = {"batch_size": None, "collate_fn": torch_data.default_collate, "num_workers": workers}
    mine, theirs = (list(cls(Lists(), **arguments)) for cls in CLASSES)
    assert str(mine) == str(theirs)


class Own(DataLoader):  # type: ignore[type-arg, unused-ignore]
    """Keeps things of its own under names that the drop-in has arguments of."""

    def __init__(self, *args: Any, before: bool, **kwargs: Any) -> None:
        if before:
            self._assign()
        super().__init__(*args, **kwargs)
        if not before:
            self._assign()

    def _assign(self) -> None:
        self.seed = 123
        self.device: Any = torch.device("cpu")
        self.shard: Any = 3
        self.trace: Any = "yes"
        self.seed_records = self.threads_per_worker = self.on_worker_death = self.max_deaths_per_sample = object()
        # What one might call its own methods and state.
        self._inner = self._order = self._options = self._loader = self._maker = None


@both
@pytest.mark.parametrize("before", [False, True])
def test_attributes_of_a_subclass_are_its_own(before: bool, workers: int) -> None:
    arguments = {"batch_size": 3, "shuffle": True, "num_workers": workers}
    torch.manual_seed(5)
    expected = [list(loader) for loader in [TorchLoader(Pairs(), **arguments)] for _ in range(2)]
    torch.manual_seed(5)
    loader = Own(Pairs(), before=before, **arguments)
    assert str([list(loader), list(loader)]) == str(expected)
    assert (loader.seed, loader.shard, loader.trace) == (123, 3, "yes")
    assert len(loader) == 4


def test_the_options_can_be_read() -> None:
    loader = DataLoader(Pairs(), shuffle=True, seed=7, shard=(1, 2), trace=True, on_worker_death="skip")
    for each in (loader, copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert (each.seed, each.shard, each.trace, each.on_worker_death) == (7, (1, 2), True, "skip")
        assert (each.device, each.seed_records, each.max_deaths_per_sample, each.threads_per_worker) == (
            None,
            None,
            4,
            1,
        )


class Wrapped:
    """An iterator of PyTorch's that has been given another end."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Wrapped:
        return self

    def __next__(self) -> Any:
        return "wrapped", next(self.batches)


def wrapping(cls: Any) -> Any:
    class Loader(cls):  # type: ignore[misc]
        def _get_iterator(self) -> Any:
            return Wrapped(super()._get_iterator())

    return Loader


@both
def test_get_iterator_may_be_overridden(workers: int) -> None:
    for persistent in {False, workers > 0}:
        arguments = {"batch_size": 4, "num_workers": workers, "persistent_workers": persistent}
        loader = wrapping(DataLoader)(Pairs(), **arguments)
        expected = [("wrapped", batch) for batch in TorchLoader(Pairs(), batch_size=4)]
        assert str([list(loader), list(loader)]) == str([expected, expected])


def test_get_iterator_may_return_an_iterator_of_pytorchs() -> None:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    class Loader(DataLoader):  # type: ignore[type-arg, unused-ignore]
        made = 0

        def _get_iterator(self) -> Any:
            self.made += 1
            return _MultiProcessingDataLoaderIter(self)

    expected = str(list(TorchLoader(Pairs(), batch_size=4)))
    for persistent in (False, True):
        loader = Loader(Pairs(), batch_size=4, num_workers=1, persistent_workers=persistent)
        assert [str(list(loader)) for _ in range(3)] == [expected] * 3
        assert loader.made == (1 if persistent else 3)


class Unreadable:
    """Not a dataset, but for a loader that nobody iterates over."""


def test_a_dataset_that_cannot_be_read_is_an_error_when_it_is_to_be() -> None:
    loader = DataLoader(Unreadable())
    with pytest.raises(TypeError, match="dataset must have __len__ and __getitem__"):
        iter(loader)


class Repeated:
    def __init__(self, lists: Any) -> None:
        self.lists = lists

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.lists


def endless(cls: Any) -> Any:
    """As training programs do that keep their workers: one iterator, over lists that never end."""

    class Loader(cls):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
            self.batches = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.lists)

        def __iter__(self) -> Iterator[Any]:
            return (next(self.batches) for _ in range(len(self)))

    return Loader


@both
def test_a_loader_of_endless_lists(workers: int) -> None:
    epochs = []
    for cls in CLASSES:
        torch.manual_seed(8)
        loader = endless(cls)(Pairs(), batch_size=4, shuffle=True, num_workers=workers)
        epochs.append([list(loader) for _ in range(3)])
    assert str(epochs[0]) == str(epochs[1])
    assert loader.batches._num_yielded == 9


def uninitialized(cls: Any) -> Any:
    class Loader(cls):  # type: ignore[misc]
        def __init__(self, dataset: Any, batch_size: int, num_workers: int) -> None:
            vars(self).update(vars(TorchLoader(dataset, batch_size, num_workers=num_workers)))

    return Loader


@both
def test_a_subclass_need_not_call_init(workers: int) -> None:
    loader = uninitialized(DataLoader)(Pairs(), 4, workers)
    assert (len(loader), loader.seed, loader.shard) == (3, None, (0, 1))
    assert str(list(loader)) == str(list(TorchLoader(Pairs(), 4)))
    assert loader.state_dict()["epoch"] == 1


@both
def test_iterators_have_what_programs_use_of_pytorchs(workers: int) -> None:
    for persistent in {False, workers > 0}:
        loader = DataLoader(Pairs(), batch_size=4, num_workers=workers, persistent_workers=persistent)
        batches = iter(loader)
        assert (len(batches), batches._num_yielded) == (3, 0)
        next(batches)
        assert batches._num_yielded == 1
        state = loader.state_dict()
        processes = list(batches._workers)
        batches._shutdown_workers()
        assert len(processes) == workers
        assert all(process.exitcode is not None for process in processes)
        loader.load_state_dict(state)
        again = iter(loader)
        next(again)
        assert again._num_yielded == 1
        assert len(list(again)) == 1


class Fields:
    """A batch of a class of the program's own."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.pinned = False

    def pin_memory(self) -> Fields:
        self.pinned = True
        return self


@both
@pytest.mark.filterwarnings("ignore:pin_memory has no effect")
def test_batches_with_a_method_pin_memory_are_pinned_by_it(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    loader = DataLoader(range(10), 4, num_workers=workers, collate_fn=Fields, pin_memory=True)
    batches = iter(loader)
    assert len(batches) == 3
    found = list(batches)
    assert [batch.values for batch in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all(batch.pinned for batch in found)
