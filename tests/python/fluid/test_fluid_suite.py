"""The script that runs Fluid's own tests, on tests of the same form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fluid_suite
import pytest

TESTS = """
import random
import unittest
import numpy as np
import paddle.fluid as fluid
import paddle.fluid.core as core
from op_test import OpTest
from paddle.fluid.op import Operator

class TestScale(OpTest):
    factor = 2.0

    def setUp(self):
        self.op_type = "scale"
        x = np.random.random((3, 2)).astype("float32")
        self.inputs = {"X": (x, [[1, 2]])}
        self.attrs = {"scale": 2.0}
        self.outputs = {"Out": (x * self.factor, [[1, 2]])}

    def test_check_output(self):
        self.check_output()

    def test_check_grad(self):
        self.check_grad(["X"], "Out")

class TestWrongScale(TestScale):
    factor = 3.0

    def test_check_grad(self):
        self.check_grad(["X"], "Out", user_defined_grads=[np.full((3, 2), 3 / 6)])

class TestScope(unittest.TestCase):
    def test_operator(self):
        scope = core.Scope()
        scope.var("x").get_tensor().set(np.ones(2, "float32"), core.CPUPlace())
        Operator("scale", X="x", Out="out", scale=3.0).run(scope, core.CPUPlace())
        self.assertEqual(np.array(scope.find_var("out").get_tensor()).tolist(), [3, 3])

    def test_array(self):
        scope = core.Scope()
        for name, dtype in (("ids", "int64"), ("scores", "float32")):
            for number in (0, 5):
                tensor = core.LoDTensor()
                tensor.set(np.array([number], dtype), core.CPUPlace())
                tensor.set_recursive_sequence_lengths([[1], [1]])
                scope.var(name).get_lod_tensor_array().append(tensor)
        names = {"Ids": "ids", "Scores": "scores", "SentenceIds": "out", "SentenceScores": "out_scores"}
        Operator("beam_search_decode", **names, beam_size=1, end_id=1).run(scope, core.CPUPlace())
        self.assertEqual(np.array(scope.find_var("out").get_tensor()).tolist(), [0, 5])

    def test_sample_of_a_set(self):
        self.assertEqual(sorted(random.sample({1, 2, 3}, 3)), [1, 2, 3])

class TestScaleOpError(unittest.TestCase):
    def test_scale(self):
        self.fail("as expected")
"""


def test_tests_of_operators_run_and_failures_are_those_expected(tmp_path: Path) -> None:
    (tmp_path / "test_scale_op.py").write_text(TESTS)
    command = [sys.executable, fluid_suite.__file__, str(tmp_path), "-p", "no:xdist"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert "2 failed, 5 passed, 1 xfailed" in done.stdout, done.stdout + done.stderr
    assert "output Out: expected" in done.stdout
    assert "d/dX[0, 0]: expected 0.5, got 0.33" in done.stdout
    assert done.returncode == 1


def test_a_folder_without_such_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"test_mul_op\.py"):
        fluid_suite.run(tmp_path, [])
