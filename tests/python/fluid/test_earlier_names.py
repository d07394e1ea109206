"""Names that programs of several versions of Fluid use beside its documented API."""

from __future__ import annotations

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import core, layers


def two_layers() -> tuple[fluid.Variable, fluid.Variable]:
    x = fluid.data("x", [None, 3])
    hidden = layers.fc(x, 4, act="tanh")
    return hidden, layers.mean(layers.fc(hidden, 2))


def test_gradients_are_clipped_by_the_callback(exe: fluid.Executor) -> None:
    hidden, loss = two_layers()
    hidden._set_error_clip(fluid.clip.ErrorClipByValue(max=1e-3))
    plain = fluid.default_main_program().clone()
    fluid.backward.append_backward(plain.global_block().var(loss.name))
    fluid.backward.append_backward(loss, callbacks=[fluid.clip.error_clip_callback])
    exe.run(fluid.default_startup_program())
    name, feed = hidden.name + "@GRAD", {"x": np.ones((2, 3), np.float32)}
    (clipped,), (whole,) = (exe.run(p, feed, [name]) for p in (fluid.default_main_program(), plain))
    assert abs(whole).max() > 1e-2
    np.testing.assert_array_equal(clipped, whole.clip(-1e-3, 1e-3))
    with pytest.raises(errors.Unimplemented, match=r"callbacks may be None or \[clip.error_clip_callback\]"):
        fluid.backward.append_backward(loss, callbacks=[print])


def test_calc_gradient_gives_no_list_of_one(exe: fluid.Executor) -> None:
    x, y = (layers.data(name, [2], append_batch_size=False, stop_gradient=False) for name in "xy")
    product = x * y
    by_x = fluid.backward.calc_gradient(product, x)
    both = fluid.backward.calc_gradient(product, [x, y])
    assert isinstance(by_x, fluid.Variable)
    a, b = np.array([1, 2], np.float32), np.array([3, 4], np.float32)
    for got, want in zip(exe.run(feed={"x": a, "y": b}, fetch_list=[by_x, *both]), (b, b, a)):
        np.testing.assert_array_equal(got, want)


def test_what_a_scope_holds(exe: fluid.Executor) -> None:
    layers.create_parameter([2], "float32", "p", default_initializer=fluid.initializer.Constant(3.0))
    with pytest.raises(errors.NotFound, match="the scope has no variable 'p'"):
        fluid.executor._fetch_var("p")
    exe.run(fluid.default_startup_program())
    assert fluid.executor._fetch_var("p").tolist() == [3.0, 3.0]
    assert isinstance(fluid.executor._fetch_var("p", fluid.global_scope(), return_numpy=False), core.LoDTensor)
    parameter = fluid.default_main_program().global_block().var("p")
    assert fluid.io.get_parameter_value(parameter, exe).tolist() == [3.0, 3.0]
    assert fluid.io.get_parameter_value_by_name("p", exe).tolist() == [3.0, 3.0]
    with pytest.raises(errors.TypeMismatch, match="'x' is not a parameter"):
        fluid.io.get_parameter_value(fluid.data("x", [1]), exe)


def test_a_tensor_of_an_array() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    tensor = fluid.executor._as_lodtensor(array, core.CPUPlace())
    array[:] = 0
    assert np.array(tensor).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_program_for_inference_keeps_all_but_what_reads(exe: fluid.Executor) -> None:
    reader = layers.py_reader(2, [[-1, 3]], ["float32"])
    x = layers.read_file(reader)
    out = layers.dropout(layers.fc(x, 4), 0.5)
    fluid.optimizer.SGD(0.1).minimize(layers.mean(out))
    program = fluid.default_main_program()
    kept = program._inference_optimize(prune_read_op=False)
    assert [op.type for op in kept.global_block().ops] == [op.type for op in program.global_block().ops]
    fed = program._inference_optimize()
    gone = len(program.global_block().ops) - len(fed.global_block().ops)
    assert [op.type for op in kept.global_block().ops[:gone]] == ["create_double_buffer_reader", "read"]
    assert [op.type for op in fed.global_block().ops] == [op.type for op in kept.global_block().ops[gone:]]
    assert all(p.global_block().ops[-1].type == "sgd" for p in (kept, fed))
    exe.run(fluid.default_startup_program())
    a, b = (exe.run(fed._prune([out.name], [x.name]), {x.name: np.ones((5, 3), np.float32)}, [out.name]) for _ in "ab")
    np.testing.assert_array_equal(a[0], b[0])  # nothing is dropped at random
    assert len(np.unique(a[0], axis=0)) == 1


def test_regularization_is_added_to_gradients(exe: fluid.Executor) -> None:
    w = layers.create_parameter([3], "float32", "w", default_initializer=fluid.initializer.Constant(2.0))
    v = layers.create_parameter(
        [3],
        "float32",
        attr=fluid.ParamAttr("v", regularizer=fluid.regularizer.L1Decay(0.25)),
        default_initializer=fluid.initializer.Constant(2.0),
    )
    pairs = fluid.backward.append_backward(layers.reduce_sum(w + v))
    plain = fluid.regularizer.append_regularization_ops(pairs)
    decayed = dict(fluid.optimizer.append_regularization_ops(pairs, fluid.regularizer.L2Decay(0.1)))
    exe.run(fluid.default_startup_program())
    got = exe.run(fetch_list=[dict(plain)[w], dict(plain)[v], decayed[w], decayed[v]])
    np.testing.assert_allclose([g[0] for g in got], [1.0, 1.25, 1.2, 1.25])


def test_two_functions_in_one_call(exe: fluid.Executor) -> None:
    fused = fluid.contrib.layers.fused_elemwise_activation
    x, y = fluid.data("x", [2, 3]), fluid.data("y", [3])
    lists: list[list[str] | str] = [["elementwise_add", "relu"], ["tanh", "elementwise_mul"]]
    lists += [["scale", "elementwise_add"], "elementwise_mul,sigmoid"]
    outs = [fused(x, y, names, scale=0.5) for names in lists]
    a, b = np.array([[1, -2, 3], [-4, 5, -6]], np.float32), np.array([-1, 2, -3], np.float32)
    got = exe.run(feed={"x": a, "y": b}, fetch_list=outs)
    for value, expected in zip(got, [a + b.clip(0), np.tanh(a * b), 0.5 * (a + b), a / (1 + np.exp(-b))]):
        np.testing.assert_allclose(value, expected, rtol=1e-6)
    with pytest.raises(errors.InvalidArgument, match=r"got \['relu', 'tanh'\]"):
        fused(x, y, ["relu", "tanh"])


def test_numbers_or_lists_of_them() -> None:
    convert = layers.utils.convert_to_list
    assert convert(3, 2, "stride") == [3, 3]
    assert convert((1, 2), 2, "stride") == [1, 2]
    for wrong in ([1], "ab", None):
        with pytest.raises(errors.InvalidArgument, match="stride has to be 2 of int"):
            convert(wrong, 2, "stride")


def test_structures_are_compared() -> None:
    same = layers.utils.assert_same_structure
    same([1, {"a": (2, 3)}], [4, {"a": (5, 6)}])
    same([1, (2,)], (1, [2]), check_types=False)
    with pytest.raises(TypeError, match="a tuple of one is a list of the other"):
        same([1, (2,)], [1, [2]])
    for other in ([1, 2], [1, {"a": (2,)}], [1, {"b": (2, 3)}], 1):
        with pytest.raises(ValueError, match="structures of variables differ"):
            same([1, {"a": (2, 3)}], other)


def test_parallel_do_computes_the_whole_batch(exe: fluid.Executor) -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
    devices = layers.ParallelDo(layers.device.get_places(2))
    with pytest.raises(errors.FailedPrecondition, match="read_input must be called in the block"):
        devices.read_input(x)
    with devices.do():
        hidden = layers.fc(devices.read_input(x), 1, param_attr="w", bias_attr=False)
        devices.write_output(layers.mean(layers.square_error_cost(hidden, devices.read_input(y))))
        devices.write_output(hidden)
        with pytest.raises(errors.FailedPrecondition, match="no block"):
            devices()
    loss, hidden = devices()
    fluid.optimizer.SGD(0.1).minimize(layers.mean(loss))
    exe.run(fluid.default_startup_program())
    w = np.array(fluid.global_scope().find_var("w").get_tensor())
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = exe.run(feed={"x": a, "y": np.zeros((2, 1), np.float32)}, fetch_list=[loss, hidden])
    np.testing.assert_allclose(got[1], a @ w, rtol=1e-5)
    np.testing.assert_allclose(got[0], [((a @ w) ** 2).mean()], rtol=1e-5)
    assert layers.control_flow.ParallelDo is layers.ParallelDo
    with pytest.raises(errors.FailedPrecondition, match="the block has already been defined"), devices.do():
        pass
    with pytest.raises(errors.TypeMismatch, match="expected CPUPlaces, got int"):
        layers.ParallelDo([0])


def test_devices_of_one_cpu() -> None:
    assert layers.device.get_places(4) == [fluid.CPUPlace()] * 4
    assert layers.device.get_places().type == core.VarType.PLACE_LIST  # type: ignore[attr-defined]
    with pytest.raises(errors.Unimplemented, match="device_type='CUDA'"):
        layers.device.get_places(device_type="CUDA")
    assert core.get_cuda_device_count() == 0
    with pytest.raises(errors.Unimplemented, match=r"CUDAPlace\(0\)"):
        core.CUDAPlace(0)
    assert isinstance(fluid.framework._current_expected_place(), fluid.CPUPlace)
    assert not fluid.framework.in_dygraph_mode()


def test_modules_and_constants_are_where_fluid_has_them() -> None:
    assert issubclass(fluid.layer_helper.LayerHelper, fluid.layer_helper_base.LayerHelperBase)
    assert fluid.framework.GRAD_VAR_SUFFIX == "@GRAD"
    assert fluid.framework.convert_np_dtype_to_dtype_("int64") == core.VarType.INT64
    assert issubclass(errors.InvalidArgument, core.EnforceNotMet)
    roles = core.op_proto_and_checker_maker
    _, loss = two_layers()
    fluid.optimizer.SGD(0.1).minimize(loss)
    ops = fluid.default_main_program().global_block().ops
    assert ops[-1].attr(roles.kOpRoleAttrName()) == roles.OpRole.Optimize
    assert [len(op.attr(roles.kOpRoleVarAttrName())) for op in ops if op.type == "sgd"] == [2] * 4
    assert sum(op.attr("op_role") == roles.OpRole.Backward for op in ops) > 4


def test_the_true_boxes_of_a_yolo_loss_have_two_names() -> None:
    maps, boxes, labels, scores = (
        fluid.data("maps", [None, 21, 8, 8]),
        fluid.data("boxes", [None, 6, 4]),
        fluid.data("labels", [None, 6], "int32"),
        fluid.data("scores", [None, 6]),
    )
    others = {
        "anchors": [9, 9, 5, 5, 2, 2],
        "anchor_mask": [0, 1, 2],
        "class_num": 2,
        "ignore_thresh": 0.7,
        "downsample_ratio": 32,
    }
    for names in ("gt_box gt_label gt_score", "gtbox gtlabel gtscore"):
        loss = layers.yolov3_loss(maps, **dict(zip(names.split(), (boxes, labels, scores))), **others)
        (op,) = (op for op in loss.block.ops if loss.name in op.output_arg_names)
        assert op.input("GTBox") == ["boxes"]
        assert op.input("GTLabel") == ["labels"]
        assert op.input("GTScore") == ["scores"]
    with pytest.raises(TypeError, match="gtbox"):
        layers.yolov3_loss(maps, gt_box=boxes, gtbox=boxes, gt_label=labels, **others)


def test_a_program_sets_its_learning_rate(exe: fluid.Executor) -> None:
    _, loss = two_layers()
    rate = layers.create_global_var([1], 0.5, "float32", persistable=True, name="my_rate")
    optimizer = fluid.optimizer.SGD(learning_rate=0.1)
    assert fluid.default_main_program() not in optimizer._learning_rate_map
    optimizer._learning_rate_map[fluid.default_main_program()] = rate
    optimizer.minimize(loss)
    assert optimizer._global_learning_rate() is optimizer._learning_rate_map[fluid.default_main_program()] is rate
    updates = [op for op in fluid.default_main_program().global_block().ops if op.type == "sgd"]
    assert [op.input("LearningRate") for op in updates] == [["my_rate"]] * 4
    another = fluid.optimizer.Adam(learning_rate=rate)
    assert another._learning_rate_map[fluid.default_main_program()] is rate


def test_shapes_are_inferred_anew(exe: fluid.Executor) -> None:
    image = fluid.data("image", [None, 3, 8, 8])
    conv = layers.conv2d(image, 6, 3, param_attr="w", bias_attr=False)
    fluid.optimizer.SGD(0.1).minimize(layers.mean(conv))
    block = fluid.default_main_program().global_block()
    block.var("w").desc.set_shape([4, 3, 3, 3])
    count = len(block.ops)
    for op in block.ops:
        op.desc.infer_shape(op.block.desc)
    assert conv.shape == (-1, 4, 6, 6)
    assert block.var(conv.name + "@GRAD").shape == (-1, 4, 6, 6)
    assert len(block.ops) == block.desc.op_count() == count


def test_shapes_of_a_block_that_an_operator_runs_stay(exe: fluid.Executor) -> None:
    x = fluid.data("x", [3])
    chosen = layers.cond(layers.reduce_sum(x) > 0.0, lambda: x + 1.0, lambda: x - 1.0)
    program = fluid.default_main_program()
    for block in program.blocks:
        for op in block.ops:
            op.desc.infer_shape(block.desc)
    assert exe.run(feed={"x": np.ones(3, np.float32)}, fetch_list=[chosen])[0].tolist() == [2, 2, 2]


def test_names_that_tools_import_and_may_do_without() -> None:
    from headrace.fluid.framework import IrGraph

    with pytest.raises(errors.Unimplemented, match=r"IrGraph.*io.load_inference_model"):
        IrGraph(None, for_test=True)
    with pytest.raises(AttributeError, match=r"core has no Graph: programs cannot be quantised"):
        core.Graph  # noqa: B018
    with pytest.raises(AttributeError, match=r"contrib.layers has no ctr_metric_bundle: use metrics.Auc"):
        fluid.contrib.layers.ctr_metric_bundle  # noqa: B018
    assert layers.Variable is fluid.Variable


def test_the_operator_that_writes_a_variable() -> None:
    hidden, loss = two_layers()
    assert (hidden.op.type, loss.op.type) == ("tanh", "mean")
    assert fluid.default_main_program().global_block().var("x").op is None
    layers.assign(loss, output=hidden)
    assert hidden.op.type == "assign"
    another = loss.op
    hidden.op = another  # as initializers of one's own do
    assert hidden.op is another


def test_what_is_saved_as_the_state_of_the_optimizer(exe: fluid.Executor) -> None:
    _, loss = two_layers()
    fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
    program = fluid.default_main_program()
    names = {var.name for var in program.list_vars() if fluid.io.is_belong_to_optimizer(var)}
    assert names == {f"fc_{i}.{kind}_0_velocity_0" for i in (0, 1) for kind in "wb"} | {"learning_rate_0"}
    assert program.global_block().var("x").desc.need_check_feed()
    assert not loss.desc.need_check_feed()


def test_feeds_that_need_not_be_as_declared(exe: fluid.Executor) -> None:
    x = fluid.data("x", [None, 3])
    out = layers.relu(x)
    feed = {"x": np.ones((2, 4), np.float32)}
    with pytest.raises(errors.InvalidArgument, match="'x' is declared with shape"):
        exe.run(feed=feed, fetch_list=[out])
    x.desc.set_need_check_feed(False)
    assert exe.run(feed=feed, fetch_list=[out])[0].shape == (2, 4)
    x.desc.set_need_check_feed(True)
    with pytest.raises(errors.InvalidArgument, match="'x' is declared with shape"):
        exe.run(feed=feed, fetch_list=[out])


def test_helpers_that_layers_of_ones_own_import() -> None:
    assert fluid.data_feeder.convert_dtype(core.VarDesc.VarType.INT64) == "int64"
    assert fluid.data_feeder.convert_dtype(np.float32) == "float32"
    assert fluid.unique_name.generate_with_ignorable_key("tmp") == "tmp_0"


def test_an_attribute_of_no_parameter_is_false() -> None:
    assert fluid.ParamAttr._to_attr(False) is False  # a framework that wraps layers passes it on
    assert fluid.ParamAttr._to_attr("w").name == "w"
    named = fluid.ParamAttr("w")
    assert fluid.ParamAttr._to_attr(named) is named
    assert fluid.ParamAttr._to_attr(True).name is fluid.ParamAttr._to_attr(None).name is None


def test_a_gradient_that_nobody_reads_is_no_output(exe: fluid.Executor) -> None:
    image = fluid.data("image", [None, 1, 4, 4])
    fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.conv2d(image, 2, 3)))
    program = fluid.default_main_program()
    gradient = next(op for op in program.global_block().ops if op.type == "conv2d_grad")
    assert gradient.output("Input@GRAD") == []
    assert gradient.output("Filter@GRAD") == gradient.output_arg_names == ["conv2d_0.w_0@GRAD"]
    names = [name for op in program.global_block().ops for name in (*op.input_arg_names, *op.output_arg_names)]
    assert all(map(program.global_block().has_var, names))
    program.global_block()._rename_var("conv2d_0.w_0@GRAD", "slope")
    assert gradient.output_arg_names == ["slope"]
    exe.run(fluid.default_startup_program())
    exe.run(feed={"image": np.ones((1, 1, 4, 4), np.float32)})


def test_types_are_inferred_anew() -> None:
    block = fluid.Program().global_block()
    out = block.create_var("out")
    op = block.append_op("gaussian_random", outputs={"Out": out}, attrs={"shape": [3, 2]})
    out.desc.set_dtype(core.VarType.FP64)
    out.desc.set_shape([7])
    op.desc.infer_var_type(block.desc)
    assert (out.dtype, out.shape) == (core.VarType.FP32, (3, 2))
    assert block.desc.op_count() == 1


def product() -> tuple[fluid.Program, fluid.framework.Operator]:
    program = fluid.Program()
    block = program.global_block()
    x, y, out = (
        block.create_var(name, shape, "float32") for name, shape in (("x", [2, 3]), ("y", [3, 4]), ("out", []))
    )
    block.create_var("out@GRAD", [2, 4], "float32")
    return program, block.append_op("mul", {"X": x, "Y": y}, {"Out": out})


def test_a_program_appends_a_backward_pass_of_its_own(exe: fluid.Executor) -> None:
    program, mul = product()
    block = program.global_block()
    ops, variable_of = core.get_grad_op_desc(mul.desc, set(), [])
    assert [op.type for op in ops] == ["mul_grad"]
    assert variable_of == {"x@GRAD": "x", "y@GRAD": "y"}
    new = block.desc.append_op()
    new.copy_from(ops[0])
    new._set_attr(core.op_proto_and_checker_maker.kOpRoleAttrName(), core.OpRole.Backward)
    for name in ops[0].output_arg_names():
        block.desc.var(name.encode("ascii"))
    ops[0].infer_var_type(block.desc)
    ops[0].infer_shape(block.desc)
    assert block.desc.find_var(b"x@GRAD").shape == [2, 3]
    assert [(op.type, op.role) for op in block.desc.ops()] == [("mul", 0), ("mul_grad", core.OpRole.Backward)]
    assert (new.type, new.attr("op_role")) == ("mul_grad", core.OpRole.Backward)
    x, y, d = (np.random.default_rng(3).random(shape, np.float32) for shape in ((2, 3), (3, 4), (2, 4)))
    dx, dy = exe.run(program, {"x": x, "y": y, "out@GRAD": d}, ["x@GRAD", "y@GRAD"])
    np.testing.assert_allclose(dx, d @ y.T, rtol=1e-5)
    np.testing.assert_allclose(dy, x.T @ d, rtol=1e-5)


def test_gradients_that_are_not_wanted_are_left_out(exe: fluid.Executor) -> None:
    program, mul = product()
    (op,), variable_of = core.get_grad_op_desc(mul.desc, {"x@GRAD"}, [])
    assert variable_of == {"y@GRAD": "y"}
    program.global_block().desc.append_op().copy_from(op)
    assert not program.global_block().desc.has_var("x@GRAD")
    feed = {"x": np.ones((2, 3), np.float32), "y": np.ones((3, 4), np.float32), "out@GRAD": np.ones((2, 4), np.float32)}
    assert exe.run(program, feed, ["y@GRAD"])[0].tolist() == [[2.0] * 4] * 3
    assert core.get_grad_op_desc(mul.desc, {"x@GRAD", "y@GRAD"}, []) == ([], {})


def test_gradients_of_results_that_nobody_reads_are_left_out(exe: fluid.Executor) -> None:
    program = fluid.Program()
    block = program.global_block()
    x, y, mean, variance = (block.create_var(name, [2, 3], "float32") for name in ("x", "y", "mean", "variance"))
    outputs = {"Y": y, "Mean": mean, "Variance": variance}
    norm = block.append_op("layer_norm", {"X": x}, outputs, {"begin_norm_axis": 1})
    block.create_var("y@GRAD", [2, 3], "float32")
    (op,), _ = core.get_grad_op_desc(norm.desc, set())
    block.desc.append_op().copy_from(op)
    op.infer_shape(block.desc)
    feed = {"x": np.array([[1, 2, 3], [4, 6, 8]], np.float32), "y@GRAD": np.ones((2, 3), np.float32)}
    np.testing.assert_allclose(exe.run(program, feed, ["x@GRAD"])[0], np.zeros((2, 3)), atol=1e-5)


def test_operators_without_a_gradient_have_no_gradient_operators() -> None:
    out = layers.fill_constant([1], "float32", 1.0)
    assert core.get_grad_op_desc(out.op.desc, set(), []) == ([], {})


def test_a_block_is_not_differentiated_alone() -> None:
    x = fluid.data("x", [3])
    layers.cond(layers.reduce_sum(x) > 0.0, lambda: x + 1.0, lambda: x - 1.0)
    op = next(op for op in fluid.default_main_program().global_block().ops if op.type == "conditional_block")
    with pytest.raises(errors.Unimplemented, match="'conditional_block' runs a block, which only backward"):
        core.get_grad_op_desc(op.desc, set(), [])


def test_a_new_operator_is_copied_once_and_stays_where_it_is() -> None:
    program, mul = product()
    block = program.global_block()
    (op,), _ = core.get_grad_op_desc(mul.desc, set())
    new = block.desc.append_op()
    assert block.desc.op_count() == 1
    for use in (lambda: new.type, lambda: new.set_attr("op_role", 1)):
        with pytest.raises(errors.FailedPrecondition, match="copy_from has to say first which operator"):
            use()
    new.copy_from(op)
    with pytest.raises(errors.FailedPrecondition, match="is the operator 'mul_grad' already"):
        new.copy_from(op)
    block.desc.remove_ops(0, 1)
    with pytest.raises(errors.FailedPrecondition, match=r"'mul_grad' no longer stands .* at 1 of its block"):
        new.set_attr("op_role", 1)


def test_what_cannot_be_copied_leaves_the_block_as_it_was() -> None:
    _, mul = product()
    (op,), _ = core.get_grad_op_desc(mul.desc, set())
    block = fluid.Program().global_block().desc
    with pytest.raises(errors.NotFound, match="out@GRAD"):
        block.append_op().copy_from(op)
    assert (block.op_count(), block.vars()) == (0, [])
