"""OpTest: what it accepts, and that it finds what is wrong."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from headrace.testing import OpTest

X = np.array([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])


def test_right_results_and_derivatives_pass() -> None:
    test = OpTest("scale", {"X": X}, {"scale": 3.0, "bias": 1.0}, {"Out": 3 * X + 1})
    test.check_outputs()
    test.check_gradients(["X"])


def test_the_results_of_a_run_are_returned() -> None:
    (out,) = OpTest("scale", {"X": X}, {"scale": 2.0}).run()["Out"]
    np.testing.assert_array_equal(np.asarray(out), 2 * X)
    (out,) = OpTest("scale", {"X": X}).run(np.float32)["Out"]
    assert out.dtype() == "float32"


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (3 * X + 1e-3, "scale: Out"),
        (3 * X[:1], "dims"),
        ((3 * X).astype(np.float32), "float64"),
        ((3 * X, [[1, 1]]), "sequence lengths"),
    ],
    ids=["value", "shape", "dtype", "lod"],
)
def test_wrong_results_fail(expected: object, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        OpTest("scale", {"X": X}, {"scale": 3.0}, {"Out": expected}).check_outputs()


def test_it_checks_without_assertions_too() -> None:
    """``python -O`` leaves out ``assert``."""
    script = """
import numpy as np
from headrace.testing import OpTest
OpTest("relu", {"X": np.ones(1)}, {}, {"Out": np.ones((1, 1))}).check_outputs()
"""
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AssertionError: relu: Out[0] has dims [1], expected [1, 1]" in done.stderr


def test_a_wrong_derivative_fails() -> None:
    # relu has a kink at 0: the central difference there is 1/2.
    with pytest.raises(AssertionError, match=r"relu: d/dX_0\[1\]"):
        OpTest("relu", {"X": np.array([1.0, 0.0])}).check_gradients(["X"])


def test_a_derivative_that_float32_cannot_hold_fails() -> None:
    test = OpTest("square", {"X": np.array([3.0])})
    test.check_gradients(["X"])
    with pytest.raises(AssertionError, match="in float32"):
        OpTest("exp", {"X": np.array([100.0])}).check_gradients(["X"], tolerance=1e-3)


def test_slots_of_several_variables_and_lods() -> None:
    test = OpTest("sum", {"X": [X, X, None]}, outputs={"Out": 2 * X})
    test.check_outputs()
    test.check_gradients(["X"])
    rows = np.arange(6.0).reshape(3, 2)
    pool = OpTest(
        "sequence_pool", {"X": (rows, [[2, 1]])}, {"pooltype": "SUM"}, {"Out": np.array([[2.0, 4.0], [4.0, 5.0]])}
    )
    pool.check_outputs()
    pool.check_gradients(["X"])


def test_refusals() -> None:
    bad = OpTest("mul", {"X": np.ones((2, 3)), "Y": np.ones((2, 2))})
    bad.check_refused(ValueError, "Y", "3 rows")
    with pytest.raises(AssertionError, match="does not contain"):
        bad.check_refused(ValueError, "Z")
    with pytest.raises(AssertionError, match="was not refused"):
        OpTest("scale", {"X": X}).check_refused(ValueError)
    ids = OpTest("lookup_table", {"W": np.ones((2, 3)), "Ids": np.array([[2]])})
    ids.check_refused(IndexError, "Ids", "[0, 2)", when="run")


def test_a_dtype_that_is_fixed_stays() -> None:
    narrow = {"X": X.astype(np.float32)}
    OpTest("square", narrow).check_gradients(["X"])
    with pytest.raises(AssertionError, match=r"in float32 is .* by central differences"):
        OpTest("square", narrow, fixed=["X"]).check_gradients(["X"])
