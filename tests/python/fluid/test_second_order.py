"""Layers differentiated twice: what comes out is right; if the gradient of an operator has no gradient, it is named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers as L
from headrace.fluid.framework import Variable

LENGTHS = [2, 1]
STEP = 1e-5
# Of x and y, [3, 4] in two sequences; "label" is int32.
LAYERS: dict[str, Callable[[Variable, Variable, Variable], Variable]] = {
    "batch_norm": lambda x, y, label: L.square(L.batch_norm(x)),
    "bpr_loss": lambda x, y, label: L.bpr_loss(x, L.cast(label, "int64")),
    "clip": lambda x, y, label: L.square(L.clip(x, -0.4, 0.4)),
    "cond": lambda x, y, label: L.cond(L.less_than(L.reduce_sum(x), L.reduce_sum(y)), lambda: x * x * x, lambda: y),
    "cos_sim": lambda x, y, label: L.cos_sim(x, y),
    "cross_entropy": lambda x, y, label: L.cross_entropy(L.softmax(x), L.cast(label, "int64")),
    "cumsum": lambda x, y, label: L.square(L.cumsum(x)),
    "data_norm": lambda x, y, label: L.square(L.data_norm(x)),
    "dropout": lambda x, y, label: L.square(L.dropout(x, 0.3, seed=3)),
    "dynamic_gru": lambda x, y, label: L.dynamic_gru(L.fc(x, 3), 1),
    "dynamic_lstm": lambda x, y, label: L.dynamic_lstm(x, 4, dtype="float64")[0],
    "elementwise": lambda x, y, label: x * y / (L.square(y) + 1.0),
    "elementwise_max": lambda x, y, label: L.square(L.elementwise_max(x, y)),
    "fc": lambda x, y, label: L.tanh(L.fc(x, 3)),
    "gather": lambda x, y, label: L.square(L.gather(x, label)),
    "gru_unit": lambda x, y, label: L.gru_unit(L.fc(x, 3), L.fc(y, 1), 3)[0],
    "hsigmoid": lambda x, y, label: L.hsigmoid(x, L.cast(label, "int64"), 3),
    "huber_loss": lambda x, y, label: L.huber_loss(x, y, 0.5),
    "kldiv_loss": lambda x, y, label: L.kldiv_loss(x, L.softmax(y), "sum"),
    "l2_normalize": lambda x, y, label: L.l2_normalize(x, 1),
    "layer_norm": lambda x, y, label: L.square(L.layer_norm(x)),
    "linear_chain_crf": lambda x, y, label: L.linear_chain_crf(x, L.cast(label, "int64")),
    "log_loss": lambda x, y, label: L.log_loss(L.sigmoid(x), L.sigmoid(y) * 0.0 + 0.3),
    "lstm_unit": lambda x, y, label: L.lstm_unit(x, y, L.square(y))[0],
    "margin_rank_loss": lambda x, y, label: L.margin_rank_loss(L.sign(x * 0.0 + 1.0), L.square(x), y, 0.1),
    "matmul": lambda x, y, label: L.matmul(L.square(x), y, transpose_y=True),
    "maxout": lambda x, y, label: L.square(L.maxout(L.unsqueeze(x, [2, 3]), 2)),
    "modified_huber_loss": lambda x, y, label: L.modified_huber_loss(
        L.reduce_sum(x, 1, True), L.cast(label, "float64")
    ),
    "mse_loss": lambda x, y, label: L.mse_loss(x, y),
    "nce": lambda x, y, label: L.nce(x, L.cast(label, "int64"), 3, seed=3),
    "prelu": lambda x, y, label: L.square(L.prelu(x, "all")),
    "rank_loss": lambda x, y, label: L.rank_loss(L.sigmoid(x * 0.0), x, y),
    "reduce_max": lambda x, y, label: L.square(L.reduce_max(x, 1)),
    "row_conv": lambda x, y, label: L.square(L.row_conv(x, 1)),
    "sequence_conv": lambda x, y, label: L.square(L.sequence_conv(x, 2)),
    "sequence_pool": lambda x, y, label: L.square(L.sequence_pool(x, "max")),
    "sequence_softmax": lambda x, y, label: L.square(L.sequence_softmax(L.fc(x, 1))),
    "sigmoid_cross_entropy_with_logits": lambda x, y, label: L.sigmoid_cross_entropy_with_logits(x, y),
    "sigmoid_focal_loss": lambda x, y, label: L.sigmoid_focal_loss(x, label, L.reduce_max(label)),
    "smooth_l1": lambda x, y, label: L.smooth_l1(x, y),
    "softmax_with_cross_entropy": lambda x, y, label: L.softmax_with_cross_entropy(x, L.cast(label, "int64")),
    "split": lambda x, y, label: L.square(L.split(x, 2, 1)[1]),
    "topk": lambda x, y, label: L.square(L.topk(x, 2)[0]),
    "warpctc": lambda x, y, label: L.warpctc(x, label),
}
# The operators whose gradient has no gradient.
REFUSED = {
    "batch_norm": "batch_norm_grad",
    "bpr_loss": "bpr_loss_grad",
    "cond": "conditional_block_grad",
    "cos_sim": "cos_sim_grad",
    "cross_entropy": "softmax_grad",
    "data_norm": "data_norm_grad",
    "dynamic_gru": "gru_grad",
    "dynamic_lstm": "lstm_grad",
    "elementwise_max": "elementwise_max_grad",
    "gru_unit": "gru_unit_grad",
    "hsigmoid": "hierarchical_sigmoid_grad",
    "huber_loss": "huber_loss_grad",
    "kldiv_loss": "kldiv_loss_grad",
    "l2_normalize": "norm_grad",
    "layer_norm": "layer_norm_grad",
    "linear_chain_crf": "linear_chain_crf_grad",
    "log_loss": "log_loss_grad",
    "lstm_unit": "lstm_unit_grad",
    "margin_rank_loss": "margin_rank_loss_grad",
    "maxout": "maxout_grad",
    "modified_huber_loss": "modified_huber_loss_grad",
    "nce": "nce_grad",
    "prelu": "prelu_grad",
    "rank_loss": "rank_loss_grad",
    "reduce_max": "reduce_max_grad",
    "row_conv": "row_conv_grad",
    "sequence_conv": "sequence_conv_grad",
    "sequence_pool": "sequence_pool_grad",
    "sequence_softmax": "sequence_softmax_grad",
    "sigmoid_cross_entropy_with_logits": "sigmoid_cross_entropy_with_logits_grad",
    "sigmoid_focal_loss": "sigmoid_focal_loss_grad",
    "smooth_l1": "smooth_l1_loss_grad",
    "softmax_with_cross_entropy": "softmax_with_cross_entropy_grad",
    "topk": "top_k_grad",
    "warpctc": "warpctc_grad",
}


def stop_what_is_not_read(out: Variable) -> None:
    """Sets ``stop_gradient`` of the results that only gradients read, as in programs that were made elsewhere."""
    block = out.block
    read = {name for op in block.ops for name in op.input_arg_names}
    for op in block.ops:
        for name in {*op.output_arg_names} - read - {out.name}:
            block.var(name).stop_gradient = True


@pytest.mark.parametrize("stops", [False, True], ids=["as_made", "stopped"])
@pytest.mark.parametrize("name", LAYERS)
def test_second_order_gradients_are_right_or_refused(name: str, stops: bool, exe: fluid.Executor) -> None:
    rng = np.random.default_rng(4)
    values = {key: rng.uniform(-1, 1, (3, 4)) for key in ("x", "y")}
    label = fluid.create_lod_tensor(np.array([[1], [2], [1]], np.int32), [LENGTHS])
    variables = [fluid.data(key, [None, 4], "float64", lod_level=1) for key in values]
    for variable in variables:
        variable.stop_gradient = False
    out = LAYERS[name](*variables, fluid.data("label", [None, 1], "int32", lod_level=1))
    if stops:
        stop_what_is_not_read(out)
    first = [gradient for gradient in fluid.gradients(out, variables) if gradient is not None]
    penalty = L.sums([L.reduce_sum(L.square(gradient)) for gradient in first])
    if name in REFUSED:
        with pytest.raises(errors.Unimplemented, match=f"'{REFUSED[name]}'"):
            fluid.gradients(penalty, variables)
        return
    second = fluid.gradients(penalty, variables)
    exe.run(fluid.default_startup_program())

    def run(*fetches: Variable) -> list[np.ndarray]:
        feed = {key: fluid.create_lod_tensor(value, [LENGTHS]) for key, value in values.items()}
        fetched = exe.run(feed={**feed, "label": label}, fetch_list=list(fetches), return_numpy=False)
        return [np.array(tensor) for tensor in fetched]

    for variable, gradient in zip(variables, second):
        value = values[variable.name]
        expected = np.zeros_like(value)
        for place in np.ndindex(value.shape):
            middle = value[place]
            for sign in (1, -1):
                value[place] = middle + sign * STEP
                expected[place] += sign * run(penalty)[0].item() / (2 * STEP)
            value[place] = middle
        got = np.zeros_like(value) if gradient is None else run(gradient)[0]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
