"""SelectedRows: sparse gradients of tables, from the look-up to the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core, layers, optimizer
from headrace.fluid.core import VarType
from headrace.fluid.framework import Variable

RNG = np.random.default_rng(31)
ROWS, WIDTH = 7, 3
IDS = np.array([[[2], [5]], [[2], [0]], [[6], [2]]])  # rows 1, 3 and 4 are not touched
Make = Callable[[], optimizer.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda: optimizer.SGD(0.1),
    "momentum": lambda: optimizer.Momentum(0.1, 0.9),
    "nesterov": lambda: optimizer.Momentum(0.1, 0.9, use_nesterov=True),
    "lars": lambda: optimizer.LarsMomentum(0.1, 0.9),
    "adagrad": lambda: optimizer.Adagrad(0.1),
    "decayed_adagrad": lambda: optimizer.DecayedAdagrad(0.1),
    "adadelta": lambda: optimizer.Adadelta(0.1),
    "adam": lambda: optimizer.Adam(0.1),
    "adamax": lambda: optimizer.Adamax(0.1),
    "adamw": lambda: optimizer.AdamW(0.1, weight_decay=0.5),
    "lamb": lambda: optimizer.Lamb(0.1, lamb_weight_decay=0.5),
    "rmsprop": lambda: optimizer.RMSProp(0.1, momentum=0.5),
    "centered_rmsprop": lambda: optimizer.RMSProp(0.1, momentum=0.5, centered=True),
    "ftrl": lambda: optimizer.Ftrl(0.1, l1=0.01, l2=0.01),
    "proximal_gd": lambda: optimizer.ProximalGD(0.1, l1=0.01, l2=0.01),
    "proximal_adagrad": lambda: optimizer.ProximalAdagrad(0.1, l1=0.01, l2=0.01),
}


def look_up(is_sparse: bool, name: str = "ids", padding_idx: int | None = None) -> Variable:
    ids = layers.data(name, [-1, 2, 1], append_batch_size=False, dtype="int64")
    return layers.embedding(
        ids, [ROWS, WIDTH], is_sparse=is_sparse, padding_idx=padding_idx, param_attr="table", dtype="float64"
    )


def table() -> np.ndarray:
    return np.array(fluid.global_scope().find_var("table").get_tensor())


def train(
    exe: fluid.Executor, is_sparse: bool, make: Make, steps: int = 3, loss_of: Callable[[bool], Variable] | None = None
) -> np.ndarray:
    """The table after some steps from the same start."""
    with (
        fluid.scope_guard(fluid.Scope()),
        fluid.program_guard(fluid.Program(), fluid.Program()),
        fluid.unique_name.guard(),
    ):
        loss = loss_of(is_sparse) if loss_of else layers.mean(layers.square(look_up(is_sparse)))
        make().minimize(loss)
        exe.run(fluid.default_startup_program())
        start = np.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)
        fluid.global_scope().find_var("table").get_tensor().set(start)
        for step in range(steps):
            exe.run(feed={"ids": np.roll(IDS, step, 0), "more": IDS[:1]} if loss_of else {"ids": np.roll(IDS, step, 0)})
        return table()


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "ftrl"])
def test_a_sparse_gradient_trains_as_a_dense_one(exe: fluid.Executor, name: str) -> None:
    """Either a gradient of zero changes nothing, or the other rows get one."""
    dense, sparse = (train(exe, is_sparse, OPTIMIZERS[name]) for is_sparse in (False, True))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "make",
    [
        OPTIMIZERS["ftrl"],
        lambda: optimizer.Adam(0.1, lazy_mode=True),
        lambda: optimizer.AdamW(0.1, weight_decay=0.5, lazy_mode=True),
    ],
    ids=["ftrl", "lazy_adam", "lazy_adamw"],
)
def test_rows_that_are_not_touched_stay_as_they_are(exe: fluid.Executor, make: Make) -> None:
    dense, sparse = (train(exe, is_sparse, make, steps=1) for is_sparse in (False, True))
    start = np.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)
    touched = [0, 2, 5, 6]
    np.testing.assert_allclose(sparse[touched], dense[touched], rtol=1e-12)
    np.testing.assert_array_equal(sparse[[1, 3, 4]], start[[1, 3, 4]])


def test_lazy_adam_leaves_the_moments_of_other_rows_alone(exe: fluid.Executor) -> None:
    optimizer.Adam(0.1, lazy_mode=True).minimize(layers.mean(layers.square(look_up(True))))
    exe.run(fluid.default_startup_program())
    scope = fluid.global_scope()
    moment = scope.find_var(next(name for name in scope.local_var_names() if "moment1" in name)).get_tensor()
    moment.set(np.ones((ROWS, WIDTH)))
    exe.run(feed={"ids": IDS})
    assert (np.array(moment)[[1, 3, 4]] == 1).all()
    assert (np.array(moment)[[0, 2, 5, 6]] != 1).all()


def test_the_gradient_has_the_rows_that_were_looked_up(exe: fluid.Executor) -> None:
    pairs = fluid.backward.append_backward(layers.reduce_sum(look_up(True, padding_idx=5)))
    gradient = pairs[0][1]
    assert gradient.type == VarType.SELECTED_ROWS
    assert gradient.shape == (ROWS, WIDTH)
    gradient.persistable = True
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": IDS})
    rows = fluid.global_scope().find_var(gradient.name).get_selected_rows()
    assert rows.rows() == [2, 2, 0, 6, 2]  # the padding has none
    assert rows.height() == ROWS
    np.testing.assert_array_equal(np.array(rows.get_tensor()), np.ones((5, WIDTH)))


def test_merged_rows_and_their_elements(exe: fluid.Executor) -> None:
    pairs = fluid.backward.append_backward(layers.reduce_sum(look_up(True)))
    merged = layers.merge_selected_rows(pairs[0][1])
    assert merged.type == VarType.SELECTED_ROWS
    elements = layers.get_tensor_from_selected_rows(merged)
    assert elements.shape == (-1, WIDTH)
    squares = layers.get_tensor_from_selected_rows(layers.elementwise_mul(merged, merged))
    exe.run(fluid.default_startup_program())
    got, squared = exe.run(feed={"ids": IDS}, fetch_list=[elements, squares])
    np.testing.assert_array_equal(got, np.repeat([[1.0], [3.0], [1.0], [1.0]], WIDTH, 1))  # rows 0, 2, 5, 6
    np.testing.assert_array_equal(squared, got**2)


def test_rows_are_copied_scaled_and_looked_at(exe: fluid.Executor) -> None:
    gradient = fluid.backward.append_backward(layers.reduce_sum(look_up(True)))[0][1]
    copied, scaled = layers.assign(gradient), layers.scale(gradient, -3.0)
    in_place = layers.assign(gradient)
    fluid.default_main_program().global_block().append_op("scale", {"X": in_place}, {"Out": in_place}, {"scale": 0.5})
    for rows in (copied, scaled, in_place):
        assert rows.type == VarType.SELECTED_ROWS
        assert rows.shape == (ROWS, WIDTH)
    infinite = layers.scale(gradient, float("inf"))
    facts = [f(rows) for rows in (gradient, infinite) for f in (layers.isfinite, layers.has_inf, layers.has_nan)]
    nan = layers.has_nan(layers.scale(infinite, 0.0))
    dims = layers.shape(gradient)
    product = layers.elementwise_mul(scaled, in_place)
    assert (product.type, product.shape) == (VarType.SELECTED_ROWS, (ROWS, WIDTH))
    values = [layers.get_tensor_from_selected_rows(rows) for rows in (gradient, copied, scaled, in_place, product)]
    merged = layers.get_tensor_from_selected_rows(layers.merge_selected_rows(scaled))
    assert dims.shape == (2,)
    exe.run(fluid.default_startup_program())
    for ids in (IDS, IDS[:1]):
        got = exe.run(feed={"ids": ids}, fetch_list=[*values, merged, dims, *facts, nan])
        for value, factor in zip(got, (1.0, 1.0, -3.0, 0.5, -1.5)):
            np.testing.assert_array_equal(value, np.full((ids.size, WIDTH), factor))
        assert got[5].shape == (len(np.unique(ids)), WIDTH)
        np.testing.assert_array_equal(got[6], [ids.size, WIDTH])
        assert [bool(fact[0]) for fact in got[7:]] == [True, False, False, False, True, False, True]


def test_a_bias_is_not_added_to_rows() -> None:
    gradient = fluid.backward.append_backward(layers.reduce_sum(look_up(True)))[0][1]
    with pytest.raises(errors.InvalidArgument, match=r"attribute bias: expected 0.*got 1 \[operator 'scale'"):
        layers.scale(gradient, 2.0, bias=1.0)


def copied_table(is_sparse: bool) -> Variable:
    """The gradients of what the table is copied and scaled to are sparse."""
    block = fluid.default_main_program().global_block()
    parameter = layers.create_parameter([ROWS, WIDTH], "float64", "table")
    ids, more = (layers.data(name, [-1, 2, 1], append_batch_size=False, dtype="int64") for name in ("ids", "more"))
    copies = [layers.assign(parameter), layers.scale(parameter, 3.0), layers.sums([parameter])]
    losses = []
    for copy, rows in zip(copies, (ids, more, ids)):
        out = block.create_var(dtype="float64")
        block.append_op("lookup_table", {"W": copy, "Ids": rows}, {"Out": out}, {"is_sparse": is_sparse})
        losses.append(layers.mean(layers.square(out)))
    return layers.sums(losses)


def two_look_ups(is_sparse: bool) -> Variable:
    return layers.mean(layers.square(look_up(is_sparse))) + layers.mean(look_up(is_sparse, "more"))


def dense_and_look_up(is_sparse: bool) -> Variable:
    rows = look_up(is_sparse)
    whole = fluid.default_main_program().global_block().var("table")
    return layers.mean(layers.square(rows)) + layers.mean(look_up(is_sparse, "more")) + layers.mean(whole * whole)


@pytest.mark.parametrize("loss_of", [two_look_ups, dense_and_look_up, copied_table])
def test_gradients_of_several_uses_are_added_up(exe: fluid.Executor, loss_of: Callable[[bool], Variable]) -> None:
    dense, sparse = (train(exe, is_sparse, OPTIMIZERS["sgd"], loss_of=loss_of) for is_sparse in (False, True))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "clip",
    [
        fluid.clip.GradientClipByValue(0.01),
        fluid.clip.GradientClipByNorm(0.05),
        fluid.clip.GradientClipByGlobalNorm(0.05),
    ],
    ids=["value", "norm", "global_norm"],
)
def test_sparse_gradients_are_clipped(exe: fluid.Executor, clip: fluid.clip.GradientClipBase) -> None:
    def make() -> optimizer.Optimizer:
        return optimizer.SGD(1.0, grad_clip=clip)

    dense, sparse = (train(exe, is_sparse, make) for is_sparse in (False, True))
    unclipped = train(exe, True, lambda: optimizer.SGD(1.0))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-15)
    assert np.abs(sparse - unclipped).max() > 1e-3


@pytest.mark.parametrize("decay", [fluid.regularizer.L1Decay(0.1), fluid.regularizer.L2Decay(0.1)], ids=str)
def test_weight_decay_makes_the_gradient_dense(
    exe: fluid.Executor, decay: fluid.regularizer.WeightDecayRegularizer
) -> None:
    def make() -> optimizer.Optimizer:
        return optimizer.SGD(0.1, regularization=decay)

    dense, sparse = (train(exe, is_sparse, make) for is_sparse in (False, True))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-15)


def test_a_program_with_selected_rows_can_be_serialised(exe: fluid.Executor) -> None:
    optimizer.SGD(0.1).minimize(layers.mean(layers.square(look_up(True))))
    program = fluid.default_main_program()
    copy = fluid.Program.parse_from_string(program.serialize_to_string())
    assert copy.global_block().var("table@GRAD").type == VarType.SELECTED_ROWS
    assert copy.serialize_to_string() == program.serialize_to_string()
    exe.run(fluid.default_startup_program())
    before = table()
    exe.run(copy, feed={"ids": IDS})
    assert (table() != before).any(axis=1).tolist() == [True, False, True, False, False, True, True]


def test_operators_that_need_a_tensor_refuse_rows() -> None:
    gradient = fluid.backward.append_backward(layers.reduce_sum(look_up(True)))[0][1]
    with pytest.raises(TypeError, match=r"SelectedRows.*get_tensor_from_selected_rows"):
        layers.square(gradient)
    with pytest.raises(TypeError, match=r"SelectedRows.*get_tensor_from_selected_rows"):
        fluid.Executor().run(feed={"ids": IDS}, fetch_list=[gradient])
    with pytest.raises(TypeError, match="expected SelectedRows"):
        layers.merge_selected_rows(look_up(True))
    with pytest.raises(errors.InvalidArgument, match="single element"):
        layers.elementwise_mul(gradient, layers.fill_constant([WIDTH], "float64", 2.0))
    with pytest.raises(TypeError, match=r"input Y: expected a LoDTensor.*get_tensor_from_selected_rows"):
        layers.elementwise_mul(layers.fill_constant([ROWS, WIDTH], "float64", 2.0), gradient)
    with pytest.raises(TypeError, match=r"SelectedRows.*get_tensor_from_selected_rows"):
        layers.elementwise_add(gradient, gradient)


def test_a_product_of_other_rows_is_refused(exe: fluid.Executor) -> None:
    gradient = fluid.backward.append_backward(layers.reduce_sum(look_up(True)))[0][1]
    layers.elementwise_mul(gradient, layers.merge_selected_rows(gradient))
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.InvalidArgument, match=r"input Y: expected the rows of X.*merge_selected_rows"):
        exe.run(feed={"ids": IDS})


@pytest.mark.parametrize(
    ("rows", "height", "message"), [([0, 9], ROWS, "got 9"), ([0], ROWS, "1 rows"), ([0, 1], 4, r"\[7, 3\]")]
)
def test_rows_that_do_not_fit_are_refused(exe: fluid.Executor, rows: list[int], height: int, message: str) -> None:
    block = fluid.default_main_program().global_block()
    parameter = layers.create_parameter([ROWS, WIDTH], "float64", name="table")
    gradient = block.create_var("gradient", [ROWS, WIDTH], "float64", persistable=True, type=VarType.SELECTED_ROWS)
    rate = layers.fill_constant([1], "float64", 1.0)
    block.append_op("sgd", {"Param": parameter, "Grad": gradient, "LearningRate": rate}, {"ParamOut": parameter})
    exe.run(fluid.default_startup_program())
    value = fluid.global_scope().var("gradient").get_selected_rows()
    value.set_rows(rows)
    value.set_height(height)
    value.get_tensor().set(np.ones((2, WIDTH)))
    before = table()
    with pytest.raises((ValueError, IndexError), match=message):
        exe.run()
    np.testing.assert_array_equal(table(), before)


def test_selected_rows_in_python() -> None:
    rows = core.SelectedRows([3, 1], 5)
    rows.get_tensor().set(np.ones((2, 4), np.float32))
    assert (rows.rows(), rows.height()) == ([3, 1], 5)
    assert repr(rows) == "SelectedRows(rows=2, height=5)"
    with pytest.raises(TypeError, match="SelectedRows"):
        variable = fluid.Scope().var("x")
        variable.get_selected_rows()
        variable.get_tensor()


def class_loss(name: str, is_sparse: bool) -> Variable:
    x, label = layers.data("x", [4], dtype="float64"), layers.data("label", [1], dtype="int64")
    if name == "nce":
        cost = layers.nce(x, label, 9, num_neg_samples=3, seed=5, is_sparse=is_sparse)
    else:
        cost = layers.hsigmoid(x, label, 9, is_sparse=is_sparse)
    return layers.mean(cost)


@pytest.mark.parametrize("name", ["nce", "hsigmoid"])
@pytest.mark.parametrize("make", [OPTIMIZERS["sgd"], OPTIMIZERS["adam"]], ids=["sgd", "adam"])
def test_sparse_gradients_of_many_classes_train_as_dense_ones(exe: fluid.Executor, name: str, make: Make) -> None:
    feed = {"x": np.linspace(-1, 1, 12).reshape(3, 4), "label": np.array([[1], [8], [1]])}
    results = []
    for is_sparse in (False, True):
        with (
            fluid.scope_guard(fluid.Scope()),
            fluid.program_guard(fluid.Program(), fluid.Program()),
            fluid.unique_name.guard(),
        ):
            fluid.default_startup_program().random_seed = 11
            loss = class_loss(name, is_sparse)
            make().minimize(loss)
            block = fluid.default_main_program().global_block()
            parameters = block.all_parameters()
            kind = VarType.SELECTED_ROWS if is_sparse else VarType.LOD_TENSOR
            assert [block.var(f"{p.name}@GRAD").type for p in parameters] == [kind] * 2
            exe.run(fluid.default_startup_program())
            losses = [exe.run(feed=feed, fetch_list=[loss])[0] for _ in range(4)]
            tensors = [np.array(fluid.global_scope().find_var(p.name).get_tensor()) for p in parameters]
            results.append([*losses, *tensors])
    for dense, sparse in zip(*results):
        np.testing.assert_allclose(sparse, dense, rtol=1e-12, atol=1e-15)
    assert results[0][3] < results[0][0]


def test_the_rows_of_a_sparse_gradient_are_those_that_were_met(exe: fluid.Executor) -> None:
    loss = class_loss("hsigmoid", True)
    (weight, bias) = fluid.default_main_program().all_parameters()
    gradients = dict(fluid.backward.append_backward(loss))
    tensors = [layers.get_tensor_from_selected_rows(gradients[p]) for p in (weight, bias)]
    exe.run(fluid.default_startup_program())
    # Leaf 8 of 9 is 17 in a heap: 8, 4, 2 and 1 are above it.
    feed = {"x": np.ones((2, 4)), "label": np.array([[8], [8]])}
    values = exe.run(feed=feed, fetch_list=tensors)
    assert [value.shape for value in values] == [(4, 4), (4, 1)]
    assert all(value.all() for value in values)


def filled(name: str, rows: list[int], value: Any, height: int = 0) -> core.SelectedRows:
    """SelectedRows in the global scope."""
    made: core.SelectedRows = fluid.global_scope().var(name).get_selected_rows()
    made.set_rows(rows)
    made.set_height(height)
    made.sync_index()
    made.get_tensor().set(np.asarray(value, np.float32))
    return made


def declare_rows(name: str, width: int = 2) -> Variable:
    block = fluid.default_main_program().global_block()
    return block.create_var(name, [-1, width], "float32", persistable=True, type=VarType.SELECTED_ROWS)


def test_without_a_height_rows_are_part_of_a_tensor_that_is_tall_enough(exe: fluid.Executor) -> None:
    x, out = declare_rows("x"), declare_rows("out")
    x.block.append_op("clip_by_norm", {"X": x}, {"Out": out}, {"max_norm": 5.0})
    filled("x", [4, 1, 4], [[1, 2], [0, 0], [5, 6]])
    exe.run()
    got = fluid.global_scope().find_var("out").get_selected_rows()
    assert (got.rows(), got.height()) == ([1, 4], 0)
    np.testing.assert_allclose(np.array(got.get_tensor()), [[0, 0], [3, 4]], rtol=1e-6)
    parameter = layers.create_parameter([4, 2], "float32", "table")
    rate = layers.fill_constant([1], "float32", 1.0)
    x.block.append_op("sgd", {"Param": parameter, "Grad": x, "LearningRate": rate}, {"ParamOut": parameter})
    exe.run(fluid.default_startup_program())
    with pytest.raises(errors.InvalidArgument, match=r"Grad: expected dims \[4, 2\], got \[5, 2\]"):
        exe.run()


@pytest.mark.parametrize("op_type", ["lookup_table", "lookup_table_v2"])
def test_rows_are_looked_up_by_their_numbers(exe: fluid.Executor, op_type: str) -> None:
    w, ids = declare_rows("w"), layers.data("ids", [-1, 2, 1], append_batch_size=False, dtype="int64")
    out = w.block.create_var(dtype="float32")
    w.block.append_op(op_type, {"W": w, "Ids": ids}, {"Out": out}, {"padding_idx": 3})
    filled("w", [7, 3, 0], [[1, 2], [3, 4], [5, 6]], height=8)
    given = np.array([[[0], [7]], [[3], [0]]])
    expected = np.array([[[5, 6], [1, 2]], [[0, 0], [5, 6]]], np.float32)
    got = exe.run(feed={"ids": given}, fetch_list=[out])[0]
    np.testing.assert_array_equal(got.reshape(2, 2, 2), expected)
    for missing in (1, -1, 8):
        with pytest.raises(errors.OutOfRange, match=f"input W has no row {missing}"):
            exe.run(feed={"ids": np.full((1, 2, 1), missing)})
    filled("w", [7, 0, 7], [[1, 2], [3, 4], [5, 6]], height=8)
    with pytest.raises(errors.InvalidArgument, match="input W: expected each row once, got row 7 at 0 and 2"):
        exe.run(feed={"ids": given})


@pytest.mark.parametrize("in_place", [True, False])
def test_sgd_updates_rows_by_their_numbers(exe: fluid.Executor, in_place: bool) -> None:
    param, grad = declare_rows("param"), declare_rows("grad")
    out = param if in_place else declare_rows("updated")
    rate = layers.fill_constant([1], "float32", 0.5)
    param.block.append_op("sgd", {"Param": param, "Grad": grad, "LearningRate": rate}, {"ParamOut": out})
    assert out.type == VarType.SELECTED_ROWS
    value = filled("param", [7, 3, 0], [[1, 2], [3, 4], [5, 6]], height=8)
    before = np.asarray(value.get_tensor())  # shares the memory
    filled("grad", [0, 7, 0], [[2, 2], [4, 0], [2, 4]], height=20)  # another height than the table's
    exe.run()
    got = fluid.global_scope().find_var(out.name).get_selected_rows()
    assert (got.rows(), got.height()) == ([7, 3, 0], 8)
    np.testing.assert_array_equal(np.array(got.get_tensor()), [[-1, 2], [3, 4], [3, 3]])
    np.testing.assert_array_equal(before, [[1, 2], [3, 4], [5, 6]])
    filled("grad", [5], [[1, 1]], height=20)
    with pytest.raises(errors.OutOfRange, match="input Param has no row 5"):
        exe.run()


def test_rows_are_updated_by_rows_only() -> None:
    param, rate = declare_rows("param"), layers.fill_constant([1], "float32", 0.5)
    with pytest.raises(errors.TypeMismatch, match="input Grad: expected SelectedRows, as input Param is"):
        param.block.append_op(
            "sgd", {"Param": param, "Grad": layers.data("g", [2]), "LearningRate": rate}, {"ParamOut": param}
        )


@pytest.mark.parametrize("make", ["fill_constant", "uniform_random"])
def test_rows_are_filled(exe: fluid.Executor, make: str) -> None:
    attrs = {"fill_constant": {"value": 3.5}, "uniform_random": {"min": 3.0, "max": 4.0, "seed": 5, "diag_num": 2}}
    new, old = declare_rows("new"), declare_rows("old")
    for out in (new, old):
        out.block.append_op(make, {}, {"Out": out}, {"shape": [3, 2], **attrs[make]})
        assert (out.type, out.shape) == (VarType.SELECTED_ROWS, (3, 2))
    filled("old", [5, 9, 7], np.zeros((3, 2)), height=10)
    for _ in range(2):
        exe.run()
    scope = fluid.global_scope()
    for name, rows in (("new", [0, 1, 2]), ("old", [5, 9, 7])):
        got = scope.find_var(name).get_selected_rows()
        assert got.rows() == rows
        elements = np.array(got.get_tensor())
        assert elements.shape == (3, 2)
        if make == "fill_constant":
            np.testing.assert_array_equal(elements, np.full((3, 2), 3.5))
        else:
            assert elements.ravel()[:2].tolist() == [1, 1]
            assert ((elements.ravel()[2:] >= 3) & (elements.ravel()[2:] < 4)).all()
    filled("old", [5, 9], np.zeros((2, 2)), height=10)
    with pytest.raises(errors.InvalidArgument, match=r"expected a first dimension of 2.*got \[3, 2\]"):
        exe.run()
