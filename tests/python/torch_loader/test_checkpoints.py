"""The drop-in's state in checkpoints of other libraries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.distributed import checkpoint  # noqa: E402
from torch.utils import data as torch_data  # noqa: E402

from headrace import data, errors  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402


class Numbers(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index


class Counted(Numbers):
    """Has a state that holds a tensor."""

    def __init__(self) -> None:
        self.rounds = torch.zeros(1, dtype=torch.int64)

    def __getitem__(self, index: int) -> int:
        return 100 * int(self.rounds) + index

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds.clone(), "nested": [{"x": 1}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["nested"] == [{"x": 1}]
        self.rounds = state["rounds"]


class Stream(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __iter__(self) -> Iterator[int]:
        info = torch_data.get_worker_info()
        yield from range(24) if info is None else range(info.id, 24, info.num_workers)


class Stateful(Stream):
    """Says where it is, each worker of its own numbers."""

    at = 0

    def __iter__(self) -> Iterator[int]:
        numbers = list(super().__iter__())
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Same(data.IterableDataset[int]):
    """The same numbers in every worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


def distributed(epoch: int) -> Any:
    sampler: Any = torch_data.DistributedSampler(Numbers(), 2, 1)
    sampler.set_epoch(epoch)
    return sampler


def counted() -> Counted:
    dataset = Counted()
    dataset.rounds += 3
    return dataset


numbers = Numbers()
Maker = Callable[[int], DataLoader]
LOADERS: dict[str, Maker] = {
    "shuffle": lambda workers: DataLoader(numbers, 4, True, num_workers=workers),
    "seed": lambda workers: DataLoader(numbers, 4, True, num_workers=workers, seed=7),
    "generator": lambda workers: DataLoader(
        numbers, 4, True, num_workers=workers, generator=torch.Generator().manual_seed(torch.initial_seed())
    ),
    "subset": lambda workers: DataLoader(
        numbers, 4, sampler=torch_data.SubsetRandomSampler(range(24)), num_workers=workers
    ),
    "weighted": lambda workers: DataLoader(
        numbers, 4, sampler=torch_data.WeightedRandomSampler([1.0] * 24, 24, False), num_workers=workers
    ),
    "number of samples": lambda workers: DataLoader(
        numbers, 4, sampler=torch_data.RandomSampler(numbers, num_samples=24), num_workers=workers
    ),
    "batch sampler": lambda workers: DataLoader(
        numbers,
        batch_sampler=torch_data.BatchSampler(torch_data.RandomSampler(numbers), 4, False),
        num_workers=workers,
    ),
    "distributed": lambda workers: DataLoader(numbers, 4, sampler=distributed(1), num_workers=workers),
    "out of order": lambda workers: DataLoader(numbers, 4, True, num_workers=workers, seed=7, in_order=False),
    "dataset with a state": lambda workers: DataLoader(counted(), 4, True, num_workers=workers),
    "stream": lambda workers: DataLoader(Stream(), 4, num_workers=workers),
    "stream with a state": lambda workers: DataLoader(Stateful(), 4, num_workers=workers),
    "mixture": lambda workers: DataLoader(data.IterableMixture([Same(), Same()], [2, 1]), 4, num_workers=workers),
    "packed": lambda workers: DataLoader(data.PackedIterableDataset(Same(), 5, bins=2), 2, num_workers=workers),
}


def rows(batch: Any) -> Any:
    return batch["values"].tolist() if isinstance(batch, dict) else batch.tolist()


def save(loader: DataLoader, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no process group
        checkpoint.save({"loader": loader}, checkpoint_id=folder)


def load(loader: DataLoader, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.load({"loader": loader}, checkpoint_id=folder)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_distributed_checkpoint_resumes_exactly(kind: str, workers: int, tmp_path: Path) -> None:
    """What is loaded is what a fresh loader's state has: its keys must not depend on the place."""
    torch.manual_seed(1)
    loader = LOADERS[kind](workers)
    list(loader)
    batches = iter(loader)
    taken = 1 if kind == "distributed" else 2
    for _ in range(taken):
        next(batches)
    save(loader, tmp_path / "middle")
    rest = [rows(batch) for batch in batches]
    assert rest
    torch.manual_seed(99)
    resumed = LOADERS[kind](workers)
    if kind == "dataset with a state":
        resumed.dataset.rounds -= 3
    load(resumed, tmp_path / "middle")
    got = [rows(batch) for batch in resumed]
    assert (sorted(got) == sorted(rest)) if kind == "out of order" else (got == rest)


def test_a_sampler_in_another_epoch_is_noticed(tmp_path: Path) -> None:
    loader = DataLoader(numbers, 4, sampler=distributed(1))
    next(iter(loader))
    save(loader, tmp_path)
    resumed = DataLoader(numbers, 4, sampler=distributed(0))
    load(resumed, tmp_path)
    with pytest.raises(errors.FailedPrecondition, match="set_epoch"):
        list(resumed)


class Counting(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """The numbers below 41, of which each worker has its share; does not say how many there are."""

    def __iter__(self) -> Iterator[Any]:
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from (torch.tensor([float(i)]) for i in range(first, 41, step))


class Sized(Counting):
    def __len__(self) -> int:
        return 41


class Vectors(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


def trained(loader: DataLoader, folder: Path, resumes: bool = False) -> list[list[int]]:
    """The batches on which Lightning trains in an epoch, of which it keeps the place after the third."""
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")

    class Model(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen.append(batch.flatten().int().tolist())
            return self.layer(batch).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    keeps = lightning.pytorch.callbacks.ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=3, save_top_k=-1, save_on_train_epoch_end=False
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[] if resumes else [keeps],
        default_root_dir=folder,
        enable_checkpointing=not resumes,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, loader, ckpt_path=folder / "step=3.ckpt" if resumes else None)
    return model.seen


@pytest.mark.filterwarnings("ignore")
def test_lightning_goes_on_with_other_batches_if_the_loader_may(tmp_path: Path) -> None:
    def make(batch_size: int, **more: Any) -> DataLoader:
        return DataLoader(Vectors(), batch_size, shuffle=True, num_workers=1, **more)

    whole = trained(make(4), tmp_path)
    with pytest.raises(ValueError, match=r'global_batch_size=4, but this one has 2.*pass on_state_mismatch="adapt"'):
        trained(make(2), tmp_path, resumes=True)
    rest = trained(make(2, on_state_mismatch="adapt"), tmp_path, resumes=True)
    assert [i for batch in rest for i in batch] == [i for batch in whole[3:] for i in batch]
    with pytest.warns(RuntimeWarning, match="order='torch', but this one has 'sequential'.*The epoch restarts"):
        anew = trained(DataLoader(Vectors(), 4, on_state_mismatch="adapt"), tmp_path, resumes=True)
    assert anew[0] == [0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("dataset", "lost"), [(Sized, 0), (Counting, 1)])
def test_lightning_takes_a_batch_ahead_of_a_stream_that_does_not_say_its_length(
    dataset: Any, lost: int, tmp_path: Path
) -> None:
    """And the state that it keeps counts that one, too: the guide says what to do."""
    whole = trained(DataLoader(dataset(), 4, num_workers=2), tmp_path)
    rest = trained(DataLoader(dataset(), 4, num_workers=2), tmp_path, resumes=True)
    assert len(whole) == 11
    assert rest == whole[3 + lost :]


def test_the_warning_points_at_who_loads_the_state() -> None:
    loader = DataLoader(Vectors(), 4, seed=1, on_state_mismatch="adapt")
    with pytest.warns(RuntimeWarning, match="restarts") as caught:
        loader.load_state_dict(DataLoader(Vectors(), 4, seed=2, shuffle=True).state_dict())
    assert [warning.filename for warning in caught] == [__file__]
