"""Uses of operators that treat each row of their inputs (or each sequence) by itself.

So what they give for the first rows is the beginning of what they give for all, down to no rows at all; other tests say
what that is. :mod:`test_rows`, :mod:`test_kernels` and :mod:`test_operator_threads` put every use through the same
checks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.fluid import core
from headrace.testing import OpTest

Inputs = dict[str, Any]
Fill = Callable[[tuple[int, ...], Any], np.ndarray]

_BOOL, _INT32, _INT64, _FLOAT64 = 0, 2, 3, 6  # VarType


@dataclass(frozen=True)
class Rows:
    """
    Args:
        inputs: (rows, width) → inputs. The first rows are the same for any number of them.
        outputs: whose rows follow from rows of the inputs.
        by: slots to differentiate the first output by.
        others: outputs that are given, too.
        lod: outputs that get the LoD of the first input. None: that input has one in any case.
        widths: of the rows; the first one is for most checks.
        many: rows enough for several blocks of work.
        known: see OpTest.
        by_row: whether the operator treats each row by itself after all.
        ordinary: input slots that take no special numbers, probabilities say.
        fractions: input slots that take no whole numbers either.
    """

    inputs: Callable[[int, int], Inputs]
    attrs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = ("Out",)
    by: tuple[str, ...] = ("X",)
    others: tuple[str, ...] = ()
    lod: tuple[str, ...] | None = ("Out",)
    widths: tuple[int, ...] = (4, 1)
    many: int = 20_000
    known: tuple[str, ...] = ()
    by_row: bool = True
    ordinary: tuple[str, ...] = ()
    fractions: tuple[str, ...] = ()

    def test(
        self, op_type: str, rows: int, width: int | None = None, dtype: Any = None, fill: Fill | None = None
    ) -> OpTest:
        """
        Args:
            dtype: that of what would be float64; None: that.
            fill: (shape, dtype) → what stands there instead.
        """
        inputs = self.inputs(rows, self.widths[0] if width is None else width)
        if fill is not None or dtype is not None:
            fills = dict.fromkeys(inputs, fill) | dict.fromkeys(self.fractions)
            inputs = {slot: _converted(value, np.dtype(dtype), fills[slot]) for slot, value in inputs.items()}
        attrs = self.attrs
        if dtype is not None:
            number = int(core.convert_dtype(dtype))
            attrs = {k: number if k in ("dtype", "in_dtype") and v == _FLOAT64 else v for k, v in attrs.items()}
        return OpTest(op_type, inputs, attrs, dict.fromkeys((*self.outputs, *self.others)), self.known)

    def special(self) -> Rows:
        """The same use of special numbers."""

        def inputs(rows: int, width: int) -> Inputs:
            given = self.inputs(rows, width)
            return {slot: value if slot in self.ordinary else _special(value) for slot, value in given.items()}

        return replace(self, inputs=inputs)


def _converted(value: Any, dtype: np.dtype[Any], fill: Fill | None) -> Any:
    if isinstance(value, list):
        return [_converted(item, dtype, fill) for item in value]
    if isinstance(value, tuple):
        return _converted(value[0], dtype, fill), value[1]
    if value.dtype != np.float64:
        return value
    return value.astype(dtype) if fill is None else fill(value.shape, dtype)


#: Where functions overflow, underflow, have a kink or no value.
SPECIAL = np.array(
    [-np.inf, np.inf, np.nan, 0.0, -0.0, 1e-40, -1e-40, 2e-38, 0.5, -0.5, 1.0, -1.0, 2.0, -3.0, 88.5, -100.0],
    np.float32,
)


def _special(value: Any) -> Any:
    """Numbers from -3 to 3, all of which float32 has, with some of SPECIAL among them: many in small arrays, few in
    large ones, of which else too little would remain but NaN. Single elements, rates and bounds, stay as they are.
    """
    if isinstance(value, list):
        return [_special(item) for item in value]
    if isinstance(value, tuple):
        return _special(value[0]), value[1]
    if value.dtype != np.float64 or value.size == 1:
        return value
    rng = np.random.default_rng(zlib.crc32(value.tobytes()))
    values = rng.uniform(-3, 3, value.size).astype(np.float32)
    chosen = rng.random(value.size) < (0.3 if value.size < 1000 else 0.02)
    values[chosen] = rng.choice(np.array(SPECIAL, np.float32), int(chosen.sum()))
    return values.reshape(value.shape).astype(np.float64)


def numbers(*shape: int, low: float = 0.55, high: float = 0.95, seed: int = 1) -> np.ndarray:
    """Far from 0, 1/2 and 1, where many functions have a kink."""
    return np.random.default_rng(seed).uniform(low, high, shape)


def whole(*shape: int, below: int = 4, seed: int = 2, dtype: Any = np.int64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, max(below, 1), shape).astype(dtype)


def bits(*shape: int, seed: int = 3) -> np.ndarray:
    return whole(*shape, below=2, seed=seed).astype(bool)


def x(n: int, w: int) -> Inputs:
    return {"X": numbers(n, w)}


def x_and_y(n: int, w: int) -> Inputs:
    return {"X": numbers(n, w), "Y": numbers(n, w, seed=4)}


def images(n: int, w: int) -> Inputs:
    return {"X": numbers(n, 4, w, w)}


def regions(n: int, w: int) -> Inputs:
    """A region of each image, across its border."""
    corners = np.concatenate([numbers(n, 2, low=-1.2, seed=4), numbers(n, 2, low=1.3, high=4.2, seed=5)], 1)
    return {**images(n, w), "ROIs": (corners, [[1] * n])}


def deformed(n: int, w: int, masks: bool) -> Inputs:
    """A convolution with filters of 3 × 3, which are moved to places between pixels."""
    inputs = {
        "Input": numbers(n, 4, w, w),
        "Offset": numbers(n, 36, w, w, low=-0.9, high=-0.1, seed=4),
        "Filter": numbers(4, 2, 3, 3, seed=5),
    }
    return {**inputs, "Mask": numbers(n, 18, w, w, seed=6)} if masks else inputs


def boxes(*shape: int, seed: int = 1) -> np.ndarray:
    """xmin, ymin, xmax, ymax."""
    low = numbers(*shape, 4, seed=seed)
    return low + np.array([0.0, 0.0, 1.0, 1.0])


def volumes(n: int, w: int) -> Inputs:
    return {"X": numbers(n, 2, w, w, w)}


def lengths_of(sequences: int) -> list[list[int]]:
    return [[i % 3 for i in range(sequences)]]


def sequences(n: int, w: int, seed: int = 1) -> tuple[np.ndarray, list[list[int]]]:
    lengths = lengths_of(n)
    return numbers(sum(lengths[0]), w, seed=seed), lengths


def probabilities(*shape: int, seed: int = 1) -> np.ndarray:
    p = numbers(*shape, seed=seed)
    return p / p.sum(-1, keepdims=True)


ELEMENTWISE = ("add", "sub", "mul", "div", "max", "min", "pow")
#: Decays that float32 has, too: 1 - 0.999 would be another number there.
BETAS = {"beta1": 0.875, "beta2": 0.984375}
COMPARISONS = ("less_than", "less_equal", "greater_than", "greater_equal", "equal", "not_equal")
ACTIVATIONS = (
    *("abs", "acos", "asin", "atan", "brelu", "ceil", "cos", "elu", "erf", "exp", "floor", "gelu", "hard_shrink"),
    *("hard_sigmoid", "hard_swish", "leaky_relu", "log", "logsigmoid", "pow", "reciprocal", "relu", "relu6", "round"),
    *("rsqrt", "selu", "sigmoid", "sign", "sin", "soft_relu", "softplus", "softshrink", "softsign", "sqrt", "square"),
    *("stanh", "swish", "tanh", "tanh_shrink", "thresholded_relu"),
)


def _pairs() -> Iterator[tuple[str, Rows]]:
    for op_type in ACTIVATIONS:
        yield op_type, Rows(x)
    for name in ELEMENTWISE:
        yield f"elementwise_{name}", Rows(x_and_y, by=("X", "Y"))
        yield f"elementwise_{name}", Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(w, seed=4)}, by=("X",))
        yield (
            f"elementwise_{name}",
            Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(n, seed=4)}, {"axis": 0}, by=("X", "Y")),
        )
    for name in ("mod", "floordiv"):
        pair = Rows(lambda n, w: {"X": numbers(n, w, high=5), "Y": numbers(n, seed=4)}, {"axis": 0}, by=())
        yield f"elementwise_{name}", pair
    for op_type in COMPARISONS:
        yield op_type, Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(n, seed=4)}, {"axis": 0}, by=())
    for op_type in ("logical_and", "logical_or", "logical_xor"):
        yield op_type, Rows(lambda n, w: {"X": bits(n, w), "Y": bits(n, w, seed=5)}, by=())
    yield "logical_not", Rows(lambda n, w: {"X": bits(n, w)}, by=())
    yield "minus", Rows(x_and_y, by=("X", "Y"))
    yield (
        "target_gradient",
        Rows(lambda n, w: {"Target": numbers(n, w), "Weights": numbers(n, w, seed=4)}, by=("Weights",)),
    )
    yield "sum", Rows(lambda n, w: {"X": [numbers(n, w), numbers(n, w, seed=4), numbers(n, w, seed=5)]})

    # one input, element by element
    yield "assign", Rows(x)
    yield "cast", Rows(x, {"in_dtype": _FLOAT64, "out_dtype": _INT32}, by=())
    yield "clip", Rows(x, {"min": 0.3, "max": 0.97})
    yield "fill_any_like", Rows(x, {"value": 3.0}, by=())
    yield "fill_zeros_like", Rows(x, by=())
    yield "fill_zeros_like2", Rows(x, {"dtype": _FLOAT64}, by=())
    yield "scale", Rows(x, {"scale": 2.0, "bias": 1.0})
    yield "rnn_memory_helper", Rows(x, {"dtype": _FLOAT64})
    yield "label_smooth", Rows(x, {"epsilon": 0.1}, lod=("Out",))
    yield "dropout", Rows(x, {"dropout_prob": 0.3, "is_test": True}, by=())
    yield (
        "prelu",
        Rows(lambda n, w: {"X": -numbers(n, w, 3), "Alpha": np.array([0.3])}, by=("X", "Alpha"), known=("Alpha",)),
    )

    # dimensions behind the rows
    yield "softmax", Rows(x)
    yield "log_softmax", Rows(x)
    yield "cumsum", Rows(x, {"axis": 1})
    yield "reverse", Rows(x, {"axis": [1]}, lod=())
    yield "norm", Rows(x, {"axis": 1}, ("Out", "Norm"), lod=())
    yield "argsort", Rows(x, {"axis": 1}, ("Out", "Indices"), lod=("Out", "Indices"))
    yield "arg_max", Rows(x, {"axis": 1}, by=(), lod=())
    yield "arg_min", Rows(x, {"axis": 1}, by=(), lod=())
    yield "top_k", Rows(x, {"k": 1}, ("Out", "Indices"), lod=("Out", "Indices"))
    for op_type in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"):
        yield op_type, Rows(x, {"dim": [1], "keep_dim": True})
        yield op_type, Rows(lambda n, w: {"X": numbers(n, 2, w)}, {"dim": [-2, 2]}, widths=(3, 1))
    for op_type in ("reduce_all", "reduce_any"):
        yield op_type, Rows(lambda n, w: {"X": bits(n, w)}, {"dim": [1], "keep_dim": True}, by=())
    yield "expand", Rows(x, {"expand_times": [1, 3]})
    yield (
        "expand_as",
        Rows(lambda n, w: {"X": numbers(n, w), "target_tensor": numbers(n, 3 * w)}, lod=()),
    )
    yield "pad", Rows(x, {"paddings": [0, 0, 2, 1], "pad_value": 1.0})
    yield (
        "slice",
        Rows(
            lambda n, w: {"Input": numbers(n, w)},
            {"axes": [1], "starts": [1], "ends": [3]},
            by=("Input",),
            widths=(4, 2),
        ),
    )
    yield (
        "strided_slice",
        Rows(
            lambda n, w: {"Input": numbers(n, w)},
            {"axes": [1], "starts": [-1], "ends": [0], "strides": [-2]},
            by=("Input",),
            widths=(4, 2),
        ),
    )
    yield "concat", Rows(lambda n, w: {"X": [numbers(n, w), numbers(n, 2, seed=4)]}, {"axis": 1})
    yield "stack", Rows(lambda n, w: {"X": [numbers(n, w), numbers(n, w, seed=4)]}, {"axis": 1}, ("Y",), lod=("Y",))
    yield "unstack", Rows(x, {"axis": 1, "num": 1}, ("Y",), widths=(1,), lod=())
    yield "split", Rows(x, {"axis": 1, "sections": [2]}, widths=(2,))
    for second in ("", "2"):
        others = ("XShape",) if second else ()
        yield (
            f"reshape{second}",
            Rows(lambda n, w: {"X": numbers(n, w, 2)}, {"shape": [0, 2 * 4]}, others=others, widths=(4,)),
        )
        yield f"flatten{second}", Rows(lambda n, w: {"X": numbers(n, w, 2)}, {"axis": 1}, others=others)
        yield f"squeeze{second}", Rows(lambda n, w: {"X": numbers(n, 1, w)}, {"axes": [1]}, others=others)
        yield f"unsqueeze{second}", Rows(x, {"axes": [1]}, others=others)
        moved = Rows(lambda n, w: {"X": numbers(n, w, 3)}, {"axis": [0, 2, 1]}, others=others, lod=())
        yield f"transpose{second}", moved
    yield "crop_tensor", Rows(x, {"shape": [-1, 1], "offsets": [0, 0]}, widths=(4, 1))
    yield "crop", Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(n, 1)}, {"offsets": [0, 0]}, lod=())
    yield (
        "pad_constant_like",
        Rows(lambda n, w: {"X": numbers(n, w + 2), "Y": numbers(n, w)}, {"pad_value": 1.0}, by=("Y",)),
    )
    yield "gather", Rows(lambda n, w: {"Index": whole(n), "X": numbers(4, w)}, by=("X",), known=("X",), lod=())
    yield (
        "multiplex",
        Rows(
            lambda n, w: {"Ids": whole(n, 1, below=2, dtype=np.int32), "X": [numbers(n, w), numbers(n, w, seed=4)]},
            lod=(),
        ),
    )
    yield (
        "gather_nd",
        Rows(
            lambda n, w: {"Index": whole(n, 2, below=3), "X": numbers(3, 4, w)},
            by=("X",),
            known=("X", "Index"),
            lod=(),
        ),
    )
    yield (
        "shard_index",
        Rows(
            lambda n, w: {"X": whole(n, 1, below=20)},
            {"index_num": 20, "nshards": 2, "shard_id": 1},
            by=(),
            widths=(1,),
        ),
    )
    yield "hash", Rows(lambda n, w: {"X": whole(n, w)}, {"num_hash": 2}, by=())
    yield "one_hot_v2", Rows(lambda n, w: {"X": whole(n)}, {"depth": 4}, by=(), widths=(1,))
    yield "lookup_table_v2", Rows(lambda n, w: {"Ids": whole(n), "W": numbers(4, w)}, by=("W",), known=("W",))
    yield "one_hot", Rows(lambda n, w: {"X": whole(n, 1)}, {"depth": 4}, by=(), widths=(1,))
    yield "lookup_table", Rows(lambda n, w: {"Ids": whole(n, 1), "W": numbers(4, w)}, by=("W",), known=("W",))
    yield (
        "sequence_mask",
        Rows(lambda n, w: {"X": whole(n)}, {"maxlen": 4, "out_dtype": _INT32}, ("Y",), by=(), lod=(), widths=(1,)),
    )

    # products
    yield "mul", Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(w, 3, seed=4)}, by=("X",))
    yield "matmul", Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(w, 64, seed=4)}, by=("X",))
    yield "matmul", Rows(lambda n, w: {"X": numbers(n, 2, w), "Y": numbers(n, w, 3, seed=4)}, by=("X", "Y"))
    yield (
        "bilinear_tensor_product",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "Y": numbers(n, 3, seed=4),
                "Weight": numbers(2, w, 3, seed=5),
                "Bias": numbers(1, 2, seed=6),
            },
            by=("X", "Y"),
            known=("Weight", "Bias"),
        ),
    )
    yield "conv_shift", Rows(lambda n, w: {"X": numbers(n, w), "Y": numbers(n, 1 + 2 * (w > 3), seed=4)}, by=("X", "Y"))
    yield "cos_sim", Rows(x_and_y, {}, ("Out", "XNorm", "YNorm"), by=("X", "Y"))
    yield (
        "gru_unit",
        Rows(
            lambda n, w: {
                "Input": numbers(n, 3 * w),
                "HiddenPrev": numbers(n, w, seed=4),
                "Weight": numbers(w, 3 * w, seed=5),
            },
            {"origin_mode": True},
            ("Hidden", "Gate", "ResetHiddenPrev"),
            by=("Input", "HiddenPrev"),
            lod=(),
            known=("Weight",),
        ),
    )
    yield (
        "lstm_unit",
        Rows(
            lambda n, w: {"X": numbers(n, 4 * w), "C_prev": numbers(n, w, seed=4)},
            {"forget_bias": 0.5},
            ("C", "H"),
            by=("X", "C_prev"),
            lod=(),
        ),
    )

    # losses
    for op_type in ("square_error_cost", "modified_huber_loss", "huber_loss"):
        others = {"modified_huber_loss": ("IntermediateVal",), "huber_loss": ("Residual",)}.get(op_type, ())
        by = ("X",) if op_type == "modified_huber_loss" else ("X", "Y")
        label: Any = (lambda n, w: bits(n, w).astype(float)) if by == ("X",) else (lambda n, w: numbers(n, w, high=4))
        yield (
            op_type,
            Rows(
                lambda n, w, label=label: {"X": numbers(n, w), "Y": label(n, w)},
                {},
                ("Out", *others),
                by=by,
                widths=(1,),
                lod=() if op_type == "modified_huber_loss" else ("Out", *others),
            ),
        )
    yield "smooth_l1_loss", Rows(x_and_y, {"sigma": 2.0}, ("Out", "Diff"), by=("X", "Y"), lod=())
    yield (
        "log_loss",
        Rows(
            lambda n, w: {"Predicted": numbers(n, 1), "Labels": bits(n, 1).astype(float)},
            {},
            ("Loss",),
            by=("Predicted",),
            widths=(1,),
            lod=("Loss",),
            many=200_000,
        ),
    )
    yield (
        "hinge_loss",
        Rows(
            lambda n, w: {"Logits": numbers(n, 1), "Labels": bits(n, 1).astype(float)},
            {},
            ("Loss",),
            by=("Logits",),
            widths=(1,),
            lod=("Loss",),
            many=200_000,
        ),
    )
    yield (
        "rank_loss",
        Rows(
            lambda n, w: {"Label": bits(n, 1).astype(float), "Left": numbers(n, 1), "Right": numbers(n, 1, seed=4)},
            by=("Left", "Right"),
            widths=(1,),
            lod=(),
            many=200_000,
        ),
    )
    yield (
        "margin_rank_loss",
        Rows(
            lambda n, w: {"X1": numbers(n, 1), "X2": numbers(n, 1, seed=4), "Label": 2.0 * bits(n, 1) - 1},
            {"margin": 0.01},
            ("Out", "Activated"),
            by=("X1", "X2"),
            widths=(1,),
            lod=(),
            many=200_000,
        ),
    )
    yield (
        "fc",
        Rows(
            lambda n, w: {"Input": numbers(n, w), "W": numbers(w, 3, seed=4), "Bias": numbers(1, 3, seed=5)},
            {"activation_type": "relu"},
            by=(),
            known=("W", "Bias"),
        ),
    )
    for functors, lod in (
        (["relu", "elementwise_add"], ("Out", "IntermediateOut")),
        (["elementwise_mul", "scale"], ("Out",)),
    ):
        yield (
            "fused_elemwise_activation",
            Rows(
                x_and_y,
                {"functor_list": functors, "scale": 2.0},
                by=("X", "Y"),
                others=("IntermediateOut",),
                lod=lod,
            ),
        )
    yield (
        "squared_l2_distance",
        Rows(x_and_y, {}, ("Out", "sub_result"), by=("X", "Y")),
    )
    yield (
        "fake_quantize_abs_max",
        Rows(x, {}, ("Out",), by=(), others=("OutScale",), by_row=False),
    )
    yield (
        "fake_quantize_range_abs_max",
        Rows(lambda n, w: {**x(n, w), "InScale": np.array([1.0])}, {"is_test": True}, by=(), others=("OutScale",)),
    )
    yield (
        "fake_dequantize_max_abs",
        Rows(lambda n, w: {**x(n, w), "Scale": np.array([1.5])}, {"max_range": 127.0}, by=()),
    )
    for op_type in ("fake_quantize_moving_average_abs_max", "fake_quantize_dequantize_moving_average_abs_max"):
        yield (
            op_type,
            Rows(lambda n, w: {**x(n, w), "InScale": np.array([1.0])}, {"is_test": True}, by=(), others=("OutScale",)),
        )
    yield "moving_average_abs_max_scale", Rows(x, {"is_test": True}, by=())
    yield "fake_channel_wise_quantize_abs_max", Rows(x, {}, ("Out", "OutScale"), by=())
    yield (
        "fake_channel_wise_dequantize_max_abs",
        Rows(lambda n, w: {**x(n, w), "Scales": [numbers(n, seed=4)]}, {"quant_bits": [8]}, by=()),
    )
    yield (
        "fake_channel_wise_dequantize_max_abs",
        Rows(lambda n, w: {**x(n, w), "Scales": [numbers(w, seed=4), np.array([1.5])]}, {"quant_bits": [8, 5]}, by=()),
    )
    yield (
        "kldiv_loss",
        Rows(
            lambda n, w: {"X": numbers(n, w), "Target": numbers(n, w, seed=4)}, {"reduction": "none"}, ("Loss",), lod=()
        ),
    )
    yield (
        "bpr_loss",
        Rows(lambda n, w: {"X": numbers(n, w), "Label": whole(n, 1, below=2)}, {}, ("Y",), widths=(4, 2), lod=("Y",)),
    )
    yield (
        "teacher_student_sigmoid_loss",
        Rows(
            lambda n, w: {"X": numbers(n, 1), "Label": whole(n, 1) - 2 + numbers(n, 1, low=0.1, seed=5)},
            {},
            ("Y",),
            widths=(1,),
            lod=("Y",),
        ),
    )
    yield "center_loss", _centers(False, "Loss", "SampleCenterDiff", others=("CentersOut",))
    yield (
        "fsp",
        Rows(lambda n, w: {**images(n, w), "Y": numbers(n, 3, w, w, seed=4)}, by=("X", "Y")),
    )
    yield (
        "cross_entropy",
        Rows(
            lambda n, w: {"X": probabilities(n, w), "Label": whole(n, 1, below=w)},
            {},
            ("Y",),
            lod=("Y",),
            ordinary=("X",),
        ),
    )
    yield (
        "cross_entropy2",
        Rows(
            lambda n, w: {"X": probabilities(n, w), "Label": whole(n, 1, below=w)},
            {},
            ("Y", "MatchX"),
            others=("XShape",),
            lod=("Y",),
            ordinary=("X",),
        ),
    )
    yield (
        "cross_entropy",
        Rows(
            lambda n, w: {"X": probabilities(n, w), "Label": probabilities(n, w, seed=4)},
            {"soft_label": True},
            ("Y",),
            lod=("Y",),
            ordinary=("X",),
        ),
    )
    for attrs in ({}, {"soft_label": True}):
        yield (
            "softmax_with_cross_entropy",
            Rows(
                lambda n, w, soft=bool(attrs): {
                    "Logits": numbers(n, w),
                    "Label": probabilities(n, w, seed=4) if soft else whole(n, 1, below=w),
                },
                attrs,
                ("Softmax", "Loss"),
                by=("Logits",),
                lod=("Softmax", "Loss"),
            ),
        )
    yield (
        "sigmoid_cross_entropy_with_logits",
        Rows(lambda n, w: {"X": numbers(n, w), "Label": bits(n, w).astype(float)}),
    )
    yield (
        "hierarchical_sigmoid",
        Rows(
            lambda n, w: {"X": numbers(n, w), "W": numbers(5, w, seed=4), "Label": whole(n, 1, below=6)},
            {"num_classes": 6},
            ("Out", "PreOut"),
            known=("W",),
        ),
    )

    # normalisation
    yield (
        "layer_norm",
        Rows(
            lambda n, w: {"X": numbers(n, w), "Scale": numbers(w, seed=4), "Bias": numbers(w, seed=5)},
            {"epsilon": 1e-2},
            ("Y", "Mean", "Variance"),
            known=("Scale", "Bias"),
            lod=("Y",),
        ),
    )
    yield (
        "group_norm",
        Rows(images, {"groups": 2, "epsilon": 1e-2}, ("Y", "Mean", "Variance"), widths=(3, 1), many=3000, lod=("Y",)),
    )
    yield (
        "instance_norm",
        Rows(
            lambda n, w: {"X": numbers(n, 2, w, w), "Scale": numbers(2, seed=4), "Bias": numbers(2, seed=5)},
            {"epsilon": 1e-2},
            ("Y",),
            others=("SavedMean", "SavedVariance"),
            widths=(3, 2),
            known=("Scale", "Bias"),
            many=3000,
            lod=("Y",),
        ),
    )
    yield (
        "affine_channel",
        Rows(
            lambda n, w: {"X": numbers(n, 2, w), "Scale": numbers(2, seed=4), "Bias": numbers(2, seed=5)},
            {"data_layout": "NCHW"},
            known=("Scale", "Bias"),
        ),
    )
    yield (
        "batch_norm",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "Scale": numbers(w, seed=4),
                "Bias": numbers(w, seed=5),
                "Mean": numbers(w, seed=6),
                "Variance": numbers(w, seed=7),
            },
            {"use_global_stats": True},
            ("Y",),
            others=("MeanOut", "VarianceOut", "SavedMean", "SavedVariance"),
            known=("Scale", "Bias", "Mean", "Variance"),
            lod=("Y",),
        ),
    )
    yield (
        "data_norm",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "BatchSize": np.full(w, 9.0),
                "BatchSum": numbers(w, seed=4),
                "BatchSquareSum": numbers(w, seed=5),
            },
            {},
            ("Y",),
            others=("Means", "Scales"),
            known=("BatchSize", "BatchSum", "BatchSquareSum"),
            lod=("Y",),
        ),
    )
    yield "lrn", Rows(images, {"n": 3}, ("Out", "MidOut"), widths=(3, 1), many=1000)

    # images
    yield "maxout", Rows(images, {"groups": 2}, widths=(3, 1), many=3000, lod=())
    yield "shuffle_channel", Rows(images, {"group": 2}, widths=(3, 1), many=3000, lod=())
    yield "pixel_shuffle", Rows(images, {"upscale_factor": 2}, widths=(3, 1), many=3000, lod=())
    yield "space_to_depth", Rows(images, {"blocksize": 2}, widths=(4, 2), many=3000)
    yield (
        "unfold",
        Rows(
            images,
            {"kernel_sizes": [2, 2], "strides": [1, 2], "paddings": [1, 0, 0, 1], "dilations": [1, 1]},
            ("Y",),
            widths=(3, 1),
            many=1000,
            lod=(),
        ),
    )
    for op_type in ("deformable_conv", "deformable_conv_v1"):
        masks = op_type == "deformable_conv"
        yield (
            op_type,
            Rows(
                lambda n, w, masks=masks: deformed(n, w, masks),
                {"groups": 2, "deformable_groups": 2, "paddings": [1, 1]},
                ("Output",),
                by=("Input", "Offset", "Filter", *(["Mask"] if masks else [])),
                widths=(3, 2),
                known=("Filter",),
                many=60,
                lod=(),
                ordinary=("Offset",),
            ),
        )
    yield (
        "deformable_psroi_pooling",
        Rows(
            lambda n, w: {
                "Input": numbers(n, 4, w, w),
                "ROIs": regions(n, w)["ROIs"],
                "Trans": numbers(n, 4, 2, 2, low=-0.9, seed=6),
            },
            {"output_dim": 4, "pooled_height": 2, "pooled_width": 2, "part_size": [2, 2], "spatial_scale": 0.7},
            ("Output",),
            ("Input", "Trans"),
            others=("TopCount",),
            lod=None,
            widths=(3, 1),
            many=1000,
            ordinary=("ROIs", "Trans"),
        ),
    )
    for op_type, attrs, by in (
        ("roi_pool", {}, ("X",)),
        ("roi_align", {"sampling_ratio": -1}, ("X",)),
        ("psroi_pool", {"output_channels": 1}, ("X",)),
        ("prroi_pool", {}, ("X", "ROIs")),
    ):
        outputs = ("Out", "Argmax") if op_type == "roi_pool" else ("Out",)
        attrs = {**attrs, "pooled_height": 2, "pooled_width": 2, "spatial_scale": 0.7}
        yield (
            op_type,
            Rows(regions, attrs, outputs, by, lod=None, widths=(3, 1), many=1000, ordinary=("ROIs",)),
        )
    yield (
        "box_decoder_and_assign",
        Rows(
            lambda n, w: {
                "PriorBox": numbers(n, 4),
                "PriorBoxVar": numbers(4, seed=4),
                "TargetBox": numbers(n, 4 * w, seed=5),
                "BoxScore": numbers(n, w, seed=6),
            },
            {"box_clip": 4.0},
            ("DecodeBox", "OutputAssignBox"),
            by=(),
            lod=("OutputAssignBox",),
            widths=(4, 1),
            known=("PriorBoxVar",),
        ),
    )
    yield (
        "roi_perspective_transform",
        Rows(
            lambda n, w: {
                "X": numbers(n, 4, w, w),
                "ROIs": (np.tile([0.1, 0.2, 2.3, -0.4, 2.7, 1.9, -0.3, 2.2], (n, 1)), [[1] * n]),
            },
            {"transformed_height": 3, "transformed_width": 4},
            ("Out", "Mask"),
            others=("TransformMatrix",),
            lod=None,
            widths=(3, 1),
            many=1000,
            ordinary=("ROIs",),
        ),
    )
    yield (
        "affine_grid",
        Rows(
            lambda n, w: {"Theta": numbers(n, 2, 3)},
            {"output_shape": [1, 1, 3, 2]},
            ("Output",),
            ("Theta",),
            lod=("Output",),
            widths=(1,),
        ),
    )
    yield (
        "grid_sampler",
        Rows(
            lambda n, w: {**images(n, w), "Grid": numbers(n, 3, 2, 2, low=-1.3, high=1.3, seed=4)},
            {},
            ("Output",),
            ("X", "Grid"),
            lod=("Output",),
            widths=(3, 1),
            many=1000,
            ordinary=("Grid",),
        ),
    )
    yield "temporal_shift", Rows(images, {"seg_num": 1, "shift_ratio": 0.3}, widths=(3, 1), many=3000)
    yield "pad2d", Rows(images, {"paddings": [1, 0, 0, 2]}, widths=(3, 1), many=3000)
    for kind in ("max", "avg"):
        window = {"ksize": [2, 2], "paddings": [1, 1], "pooling_type": kind}
        yield "pool2d", Rows(images, window, widths=(3, 1), many=3000)
        window = {"ksize": [2, 2, 2], "paddings": [1, 1, 1], "pooling_type": kind}
        yield "pool3d", Rows(volumes, window, widths=(3, 1), many=1000)
        yield "spp", Rows(images, {"pyramid_height": 1, "pooling_type": kind}, widths=(3, 1), many=1000, lod=())
    yield (
        "max_pool2d_with_index",
        Rows(images, {"ksize": [2, 2], "paddings": [1, 1]}, ("Out", "Mask"), widths=(3, 1), many=1000),
    )
    yield (
        "max_pool3d_with_index",
        Rows(volumes, {"ksize": [2, 2, 2], "paddings": [1, 1, 1]}, ("Out", "Mask"), widths=(3, 1), many=1000),
    )
    yield (
        "unpool",
        Rows(
            lambda n, w: {
                "X": numbers(n, 2, w, w),
                "Indices": np.tile(np.arange(w * w).reshape(w, w), (n, 2, 1, 1)).astype(np.int32),
            },
            {"ksize": [2, 2], "strides": [2, 2]},
            widths=(3, 1),
            many=1000,
            lod=(),
        ),
    )
    for op_type in ("bilinear_interp", "nearest_interp"):
        yield op_type, Rows(images, {"out_h": 5, "out_w": 2}, widths=(3, 1), many=1000)
    size = {"out_d": 2, "out_h": 5, "out_w": 3}
    yield "trilinear_interp", Rows(volumes, size, widths=(3, 1), many=1000)
    for use_cvm in (False, True):
        yield (
            "cvm",
            Rows(
                lambda n, w: {"X": numbers(n, w + 2), "CVM": numbers(n, 2, seed=4)},
                {"use_cvm": use_cvm},
                ("Y",),
                lod=("Y",),
                by=(),
            ),
        )
    yield "similarity_focus", Rows(images, {"axis": 1, "indexes": [0, 2]}, widths=(3, 1), many=1000, by=())
    for op_type, maps, spatial, attrs in (
        ("conv2d", 6, 2, {"groups": 2}),
        ("depthwise_conv2d", 4, 2, {"groups": 4}),
        ("conv3d", 6, 3, {"groups": 2}),
        ("conv2d_transpose", 6, 2, {"groups": 2}),
        ("depthwise_conv2d_transpose", 4, 2, {"groups": 4}),
        ("conv3d_transpose", 6, 3, {"groups": 2}),
    ):
        attrs = {**attrs, "paddings": [1] * spatial, "strides": [1] * (spatial - 1) + [2]}
        groups = attrs["groups"]
        filters = (4, maps // groups) if "transpose" in op_type else (maps, 4 // groups)
        yield (
            op_type,
            Rows(
                lambda n, w, filters=filters, spatial=spatial: {
                    "Input": numbers(n, 4, *[w] * spatial),
                    "Filter": numbers(*filters, *[3] * spatial, seed=4),
                },
                attrs,
                ("Output",),
                by=("Input",),
                widths=(4, 2),
                known=("Filter",),
                many=600,
                lod=("Output",),
            ),
        )

    # boxes
    yield "iou_similarity", Rows(lambda n, w: {"X": boxes(n), "Y": boxes(w, seed=4)}, by=())
    yield (
        "box_coder",
        Rows(
            lambda n, w: {"TargetBox": boxes(n), "PriorBox": boxes(w, seed=4)},
            {"variance": [0.5, 0.5, 0.25, 0.25]},
            ("OutputBox",),
            by=(),
            lod=("OutputBox",),
            ordinary=("TargetBox", "PriorBox"),
        ),
    )
    yield (
        "box_coder",
        Rows(
            lambda n, w: {"TargetBox": numbers(n, w, 4), "PriorBox": boxes(w, seed=4)},
            {"code_type": "decode_center_size"},
            ("OutputBox",),
            by=(),
            lod=("OutputBox",),
            ordinary=("PriorBox",),
        ),
    )
    yield (
        "box_clip",
        Rows(
            lambda n, w: {
                "Input": (5 * boxes(sum(lengths_of(n)[0]), w), lengths_of(n)),
                "ImInfo": numbers(n, 3, low=1, high=5, seed=4),
            },
            {},
            ("Output",),
            by=(),
            lod=None,
            ordinary=("ImInfo",),
        ),
    )
    yolo = {"anchors": [10, 13, 16, 30, 33, 23], "class_num": 2}
    yield (
        "yolo_box",
        Rows(
            lambda n, w: {"X": numbers(n, 21, w, w), "ImgSize": whole(n, 2, below=50, dtype=np.int32) + 9},
            {**yolo, "conf_thresh": 0.7},
            ("Boxes", "Scores"),
            by=(),
            lod=(),
            widths=(3, 1),
            many=600,
        ),
    )
    yield (
        "yolov3_loss",
        Rows(
            lambda n, w: {
                "X": numbers(n, 14, w, w),
                "GTBox": numbers(n, 3, 4, low=0.1, high=0.9, seed=4),
                "GTLabel": whole(n, 3, below=2, dtype=np.int32),
                "GTScore": numbers(n, 3, seed=5),
            },
            {**yolo, "anchor_mask": [0, 2], "downsample_ratio": 16, "ignore_thresh": 0.3},
            ("Loss", "ObjectnessMask", "GTMatchMask"),
            lod=(),
            widths=(3, 1),
            many=600,
            ordinary=("GTBox", "GTScore"),
            fractions=("GTBox",),
        ),
    )
    yield (
        "sigmoid_focal_loss",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "Label": whole(n, 1, below=w + 2, dtype=np.int32) - 1,
                "FgNum": np.array([3], np.int32),
            },
        ),
    )
    yield (
        "polygon_box_transform",
        Rows(lambda n, w: {"Input": numbers(n, 4, w, w)}, {}, ("Output",), by=(), lod=(), widths=(3, 1)),
    )

    yield "im2sequence", Rows(images, {"kernels": [2, 2], "paddings": [1, 1, 0, 0]}, widths=(3, 1), many=1000, lod=None)

    # sequences
    yield "sequence_softmax", Rows(lambda n, w: {"X": sequences(n, 1)}, widths=(1,), lod=None)
    yield "sequence_reverse", Rows(lambda n, w: {"X": sequences(n, w)}, {}, ("Y",), lod=None)
    for kind in ("AVERAGE", "SUM", "SQRT", "MAX", "FIRST", "LAST"):
        others = ("MaxIndex",) if kind == "MAX" else ()
        yield "sequence_pool", Rows(lambda n, w: {"X": sequences(n, w)}, {"pooltype": kind}, ("Out", *others), lod=None)
    yield (
        "sequence_conv",
        Rows(
            lambda n, w: {"X": sequences(n, w), "Filter": numbers(3 * w, 2, seed=4)},
            {"contextStart": -1},
            known=("Filter",),
            lod=None,
        ),
    )
    yield (
        "row_conv",
        Rows(lambda n, w: {"X": sequences(n, w), "Filter": numbers(2, w, seed=4)}, known=("Filter",), lod=None),
    )
    yield "add_position_encoding", Rows(lambda n, w: {"X": sequences(n, 2 * w)}, {"alpha": 0.5, "beta": 2.0}, lod=None)
    yield "sequence_reshape", Rows(lambda n, w: {"X": sequences(n, 2 * w)}, {"new_dim": 2}, lod=None)
    yield "sequence_expand", Rows(lambda n, w: {"X": numbers(n, w), "Y": sequences(n, 1)}, {"ref_level": 0}, lod=None)
    yield "sequence_expand_as", Rows(lambda n, w: {"X": numbers(n, w), "Y": sequences(n, 1)}, lod=None)
    yield "sequence_concat", Rows(lambda n, w: {"X": [sequences(n, w), sequences(n, w, seed=4)]}, lod=None)
    yield (
        "sequence_pad",
        Rows(
            lambda n, w: {"X": sequences(n, w), "PadValue": np.array([0.5])},
            {"padded_length": 4},
            ("Out", "Length"),
            lod=None,
            known=("PadValue",),
        ),
    )
    yield (
        "sequence_unpad",
        Rows(lambda n, w: {"X": numbers(n, 3, w), "Length": np.array(lengths_of(n)[0], np.int64)}, lod=None),
    )
    yield (
        "sequence_slice",
        Rows(
            lambda n, w: {
                "X": sequences(n, w),
                "Offset": np.zeros((n, 1), np.int64),
                "Length": np.minimum(lengths_of(n), 1).reshape(n, 1),
            },
            lod=None,
        ),
    )
    yield (
        "sequence_scatter",
        Rows(
            lambda n, w: {
                "X": numbers(n, 4),
                "Ids": (whole(sum(lengths_of(n)[0]), 1), lengths_of(n)),
                "Updates": sequences(n, 1, seed=4),
            },
            by=("X", "Updates"),
            lod=None,
            widths=(1,),
        ),
    )
    yield (
        "sequence_enumerate",
        Rows(
            lambda n, w: {"X": (whole(sum(lengths_of(n)[0]), 1), lengths_of(n))},
            {"win_size": 2},
            by=(),
            widths=(1,),
            lod=None,
        ),
    )
    yield (
        "sequence_erase",
        Rows(
            lambda n, w: {"X": (whole(sum(lengths_of(n)[0]), 1), lengths_of(n))},
            {"tokens": [1, 2]},
            by=(),
            lod=None,
            widths=(1,),
        ),
    )
    yield (
        "lstm",
        Rows(
            lambda n, w: {
                "Input": sequences(n, 4 * w),
                "Weight": numbers(w, 4 * w, seed=4),
                "Bias": numbers(1, 7 * w, seed=5),
            },
            {},
            ("Hidden", "Cell"),
            by=("Input",),
            others=("BatchGate", "BatchCellPreAct"),
            ordinary=("Weight", "Bias"),  # infinity times what float32 takes for 0 is NaN
            lod=None,
            known=("Weight", "Bias"),
            many=3000,
        ),
    )
    yield (
        "lstmp",
        Rows(
            lambda n, w: {
                "Input": sequences(n, 4 * w),
                "Weight": numbers(2, 4 * w, seed=4),
                "Bias": numbers(1, 7 * w, seed=5),
                "ProjWeight": numbers(w, 2, seed=6),
            },
            {},
            ("Projection", "Cell"),
            ordinary=("Weight", "Bias"),
            by=("Input",),
            others=("BatchGate", "BatchCellPreAct", "BatchHidden"),
            lod=None,
            known=("Weight", "ProjWeight", "Bias"),
            many=3000,
        ),
    )
    yield (
        "gru",
        Rows(
            lambda n, w: {"Input": sequences(n, 3 * w), "Weight": numbers(w, 3 * w, seed=4)},
            {},
            ("Hidden",),
            by=("Input",),
            others=("BatchGate", "BatchResetHiddenPrev", "BatchHidden"),
            lod=None,
            known=("Weight",),
            many=3000,
        ),
    )
    yield (
        "fusion_lstm",
        Rows(
            lambda n, w: {
                "X": sequences(n, w),
                "WeightX": numbers(w, 4 * w, seed=6),
                "WeightH": numbers(w, 4 * w, seed=4),
                "Bias": numbers(1, 7 * w, seed=5),
            },
            {},
            ("Hidden", "Cell"),
            by=(),
            ordinary=("WeightX", "WeightH", "Bias"),
            lod=None,
            known=("WeightX", "WeightH", "Bias"),
            many=3000,
        ),
    )
    yield (
        "fused_embedding_fc_lstm",
        Rows(
            lambda n, w: {
                "Ids": (whole(sum(lengths_of(n)[0]), 1, below=5), lengths_of(n)),
                "Embeddings": numbers(5, 4 * w, seed=6),
                "WeightH": numbers(w, 4 * w, seed=4),
                "Bias": numbers(1, 7 * w, seed=5),
            },
            {},
            ("Hidden", "Cell"),
            by=(),
            ordinary=("WeightH", "Bias"),
            lod=None,
            known=("Embeddings", "WeightH", "Bias"),
            many=3000,
        ),
    )
    yield (
        "fusion_gru",
        Rows(
            lambda n, w: {
                "X": sequences(n, w),
                "WeightX": numbers(w, 3 * w, seed=5),
                "WeightH": numbers(w, 3 * w, seed=4),
            },
            {},
            ("Hidden",),
            by=(),
            lod=None,
            known=("WeightX", "WeightH"),
            many=3000,
        ),
    )
    yield (
        "attention_lstm",
        Rows(
            lambda n, w: {
                "X": sequences(n, w),
                "C0": numbers(n, w, seed=3),
                "AttentionWeight": numbers(2 * w, 1, seed=4),
                "LSTMWeight": numbers(2 * w, 4 * w, seed=5),
                "LSTMBias": numbers(1, 4 * w, seed=6),
            },
            {},
            ("Hidden", "Cell"),
            by=(),
            lod=None,
            known=("C0", "AttentionWeight", "LSTMWeight", "LSTMBias"),
            many=3000,
        ),
    )
    yield (
        "fusion_seqconv_eltadd_relu",
        Rows(
            lambda n, w: {
                "X": sequences(n, w),
                "Filter": numbers(3 * w, 2, seed=4),
                "Bias": numbers(1, 2, low=-0.9, high=-0.5, seed=5),
            },
            {"contextLength": 3, "contextStart": -1},
            by=(),
            lod=None,
            known=("Filter", "Bias"),
        ),
    )
    yield (
        "fusion_seqexpand_concat_fc",
        Rows(
            lambda n, w: {
                "X": [sequences(n, w), (numbers(n, 2, seed=3), [[1] * n])],
                "FCWeight": numbers(w + 2, 3, seed=4),
            },
            {"fc_activation": "tanh"},
            by=(),
            lod=None,
            known=("FCWeight",),
        ),
    )
    yield (
        "linear_chain_crf",
        Rows(
            lambda n, w: {
                "Emission": sequences(n, w),
                "Transition": numbers(w + 2, w, seed=4),
                "Label": (whole(sum(lengths_of(n)[0]), 1, below=w), lengths_of(n)),
            },
            {},
            ("LogLikelihood",),
            by=("Emission",),
            others=("Alpha", "EmissionExps", "TransitionExps"),
            lod=None,
            known=("Transition",),
            many=1000,
        ),
    )
    yield (
        "crf_decoding",
        Rows(
            lambda n, w: {"Emission": sequences(n, w), "Transition": numbers(w + 2, w, seed=4)},
            {},
            ("ViterbiPath",),
            by=(),
            known=("Transition",),
            lod=None,
            many=1000,
        ),
    )
    yield (
        "warpctc",
        Rows(
            lambda n, w: {
                "Logits": sequences(n, w),
                "Label": (np.ones((n, 1), np.int32), [[1] * n]),
            },
            {},
            ("Loss",),
            by=("Logits",),
            others=("WarpCTCGrad",),
            lod=None,
            widths=(4, 2),
            many=1000,
        ),
    )

    # optimizers
    for op_type, state, attrs in (
        ("sgd", {}, {}),
        ("momentum", {"Velocity": "VelocityOut"}, {"mu": 0.9, "use_nesterov": True}),
        ("adagrad", {"Moment": "MomentOut"}, {}),
        ("decayed_adagrad", {"Moment": "MomentOut"}, {"decay": 0.7}),
        (
            "rmsprop",
            {"Moment": "MomentOut", "MeanSquare": "MeanSquareOut", "MeanGrad": "MeanGradOut"},
            {"centered": True},
        ),
        ("adadelta", {"AvgSquaredGrad": "AvgSquaredGradOut", "AvgSquaredUpdate": "AvgSquaredUpdateOut"}, {}),
        ("adamax", {"Moment": "MomentOut", "InfNorm": "InfNormOut"}, {}),
        (
            "ftrl",
            {"SquaredAccumulator": "SquaredAccumOut", "LinearAccumulator": "LinearAccumOut"},
            {"l1": 0.1, "l2": 0.2},
        ),
        ("proximal_gd", {}, {"l1": 0.1, "l2": 0.2}),
        ("proximal_adagrad", {"Moment": "MomentOut"}, {"l1": 0.1, "l2": 0.2}),
        ("adam", {"Moment1": "Moment1Out", "Moment2": "Moment2Out"}, BETAS),
        ("adamw", {"Moment1": "Moment1Out", "Moment2": "Moment2Out"}, {"coeff": 0.1, **BETAS}),
    ):
        powers = {"adam": ("Beta1Pow", "Beta2Pow"), "adamw": ("Beta1Pow", "Beta2Pow"), "adamax": ("Beta1Pow",)}
        moves_on = tuple(f"{slot}Out" for slot in powers.get(op_type, ()) if op_type != "adamax")
        single = () if op_type == "adadelta" else ("LearningRate", *powers.get(op_type, ()))
        slots = ("Param", "Grad", *state)
        yield (
            op_type,
            Rows(
                lambda n, w, slots=slots, single=single: {
                    **{slot: numbers(n, w, seed=i) for i, slot in enumerate(slots)},
                    **{slot: np.array([0.5]) for slot in single},
                },
                attrs,
                ("ParamOut", *state.values()),
                by=(),
                others=moves_on,
                known=single,
                lod=(),
            ),
        )


def _centers(moves: bool, *outputs: str, others: tuple[str, ...] = ()) -> Rows:
    return Rows(
        lambda n, w: {
            "X": numbers(n, w),
            "Label": whole(n, 1),
            "Centers": numbers(4, w, seed=4),
            "CenterUpdateRate": np.array([0.5]),
        },
        {"cluster_num": 4, "need_update": moves},
        outputs,
        known=("Centers", "CenterUpdateRate"),
        lod=("Loss",),
        others=others,
    )


def _others() -> Iterator[tuple[str, Rows]]:
    """Operators whose results depend on all rows at once."""
    yield "mean", Rows(x, lod=())
    yield "l1_norm", Rows(x, lod=())
    yield "squared_l2_norm", Rows(x, lod=())
    yield "clip_by_norm", Rows(x, {"max_norm": 0.5}, by=())
    yield "kldiv_loss", Rows(lambda n, w: {"X": numbers(n, w), "Target": numbers(n, w, seed=4)}, {}, ("Loss",), lod=())
    for op_type in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"):
        yield op_type, Rows(x, {"dim": [0]}, lod=())
        yield op_type, Rows(x, {"reduce_all": True}, lod=())
    for op_type in ("reduce_all", "reduce_any"):
        yield op_type, Rows(lambda n, w: {"X": bits(n, w)}, {"reduce_all": True}, by=(), lod=())
    yield "cumsum", Rows(x, {"axis": 0, "reverse": True})
    for op_type, outputs in (("softmax", ("Out",)), ("log_softmax", ("Out",)), ("norm", ("Out", "Norm"))):
        lod = () if op_type == "norm" else ("Out",)
        yield op_type, Rows(x, {"axis": 0}, outputs, widths=(4, 300), many=2000, lod=lod)
    for op_type in ("isfinite", "isinf", "isnan", "is_empty"):
        yield op_type, Rows(x, by=(), lod=())
    yield "shape", Rows(lambda n, w: {"Input": numbers(n, w)}, by=(), lod=())
    yield (
        "scatter",
        Rows(
            lambda n, w: {"X": numbers(n, w), "Ids": whole(2, below=min(n, 2)), "Updates": numbers(2, w, seed=4)},
            {"overwrite": False},
            by=("X", "Updates"),
            lod=(),
        ),
    )
    yield (
        "scatter_nd_add",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "Index": whole(3, 1, below=min(n, 2)),
                "Updates": numbers(3, w, seed=4),
            },
            by=("X", "Updates"),
            known=("Index",),
            lod=(),
        ),
    )
    yield "size", Rows(lambda n, w: {"Input": numbers(n, w)}, by=(), lod=())
    yield (
        "lamb",
        Rows(
            lambda n, w: {
                **{slot: numbers(n, w, seed=i) for i, slot in enumerate(("Param", "Grad", "Moment1", "Moment2"))},
                **{slot: np.array([0.5]) for slot in ("LearningRate", "Beta1Pow", "Beta2Pow")},
            },
            {"weight_decay": 0.1, **BETAS},
            ("ParamOut", "Moment1Out", "Moment2Out"),
            by=(),
            others=("Beta1PowOut", "Beta2PowOut"),
            known=("LearningRate", "Beta1Pow", "Beta2Pow"),
            lod=(),
        ),
    )
    yield (
        "dpsgd",
        Rows(
            lambda n, w: {"Param": numbers(n, w), "Grad": numbers(n, w, seed=4), "LearningRate": np.array([0.5])},
            {"clip": 0.5, "sigma": 0.0},
            ("ParamOut",),
            by=(),
            known=("LearningRate",),
            lod=(),
        ),
    )
    yield (
        "filter_by_instag",
        Rows(
            lambda n, w: {
                "Ins": sequences(n, w),
                "Ins_tag": (whole(n, 1, below=3), [[1] * n]),
                "Filter_tag": np.array([0, 2]),
            },
            {"is_lod": True},
            ("Out", "LossWeight", "IndexMap"),
            by=("Ins",),
            known=("Filter_tag",),
            lod=None,
        ),
    )
    yield "center_loss", _centers(True, "Loss", "SampleCenterDiff", "CentersOut")
    for dim, iterations in ((0, 0), (1, 40)):  # so that the vectors are constants, or nearly the right ones
        yield (
            "spectral_norm",
            Rows(
                lambda n, w, dim=dim: {
                    "Weight": numbers(n, w),
                    **dict(zip("UV" if dim == 0 else "VU", (numbers(n, seed=4), numbers(w, seed=5)))),
                },
                {"dim": dim, "power_iters": iterations},
                by=("Weight",),
            ),
        )
    averages = {"InAccum": np.array([0.5]), "InState": np.array([0.25])}
    for op_type, scale in (
        ("fake_quantize_moving_average_abs_max", {"InScale": np.array([1.0])}),
        ("fake_quantize_dequantize_moving_average_abs_max", {"InScale": np.array([1.0])}),
        ("moving_average_abs_max_scale", {}),
    ):
        yield (
            op_type,
            Rows(
                lambda n, w, scale=scale: {**x(n, w), **scale, **averages},
                {},
                ("Out", "OutScale", "OutAccum", "OutState"),
                by=(),
                known=(*scale, *averages),
                lod=("Out",),
            ),
        )
    yield "increment", Rows(lambda n, w: {"X": numbers(1)}, {"step": 2.0}, by=(), widths=(1,))
    yield "lod_reset", Rows(lambda n, w: {"X": numbers(n, w), "Y": (numbers(n, 1), [[n]])}, lod=())
    yield (
        "batch_norm",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "Scale": numbers(w, seed=4),
                "Bias": numbers(w, seed=5),
                "Mean": numbers(w, seed=6),
                "Variance": numbers(w, seed=7),
            },
            {},
            ("Y", "MeanOut", "VarianceOut", "SavedMean", "SavedVariance"),
            ("X", "Scale", "Bias"),
            known=("Scale", "Bias", "Mean", "Variance"),
            lod=("Y",),
        ),
    )
    yield "dropout", Rows(x, {"dropout_prob": 0.3, "seed": 5}, ("Out", "Mask"))
    yield (
        "lars_momentum",
        Rows(
            lambda n, w: {
                "Param": numbers(n, w),
                "Grad": numbers(n, w, seed=4),
                "Velocity": numbers(n, w, seed=5),
                "LearningRate": np.array([0.5]),
            },
            {"mu": 0.9},
            ("ParamOut", "VelocityOut"),
            by=(),
            known=("LearningRate",),
            lod=(),
        ),
    )
    yield (
        "accuracy",
        Rows(
            lambda n, w: {"Out": numbers(n, 2), "Indices": whole(n, 2), "Label": whole(n, 1, seed=4)},
            {},
            ("Accuracy", "Correct", "Total"),
            by=(),
            lod=(),
        ),
    )
    yield (
        "split_lod_tensor",
        Rows(lambda n, w: {"X": numbers(n, w), "Mask": bits(n, 1)}, {}, ("OutTrue", "OutFalse"), lod=()),
    )
    yield (
        "merge_lod_tensor",
        Rows(
            lambda n, w: {
                "X": numbers(n, w),
                "Mask": bits(n, 1),
                "InTrue": numbers(int(bits(n, 1).sum()), w, seed=4),
                "InFalse": numbers(n - int(bits(n, 1).sum()), w, seed=5),
            },
            by=("InTrue", "InFalse"),
            lod=(),
        ),
    )


CASES = [*_pairs(), *((op_type, replace(rows, by_row=False)) for op_type, rows in _others())]
