"""``sbatch``, ``srun`` and ``scancel`` for one machine, as programs in a folder to put in front of PATH."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

SBATCH = r"""
    import itertools, os, pathlib, re, subprocess, sys
    script = sys.argv[-1]
    jobs = pathlib.Path(__file__).with_name("jobs")
    jobs.mkdir(exist_ok=True)
    job = next(n for n in itertools.count(5001) if not (jobs / str(n)).exists())
    found = re.search(r"^#SBATCH --array=(\d+)-(\d+)", open(script).read(), re.MULTILINE)
    tasks = range(int(found[1]), int(found[2]) + 1) if found else [None]
    with open(jobs / str(job), "w") as started:
        for number, task in enumerate(tasks):
            variables = {**os.environ, "SLURM_JOB_ID": str(job + number)}
            if task is not None:
                variables.update(SLURM_ARRAY_JOB_ID=str(job), SLURM_ARRAY_TASK_ID=str(task))
            log = open(jobs / f"{job}_{task}.log", "w")
            process = subprocess.Popen(["bash", script], env=variables, stdout=log, stderr=log, start_new_session=True)
            print(process.pid, file=started)
    print(job if "--parsable" in sys.argv else f"Submitted batch job {job}")
"""
SRUN = """
    import os, sys
    command = [argument for argument in sys.argv[1:] if not argument.startswith("--ntasks")]
    os.execvp(command[0], command)
"""
SCANCEL = """
    import os, pathlib, signal, sys
    for job in sys.argv[1:]:
        for process in (pathlib.Path(__file__).with_name("jobs") / job).read_text().split():
            try:
                os.killpg(int(process), signal.SIGTERM)
            except ProcessLookupError:
                pass
"""
NOTHING = "\n"


def install(folder: Path) -> Path:
    """Makes the programs; returns the folder that they are in."""
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("scancel", SCANCEL), ("conda", NOTHING)):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{textwrap.dedent(text)}")
        program.chmod(0o755)
    python = folder / "python"  # no link: that would be another environment's
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder
