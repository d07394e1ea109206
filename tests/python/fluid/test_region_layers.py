"""Layers that look at images between pixels, in programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import errors
from headrace.fluid import layers

LAYERS: dict[str, Any] = {
    "roi_pool": lambda x, rois: layers.roi_pool(x, rois, 2, 2, 0.5),
    "roi_align": lambda x, rois: layers.roi_align(x, rois, 2, 2, 0.5, sampling_ratio=2),
    "psroi_pool": lambda x, rois: layers.psroi_pool(x, rois, 1, 0.5, 2, 2),
    "prroi_pool": lambda x, rois: layers.prroi_pool(x, rois, 0.5, 2, 2),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_regions_of_a_constant_image_are_constant_and_train_what_made_it(exe: fluid.Executor, layer: str) -> None:
    image = fluid.data("image", [None, 4, 6, 6])
    rois = fluid.data("rois", [None, 4], lod_level=1)
    x = layers.scale(image, 2.0)
    x.stop_gradient = False
    out = LAYERS[layer](x, rois)
    channels = 1 if layer == "psroi_pool" else 4
    assert out.shape == (-1, channels, 2, 2)
    (of_x,) = fluid.gradients(layers.reduce_sum(out), x)
    images = np.stack([np.full((4, 6, 6), value, np.float32) for value in (1, 2)])
    boxes = fluid.create_lod_tensor(
        np.array([[0, 0, 9, 9], [2, 3, 8, 7], [1, 1, 10, 10]], np.float32), [[1, 2]], fluid.CPUPlace()
    )
    value, gradient = exe.run(feed={"image": images, "rois": boxes}, fetch_list=[out, of_x])
    expected = np.broadcast_to(np.array([2, 4, 4], np.float32).reshape(3, 1, 1, 1), (3, channels, 2, 2))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    # Each bin is a mean or a maximum of its image.
    np.testing.assert_allclose(gradient.sum((1, 2, 3)), [4 * channels, 8 * channels], rtol=1e-5)


def test_a_grid_of_an_affine_map_that_mirrors(exe: fluid.Executor) -> None:
    image = fluid.data("image", [None, 2, 3, 4])
    theta = fluid.data("theta", [None, 2, 3])
    out = layers.grid_sampler(image, layers.affine_grid(theta, [-1, 2, 3, 4]))
    assert out.shape == (-1, 2, 3, 4)
    images = np.random.default_rng(5).uniform(-1, 1, (2, 2, 3, 4)).astype(np.float32)
    mirror = np.tile(np.array([[-1, 0, 0], [0, 1, 0]], np.float32), (2, 1, 1))
    (value,) = exe.run(feed={"image": images, "theta": mirror}, fetch_list=[out])
    np.testing.assert_allclose(value, images[..., ::-1], atol=1e-6)


def test_a_region_with_four_corners_is_straightened(exe: fluid.Executor) -> None:
    image, rois = fluid.data("image", [None, 2, 6, 6]), fluid.data("rois", [None, 8], lod_level=1)
    image.stop_gradient = False
    out, mask, matrix = layers.roi_perspective_transform(image, rois, 4, 4, 0.5)
    assert [v.shape for v in (out, mask, matrix)] == [(-1, 2, 4, 4), (-1, 1, 4, 4), (-1, 9)]
    (of_image,) = fluid.gradients(layers.reduce_sum(out), image)
    images = np.random.default_rng(5).uniform(-1, 1, (1, 2, 6, 6)).astype(np.float32)
    # A square that lies on its side: its first corner is the one at the upper right.
    corners = fluid.create_lod_tensor(np.array([[8, 2, 8, 8, 2, 8, 2, 2]], np.float32), [[1]], fluid.CPUPlace())
    fetched = exe.run(feed={"image": images, "rois": corners}, fetch_list=[out, mask, of_image], return_numpy=False)
    assert fetched[0].recursive_sequence_lengths() == [[1]]
    value, inside, gradient = map(np.array, fetched)
    np.testing.assert_allclose(value[0], np.rot90(images[0, :, 1:5, 1:5], axes=(1, 2)), atol=1e-5)
    assert inside.all()
    expected = np.zeros((1, 2, 6, 6))
    expected[:, :, 1:5, 1:5] = 1
    np.testing.assert_allclose(gradient, expected, atol=1e-4)


def test_fluids_programs_give_a_region_with_four_corners_two_more_outputs(exe: fluid.Executor) -> None:
    image, rois = fluid.data("image", [None, 2, 6, 6]), fluid.data("rois", [None, 8], lod_level=1)
    image.stop_gradient = False
    expected = layers.roi_perspective_transform(image, rois, 4, 4, 0.5)[0]
    block = fluid.default_main_program().global_block()
    slots = ("Out", "Mask", "TransformMatrix", "Out2InIdx", "Out2InWeights")
    outputs = {slot: block.create_var(f"fluids_{slot}") for slot in slots}
    attrs = {"transformed_height": 4, "transformed_width": 4, "spatial_scale": 0.5}
    block.append_op("roi_perspective_transform", {"X": image, "ROIs": rois}, outputs, attrs)
    gradients = [fluid.gradients(layers.reduce_sum(out), image)[0] for out in (outputs["Out"], expected)]
    images = np.random.default_rng(5).uniform(-1, 1, (1, 2, 6, 6)).astype(np.float32)
    corners = fluid.create_lod_tensor(np.array([[2, 2, 8, 3, 9, 8, 1, 7]], np.float32), [[1]], fluid.CPUPlace())
    fetch_list = [outputs["Out"], expected, *gradients]
    tensors = exe.run(feed={"image": images, "rois": corners}, fetch_list=fetch_list, return_numpy=False)
    fetched = [np.array(tensor) for tensor in tensors]
    np.testing.assert_array_equal(fetched[0], fetched[1])
    np.testing.assert_array_equal(fetched[2], fetched[3])
    assert fetched[2].any()


def test_what_is_no_number_is_refused() -> None:
    x, rois = fluid.data("x", [None, 4, 6, 6]), fluid.data("rois", [None, 4], lod_level=1)
    for layer, arguments, parts in (
        (layers.roi_pool, (2.0, 2), "roi_pool: pooled_height"),
        (layers.roi_align, (2, "2"), "roi_align: pooled_width"),
        (layers.psroi_pool, (1.0, 0.5, 2, 2), "psroi_pool: output_channels"),
        (layers.psroi_pool, (1, 1, 2, 2), "psroi_pool: spatial_scale"),
        (layers.prroi_pool, (2, 7, 7), "prroi_pool: spatial_scale"),
    ):
        with pytest.raises(errors.TypeMismatch, match=parts):
            layer(x, rois, *arguments)
    for arguments in ((None, rois), (x, [0, 0, 1, 1])):
        with pytest.raises(errors.TypeMismatch, match="has to be a Variable"):
            layers.roi_pool(*arguments)  # type: ignore[arg-type]


def test_a_deformable_network_learns_where_to_look(exe: fluid.Executor) -> None:
    image, rois = fluid.data("image", [None, 3, 8, 8]), fluid.data("rois", [None, 4], lod_level=1)
    offset = layers.conv2d(image, 2 * 2 * 9, 3, padding=1)
    mask = layers.sigmoid(layers.conv2d(image, 2 * 9, 3, padding=1))
    x = layers.conv2d(image, 8, 1)
    x = layers.deformable_conv(x, offset, mask, 8, 3, padding=1, groups=2, deformable_groups=2)
    x = layers.deformable_conv(x, offset, None, 8, 3, padding=1, deformable_groups=2, modulated=False, bias_attr=False)
    assert x.shape == (-1, 8, 8, 8)
    nothing = layers.reshape(rois, [-1, 4, 1, 1])
    trans = layers.deformable_roi_pooling(x, rois, nothing, True, 0.5, pooled_height=2, pooled_width=2)
    assert trans.shape == (-1, 8, 2, 2)
    trans = layers.fc(trans, 2 * 4)
    pooled = layers.deformable_roi_pooling(
        x, rois, layers.reshape(trans, [-1, 2, 2, 2]), False, 0.5, [2, 2], 2, 2, None, 2, 0.1, True
    )
    assert pooled.shape == (-1, 2, 2, 2)
    loss = layers.mean(layers.square(layers.fc(pooled, 1)) - layers.reduce_sum(pooled, [1, 2, 3]))
    _, parameters = fluid.optimizer.SGD(0.05).minimize(loss)
    exe.run(fluid.default_startup_program())
    images = np.random.default_rng(5).uniform(-1, 1, (2, 3, 8, 8)).astype(np.float32)
    boxes = np.array([[1, 1, 9, 9], [0, 4, 12, 11], [3, 2, 15, 15]], np.float32)
    feed = {"image": images, "rois": fluid.create_lod_tensor(boxes, [[1, 2]], fluid.CPUPlace())}
    before = [np.array(fluid.global_scope().find_var(p.name).get_tensor()) for p, _ in parameters]
    losses = [exe.run(feed=feed, fetch_list=[loss])[0].item() for _ in range(20)]
    assert losses[-1] < losses[0]
    for (p, _), value in zip(parameters, before):
        assert not np.array_equal(np.array(fluid.global_scope().find_var(p.name).get_tensor()), value), p.name


def test_deformable_layers_refuse_what_they_cannot_use() -> None:
    x, offset = fluid.data("x", [None, 4, 6, 6]), fluid.data("offset", [None, 18, 6, 6])
    with pytest.raises(errors.TypeMismatch, match=r"layers\.deformable_conv: mask has to be a Variable"):
        layers.deformable_conv(x, offset, None, 8, 3, padding=1)
    with pytest.raises(errors.InvalidArgument, match="4 channels cannot be split into 3 groups"):
        layers.deformable_conv(x, offset, offset, 8, 3, padding=1, groups=3)
    with pytest.raises(errors.InvalidArgument, match="the layer needs the parameter"):
        layers.deformable_conv(x, offset, offset, 8, 3, padding=1, param_attr=False)
