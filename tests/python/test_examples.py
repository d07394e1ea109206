"""The examples of docs/examples reach, in a short form, a quality that only learning explains; their full forms reach
what their docstrings say. Those of plugins, Wirehead and PyTorch have tests of their own.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from doc_programs import DOCS, run
from headrace import sysconfig

EXAMPLES = DOCS / "examples"
SHORT_FORMS = {
    "diabetes.py": [],
    "lenet_digits.py": ["--epochs", "2", "--plot", "", "--target", "0.9"],
    "paddle_exchange.py": [],
    "seq2seq_dates.py": ["--epochs", "1", "--target", "0.3"],
    "word2vec.py": ["--epochs", "2", "--limit", "100000", "--target", "0.25"],
    "word_language.py": ["--epochs", "3", "--limit", "1500", "--target", "0.6"],
    "word_segmentation.py": ["--epochs", "1", "--target", "0.45"],
}
NEEDS = {"paddle_exchange.py": "paddle", "word_language.py": "spellchecker"}
pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="the data are scikit-learn's")


def test_every_example_has_a_short_form() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} - {"torch_digits.py"} == set(SHORT_FORMS)


@pytest.mark.parametrize("name", SHORT_FORMS)
def test_a_short_form_reaches_its_target(name: str, tmp_path: Path) -> None:
    if find_spec(NEEDS.get(name, "sklearn")) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    print(run(tmp_path, sys.executable, str(EXAMPLES / name), *SHORT_FORMS[name]))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path(sysconfig.get_cmake_dir()).exists(), reason="not installed from a wheel")
@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed")
def test_a_model_is_served_by_threads_of_cpp(tmp_path: Path) -> None:
    example = EXAMPLES / "serving"
    options = [f"-DHeadrace_DIR={sysconfig.get_cmake_dir()}", "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"]
    run(tmp_path, "cmake", "-S", str(example), "-B", "build", *options)
    run(tmp_path, "cmake", "--build", "build")
    (*_, result) = run(tmp_path, sys.executable, str(example / "digits.py"), "build/serve").splitlines()
    assert result.endswith("the answers are those of Python")
    run(tmp_path, "build/serve", "no_model", "2", status=1)
