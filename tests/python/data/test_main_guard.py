"""Programs whose main module starts workers again when workers import it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing
from headrace.data import DataLoader

class Numbers:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index

def main(context):
    print([batch.tolist() for batch in DataLoader(Numbers(), 4, num_workers=2, multiprocessing_context=context)])

"""


def run(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + end)
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_without_a_main_guard_one_error_names_it(context: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"main({context!r})\n")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace.errors.FailedPrecondition: each worker imports the main module")
    assert 'if __name__ == "__main__":' in last


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_an_error_of_the_main_module_in_a_worker_names_it_too(context: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"multiprocessing.set_start_method({context!r})\nmain(None)\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    if context == "forkserver" and sys.version_info >= (3, 13, 1):  # which imports it, and has no start method yet
        assert "importing it started another iteration over a loader" in last, done.stderr
        return
    assert "RuntimeWarning" not in done.stderr, done.stderr
    assert 2 <= done.stderr.count("Traceback") <= 3, done.stderr  # those of two workers, and
    assert "exited with status 1 while it imported the main module of the program" in last, done.stderr
    assert 'if __name__ == "__main__":' in last


# As Python does itself from 3.13.1 on.
PRELOAD = """
from multiprocessing import spawn
prepare = spawn.get_preparation_data
spawn.get_preparation_data = lambda name: (data := prepare(name)) | {"main_path": data.get("init_main_from_path")}
"""


def test_a_forkserver_that_imports_the_main_module_needs_its_guard(tmp_path: Path) -> None:
    """As a worker does; the error does not point to what the forkserver printed, which is nothing."""
    done = run(tmp_path, f'{PRELOAD}\nmain("forkserver")\n')
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace.errors.FailedPrecondition: each worker imports the main module"), done.stderr
    assert 'if __name__ == "__main__":' in last


def test_a_forkserver_that_fails_to_import_the_main_module_is_no_mystery(tmp_path: Path) -> None:
    end = 'if __name__ == "__main__":\n    main("forkserver")\nelse:\n    raise KeyError\n'
    done = run(tmp_path, f"{PRELOAD}\n{end}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace.errors.FailedPrecondition: the forkserver has exited"), done.stderr
    assert 'if __name__ == "__main__":' in last
    # Of what it met itself, multiprocessing's, and ours.
    assert done.stderr.count("Traceback") == 3, done.stderr


def test_a_process_of_the_programs_own_is_told_itself(tmp_path: Path) -> None:
    end = 'if __name__ == "__main__":\n    p = multiprocessing.get_context("spawn").Process(); p.start(); p.join()\n'
    done = run(tmp_path, f'{end}else:\n    main("spawn")\n')
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "each worker imports the main module" in done.stderr.strip().splitlines()[-1]


def run_without_file(*arguments: str, program: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, input=program, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_what_a_notebook_defines_is_refused_before_a_worker_starts(context: str) -> None:
    # As that of a kernel, the main module of a command has no file.
    done = run_without_file("-c", f"{PROGRAM}\nmain({context!r})\n")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("_pickle.PicklingError: dataset needs Numbers, which this notebook"), done.stderr
    assert "Define it in a module" in last
    assert 'multiprocessing_context="fork"' in last


def test_workers_that_start_after_the_last_line_of_the_program_cannot_import_it(tmp_path: Path) -> None:
    late = "threading.Thread(target=lambda: (threading.main_thread().join(1), main('spawn'))).start()"
    done = run(tmp_path, f'import threading\nif __name__ == "__main__":\n    {late}\n')
    last = done.stderr.strip().splitlines()[-1]
    assert "dataset needs Numbers of the main module" in last, done.stderr
    assert 'which has run to its end, so workers of the start method "spawn" cannot import it' in last
    assert "notebook" not in last


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_notebook_may_use_what_it_imports(context: str) -> None:
    program = (
        "from headrace.data import DataLoader, Subset\n"
        f"loader = DataLoader(Subset(range(8), [1, 3]), 2, num_workers=2, multiprocessing_context={context!r})\n"
        "print(next(iter(loader)).tolist())\n"
    )
    done = run_without_file("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 3]\n", "")


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_program_from_standard_input_cannot_be_imported(context: str) -> None:
    done = run_without_file("-", program=f"{PROGRAM}\nmain({context!r})\n")
    assert done.stderr.count("Traceback") == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("headrace.errors.FailedPrecondition: workers of the start method"), done.stderr
    assert "there is no file '<stdin>'" in last


def run_main_file(kind: str, folder: Path, main: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that is a ``__main__.py``, beside a module ``numbers_of``."""
    application = folder / "application"
    application.mkdir()
    (application / "__main__.py").write_text(main)
    (application / "numbers_of.py").write_text(PROGRAM)
    arguments = {"package": ["-m", "application"], "folder": ["application"], "archive": ["application.zip"]}[kind]
    if kind == "archive":
        shutil.make_archive(str(application), "zip", application)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250, check=False)


MAIN_FILES = pytest.mark.parametrize(
    ("kind", "context"), [("package", "spawn"), ("folder", "spawn"), ("archive", "spawn"), ("archive", "forkserver")]
)


@MAIN_FILES
def test_a_main_file_may_use_what_it_imports(kind: str, context: str, tmp_path: Path) -> None:
    """Workers do not import it: multiprocessing leaves out main modules of this name."""
    module = "application.numbers_of" if kind == "package" else "numbers_of"
    done = run_main_file(
        kind, tmp_path, f"from {module} import main\nif __name__ == '__main__':\n    main({context!r})\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[0, 1, 2, 3], [4, 5, 6, 7]]\n"


@MAIN_FILES
def test_what_a_main_file_defines_is_refused_before_a_worker_starts(kind: str, context: str, tmp_path: Path) -> None:
    done = run_main_file(kind, tmp_path, f"{PROGRAM}if __name__ == '__main__':\n    main({context!r})\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("_pickle.PicklingError: dataset needs Numbers of the main module"), done.stderr
    assert "__main__.py of a package, a folder or an archive, so workers" in last
    assert "Define it in another module that the program imports" in last


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_class_under_the_main_guard_is_no_mystery(context: str, tmp_path: Path) -> None:
    end = f'if __name__ == "__main__":\n    class Numbers(list):\n        pass\n    main({context!r})\n'
    script = PROGRAM.replace("class Numbers:", "class Others:").replace(
        "DataLoader(Numbers()", "DataLoader(Numbers([1])"
    )
    (tmp_path / "program.py").write_text(script + end)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    said = r"(Can't get attribute 'Numbers' on <module '__mp_main__'|module '__mp_main__' has no attribute 'Numbers')"
    assert re.match(f"headrace.errors.FailedPrecondition: {said}", last), done.stderr
    assert 'Define it outside of `if __name__ == "__main__":`' in last


def test_with_a_main_guard_it_runs(tmp_path: Path) -> None:
    done = run(tmp_path, 'if __name__ == "__main__":\n    main("spawn")\n    main("forkserver")\n')
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[[0, 1, 2, 3], [4, 5, 6, 7]]\n" * 2
