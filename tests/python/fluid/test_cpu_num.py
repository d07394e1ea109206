"""Programs give the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

# Each has several blocks of work, and not as many for each thread.
ROWS = 1037
RNG = np.random.default_rng(1)
MATRIX = RNG.standard_normal((ROWS, 331), np.float32)
IMAGES = RNG.standard_normal((13, 6, 37, 41), np.float32)
VOLUMES = RNG.standard_normal((5, 3, 11, 13, 17), np.float32)


def parameter(shape: list[int]) -> Any:
    return layers.create_parameter(shape, "float32", default_initializer=fluid.initializer.Normal(0.5, 0.2, seed=1))


# Each depends on a parameter, so that gradients pass through whatever follows.
def matrix() -> Any:
    return layers.elementwise_mul(layers.data("matrix", [331]), parameter([331]))


def images() -> Any:
    return layers.elementwise_mul(layers.data("images", list(IMAGES.shape[1:])), parameter([6]), axis=1)


def volumes() -> Any:
    return layers.elementwise_mul(layers.data("volumes", list(VOLUMES.shape[1:])), parameter([3]), axis=1)


def labels() -> Any:
    return layers.data("labels", [1], dtype="int64")


def weights() -> Any:
    return layers.data("weights", [331])


def words() -> Any:
    return layers.data("words", [1], dtype="int64", lod_level=1)


LENGTHS = [1, 70, 33, 4, 91, 2, 58, 17, 40, 29, 5]
FEED: dict[str, Any] = {
    "matrix": MATRIX,
    "images": IMAGES,
    "volumes": VOLUMES,
    "labels": RNG.integers(0, 331, (ROWS, 1)),
    "weights": RNG.random((ROWS, 331), np.float32),
    "words": fluid.create_lod_tensor(RNG.integers(0, 500, (sum(LENGTHS), 1)), [LENGTHS], fluid.CPUPlace()),
}


def recurrent(layer: Callable[..., Any], gates: int) -> Any:
    net = layers.fc(layers.embedding(words(), [500, 64]), gates * 96)
    out = layer(net, gates * 96 if gates == 4 else 96)
    return out[0] if isinstance(out, tuple) else out


NETS: dict[str, Callable[[], Any]] = {
    "fc": lambda: layers.fc(matrix(), 217, act="relu"),
    "matmul": lambda: layers.matmul(images(), parameter([13, 6, 41, 19])),
    "matmul_of_transposed": lambda: layers.matmul(matrix(), parameter([331, 331]), transpose_y=True, alpha=0.7),
    "add_rows": lambda: layers.elementwise_add(matrix(), parameter([331])),
    "mul_channels": lambda: layers.elementwise_mul(images(), parameter([6]), axis=1),
    "div_columns": lambda: layers.elementwise_div(matrix(), parameter([ROWS]), axis=0),
    "max_of_one": lambda: layers.elementwise_max(images(), parameter([1])),
    "sub_of_all": lambda: layers.elementwise_sub(images(), parameter(list(IMAGES.shape))),
    "sigmoid": lambda: layers.sigmoid(matrix()),
    "tanh": lambda: layers.tanh(matrix()),
    "gelu": lambda: layers.gelu(matrix()),
    "elu": lambda: layers.elu(matrix()),
    "scale": lambda: layers.scale(matrix(), 1.7, bias=0.3),
    "softmax": lambda: layers.softmax(matrix()),
    "log_softmax": lambda: layers.log_softmax(matrix()),
    "layer_norm": lambda: layers.layer_norm(matrix()),
    "group_norm": lambda: layers.group_norm(images(), 3),
    "batch_norm": lambda: layers.batch_norm(images()),
    "reduce_sum_of_rows": lambda: layers.reduce_sum(matrix(), dim=1),
    "reduce_mean_of_columns": lambda: layers.reduce_mean(matrix(), dim=0),
    "reduce_sum_of_channels": lambda: layers.reduce_sum(images(), dim=[0, 2, 3]),
    "reduce_max": lambda: layers.reduce_max(images(), dim=[1, 3]),
    "reduce_min_of_columns": lambda: layers.reduce_min(matrix(), dim=0),
    "reduce_prod": lambda: layers.reduce_prod(images(), dim=[0, 1]),
    "mean": lambda: layers.mean(images()),
    "conv2d": lambda: layers.conv2d(images(), 19, 3, padding=1, act="relu"),
    "conv2d_of_groups": lambda: layers.conv2d(images(), 8, 5, stride=2, padding=2, groups=2),
    "conv2d_dilated": lambda: layers.conv2d(images(), 3, 3, dilation=2),
    "conv2d_of_many_channels": lambda: layers.conv2d(layers.conv2d(images(), 17, 3), 5, 3, padding=1),
    "conv2d_pointwise": lambda: layers.conv2d(images(), 19, 1),
    "conv2d_transpose": lambda: layers.conv2d_transpose(images(), 7, filter_size=3, stride=2),
    "conv3d": lambda: layers.conv3d(volumes(), 5, 3, padding=1),
    "pool2d_max": lambda: layers.pool2d(images(), 3, "max", pool_stride=2, pool_padding=1),
    "pool2d_avg": lambda: layers.pool2d(images(), 2, "avg", pool_stride=2),
    "pool3d": lambda: layers.pool3d(volumes(), 3, "avg", pool_stride=2),
    "conv2d_of_channels_last": lambda: layers.conv2d(images(), 19, 3, padding=1, data_format="NHWC"),
    "conv3d_transpose_of_channels_last": lambda: layers.conv3d_transpose(
        volumes(), 4, filter_size=2, data_format="NDHWC"
    ),
    "pool2d_of_channels_last": lambda: layers.pool2d(images(), 3, "max", pool_stride=2, data_format="NHWC"),
    "group_norm_of_channels_last": lambda: layers.group_norm(images(), 41, data_layout="NHWC"),
    "resize_of_channels_last": lambda: layers.resize_bilinear(images(), [7, 50], data_format="NHWC"),
    "dropout": lambda: layers.dropout(images(), 0.3, seed=5),
    "dropout_upscaled": lambda: layers.dropout(matrix(), 0.3, seed=5, dropout_implementation="upscale_in_train"),
    "dropout_in_a_test": lambda: layers.dropout(matrix(), 0.3, is_test=True),
    "transpose": lambda: layers.transpose(images(), [2, 0, 3, 1]),
    "transpose_of_a_matrix": lambda: layers.transpose(matrix(), [1, 0]),
    "concat": lambda: layers.concat([matrix(), matrix()], axis=1),
    "split": lambda: layers.split(matrix(), [100, 231], dim=1)[1],
    "stack": lambda: layers.stack([matrix(), matrix()], axis=1),
    "cross_entropy": lambda: layers.cross_entropy(layers.softmax(matrix()), labels()),
    "cross_entropy_of_soft_labels": lambda: layers.cross_entropy(layers.softmax(matrix()), weights(), soft_label=True),
    "softmax_with_cross_entropy": lambda: layers.softmax_with_cross_entropy(matrix(), labels()),
    "softmax_with_cross_entropy_of_soft_labels": lambda: layers.softmax_with_cross_entropy(
        matrix(), weights(), soft_label=True
    ),
    "sigmoid_cross_entropy_with_logits": lambda: layers.sigmoid_cross_entropy_with_logits(matrix(), weights()),
    "smooth_l1": lambda: layers.smooth_l1(matrix(), weights()),
    "square_error_cost": lambda: layers.square_error_cost(matrix(), weights()),
    "huber_loss": lambda: layers.huber_loss(matrix(), weights(), 0.8),
    "embedding": lambda: layers.embedding(words(), [500, 300]),
    "dynamic_lstm": lambda: recurrent(layers.dynamic_lstm, 4),
    "dynamic_gru": lambda: recurrent(layers.dynamic_gru, 3),
    "sequence_pool": lambda: layers.sequence_pool(layers.embedding(words(), [500, 300]), "max"),
}


def results(net: Callable[[], Any], optimizer: Any, cpu_num: int) -> list[bytes]:
    """What a program gives, its gradients, and the parameters after two steps with an optimizer."""
    main, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    main.random_seed = startup.random_seed = 1
    with fluid.program_guard(main, startup), fluid.unique_name.guard():
        out = net()
        optimizer().minimize(layers.mean(layers.square(layers.scale(out, 0.3, bias=0.1))))
    block = main.global_block()
    gradients = [v.name + "@GRAD" for v in main.list_vars() if block.has_var(v.name + "@GRAD")]
    gradients = [name for name in gradients if block.var(name).type == fluid.core.VarType.LOD_TENSOR]
    parameters = [p.name for p in block.all_parameters()]
    executor = fluid.Executor(fluid.CPUPlace(), cpu_num=cpu_num)
    assert executor.cpu_num == cpu_num
    executor.run(startup, scope=scope)
    feed = {name: value for name, value in FEED.items() if block.has_var(name)}
    executor.run(main, feed=feed, scope=scope)
    fetches = [out.name, *gradients, *parameters]
    values = executor.run(main, feed=feed, fetch_list=fetches, scope=scope, return_numpy=False)
    return [np.asarray(value).tobytes() for value in values]


def adam() -> Any:
    return fluid.optimizer.Adam(1e-2)


@pytest.mark.parametrize("name", NETS)
def test_operators_and_their_gradients(name: str) -> None:
    expected = results(NETS[name], adam, 1)
    assert len(expected) > 1
    for cpu_num in (2, 3, 5):
        assert results(NETS[name], adam, cpu_num) == expected, cpu_num


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "Adam": lambda: fluid.optimizer.Adam(1e-2),
    "SGD": lambda: fluid.optimizer.SGD(1e-2),
    "Momentum": lambda: fluid.optimizer.Momentum(1e-2, 0.9, use_nesterov=True),
    "Adagrad": lambda: fluid.optimizer.Adagrad(1e-2),
    "DecayedAdagrad": lambda: fluid.optimizer.DecayedAdagrad(1e-2),
    "Adadelta": lambda: fluid.optimizer.Adadelta(1e-2),
    "Adamax": lambda: fluid.optimizer.Adamax(1e-2),
    "RMSProp": lambda: fluid.optimizer.RMSProp(1e-2),
    "Ftrl": lambda: fluid.optimizer.Ftrl(1e-2),
    "LarsMomentum": lambda: fluid.optimizer.LarsMomentum(1e-2, 0.9),
    "AdamW": lambda: fluid.optimizer.AdamW(1e-2, weight_decay=0.1),
    "Lamb": lambda: fluid.optimizer.Lamb(1e-2, 0.1),
    "Dpsgd": lambda: fluid.optimizer.Dpsgd(1e-2, sigma=0.0),  # its noise is another one each time
    "ProximalGD": lambda: fluid.optimizer.ProximalGD(1e-2, l1=0.1, l2=0.1),
    "ProximalAdagrad": lambda: fluid.optimizer.ProximalAdagrad(1e-2, l1=0.1, l2=0.1),
}


def test_every_optimizer_is_among_them() -> None:
    public = {name for name in fluid.optimizer.__all__ if f"{name}Optimizer" in fluid.optimizer.__all__}
    assert set(OPTIMIZERS) == public


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    expected = results(NETS["fc"], OPTIMIZERS[name], 1)
    for cpu_num in (2, 3, 5):
        assert results(NETS["fc"], OPTIMIZERS[name], cpu_num) == expected, cpu_num


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Dpsgd"])  # test_composed_layers
def test_optimizers_of_sparse_gradients(name: str) -> None:
    def net() -> Any:
        return layers.embedding(words(), [500, 300], is_sparse=True)

    expected = results(net, OPTIMIZERS[name], 1)
    for cpu_num in (2, 3, 5):
        assert results(net, OPTIMIZERS[name], cpu_num) == expected, cpu_num


def test_an_error_in_one_of_several_blocks_is_the_one_that_a_single_thread_meets() -> None:
    x, y = layers.data("x", [1], dtype="int64"), layers.data("y", [1], dtype="int64")
    out = layers.elementwise_div(x, y)
    divisors = np.ones((200_000, 1), np.int64)
    divisors[60_000], divisors[190_000] = 0, 0
    feed = {"x": np.arange(200_000).reshape(-1, 1), "y": divisors}
    for cpu_num in (1, 3):
        with pytest.raises(errors.InvalidArgument, match="division of 60000 by zero"):
            fluid.Executor(fluid.CPUPlace(), cpu_num=cpu_num).run(feed=feed, fetch_list=[out])


def test_the_environment_says_how_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CPU_NUM", raising=False)
    assert fluid.Executor().cpu_num == 1
    monkeypatch.setenv("CPU_NUM", "3")
    assert fluid.Executor().cpu_num == 3
    assert fluid.Executor(cpu_num=2).cpu_num == 2
    monkeypatch.setenv("CPU_NUM", "many")
    with pytest.raises(errors.InvalidArgument, match=r"CPU_NUM.*\[1, 1024\].*'many'"):
        fluid.Executor()


@pytest.mark.parametrize("wrong", [0, -1, 1025])
def test_wrong_numbers_of_threads_are_refused(wrong: int) -> None:
    with pytest.raises(errors.InvalidArgument, match="1 to 1024"):
        fluid.Executor(cpu_num=wrong)


@pytest.mark.parametrize("wrong", [1.0, "2", True])
def test_what_is_no_number_of_threads_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.TypeMismatch, match="cpu_num"):
        fluid.Executor(cpu_num=wrong)
