"""Single operators of the framework beside torch's, with one thread and with all: most of what networks are made of, in
shapes that are good for neither of the two in particular."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from harness.contest import OURS, PEER, Aim, Contestant, Effort, Family, Row

#: Reads an output, so that nothing can be left undone.
Run = Callable[[], object]
#: Everything that a run made: the output, then the gradients of the inputs and weights that have one.
Values = list[np.ndarray]

ONE_THREAD = ", one thread"


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator.

    Attributes:
        inputs: shapes of normally distributed inputs, or (shape, end): integers from 0 to end - 1, without gradient.
        weights: shapes of the weights that ``ours`` makes itself, in the order in which it makes them, of NumPy arrays.
        ours: of fluid.layers, the inputs, and a ParamAttr for each weight, makes the output.
        theirs: of torch, the inputs and the weights makes the output.
        gradients: whether the gradients are computed, too.
    """

    name: str
    title: str
    inputs: Sequence[Any]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    weights: Sequence[tuple[int, ...]] = ()
    gradients: bool = False
    aim: float = 0.8

    def arrays(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The inputs and the weights, float32 or int64."""
        random = np.random.default_rng(1)

        def draw(shape: Any) -> np.ndarray:
            if isinstance(shape[0], tuple):
                return random.integers(0, shape[1], shape[0])
            return random.standard_normal(shape, np.float32)

        return [draw(shape) for shape in self.inputs], [draw(shape) for shape in self.weights]

    def cotangent(self, shape: Sequence[int]) -> np.ndarray:
        """What the gradients begin with."""
        return np.random.default_rng(2).standard_normal(tuple(shape), np.float32)


def headrace_run(case: Case, threads: int) -> tuple[Run, Callable[[], Values]]:
    """What runs the operator, and what returns the values. Inputs are parameters: nothing is fed."""
    import headrace.fluid as fluid

    layers = fluid.layers
    inputs, weights = case.arrays()

    def holder(array: np.ndarray) -> Any:
        value = fluid.initializer.NumpyArrayInitializer(array)
        variable = layers.create_parameter(list(array.shape), str(array.dtype), default_initializer=value)
        variable.stop_gradient = array.dtype.kind != "f"
        return variable

    attributes = [fluid.ParamAttr(initializer=fluid.initializer.NumpyArrayInitializer(array)) for array in weights]
    program, startup, scope = fluid.Program(), fluid.Program(), fluid.Scope()
    with fluid.program_guard(program, startup):
        output = case.ours(layers, *map(holder, inputs), *attributes)
        wanted = [output]
        if case.gradients:
            cotangent = holder(case.cotangent(output.shape))
            cotangent.stop_gradient = True
            sources = [each for each in program.all_parameters() if each.trainable and not each.stop_gradient]
            wanted += fluid.gradients([output], sources, [cotangent])
    executor = fluid.Executor(fluid.CPUPlace(), cpu_num=threads)
    executor.run(startup, scope=scope)
    return lambda: executor.run(program, scope=scope), lambda: executor.run(program, fetch_list=wanted, scope=scope)


def torch_run(case: Case, threads: int) -> tuple[Run, Callable[[], Values]]:
    import torch

    torch.set_num_threads(threads)
    inputs, weights = ([torch.from_numpy(array) for array in arrays] for arrays in case.arrays())
    leaves = [each for each in [*inputs, *weights] if each.is_floating_point()]
    if not case.gradients:

        def forward() -> Any:
            with torch.inference_mode():
                return case.theirs(torch, *inputs, *weights)

        return forward, lambda: [forward().numpy()]
    for leaf in leaves:
        leaf.requires_grad_()
    cotangent = torch.from_numpy(case.cotangent(case.theirs(torch, *inputs, *weights).shape))

    def both() -> Any:
        for leaf in leaves:
            leaf.grad = None
        output = case.theirs(torch, *inputs, *weights)
        output.backward(cotangent)
        return output

    def values() -> Values:
        output = both()
        return [output.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves)]

    return both, values


def seconds_per_run(run: Run, seconds: float) -> float:
    """At least three runs."""
    begin, count, took = time.perf_counter(), 0, 0.0
    while took < seconds or count < 3:
        run()
        count += 1
        took = time.perf_counter() - begin
    return took / count


def summary(values: Values) -> list[list[float]]:
    """Of each array: its mean, and the root of the mean of its squares."""
    wide = [np.asarray(value, np.float64) for value in values]
    return [[float(value.mean()), float(np.sqrt((value * value).mean()))] for value in wide]


def agree(a: list[list[float]], b: list[list[float]]) -> bool:
    """The root mean squares to one in 10,000, the means by as much of them."""
    return len(a) == len(b) and all(
        abs(x[1] - y[1]) <= 1e-4 * y[1] and abs(x[0] - y[0]) <= 1e-4 * y[1] for x, y in zip(a, b)
    )


RUNS = {"headrace": headrace_run, "torch": torch_run}
SETTINGS = {
    "headrace": "a program of `headrace.fluid` that has its inputs.",
    "torch": "eager mode, in `torch.inference_mode()` where no gradients are wanted.",
}


def contestants(case: Case) -> tuple[Contestant, ...]:
    def contestant(name: str, one_thread: bool) -> Contestant:
        def threads() -> int:
            return 1 if one_thread else len(os.sched_getaffinity(0))

        def measure(effort: Effort) -> float:
            run, _ = RUNS[name](case, threads())
            seconds_per_run(run, effort.warm_up)
            return 1e3 * seconds_per_run(run, effort.seconds)

        def content(effort: Effort) -> list[list[float]]:
            del effort
            return summary(RUNS[name](case, threads())[1]())

        title = name + ONE_THREAD * one_thread
        kind = OURS if name == "headrace" else PEER
        return Contestant(title, kind, measure, content, SETTINGS[name], (name,))

    return tuple(contestant(name, one_thread) for one_thread in (False, True) for name in RUNS)


def activation(name: str, torch_name: str | None = None, gradients: bool = False) -> Case:
    """On a million elements."""

    def theirs(torch: Any, x: Any) -> Any:
        module = torch if hasattr(torch, torch_name or name) else torch.nn.functional
        return getattr(module, torch_name or name)(x)

    def ours(layers: Any, x: Any) -> Any:
        return getattr(layers, name)(x)

    suffix, what = ("-gradient", ", with gradient") if gradients else ("", "")
    return Case(name + suffix, f"{name}{what}", [(1024, 1024)], ours, theirs, gradients=gradients)


def convolution(name: str, x: tuple[int, ...], filters: tuple[int, ...], gradients: bool = False, **how: int) -> Case:
    """Without a bias; ``how``: stride, padding, groups."""

    def ours(layers: Any, x: Any, weight: Any) -> Any:
        return layers.conv2d(x, filters[0], list(filters[2:]), param_attr=weight, bias_attr=False, **how)

    def theirs(torch: Any, x: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, **how)

    (batch, channels, height, _), (maps, _, kernel, _) = x, filters
    kind = "depthwise convolution" if how.get("groups", 1) > 1 else "convolution"
    title = f"{kind} {kernel} × {kernel}, {channels} to {maps} channels, {height} × {height}, batch of {batch}"
    if how.get("stride", 1) > 1:
        title += f", stride {how['stride']}"
    title += ", with gradients" if gradients else ""
    return Case(name, title, [x], ours, theirs, [filters], gradients)


def batch_norm(name: str, shape: tuple[int, ...], layout: str = "NCHW") -> Case:
    """In training."""

    def ours(layers: Any, x: Any) -> Any:
        return layers.batch_norm(x, data_layout=layout)

    channels = shape[-1] if layout == "NHWC" else shape[1]

    def theirs(torch: Any, x: Any) -> Any:
        mean, variance, scale, shift = (fill(channels) for fill in (torch.zeros, torch.ones, torch.ones, torch.zeros))
        # torch's channels come second by number; in memory they stay last.
        moved = x.movedim(-1, 1) if layout == "NHWC" else x
        normal = torch.nn.functional.batch_norm(moved, mean, variance, scale, shift, training=True)
        return normal.movedim(1, -1) if layout == "NHWC" else normal

    extents = " × ".join(map(str, shape))
    return Case(
        name, f"batch_norm, {extents}{', channels last' if layout == 'NHWC' else ''}", [shape], ours, theirs, aim=1
    )


def product(name: str, rows: int, inner: int, columns: int) -> Case:
    return Case(
        name,
        f"product of {rows} × {inner} and {inner} × {columns}",
        [(rows, inner), (inner, columns)],
        lambda layers, a, b: layers.matmul(a, b),
        lambda torch, a, b: a @ b,
    )


def pool(kind: str) -> Case:
    return Case(
        f"{kind}-pool",
        f"{kind} pool 2 × 2, 32 × 64 × 56 × 56",
        [(32, 64, 56, 56)],
        lambda layers, x: layers.pool2d(x, 2, kind, 2),
        lambda torch, x: getattr(torch.nn.functional, f"{kind}_pool2d")(x, 2),
        aim=1,
    )


CASES = (
    batch_norm("batch-norm-rows", (4096, 512)),
    batch_norm("batch-norm-last", (32, 28, 28, 64), "NHWC"),
    batch_norm("batch-norm-pixel", (32, 2048, 1, 1)),
    batch_norm("batch-norm-images", (32, 64, 56, 56)),
    activation("sin"),
    activation("erf"),
    activation("softplus"),
    activation("gelu"),
    activation("gelu", gradients=True),
    activation("swish", "silu"),
    activation("swish", "silu", gradients=True),
    activation("atan"),
    activation("elu"),
    Case(
        "softmax",
        "softmax of 128 × 10,000",
        [(128, 10000)],
        lambda layers, x: layers.softmax(x),
        lambda torch, x: torch.softmax(x, -1),
    ),
    Case(
        "log-softmax",
        "log_softmax of 128 × 10,000",
        [(128, 10000)],
        lambda layers, x: layers.log_softmax(x),
        lambda torch, x: torch.log_softmax(x, -1),
    ),
    Case(
        "sum-columns",
        "sum of 4,096 × 512 over the first dimension",
        [(4096, 512)],
        lambda layers, x: layers.reduce_sum(x, 0),
        lambda torch, x: x.sum(0),
    ),
    Case(
        "sum-ends",
        "sum of 4,096 × 512 × 2 over the first and the last dimension",
        [(4096, 512, 2)],
        lambda layers, x: layers.reduce_sum(x, [0, 2]),
        lambda torch, x: x.sum((0, 2)),
    ),
    Case(
        "transpose",
        "transpose of 2,048 × 2,048",
        [(2048, 2048)],
        lambda layers, x: layers.transpose(x, [1, 0]),
        lambda torch, x: x.t().contiguous(),
    ),
    convolution("depthwise-64", (8, 64, 56, 56), (64, 1, 3, 3), padding=1, groups=64),
    convolution("depthwise-96", (8, 96, 28, 28), (96, 1, 3, 3), padding=1, groups=96),
    convolution("depthwise-96-gradient", (8, 96, 28, 28), (96, 1, 3, 3), gradients=True, padding=1, groups=96),
    convolution("convolution-64", (8, 64, 56, 56), (64, 64, 3, 3), padding=1),
    convolution("convolution-64-gradient", (8, 64, 56, 56), (64, 64, 3, 3), gradients=True, padding=1),
    convolution("convolution-512", (8, 512, 7, 7), (512, 512, 3, 3), padding=1),
    convolution("convolution-stride", (8, 64, 56, 56), (128, 64, 3, 3), padding=1, stride=2),
    convolution("convolution-first", (8, 3, 224, 224), (64, 3, 7, 7), padding=3, stride=2),
    product("product-512", 512, 512, 512),
    product("product-1024", 1024, 1024, 1024),
    product("product-layer", 128, 784, 512),
    product("product-1-row", 1, 1024, 1024),
    product("product-4-rows", 4, 1024, 1024),
    product("product-16-rows", 16, 1024, 1024),
    pool("max"),
    pool("avg"),
    Case(
        "layer-norm",
        "layer_norm of 4,096 × 512",
        [(4096, 512)],
        lambda layers, x: layers.layer_norm(x),
        lambda torch, x: torch.nn.functional.layer_norm(x, (512,), torch.ones(512), torch.zeros(512)),
        aim=1,
    ),
    Case(
        "layer-norm-gradient",
        "layer_norm of 4,096 × 512, with gradients",
        [(4096, 512)],
        lambda layers, x, scale, shift: layers.layer_norm(x, param_attr=scale, bias_attr=shift),
        lambda torch, x, scale, shift: torch.nn.functional.layer_norm(x, (512,), scale, shift),
        [(512,), (512,)],
        True,
        aim=1,
    ),
    Case(
        "max-rows",
        "greatest of each row of 4,096 × 512",
        [(4096, 512)],
        lambda layers, x: layers.reduce_max(x, 1),
        lambda torch, x: torch.amax(x, 1),
    ),
    Case(
        "prelu-gradient",
        "prelu of 16 × 64 × 28 × 28, a slope for each channel, with gradients",
        [(16, 64, 28, 28)],
        lambda layers, x, slopes: layers.prelu(x, "channel", param_attr=slopes),
        lambda torch, x, slopes: torch.nn.functional.prelu(x, slopes.flatten()),
        [(1, 64, 1, 1)],
        True,
    ),
    Case(
        "huber-gradient",
        "Huber's loss of 1,024 × 512, with gradient",
        [(1024, 512), (1024, 512)],
        lambda layers, x, y: layers.huber_loss(x, y, 1.0),
        lambda torch, x, y: torch.nn.functional.huber_loss(x, y, reduction="none"),
        gradients=True,
    ),
    Case(
        "embedding-gradient",
        "embedding of 8,192 words of 10,000 × 128, with gradient",
        [((8192, 1), 10000)],
        lambda layers, ids, table: layers.embedding(ids, [10000, 128], param_attr=table),
        lambda torch, ids, table: torch.nn.functional.embedding(ids[:, 0], table),
        [(10000, 128)],
        True,
        aim=1,
    ),
    Case(
        "cross-entropy-gradient",
        "softmax and cross-entropy of 128 × 10,000, with gradient",
        [(128, 10000), ((128, 1), 10000)],
        lambda layers, x, label: layers.softmax_with_cross_entropy(x, label),
        lambda torch, x, label: torch.nn.functional.cross_entropy(x, label[:, 0], reduction="none")[:, None],
        gradients=True,
        aim=1,
    ),
)


def row(case: Case) -> Row:
    aims = (Aim("torch", case.aim), Aim("torch" + ONE_THREAD, case.aim, "headrace" + ONE_THREAD))
    name = f"operator-{case.name}"
    about = "Forward and backward." if case.gradients else "Forward."
    return Row(name, case.title, about, "ms", contestants(case), higher_is_better=False, aims=aims, same=agree)


FAMILY = Family(
    "operators",
    "Operators",
    "One operator in float32, with all processors and with one thread. Ratios refer to torch with all processors; the "
    "aims compare the same number of threads. What comes out is compared, too.",
    tuple(map(row, CASES)),
)
