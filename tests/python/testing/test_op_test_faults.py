"""OpTest on an operator of a library that has faults on purpose: that it finds them, whatever the dtype."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import headrace.fluid as fluid
from headrace import sysconfig
from headrace.fluid import core
from headrace.testing import OpTest

SOURCE = Path(__file__).parents[2] / "framework/testing/faulty_op.cc"
X = np.random.default_rng(1).uniform(-1, 1, (3, 2))
LENGTHS = [[1, 2]]

pytestmark = [
    pytest.mark.timeout(1000),  # compiling takes minutes on a busy machine
    pytest.mark.skipif(not Path(sysconfig.get_include()).exists(), reason="not installed from a wheel"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("library") / "libfaulty.so"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{sysconfig.get_include()}", f"-L{sysconfig.get_lib()}"]
    subprocess.run(["g++", *options, SOURCE, "-o", path, "-lheadrace"], check=True, timeout=900)
    assert fluid.load_op_library(str(path)) == ["test_faulty", "test_faulty_grad"]


def faulty(fault: str, dtype: str = "float64") -> OpTest:
    x = X.astype(dtype)
    return OpTest("test_faulty", {"X": (x, LENGTHS)}, {"fault": fault}, {"Out": (x, LENGTHS)})


def test_what_is_right_passes() -> None:
    for dtype in ("float16", "float32", "float64"):
        faulty("", dtype).check_outputs()
    faulty("").check_gradients(["X"], dtypes=["float16"])


@pytest.mark.parametrize(
    ("fault", "message"), [("dims", r"inferred with dims \[77, 2\], has dims \[3, 2\]"), ("LoD", "LoD level 2, has 1")]
)
def test_faults_of_inference_are_found(fault: str, message: str) -> None:
    with pytest.raises(AssertionError, match=rf"test_faulty: Out\[0\].*{message}"):
        faulty(fault).check_outputs()
    faulty(f"gradient {fault}").check_outputs()
    with pytest.raises(AssertionError, match=rf"test_faulty: the gradient of X_0, .*{message}"):
        faulty(f"gradient {fault}").check_gradients(["X"])


def test_dimensions_that_are_always_known_are_left_alone() -> None:
    x = (X, LENGTHS)
    test = OpTest("test_faulty", {"X": x}, {"fault": "gradient dims"}, {"Out": x}, known=["X"])
    test.check_gradients(["X"])


def test_faults_of_float16_are_found() -> None:
    with pytest.raises(AssertionError, match=r"test_faulty: Out"):
        faulty("float16", "float16").check_outputs()
    with pytest.raises(AssertionError, match=r"test_faulty: d/dX_0\[.*\] in float16 is .*by float64"):
        faulty("gradient float16").check_gradients(["X"], dtypes=["float16"])
    faulty("gradient float16").check_gradients(["X"])  # of the other dtypes nothing is wrong


def test_gradients_that_need_a_lod_are_found() -> None:
    with pytest.raises(AssertionError, match="test_faulty: the gradient of X_0 needs the LoD"):
        faulty("gradient without LoD").check_gradients(["X"])


def test_results_that_must_not_be_written_in_place_are_found() -> None:
    with pytest.raises(AssertionError, match="test_faulty: Out_out_0 differs where Out_out_0 has the memory of X_0"):
        faulty("in place").check_outputs()
    faulty("gradient in place").check_outputs()
    with pytest.raises(AssertionError, match="test_faulty_grad: X_0@GRAD differs where X_0@GRAD has the memory of Out"):
        faulty("gradient in place").check_gradients(["X"])


def test_elements_that_are_read_though_only_the_shape_may_be_are_found() -> None:
    faulty("gradient shape only").check_outputs()
    with pytest.raises(AssertionError, match=r"test_faulty_grad: .* where X_0 has no elements"):
        faulty("gradient shape only").check_gradients(["X"])


def test_what_is_declared_of_memory_can_be_seen() -> None:
    info = core.op_info("test_faulty_grad")
    assert info["in_place"] == [("X@GRAD", "Out@GRAD")]
    assert {slot["name"]: slot["shape_only"] for slot in info["inputs"]} == {"X": True, "Out@GRAD": False}
