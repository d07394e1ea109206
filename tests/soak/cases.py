"""One case of the soak: a loader and what befalls it. Drawn from a seed, told as a script, and made simpler."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import datasets
import graphs
import numpy as np

from headrace.data import (
    BatchSampler,
    DistributedSampler,
    MixtureSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

# What only a loader with workers takes.
FOR_WORKERS = ("prefetch_factor", "threads_per_worker", "workers", "persistent_workers", "timeout")


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that happens just before an iteration is asked for its batch number ``at``.

    Attributes:
        what: "kill" a worker; "kill all"; "stop" one for a moment; "interrupt" the program while it waits; "edit" the
            dataset; "save" the loader's state; "reject": load a state that is refused; "fork" a child that asks the
            iterator for a batch; "rest" for a moment.
        seed: which worker, what is edited, how the state is spoiled.
        how: of an edit, as in ``graphs.EDITS``.
    """

    at: int
    what: str
    seed: int = 0
    how: str = ""


@dataclasses.dataclass(frozen=True)
class Step:
    """Something that happens to a loader.

    Attributes:
        what: "iterate": an epoch begins; "go on" with an iteration that was kept; "edit", "kill", "kill all", "reject",
            as in an :class:`Event`; "pause": nobody iterates for longer than workers wait; "refresh"; "set_epoch";
            "move": to another loader, by its state.
        take: of an iteration, how many batches; None: all.
        keep: whether an iteration that is not over is kept, to be gone on with; else nobody refers to it any more.
        events: in an iteration.
        seed: of an edit or a spoiled state; of "set_epoch", the epoch.
        how: of "move": "json", "checkpoint" (torch's distributed one), "pickle", "copy", "deepcopy", or "same": into
            the same loader; of an edit, as in ``graphs.EDITS``.
        workers: of "move": how many the other loader has.
        saved: of "move": whether the state is the one that was saved last; else that of now.
        aside: of "move" by a copy: how many batches the first loader gives before the copy gives any.
    """

    what: str
    take: int | None = None
    keep: bool = False
    events: tuple[Event, ...] = ()
    seed: int = 0
    how: str = ""
    workers: int = 0
    saved: bool = False
    aside: int = 0


@dataclasses.dataclass(frozen=True)
class Case:
    """A loader and what befalls it.

    Attributes:
        kind: of the dataset.
        own: whether each worker has a stream of its own.
        collate: "default", or the name of a function.
        sampler: by name; empty: none.
        arguments: of the loader, as they are.
        storm: workers are killed and stopped at random moments, too.
        keeps: all batches are kept to the end, and must not have changed.
        feeds: batches are taken from a queue that the loader feeds.
    """

    seed: int
    kind: str
    length: int
    size: int
    seconds: float
    deadly: tuple[int, ...]
    own: bool
    collate: str
    sampler: str
    workers: int | str
    context: str
    arguments: dict[str, Any]
    storm: bool
    keeps: bool
    feeds: bool
    steps: tuple[Step, ...]

    @property
    def is_stream(self) -> bool:
        return self.kind in datasets.STREAMS

    @property
    def threads(self) -> bool:
        return "workers" in self.arguments

    @property
    def ordered(self) -> bool:
        return bool(self.arguments.get("in_order", True))

    @property
    def in_grains_order(self) -> bool:
        return "order" in self.arguments

    @property
    def nodes(self) -> list[str]:
        """What a graph is made of."""
        chance = random.Random(self.seed)
        copied = any(step.how in ("pickle", "deepcopy") for step in self.steps)
        return graphs.kinds_of_nodes(chance, copied or self.context != "fork", chance.random() < 0.05)

    def make_dataset(self) -> tuple[Any, Any]:
        """The dataset and its ``collate_fn``, None for the default: alike whenever it is called."""
        chance = random.Random(self.seed)
        if self.is_stream:
            return datasets.make_stream(self.kind, self.length, self.own, chance, self.seconds), None
        if self.kind == "graph":
            dataset = graphs.Graph(chance, self.length, self.nodes)
            return dataset, graphs.Collate(chance, dataset) if self.collate == "object" else None
        collate = {"look": datasets.look, "gather": datasets.gather, "refuse": datasets.refuse}.get(self.collate)
        made = datasets.make_map(self.kind, self.length, chance, self.size, self.seconds, frozenset(self.deadly))
        return made, collate

    def make_arguments(self, dataset: Any, collate: Any, workers: int | str) -> dict[str, Any]:
        """The arguments of a loader with so many workers."""
        arguments = dict(self.arguments)
        if collate is not None:
            arguments["collate_fn"] = collate
        if self.sampler:
            arguments.update(_SAMPLERS[self.sampler](dataset, random.Random(self.seed), arguments.pop("batch_size", 1)))
        if workers == 0:
            for name in (*FOR_WORKERS, "num_workers_batches", "on_worker_death"):
                arguments.pop(name, None)
        elif not self.threads:
            arguments["multiprocessing_context"] = self.context
        if self.own:
            arguments["iterable_sharding"] = "dataset"
        return {"seed": 5, "num_workers": workers, **arguments}

    @property
    def features(self) -> frozenset[str]:
        """Words for what is in the case: to count, to choose and to leave out."""
        found = {self.kind, f"collate {self.collate}", f"workers {self.workers}", *self.arguments}
        found |= {f"sampler {self.sampler}"} if self.sampler else set()
        found |= {"torch"} if self.sampler in _TORCHS else set()
        found |= {self.context} if self.workers != 0 and not self.threads else set()
        if self.is_stream:
            found |= {"iterable", "own streams" if self.own else "one stream"}
            found |= {"ongoing"} if self.kind in datasets.ONGOING else set()
        else:
            found.add("map-style")
        for name in ("storm", "keeps", "feeds", "deadly", "seconds"):
            found |= {name} if getattr(self, name) else set()
        found |= {f"has {kind}" for kind in self.nodes} if self.kind == "graph" else set()
        epochs = 0
        for step in self.steps:
            found.add(step.what if step.what != "edit" else "edit between")
            if step.what == "iterate":
                if step.take is not None:
                    found |= {"kept" if step.keep else "break" if step.take else "untouched"}
                epochs += 1
            if step.what == "move":
                found |= {f"move {step.how}", *(["saved"] if step.saved else [])}
                found |= {"torch"} if step.how == "checkpoint" else set()
            if step.what == "edit" and self.kind == "graph":
                found.add(f"edit {step.how}")
            for event in step.events:
                found.add(f"{event.what} within")
                if "kill" in event.what and epochs > 1:
                    found.add("kill in a later epoch")
            if epochs and step.what == "edit":
                found.add("edit after an epoch")
        return frozenset(found)

    def script(self) -> str:
        """The case as a person would write it down."""
        dataset = f"{self.kind} of {self.length}" + (", deadly: " + str(self.deadly) if self.deadly else "")
        arguments = [f"{name}={value!r}" for name, value in self.arguments.items()]
        arguments += [f"sampler={self.sampler}"] if self.sampler else []
        arguments += [f"collate_fn={self.collate}"] if self.collate != "default" else []
        arguments += ["iterable_sharding='dataset'"] if self.own else []
        extra = [name for name in ("storm", "keeps", "feeds") if getattr(self, name)]
        lines = [
            f"DataLoader({dataset}, num_workers={self.workers!r}, {self.context}, {', '.join(arguments)})"
            + (f"  # {', '.join(extra)}" if extra else "")
            + (f"  # {self.seconds} s per sample" if self.seconds else "")
        ]
        for step in self.steps:
            fields = dataclasses.asdict(step)
            shown = {name: value for name, value in fields.items() if name not in ("what", "events") and value}
            if step.what == "move":
                shown["workers"] = step.workers
            if step.what in ("iterate", "go on"):
                shown["take"] = "all" if step.take is None else step.take
            lines.append("  " + " ".join([step.what, *(f"{name}={value}" for name, value in shown.items())]))
            lines += [f"    before batch {event.at}: {event.what} {event.how} {event.seed}" for event in step.events]
        return "\n".join(lines)


class Foreign:
    """A sampler of the program's own: a function of the epoch that it was told."""

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.seed + self.epoch).sample(range(self.length), self.length))


class ForeignBatches(Foreign):
    def __init__(self, length: int, seed: int, size: int) -> None:
        super().__init__(length, seed)
        self.size = size

    def __len__(self) -> int:
        return -(-self.length // self.size)

    def __iter__(self) -> Iterator[Any]:
        indices = list(super().__iter__())
        return iter([indices[first : first + self.size] for first in range(0, self.length, self.size)])


def _batches(dataset: Any, chance: random.Random, size: int) -> dict[str, Any]:
    sampler = RandomSampler(dataset, generator=chance.randrange(9))
    return {"batch_sampler": BatchSampler(sampler, size, chance.random() < 0.5)}


def _mixture(dataset: Any, chance: random.Random, size: int) -> dict[str, Any]:
    half = len(dataset) // 2
    lengths = [half, len(dataset) - half] if half else [len(dataset)]  # an empty part would be refused
    weights = [chance.randrange(1, 5) for _ in lengths]
    ends = chance.choice(["first_exhausted", "all_exhausted", 33])
    return {"sampler": MixtureSampler(lengths, weights, ends, generator=chance.randrange(9)), "batch_size": size}


def _one(make: Callable[[Any, random.Random], Any]) -> Callable[[Any, random.Random, int], dict[str, Any]]:
    return lambda dataset, chance, size: {"sampler": make(dataset, chance), "batch_size": size}


def _torch_distributed(dataset: Any, chance: random.Random) -> Any:
    from torch.utils.data import DistributedSampler as Torchs

    return Torchs(dataset, 3, chance.randrange(3), seed=chance.randrange(9))


def _torch_sequential(dataset: Any, chance: random.Random) -> Any:
    from torch.utils.data import SequentialSampler

    return SequentialSampler(dataset)


# Those that only a machine with PyTorch has.
_TORCHS = ("torch distributed", "torch sequential")

_SAMPLERS: dict[str, Callable[[Any, random.Random, int], dict[str, Any]]] = {
    "range": _one(lambda data, chance: range(len(data) - 1, -1, -1)),
    "list": _one(lambda data, chance: [chance.randrange(len(data)) for _ in range(chance.randrange(1, 40))]),
    "foreign": _one(lambda data, chance: Foreign(len(data), chance.randrange(9))),
    "random": _one(lambda data, chance: RandomSampler(data, generator=chance.randrange(9))),
    "replacement": _one(
        lambda data, chance: RandomSampler(data, True, chance.randrange(1, 70), generator=chance.randrange(9))
    ),
    "weighted": _one(
        lambda data, chance: WeightedRandomSampler(
            np.arange(1, len(data) + 1), chance.randrange(1, len(data) + 1), chance.random() < 0.5, chance.randrange(9)
        )
    ),
    "subset": _one(lambda data, chance: SubsetRandomSampler(range(0, len(data), 2), generator=chance.randrange(9))),
    "distributed": _one(
        lambda data, chance: DistributedSampler(data, 3, chance.randrange(3), seed=chance.randrange(9))
    ),
    "torch distributed": _one(_torch_distributed),
    "torch sequential": _one(_torch_sequential),
    "mixture": _mixture,
    "batches": _batches,
    "list of batches": lambda data, chance, size: {
        "batch_sampler": [list(range(first, min(first + size, len(data)))) for first in range(0, len(data), size)]
    },
    "foreign batches": lambda data, chance, size: {
        "batch_sampler": ForeignBatches(len(data), chance.randrange(9), size)
    },
}


def draw(seed: int) -> Case:
    """The case of a seed."""
    chance = random.Random(seed)

    def often(probability: float) -> bool:
        return chance.random() < probability

    stream = often(0.4)
    maps = ["graph"] * 7 + ["objects"] * 3 + ["numbers"] * 3 + ["refusing"] * 2 + list(datasets.MAPS)
    kind = chance.choice([*datasets.STREAMS, *datasets.ONGOING] if stream else maps)
    own = stream and kind in datasets.SIMPLE_STREAMS and often(0.4)
    workers: int | str = chance.choice([0, 1, 1, 2, 2, 3])
    workers = max(1, workers) if own else workers
    # Of workers that share a stream, not all read it to its end: one that does not tell where it is goes on anywhere.
    workers = 1 if kind == "hidden stream" and not own else workers
    arguments: dict[str, Any] = {"batch_size": chance.choice([1, 2, 2, 3, 5, 8])}
    collate = {"objects": "look", "graph": "object" if often(0.4) else "default"}.get(kind, "default")
    collate = "gather" if kind in ("arrays", "ragged") and often(0.3) else collate
    collate = "refuse" if kind.startswith("refusing") and often(0.5) else collate
    sampler = "" if stream or often(0.5) else chance.choice(list(_SAMPLERS))
    deadly: tuple[int, ...] = ()
    length = chance.choice([0, chance.randrange(8), chance.randrange(60), chance.randrange(60)])
    length = length if stream else max(2, length)
    if not stream:
        if not sampler and often(0.5):
            arguments["shuffle"] = True
        if kind == "numbers" and often(0.3) and workers:
            first = chance.randrange(length)
            deadly = tuple(range(first, min(length, first + chance.randrange(1, 5))))
            arguments.update(on_worker_death="skip", max_deaths_per_sample=1)
            sampler = "" if sampler in ("batches", "list of batches", "foreign batches") else sampler
        elif workers and often(0.1):
            arguments["workers"] = "thread"
        elif workers and kind in ("numbers", "graph", "arrays") and often(0.05):
            workers = "auto"
        if workers and not deadly and kind != "draws" and "workers" not in arguments and often(0.15):
            arguments["threads_per_worker"] = 2
        # Then samples are sent from one worker to another, and what they share is lost.
        if workers and kind != "objects" and collate != "object" and often(0.15):
            arguments["num_workers_batches"] = 1
    if kind == "draws" or (not stream and "workers" not in arguments and often(0.1)):
        arguments["seed_records"] = chance.choice([True, "position"])
        arguments.pop("threads_per_worker", None)
        if arguments.pop("workers", None):
            pass
    if kind == "ragged" and collate == "default":
        arguments["ragged"] = chance.choice(["pad", ("pad", 7), "list", "lod"])
    batched = sampler not in ("batches", "list of batches", "foreign batches")
    if batched and collate == "default" and kind not in ("ragged",) and often(0.06):
        arguments["batch_size"] = None
    elif batched and often(0.25):
        arguments["drop_last"] = True
    if often(0.25):
        arguments["in_order"] = False
    listed = sampler in ("", "range", "list") and "shuffle" not in arguments and "seed_records" not in arguments
    if listed and not stream and not deadly and workers != "auto" and arguments["batch_size"] and often(0.3):
        arguments["order"] = "grain"
    if batched and not own and "distributed" not in sampler and often(0.15):
        world = chance.randrange(2, 4)
        arguments["shard"] = (chance.randrange(world), world)
    if workers:
        if often(0.4):
            arguments["prefetch_factor"] = chance.randrange(1, 7)
        if often(0.25) and kind != "hidden stream":
            arguments["persistent_workers"] = False
        if often(0.1):
            arguments["timeout"] = 100
    context = chance.choice(["forkserver", "spawn"]) if often(0.02) else "fork"
    processes = workers != 0 and "workers" not in arguments
    storm = processes and not deadly and kind != "hidden stream" and often(0.08)
    kills = processes and not deadly and kind != "hidden stream"
    if kills:
        arguments["max_deaths_per_sample"] = 20
    feeds = kind == "arrays" and collate == "default" and workers != 0 and "batch_size" in arguments and often(0.3)
    feeds = feeds and arguments["batch_size"] is not None
    case = Case(
        seed=seed,
        kind=kind,
        length=length,
        size=int(2 ** chance.uniform(0, 17)),
        seconds=chance.choice([0, 0, 0, 0.0002, 0.002]),
        deadly=deadly,
        own=own,
        collate=collate,
        sampler=sampler,
        workers=workers,
        context=context,
        arguments=arguments,
        storm=storm,
        keeps=often(0.15),
        feeds=feeds,
        steps=(),
    )
    return dataclasses.replace(case, steps=tuple(_draw_steps(case, chance, kills)))


def _draw_steps(case: Case, chance: random.Random, kills: bool) -> Iterator[Step]:
    batches = max(1, case.length // (case.arguments.get("batch_size") or 1))
    workers, kept, iterated = case.workers, False, False
    edits = case.kind not in ("columns", "hidden stream") and not case.deadly
    for _ in range(chance.randrange(1, 6)):
        if edits and chance.random() < 0.4:
            for _ in range(chance.choice([1, 1, 2])):
                yield Step("edit", seed=chance.randrange(1, 1 << 30), how=chance.choice(graphs.EDITS))
            if chance.random() < 0.2:
                yield Step("refresh")
        if chance.random() < 0.15:
            yield Step("pause")
        if kills and iterated and chance.random() < 0.15:
            yield Step(chance.choice(["kill", "kill all"]), seed=chance.randrange(9))
        if case.kind != "hidden stream":
            if chance.random() < 0.06:
                yield Step("reject", seed=chance.randrange(1 << 30))
            if not kept and chance.random() < 0.08:
                yield Step("set_epoch", seed=chance.randrange(6))
        partly = case.kind != "hidden stream" and not case.feeds and chance.random() < 0.5
        keep = partly and not kept and chance.random() < 0.5
        take = chance.randrange(1 if keep or kept else 0, batches + 2) if partly else None
        yield Step("iterate", take, keep, tuple(_draw_events(case, chance, batches, kills, edits)))
        iterated = True
        if case.kind == "hidden stream":
            continue
        if kept and chance.random() < 0.7:
            take = chance.choice([None, chance.randrange(batches + 1)])
            yield Step("go on", take, events=tuple(_draw_events(case, chance, batches, kills, False)))
            kept = take is not None
        kept = kept or keep
        if chance.random() < 0.3 and not case.feeds:
            how = chance.choice(["json", "json", "json", "checkpoint", "same", "pickle", "copy", "deepcopy"])
            free = not case.own and not case.deadly and not case.in_grains_order
            if isinstance(workers, int) and how in ("json", "checkpoint") and free:
                workers = chance.randrange(1 if case.threads else 0, 4)
            workers = 2 if workers == "auto" else workers
            saved = how in ("json", "same") and chance.random() < 0.4
            aside = chance.randrange(1, 4) if how in ("pickle", "copy", "deepcopy") and chance.random() < 0.4 else 0
            yield Step("move", how=how, workers=int(workers), saved=saved, aside=aside)
            kept = False


def _draw_events(case: Case, chance: random.Random, batches: int, kills: bool, edits: bool) -> Iterator[Event]:
    able = ["rest"]
    if case.kind != "hidden stream" and not case.feeds:
        able += ["save", "save", "reject", "interrupt", "fork"]
        able += ["kill", "kill", "kill all", "stop"] if kills else []
    able += ["edit"] if edits and not case.feeds else []
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3])):
        what = chance.choice(able)
        how = chance.choice(graphs.EDITS) if what == "edit" else ""
        yield Event(chance.randrange(batches + 1), what, chance.randrange(1, 1 << 20), how)


def simpler(case: Case) -> Iterator[Case]:
    """Cases with something less."""
    for number, step in enumerate(case.steps):
        rest = case.steps[:number], case.steps[number + 1 :]
        yield dataclasses.replace(case, steps=rest[0] + rest[1])
        for event in range(len(step.events)):
            fewer = dataclasses.replace(step, events=step.events[:event] + step.events[event + 1 :])
            yield dataclasses.replace(case, steps=(*rest[0], fewer, *rest[1]))
    needed = {"batch_size", "workers", "seed_records", "on_worker_death", "max_deaths_per_sample", "ragged"}
    for name in set(case.arguments) - needed:
        arguments = {other: value for other, value in case.arguments.items() if other != name}
        yield dataclasses.replace(case, arguments=arguments)
    for changes in itertools.chain(
        ({"sampler": ""},) if case.sampler else (),
        ({"storm": False},) if case.storm else (),
        ({"keeps": False},) if case.keeps else (),
        ({"feeds": False},) if case.feeds else (),
        ({"seconds": 0},) if case.seconds else (),
        ({"context": "fork"},) if case.context != "fork" else (),
        ({"workers": 1},) if case.workers in (2, 3, "auto") else (),
    ):
        yield dataclasses.replace(case, **changes)  # type: ignore[arg-type]
