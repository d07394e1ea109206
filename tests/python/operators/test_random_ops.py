"""Random numbers in the size of another batch, sampling_id, random_crop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.fluid import core
from headrace.testing import OpTest

RNG = np.random.default_rng(107)


def run(op_type: str, inputs: dict[str, Any], attrs: dict[str, Any]) -> np.ndarray:
    return np.array(OpTest(op_type, inputs, attrs).run()["Out"][0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op_type", ["uniform_random_batch_size_like", "gaussian_random_batch_size_like"])
def test_random_numbers_in_the_size_of_a_batch(op_type: str, dtype: str) -> None:
    like = {"Input": np.zeros((3, 50))}
    attrs = {"shape": [-1, 400], "dtype": int(core.convert_dtype(dtype)), "seed": 5}
    test = OpTest(op_type, like, attrs)
    test.check_outputs()  # what is inferred
    numbers = run(op_type, like, attrs)
    assert numbers.shape == (3, 400)
    assert numbers.dtype == dtype
    plain = op_type.removesuffix("_batch_size_like")
    np.testing.assert_array_equal(numbers, run(plain, {}, {**attrs, "shape": [3, 400]}))
    turned = run(op_type, like, {**attrs, "shape": [2, -1], "input_dim_idx": 1, "output_dim_idx": 1})
    assert turned.shape == (2, 50)
    sequences = {"Input": (np.zeros((5, 1)), [[2, 0, 3]])}
    assert run(op_type, sequences, attrs).shape == (3, 400)
    empty = {"Input": np.zeros((0, 1))}
    assert run(op_type, empty, attrs).shape == (0, 400)


def test_parameters_of_the_distributions() -> None:
    like = {"Input": np.zeros((20, 1))}
    uniform = run("uniform_random_batch_size_like", like, {"shape": [-1, 500], "min": 2.0, "max": 4.0, "seed": 3})
    assert uniform.min() >= 2
    assert uniform.max() < 4
    np.testing.assert_allclose([uniform.mean(), uniform.std()], [3, 2 / np.sqrt(12)], atol=0.03)
    normal = run("gaussian_random_batch_size_like", like, {"shape": [-1, 500], "mean": 1.0, "std": 2.0, "seed": 3})
    np.testing.assert_allclose([normal.mean(), normal.std()], [1, 2], atol=0.08)


def test_random_numbers_refuse_what_does_not_fit() -> None:
    like = {"Input": np.zeros((2, 3))}
    for attrs, part in (
        ({"shape": [-1, -1]}, "shape"),
        ({"shape": [-1, 2], "input_dim_idx": 2}, "input_dim_idx"),
        ({"shape": [-1, 2], "output_dim_idx": 2}, "output_dim_idx"),
        ({"shape": [-1, 2], "min": 1.0, "max": 0.0}, "min"),
    ):
        OpTest("uniform_random_batch_size_like", like, attrs).check_refused(ValueError, part)
    test = OpTest("gaussian_random_batch_size_like", like, {"shape": [-1, 2], "std": -1.0})
    test.check_refused(ValueError, "std")


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_sampling_id(dtype: Any) -> None:
    p = np.array([0.2, 0.0, 0.5, 0.3], dtype)
    x = np.tile(p, (8000, 1))
    OpTest("sampling_id", {"X": x}, {"seed": 9}).check_outputs()
    drawn = run("sampling_id", {"X": x}, {"seed": 9})
    assert drawn.shape == (8000,)
    assert drawn.dtype == np.int64
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 8000, p, atol=0.02)
    np.testing.assert_array_equal(drawn, run("sampling_id", {"X": x}, {"seed": 9}))
    assert (drawn != run("sampling_id", {"X": x}, {"seed": 10})).any()
    assert (run("sampling_id", {"X": x}, {"min": 0.2, "max": 0.7}) == 2).mean() > 0.99
    # What lies beyond the sum of a row is its last class.
    assert (run("sampling_id", {"X": x / 100}, {"min": 0.5}) == 3).all()
    assert (run("sampling_id", {"X": np.ones((3, 1), dtype)}, {}) == 0).all()
    (of_sequences,) = OpTest("sampling_id", {"X": (x[:3], [[2, 1]])}, {}, {"Out": None}).run()["Out"]
    assert of_sequences.recursive_sequence_lengths() == [[2, 1]]


def test_sampling_id_refuses_what_does_not_fit() -> None:
    OpTest("sampling_id", {"X": np.ones(3)}).check_refused(ValueError, "X", "rank 2")
    OpTest("sampling_id", {"X": np.ones((3, 0))}).check_refused(ValueError, "X", "[3, 0]")
    OpTest("sampling_id", {"X": np.ones((3, 1))}, {"min": 2.0}).check_refused(ValueError, "min")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8], ids=lambda t: t.__name__)
@pytest.mark.parametrize("shape", [[4], [3, 2], [2, 3, 4]], ids=str)
def test_random_crop(shape: list[int], dtype: Any) -> None:
    x = np.arange(30 * 3 * 5 * 4).reshape(30, 3, 5, 4).astype(dtype)
    seed = np.array([11])
    test = OpTest("random_crop", {"X": x, "Seed": seed}, {"shape": shape}, {"Out": None, "SeedOut": None})
    test.check_outputs()
    got = test.run()
    out = np.array(got["Out"][0])
    batch = x.ndim - len(shape)
    assert out.shape == (*x.shape[:batch], *shape)
    instances = x.reshape(-1, *x.shape[batch:])
    windows = np.lib.stride_tricks.sliding_window_view(instances, shape, tuple(range(1, 1 + len(shape))))
    places = set()
    for instance, part in zip(windows.reshape(len(instances), -1, *shape), out.reshape(-1, *shape)):
        matches = [i for i, window in enumerate(instance) if (window == part).all()]
        assert matches
        places.add(matches[0])
    assert len(places) == np.prod(windows.shape[1 : 1 + len(shape)])  # each place there is
    again = OpTest("random_crop", {"X": x, "Seed": seed}, {"shape": shape}, {"Out": None, "SeedOut": None}).run()
    np.testing.assert_array_equal(out, np.array(again["Out"][0]))
    assert np.array(got["SeedOut"][0])[0] != 11


def test_random_crop_refuses_what_does_not_fit() -> None:
    outputs = {"Out": None, "SeedOut": None}
    inputs = {"X": np.zeros((2, 3, 4)), "Seed": np.array([1])}
    for shape in ([], [5], [0, 1], [1, 2, 3, 4]):
        OpTest("random_crop", inputs, {"shape": shape}, outputs).check_refused(ValueError, "shape")
    wrong = {**inputs, "Seed": np.array([1], np.int32)}
    OpTest("random_crop", wrong, {"shape": [2]}, outputs).check_refused(TypeError, "Seed", "int64")
