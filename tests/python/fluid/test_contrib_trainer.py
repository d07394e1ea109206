"""contrib.trainer and contrib.inferencer, and modules that programs import without need."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers
from headrace.fluid.contrib import inferencer, mixed_precision, trainer
from headrace.fluid.proto.framework_pb2 import VarType

RNG = np.random.default_rng(3)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)


def predict() -> Any:
    return layers.fc(layers.data("x", [3]), 1)


def network() -> list[Any]:
    error = layers.square_error_cost(predict(), layers.data("y", [1]))
    return [layers.mean(error), layers.reduce_max(error)]


def batches() -> Iterator[list[tuple[Any, Any]]]:
    for i in range(0, 24, 8):
        yield [(X[k], Y[k]) for k in range(i, i + 8)]


def test_events_come_in_order_with_metrics() -> None:
    seen: list[Any] = []

    def handle(event: Any) -> None:
        seen.append((type(event).__name__, event.epoch, getattr(event, "step", None), getattr(event, "metrics", None)))
        if isinstance(event, trainer.BeginStepEvent):
            event.fetch_metrics = event.step != 1

    training = trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1))
    training.train(2, handle, batches, feed_order=["x", "y"])
    expected: list[Any] = []
    for epoch in range(2):
        steps = [(name, epoch, step) for step in range(3) for name in ("BeginStepEvent", "EndStepEvent")]
        expected += [("BeginEpochEvent", epoch, None), *steps, ("EndEpochEvent", epoch, None)]
    assert [event[:3] for event in seen] == expected
    metrics = [event[3] for event in seen if event[0] == "EndStepEvent"]
    assert [len(values) for values in metrics] == [2, 0, 2, 2, 0, 2]
    assert metrics[-1][0] < metrics[0][0]
    last, largest = training.test(batches, ["x", "y"])
    assert last < metrics[-1][0]
    assert largest > last


def test_an_event_handler_stops_the_training() -> None:
    steps = []

    def handle(event: Any) -> None:
        if isinstance(event, trainer.EndStepEvent):
            steps.append(event.step)
            if event.step == 1:
                training.stop()

    training = trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1))
    training.train(5, handle, batches, ["x", "y"])
    assert steps == [0, 1]
    training.train(1, lambda event: None, batches, {"y": 1, "x": 0})


def test_what_is_saved_infers_and_continues(tmp_path: Path) -> None:
    training = trainer.Trainer(network, lambda: fluid.optimizer.Adam(0.1))
    training.train(4, lambda event: None, batches, ["x", "y"])
    training.save_params(tmp_path / "params")
    weight, bias = (
        np.array(training.scope.find_var(p.name).get_tensor()) for p in training.train_program.all_parameters()
    )
    (got,) = inferencer.Inferencer(predict, tmp_path / "params").infer({"x": X})
    np.testing.assert_allclose(got, X @ weight + bias, rtol=1e-5, atol=1e-6)

    again = trainer.Trainer(network, lambda: fluid.optimizer.Adam(0.1), param_path=tmp_path / "params")
    for one in (training, again):
        one.train(2, lambda event: None, batches, ["x", "y"])
    assert again.test(batches, ["x", "y"]) == training.test(batches, ["x", "y"])

    training.save_inference_model(tmp_path / "model", ["x", "y"], [0])
    exe = fluid.Executor()
    with fluid.scope_guard(fluid.Scope()):
        program, feeds, targets = fluid.io.load_inference_model(str(tmp_path / "model"), exe)
        assert feeds == ["x", "y"]
        (loss,) = exe.run(program, feed={"x": X, "y": Y}, fetch_list=targets)
    assert loss.item() == pytest.approx(training.test(lambda: iter([list(zip(X, Y))]), ["x", "y"])[0], rel=1e-5)


class Killed(Exception):
    """Ends a training as a crash would."""


@pytest.mark.parametrize("last", [(0, 0), (1, 0), (1, 2), (2, 1)])
def test_a_training_continues_from_its_last_checkpoint(last: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("the user's")

    def seeded() -> list[Any]:
        fluid.default_startup_program().random_seed = 5
        return network()

    def trained(dies_at: tuple[int, int] | None, config: trainer.CheckpointConfig | None) -> tuple[Any, list[Any]]:
        steps: list[Any] = []

        def handle(event: Any) -> None:
            if isinstance(event, trainer.EndStepEvent):
                steps.append((event.epoch, event.step, event.metrics[0].item()))
                if (event.epoch, event.step) == dies_at:
                    raise Killed

        training = trainer.Trainer(seeded, lambda: fluid.optimizer.Adam(0.1), checkpoint_config=config)
        try:
            training.train(3, handle, batches, ["x", "y"])
        except Killed:
            pass
        return training.test(batches, ["x", "y"]), steps

    expected, all_steps = trained(None, None)
    config = trainer.CheckpointConfig(tmp_path, max_num_checkpoints=2, step_interval=2)
    _, before = trained(last, config)
    assert before == all_steps[: len(before)]
    assert len(list(tmp_path.glob("checkpoint_*"))) == min(2, sum(step % 2 == 0 for _, step, _ in before))
    result, after = trained(None, config)
    assert result == expected
    saved = max((epoch, step) for epoch, step, _ in before if step % 2 == 0)
    assert after == [step for step in all_steps if step[:2] > saved]
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["notes"]


def test_a_stopped_training_removes_its_checkpoints(tmp_path: Path) -> None:
    config = trainer.CheckpointConfig(tmp_path / "kept", epoch_interval=2, step_interval=1)
    training = trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1), checkpoint_config=config)
    seen: list[Any] = []

    def handle(event: Any) -> None:
        seen.append(type(event).__name__)
        if isinstance(event, trainer.EndStepEvent) and (event.epoch, event.step) == (1, 2):
            # Epoch 1 saves none.
            assert sorted(path.name for path in (tmp_path / "kept").glob("c*")) == [f"checkpoint_{i}" for i in range(3)]
            training.stop()

    training.train(5, handle, batches, ["x", "y"])
    assert seen[-1] == "EndStepEvent"
    assert not list((tmp_path / "kept").glob("checkpoint_*"))


def test_a_checkpoint_needs_the_reader_and_the_network_that_it_was_saved_with(tmp_path: Path) -> None:
    config = trainer.CheckpointConfig(tmp_path, step_interval=1)
    training = trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1), checkpoint_config=config)
    fluid.io.save_checkpoint(
        training.exe, tmp_path, training.train_program, extra={"epoch": 0, "step": 2}, scope=training.scope
    )
    again = trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1), checkpoint_config=config)
    with pytest.raises(errors.FailedPrecondition, match="after batch 3 of epoch 0, but the reader has only 2"):
        again.train(1, lambda event: None, lambda: list(batches())[:2], ["x", "y"])
    with pytest.raises(errors.InvalidArgument, match="checkpoint of another program"):
        trainer.Trainer(network, lambda: fluid.optimizer.Adam(0.1), checkpoint_config=config)


def test_wrong_use_is_refused() -> None:
    with pytest.raises(errors.TypeMismatch, match="optimizer_func has to return an optimizer, got int"):
        trainer.Trainer(network, lambda: 1)  # type: ignore[arg-type, return-value]
    training = trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.InvalidArgument, match=r"train\(\) needs a reader"):
        training.train(1, lambda event: None)
    with pytest.raises(errors.NotFound, match="'z'"):
        training.train(1, lambda event: None, batches, ["x", "z"])
    with pytest.raises(errors.InvalidArgument, match="the reader has no batches"):
        training.test(lambda: iter([]), ["x", "y"])
    with pytest.raises(errors.TypeMismatch, match="checkpoint_config has to be a CheckpointConfig, got str"):
        trainer.Trainer(network, lambda: fluid.optimizer.SGD(0.1), checkpoint_config="folder")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidArgument, match="step_interval has to be a positive int, got 0"):
        trainer.CheckpointConfig("folder", step_interval=0)


def test_mixed_precision_is_imported_and_refused() -> None:
    utils = mixed_precision.fp16_utils
    for use in (
        mixed_precision.decorate,
        mixed_precision.decorator.AutoMixedPrecisionLists,
        utils.create_master_params_grads,
        utils.master_param_to_train_param,
    ):
        with pytest.raises(errors.Unimplemented, match="use the optimizer as it is"):
            use(fluid.optimizer.SGD(0.1))


def test_programs_read_the_shape_in_a_tensors_file(exe: fluid.Executor, tmp_path: Path) -> None:
    layers.create_parameter([300, 4], "float64", name="w")
    exe.run(fluid.default_startup_program())
    fluid.io.save_persistables(exe, str(tmp_path))
    with open(tmp_path / "w", "rb") as file:
        file.read(4)
        for _ in range(struct.unpack("Q", file.read(8))[0]):
            file.read(struct.unpack("Q", file.read(8))[0])
        file.read(4)
        description = VarType.TensorDesc()
        message = file.read(struct.unpack("i", file.read(4))[0])
    assert description.ParseFromString(message) == len(message)
    assert description.dims == [300, 4]
    assert description.data_type == VarType.FP64 == int(fluid.core.VarDesc.VarType.FP64)
    for broken in (message[:-1] + b"\x80", b"\x1a\x01", message[:1]):
        with pytest.raises(errors.DataLoss):
            VarType.TensorDesc().ParseFromString(broken)
