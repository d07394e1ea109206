"""Runs one case: a loader and its model, side by side."""

from __future__ import annotations

import copy
import faulthandler
import itertools
import json
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import graphs
import numpy as np
from cases import Case, Event, Step
from datasets import Refused, copy_scales, outcomes, scaled_parts
from model import Difference, Iteration, Model, Position, describe
from torment import Storm, kill, pause_worker

import headrace.fluid as fluid
from headrace import errors
from headrace.data import DataLoader
from headrace.data._iteration import idle
from headrace.fluid import core

# How long workers wait for the next epoch here, instead of a minute.
_IDLE_SECONDS = 0.08
# When a case counts as hanging, and when the program is ended because even that did not help: on an idle machine. On
# one where more processes wait for a processor, later.
_DEADLINE, _END = 90.0, 30.0


class Hang(BaseException):
    """A case takes too long."""


class _Watch:
    """Interrupts the main thread if a case takes too long, and ends the program if that does not help."""

    def __init__(self, text: str, seconds: float) -> None:
        self._text = text
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGUSR1, self._strike)
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    @staticmethod
    def _strike(number: int, frame: types.FrameType | None) -> None:
        raise Hang("nothing happens any more")

    def _wait(self) -> None:
        end = time.monotonic() + self._seconds
        while (left := end + self._seconds * (_crowd() - 1) - time.monotonic()) > 0:
            if self._over.wait(min(left, 10)):
                return
        print(f"HANGS:\n{self._text}", file=sys.stderr)
        faulthandler.dump_traceback(sys.stderr)
        os.kill(os.getpid(), signal.SIGUSR1)
        if not self._over.wait(_END * _crowd()):
            print("and cannot be interrupted", file=sys.stderr)
            faulthandler.dump_traceback(sys.stderr)
            os._exit(3)


def _crowd() -> float:
    """How many processes share a processor, lately; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class _Interrupts:
    """Sends interrupts, as Ctrl-C does, of which only those count that arrive while :func:`_take` runs: elsewhere they
    would strike the soak itself.
    """

    def __init__(self) -> None:
        self._sent = 0

    def send_after(self, seconds: float) -> None:
        signal.signal(signal.SIGINT, self._strike)
        timer = threading.Timer(seconds, self._send)
        timer.daemon = True
        timer.start()

    def _send(self) -> None:
        self._sent += 1
        os.kill(os.getpid(), signal.SIGINT)

    def _strike(self, number: int, frame: types.FrameType | None) -> None:
        if not self._sent:
            raise KeyboardInterrupt  # the user's
        self._sent -= 1
        while frame is not None:
            if frame.f_code is _take.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back


def _take(iterator: Any, taken: list[Any]) -> None:
    """Appends the next batch, if there is one: in C, so that no interrupt comes between the two."""
    taken.extend(itertools.islice(iterator, 1))


_interrupts = _Interrupts()


class Trial:
    """A loader, its model, and what was kept of both.

    Attributes:
        log: what edits did.
        epochs, batches: how many there were.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.log: list[str] = []
        self.epochs = self.batches = 0
        self._model = Model(case, *case.make_dataset())
        self._dataset, self._collate = case.make_dataset()
        self._workers = case.workers
        self._loader = self._make()
        self._kept: list[tuple[Any, Iteration]] = []
        self._saved: tuple[Any, Position] | None = None
        self._late: list[tuple[Step | Event, bool]] = []  # edits that the model makes when the next iteration begins
        self._held: list[tuple[Any, str]] = []

    def run(self) -> None:
        """Raises: what differs, or what the loader raises."""
        storm = Storm(self.case.seed) if self.case.storm else None
        if storm is not None:
            storm.start()
        try:
            for step in self.case.steps:
                getattr(self, "_" + step.what.replace(" ", "_"))(step)
            for batch, before in self._held:
                if describe(batch) != before:
                    raise Difference(
                        f"a batch that was kept has changed from\n    {before}\n  to\n    {describe(batch)}"
                    )
        finally:
            if storm is not None:
                storm.end()
            self._kept.clear()
            self._loader.shutdown()

    def _make(self) -> DataLoader:
        loader: DataLoader = DataLoader(
            self._dataset, **self.case.make_arguments(self._dataset, self._collate, self._workers)
        )
        return loader

    # Steps.

    def _iterate(self, step: Step) -> None:
        self.epochs += 1
        self._edit_model(self._late)
        self._late = []
        for name in ("sampler", "batch_sampler"):
            sampler = getattr(self._loader._config, name)
            if not type(sampler).__module__.startswith("headrace") and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self._model.next.epoch)
        if self.case.feeds:
            iteration = self._model.begin()
            for batch in self._fed():
                iteration.take(describe(batch))
                self.batches += 1
            self._model.finish(iteration)
            return
        iterator = iter(self._loader)
        self._read(iterator, self._model.begin(), step)

    def _go_on(self, step: Step) -> None:
        if self._kept:
            iterator, iteration = self._kept.pop(0)
            # In this process, iterations over a stream share it: the one that began last is the one that counts.
            if not (self.case.is_stream and self._workers == 0 and iteration is not self._model.latest):
                self._read(iterator, iteration, step)

    def _edit(self, step: Step) -> None:
        following = self._following(step)
        refreshed = following is not None and following.what == "refresh"
        root = (self._loader.dataset, self._collate)
        self.log.append(_edit(root, step, refreshed))
        self._edit_model([*self._late, (step, refreshed)])
        self._late = []
        if self._sees_edits:
            self._kept.clear()

    def _refresh(self, step: Step) -> None:
        self._loader.refresh()

    def _pause(self, step: Step) -> None:
        deadline = time.monotonic() + 20 * _IDLE_SECONDS
        while self._loader._epochs.idle and self._workers and time.monotonic() < deadline:
            time.sleep(_IDLE_SECONDS / 4)

    def _set_epoch(self, step: Step) -> None:
        if not self._kept:
            self._loader.set_epoch(step.seed)
            self._model.set_epoch(step.seed)

    def _kill(self, step: Step) -> None:
        kill(step.seed)

    def _kill_all(self, step: Step) -> None:
        kill(None)

    def _reject(self, step: Step) -> None:
        state = json.loads(json.dumps(self._loader.state_dict()))
        try:
            self._loader.load_state_dict(spoiled(state, step.seed))
        except (TypeError, ValueError):
            return
        raise Difference("a state that was spoiled was accepted")

    def _move(self, step: Step) -> None:
        state, position = self._loader.state_dict(), self._model.position
        if step.saved and self._saved is not None:
            state, position = self._saved
        if step.how in ("json", "same"):
            state = json.loads(json.dumps(state))
        before = self._loader
        self._workers = step.workers
        if step.how in ("json", "checkpoint"):
            if self.case.is_stream:
                self._dataset, self._collate = self.case.make_dataset()
                copy_scales(before.dataset, self._dataset)
            self._loader = self._make()
            if step.how == "checkpoint":
                _through_checkpoint(before, self._loader)
        elif step.how != "same":
            self._loader = {
                "pickle": lambda: pickle.loads(pickle.dumps(before)),
                "copy": lambda: copy.copy(before),
                "deepcopy": lambda: copy.deepcopy(before),
            }[step.how]()
            # Where streams go on between epochs, a dataset itself says that no worker reads.
            shared = step.how == "copy" and self.case.is_stream and self._workers == 0 and not position.seen
            for _ in zip(range(0 if shared else step.aside), outcomes(before)):
                pass
            self._workers = self._loader.num_workers
            self._dataset = self._loader.dataset
            if self._collate is not None:
                self._collate = self._loader.collate_fn
        if step.how in ("json", "same"):
            self._loader.load_state_dict(state)
        if before is not self._loader:
            self._kept.clear()
            before.shutdown()
        self._model.move(position, step.how in ("json", "checkpoint", "same"))
        self._kept.clear()

    # Within an iteration.

    def _read(self, iterator: Any, iteration: Iteration, step: Step) -> None:
        taken = 0
        while step.take is None or taken < step.take:
            for event in step.events:
                if event.at == taken:
                    self._happen(event, iterator)
            batch = self._next(iterator)
            if batch is _END_OF_EPOCH:
                self._model.finish(iteration)
                return
            text = describe(batch)
            iteration.take(text)
            self.batches += 1
            taken += 1
            if self.case.keeps:
                self._held.append((batch, text))
        if step.keep or (step.what == "go on" and step.take is not None):
            self._kept.append((iterator, iteration))
        else:
            del iterator
            self._model.drop(iteration)

    def _next(self, iterator: Any) -> Any:
        taken: list[Any] = []
        while True:
            try:
                _take(iterator, taken)
            except KeyboardInterrupt:
                if not taken:
                    continue
            except Refused as refused:
                return refused
            return taken[0] if taken else _END_OF_EPOCH

    def _happen(self, event: Event, iterator: Any) -> None:
        if event.what == "kill":
            kill(event.seed)
        elif event.what == "kill all":
            kill(None)
        elif event.what == "stop":
            pause_worker(event.seed, 0.01)
        elif event.what == "interrupt":
            # A generator in this process does not survive one.
            if not (self.case.is_stream and self._workers == 0):
                _interrupts.send_after(event.seed % 1000 * 2e-6)
        elif event.what == "edit":
            if not self._sees_edits:
                self.log.append(_edit((self._loader.dataset, self._collate), event, False))
                self._late.append((event, False))
        elif event.what == "save":
            state = self._loader.state_dict()
            if json.loads(json.dumps(state)) != state:
                raise Difference(f"JSON changes the state {state}")
            self._saved = state, self._model.position
        elif event.what == "reject":
            self._reject(Step("reject", seed=event.seed))
        elif event.what == "fork":
            _ask_in_child(iterator)
        elif event.what == "rest":
            time.sleep(0.003)

    def _fed(self) -> Iterator[Any]:
        queue = core.init_lod_tensor_blocking_queue(fluid.Scope().var("queue"), 3, [[-1, self.case.size], [-1]])
        feeding = self._loader._feed(queue)
        try:
            while True:
                try:
                    yield [np.asarray(tensor) for tensor in queue.pop(timeout=60)]
                except core.EOFException:
                    return
        finally:
            feeding.stop()

    @property
    def _sees_edits(self) -> bool:
        """Whether the dataset itself is read, so that an iteration sees at once what changes."""
        return self._workers == 0 or self.case.threads

    def _edit_model(self, edits: list[tuple[Step | Event, bool]]) -> None:
        for edit, refreshed in edits:
            _edit((self._model.dataset, self._model.collate), edit, refreshed)

    def _following(self, step: Step) -> Step | None:
        number = next(number for number, each in enumerate(self.case.steps) if each is step)
        return self.case.steps[number + 1] if number + 1 < len(self.case.steps) else None


_END_OF_EPOCH = object()


def _through_checkpoint(before: DataLoader, after: DataLoader) -> None:
    """Gives a loader the state of another by way of torch's distributed checkpoint, which fills the state that the new
    loader has, piece by piece.
    """
    from torch.distributed import checkpoint

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no process group
        checkpoint.save({"loader": before}, checkpoint_id=folder)
        checkpoint.load({"loader": after}, checkpoint_id=folder)


def _ask_in_child(iterator: Any) -> None:
    """Forks a child that asks for a batch: it has to be refused, and to change nothing here."""
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except errors.FailedPrecondition:
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    # To a storm, a child of this process is a worker.
    if status != 0 and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
        raise Difference(f"a forked child was not refused, but ended with status {status}")


def _edit(root: tuple[Any, Any], edit: Step | Event, refreshed: bool) -> str:
    """Changes a dataset or its ``collate_fn``."""
    if isinstance(root[0], graphs.Graph):
        return graphs.edit(root, edit.seed, edit.how, refreshed)
    chance = random.Random(edit.seed)
    parts = list(scaled_parts(root[0]))
    if not parts:
        return "nothing to edit"
    part = chance.choice(parts)
    part.scale = chance.randrange(2, 9)
    return f"the {type(part).__name__}.scale = {part.scale}"


def spoiled(state: dict[str, Any], seed: int) -> dict[str, Any]:
    """A state that no loader accepts."""
    ways: list[Callable[[], Any]] = [
        lambda: {**state, "version": 99},
        lambda: {**state, "seed": 6},
        lambda: {**state, "order": "another"},
        lambda: {**state, "batch": -1},
        lambda: {**state, "epoch": "0"},
        lambda: {**state, "unknown": 1},
        lambda: [state],
    ]
    spoil: dict[str, Any] = random.Random(seed).choice(ways)()
    return spoil


def run(case: Case) -> Trial:
    """Runs a case.

    Raises:
        Difference: a batch is not that of the model.
        Hang: it takes too long.
        Exception: the loader's.
    """
    before = idle.IDLE_SECONDS
    idle.IDLE_SECONDS = _IDLE_SECONDS if any(step.what == "pause" for step in case.steps) else before
    try:
        with _Watch(case.script(), _DEADLINE):
            trial = Trial(case)
            try:
                trial.run()
            except BaseException as error:
                error.edits = trial.log  # type: ignore[attr-defined]
                raise
            return trial
    finally:
        idle.IDLE_SECONDS = before
