"""``python -m headrace.wirehead``, ``headrace-wirehead``: generates, manages, shows, cleans, demonstrates, measures."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import time

from headrace._standard_output import run_command
from headrace.wirehead._command_line.supervisor import Supervisor, end_with_parent, load_function, report_to, run_one
from headrace.wirehead._format.compression import require_library
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._stores.store import SETTINGS
from headrace.wirehead.config import Config, at_least
from headrace.wirehead.errors import ConfigError, StoreError
from headrace.wirehead.manager import WireheadManager, log_to_stdout
from headrace.wirehead.status import status_of


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(
        prog="python -m headrace.wirehead", description="A circular cache of synthetic samples."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, has_config: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        if has_config:
            added.add_argument(
                "--config", default="config.yaml", help="path of the configuration file (default: %(default)s)"
            )
        return added

    generate = command("generate", "run generator processes, and restart those that die")
    generate.add_argument(
        "function", metavar="MODULE:FUNCTION", help="function that yields samples; may take index, count and seed"
    )
    generate.add_argument("-n", type=at_least(1), default=1, metavar="N", help="number of processes (default: 1)")
    generate.add_argument(
        "--index", type=at_least(0), help="index of the first process (default: N x SLURM_ARRAY_TASK_ID, or 0)"
    )
    generate.add_argument(
        "--seed", type=at_least(0, math.inf), help="seed for all random numbers (default: a new one for each run)"
    )
    generate.add_argument("--samples", type=at_least(1), metavar="K", help="stop each process after K samples")
    generate.add_argument(
        "--grace",
        type=at_least(0.0),
        default=30,
        metavar="S",
        help="kill processes that take more than S seconds to end (default: 30)",
    )
    for internal in ("--count", "--parent", "--report"):
        generate.add_argument(internal, type=int, help=argparse.SUPPRESS)
    generate.add_argument("--seeds", help=argparse.SUPPRESS)

    manage = command("manage", "verify samples, swap generations and drop old ones; log each swap")
    manage.add_argument("--swaps", type=at_least(1), metavar="K", help="stop after K swaps")

    status = command("status", "show the current generation, how full the next one is, rates, and who uses the cache")
    status.add_argument("--json", action="store_true", help="one JSON object per line")
    status.add_argument(
        "--watch", type=at_least(0.01), nargs="?", const=2.0, metavar="S", help="repeat every S seconds (default: 2)"
    )

    clean = command("clean", "remove a cache and everything stored in it")
    clean.add_argument("--force", action="store_true", help="remove the cache even if it is in use")
    clean.add_argument("--dry-run", action="store_true", help="only say what would be removed")

    demo = command("demo", "generate samples and train on them, on this machine and with nothing else installed", False)
    demo.add_argument("--seconds", type=at_least(0.1), default=10, help="how long to train (default: %(default)g)")
    demo.add_argument("-n", type=at_least(1), default=2, metavar="N", help="generator processes (default: 2)")

    bench = command("bench", "benchmark the cache and Wirehead's published algorithm", False)
    bench.add_argument("--uri", help="address of a server that speaks MongoDB's protocol (default: a folder)")
    bench.add_argument("--only", nargs="+", metavar="PART", help="transfer, latency, scaling, swap or storm")
    bench.add_argument("--quick", action="store_true", help="repeat less often")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0; 1 if something failed; 2 if it was asked for something impossible.

    With a configuration file in place of a command, it behaves as the original's ``wirehead``.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return run_command("headrace.wirehead", lambda: _run(given))


def _run(arguments: list[str]) -> int:
    try:
        if _is_for_the_original(arguments):
            from headrace.wirehead.compat import log_swaps

            return log_swaps(arguments)
        options = parser().parse_args(arguments)
        code: int = globals()[f"_{options.command}"](options)
        return code
    except (ConfigError, FileNotFoundError, ImportError) as error:
        print(f"headrace.wirehead: {error}", file=sys.stderr)
        return 2
    except (StoreError, TimeoutError) as error:
        print(f"headrace.wirehead: {error}", file=sys.stderr)
        return 1


def _is_for_the_original(arguments: list[str]) -> bool:
    """Whether there is a configuration file, and nothing else but options."""
    before = ["", *arguments]
    others = [
        text
        for text, option in zip(arguments, before)
        if not text.startswith("-") and option not in ("--config", "--poll-interval")
    ]
    return len(others) == 1 and others[0].endswith((".yaml", ".yml", ".json"))


def _generate(options: argparse.Namespace) -> int:
    log_to_stdout()
    if options.seeds is not None:  # one of a supervisor's processes
        end_with_parent(options.parent)
        seeds = [int(number) for number in options.seeds.split(",")]
        of_all = options.function, options.config, options.index, options.count, seeds, options.samples
        return run_one(*of_all, report_to(options.report))
    require_library(Config.load(options.config).compression)
    load_function(options.function)
    first = options.index
    if first is None:
        task = os.environ.get("SLURM_ARRAY_TASK_ID", "0")
        if not task.isdecimal():
            raise ConfigError(f"SLURM_ARRAY_TASK_ID must be a whole number, got {task!r}: correct it, or pass --index")
        first = int(task) * options.n
    supervisor = Supervisor(
        options.function, options.config, options.n, first, options.seed, options.samples, options.grace
    )
    return 1 if supervisor.run() else 0


def _manage(options: argparse.Namespace) -> int:
    WireheadManager(options.config).run_manager(options.swaps)
    return 0


def _status(options: argparse.Namespace) -> int:
    with contextlib.closing(Cache(options.config, create=False)) as cache:
        while True:
            status = status_of(cache)
            if options.json:
                print(json.dumps(status.to_dict()), flush=True)
            else:
                if options.watch is not None and sys.stdout.isatty():
                    print("\x1b[H\x1b[2J", end="")
                print(status, flush=True)
            if options.watch is None:
                return 0
            time.sleep(options.watch)


def _clean(options: argparse.Namespace) -> int:
    with contextlib.closing(Cache(options.config, create=False, check=False)) as cache:
        users = sorted({str(lease.get("process")) for lease in cache.leases().values()})
        if users and not options.force:
            raise StoreError(
                f"{cache.config.dbname} is in use by {', '.join(users)}; stop them, wait {cache.config.lease:g} "
                "seconds for those that have died, or use --force"
            )
        store = cache.store
        if store.find(SETTINGS, "settings") is not None or store.incarnations():
            generations = ", ".join(map(str, store.generations())) or "none"
            what = f"the cache {cache.config.cache} (generations: {generations})"
            print(f"would remove {what}" if options.dry_run else f"removes {what}", flush=True)
            done = ["removed"]
        else:
            print(f"there is no cache {cache.config.cache}", flush=True)
            done = []
        if not options.dry_run:  # without a cache, too: a process that was killed while it cleaned leaves a folder
            kept = [f"kept, because it does not belong to the cache: {path}" for path in store.clean()]
            print(*done, *kept, sep="\n", end="\n" if done or kept else "")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from headrace.wirehead._command_line.demo import run_demo

    return run_demo(options.seconds, options.n)


def _bench(options: argparse.Namespace) -> int:
    from headrace.wirehead._benchmarks.bench import run_bench

    return run_bench(options.uri, options.only, options.quick)
