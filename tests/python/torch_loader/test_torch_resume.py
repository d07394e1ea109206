"""Taking the state of the drop-in, and going on from it, in programs that draw from torch's generators."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace import errors  # noqa: E402
from headrace.data import RandomSampler  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402


class Numbers(torch_data.Dataset):  # type: ignore[misc, type-arg, unused-ignore]
    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Counted(Numbers):
    """Knows how often it was trained on."""

    rounds = 0

    def __getitem__(self, index: int) -> int:
        return 100 * self.rounds + index

    def state_dict(self) -> dict[str, int]:
        return {"rounds": self.rounds}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.rounds = state["rounds"]


class Epochs(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Counts its own epochs, and says where it is."""

    def __init__(self) -> None:
        self.at = self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 8:
            self.at += 1
            yield 100 * self.epoch + self.at
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class Ending(Epochs):
    """Resumes once: nothing follows a state at its end, and all of it follows that."""

    start = 0

    def __iter__(self) -> Iterator[int]:
        start = self.start
        self.start = self.begin_again(start)
        for self.at in range(start + 1, 9):
            yield self.at

    def begin_again(self, start: int) -> int:
        return 0

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


class Staying(Ending):
    """Resumes at the same place every time."""

    def begin_again(self, start: int) -> int:
        return start


class Told(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Says the epoch that the program has told."""

    epoch = 7

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 4)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def values(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def indices(batches: Any) -> list[int]:
    return [index for batch in values(batches) for index in batch]


def saved(loader: DataLoader) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


def generator() -> Any:
    return torch.Generator().manual_seed(5)


LOADERS: dict[str, Callable[..., DataLoader]] = {
    "shuffle": lambda **more: DataLoader(Numbers(), 4, shuffle=True, **more),
    "generator": lambda **more: DataLoader(Numbers(), 4, shuffle=True, generator=generator(), **more),
    "sampler": lambda **more: DataLoader(
        Numbers(), 4, sampler=torch_data.RandomSampler(range(24), generator=generator()), **more
    ),
    "subset": lambda **more: DataLoader(
        Numbers(), 4, sampler=torch_data.SubsetRandomSampler(range(2, 23), generator=generator()), **more
    ),
}
# Those that draw from torch's global generator, and nothing before that.
GLOBAL: dict[str, Callable[..., DataLoader]] = {
    "replacement": lambda **more: DataLoader(
        Numbers(), 4, sampler=torch_data.RandomSampler(range(24), replacement=True), **more
    ),
    "weighted": lambda **more: DataLoader(
        Numbers(), 4, sampler=torch_data.WeightedRandomSampler([1.0, 2, 3, 4], 21), **more
    ),
    "subset": lambda **more: DataLoader(Numbers(), 4, sampler=torch_data.SubsetRandomSampler(range(2, 23)), **more),
    "batches": lambda **more: DataLoader(
        Numbers(), batch_sampler=torch_data.BatchSampler(torch_data.RandomSampler(range(24)), 5, False), **more
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*LOADERS, *(f"global {kind}" for kind in GLOBAL)])
def test_the_rest_of_an_epoch_is_what_it_would_have_been(kind: str, workers: int) -> None:
    make = LOADERS[kind] if kind in LOADERS else GLOBAL[kind.split()[1]]
    torch.manual_seed(1)
    loader = make(num_workers=workers)
    for _ in range(2):
        torch.rand(3)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        torch.rand(2)  # the model's, say
        state = saved(loader)
        rest = values(batches)
        torch.manual_seed(77)  # another process, in which other things were drawn before
        resumed = make(num_workers=workers)
        resumed.load_state_dict(state)
        assert values(resumed) == rest
        assert len(rest) >= 2


def trained(loader: DataLoader, epochs: int, batches: int = 0) -> list[tuple[list[int], float]]:
    """What a program sees in some epochs, and in the first batches of one more: each batch, and a number of its own."""
    taken = []
    for number in range(epochs + bool(batches)):
        for batch in loader if number < epochs else itertools.islice(loader, batches):
            taken.append((batch.tolist(), torch.rand(()).item()))
    return taken


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*LOADERS, *(f"global {kind}" for kind in GLOBAL)])
def test_a_program_that_restores_its_generator_continues_as_if_it_had_not_stopped(kind: str, workers: int) -> None:
    make = LOADERS[kind] if kind in LOADERS else GLOBAL[kind.split()[1]]
    torch.manual_seed(1)
    whole = trained(make(num_workers=workers), 4)
    for epochs, batches in ((0, 0), (0, 1), (0, 5), (1, 0), (1, 2), (2, 0)):
        torch.manual_seed(1)
        loader = make(num_workers=workers)
        begin = trained(loader, epochs, batches)
        state, numbers = saved(loader), torch.get_rng_state()
        torch.manual_seed(77)
        resumed = make(num_workers=workers)
        resumed.load_state_dict(state)
        torch.set_rng_state(numbers)
        assert begin + trained(resumed, 4 - epochs) == whole, (epochs, batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("kind", "seed"), [*((kind, None) for kind in LOADERS), ("sampler", 3), ("subset", 3)])
def test_a_state_between_epochs_brings_the_order_of_the_next(kind: str, seed: int | None, workers: int) -> None:
    torch.manual_seed(1)
    loader = LOADERS[kind](num_workers=workers, seed=seed)
    for epoch in range(3):
        state = saved(loader)
        order = values(loader)
        torch.manual_seed(1000 + epoch)
        resumed = LOADERS[kind](num_workers=workers, seed=seed)
        resumed.load_state_dict(state)
        assert saved(resumed) == state
        assert values(resumed) == order


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_state_beside_an_iterator_that_nobody_has_read_yet(kind: str, workers: int) -> None:
    torch.manual_seed(1)
    loader = LOADERS[kind](num_workers=workers)
    for _ in range(2):
        iter(loader)
        dropped = saved(loader)
        batches = iter(loader)
        kept = saved(loader)
        order = values(batches)
        for state in (kept, dropped):
            torch.manual_seed(77)
            resumed = LOADERS[kind](num_workers=workers)
            resumed.load_state_dict(state)
            unread = iter(resumed)
            assert saved(resumed) == state
            del unread
            assert saved(resumed) == state
            assert values(resumed) == order


def test_the_datasets_own_state_is_asked_for_beside_an_iterator_that_nobody_has_read_yet() -> None:
    loader = DataLoader(Epochs(), 4)
    loader.dataset.epoch = 3
    batches = iter(loader)
    state = saved(loader)
    expected = values(batches)
    resumed = DataLoader(Epochs(), 4)
    resumed.load_state_dict(state)
    assert values(resumed) == expected == [[301, 302, 303, 304], [305, 306, 307, 308]]


def test_asking_for_the_state_draws_nothing() -> None:
    for make in (*LOADERS.values(), *GLOBAL.values()):
        orders = []
        for asks in (False, True):
            torch.manual_seed(4)
            loader = make()
            if asks:
                loader.state_dict()
            orders.append((values(loader), torch.rand(1).item()))
        assert orders[0] == orders[1]


class Unrepeatable:
    """Draws from Python's own generator."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(24), 24))

    def __len__(self) -> int:
        return 24


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_cannot_repeat_its_indices_is_an_error(workers: int) -> None:
    loader = DataLoader(Numbers(), 4, sampler=Unrepeatable(), num_workers=workers)
    random.seed(1)
    batches = iter(loader)
    next(batches), next(batches)
    state = saved(loader)
    rest = values(batches)
    resumed = DataLoader(Numbers(), 4, sampler=Unrepeatable(), num_workers=workers)
    resumed.load_state_dict(state)
    with pytest.raises(errors.FailedPrecondition, match=r"the sampler \(Unrepeatable\) yields other indices"):
        list(resumed)
    random.seed(1)
    resumed.load_state_dict(state)
    assert values(resumed) == rest


class Remembering:
    """A sampler in torchdata's form: it counts its epochs, and continues where a state that was loaded says.

    Args:
        size: of the batches that it gives; None: it gives indices.
        as_iterator: each epoch has an iterator of its own, which has counted the epoch when it is made.
        count: of indices.
    """

    def __init__(self, size: int | None = None, as_iterator: bool = False, count: int = 24) -> None:
        self.size, self.as_iterator, self.count = size, as_iterator, count
        self.epoch = self.at = 0

    def __len__(self) -> int:
        return self.count if self.size is None else -(-self.count // self.size)

    def __iter__(self) -> Iterator[Any]:
        if self.as_iterator and self.at in (0, len(self)):
            self.epoch, self.at = self.epoch + 1, 0
        return self.rest()

    def rest(self) -> Iterator[Any]:
        order: list[Any] = random.Random(self.epoch).sample(range(self.count), self.count)
        if self.size is not None:
            order = [order[i : i + self.size] for i in range(0, self.count, self.size)]
        while self.at < len(order):
            self.at += 1
            yield order[self.at - 1]
        if not self.as_iterator:
            self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class Telling(Remembering):
    """Has another order in each epoch that it is told of."""

    told = 0

    def set_epoch(self, epoch: int) -> None:
        self.told = epoch

    def rest(self) -> Iterator[Any]:
        return (((index + self.told) % self.count) for index in super().rest())


class Distributed(torch_data.DistributedSampler[int]):
    """As torchdata's: a state at the end of an epoch is followed by nothing, and then by the next one."""

    def __init__(self, count: int = 24) -> None:
        super().__init__(Numbers(count), num_replicas=2, rank=1)
        self.at = self.start = 0

    def __iter__(self) -> Iterator[int]:
        self.at, self.start = self.start, 0
        for index in list(super().__iter__())[self.at :]:
            self.at += 1
            yield index

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


REMEMBERING: dict[str, Callable[..., DataLoader]] = {
    "indices": lambda **more: DataLoader(Numbers(), 5, sampler=Remembering(), **more),
    "iterators": lambda **more: DataLoader(Numbers(), 5, sampler=Remembering(as_iterator=True), **more),
    "batches": lambda **more: DataLoader(Numbers(), batch_sampler=Remembering(5), **more),
    "wrapped": lambda **more: DataLoader(
        Numbers(), batch_sampler=torch_data.BatchSampler(Remembering(), 5, False), **more
    ),
    "distributed": lambda **more: DataLoader(Numbers(), 3, sampler=Distributed(), **more),
}

TELLING = {"telling": lambda **more: DataLoader(Numbers(), 5, sampler=Telling(), **more)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", REMEMBERING)
def test_the_state_of_a_sampler_is_kept(kind: str, workers: int) -> None:
    whole = REMEMBERING[kind]()
    expected = [values(whole) for _ in range(3)]
    count = len(expected[0])
    for epochs, batches in ((0, 0), (0, 1), (1, 0), (1, 2), (2, 0), (2, count)):
        loader = REMEMBERING[kind](num_workers=workers)
        for epoch in range(epochs):
            assert values(loader) == expected[epoch]
        running = itertools.islice(loader if batches else (), batches)
        assert values(running) == expected[epochs][:batches]
        resumed = REMEMBERING[kind](num_workers=2 - workers)
        resumed.load_state_dict(saved(loader))
        once_more = REMEMBERING[kind]()  # of a state of what has not been read yet
        once_more.load_state_dict(saved(resumed))
        for each in (resumed, once_more):
            assert [values(each) for _ in expected[epochs:]] == [expected[epochs][batches:], *expected[epochs + 1 :]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", REMEMBERING)
def test_the_state_of_a_sampler_is_that_of_its_epoch_after_one_that_was_left(kind: str, workers: int) -> None:
    ahead = {"num_workers": workers, "prefetch_factor": 1 if workers else None}  # batches are left to be drawn
    loader, resumed = REMEMBERING[kind](**ahead), REMEMBERING[kind]()
    values(itertools.islice(loader, 1))
    running = iter(loader)
    values(itertools.islice(running, 1))
    resumed.load_state_dict(saved(loader))
    rest = values(running)
    assert values(resumed) == rest
    assert rest


@pytest.mark.parametrize("unread", ["kept", "dropped", None])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", REMEMBERING)
def test_a_state_before_the_first_batch_is_that_of_its_epoch_after_one_that_was_left(
    kind: str, workers: int, unread: str | None
) -> None:
    loader, resumed = REMEMBERING[kind](num_workers=workers), REMEMBERING[kind]()
    values(itertools.islice(loader, 1))
    batches: Any = loader
    if unread == "kept":
        batches = iter(loader)
    elif unread == "dropped":
        iter(loader)
    else:
        loader.set_epoch(1)
        resumed.set_epoch(1)
    saved(loader)  # asking changes nothing
    resumed.load_state_dict(saved(loader))
    assert values(resumed) == values(batches)
    assert values(resumed) == values(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*LOADERS, *REMEMBERING, "telling"])
def test_another_epoch_than_that_of_a_state_between_two_goes_on_as_if_the_program_had_not_stopped(
    kind: str, workers: int
) -> None:
    """Its number decides on the order of a sampler that is told the number, and on no other."""

    def make(number: int) -> DataLoader:
        torch.manual_seed(1)
        return (LOADERS | REMEMBERING | TELLING)[kind](num_workers=number)

    def choose(loader: DataLoader) -> None:
        for epoch in (3, 1):
            loader.set_epoch(epoch)

    def following(loader: DataLoader) -> list[list[list[int]]]:
        torch.manual_seed(3)
        return [values(loader) for _ in range(1 if kind == "shuffle" else 2)]  # whose state has drawn one order

    loader, resumed, again = make(workers), make(2 - workers), make(0)
    values(loader)
    torch.manual_seed(3)
    resumed.load_state_dict(saved(loader))
    choose(resumed)
    again.load_state_dict(saved(resumed))
    again.set_epoch(1)  # a sampler is told by each program
    choose(loader)
    expected = following(loader)
    assert following(resumed) == expected
    assert following(again) == expected


@pytest.mark.parametrize("kind", REMEMBERING)
def test_another_epoch_after_one_that_was_left_goes_on_with_the_sampler(kind: str) -> None:
    """Whose state is in the middle of an epoch: its first index tells whether it goes on there."""
    loader, resumed = REMEMBERING[kind](), REMEMBERING[kind]()
    values(itertools.islice(loader, 1))
    loader.set_epoch(1)
    resumed.load_state_dict(saved(loader))
    for each in (loader, resumed):
        each.set_epoch(6)
    for _ in range(2):
        assert values(resumed) == values(loader)


def test_another_epoch_within_that_of_a_state_begins_anew() -> None:
    loader = REMEMBERING["indices"]()
    expected = [values(loader) for _ in range(2)]
    values(itertools.islice(loader, 2))
    resumed = REMEMBERING["indices"]()
    resumed.load_state_dict(saved(loader))
    resumed.set_epoch(6)
    assert [values(resumed) for _ in range(2)] == expected


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("as_iterator", [False, True])
def test_an_interrupt_of_a_sampler_with_a_state_loses_no_index(as_iterator: bool, draws: bool) -> None:
    class Interrupted(Remembering):
        at_index = 0

        def rest(self) -> Iterator[Any]:
            if draws:
                self.epoch = torch.randint(100, ()).item()
            for index in super().rest():
                if self.at == self.at_index:
                    self.at_index = 0
                    raise KeyboardInterrupt
                yield index

    sampler = Interrupted(as_iterator=as_iterator)
    torch.manual_seed(3)
    expected = [values(DataLoader(Numbers(), 5, sampler=sampler)) for _ in range(2)]
    sampler.epoch = sampler.at = 0
    torch.manual_seed(3)
    sampler.at_index = 3
    batches = iter(DataLoader(Numbers(), 5, sampler=sampler))
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert values(batches) == expected[0]
    assert values(DataLoader(Numbers(), 5, sampler=sampler)) == expected[1]


def test_the_state_of_a_sampler_may_hold_anything_and_need_not_be_there_yet() -> None:
    class Own(Remembering):
        def state_dict(self) -> Any:
            if self.at == 0:
                raise RuntimeError("it has not begun")
            return {"at": torch.tensor(self.at), "order": super().state_dict()}

        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict({**state["order"], "at": int(state["at"])})

    loader, resumed = (DataLoader(Numbers(), 4, sampler=Own()) for _ in range(2))
    resumed.load_state_dict(loader.state_dict())
    assert values(resumed) == values(loader)
    broken = Own()
    broken.at = 20
    expected = values(DataLoader(Numbers(), 4, sampler=broken))
    broken.at, broken.epoch = 20, 0
    resumed.load_state_dict(DataLoader(Numbers(), 4, sampler=broken).state_dict())
    assert values(resumed) == expected


SAMPLERS: dict[str, Callable[[], Any]] = {
    "remembering": Remembering,
    "distributed": Distributed,
    "generator": lambda: torch_data.RandomSampler(range(24), generator=generator()),
    "global": lambda: torch_data.RandomSampler(range(24)),
    "subset": lambda: torch_data.SubsetRandomSampler(range(24), generator=generator()),
    "Headrace's": lambda: RandomSampler(range(24), generator=generator()),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_other_batches_of_a_sampler_that_repeats_its_order_go_on_at_the_sample(kind: str) -> None:
    loader = DataLoader(Numbers(), 2, sampler=SAMPLERS[kind]())
    values(itertools.islice(loader, 1))
    batches = iter(loader)
    values(itertools.islice(batches, 3))
    state, rest = saved(loader), indices(batches)
    resumed = DataLoader(Numbers(), 3, sampler=SAMPLERS[kind](), on_state_mismatch="adapt")
    resumed.load_state_dict(state)
    assert indices(resumed) == rest


@pytest.mark.parametrize("kind", SAMPLERS)
def test_an_epoch_that_restarts_has_the_order_of_its_sampler(kind: str) -> None:
    torch.manual_seed(1)
    loader = DataLoader(Numbers(), 4, sampler=SAMPLERS[kind]())
    expected = [values(loader) for _ in range(2)][1]
    torch.manual_seed(1)
    loader = DataLoader(Numbers(), 4, sampler=SAMPLERS[kind]())
    values(loader)
    values(itertools.islice(loader, 1))
    resumed = DataLoader(Numbers(25), 4, sampler=SAMPLERS[kind](), on_state_mismatch="adapt")
    with pytest.warns(RuntimeWarning, match=r"length=24.*The epoch restarts$"):
        resumed.load_state_dict(saved(loader))
    assert values(resumed) == expected


def test_the_state_of_a_sampler_needs_one_that_has_a_state() -> None:
    state = DataLoader(Numbers(), 4, sampler=Remembering()).state_dict()
    plain = type("Remembering", (), {"__len__": Remembering.__len__, "__iter__": Remembering.__iter__, "size": None})
    with pytest.raises(ValueError, match="the sampler of this loader has no load_state_dict"):
        DataLoader(Numbers(), 4, sampler=plain()).load_state_dict(state)


@pytest.mark.parametrize("state", [{"drawn": -1}, {"drawn": "1"}, {"torch_global": "x"}, {"other": 1}])
def test_a_replay_that_is_none_is_refused(state: dict[str, Any]) -> None:
    loader = DataLoader(Numbers(), 4, sampler=Unrepeatable())
    with pytest.raises((TypeError, ValueError), match="of the state"):
        loader.load_state_dict({**loader.state_dict(), "details": json.dumps({"plan": state})})
    with pytest.raises(ValueError, match=r"sampler with a torch.Generator"):
        loader.load_state_dict({**loader.state_dict(), "details": LOADERS["sampler"]().state_dict()["details"]})


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_map_style_dataset_is_kept(workers: int) -> None:
    loader = DataLoader(Counted(), 12, num_workers=workers)
    loader.dataset.rounds = 3
    next(iter(loader))
    state = saved(loader)
    resumed = DataLoader(Counted(), 12, num_workers=workers)
    resumed.load_state_dict(state)
    assert values(resumed) == [list(range(312, 324))]
    with pytest.raises(ValueError, match="Numbers has no load_state_dict"):
        DataLoader(Numbers(), 12).load_state_dict(state)


@pytest.mark.parametrize("dataset", [Epochs, Ending, Staying])
def test_a_stateful_stream_goes_on_between_epochs(dataset: Any) -> None:
    loader = DataLoader(dataset(), 4)
    for _ in range(3):
        state = saved(loader)
        resumed = DataLoader(dataset(), 4)
        resumed.load_state_dict(state)
        assert values(resumed) == values(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_program_tells_a_dataset_its_epoch_and_nobody_else(workers: int) -> None:
    loader = DataLoader(Told(), 4, num_workers=workers, persistent_workers=workers > 0)
    for epoch in (7, 7, 3, 9):
        if epoch == 3:
            loader.dataset.set_epoch(3)
        elif epoch == 9:
            loader.set_epoch(9)
        assert values(loader) == [[epoch] * 4] * max(1, workers)


@pytest.mark.parametrize("way", ["shard", "sampler"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 4), (4, 2)])
def test_the_number_of_processes_may_change_within_an_epoch(way: str, before: int, after: int) -> None:
    def group(world: int) -> list[DataLoader]:
        loaders = []
        for rank in range(world):
            more: dict[str, Any] = {"shard": (rank, world), "shuffle": True, "seed": 3}
            if way == "sampler":
                sampler = torch_data.DistributedSampler(Numbers(61), world, rank, seed=3)
                sampler.set_epoch(2)
                more = {"sampler": sampler}
            loaders.append(DataLoader(Numbers(61), 8 // world, **more))
        return loaders

    def global_batches(loaders: list[DataLoader]) -> list[set[int]]:
        shares = [values(loader) for loader in loaders]
        return [set().union(*(share[i] for share in shares if i < len(share))) for i in range(len(shares[0]))]

    expected = global_batches(group(1))
    old = group(before)
    states = []
    for loader in old:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        states.append(saved(loader))
    assert all({**state, "seed": 3} == {**states[0], "seed": 3} for state in states)
    new = group(after)
    for loader in new:
        loader.load_state_dict(states[0])
    assert len(new[0]) == 8
    got = global_batches(new)
    # What DistributedSampler repeats at the end, so that all have as many, depends on their number.
    assert got[:-1] == expected[3:-1]
    assert got[-1] >= expected[-1]


def test_a_distributed_sampler_in_another_epoch_is_an_error() -> None:
    def make(epoch: int) -> DataLoader:
        sampler = torch_data.DistributedSampler(Numbers(), 2, 1)
        sampler.set_epoch(epoch)
        return DataLoader(Numbers(), 4, sampler=sampler)

    loader = make(2)
    next(iter(loader))
    resumed = make(0)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(errors.FailedPrecondition, match="set_epoch"):
        list(resumed)


def test_an_epoch_of_a_distributed_sampler_that_was_not_set_is_an_error() -> None:
    """It names the sampler that the user has, and what to call."""

    def make() -> tuple[torch_data.DistributedSampler[int], DataLoader]:
        sampler: torch_data.DistributedSampler[int] = torch_data.DistributedSampler(Numbers(), num_replicas=2, rank=0)
        return sampler, DataLoader(Numbers(), 4, sampler=sampler)

    sampler, loader = make()
    sampler.set_epoch(1)
    batches = iter(loader)
    next(batches)
    state, rest = saved(loader), values(batches)
    sampler, resumed = make()
    resumed.load_state_dict(state)
    with pytest.raises(errors.FailedPrecondition, match=r"the sampler \(DistributedSampler\).*set_epoch"):
        list(resumed)
    sampler.set_epoch(1)
    resumed.load_state_dict(state)
    assert values(resumed) == rest


class Parted(torch_data.IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
    """Each worker has a part, of numbers that tell it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def part(self) -> list[int]:
        worker = torch_data.get_worker_info()
        number, parts = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return [1000 * number + at for at in range(number, self.length, parts)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.part())


class PartedOnward(Parted):
    """Says where it is, and in which of its epochs."""

    at = epoch = 0

    def __iter__(self) -> Iterator[int]:
        part = self.part()
        while self.at < len(part):
            self.at += 1
            yield part[self.at - 1] + 100_000 * self.epoch
        self.at, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.epoch = state["at"], state["epoch"]


class PartedIterators(Parted):
    """Has iterators that say where they are."""

    class Each:
        def __init__(self, part: list[int]) -> None:
            self.part, self.at = part, 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            if self.at == len(self.part):
                raise StopIteration
            self.at += 1
            return self.part[self.at - 1]

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    def __iter__(self) -> Iterator[int]:
        return self.Each(self.part())


def torch_batches(sampler: Any) -> Callable[[int, int], dict[str, Any]]:
    return lambda length, size: {"batch_sampler": torch_data.BatchSampler(sampler(length), size, False)}


# By length and size of a batch: the arguments that decide on the order.
ORDERS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "sequential": lambda length, size: {"batch_size": size},
    "seed": lambda length, size: {"batch_size": size, "shuffle": True, "seed": 3},
    "generator": lambda length, size: {"batch_size": size, "shuffle": True, "generator": generator()},
    "random": lambda length, size: {
        "batch_size": size,
        "sampler": torch_data.RandomSampler(range(length), generator=generator()),
    },
    "replacement": lambda length, size: {
        "batch_size": size,
        "sampler": torch_data.RandomSampler(range(length), True, length + 3, generator=generator()),
    },
    "subset": lambda length, size: {
        "batch_size": size,
        "sampler": torch_data.SubsetRandomSampler(range(0, length, 2), generator=generator()),
    },
    "random batches": torch_batches(lambda length: torch_data.RandomSampler(range(length), generator=generator())),
    "remembering": lambda length, size: {"batch_size": size, "sampler": Remembering(count=length)},
    "remembering iterators": lambda length, size: {"batch_size": size, "sampler": Remembering(None, True, length)},
    "remembering batches": lambda length, size: {"batch_sampler": Remembering(size, count=length)},
    "remembering within": torch_batches(lambda length: Remembering(count=length)),
    "distributed": lambda length, size: {"batch_size": size, "sampler": Distributed(length)},
    "distributed within": torch_batches(Distributed),
}
STREAMS = [Parted, PartedOnward, PartedIterators]


def loader_of(kind: Any, length: int, size: int, workers: int, drop_last: bool = False, **more: Any) -> DataLoader:
    if workers:
        more |= {"num_workers": workers, "multiprocessing_context": "fork", "max_deaths_per_sample": 40}
    more |= ORDERS[kind](length, size) if kind in ORDERS else {"batch_size": size}
    more |= {"drop_last": True} if drop_last and "batch_sampler" not in more else {}
    return DataLoader(Numbers(length) if kind in ORDERS else kind(length), **more)


# HEADRACE_STATES=1000 tries so many programs. The plain twin of a loader is one that is never interrupted.
@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADRACE_STATES", "6"))))
def test_epochs_of_random_programs_that_resume_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    kind: Any = rng.choice([*STREAMS, *ORDERS, *ORDERS])
    length, size, workers = rng.randrange(1, 40), rng.choice([1, 2, 3, 5]), rng.choice([0, 1, 3])
    persistent, drop_last = rng.random() < 0.4, rng.random() < 0.3

    def make(workers: int) -> DataLoader:
        more: dict[str, Any] = {"persistent_workers": persistent} if workers else {}
        more |= {"prefetch_factor": rng.randrange(2, 5)} if workers and rng.random() < 0.4 else {}
        return loader_of(kind, length, size, workers, drop_last, **more)

    # Persistent workers draw one number fewer; each worker has a part of a stream.
    twin = make(min(workers, 1) if kind in ORDERS and persistent else 0 if kind in ORDERS else workers)
    epochs = [values(twin) for _ in range(4)]
    loader, batches = make(workers), None
    epoch = at = 0
    story: list[Any] = [kind]
    while epoch < 4:
        batches = iter(loader) if batches is None else batches
        processes = [process for process in multiprocessing.active_children() if "headrace" in process.name]
        if processes and rng.random() < 0.1:
            rng.choice(processes).kill()
            story.append("kill")
        left = len(epochs[epoch]) - at
        count = rng.choice([0, min(1, left), rng.randrange(left + 1), left, left])
        assert values(itertools.islice(batches, count)) == epochs[epoch][at : at + count], story
        story.append(f"{count} from batch {at} of epoch {epoch}")
        at += count
        if at == len(epochs[epoch]) and rng.random() < 0.7:
            assert list(batches) == [], story
            epoch, at, batches = epoch + 1, 0, None
        if rng.random() < 0.5:
            state = saved(loader) if rng.random() < 0.5 else pickle.loads(pickle.dumps(loader.state_dict()))
            if kind in ORDERS and not persistent:
                workers = rng.choice([0, 1, 3])
            batches, loader = None, make(workers)
            if rng.random() < 0.3:  # the new one may have read something else before
                values(itertools.islice(loader, rng.randrange(4)))
            loader.load_state_dict(state)
            if rng.random() < 0.3:
                assert saved(loader) == json.loads(json.dumps(state)), story
            if rng.random() < 0.2:
                iter(loader)  # nobody reads it
            story.append(f"load, {workers} workers")


@pytest.mark.parametrize("seed", range(int(os.environ.get("HEADRACE_STATES", "6"))))
def test_states_of_random_programs_that_leave_epochs_name_what_comes_next(seed: int) -> None:
    rng = random.Random(seed)
    kind: Any = rng.choice([*STREAMS, *ORDERS, *ORDERS])
    length, size, workers = rng.randrange(2, 40), rng.choice([1, 2, 3, 5]), rng.choice([0, 0, 1, 3])

    def make() -> DataLoader:
        others = rng.choice([0, 1, 3]) if kind in ORDERS else workers
        return loader_of(kind, length, size, others)

    loader = loader_of(kind, length, size, workers)
    story: list[Any] = [kind]
    for _ in range(4):
        for _ in range(rng.randrange(3)):
            count = rng.choice([0, 1, rng.randrange(length // size + 2)])
            values(itertools.islice(iter(loader), count))
            story.append(f"left after {count}")
        batches: Any = iter(loader)
        count = rng.choice([0, 0, 1, rng.randrange(length // size + 2)])
        if len(values(itertools.islice(batches, count))) < count:
            batches = loader  # it was at the end
        story.append(f"state after {count}")
        if count == 0 and rng.random() < 0.3:  # nobody has read it
            batches = loader
            story.append("without it")
        state = saved(loader)
        resumed = make()
        if rng.random() < 0.3:  # it may have read something else before
            values(itertools.islice(resumed, rng.randrange(4)))
        resumed.load_state_dict(state)
        if rng.random() < 0.3:
            iter(resumed)  # nobody reads it
        assert values(resumed) == values(batches), story
        if rng.random() < 0.5:
            assert values(resumed) == values(loader), story
