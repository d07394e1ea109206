"""Batches on a CUDA device, with a stand-in for torch whose streams work as late as they are allowed to."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from loader_datasets import Ints

from headrace.data import DataLoader
from headrace.data._samples.device_copies import DeviceCopies, check_device


class Stream:
    def __init__(self, device: Any = None) -> None:
        self.work: list[Any] = []  # not done yet
        self.waits: list[Event] = []

    def wait_event(self, event: Event) -> None:
        self.waits.append(event)

    def run(self) -> None:
        for step in self.work:
            step()
        self.work.clear()


class Event:
    busy = False  # whether devices never get to their work

    def record(self, stream: Stream) -> None:
        self.stream = stream

    def query(self) -> bool:
        if not Event.busy:
            self.stream.run()
        return not Event.busy

    def synchronize(self) -> None:
        self.stream.run()


class Tensor:
    def __init__(self, values: Any) -> None:
        self.values = values
        self.used_on: list[Stream] = []

    def to(self, device: Any, non_blocking: bool) -> Tensor:
        assert non_blocking
        copied = Tensor(None)
        MADE.append(copied)
        # By address, as a device does: nothing here keeps the memory alive.
        address, count, kind = self.values.ctypes.data, self.values.size, self.values.dtype.str
        size = self.values.nbytes

        def make() -> None:
            copied.values = np.frombuffer(ctypes.string_at(address, size), kind, count).tolist()

        CURRENT[-1].work.append(make)
        return copied

    def record_stream(self, stream: Stream) -> None:
        self.used_on.append(stream)


CURRENT: list[Stream] = []
MADE: list[Tensor] = []  # copies


@contextlib.contextmanager
def stream(chosen: Stream) -> Iterator[None]:
    CURRENT.append(chosen)
    yield
    CURRENT.pop()


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module: Any = types.ModuleType("torch")
    module.Tensor = Tensor
    module.device = str
    module.from_numpy = Tensor
    module.cuda = types.SimpleNamespace(
        Stream=Stream,
        Event=Event,
        stream=stream,
        current_stream=lambda device: CURRENT[-1],
        device_count=lambda: 1,
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(Event, "busy", False)
    monkeypatch.setattr(sys.modules[__name__], "CURRENT", [Stream()])
    monkeypatch.setattr(sys.modules[__name__], "MADE", [])
    return module


def test_the_source_is_kept_until_its_copy_has_ended(torch: Any) -> None:
    copies = DeviceCopies("cuda:1")
    source = Tensor(np.array([1, 2, 3]))
    references = sys.getrefcount(source)
    Event.busy = True
    copied = copies.copy(source)
    submitted = copies.submit(None)
    assert sys.getrefcount(source) > references
    assert copied.values is None
    copies.release()
    assert sys.getrefcount(source) > references
    Event.busy = False
    copies.release()
    assert sys.getrefcount(source) == references
    assert submitted.tensors == [copied]
    assert copied.values == [1, 2, 3]


def test_the_consumers_stream_waits_and_is_told_to_the_allocator(torch: Any) -> None:
    copies = DeviceCopies("cuda")
    copied = [copies.copy(Tensor(np.array([number]))) for number in range(2)]
    submitted = copies.submit(None)
    mine = Stream()
    with stream(mine):
        copies.deliver(submitted)
    assert mine.waits == [submitted.event]
    assert [tensor.used_on for tensor in copied] == [[mine], [mine]]


def test_copies_are_made_on_a_stream_of_their_own(torch: Any) -> None:
    copies = DeviceCopies("cuda")
    copies.copy(Tensor(np.array([1])))
    assert CURRENT[0].work == []


def test_what_is_not_a_tensor_stays(torch: Any) -> None:
    copies = DeviceCopies("cuda")
    assert copies.copy("a text") == "a text"
    assert copies.submit(None).tensors == []


def test_the_end_waits_for_copies_that_nobody_asked_for(torch: Any) -> None:
    copies = DeviceCopies("cuda")
    Event.busy = True
    copied = copies.copy(Tensor(np.array([5])))
    del copies
    assert copied.values == [5]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("busy", [False, True])
def test_a_loader_hands_out_tensors_on_the_device(torch: Any, num_workers: int, busy: bool) -> None:
    Event.busy = busy  # all copies then happen at the very end, from memory that must still be unchanged
    loader = DataLoader(
        Ints(200),
        batch_size=4,
        num_workers=num_workers,
        device="cuda:0",
        seed=1,
        workers="thread" if num_workers else "process",
    )
    iterator = iter(loader)
    batches, events = [], []
    for number in range(50):
        batches.append(next(iterator))
        assert loader.state_dict()["batch"] == number + 1
        events.append(CURRENT[0].waits[-1])
    assert next(iterator, None) is None
    Event.busy = False
    for event in events:
        event.query()
    assert [batch.values for batch in batches] == [list(range(begin, begin + 4)) for begin in range(0, 200, 4)]
    assert all(batch.used_on == [CURRENT[0]] for batch in batches)
    loader.shutdown()


def test_the_next_batch_is_copied_while_one_is_in_use(torch: Any) -> None:
    loader = DataLoader(Ints(40), batch_size=4, num_workers=1, device="cuda", seed=1, workers="thread")
    iterator = iter(loader)
    next(iterator)
    deadline = time.monotonic() + 100
    while loader.stats()["samples"] < 12 and time.monotonic() < deadline:
        time.sleep(0.01)
    next(iterator)
    assert len(MADE) == 3
    loader.shutdown()


@pytest.mark.parametrize("arguments", [{"to": "numpy"}])
def test_what_excludes_a_device(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="device excludes"):
        DataLoader(Ints(4), device="cuda", **arguments)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:17"])
def test_names_of_devices(device: str) -> None:
    assert check_device(device) == device


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "mps", ""])
def test_other_devices_are_a_clear_error(device: str) -> None:
    with pytest.raises(ValueError, match=r'device must be "cuda" or "cuda:N"'):
        check_device(device)


def test_a_number_is_no_device() -> None:
    with pytest.raises(TypeError, match="device must be"):
        check_device(0)


def test_a_loader_whose_device_is_not_there_is_refused(torch: Any) -> None:
    torch.cuda.device_count = lambda: 0
    with pytest.raises(RuntimeError, match='device="cuda:1": torch finds no CUDA device here; leave device out'):
        DataLoader(Ints(4), device="cuda:1")
    torch.cuda.device_count = lambda: 2
    DataLoader(Ints(4), device="cuda:1")
    with pytest.raises(RuntimeError, match='device="cuda:2": torch finds 2 CUDA devices here, numbered from 0'):
        DataLoader(Ints(4), device="cuda:2")


@pytest.mark.parametrize("argument", [{"device": "cuda"}, {"to": "torch"}])
def test_a_loader_that_needs_torch_says_so(argument: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ((name, value),) = argument.items()
    with pytest.raises(ImportError, match=f'^{name}="{value}" needs PyTorch: pip install torch$'):
        DataLoader(Ints(4), **argument)


def test_torch_is_not_imported_with_the_loader() -> None:
    code = "import sys, headrace.data, headrace.data._samples.device_copies; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
