"""``Program.random_seed``: what layers draw follows from it, and each operator draws something else."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace.fluid import layers
from headrace.fluid.framework import Variable

ROWS = np.arange(4 * 50, dtype=np.float32).reshape(4, 50)


def _rows() -> Variable:
    return layers.assign(ROWS)


def _output(op_type: str, slot: str) -> Variable:
    """Of the last operator of that type."""
    block = fluid.default_main_program().global_block()
    return block.var(next(op for op in reversed(block.ops) if op.type == op_type).output(slot)[0])


def _nce() -> Variable:
    layers.nce(_rows(), layers.assign(np.zeros((4, 1), np.int64)), 1000)
    return _output("nce", "SampleLabels")


def _sampled_softmax() -> Variable:
    label = layers.assign(np.zeros((4, 1), np.int64))
    logits = layers.fill_constant([4, 1000], "float32", 0.5)
    layers.sampled_softmax_with_cross_entropy(logits, label, 20)
    return _output("sample_logits", "Samples")


BOXES = np.repeat(np.array([[10, 10, 29, 29], [60, 60, 79, 79]], np.float32), 50, 0)


def _image() -> tuple[Variable, Variable, Variable]:
    """Its objects, whether they are crowds, and its size."""
    objects = layers.lod_reset(layers.assign(BOXES[:1]), target_lod=[0, 1])
    crowd = layers.lod_reset(layers.assign(np.zeros((1, 1), np.int32)), target_lod=[0, 1])
    return objects, crowd, layers.assign(np.array([[100, 100, 1]], np.float32))


def _anchors() -> Variable:
    numbers = layers.assign(np.arange(100, dtype=np.float32).reshape(1, 100, 1))
    places = layers.assign(BOXES[None])
    return layers.rpn_target_assign(places, numbers, layers.assign(BOXES), None, *_image(), 20)[0]


def _proposals() -> Variable:
    objects, crowd, info = _image()
    rois = layers.assign(BOXES * np.linspace(1, 1.05, 100, dtype=np.float32)[:, None])
    rois, classes = layers.lod_reset(rois, target_lod=[0, 100]), layers.lod_reset(crowd + 1, target_lod=[0, 1])
    labels = layers.generate_proposal_labels(
        rois, classes, crowd, objects, info, 20, 0.5, bg_thresh_lo=-1, class_nums=2
    )
    return layers.reduce_sum(labels[0], dim=0)


def _dpsgd() -> Variable:
    weight = layers.create_parameter([5], "float32", default_initializer=fluid.initializer.Constant(1.0))
    fluid.optimizer.Dpsgd(0.1, sigma=5.0).minimize(layers.mean(weight), parameter_list=[weight])
    return weight


#: Layers that draw in tests, too.
DRAWING: dict[str, Callable[[], Variable]] = {
    "uniform_random": lambda: layers.uniform_random([20]),
    "gaussian_random": lambda: layers.gaussian_random([20], seed=0),
    "truncated_gaussian_random": lambda: layers.random.truncated_gaussian_random([20]),
    "uniform_random_batch_size_like": lambda: layers.uniform_random_batch_size_like(_rows(), [-1, 5]),
    "gaussian_random_batch_size_like": lambda: layers.gaussian_random_batch_size_like(_rows(), [-1, 5]),
    "sampling_id": lambda: layers.sampling_id(layers.fill_constant([20, 1000], "float32", 0.001)),
    "Uniform": lambda: layers.Uniform(0.0, 1.0).sample([20]),
    "Normal": lambda: layers.Normal(0.0, 1.0).sample([20]),
    "nce": _nce,
    "sampled_softmax_with_cross_entropy": _sampled_softmax,
    "rpn_target_assign": _anchors,
    "generate_proposal_labels": _proposals,
}
SEEDED: dict[str, Callable[[], Variable]] = {
    **DRAWING,
    "random_crop": lambda: layers.random_crop(_rows(), [7]),
    "dropout": lambda: layers.dropout(_rows(), 0.5, seed=0),
    "random_data_generator": lambda: layers.read_file(layers.random_data_generator(0.0, 1.0, [[20]])),
    "dpsgd": _dpsgd,
}


def drawn(layer: Callable[[], Variable], seed: int, own_seed: bool = False) -> list[np.ndarray]:
    """What two uses of a layer draw in two runs of a program with a seed, which is something else in each."""
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = startup.random_seed = seed
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        outs = [layer(), layer()]
        exe = fluid.Executor()
        exe.run(startup)
        runs = [exe.run(main, fetch_list=outs) for _ in range(2)]
        assert own_seed or all(not np.array_equal(*values) for values in zip(*runs))
        return [*runs[0], *runs[1]]


@pytest.mark.parametrize("name", SEEDED)
def test_what_a_layer_draws_follows_from_the_seed_of_the_program(name: str) -> None:
    values, again = drawn(SEEDED[name], 7), drawn(SEEDED[name], 7)
    for value, repeated in zip(values, again):
        np.testing.assert_array_equal(value, repeated)
    assert not np.array_equal(*values[:2])
    assert not np.array_equal(values[0], drawn(SEEDED[name], 8)[0])


@pytest.mark.parametrize("name", SEEDED)
def test_without_a_seed_a_layer_draws_afresh_and_counts_nothing(name: str) -> None:
    if name != "random_crop":  # whose first place is drawn when it is added
        assert not np.array_equal(drawn(SEEDED[name], 0)[0], drawn(SEEDED[name], 0)[0])
    SEEDED[name]()
    assert not [var.name for var in fluid.default_main_program().list_vars() if var.name.endswith(".run")]


def test_a_seed_of_its_own_goes_before_that_of_the_program() -> None:
    values = drawn(lambda: layers.uniform_random([20], seed=3), 7, own_seed=True)
    values += drawn(lambda: layers.uniform_random([20], seed=3), 8, own_seed=True)
    for value in values:
        np.testing.assert_array_equal(value, values[0])


def test_what_draws_nothing_counts_nothing() -> None:
    main = fluid.default_main_program()
    main.random_seed = 7
    layers.dropout(_rows(), 0.5, is_test=True)
    numbers, samples = layers.assign(np.ones((4, 9), np.float32)), layers.assign(np.zeros((4, 3), np.int64))
    expected = layers.fill_constant([4, 3], "float32", 0.1)
    label = layers.assign(np.zeros((4, 1), np.int64))
    layers.sampled_softmax_with_cross_entropy(
        numbers,
        label,
        2,
        use_customized_samples=True,
        customized_samples=samples,
        customized_probabilities=expected,
    )
    places = layers.assign(BOXES[None])
    numbers = layers.fill_constant([1, 100, 1], "float32", 0.0)
    layers.rpn_target_assign(places, numbers, layers.assign(BOXES), None, *_image(), use_random=False)
    assert [op.input("Seed") for op in main.global_block().ops if op.input("Seed")] == []


def test_a_startup_program_has_nothing_to_count() -> None:
    def values(seed: int) -> np.ndarray:
        program = fluid.Program()
        program.random_seed = seed
        with fluid.program_guard(program, program):
            out = layers.uniform_random([20])
        return fluid.Executor().run(program, fetch_list=[out])[0]

    np.testing.assert_array_equal(values(7), values(7))
    assert not np.array_equal(values(7), values(8))


def counters(program: fluid.Program) -> list[int]:
    """Of training, from the scope."""
    names = sorted(var.name for var in program.list_vars() if var.name.endswith(".run") and var.persistable)
    return [np.array(fluid.global_scope().find_var(name).get_tensor()).item() for name in names]


def evaluated(main: fluid.Program, outs: list[Variable], folder: str) -> list[fluid.Program]:
    """Programs that evaluate what ``main`` trains."""
    fluid.io.save_inference_model(folder, [], outs, fluid.Executor(), main)
    model = fluid.io.load_inference_model(folder, fluid.Executor())[0]
    stored = fluid.Program.parse_from_string(main.serialize_to_string())
    return [main.clone(for_test=True), main._prune(outs), stored.clone(for_test=True), model]


@pytest.mark.parametrize("name", DRAWING)
def test_a_program_that_evaluates_draws_afresh_and_counts_nothing(name: str, tmp_path: Path) -> None:
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    main.random_seed = 7
    out = DRAWING[name]()
    exe = fluid.Executor()
    exe.run(startup)
    assert counters(main) == [0]
    (first,) = exe.run(main, fetch_list=[out])
    for test in evaluated(main, [out], str(tmp_path)):
        assert not [op for block in test.blocks for op in block.ops if op.input("Seed")]
        assert not [var for var in test.list_vars() if var.name.endswith(".run")]
        fetched = [out.name if test.global_block().has_var(out.name) else "save_infer_model/scale_0"]
        runs = [exe.run(test, fetch_list=fetched)[0] for _ in range(2)]
        assert not np.array_equal(*runs)
        assert not np.array_equal(runs[0], first)
    assert counters(main) == [1]


def _looped(layer: Callable[[], Variable]) -> Variable:
    """What a layer draws in each step of a loop."""
    i, end = layers.fill_constant([1], "int64", 0), layers.fill_constant([1], "int64", 3)
    goes_on = layers.less_than(i, end)
    array = layers.array_write(layers.fill_constant([1], "float32", 0.0), i)
    loop = layers.While(goes_on)
    with loop.block():
        layers.array_write(layers.reshape(layers.cast(layer(), "float32"), [1, -1]), i, array)
        layers.increment(i)
        layers.less_than(i, end, cond=goes_on)
    steps = [layers.array_read(array, layers.fill_constant([1], "int64", step)) for step in range(3)]
    return layers.concat(steps, 0)


LOOPED = ["uniform_random", "gaussian_random_batch_size_like", "sampling_id"]


@pytest.mark.parametrize("name", LOOPED)
def test_each_step_of_a_loop_draws_other_numbers(name: str, tmp_path: Path) -> None:
    def layer() -> Variable:
        return _looped(DRAWING[name])

    first, other, second, _ = drawn(layer, 7)
    for steps in (first, other, second):
        assert len(np.unique(steps, axis=0)) == 3
    for value, again in zip((first, other, second), drawn(layer, 7)):
        np.testing.assert_array_equal(value, again)
    main, exe = fluid.default_main_program(), fluid.Executor()
    main.random_seed = 7
    out = layer()
    exe.run(fluid.default_startup_program())
    exe.run(main)
    assert counters(main) == [3]
    tests = evaluated(main, [out], str(tmp_path))
    del tests[1]  # it trains, but for its optimizer, and goes on counting within the loop
    for test in tests:
        fetched = [out.name if test.global_block().has_var(out.name) else "save_infer_model/scale_0"]
        runs = np.concatenate([exe.run(test, fetch_list=fetched)[0] for _ in range(2)])
        assert len(np.unique(runs, axis=0)) == 6
    assert counters(main) == [3]


def test_a_block_that_only_draws_and_tells_stays_in_a_program_that_evaluates() -> None:
    main, exe, seen = fluid.default_main_program(), fluid.Executor(), list[np.ndarray]()
    main.random_seed = 7
    holds = layers.less_than(layers.fill_constant([1], "float32", 0.0), layers.fill_constant([1], "float32", 1.0))
    with layers.Switch() as switch, switch.case(holds):
        layers.py_func(lambda x: seen.append(np.array(x)), layers.uniform_random([3]), None)
    exe.run(fluid.default_startup_program())
    for program in (main, main.clone(for_test=True)):
        exe.run(program)
    assert len(seen) == 2
    assert not np.array_equal(*seen)


def _scaled(rows: Variable) -> Variable:
    return rows * layers.uniform_random_batch_size_like(rows, [-1, 5], min=1.0, max=2.0)


def _stepped(x: Variable) -> Variable:
    rnn = layers.StaticRNN()
    with rnn.step():
        row = rnn.step_input(x)
        rnn.step_output(_scaled(row))
    out: Variable = rnn()
    return out


def _stepped_by_length(x: Variable) -> Variable:
    rnn = layers.DynamicRNN()
    with rnn.block():
        row = rnn.step_input(x)
        rnn.output(_scaled(row))
    out: Variable = rnn()
    return out


def _sorted_out(x: Variable) -> Variable:
    limit = layers.fill_constant([1], "float32", 7.0)
    branches = layers.IfElse(layers.less_than(layers.slice(x, [1], [0], [1]), limit))
    with branches.true_block():
        rows = branches.input(x)
        branches.output(_scaled(rows))
    with branches.false_block():
        rows = branches.input(x)
        branches.output(_scaled(rows))
    out: Variable = branches()[0]
    return out


def _chosen(x: Variable) -> Variable:
    holds = layers.less_than(layers.fill_constant([1], "float32", 0.0), layers.fill_constant([1], "float32", 1.0))
    out: Variable = layers.cond(holds, lambda: x * layers.uniform_random([3, 5], min=1.0, max=2.0), lambda: x * 0.0)
    return out


BLOCKS: dict[str, tuple[Callable[[], Variable], Callable[[Variable], Variable]]] = {
    "StaticRNN, unrolled": (lambda: fluid.data("x", [3, 2, 5]), _stepped),
    "StaticRNN": (lambda: fluid.data("x", [-1, 2, 5]), _stepped),
    "DynamicRNN": (lambda: fluid.data("x", [None, 5], lod_level=1), _stepped_by_length),
    "IfElse": (lambda: fluid.data("x", [None, 5]), _sorted_out),
    "cond": (lambda: fluid.data("x", [3, 5]), _chosen),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_numbers_within_blocks_differ_and_have_gradients(name: str) -> None:
    declare, layer = BLOCKS[name]
    rows = np.arange(1, 16, dtype=np.float32).reshape(3, 5)
    fed = np.stack([rows, rows], 1) if name.startswith("StaticRNN") else rows
    feed = {"x": fluid.create_lod_tensor(rows, [[2, 1]], fluid.CPUPlace()) if name == "DynamicRNN" else fed}

    def noise() -> list[np.ndarray]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = 7
        with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
            x = declare()
            x.stop_gradient = False
            out = layer(x)
            test = main.clone(for_test=True)
            fluid.backward.append_backward(layers.reduce_sum(out))
            exe = fluid.Executor()
            exe.run(startup)
            values = []
            for _ in range(2):
                got, gradient = exe.run(main, feed, [out, "x@GRAD"], return_numpy=False)
                values.append(np.array(gradient))
                np.testing.assert_allclose(np.array(got), fed * values[-1], rtol=1e-6)
                before = counters(main)
                calm = np.array(exe.run(test, feed, [out.name], return_numpy=False)[0])
                assert not np.array_equal(calm, np.array(got))
                assert counters(main) == before
        return values

    first, second = noise()
    assert len(np.unique(first)) == first.size
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal([first, second], noise())


def test_evaluating_between_steps_changes_no_mask() -> None:
    """The program that evaluates may be a clone, or one that was built for tests."""

    def build(is_test: bool) -> tuple[fluid.Program, fluid.Program, Variable]:
        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = 7
        with fluid.program_guard(main, startup), fluid.unique_name.guard():
            return main, startup, layers.dropout(_rows(), 0.5, is_test=is_test)

    def masks(evaluates: bool) -> list[np.ndarray]:
        main, startup, out = build(False)
        tests = [main.clone(for_test=True), build(True)[0]]
        exe, drawn = fluid.Executor(), []
        with fluid.scope_guard(fluid.Scope()):
            exe.run(startup)
            for _ in range(3):
                drawn += exe.run(main, fetch_list=[out])
                for test in tests if evaluates else []:
                    np.testing.assert_allclose(exe.run(test, fetch_list=[out.name])[0], ROWS * 0.5)
        return drawn

    np.testing.assert_array_equal(masks(True), masks(False))


@pytest.mark.parametrize("name", ["uniform_random", "dropout", "in a branch"])
def test_the_block_of_a_reader_draws_afresh_for_each_batch(name: str, tmp_path: Path) -> None:
    """It can count nothing."""

    def layer(x: Variable) -> Variable:
        if name == "dropout":
            return layers.dropout(layers.ones_like(x), 0.5)
        if name == "uniform_random":
            return layers.uniform_random([1, 20])
        holds = layers.less_than(layers.reduce_sum(x), layers.reduce_sum(x) + 1.0)
        return layers.assign(layers.cond(holds, lambda: layers.uniform_random([1, 20]), lambda: x * 0.0))

    main, exe = fluid.default_main_program(), fluid.Executor()
    main.random_seed = 7
    preprocessor = layers.Preprocessor(layers.random_data_generator(1.0, 2.0, [[1, 20]]))
    with preprocessor.block():
        (x,) = preprocessor.inputs()
        preprocessor.outputs(layer(x))
    out = layers.read_file(preprocessor())
    assert counters(main) == []
    exe.run(fluid.default_startup_program())
    values = np.concatenate([exe.run(main, fetch_list=[out])[0] for _ in range(4)])
    assert len(np.unique(values, axis=0)) == 4
    with pytest.warns(RuntimeWarning) as caught:
        fluid.io.save_checkpoint(exe, tmp_path, main)
    assert any("will draw other numbers after the checkpoint" in str(each.message) for each in caught)


def _sampled(x: Variable) -> Variable:
    return layers.reshape(layers.cast(layers.sampling_id(layers.softmax(x)), "float32"), [-1, 1])


def _class(x: Variable) -> Variable:
    return layers.reshape(layers.cast(layers.argmax(x, axis=1), "int64"), [-1, 1])


def _in_each_step(x: Variable) -> Variable:
    rnn = layers.StaticRNN()
    with rnn.step():
        row = rnn.step_input(x)
        rnn.step_output(layers.dropout(row, 0.2) * layers.uniform_random([WIDTH], min=0.5, max=1.5))
    out: Variable = rnn()
    return out


WIDTH = 6
#: Parts of a network that keep the width of x.
PARTS: list[Callable[[Variable], Variable]] = [
    lambda x: layers.dropout(x, 0.3),
    lambda x: layers.dropout(x, 0.3, seed=5),
    lambda x: x * layers.uniform_random([WIDTH], min=0.5, max=1.5),
    lambda x: x + layers.gaussian_random([WIDTH], seed=3),
    lambda x: x + layers.gaussian_random([WIDTH], std=0.2),
    lambda x: x * layers.uniform_random_batch_size_like(x, [-1, WIDTH]),
    lambda x: x + layers.gaussian_random_batch_size_like(x, [-1, WIDTH]),
    lambda x: x + layers.random.truncated_gaussian_random([WIDTH]),
    lambda x: x + layers.random_crop(layers.concat([x, x], 1), [WIDTH]),
    lambda x: x + _sampled(x),
    lambda x: x + layers.nce(x, _class(x), 9, num_neg_samples=3),
    lambda x: x + layers.sampled_softmax_with_cross_entropy(x, _class(x), 2),
    lambda x: x + layers.reduce_mean(_looped(lambda: layers.gaussian_random([WIDTH])), dim=0),
    _in_each_step,
    lambda x: layers.fc(x, WIDTH, act="tanh"),
]
OPTIMIZERS: list[Callable[[], fluid.optimizer.Optimizer]] = [
    lambda: fluid.optimizer.SGD(0.05),
    lambda: fluid.optimizer.Adam(0.05),
    lambda: fluid.optimizer.Dpsgd(0.05, clip=2.0, sigma=0.3),
]


class Training:
    """A random program, from the start, in a scope of its own."""

    def __init__(self, case: int) -> None:
        choose = random.Random(case)
        self.main, startup = fluid.Program(), fluid.Program()
        self.main.random_seed = startup.random_seed = case + 1
        self.scope, self.exe = fluid.Scope(), fluid.Executor()
        with fluid.program_guard(self.main, startup), fluid.unique_name.guard():
            hidden = layers.fc(fluid.data("x", [None, WIDTH]), WIDTH)
            for part in choose.sample(PARTS, choose.randint(1, 5)):
                hidden = part(hidden)
            self.loss = layers.mean(layers.square(hidden))
            self.test = self.main.clone(for_test=True)
            choose.choice(OPTIMIZERS)().minimize(self.loss)
        # A crop takes the next place, wherever it runs.
        self.crops = any(op.type == "random_crop" for op in self.main.global_block().ops)
        self.exe.run(startup, scope=self.scope)

    def run(self, steps: range, evaluations: random.Random | None = None) -> None:
        for step in steps:
            while evaluations is not None and not self.crops and evaluations.random() < 0.4:
                self.exe.run(self.test, self._batch(99), [self.loss.name], scope=self.scope)
            self.exe.run(self.main, self._batch(step), scope=self.scope)

    @staticmethod
    def _batch(step: int) -> dict[str, np.ndarray]:
        return {"x": np.random.default_rng(step).normal(size=(4, WIDTH)).astype(np.float32)}

    def state(self) -> dict[str, bytes]:
        names = [var.name for var in self.main.list_vars() if var.persistable]
        tensors = {name: np.array(self.scope.find_var(name).get_tensor()) for name in names}
        assert all(np.isfinite(tensor).all() for tensor in tensors.values())
        return {name: tensor.tobytes() for name, tensor in tensors.items()}


@pytest.mark.parametrize("case", range(40))
def test_training_that_is_resumed_ends_with_the_same_bits(case: int, tmp_path: Path) -> None:
    choose = random.Random(case)
    steps = choose.randint(2, 6)
    stop = choose.randint(1, steps - 1)
    whole = Training(case)
    whole.run(range(steps))
    training = Training(case)
    training.run(range(stop), choose)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fluid.io.save_checkpoint(training.exe, tmp_path, training.main, scope=training.scope)
    resumed = Training(case)
    fluid.io.load_checkpoint(resumed.exe, tmp_path, resumed.main, scope=resumed.scope)
    resumed.run(range(stop, steps), choose)
    assert resumed.state() == whole.state()


def shuffled(seed: int, count: int = 30) -> list[int]:
    main, startup = fluid.Program(), fluid.Program()
    main.random_seed = seed
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main, startup), fluid.unique_name.guard():
        reader = layers.py_reader(64, [[1, 1]], ["int64"], use_double_buffer=False)
        reader.decorate_tensor_provider(lambda: ((np.full((1, 1), i),) for i in range(count)))
        out = layers.read_file(layers.shuffle(reader, count))
        exe = fluid.Executor()
        exe.run(startup)
        reader.start()
        values = []
        try:
            while True:
                values.append(int(exe.run(fetch_list=[out])[0].item()))
        except fluid.core.EOFException:
            return values


def test_the_order_of_a_shuffled_reader_follows_from_the_seed_of_the_program() -> None:
    first = shuffled(7)
    assert sorted(first) == list(range(30))
    assert shuffled(7) == first
    assert shuffled(8) != first


def test_without_a_seed_readers_draw_afresh() -> None:
    first, other, *_ = drawn(SEEDED["random_data_generator"], 0)
    assert not np.array_equal(first, other)
    order = shuffled(0, 1000)
    assert sorted(order) == list(range(1000))
    assert shuffled(0, 1000) != order
