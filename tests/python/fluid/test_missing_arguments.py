"""What layers say of arguments that are not there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers


def required(layer: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(layer).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


LAYERS = {
    name: getattr(layers, name)
    for name in layers.__all__
    if inspect.isfunction(getattr(layers, name)) and required(getattr(layers, name))
}


@pytest.mark.parametrize("value", [None, 3.5, "a", [], {}, [None], object()], ids=lambda value: type(value).__name__)
def test_what_is_no_argument_is_an_error_of_the_layer(value: Any) -> None:
    """Not one of Python's, of an attribute or an iteration within the layer."""
    assert len(LAYERS) > 300
    bare = {}
    for name, layer in LAYERS.items():
        with fluid.program_guard(fluid.Program(), fluid.Program()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                layer(**dict.fromkeys(required(layer), value))
            except errors.HeadraceError:
                continue
            except Exception as error:
                bare[name] = repr(error)
    assert bare == {}


#: Arguments that let a layer look at its others.
USUAL = {
    "axes": [0],
    "axis": 1,
    "depth": 4,
    "dropout_prob": 0.5,
    "dtype": "float32",
    "ends": [1],
    "filter_size": 3,
    "groups": 2,
    "k": 1,
    "num_classes": 4,
    "num_filters": 4,
    "perm": [0, 1],
    "shape": [4],
    "size": 4,
    "starts": [0],
}


@pytest.mark.parametrize("value", [None, 3.5, "a", object()], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("shape", [[4], [4, 8, 8]])
def test_one_argument_that_is_none_is_an_error_of_the_layer(shape: list[int], value: Any) -> None:
    bare = {}
    for name, layer in LAYERS.items():
        for argument in inspect.signature(layer).parameters:
            with fluid.program_guard(fluid.Program(), fluid.Program()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                x = layers.data("x", shape)
                given = {each: USUAL.get(each, x) for each in required(layer)}
                try:
                    layer(**{**given, argument: value})
                except errors.HeadraceError:
                    continue
                except Exception as error:
                    bare[name, argument] = repr(error)
    assert bare == {}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layers.batch_norm(None), "layers.batch_norm: input has to be a Variable, got NoneType"),
        (lambda x: layers.transpose(x, None), "layers.transpose: perm has to be a list or tuple of integers, got None"),
        (lambda x: layers.split(x, None), "layers.split: num_or_sections has to be an integer or a list"),
        (lambda x: layers.pad(x, None), "layers.pad: paddings has to be a list or tuple of integers, got None"),
        (lambda x: layers.slice(x, None, [0], [1]), "layers.slice: axes has to be a list or tuple of integers"),
        (lambda x: layers.clip(x, None, 1.0), "layers.clip: min has to be a number, got None"),
        (lambda x: layers.dropout(x, None), "layers.dropout: dropout_prob has to be a number, got None"),
        (lambda x: layers.sequence_pool(x, None), "layers.sequence_pool: pool_type has to be a string, got None"),
        (lambda x: layers.create_global_var(3, 0.0, "float32"), "layers.create_global_var: shape has to be a list"),
        (lambda x: x.block.create_parameter(None, "float32"), "the shape of parameter '_param_0' has to be a list"),
        (lambda x: fluid.DataFeeder(None, fluid.CPUPlace()), "feed_list has to be a list or tuple, got None"),
        (
            lambda x: fluid.clip.GradientClipByNorm(None),
            "clip.GradientClipByNorm: clip_norm has to be a number, got None",
        ),
        (
            lambda x: fluid.nets.scaled_dot_product_attention(x, x, None),
            "nets.scaled_dot_product_attention: values has",
        ),
        (
            lambda x: layers.random_data_generator(None, 1.0, [[1]]),
            "layers.random_data_generator: low has to be a number",
        ),
        (lambda x: layers.stack(None), "layers.stack: x has to be a Variable or a list of Variables, got NoneType"),
        (lambda x: layers.fc(x, 2, 1.5), "layers.fc: num_flatten_dims has to be an integer, got 1.5"),
        (
            lambda x: layers.layer_norm(x, begin_norm_axis=1.5),
            "layers.layer_norm: begin_norm_axis has to be an integer",
        ),
        (lambda x: layers.dynamic_lstm(x, None), "layers.dynamic_lstm: size has to be a number, got None"),
        (lambda x: layers.py_reader(4, None, None), "layers.py_reader: shapes has to be a list or tuple, got None"),
        (lambda x: layers.py_func(None, x, x), "layers.py_func: func has to be a function, got None"),
    ],
)
def test_the_layer_and_the_argument_are_named(call: Callable[[fluid.Variable], Any], message: str) -> None:
    with pytest.raises(errors.TypeMismatch) as raised:
        call(layers.data("x", [4, 4]))
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("layer", [layers.batch_norm, layers.instance_norm, lambda x: layers.group_norm(x, 2)])
def test_a_list_of_one_variable_stands_for_the_variable(layer: Callable[[Any], fluid.Variable]) -> None:
    x = layers.data("x", [4, 3, 3])
    assert layer([x]).shape == x.shape
