"""What layers, and the functions and classes around them, say of arguments that are not there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
import headrace.reader
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


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.ones((2, 4), "float32")}


def samples() -> Iterator[tuple[list[float]]]:
    return iter([([1.0] * 4,)] * 2)


def step_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a method of a StaticRNN within its step."""

    def call(**arguments: Any) -> None:
        with method.__self__.step():  # type: ignore[attr-defined]
            method(**arguments)

    return call


def others() -> dict[Callable[..., Any], dict[str, Any]]:
    """Functions and classes that are no layers, with arguments that they take. They write to the working directory."""
    x = layers.data("x", [4])
    out = layers.fc(x, 4)
    loss = layers.mean(out)
    pairs = fluid.backward.append_backward(loss)
    main, startup = fluid.default_main_program(), fluid.default_startup_program()
    block, feeder, exe = main.global_block(), fluid.DataFeeder([x]), fluid.Executor()
    exe.run(startup)
    fluid.io.save_persistables(exe, "vars")
    fluid.io.save_inference_model("model", ["x"], [out], exe)
    fluid.save(main, "saved/it")
    io, clip, contrib, reader = fluid.io, fluid.clip, fluid.contrib, headrace.reader
    batches = headrace.reader.batch(samples, 1)
    files = {"executor": exe, "dirname": "vars", "main_program": main, "filename": None}
    some = {**files, "vars": None, "predicate": None, "scope": None}
    model = {"dirname": "model", "executor": exe, "model_filename": None, "params_filename": None}
    written = {"filename": "a.recordio", "reader_creator": batches, "feeder": feeder, "feed_order": ["x"]}
    boxes = {"input": layers.data("boxes", [6], lod_level=1), "gt_label": layers.data("label", [1], lod_level=1)}
    state = contrib.StateCell({"x": None}, {"h": contrib.InitState(out)}, "h")
    starts = {
        "init_ids": layers.data("ids", [1], dtype="int64", lod_level=2),
        "init_scores": layers.data("scores", [1], lod_level=2),
    }
    learner = {"train_func": lambda: layers.mean(layers.fc(layers.data("x", [4]), 1)), "param_path": None}
    learner["optimizer_func"] = lambda: fluid.optimizer.SGD(0.1)
    trainer = contrib.trainer.Trainer(learner["train_func"], learner["optimizer_func"])
    trained = {"num_epochs": 1, "event_handler": lambda event: None, "reader": batches, "feed_order": ["x"]}
    read = {"reader": samples}
    return {
        io.save_vars: some,
        io.load_vars: some,
        io.save_params: files,
        io.load_params: files,
        io.save_persistables: files,
        io.load_persistables: files,
        io.save_inference_model: {**model, "feeded_var_names": ["x"], "target_vars": [out]},
        io.load_inference_model: model,
        io.is_parameter: {"var": out},
        io.is_persistable: {"var": out},
        io.get_parameter_value: {"para": pairs[0][0], "executor": exe},
        io.get_parameter_value_by_name: {"name": pairs[0][0].name, "executor": exe, "program": main},
        io.save: {"program": main, "model_path": "saved/it"},
        io.load: {"program": main, "model_path": "saved/it", "executor": exe, "var_list": None},
        io.load_program_state: {"model_path": "saved/it", "var_list": None},
        io.set_program_state: {"program": main, "state_dict": {}},
        fluid.optimizer.SGD(0.1).minimize: dict.fromkeys(("parameter_list", "no_grad_set", "grad_clip"), None)
        | {"loss": loss, "startup_program": startup},
        fluid.optimizer.SGD(0.1).backward: {"loss": loss, "parameter_list": None, "callbacks": None},
        fluid.optimizer.SGD(0.1).apply_gradients: {"params_grads": pairs},
        fluid.backward.append_backward: dict.fromkeys(("parameter_list", "no_grad_set", "callbacks"), None)
        | {"loss": loss},
        fluid.gradients: dict.fromkeys(("target_gradients", "no_grad_set"), None) | {"targets": loss, "inputs": out},
        clip.append_gradient_clip_ops: {"param_grads": pairs, "grad_clip": None},
        clip.set_gradient_clip: {"clip": clip.GradientClipByValue(1.0), "param_list": None, "program": main},
        clip.error_clip_callback: {"block": block, "context": None},
        clip.GradientClipByValue(1.0): {"params_grads": pairs},
        clip.GradientClipByGlobalNorm(1.0): {"params_grads": pairs},
        fluid.regularizer.append_regularization_ops: {"parameters_and_grads": pairs, "regularization": None},
        fluid.DataFeeder: {"feed_list": [x], "place": None, "program": None},
        feeder.feed: {"iterable": [([1.0] * 4,)]},
        feeder.feed_parallel: {"iterable": [[([1.0] * 4,)]], "num_places": 1},
        feeder.decorate_reader: {"reader": batches, "multi_devices": False},
        fluid.recordio_writer.convert_reader_to_recordio_file: {**written, "max_num_records": 9},
        fluid.recordio_writer.convert_reader_to_recordio_files: {**written, "batch_per_file": 1},
        fluid.metrics.DetectionMAP: {**boxes, "gt_box": layers.data("gt", [4], lod_level=1), "class_num": 3},
        fluid.profiler.stop_profiler: {"sorted_key": None, "profile_path": "profile"},
        fluid.nets.img_conv_group: {"input": layers.data("i", [3, 9, 9]), "conv_num_filter": [2], "pool_size": 2},
        fluid.nets.scaled_dot_product_attention: dict.fromkeys(("queries", "keys", "values"), layers.data("q", [5, 8]))
        | {"num_heads": 1},
        contrib.trainer.Trainer: learner,
        trainer.train: trained,
        trainer.test: {"reader": batches, "feed_order": ["x"]},
        trainer.save_params: {"param_path": "trained"},
        trainer.save_inference_model: {"param_path": "m", "feeded_var_names": ["x"], "target_var_indexes": [0]},
        contrib.inferencer.Inferencer: {
            "infer_func": lambda: layers.fc(layers.data("x", [4]), 1),
            "param_path": "trained",
        },
        contrib.StateCell: {"inputs": {"x": None}, "states": {"h": contrib.InitState(out)}, "out_state": "h"},
        contrib.TrainingDecoder: {"state_cell": state},
        contrib.BeamSearchDecoder: {"state_cell": state, **starts, "target_dict_dim": 9, "word_dim": 4},
        contrib.layers.basic_gru: {"input": layers.data("g", [5, 8]), "init_hidden": None, "hidden_size": 4}
        | dict.fromkeys(("gate_activation", "activation"), None),
        contrib.layers.fused_elemwise_activation: {"x": out, "y": out, "functor_list": ["elementwise_add", "relu"]},
        fluid.create_lod_tensor: {"data": [[1, 2], [3]], "recursive_seq_lens": [[2, 1]], "place": None},
        fluid.create_random_int_lodtensor: {"recursive_seq_lens": [[2, 1]], "base_shape": [1], "place": None}
        | {"low": 0, "high": 9},
        exe.run: {"program": main, "feed": feeds(), "fetch_list": [loss], "scope": None},
        block.append_op: {"type": "relu", "inputs": {"X": out}, "outputs": {"Out": block.create_var()}, "attrs": {}},
        block.create_var: {"name": "new", "shape": [2], "dtype": "float32", "lod_level": 0},
        block.var: {"name": "x"},
        main.block: {"index": 0},
        fluid.ParamAttr: dict.fromkeys(("name", "initializer", "regularizer", "gradient_clip"), None),
        fluid.WeightNormParamAttr: {"dim": None},
        fluid.unique_name.generate: {"key": "a"},
        fluid.debugger.draw_block_graphviz: {"block": block, "highlights": None, "path": "graph.dot"},
        reader.batch: {**read, "batch_size": 2},
        reader.buffered: {**read, "size": 2},
        reader.cache: read,
        reader.firstn: {**read, "n": 2},
        reader.shuffle: {**read, "buf_size": 2},
        reader.xmap_readers: {**read, "mapper": list, "process_num": 1, "buffer_size": 1},
        reader.multiprocess_reader: {"readers": [samples]},
        reader.map_readers: {"func": list},
        reader.creator.text_file: {"path": "lines.txt"},
        reader.creator.recordio: {"paths": ["a.recordio"]},
        fluid.ParallelExecutor(False, main_program=main).run: {"fetch_list": [loss], "feed": feeds()},
        layers.ConditionalBlock: {"inputs": [layers.less_than(loss, loss)], "is_scalar_condition": True},
        layers.BeamSearchDecoder: {"cell": layers.GRUCell(4), "start_token": 0, "end_token": 1, "beam_size": 2}
        | dict.fromkeys(("embedding_fn", "output_fn"), None),
        step_of(layers.StaticRNN().step_input): {"x": x},
    }


def numbers(optimizer: type) -> dict[str, Any]:
    """Arguments of an optimizer, or of an initializer: the defaults, and numbers where there is none."""
    parameters = inspect.signature(optimizer).parameters.values()
    wrapped = {name: fluid.optimizer.SGD(0.1) for name in ("optimizer", "inner_optimizer")}
    return {p.name: wrapped.get(p.name, 0.5) if p.default is p.empty else p.default for p in parameters}


CLASSES = {
    getattr(module, name)
    for module in (fluid.optimizer, fluid.initializer, fluid.regularizer)
    for name in module.__all__
    if inspect.isclass(getattr(module, name))
}


@pytest.mark.parametrize("value", [None, 3.5, "a", [None], object()], ids=lambda value: type(value).__name__)
def test_one_argument_of_another_function_that_is_none_is_an_error_of_the_function(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bare = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for function, given in {**others(), **{kind: numbers(kind) for kind in CLASSES}}.items():
            for argument in given:
                try:
                    result = function(**{**given, argument: value})
                    if isinstance(result, fluid.optimizer.Optimizer) and type(result) is not fluid.optimizer.Optimizer:
                        with fluid.program_guard(fluid.Program(), fluid.Program()):
                            result.minimize(layers.mean(layers.fc(layers.data("x", [4]), 1)))
                except (errors.HeadraceError, OSError):  # "a" may be a folder that another function has made
                    continue
                except Exception as error:
                    bare[function, argument] = repr(error)
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
        (lambda x: fluid.optimizer.Adam(0.1, None), "AdamOptimizer: beta1 has to be a number, got None"),
        (lambda x: fluid.optimizer.SGD(0.1, None, 0.9), "SGDOptimizer: name has to be a str, got float"),
        (lambda x: fluid.io.save_params(fluid.Executor(), None), "dirname has to be a path, got None"),
        (lambda x: fluid.clip.append_gradient_clip_ops([x]), "append_gradient_clip_ops: param_grads has to be a list"),
        (lambda x: fluid.regularizer.L2Decay(None), "regularizer.L2Decay: regularization_coeff has to be a number"),
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
