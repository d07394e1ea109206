"""Trains on numbered samples in two processes, with loaders that share these out in several ways, and writes down which
samples each process was given in each epoch, and what it was told; see test_distributed.py.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import BatchSampler, Dataset, DistributedSampler

from headrace.torch import DataLoader

EPOCHS = 2
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
Seen = list[list[int]]


class Numbered(Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.tensor([float(index)]), "labels": torch.tensor([0.0])}


def loader(**arguments: Any) -> DataLoader:
    return DataLoader(Numbered(), batch_size=5, shuffle=True, num_workers=2, **arguments)


def share(rank: int, world: int) -> DataLoader:
    """As the warning says; of a number of samples that cannot be shared out evenly."""
    arguments = {"shuffle": True, "seed": 7, "shard": (rank, world), "drop_last": True}
    return DataLoader(Numbered(43), batch_size=5, num_workers=2, **arguments)


def given(batches: Any, step: Callable[[Any], object] = lambda batch: None) -> Seen:
    """The samples of each epoch."""
    seen: Seen = []
    for epoch in range(EPOCHS):
        if isinstance(getattr(batches, "sampler", None), DistributedSampler):
            batches.sampler.set_epoch(epoch)
        seen.append([])
        for batch in batches:
            seen[-1] += [int(x) for x in batch["x"]]
            step(batch)
    return seen


def told(run: Callable[[], Any]) -> str:
    """What a warning or an error says of the shares."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            run()
        except ValueError as error:
            return str(error)
    return " ".join(str(each.message) for each in caught if "is one of 2" in str(each.message))


def torchrun(folder: str) -> tuple[dict[str, Seen], dict[str, str]]:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))

    def step(batch: Any) -> None:
        model(batch["x"]).square().mean().backward()

    def sampler() -> Any:
        return DistributedSampler(Numbered(), seed=3)

    seen = {
        "sampler": given(DataLoader(Numbered(), 5, sampler=sampler(), num_workers=2), step),
        "share": given(share(RANK, WORLD), step),
    }
    said = {
        "unshared": told(lambda: given(loader())),
        "twice": told(lambda: DataLoader(Numbered(), 5, sampler=sampler(), shard=(RANK, WORLD))),
        "twice, by batches": told(
            lambda: DataLoader(Numbered(), batch_sampler=BatchSampler(sampler(), 5, False), shard=(RANK, WORLD))
        ),
    }
    torch.distributed.destroy_process_group()
    return seen, said


def lightning(folder: str) -> tuple[dict[str, Seen], dict[str, str]]:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: Seen = []

        def training_step(self, batch: Any, number: int) -> Any:
            if number == 0:
                self.seen.append([])
            self.seen[-1] += [int(x) for x in batch["x"]]
            return self.layer(batch["x"]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-6)

    def fit(batches: Any, **arguments: Any) -> Seen:
        trainer = lightning.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            strategy="ddp",
            devices=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            **arguments,
        )
        model = Model()
        trainer.fit(model, batches)
        assert trainer.train_dataloader.stats()["workers"] == 2
        return model.seen

    own = {"use_distributed_sampler": False}
    seen = {"sampler": fit(loader()), "share": fit(share(RANK, WORLD), **own)}
    return seen, {"unshared": told(lambda: fit(loader(), **own)), "twice": told(lambda: fit(share(RANK, WORLD)))}


def accelerate(folder: str) -> tuple[dict[str, Seen], dict[str, str]]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    layer = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 1e-6))

    def step(batch: Any) -> None:
        accelerator.backward(model(batch["x"]).square().mean())
        optimizer.step()

    batches = share(accelerator.process_index, accelerator.num_processes)
    seen = {"sampler": given(accelerator.prepare(loader())), "share": given(batches, step)}
    assert batches.stats()["workers"] == 2
    return seen, {"unshared": told(lambda: given(loader()))}


def trainer(folder: str) -> tuple[dict[str, Seen], dict[str, str]]:
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.steps: list[list[int]] = []

        def forward(self, x: Any, labels: Any) -> Any:
            self.steps.append([int(value) for value in x])
            return {"loss": (self.layer(x) - labels).square().mean()}

    def train(make: Callable[[Any], Any]) -> Seen:
        class Trainer(transformers.Trainer):
            def get_train_dataloader(self) -> Any:
                return make(self.accelerator)

        arguments = transformers.TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            use_cpu=True,
            per_device_train_batch_size=5,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            learning_rate=1e-6,
        )
        model = Model()
        Trainer(model, arguments, train_dataset=Numbered()).train()
        middle = len(model.steps) // EPOCHS
        return [[x for step in steps for x in step] for steps in (model.steps[:middle], model.steps[middle:])]

    own: list[Any] = []

    def make_share(accelerator: Any) -> Any:
        own.append(share(accelerator.process_index, accelerator.num_processes))
        return own[-1]

    seen = {"sampler": train(lambda accelerator: accelerator.prepare(loader())), "share": train(make_share)}
    assert own[-1].stats()["workers"] == 2
    return seen, {"unshared": told(lambda: train(lambda accelerator: loader()))}


if __name__ == "__main__":
    torch.manual_seed(0)
    programs = (torchrun, lightning, accelerate, trainer)
    result = {program.__name__: program for program in programs}[sys.argv[1]](sys.argv[2])
    Path(sys.argv[2], f"rank{RANK}.json").write_text(json.dumps(result))
