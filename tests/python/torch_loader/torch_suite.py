"""Runs PyTorch's own tests of its loader with :class:`headrace.torch.DataLoader` in its place::

    python tests/python/torch_loader/torch_suite.py PATH/test_dataloader.py [options of pytest: -n 4, -k shuffle]

PATH is test/test_dataloader.py of https://github.com/pytorch/pytorch, at the tag of the installed torch ("v" and its
version); or torchdata's copy of it, test/stateful_dataloader/test_dataloader.py of https://github.com/meta-pytorch/data.
The tests need expecttest, psutil and pytest-timeout; those that PyTorch calls slow run, too.

What runs is a copy, in a temporary folder, that imports the drop-in under the loader's name, also in the programs that
the tests start. What the drop-in does otherwise on purpose is expected to fail: see ``EXPECTED_FAILURES``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

_OPEN = "asserts which worker makes a sample, which is open: an idle one takes it"
# Why, by test.
EXPECTED_FAILURES = {
    "TestDataLoaderPersistentWorkers::test_dataset_not_reset": (
        "asserts that persistent workers never see a change of the dataset; here they see it in the next epoch"
    ),
    "TestOutOfOrderDataLoader::test_in_order_index_ds": _OPEN,
    "TestOutOfOrderDataLoader::test_out_of_order_index_ds": _OPEN,
}

# How the loader is imported, and by what instead. A second import replaces what the first one has brought.
_IMPORTS = (
    (r"^from torchdata\.stateful_dataloader import StatefulDataLoader as DataLoader$", ""),
    (r"^from torch\.utils\.data import (?:\([^)]*\bDataLoader\b[^)]*\)|[^(\n]*\bDataLoader\b.*)$", r"\g<0>\n"),
)


def with_our_loader(source: str) -> str:
    """The source of the tests with the drop-in in place of PyTorch's loader. ValueError if it does not import that."""
    replaced = 0
    for pattern, kept in _IMPORTS:
        source, count = re.subn(pattern, kept + "from headrace.torch import DataLoader", source, flags=re.MULTILINE)
        replaced += count
    if not replaced:
        raise ValueError("the file imports no DataLoader of torch.utils.data or torchdata: are these PyTorch's tests?")
    return source


def run(tests: Path, options: Sequence[str]) -> int:
    """Runs the tests of a file; pytest's exit status."""
    with tempfile.TemporaryDirectory(prefix="torch-suite-") as folder:
        # Under its own name, by which the tests import their module.
        copy = Path(folder, "test_dataloader.py")
        copy.write_text(with_our_loader(tests.read_text()))
        here = str(Path(__file__).parent)
        paths = [folder, here, *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-p", Path(__file__).stem]
        command += ["-p", "no:cacheprovider", "-q", "-ra", "--timeout", "600", *options, str(copy)]
        environment = {"PYTORCH_TEST_WITH_SLOW": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run(command, env=environment, cwd=folder, check=False).returncode


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is expected to fail: this file is a plugin of the pytest that it starts."""
    for item in items:
        reason = EXPECTED_FAILURES.get(item.nodeid.partition("::")[2])
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
