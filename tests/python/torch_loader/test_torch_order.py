"""Batches in the order that torch's generator decides: children that ask for them, and batches that overtake others."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils import data as torch_data  # noqa: E402

from headrace import errors  # noqa: E402
from headrace.torch import DataLoader  # noqa: E402

LENGTH = 120


class Uneven(torch_data.Dataset[int]):
    """Every eighth sample takes long, so that batches overtake others."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02 if index % 8 == 0 else 0.0005)
        return index


def shuffled(**arguments: Any) -> Any:
    return DataLoader(Uneven(), 3, shuffle=True, **arguments)


def refused(batches: Any) -> bool:
    try:
        next(batches)
    except errors.FailedPrecondition:
        return True
    except BaseException:
        pass  # which must not leave the child
    return False


@pytest.mark.parametrize("num_workers", [0, 2])
def test_forked_children_are_refused_and_change_nothing(num_workers: int) -> None:
    torch.manual_seed(3)
    expected = [batch.tolist() for batch in torch_data.DataLoader(range(LENGTH), 3, shuffle=True)]
    torch.manual_seed(3)
    context = {"multiprocessing_context": "fork"} if num_workers else {}
    batches = iter(shuffled(num_workers=num_workers, **context))
    children, got = [], []
    for number in range(LENGTH // 3):
        if number % 8 == 3:
            child = os.fork()
            if child == 0:
                os._exit(0 if refused(batches) and refused(batches) else 1)
            children.append(child)
        got.append(next(batches).tolist())
    assert got == expected
    assert next(batches, None) is None
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)


def test_a_state_of_batches_that_overtook_others_loses_and_repeats_none() -> None:
    torch.manual_seed(3)
    expected = [batch.tolist() for batch in torch_data.DataLoader(range(LENGTH), 3, shuffle=True)]
    torch.manual_seed(3)
    loader = shuffled(num_workers=2, in_order=False)
    batches = iter(loader)
    taken, state = [], loader.state_dict()
    # Until a batch has overtaken another.
    while taken == expected[: len(taken)] and len(taken) < len(expected) - 1:
        taken.append(next(batches).tolist())
        state = json.loads(json.dumps(loader.state_dict()))
    assert taken != expected[: len(taken)], "no batch has overtaken another"
    del batches
    torch.manual_seed(99)
    resumed = shuffled(num_workers=2, in_order=False)
    resumed.load_state_dict(state)
    assert sorted(taken + [batch.tolist() for batch in resumed]) == sorted(expected)


class DrawsAtOnce:
    """Draws its order when it is iterated over, and perhaps another number with the first index."""

    def __init__(self, batches: bool, again: bool, source: Any = None) -> None:
        self.batches, self.again, self.source = batches, again, source

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return self._indices(torch.randperm(8, generator=self.source).tolist())

    def _indices(self, order: list[int]) -> Any:
        shift = int(torch.randint(8, ())) if self.again else 0
        for number in order:
            index = (number + shift) % 8
            yield [index, 7 - index] if self.batches else index


def drawn_at_once(cls: Any, batches: bool, workers: int, again: bool = False, **arguments: Any) -> Any:
    sampler: Any = DrawsAtOnce(batches, again, arguments.get("generator"))
    order = {"batch_sampler": sampler} if batches else {"batch_size": None, "sampler": sampler}
    return cls(range(8), num_workers=workers, **order, **arguments)


def numbers(batches: Any) -> list[Any]:
    return [torch.as_tensor(batch).tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_sampler_may_draw_before_the_loader_does(given: bool, batches: bool, workers: int) -> None:
    got = []
    for cls in (DataLoader, torch_data.DataLoader):
        torch.manual_seed(3)
        generator = {"generator": torch.Generator().manual_seed(5)} if given else {}
        loader = drawn_at_once(cls, batches, workers, **generator)
        kept = iter(loader)  # begun, and read late
        got.append([numbers(loader), numbers(kept), numbers(loader), torch.rand(()).item()])
    assert got[0] == got[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_a_sampler_drew_before_the_loader_did_is_drawn_again(again: bool, batches: bool, workers: int) -> None:
    torch.manual_seed(3)
    loader = drawn_at_once(DataLoader, batches, workers, again)
    iterator = iter(loader)
    before = numbers(next(iterator) for _ in range(3))
    state = json.loads(json.dumps(loader.state_dict()))
    rest = numbers(iterator)
    assert len(before) + len(rest) == 8
    torch.manual_seed(99)
    resumed = drawn_at_once(DataLoader, batches, workers, again)
    resumed.load_state_dict(state)
    assert numbers(resumed) == rest


class Closed:
    """Says in a list when its iterations begin and when they are closed."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __iter__(self) -> Any:
        self.said.append("begin")
        try:
            yield from range(8)
        finally:
            self.said.append("end")


class ClosedStream(Closed, torch_data.IterableDataset[int]):
    pass


@pytest.mark.parametrize("kind", ["stream", "sampler", "batch_sampler"])
@pytest.mark.parametrize("last", [False, True])
def test_what_an_epoch_that_is_left_has_iterated_over_is_closed(last: bool, kind: str) -> None:
    said = []
    for cls in (DataLoader, torch_data.DataLoader):
        closed: Any = ClosedStream() if kind == "stream" else Closed()
        batches = torch_data.BatchSampler(closed, 2, False)
        if kind == "batch_sampler":
            loader = cls(range(8), batch_sampler=batches)
        else:
            loader = cls(closed, 2) if kind == "stream" else cls(range(8), 2, sampler=closed)
        got = []
        for _ in range(3):
            for batch in loader:
                got.append(batch.tolist())
                if not last or len(got) % 4 == 0:
                    break
            closed.said.append("left")
        said.append((closed.said, got))
    assert said[0] == said[1]
