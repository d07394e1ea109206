#!/usr/bin/env python3
"""headrace.fluid beside torch in eager mode and, where it is installed, beside a static program of paddlepaddle.

Each case trains the same network on the same batches (but for the initial weights) with the same optimizer, in float32.
Each contestant has a process of its own, with the same number of threads for all. The processes take turns, so that
whatever else the machine does hits all alike: the figures are medians over the rounds, the ratios medians of the
rounds' ratios, by time and, where a busy machine makes that uncertain, by CPU time. What two threads can reach on this
machine at this moment, where two processors of a virtual machine may be one core, is what two processes of one thread
each reach together: that is measured, too.

  lenet   two convolutions (20 and 50 filters of 5 x 5) and two connected layers on 64 images of 28 x 28, Adam
  mlp     784-512-512-10 on a batch of 128, Adam
  lstm    32 sentences of very different lengths: embedding, LSTM of 128, the greatest output of each, Adam. Ours are
          ragged (LoD); torch's and paddle's padded to the longest of the batch. Figures are real words per second.
  resnet  ResNet-50 on 4 images of 224 x 224, Adam
  transformer
          the base size: 6 layers of 512 in the encoder and in the decoder, 8 heads, 2,048 between, 8 pairs of sentences
          of 32 words of 10,000, no dropout, Adam
  chain   1,000 operators on one element each, forward
  conv    3 x 3, 64 to 64 channels, 56 x 56, 16 images, forward: share of the rate of a product of matrices of 1,024^2

paddlepaddle may live in another environment: --paddle-python names its interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[], object]

CLASSES = 10
BATCHES = 8  # that a case goes through in turn
WORDS = 10_000
WIDTH = 128
SENTENCES = 32
CHAIN = 1000
IMAGES = 4  # of a batch of ResNet-50
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # of ResNet-50: channels and blocks
LAYERS, MODEL, HEADS, BETWEEN, PAIRS, LENGTH = 6, 512, 8, 2048, 8, 32  # of the transformer
# Of the environment, from which the libraries take the number of their threads when they are imported.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "FLAGS_paddle_num_threads")


def images() -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of 64 images and their labels."""
    rng = np.random.default_rng(1)
    return [
        (rng.standard_normal((64, 1, 28, 28), np.float32), rng.integers(0, CLASSES, (64, 1))) for _ in range(BATCHES)
    ]


def vectors() -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of 128 vectors and their labels."""
    rng = np.random.default_rng(1)
    return [(rng.standard_normal((128, 784), np.float32), rng.integers(0, CLASSES, (128, 1))) for _ in range(BATCHES)]


def sentences() -> list[tuple[list[np.ndarray], np.ndarray]]:
    """Batches of sentences and their labels. The lengths are spread as those of reviews: most are short, some long."""
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(BATCHES):
        lengths = np.clip(rng.lognormal(3.0, 0.8, SENTENCES).astype(int), 2, 200)
        batches.append(
            ([rng.integers(1, WORDS, (length, 1)) for length in lengths], rng.integers(0, 2, (SENTENCES, 1)))
        )
    return batches


def words_per_step() -> float:
    """Real words in a batch of sentences, on average."""
    return sum(len(sentence) for batch, _ in sentences() for sentence in batch) / BATCHES


def padded() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The sentences padded with 0, [batch, longest], their lengths and labels."""
    batches = []
    for batch, labels in sentences():
        lengths = np.array([len(sentence) for sentence in batch])
        ids = np.zeros((len(batch), lengths.max()), np.int64)
        for row, sentence in zip(ids, batch):
            row[: len(sentence)] = sentence[:, 0]
        batches.append((ids, lengths, labels))
    return batches


def photographs() -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches for ResNet-50 and their labels."""
    rng = np.random.default_rng(1)
    shape = (IMAGES, 3, 224, 224)
    return [(rng.standard_normal(shape, np.float32), rng.integers(0, CLASSES, (IMAGES, 1))) for _ in range(BATCHES)]


def translations() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Words of the source, words of the target, and those which follow each of these, [PAIRS, LENGTH] each."""
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(BATCHES):
        target = rng.integers(1, WORDS, (PAIRS, LENGTH + 1))
        batches.append((rng.integers(1, WORDS, (PAIRS, LENGTH)), target[:, :-1].copy(), target[:, 1:].copy()))
    return batches


def in_turn(batches: list[Any], step: Callable[[Any], object]) -> Step:
    """A step that takes the next batch each time."""
    position = 0

    def run() -> object:
        nonlocal position
        position += 1
        return step(batches[position % len(batches)])

    return run


def headrace_steps(threads: int) -> dict[str, Callable[[], Step]]:
    """The cases, each to be built when it is wanted."""
    import headrace.fluid as fluid

    layers = fluid.layers

    def training(feeds: list[dict[str, Any]], loss: Any) -> Step:
        fluid.optimizer.Adam(1e-3).minimize(loss)
        executor = fluid.Executor(fluid.CPUPlace(), cpu_num=threads)
        executor.run(fluid.default_startup_program())
        return in_turn(feeds, lambda feed: executor.run(feed=feed))

    def forward(feed: dict[str, Any]) -> Step:
        executor = fluid.Executor(fluid.CPUPlace(), cpu_num=threads)
        executor.run(fluid.default_startup_program())
        return lambda: executor.run(feed=feed)

    def classification(net: Any) -> Any:
        label = layers.data("label", [1], dtype="int64")
        return layers.mean(layers.softmax_with_cross_entropy(layers.fc(net, CLASSES), label))

    def lenet() -> Step:
        net = layers.data("x", [1, 28, 28])
        for filters in (20, 50):
            net = layers.conv2d(net, filters, 5, act="relu")
            net = layers.pool2d(net, 2, "max", pool_stride=2)
        loss = classification(layers.fc(net, 500, act="relu"))
        return training([{"x": x, "label": y} for x, y in images()], loss)

    def mlp() -> Step:
        net = layers.data("x", [784])
        for _ in range(2):
            net = layers.fc(net, 512, act="relu")
        return training([{"x": x, "label": y} for x, y in vectors()], classification(net))

    def lstm() -> Step:
        words = layers.data("words", [1], dtype="int64", lod_level=1)
        net = layers.fc(layers.embedding(words, [WORDS, WIDTH], is_sparse=True), 4 * WIDTH)
        net, _ = layers.dynamic_lstm(net, 4 * WIDTH, use_peepholes=False)
        net = layers.fc(layers.sequence_pool(net, "max"), 2)
        label = layers.data("label", [1], dtype="int64")
        loss = layers.mean(layers.softmax_with_cross_entropy(net, label))
        feeds = [
            {
                "words": fluid.create_lod_tensor(np.concatenate(batch), [[len(s) for s in batch]], fluid.CPUPlace()),
                "label": labels,
            }
            for batch, labels in sentences()
        ]
        return training(feeds, loss)

    def resnet() -> Step:
        def conv_norm(net: Any, filters: int, size: int, stride: int = 1, act: str | None = None) -> Any:
            net = layers.conv2d(net, filters, size, stride, (size - 1) // 2, bias_attr=False)
            return layers.batch_norm(net, act=act)

        net = conv_norm(layers.data("x", [3, 224, 224]), 64, 7, 2, "relu")
        net = layers.pool2d(net, 3, "max", 2, 1)
        for stage, (channels, blocks) in enumerate(STAGES):
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                shortcut = net if block else conv_norm(net, 4 * channels, 1, stride)
                net = conv_norm(net, channels, 1, act="relu")
                net = conv_norm(net, channels, 3, stride, "relu")
                net = layers.elementwise_add(shortcut, conv_norm(net, 4 * channels, 1), act="relu")
        net = layers.pool2d(net, pool_type="avg", global_pooling=True)
        return training([{"x": x, "label": y} for x, y in photographs()], classification(net))

    def transformer() -> Step:
        def linear(net: Any, width: int, act: str | None = None) -> Any:
            return layers.fc(net, width, num_flatten_dims=2, act=act)

        def heads(net: Any) -> Any:
            return layers.transpose(layers.reshape(net, [0, 0, HEADS, MODEL // HEADS]), [0, 2, 1, 3])

        def attention(net: Any, memory: Any, mask: Any = None) -> Any:
            query, key, value = (heads(linear(each, MODEL)) for each in (net, memory, memory))
            scores = layers.matmul(query, key, transpose_y=True, alpha=(MODEL // HEADS) ** -0.5)
            shares = layers.softmax(scores if mask is None else scores + mask)
            mixed = layers.transpose(layers.matmul(shares, value), [0, 2, 1, 3])
            return linear(layers.reshape(mixed, [0, 0, MODEL]), MODEL)

        def added(net: Any, more: Any) -> Any:
            return layers.layer_norm(net + more, begin_norm_axis=2)

        def between(net: Any) -> Any:
            return added(net, linear(linear(net, BETWEEN, "relu"), MODEL))

        source, target, following = (
            layers.data(name, [LENGTH], dtype="int64") for name in ("source", "target", "following")
        )
        mask = layers.assign(np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1))
        mask.stop_gradient = True
        memory = fluid.embedding(source, [WORDS, MODEL])
        for _ in range(LAYERS):
            memory = between(added(memory, attention(memory, memory)))
        net = fluid.embedding(target, [WORDS, MODEL])
        for _ in range(LAYERS):
            net = added(net, attention(net, net, mask))
            net = between(added(net, attention(net, memory)))
        loss = layers.softmax_with_cross_entropy(linear(net, WORDS), layers.unsqueeze(following, [2]))
        feeds = [{"source": x, "target": y, "following": z} for x, y, z in translations()]
        return training(feeds, layers.mean(loss))

    def chain() -> Step:
        net = layers.data("x", [1], append_batch_size=False)
        for _ in range(CHAIN):
            net = layers.scale(net, 1.0001)
        return forward({"x": np.ones(1, np.float32)})

    def conv() -> Step:
        layers.conv2d(layers.data("x", [64, 56, 56]), 64, 3, padding=1, bias_attr=False)
        return forward({"x": np.random.default_rng(1).standard_normal((16, 64, 56, 56), np.float32)})

    def gemm() -> Step:
        x = layers.data("x", [1024, 1024], append_batch_size=False)
        layers.matmul(x, x)
        return forward({"x": np.random.default_rng(1).standard_normal((1024, 1024), np.float32)})

    networks = {"lenet": lenet, "mlp": mlp, "lstm": lstm, "resnet": resnet, "transformer": transformer}
    return {**networks, "chain": chain, "conv": conv, "gemm": gemm}


def torch_steps(threads: int) -> dict[str, Callable[[], Step]]:
    """The same for torch."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)

    def training(batches: list[Any], net: Any, loss_of: Callable[[Any], Any]) -> Step:
        optimizer = torch.optim.Adam(net.parameters(), 1e-3, fused=True)  # the fastest of torch's three

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            loss_of(batch).backward()
            optimizer.step()

        return in_turn(batches, step)

    def classification(net: Any, batches: list[tuple[np.ndarray, np.ndarray]]) -> Step:
        tensors = [(torch.from_numpy(x), torch.from_numpy(y[:, 0])) for x, y in batches]
        return training(tensors, net, lambda batch: functional.cross_entropy(net(batch[0]), batch[1]))

    def lenet() -> Step:
        net = nn.Sequential(
            *(nn.Conv2d(1, 20, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Conv2d(20, 50, 5), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(inplace=True), nn.Linear(500, CLASSES)),
        )
        return classification(net, images())

    def mlp() -> Step:
        net = nn.Sequential(
            *(nn.Linear(784, 512), nn.ReLU(inplace=True), nn.Linear(512, 512), nn.ReLU(inplace=True)),
            nn.Linear(512, CLASSES),
        )
        return classification(net, vectors())

    def lstm() -> Step:
        # A dense gradient: Adam takes no sparse one, and SparseAdam is slower on a table of this size.
        embedding, lstm, last = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 2)
        batches = []
        for ids, lengths, labels in padded():
            is_padding = torch.from_numpy(np.arange(ids.shape[1]) >= lengths[:, None])[:, :, None]
            batches.append((torch.from_numpy(ids), is_padding, torch.from_numpy(labels[:, 0])))

        def loss_of(batch: Any) -> Any:
            ids, is_padding, labels = batch
            out = lstm(embedding(ids))[0].masked_fill(is_padding, -torch.inf)
            return functional.cross_entropy(last(out.amax(dim=1)), labels)

        return training(batches, nn.ModuleList([embedding, lstm, last]), loss_of)

    def resnet() -> Step:
        class Block(nn.Module):
            def __init__(self, inputs: int, channels: int, stride: int) -> None:
                super().__init__()
                outputs = 4 * channels
                self.shortcut = nn.Identity()
                if inputs != outputs:
                    self.shortcut = nn.Sequential(*conv_norm(inputs, outputs, 1, stride))
                self.main = nn.Sequential(
                    *(*conv_norm(inputs, channels, 1), nn.ReLU(inplace=True)),
                    *(*conv_norm(channels, channels, 3, stride), nn.ReLU(inplace=True)),
                    *conv_norm(channels, outputs, 1),
                )

            def forward(self, x: Any) -> Any:
                return functional.relu(self.shortcut(x) + self.main(x), inplace=True)

        def conv_norm(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
            convolution = nn.Conv2d(inputs, outputs, size, stride, (size - 1) // 2, bias=False)
            return [convolution, nn.BatchNorm2d(outputs)]

        net = [*conv_norm(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, (channels, blocks) in enumerate(STAGES):
            for block in range(blocks):
                net.append(Block(inputs, channels, 2 if stage and not block else 1))
                inputs = 4 * channels
        net += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)]
        return classification(nn.Sequential(*net), photographs())

    def transformer() -> Step:
        net = nn.Transformer(MODEL, HEADS, LAYERS, LAYERS, BETWEEN, dropout=0, batch_first=True)
        # Fluid's have no normalisation after the last layer.
        net.encoder.norm = net.decoder.norm = None
        source, target, last = nn.Embedding(WORDS, MODEL), nn.Embedding(WORDS, MODEL), nn.Linear(MODEL, WORDS)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)

        def loss_of(batch: Any) -> Any:
            x, y, following = batch
            out = last(net(source(x), target(y), tgt_mask=mask, tgt_is_causal=True))
            return functional.cross_entropy(out.flatten(0, 1), following.flatten())

        batches = [tuple(map(torch.from_numpy, batch)) for batch in translations()]
        return training(batches, nn.ModuleList([net, source, target, last]), loss_of)

    def chain() -> Step:
        x = torch.ones(1)

        def step() -> None:
            value = x
            for _ in range(CHAIN):
                value = value * 1.0001

        return without_grad(step)

    def without_grad(step: Step) -> Step:
        def run() -> None:
            with torch.inference_mode():
                step()

        return run

    def conv() -> Step:
        net = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        x = torch.randn(16, 64, 56, 56)
        return without_grad(lambda: net(x))

    def gemm() -> Step:
        x = torch.randn(1024, 1024)
        return without_grad(lambda: x @ x)

    networks = {"lenet": lenet, "mlp": mlp, "lstm": lstm, "resnet": resnet, "transformer": transformer}
    return {**networks, "chain": chain, "conv": conv, "gemm": gemm}


def paddle_steps(threads: int) -> dict[str, Callable[[], Step]]:
    """The same for a static program of paddlepaddle 2 and later; the number of threads is set by the environment."""
    del threads
    import paddle

    paddle.enable_static()
    nn, functional = paddle.nn, paddle.nn.functional

    def runner() -> Any:
        executor = paddle.static.Executor(paddle.CPUPlace())
        executor.run(paddle.static.default_startup_program())
        return executor

    def classification(net: Any, batches: list[tuple[np.ndarray, np.ndarray]]) -> Step:
        x = paddle.static.data("x", [None, *batches[0][0].shape[1:]], "float32")
        label = paddle.static.data("label", [None, 1], "int64")
        loss = functional.cross_entropy(net(x), label)
        paddle.optimizer.Adam(1e-3).minimize(loss)
        executor = runner()
        return in_turn([{"x": x, "label": y} for x, y in batches], lambda feed: executor.run(feed=feed))

    def lenet() -> Step:
        net = nn.Sequential(
            *(nn.Conv2D(1, 20, 5), nn.ReLU(), nn.MaxPool2D(2), nn.Conv2D(20, 50, 5), nn.ReLU(), nn.MaxPool2D(2)),
            *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, CLASSES)),
        )
        return classification(net, images())

    def mlp() -> Step:
        net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
        return classification(net, vectors())

    def lstm() -> Step:
        ids = paddle.static.data("ids", [None, None], "int64")
        padding = paddle.static.data("padding", [None, None, 1], "float32")
        label = paddle.static.data("label", [None, 1], "int64")
        out = nn.LSTM(WIDTH, WIDTH)(nn.Embedding(WORDS, WIDTH, sparse=True)(ids))[0] + padding
        loss = functional.cross_entropy(nn.Linear(WIDTH, 2)(out.max(axis=1)), label)
        paddle.optimizer.Adam(1e-3, lazy_mode=True).minimize(loss)
        executor = runner()
        feeds = []
        for words, lengths, labels in padded():
            is_padding = np.arange(words.shape[1]) >= lengths[:, None]
            feeds.append({"ids": words, "padding": np.float32(-1e9) * is_padding[:, :, None], "label": labels})
        return in_turn(feeds, lambda feed: executor.run(feed=feed))

    def chain() -> Step:
        value = paddle.static.data("x", [1], "float32")
        for _ in range(CHAIN):
            value = paddle.scale(value, 1.0001)
        executor = runner()
        feed = {"x": np.ones(1, np.float32)}
        return lambda: executor.run(feed=feed)

    return {"lenet": lenet, "mlp": mlp, "lstm": lstm, "chain": chain}


STEPS = {"headrace": headrace_steps, "torch": torch_steps, "paddle": paddle_steps}
CASES = ("lenet", "mlp", "lstm", "resnet", "transformer", "chain", "conv")


def serve(contestant: str, case: str, threads: int) -> None:
    """In a process of its own: builds a case, then runs as many steps as each line of the input says."""
    answer, sys.stdout = sys.stdout, sys.stderr  # nobody else may answer

    def say(**what: object) -> None:
        print(json.dumps(what), file=answer, flush=True)

    try:
        steps = STEPS[contestant](threads)
    except ImportError as error:
        return say(missing=str(error))
    if case not in steps:
        return say(missing=f"no case {case}")
    step = steps[case]()
    say(ready=True)
    for line in sys.stdin:
        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        say(seconds=time.perf_counter() - start, cpu=time.process_time() - start_cpu)
    return None


class Contestant:
    """A process that runs the steps of a case."""

    def __init__(self, name: str, case: str, threads: int, python: str) -> None:
        environment = dict(os.environ)
        for variable in THREAD_VARIABLES:
            environment[variable] = str(threads)
        self.name = name
        self._process = subprocess.Popen(
            [python, __file__, "--serve", name, "--only", case, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.missing: str | None = self._answer().get("missing")
        self.steps = 1

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.name} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self, steps: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()

    def finish(self, steps: int) -> tuple[float, float]:
        """Seconds and seconds of CPU time per step."""
        answer = self._answer()
        return answer["seconds"] / steps, answer["cpu"] / steps

    def run(self, steps: int) -> tuple[float, float]:
        self.start(steps)
        return self.finish(steps)

    def warm_up(self, seconds: float) -> None:
        """Finds out how many steps take `seconds`."""
        self.run(3 * BATCHES)
        took = min(self.run(BATCHES)[0] for _ in range(3))
        self.steps = max(BATCHES, round(seconds / took / BATCHES) * BATCHES)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


class Processes:
    """Several contestants of one thread, at the same time. Their steps are counted together."""

    def __init__(self, name: str, case: str, count: int, python: str) -> None:
        self._contestants = [Contestant(name, case, 1, python) for _ in range(count)]
        self.steps = 1

    def run(self, steps: int) -> tuple[float, float]:
        for contestant in self._contestants:
            contestant.start(steps)
        times = [contestant.finish(steps) for contestant in self._contestants]
        return max(seconds for seconds, _ in times) / len(times), sum(cpu for _, cpu in times) / len(times)

    def warm_up(self, seconds: float) -> None:
        for contestant in self._contestants:
            contestant.warm_up(seconds)
        self.steps = self._contestants[0].steps

    def close(self) -> None:
        for contestant in self._contestants:
            contestant.close()


def median_ratio(theirs: list[float], ours: list[float]) -> float:
    """Of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(theirs, ours))


#: By contestant, threads and processes, (seconds, seconds of CPU time) per step in each round.
Times = dict[tuple[str, int, int], list[tuple[float, float]]]


def measure(case: str, options: argparse.Namespace) -> Times:
    contestants: dict[tuple[str, int, int], Contestant | Processes] = {}
    for name in options.contestants:
        python = options.paddle_python if name == "paddle" else sys.executable
        for threads in options.threads:
            contestant: Contestant | Processes = Contestant(name, case, threads, python)
            if contestant.missing is not None:
                print(f"  {name} is left out: {contestant.missing}")
                contestant.close()
                break
            contestants[name, threads, 1] = contestant
            if name == "headrace" and threads > 1:
                contestants[name, 1, threads] = Processes(name, case, threads, python)
    try:
        for contestant in contestants.values():
            contestant.warm_up(options.seconds)
        times: Times = {key: [] for key in contestants}
        for _ in range(options.rounds):
            for key, contestant in contestants.items():
                times[key].append(contestant.run(contestant.steps))
    finally:
        for contestant in contestants.values():
            contestant.close()
    return times


def figure(case: str, seconds: float) -> str:
    """A time per step as the case is used to be measured."""
    if case == "lstm":
        return f"{words_per_step() / seconds:12,.0f} words/s"
    if case == "chain":
        return f"{seconds / CHAIN * 1e6:12.3f} us per operator"
    if case == "conv":
        return f"{2 * 16 * 64 * 64 * 9 * 56 * 56 / seconds / 1e9:12.1f} GFLOP/s"
    if case == "gemm":
        return f"{2 * 1024**3 / seconds / 1e9:12.1f} GFLOP/s"
    return f"{seconds * 1e3:12.3f} ms per step"


def report(case: str, times: Times) -> None:
    for (name, threads, processes), rounds in times.items():
        count = max(threads, processes)
        unit = ("process" if processes > 1 else "thread") + ("" if count == 1 else "es" if processes > 1 else "s")
        line = f"  {case:6} {count} {unit:9} {name:9}"
        line += figure(case, statistics.median(seconds for seconds, _ in rounds))
        ours = times.get(("headrace", threads, 1))
        if name != "headrace" and ours is not None:
            by_time, by_cpu = (median_ratio([r[i] for r in rounds], [r[i] for r in ours]) for i in (0, 1))
            line += f"   / headrace: {by_time:5.2f} x the time, {by_cpu:5.2f} x the CPU time"
        alone = times.get((name, 1, 1))
        if count > 1 and alone is not None:
            line += f"   {median_ratio([r[0] for r in alone], [r[0] for r in rounds]):.2f} times as fast as one"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*CASES, "gemm"], default=CASES, help="(default: all cases)")
    parser.add_argument("--contestants", nargs="+", choices=list(STEPS), default=list(STEPS), help="(default: all)")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="of each contestant (default: 1 2)")
    parser.add_argument("--rounds", type=int, default=9, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn (default: %(default)s)")
    parser.add_argument("--paddle-python", default=sys.executable, help="an interpreter that can import paddle")
    parser.add_argument("--serve", choices=list(STEPS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.only[0], options.threads[0])
        return
    for case in options.only:
        print(case)
        report(case, measure(case, options))
        if case == "conv":
            report("gemm", measure("gemm", options))


if __name__ == "__main__":
    main()
