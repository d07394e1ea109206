"""Random loaders under random circumstances, for as long as asked: every batch is compared, bit for bit, with that of a
loader without workers that nothing happens to, and what this process holds afterwards must not grow.

    make soak                                             ten minutes
    SOAK_SECONDS=60 make soak                             one
    python tests/soak/soak.py --seed 7 --rounds 1         the case of seed 7
    python tests/soak/soak.py --only graph "edit between" only cases with these features; --list names all

Prints figures, as text and as JSON. Each case is drawn from a seed of its own, the first one's being ``--seed``. Of one
that fails, the seed, what happened, and a script, with everything left out without which it fails, too. Exits with
status 1 if a batch differs, a loader hangs or raises, a worker is left, or something grows.

``cases.py`` draws cases, of what ``datasets.py`` and ``graphs.py`` have; ``model.py`` says what is expected; ``run.py``
runs one case, with ``torment.py``.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import dataclasses
import gc
import importlib.util
import json
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cases
from cases import Case
from model import Difference
from run import Hang, run
from torment import COUNTS, workers_of

# What may be more at the end than after the first cases: allocators keep some of what they once had.
_SLACK_BYTES = 48 << 20
_SLACK_DESCRIPTORS = 0
_SLACK_THREADS = 2  # that which ends idle workers comes and goes, and so do timers of the soak

# What does not hold yet, as features that together are not tried; --all tries them all the same.
KNOWN: list[frozenset[str]] = []


@dataclasses.dataclass
class Holdings:
    """What this process has, with no loader under way."""

    anonymous_bytes: int
    shared_bytes: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Holdings:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return cls(
            int(fields["RssAnon"].split()[0]) << 10,
            int(fields["RssShmem"].split()[0]) << 10,
            len(os.listdir("/proc/self/fd")),
            int(fields["Threads"]),
        )


def failure_of(case: Case) -> tuple[str, tuple[int, int]]:
    """What is wrong with a case, empty if nothing is; and how many epochs and batches there were."""
    try:
        trial = run(case)
    except (Exception, Hang) as error:
        edits = "".join(f"\n  edit: {edit}" for edit in getattr(error, "edits", ()))
        frames = traceback.format_exception(error)
        return ("" if isinstance(error, Difference) else "".join(frames[-5:-1])) + frames[-1] + edits.lstrip("\n"), (
            0,
            0,
        )
    left = workers_left()
    return f"workers {left} are left" if left else "", (trial.epochs, trial.batches)


def workers_left() -> list[int]:
    """Workers that do not end by themselves."""
    deadline = time.monotonic() + 100
    while (left := workers_of(os.getpid())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def simplest(case: Case, failure: str, seconds: float) -> tuple[Case, str]:
    """A case with as little as possible that fails, and how."""
    end = time.monotonic() + seconds
    found = True
    while found:
        found = False
        for simpler in cases.simpler(case):
            # What depends on the moment may need several tries.
            for _ in range(3):
                if time.monotonic() > end:
                    return case, failure
                other, _ = failure_of(simpler)
                if other:
                    case, failure, found = simpler, other, True
                    break
            if found:
                break
    return case, failure


def chosen(seed: int, only: frozenset[str], without: frozenset[str], everything: bool) -> Iterator[Case]:
    """Cases with all features of ``only`` and none of ``without``, from a seed on."""
    while True:
        case = cases.draw(seed)
        seed += 1
        features = case.features
        known = not everything and any(together <= features for together in KNOWN)
        if only <= features and not (without & features) and not known:
            yield case


def soak(options: argparse.Namespace) -> dict[str, Any]:
    counts: collections.Counter[str] = collections.Counter()
    wrong: list[dict[str, Any]] = []
    holdings: list[Holdings] = []
    begin, end = time.monotonic(), time.monotonic() + options.seconds
    # Processes that serve all loaders, so that they do not count as something that grows.
    multiprocessing.forkserver.ensure_running()
    multiprocessing.resource_tracker.ensure_running()
    without = frozenset(options.without)
    if "torch" not in without:
        if importlib.util.find_spec("torch") is None:
            print("PyTorch is not installed: cases with the feature torch are left out")
            without |= {"torch"}
        else:
            importlib.import_module("torch.distributed.checkpoint")  # now, so that it does not count as growth
    rounds = epochs = batches = 0
    for case in chosen(options.seed, frozenset(options.only), without, options.all):
        if rounds >= options.rounds or (time.monotonic() > end and rounds >= 4):
            break
        if options.verbose:
            print(f"seed {case.seed}\n{case.script()}", flush=True)
        rounds += 1
        counts.update(case.features)
        failure, (more_epochs, more_batches) = failure_of(case)
        epochs += more_epochs
        batches += more_batches
        if failure:
            after = round(time.monotonic() - begin, 1)
            print(f"WRONG: seed {case.seed}, after {after} s: {failure}\n{case.script()}", flush=True)
            if options.shrink:
                simple, failure = simplest(case, failure, options.shrink)
                print(f"as simple as it gets: {failure}\n{simple.script()}", flush=True)
            wrong.append({"seed": case.seed, "after": after, "failure": failure.strip().splitlines()[0]})
            if len(wrong) >= options.stop_after:
                break
        if rounds % 10 == 0 or rounds < 20:
            holdings.append(Holdings.now())
    grown = growth(holdings, wrong) if len(holdings) >= 8 else {}
    return {
        "seconds": round(time.monotonic() - begin),
        "processor_seconds": round(sum(os.times()[:4])),
        "seed": options.seed,
        "rounds": rounds,
        "epochs": epochs,
        "batches": batches,
        **{name: COUNTS[name] for name in ("kills", "stops")},
        "holdings": grown,
        "features": dict(sorted(counts.items())),
        "wrong": wrong,
    }


def growth(holdings: list[Holdings], wrong: list[dict[str, Any]]) -> dict[str, Any]:
    """What the process held early and late; what has grown is wrong."""
    found = {}
    early, late = holdings[: max(2, len(holdings) // 4)], holdings[-max(2, len(holdings) // 4) :]
    for field in dataclasses.fields(Holdings):
        before, after = (min(getattr(each, field.name) for each in some) for some in (early[-2:], late))
        most = max(getattr(each, field.name) for each in early)
        found[field.name] = {"early": before, "early, at most": most, "late": after}
        slack = {"descriptors": _SLACK_DESCRIPTORS, "threads": _SLACK_THREADS}.get(field.name, _SLACK_BYTES)
        if after > most + slack:
            wrong.append({"failure": f"{field.name} grew from {most} to {after}"})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SOAK_SECONDS", "600")))
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="at most so many cases")
    parser.add_argument("--seed", type=int, default=int(time.time()) * 1000, help="of the first case")
    parser.add_argument("--only", nargs="*", default=(), metavar="FEATURE", help="cases that have all of these")
    parser.add_argument("--without", nargs="*", default=(), metavar="FEATURE", help="cases that have none of these")
    parser.add_argument("--all", action="store_true", help="also what is known not to hold yet")
    parser.add_argument(
        "--shrink", type=float, default=30, metavar="SECONDS", help="for how long a case is made simpler"
    )
    parser.add_argument("--stop-after", type=int, default=20, metavar="N", help="end after so many cases that fail")
    parser.add_argument("--verbose", action="store_true", help="print each case before it runs")
    parser.add_argument("--list", action="store_true", help="name the features, with their share of the cases")
    options = parser.parse_args()
    if options.list:
        drawn = collections.Counter(word for seed in range(5000) for word in cases.draw(seed).features)
        for word, number in drawn.most_common():
            print(f"{number / 50:5.1f} %  {word}")
        return 0
    warnings.simplefilter("ignore", RuntimeWarning)  # each death is one
    result = soak(options)
    for name, value in result.items():
        if name not in ("wrong", "holdings", "features"):
            print(f"{name:>17} {value}")
    for name, values in result["holdings"].items():
        print(f"{name:>17} " + ", ".join(f"{when} {value:,}" for when, value in values.items()))
    print(" " * 9 + "features " + ", ".join(f"{name} {count}" for name, count in result["features"].items()))
    for each in result["wrong"]:
        print("WRONG:", each)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
