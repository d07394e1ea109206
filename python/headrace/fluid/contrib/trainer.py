"""Fluid's training loop, which tells a function of its epochs and steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

import numpy as np

from headrace import errors
from headrace.fluid import io, unique_name
from headrace.fluid._checkpoint import remove_checkpoints
from headrace.fluid._checks import check_function, check_integer, check_list, check_optional, check_path
from headrace.fluid.core import Scope
from headrace.fluid.data_feeder import DataFeeder
from headrace.fluid.executor import Executor, scope_guard
from headrace.fluid.framework import Program, Variable, program_guard
from headrace.fluid.optimizer import Optimizer

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "CheckpointConfig",
    "EndEpochEvent",
    "EndStepEvent",
    "Trainer",
]

#: The names of the variables that a sample's values are for, in their order; or the place of each in the sample.
FeedOrder = Union[Sequence[str], Mapping[str, int]]


class BeginEpochEvent:
    """Epoch ``epoch`` begins."""

    def __init__(self, epoch_id: int) -> None:
        self.epoch = epoch_id


class EndEpochEvent:
    """Epoch ``epoch`` has ended."""

    def __init__(self, epoch_id: int) -> None:
        self.epoch = epoch_id


class BeginStepEvent:
    """Step ``step`` of epoch ``epoch`` begins. A handler that sets ``fetch_metrics`` to False spares its metrics."""

    def __init__(self, epoch_id: int, step_id: int) -> None:
        self.epoch = epoch_id
        self.step = step_id
        self.fetch_metrics = True


class EndStepEvent:
    """Step ``step`` of epoch ``epoch`` has ended; ``metrics`` are the values that the network returned, as arrays."""

    def __init__(self, epoch_id: int, step_id: int, metrics: list[Any]) -> None:
        self.epoch = epoch_id
        self.step = step_id
        self.metrics = metrics


class CheckpointConfig:
    """When and where a :class:`Trainer` saves checkpoints.

    Args:
        checkpoint_dir: a folder for them; None: the working directory.
        max_num_checkpoints: only this many are kept.
        epoch_interval, step_interval: a checkpoint follows each step whose number, and whose epoch's, they divide.

    Raises:
        InvalidArgument: a number is not a positive int.
    """

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        max_num_checkpoints: int = 3,
        epoch_interval: int = 1,
        step_interval: int = 10,
    ) -> None:
        self.checkpoint_dir = os.getcwd() if checkpoint_dir is None else os.fspath(checkpoint_dir)
        self.max_num_checkpoints = max_num_checkpoints
        self.epoch_interval = epoch_interval
        self.step_interval = step_interval
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            number = getattr(self, name)
            if not isinstance(number, int) or number < 1:
                raise errors.InvalidArgument(f"CheckpointConfig: {name} has to be a positive int, got {number!r}")


class Trainer:
    """Trains a network, and calls a function at each begin and end of an epoch and a step.

    Args:
        train_func: adds the layers and returns the loss, or a list of it and of further metrics.
        optimizer_func: returns the optimizer.
        param_path: a folder with parameters to begin with; None: the initial ones.
        place, parallel: Fluid's; programs run on the processor, with its threads.
        checkpoint_config: saves checkpoints while it trains. A trainer that finds one continues after the step that
            saved it: it skips the batches of the epoch up to there, and reports no events for them. When training has
            ended, or was stopped, its checkpoints are removed.

    Raises:
        TypeMismatch: ``optimizer_func`` returns anything but an optimizer, or ``checkpoint_config`` is something else.
        InvalidArgument, DataLoss: the checkpoint belongs to another network, or is damaged.

    Attributes:
        train_program, test_program, startup_program, scope, exe: what is trained, where and by whom.
    """

    def __init__(
        self,
        train_func: Callable[[], Any],
        optimizer_func: Callable[[], Optimizer],
        param_path: str | os.PathLike[str] | None = None,
        place: Any = None,
        parallel: bool = False,
        checkpoint_config: CheckpointConfig | None = None,
    ) -> None:
        check_function(train_func, "Trainer: train_func")
        check_function(optimizer_func, "Trainer: optimizer_func")
        self.checkpoint_cfg = check_optional(checkpoint_config, CheckpointConfig, "checkpoint_config")
        self.scope, self.startup_program, self.train_program = Scope(), Program(), Program()
        self._stopped = False
        with program_guard(self.train_program, self.startup_program), unique_name.guard():
            outs = train_func()
            self.train_func_outputs: list[Variable] = list(outs) if isinstance(outs, (list, tuple)) else [outs]
            self.test_program = self.train_program.clone(for_test=True)
            optimizer = optimizer_func()
            if not isinstance(optimizer, Optimizer):
                raise errors.TypeMismatch(f"optimizer_func has to return an optimizer, got {type(optimizer).__name__}")
            optimizer.minimize(self.train_func_outputs[0])
        self.exe = Executor(place)
        with scope_guard(self.scope):
            self.exe.run(self.startup_program)
            if param_path is not None:
                io.load_persistables(self.exe, check_path(param_path, "Trainer: param_path"), self.train_program)
            #: (epoch, step) of the checkpoint that was loaded; (0, -1): none.
            self._resumed = (0, -1)
            if checkpoint_config is not None:
                saved = io.load_checkpoint(self.exe, checkpoint_config.checkpoint_dir, self.train_program)
                if saved is not None:
                    self._resumed = (saved["epoch"], saved["step"])

    def stop(self) -> None:
        """Ends the training after the step in progress; an event handler may call it."""
        self._stopped = True

    def train(
        self,
        num_epochs: int,
        event_handler: Callable[[Any], Any],
        reader: Callable[[], Iterable[Any]] | None = None,
        feed_order: FeedOrder | None = None,
    ) -> None:
        """Trains for some epochs.

        Args:
            event_handler: takes the events.
            reader: makes an epoch's batches: lists of samples, with a value for each variable of ``feed_order``.

        Raises:
            InvalidArgument: ``reader`` or ``feed_order`` is missing.
            FailedPrecondition: the reader has fewer batches than the checkpoint says were trained with.
            Whatever they, or the program, raise.
        """
        if reader is None or feed_order is None:
            raise errors.InvalidArgument("train() needs a reader, and the feed_order of its samples")
        num_epochs = check_integer(num_epochs, "train(): num_epochs")
        check_function(event_handler, "train(): event_handler")
        check_function(reader, "train(): reader")
        self._stopped = False
        feeder = DataFeeder(_in_order(feed_order), program=self.train_program)
        names = [out.name for out in self.train_func_outputs]
        (first_epoch, skipped), self._resumed = self._resumed, (0, -1)
        with scope_guard(self.scope):
            for epoch in range(first_epoch, num_epochs):
                event_handler(BeginEpochEvent(epoch))
                step = -1
                for step, data in enumerate(reader()):
                    if self._stopped:
                        break
                    if step <= skipped:
                        continue
                    begin = BeginStepEvent(epoch, step)
                    event_handler(begin)
                    wanted = names if begin.fetch_metrics else []
                    metrics = self.exe.run(self.train_program, feed=feeder.feed(data), fetch_list=wanted)
                    self._save_checkpoint(epoch, step)
                    event_handler(EndStepEvent(epoch, step, metrics))
                if self._stopped:
                    break
                if step < skipped:
                    raise errors.FailedPrecondition(
                        f"train(): the checkpoint was saved after batch {skipped + 1} of epoch {epoch}, but the reader "
                        f"has only {step + 1}: give the reader that was used then"
                    )
                skipped = -1
                event_handler(EndEpochEvent(epoch))
        if self.checkpoint_cfg is not None:
            remove_checkpoints(self.checkpoint_cfg.checkpoint_dir)

    def _save_checkpoint(self, epoch: int, step: int) -> None:
        config = self.checkpoint_cfg
        if config is not None and epoch % config.epoch_interval == 0 and step % config.step_interval == 0:
            io.save_checkpoint(
                self.exe,
                config.checkpoint_dir,
                self.train_program,
                extra={"epoch": epoch, "step": step},
                max_num_checkpoints=config.max_num_checkpoints,
            )

    def test(self, reader: Callable[[], Iterable[Any]], feed_order: FeedOrder) -> list[Any]:
        """The mean of each value that the network returned, over the batches of ``reader``. InvalidArgument if there
        are none.
        """
        check_function(reader, "test(): reader")
        feeder = DataFeeder(_in_order(feed_order), program=self.test_program)
        wanted = [out.name for out in self.train_func_outputs]
        with scope_guard(self.scope):
            values = [self.exe.run(self.test_program, feed=feeder.feed(data), fetch_list=wanted) for data in reader()]
        if not values:
            raise errors.InvalidArgument("test(): the reader has no batches")
        return [np.mean([np.mean(batch[i]) for batch in values]) for i in range(len(wanted))]

    def save_params(self, param_path: str | os.PathLike[str]) -> None:
        """Saves the parameters, and what else persists, to a folder."""
        with scope_guard(self.scope):
            io.save_persistables(self.exe, check_path(param_path, "save_params: param_path"), self.train_program)

    def save_inference_model(
        self, param_path: str | os.PathLike[str], feeded_var_names: Sequence[str], target_var_indexes: Sequence[int]
    ) -> None:
        """Saves what computes some of the values that the network returned, for ``fluid.io.load_inference_model``."""
        folder = check_path(param_path, "save_inference_model: param_path")
        targets, outs = [], self.train_func_outputs
        for index in check_list(target_var_indexes, "save_inference_model: target_var_indexes"):
            number = check_integer(index, "save_inference_model: target_var_indexes")
            if not -len(outs) <= number < len(outs):
                raise errors.OutOfRange(
                    f"save_inference_model: target_var_indexes has {number}, but train_func returned {len(outs)} values"
                )
            targets.append(outs[number])
        with scope_guard(self.scope):
            io.save_inference_model(folder, feeded_var_names, targets, self.exe, self.train_program)


def _in_order(feed_order: FeedOrder) -> list[str]:
    if isinstance(feed_order, Mapping):
        return sorted(feed_order, key=feed_order.__getitem__)
    return check_list(feed_order, "feed_order")
