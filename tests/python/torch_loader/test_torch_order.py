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
