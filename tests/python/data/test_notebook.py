"""Loaders in the cells of a notebook, run by a kernel of Jupyter's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")

SQUARES = """
from headrace.data import DataLoader, Subset

class Squares:
    factor = 1

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return self.factor * index**2

def values(dataset, **arguments):
    return [batch.tolist() for batch in DataLoader(dataset, batch_size=3, num_workers=2, **arguments)]
"""


@pytest.fixture
def run() -> Iterator[Callable[[str], Any]]:
    """Runs a cell in one kernel: the text that it printed, or the name and the text of its error."""
    notebook = nbformat.v4.new_notebook()
    client = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True)

    def run_cell(source: str) -> Any:
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        outputs = client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1).outputs
        for output in outputs:
            if output.output_type == "error":
                assert len(outputs) == 1, outputs  # nothing of the workers' around it
                return output.ename, output.evalue
        return "".join(output.text for output in outputs)

    with client.setup_kernel():
        yield run_cell


def test_what_a_cell_defines_is_a_dataset_under_fork(run: Callable[[str], Any]) -> None:
    run(SQUARES)
    run("squares = Squares(); loader = DataLoader(squares, 3, num_workers=2, multiprocessing_context='fork')")
    assert run("print([batch.tolist() for batch in loader])") == "[[0, 1, 4], [9, 16, 25]]\n"
    # A cell that is run again changes the class, or the object.
    run("squares.factor = 2")
    assert run("print([batch.tolist() for batch in loader])") == "[[0, 2, 8], [18, 32, 50]]\n"
    run(SQUARES.replace("index**2", "index"))
    assert run("print(values(Squares(), multiprocessing_context='fork'))") == "[[0, 1, 2], [3, 4, 5]]\n"


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_elsewhere_one_error_names_the_remedy_and_the_kernel_goes_on(run: Callable[[str], Any], context: str) -> None:
    run(SQUARES)
    name, text = run(f"values(Squares(), multiprocessing_context={context!r})")
    assert name == "PicklingError"
    assert text.startswith("dataset needs Squares, which this notebook"), text
    assert "Define it in a module" in text
    assert 'multiprocessing_context="fork"' in text
    name, text = run(f"values(range(6), collate_fn=lambda samples: samples, multiprocessing_context={context!r})")
    assert name == "PicklingError"
    assert "collate_fn" in text
    rows = f"print(values(Subset(range(10), [1, 3, 5]), multiprocessing_context={context!r}))"
    assert run(rows) == "[[1, 3, 5]]\n"
    assert run("print(values(Squares()))") == "[[0, 1, 4], [9, 16, 25]]\n"
