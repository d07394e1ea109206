"""What programs are given, by feeds or by readers, may differ from what they declare as far as Fluid lets it; where an
operator cannot work with it, the error says which variable it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nets import number, number_reader

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core, layers
from headrace.fluid.framework import Variable

#: Puts a variable of a shape, dtype and LoD level into the program, and runs it: given(value) → what was fetched.
Given = Callable[..., tuple[Variable, Callable[[Any, Any], Any]]]


def fed(shape: list[int], dtype: str, lod_level: int = 0) -> tuple[Variable, Callable[[Any, Any], Any]]:
    x = layers.data("x", shape, dtype=dtype, lod_level=lod_level, append_batch_size=False)
    exe = fluid.Executor()

    def run(value: Any, out: Any) -> Any:
        exe.run(fluid.default_startup_program())
        return exe.run(feed={"x": value}, fetch_list=[out], return_numpy=False)[0]

    return x, run


def runner(reader: Any) -> Any:
    """What runs the program with one batch of ``reader``, and returns what a variable holds."""
    exe = fluid.Executor()

    def run(value: Any, out: Any) -> Any:
        exe.run(fluid.default_startup_program())
        reader.decorate_batch_generator(lambda: iter([[value]]))
        reader.start()
        try:
            return exe.run(fetch_list=[out], return_numpy=False)[0]
        finally:
            reader.reset()

    return run


def read(shape: list[int], dtype: str, lod_level: int = 0, double_buffer: bool = True) -> Any:
    reader = layers.py_reader(2, [shape], [dtype], [lod_level], use_double_buffer=double_buffer)
    return layers.read_file(reader), runner(reader)


def preprocessed(shape: list[int], dtype: str, lod_level: int = 0) -> Any:
    """What a reader yields after a block of layers that leaves it as it is."""
    reader = layers.py_reader(2, [shape], [dtype], [lod_level], use_double_buffer=False)
    preprocessor = layers.Preprocessor(reader)
    with preprocessor.block():
        (x,) = preprocessor.inputs()
        preprocessor.outputs(layers.assign(x))
    return layers.read_file(layers.double_buffer(preprocessor())), runner(reader)


every_way = pytest.mark.parametrize("given", [fed, read, preprocessed], ids=lambda f: str(f.__name__))


@every_way
def test_extents_may_be_shorter_than_declared_and_the_lod_left_away(given: Given) -> None:
    """A program that declares the longest sentence, and gets padded ones."""
    words, run = given([-1, 256, 1], "int64", 2)
    ids = np.arange(10).reshape(2, 5, 1)
    out = run(ids, layers.embedding(words, [10, 4], param_attr=fluid.ParamAttr(name="table")))
    table = np.asarray(fluid.global_scope().find_var("table").get_tensor())
    np.testing.assert_array_equal(np.asarray(out), table[ids[:, :, 0]])
    assert out.recursive_sequence_lengths() == []


@every_way
def test_the_rank_may_be_another_one(given: Given) -> None:
    state, run = given([-1, 1], "float32")
    value = np.arange(32, dtype=np.float32).reshape(2, 2, 8)
    np.testing.assert_array_equal(np.asarray(run(value, layers.reshape(state, [4, 8]))), value.reshape(4, 8))


@every_way
@pytest.mark.parametrize(("declared", "lengths"), [(0, [[1, 2]]), (2, [[1, 2]]), (0, [[2], [1, 2]])], ids=str)
def test_the_lod_is_that_of_the_value(given: Given, declared: int, lengths: list[list[int]]) -> None:
    x, run = given([-1, 1], "float32", declared)
    value = fluid.create_lod_tensor(np.ones((3, 1), np.float32), lengths)
    assert run(value, layers.scale(x, 2.0)).recursive_sequence_lengths() == lengths


@every_way
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
@pytest.mark.parametrize("declared", ["float32", "int32", "int64"])
def test_integers_are_taken_as_they_are(given: Given, declared: str, dtype: Any) -> None:
    x, run = given([-1, 1], declared)
    out = np.asarray(run(np.array([[1], [3]], dtype), layers.cast(x, "float64")))
    assert (out.dtype, out.ravel().tolist()) == (np.float64, [1, 3])


@every_way
def test_float_may_mean_float32(given: Given) -> None:
    """NumPy's "float" is float64. The first programs of BERT and ERNIE declare their masks so, which are float32."""
    mask, run = given([-1, 3], "float")
    scores = layers.fill_constant([2, 3], "float32", 1.0)
    out = np.asarray(run(np.full((2, 3), 0.5, np.float32), scores + mask))
    assert (out.dtype, out.tolist()) == (np.float32, [[1.5] * 3] * 2)


@every_way
@pytest.mark.parametrize(("declared", "dtype"), [("float32", np.float64), ("int64", np.float32), ("bool", np.int32)])
def test_other_types_are_a_mistake(given: Given, declared: str, dtype: Any) -> None:
    x, run = given([-1, 1], declared)
    with pytest.raises(errors.TypeMismatch, match=rf"'.*'.*{declared}.*{np.dtype(dtype).name}"):
        run(np.zeros((2, 1), dtype), x)


@every_way
def test_what_an_operator_cannot_take_is_said_of_the_variable_that_was_given(given: Given) -> None:
    x, run = given([-1, 3], "float32")
    hidden = layers.fc(layers.scale(x, 2.0), 2, bias_attr=False)
    with pytest.raises(errors.InvalidArgument) as caught:
        run(np.zeros((2, 4), np.float32), hidden)
    assert f"'{x.name}' is declared as float32 [-1, 3], but was given as float32 [2, 4]" in str(caught.value)
    assert caught.value.op_type == "mul"
    assert run(np.zeros((2, 3), np.float32), hidden).shape() == [2, 2]  # the program can be used again


@every_way
def test_types_and_lods_that_differ_are_said_too(given: Given) -> None:
    ids, run = given([-1, 1], "int64", 1)
    with pytest.raises(errors.HeadraceError) as caught:
        run(np.zeros((2, 1), np.int32), layers.sequence_pool(layers.cast(ids, "float32"), "sum"))
    note = f"'{ids.name}' is declared as int64 [-1, 1], LoD level 1, but was given as int32 [2, 1]"
    assert str(caught.value).count(note) == 1


def test_what_was_given_as_declared_is_not_blamed(exe: fluid.Executor) -> None:
    logits, label = layers.data("logits", [3]), layers.data("label", [1], dtype="int64")
    loss = layers.softmax_with_cross_entropy(logits, label)
    with pytest.raises(errors.OutOfRange) as caught:
        exe.run(feed={"logits": np.zeros((1, 3), np.float32), "label": np.array([[5]])}, fetch_list=[loss])
    assert "declared" not in str(caught.value)


def test_the_end_of_the_data_is_no_fault_of_a_feed(exe: fluid.Executor) -> None:
    reader, out = number_reader()
    x = layers.data("x", [3])
    total = layers.reduce_sum(x) + layers.reduce_sum(out)
    exe.run(fluid.default_startup_program())
    reader.decorate_batch_generator(lambda: iter([number(1)]))
    reader.start()
    feed = {"x": np.ones((2, 2), np.float32)}
    assert exe.run(feed=feed, fetch_list=[total])[0] == 5
    with pytest.raises(core.EOFException) as caught:
        exe.run(feed=feed, fetch_list=[total])
    assert "declared" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (np.zeros((2, 2), np.float32), errors.InvalidArgument),
        (np.zeros((2, 3, 1), np.float32), errors.InvalidArgument),
        (np.zeros((2, 3), np.int64), errors.TypeMismatch),
    ],
    ids=["extent", "rank", "dtype"],
)
def test_fluid_data_is_checked_at_once(exe: fluid.Executor, value: np.ndarray, error: type[Exception]) -> None:
    """As in Fluid 1.6, also after the program has been stored."""
    x = fluid.data("x", [None, 3])
    out = layers.scale(x, 2.0)
    main = fluid.default_main_program()
    for program in (main, main.clone(for_test=True), fluid.Program.parse_from_string(main.serialize_to_string())):
        with pytest.raises(error, match=r"'x' is declared"):
            exe.run(program, feed={"x": value}, fetch_list=[out.name])
    lod = fluid.create_lod_tensor(np.ones((3, 3), np.float32), [[1, 2]])  # which is not compared there either
    assert exe.run(feed={"x": lod}, fetch_list=[out], return_numpy=False)[0].recursive_sequence_lengths() == [[1, 2]]


def test_training_on_less_than_is_declared(exe: fluid.Executor) -> None:
    """Gradients have the extents of the values, and planned memory those of the run."""
    x = layers.data("x", [8, 4])
    y = layers.data("y", [-1], append_batch_size=False)
    hidden = layers.fc(x, 3, num_flatten_dims=2, act="tanh")
    loss = layers.mean(layers.square_error_cost(layers.reduce_sum(hidden, dim=[1, 2]), y))
    fluid.optimizer.SGD(0.05).minimize(loss)
    exe.run(fluid.default_startup_program())
    rng = np.random.default_rng(3)
    losses = []
    for step in range(30):
        length = 2 + step % 5
        feed = {"x": rng.uniform(0, 1, (6, length, 4)).astype(np.float32), "y": np.full(6, 0.5, np.float32)}
        losses.append(exe.run(feed=feed, fetch_list=[loss])[0].item())
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])


NUMBERED: dict[str, Callable[[Variable, Variable], Variable]] = {
    "softmax_with_cross_entropy": layers.softmax_with_cross_entropy,
    "cross_entropy": lambda x, y: layers.cross_entropy(layers.softmax(x), y),
    "accuracy": lambda x, y: layers.accuracy(layers.softmax(x), y),
    "auc": lambda x, y: layers.auc(layers.softmax(x), y)[0],
    "bpr_loss": layers.bpr_loss,
    "nce": lambda x, y: layers.nce(x, y, 3),
    "hsigmoid": lambda x, y: layers.hsigmoid(x, y, 3),
    "sampled_softmax_with_cross_entropy": lambda x, y: layers.sampled_softmax_with_cross_entropy(x, y, 2),
    "embedding": lambda x, y: layers.embedding(y, [3, 2]),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_numbers_of_classes_may_lack_their_dtype(exe: fluid.Executor, name: str) -> None:
    """That of layers.data is float32 unless a program says another, which a label's hardly ever is."""
    x, y = layers.data("x", [2 if name == "auc" else 3]), layers.data("y", [1])
    out = NUMBERED[name](x, y)
    loss = layers.mean(out)
    if name not in ("accuracy", "auc"):
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.fc(x, 1)) + loss)
    exe.run(fluid.default_startup_program())
    feed = {"x": np.eye(2, 2 if name == "auc" else 3, dtype=np.float32), "y": np.array([[1], [0]])}
    assert np.isfinite(exe.run(feed=feed, fetch_list=[loss])[0]).all()
    with pytest.raises(errors.TypeMismatch, match=r"input (Label|Labels|Ids): expected dtype int64, got float32"):
        exe.run(feed={**feed, "y": feed["y"].astype(np.float32)}, fetch_list=[loss])
    wrong = layers.data("wrong", [1], dtype="float64")
    with pytest.raises(errors.TypeMismatch, match=r"expected dtype int64, got float64"):
        NUMBERED[name](x, wrong)


@pytest.mark.parametrize("name", NUMBERED)
def test_numbers_of_classes_may_be_declared_as_other_integers(exe: fluid.Executor, name: str) -> None:
    x, y = layers.data("x", [2 if name == "auc" else 3]), layers.data("y", [1], dtype="int32")
    loss = layers.mean(NUMBERED[name](x, y))
    exe.run(fluid.default_startup_program())
    feed = {"x": np.eye(2, 2 if name == "auc" else 3, dtype=np.float32), "y": np.array([[1], [0]])}
    assert np.isfinite(exe.run(feed=feed, fetch_list=[loss])[0]).all()
    with pytest.raises(errors.TypeMismatch, match=r"input (Label|Labels|Ids): expected dtype int64, got int32"):
        exe.run(feed={**feed, "y": feed["y"].astype(np.int32)}, fetch_list=[loss])


@pytest.mark.parametrize(
    ("layer", "value", "shape"),
    [
        (lambda x, n: layers.sequence_mask(n, maxlen=5), [1, 2, 4], (3, 5)),
        (lambda x, n: layers.sequence_mask(layers.assign(np.array([1, 2])), maxlen=n), [3], (2, 3)),
        (lambda x, n: layers.reshape(x, n), [4, 6], (4, 6)),
        (lambda x, n: layers.reshape(x, [4, 6], actual_shape=n), [6, 4], (6, 4)),
        (lambda x, n: layers.reshape(x, [n, 6]), [4], (4, 6)),
        (lambda x, n: layers.expand(x, n), [1, 1, 2], (2, 3, 8)),
        (lambda x, n: layers.expand(x, [1, n, 1]), [2], (2, 6, 4)),
        (lambda x, n: layers.slice(x, [0], n, [2]), [1], (1, 3, 4)),
        (lambda x, n: layers.strided_slice(x, [1], [n], [3], [1]), [1], (2, 2, 4)),
        (lambda x, n: layers.crop_tensor(x, shape=n), [1, 2, 2], (1, 2, 2)),
        (lambda x, n: layers.crop_tensor(x, shape=[1, n, 2], offsets=[0, 0, 1]), [2], (1, 2, 2)),
        (lambda x, n: layers.affine_grid(x[:, :2, :3], n), [2, 1, 5, 6], (2, 5, 6, 2)),
        (lambda x, n: layers.fill_constant(n, "float32", 1.0), [2, 3], (2, 3)),
        (lambda x, n: layers.gather(x, n), [1, 0, 1], (3, 3, 4)),
        (lambda x, n: layers.one_hot(n, 5), [1], (5,)),
        (lambda x, n: layers.topk(x, n)[0], [2], (2, 3, 2)),
        (lambda x, n: layers.image_resize(layers.unsqueeze(x, [0]), n), [5, 6], (1, 2, 5, 6)),
        (lambda x, n: layers.sequence_pool(layers.sequence_unpad(x, n), "sum"), [3, 1], (2, 4)),
    ],
)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths_and_shapes_may_lack_their_dtype(
    exe: fluid.Executor, layer: Any, value: list[int], shape: tuple[int, ...], dtype: Any
) -> None:
    x = layers.data("x", [2, 3, 4], append_batch_size=False)
    out = layer(x, layers.data("n", [len(value)], append_batch_size=False))
    feed = {"x": np.ones((2, 3, 4), np.float32), "n": np.array(value, dtype)}
    (got,) = exe.run(feed=feed, fetch_list=[out])
    assert got.shape == shape


def test_lengths_of_an_exact_dtype_have_to_be_integers() -> None:
    with pytest.raises(errors.HeadraceError, match="float32"):
        layers.sequence_mask(fluid.data("n", [None]), maxlen=3)
    with pytest.raises(errors.HeadraceError, match="float32"):
        layers.sequence_mask(layers.data("m", [1]) * 2.0, maxlen=3)


def test_float16_may_be_fed_as_its_bits(exe: fluid.Executor) -> None:
    numbers = np.array([[0.5, -2.0]], np.float16)
    x = layers.data("x", [2], dtype="float16")
    out = layers.cast(x, "float32")
    for given in (numbers, numbers.view(np.uint16)):
        assert exe.run(feed={"x": given}, fetch_list=[out])[0].tolist() == [[0.5, -2.0]]
    x.persistable = True
    assert exe.run(feed={"x": numbers.view(np.uint16)}, fetch_list=[out])[0].tolist() == [[0.5, -2.0]]
    tensor = fluid.global_scope().find_var("x").get_tensor()
    assert np.array(tensor).dtype == np.float16


def test_bools_are_numbers_to_what_takes_them(exe: fluid.Executor) -> None:
    x = layers.data("x", [1])
    out = layers.cast(x, "int64")
    assert exe.run(feed={"x": np.array([[True], [False]])}, fetch_list=[out])[0].tolist() == [[1], [0]]
    with pytest.raises(errors.Unimplemented, match="bool"):
        exe.run(feed={"x": np.array([[True]])}, fetch_list=[layers.relu(x)])
