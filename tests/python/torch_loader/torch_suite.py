"""Runs other projects' tests of PyTorch's loader with :class:`headrace.torch.DataLoader` in its place::

    python tests/python/torch_loader/torch_suite.py PROJECT FOLDER [options of pytest: -n 4, -k shuffle]

FOLDER is a checkout of the project, at the tag of the version that is installed: see ``SUITES``. The tests need
expecttest, psutil, pytest-timeout and what the project itself asks for; those that PyTorch calls slow run, too.

In PyTorch's own tests, and torchdata's copy of them, the drop-in is imported under the loader's name, also in the
programs that they start: what runs is a copy in a temporary folder. For the other projects it takes the place of the
class in torch before anything else is imported, so that the project, too, works with it and inherits from it.

What the drop-in does otherwise on purpose is expected to fail: see ``SUITES``.

Grain's tests have no entry: they make ``grain.DataLoader`` of operations and of records with metadata, which no loader
of PyTorch's interface has. What ``order="grain"`` has in common with it, the records of each batch,
``test_grain_acceptance.py`` compares with Grain's own loader.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest


@dataclasses.dataclass(frozen=True)
class Suite:
    """
    Attributes:
        source: where the tests come from.
        files: the tests, in the checkout.
        folder: from where they run, in the checkout; None: they are copied, and import the drop-in under a name.
        expected: why tests fail, by what their identifiers end with.
    """

    source: str
    files: tuple[str, ...]
    folder: str | None
    expected: dict[str, str]


_OPEN = "asserts which worker makes a sample, which is open: an idle one takes it"
_STATE = "asserts that a checkpoint holds no state of the loader, which PyTorch's has none of"
_OF_PYTORCH = {
    "TestDataLoaderPersistentWorkers::test_dataset_not_reset": (
        "asserts that persistent workers never see a change of the dataset; here they see it in the next epoch"
    ),
    "TestOutOfOrderDataLoader::test_in_order_index_ds": _OPEN,
    "TestOutOfOrderDataLoader::test_out_of_order_index_ds": _OPEN,
}
_OF_AN_OLDER_PYTORCH = {
    "::test_get_worker_info": "asserts the error of an older torch.utils.data.WorkerInfo, now a frozen dataclass",
}
SUITES = {
    "pytorch": Suite("https://github.com/pytorch/pytorch", ("test/test_dataloader.py",), None, _OF_PYTORCH),
    "torchdata-loader": Suite(
        "https://github.com/meta-pytorch/data",
        ("test/stateful_dataloader/test_dataloader.py",),
        None,
        {**_OF_PYTORCH, **_OF_AN_OLDER_PYTORCH},
    ),
    "torchdata": Suite(
        "https://github.com/meta-pytorch/data",
        tuple(
            f"test/stateful_dataloader/test_{name}.py"
            for name in ("dataloader", "state_dict", "incremental_state", "sampler", "hugging_face")
        ),
        "test/stateful_dataloader",
        _OF_AN_OLDER_PYTORCH,
    ),
    "lightning": Suite(
        "https://github.com/Lightning-AI/pytorch-lightning",
        tuple(
            f"tests/tests_pytorch/{name}.py"
            for name in (
                "utilities/test_data",
                "trainer/connectors/test_data_connector",
                "loops/test_loops",
                "trainer/test_dataloaders",
            )
        ),
        "tests",
        {
            "test_loops.py::test_restart_from_last_parity": _STATE,
            "test_loops.py::test_restart_from_last_with_val_parity": _STATE,
        },
    ),
    "accelerate": Suite("https://github.com/huggingface/accelerate", ("tests/test_data_loader.py",), ".", {}),
}

# How the loader is imported, and by what instead. A second import replaces what the first one has brought.
_IMPORTS = (
    (r"^from torchdata\.stateful_dataloader import StatefulDataLoader as DataLoader$", ""),
    (r"^from torch\.utils\.data import (?:\([^)]*\bDataLoader\b[^)]*\)|[^(\n]*\bDataLoader\b.*)$", r"\g<0>\n"),
)
_SUITE = "HEADRACE_SUITE"


def with_our_loader(source: str) -> str:
    """The source of the tests with the drop-in in place of PyTorch's loader. ValueError if it does not import that."""
    replaced = 0
    for pattern, kept in _IMPORTS:
        source, count = re.subn(pattern, kept + "from headrace.torch import DataLoader", source, flags=re.MULTILINE)
        replaced += count
    if not replaced:
        raise ValueError("the file imports no DataLoader of torch.utils.data or torchdata: are these PyTorch's tests?")
    return source


def run(name: str, checkout: Path, options: Sequence[str]) -> int:
    """Runs a project's tests; pytest's exit status."""
    suite = SUITES[name]
    files = [(checkout / file).resolve(strict=True) for file in suite.files]
    with tempfile.TemporaryDirectory(prefix="torch-suite-") as folder:
        if suite.folder is None:
            # Under their own names, by which the tests import their modules.
            for file in files:
                Path(folder, file.name).write_text(with_our_loader(file.read_text()))
            files, start = [Path(folder, file.name) for file in files], Path(folder)
        else:
            start = (checkout / suite.folder).resolve()
        here = str(Path(__file__).parent)
        paths = [str(start), here, *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(start), "-p", Path(__file__).stem]
        command += ["-p", "no:cacheprovider", "-q", "-ra", "--timeout", "600", *options, *map(str, files)]
        environment = {"PYTORCH_TEST_WITH_SLOW": "1", "PYTHONDONTWRITEBYTECODE": "1", **os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(paths), _SUITE: name}
        return subprocess.run(command, env=environment, cwd=start, check=False).returncode


# This file is also a plugin of the pytest that it starts.
if _SUITE in os.environ:
    _suite = SUITES[os.environ[_SUITE]]
    if _suite.folder is not None:
        import torch.utils.data

        import headrace.torch

        torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = headrace.torch.DataLoader  # type: ignore[misc, unused-ignore]

    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Marks what is expected to fail."""
        for item in items:
            for end, reason in _suite.expected.items():
                if item.nodeid.endswith(end):
                    item.add_marker(pytest.mark.xfail(reason=reason))


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in SUITES:
        sys.exit(f"{__doc__}\nPROJECT is one of: {', '.join(SUITES)}")
    sys.exit(run(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
