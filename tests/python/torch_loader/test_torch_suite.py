"""The script that runs PyTorch's own tests with the drop-in, on tests of the same form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch_suite

pytest.importorskip("torch", reason="PyTorch is not installed")

IMPORTS = {
    "torch": "from torch.utils.data import (\n    Dataset,\n    DataLoader,\n)\n",
    "torchdata": (
        "from torch.utils.data import (\n    Dataset,\n    dataloader,\n)\n"
        "from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader\n"
    ),
}
TESTS = """
import subprocess
import sys
import unittest

PROGRAM = '''
from torch.utils.data import Dataset, DataLoader
print(DataLoader.__module__)
'''

class TestOutOfOrderDataLoader(unittest.TestCase):
    def test_in_order_index_ds(self):
        self.fail("as expected")

    def test_programs(self):
        self.assertIn(b"headrace", subprocess.check_output([sys.executable, "-c", PROGRAM]))

    def test_the_loader(self):
        self.assertTrue(DataLoader.__module__.startswith("headrace.torch"))
        self.assertEqual([batch.tolist() for batch in DataLoader([1, 2], num_workers=1)], [[1], [2]])

    def test_something_else(self):
        self.fail("as nobody expected")
"""


@pytest.mark.parametrize("form", sorted(IMPORTS))
def test_the_loader_is_replaced_and_failures_are_those_expected(form: str, tmp_path: Path) -> None:
    project = {"torch": "pytorch", "torchdata": "torchdata-loader"}[form]
    (tests,) = (tmp_path / file for file in torch_suite.SUITES[project].files)
    tests.parent.mkdir(parents=True)
    tests.write_text(IMPORTS[form] + TESTS)
    command = [sys.executable, torch_suite.__file__, project, str(tmp_path), "-p", "no:xdist"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert "1 failed, 2 passed, 1 xfailed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


OTHERS = """
import torch.utils.data

class Own(torch.utils.data.DataLoader):
    pass

def test_everybody_has_the_drop_in():
    assert Own.__mro__[1].__module__.startswith("headrace.torch")
    assert [batch.tolist() for batch in Own([1, 2], num_workers=1)] == [[1], [2]]

def test_something_else():
    assert False, "as nobody expected"
"""


def test_for_other_projects_the_class_is_replaced(tmp_path: Path) -> None:
    (tests,) = (tmp_path / file for file in torch_suite.SUITES["accelerate"].files)
    tests.parent.mkdir()
    tests.write_text(OTHERS)
    command = [sys.executable, torch_suite.__file__, "accelerate", str(tmp_path), "-p", "no:xdist"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_a_file_that_imports_no_loader_is_refused() -> None:
    with pytest.raises(ValueError, match="imports no DataLoader"):
        torch_suite.with_our_loader("from torch.utils.data import Dataset\n")
