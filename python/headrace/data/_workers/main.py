"""The main function of a worker process or thread."""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing.forkserver
import os
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from headrace import _core
from headrace._waiting import begin_thread
from headrace.data._randomness.sample_seeds import successor_seed
from headrace.data._system.deferred_signals import ignore_interrupts
from headrace.data._system.memory_kills import offer_to_out_of_memory_killer
from headrace.data._system.start_thread import start_thread
from headrace.data._workers.dataset_updates import UpdateReader
from headrace.data._workers.info import set_process_info, thread_info, worker_info, worker_seed
from headrace.data._workers.sample_maker import SampleMaker
from headrace.data._workers.stacks import offer_stacks
from headrace.data._workers.task import WorkerSetup, WorkerTask
from headrace.data._workers.waits import mark_in


def _seed_generators(seed: int, worker_id: int) -> None:
    """The global generators begin as in PyTorch's workers: forked ones would otherwise all draw the same numbers."""
    own_seed = worker_seed(seed, worker_id)
    random.seed(own_seed)
    words = [worker_id, seed & 0xFFFF_FFFF, seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(words).generate_state(4))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(own_seed)
        # As torch's own workers: each is one of many, and a forked one must not use the parent's OpenMP threads.
        torch.set_num_threads(1)


def own_task(setup: WorkerSetup) -> WorkerTask:
    """The task of one worker: one that comes after others of its number has another ``base_seed`` than these, so that
    it does not repeat their numbers. Not for streams: it reads its own from the beginning again, and the data that the
    dataset shuffles with these numbers must come in the same order.
    """
    task = setup.task
    if setup.predecessors == 0 or task.stream is not None:
        return task
    return dataclasses.replace(task, base_seed=successor_seed(task.base_seed, setup.worker_id, setup.predecessors))


def serve_in_thread(maker_of: weakref.ref[SampleMaker], worker_id: int, mark: Callable[[bool], object]) -> None:
    """The whole life of a worker that is a thread of the main process.

    It refers to the maker, and through it to the user's objects, only while it works: otherwise a loader to which its
    own dataset or ``collate_fn`` refers could never be collected.

    Args:
        mark: see :func:`begin_thread`.
    """
    begin_thread(mark, lambda: (maker := maker_of()) is None or maker.producer.stopped)
    claim: _core.Claim | None = None
    while (maker := maker_of()) is not None:
        if claim is None:
            maker.producer.own_thread()
            maker.info = worker_info(maker.task, worker_id)
        thread_info.info = maker.info
        try:
            if claim is None:
                maker.initialize(worker_id)
            else:
                maker.serve(claim)
        finally:
            thread_info.info = None
        producer = maker.producer
        del maker
        claim = producer.wait()
        if claim is None:
            return


def _let_forkserver_end() -> None:
    """Closes this worker's copy of the forkserver's pipe: a forkserver lives as long as any process holds it.

    Otherwise a stopped worker would keep the forkserver alive after the main process has exited, and the forkserver the
    worker, which its end wakes (``exit_with``). Workers have no children, which would need the pipe.
    """
    server = getattr(multiprocessing.forkserver, "_forkserver", None)
    descriptor = getattr(server, "_forkserver_alive_fd", None)
    if descriptor is not None and multiprocessing.current_process().daemon:
        os.close(descriptor)
        server._forkserver_alive_fd = None  # type: ignore[union-attr]


def _note_task(task: WorkerTask, worker_id: int) -> None:
    """Has get_worker_info, and torch's, tell of it."""
    set_process_info(worker_info(task, worker_id))


def start_worker(setup: WorkerSetup) -> Callable[[], None]:
    """Begins the life of a worker process; returns the rest of it.

    Raises:
        ResourceExhausted: a limit keeps its threads from starting.
    """
    offer_to_out_of_memory_killer()  # first: until then the main process is as good a victim
    _core.exit_with(setup.life.fd, setup.sockets)
    # Ctrl-C reaches every process of the terminal; the main process decides how to react.
    ignore_interrupts()
    # A handler that the main process installed would run its clean-up here, and only once the sample is made.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_forkserver_end()
    offer_stacks(setup.stacks.fd)
    time.sleep(setup.delay)
    task = own_task(setup)
    _seed_generators(task.base_seed, setup.worker_id)
    _note_task(task, setup.worker_id)
    first = setup.worker_id * setup.threads
    mark = mark_in(setup.waits.fd, first)
    begin_thread(mark, lambda: False)  # makers may ask the dataset for its sample_spec
    note_task = functools.partial(_note_task, worker_id=setup.worker_id)
    updates = UpdateReader(setup.updates.fd, setup.revision, setup.updates_size, note_task)
    makers = [
        SampleMaker(task, setup.arena.fd, setup.completion.fd, first + thread, updates=updates, revision=setup.revision)
        for thread in range(setup.threads)
    ]
    begin_thread(mark, lambda: makers[0].producer.stopped)
    begin = threading.Event()
    threads = [
        start_thread(
            _run_after,
            begin,
            maker,
            mark_in(setup.waits.fd, first + number),
            name=f"headrace-worker-{setup.worker_id}.{number}",
        )
        for number, maker in enumerate(makers[1:], 1)
    ]
    makers[0].initialize(setup.worker_id)
    for maker in makers[1:]:
        maker.share_failure(makers[0])

    def run() -> None:
        begin.set()
        makers[0].run()
        for thread in threads:  # which may be at a sample when the worker is retired
            thread.join()

    return run


def _run_after(begin: threading.Event, maker: SampleMaker, mark: Callable[[bool], object]) -> None:
    begin_thread(mark, lambda: maker.producer.stopped)
    begin.wait()
    maker.run()
