"""Which epoch of a loader comes next, where it begins, and which engine makes it."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

from headrace._weak_collections import WeakBag
from headrace.data._config import LoaderConfig
from headrace.data._datasets.datasets import has_state
from headrace.data._datasets.iterable_datasets import read_twice
from headrace.data._iteration.engine import Engine
from headrace.data._iteration.feed import Feed
from headrace.data._iteration.idle import IdleEngine
from headrace.data._iteration.iterator import BatchIterator
from headrace.data._iteration.progress import OnlyReading, Progress
from headrace.data._iteration.state import Position, StreamPosition
from headrace.data._order.choose_order import opened, upcoming
from headrace.data._randomness.sample_seeds import worker_base_seed
from headrace.data._randomness.torch_generators import draw_torch_seed
from headrace.data._samplers.protocols import SeekableSampler
from headrace.data._samplers.samplers import BatchSampler
from headrace.data._system.interpreter_exit import rest_if_interpreter_exits
from headrace.data._untold_state import UntoldState, known
from headrace.data._world import warn_of_shared_samples


class Epochs:
    """The epochs of one loader. A copy continues from the position of this one, independently of it.

    Attributes:
        seed: of the order; None until torch draws it.
        num_workers: with "auto", how many there were when the latest epoch ended.
        next: where the next iteration begins.
        resuming: whether that is within an epoch whose state was loaded.
        idle: an engine that waits for the next epoch.
        latest: of the latest iteration; None before the first, and once a state was loaded.
        running: what takes batches of an engine now.
    """

    def __init__(self, config: LoaderConfig) -> None:
        self._config = config
        self.seed = config.seed
        self.num_workers = config.num_workers
        self.next = Position(0)
        self.resuming = False
        self.idle = IdleEngine()
        self.latest: Progress | None = None
        self.running: WeakBag[Feed | BatchIterator] = WeakBag()
        self._only_reading = OnlyReading()
        # How far the latest iteration was when another epoch was chosen; None: none was.
        self._chosen_at: int | None = None
        self._refreshed = 0  # how often refresh() was called
        # Where an iterable dataset that no worker reads was before this loader read it; None: it has not yet.
        self._initial: tuple[StreamPosition, ...] | None = None
        # Whether a batch of an iteration before the latest was requested.
        self._was_read = False
        # Whether the latest engine could compare the dataset with that of its workers.
        self._comparable = True

    def __getstate__(self) -> dict[str, Any]:
        fresh = dict.fromkeys(("idle", "latest", "running", "_chosen_at"))
        position, resuming = self._continued()
        return {**self.__dict__, **fresh, "next": position, "resuming": resuming, "_was_read": self._is_read}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.idle = IdleEngine()
        self.running = WeakBag()

    def start(self, own_sampler: SeekableSampler | None = None, feeds: bool = False) -> tuple[Engine, Progress]:
        """Starts the next epoch.

        Args:
            own_sampler: the one that the loader shows, if it was given none.
            feeds: the batches go into a queue of a program.
        """
        rest_if_interpreter_exits()
        config = self._config
        if self._only_reading.has_begun:
            raise read_twice()
        if not config.iterable:
            shuffles_unseeded = config.shuffle and not config.seed_is_given
            warn_of_shared_samples(config.shard, config.sampler, config.batch_sampler, shuffles_unseeded)
        for sampler in (config.sampler, config.batch_sampler, own_sampler):
            # A call of sampler.set_epoch, as for torch's DistributedSampler, sets the loader's epoch, too.
            chosen = sampler.chosen_epoch() if isinstance(sampler, (SeekableSampler, BatchSampler)) else None
            if chosen is not None and not self.resuming:
                self.next = Position(chosen, plan=self._plan_of_another_epoch())
        position, resumed = self.next, self.resuming
        drawn = begun = None
        draws = config.follows_torch and (self.seed is None or (config.draws_each_epoch and not position.begun))
        if draws and not position.plan and not position.begun:
            begun = opened(config)
        self.resuming = False
        if draws:
            drawn = draw_torch_seed(config.torch_generator)
            if self.seed is None:
                self.seed = drawn
        # Given up, an epoch leaves streams where it began, and not every worker, or copy of the dataset, is there.
        here = self._stream_here() if self._initial is None or not (position.batch or position.streams) else ()
        self._initial = here if self._initial is None else self._initial
        begins = self._begins(position) if position.batch else position.streams or here
        length = config.dataset_length()
        engine = self.idle.take()
        if engine is not None and not (
            engine.feeds == feeds
            and engine.refreshed == self._refreshed
            and engine.usable(length)
            and engine.follow(position)
        ):
            engine.close()
            engine = None
        if engine is None:
            seed = self.seed or 0
            # New workers must not draw the numbers that earlier ones drew.
            base_seed = worker_base_seed(seed, position.epoch, position.batch) if drawn is None else drawn
            initial = known(self._initial[0].state) if self._initial else None
            try:
                engine = Engine(config, seed, base_seed, position, self._refreshed, self._comparable, feeds, initial)
            except BaseException:
                rest_if_interpreter_exits()
                raise
            self._comparable = engine.comparable
        self.next = Position(position.epoch + 1, streams=begins)
        self._chosen_at = None
        try:
            engine.start_epoch(position, begun)
        except BaseException:
            engine.close()
            raise
        self._was_read = self._is_read
        self.latest = Progress(engine, position, resumed, begins)
        if config.read_once and feeds:
            self._only_reading.begin(self.latest)
        return engine, self.latest

    def begin_reading(self) -> Callable[[BatchIterator], None] | None:
        """What an iteration has to call before its first batch is requested; it may raise FailedPrecondition."""
        only = self._only_reading
        return (lambda batches: only.begin(batches.progress)) if self._config.read_once else None

    def give_back_of(self, progress: Progress) -> Callable[[Engine], None]:
        """What takes back an engine whose iteration is over, if the loader is still there, and the epoch with it, if
        nobody has read of it.
        """
        reference = weakref.ref(self)
        following = self.next

        def give_back(engine: Engine) -> None:
            epochs = reference()
            if epochs is None:
                engine.close()
            elif engine.is_mine():
                unread = progress.untouched and not progress.feeding
                progress.given_up = progress.feeding and not progress.finished
                if epochs.next is not following:
                    # If the iteration that has started since is not read either, both are given back.
                    for running in epochs.running if unread else ():
                        if isinstance(running, BatchIterator) and running.progress.back[0] is following:
                            running.progress.back = progress.back
                elif unread:
                    epochs.next, epochs.resuming = progress.back
                    if epochs.latest is progress:
                        epochs._chosen_at = progress.batch
                elif progress.finished:
                    # Of workers that share a stream, one was at its end: the others begin where it was. And the worker
                    # that takes the place of a worker begins where that one was.
                    epochs.next = progress.position(None)
                epochs._release(engine, epochs.latest is progress)

        return give_back

    def _release(self, engine: Engine, is_latest: bool) -> None:
        engine.let_go()
        if self._config.auto_workers:
            self.num_workers = engine.workers.count
        # In this process, others have read the dataset since: the position known here is out of date.
        outdated = self._config.iterable and self._config.num_workers == 0 and not is_latest
        if not engine.lasts or outdated or self.idle or not engine.usable(engine.length):
            engine.close()
        else:
            self.idle.put(engine, self._config.workers_are_alike)

    def choose(self, epoch: int) -> None:
        """Makes ``epoch`` the next iteration's; a state within that epoch stays."""
        if not self.resuming or epoch != self.next.epoch:
            # Of streams, a state between two epochs is one of the dataset, whichever epoch comes next.
            streams = self.next.streams if self.next.batch == 0 else self._begins(self.next)
            self.next = Position(epoch, plan=self._plan_of_another_epoch(), streams=streams)
            self.resuming = False
        if self.latest is not None and (self.latest.finished or not self.latest.feeding):
            self._chosen_at = self.latest.batch

    def refresh(self) -> None:
        """Has the next iteration begin in new workers."""
        self._refreshed += 1
        self._comparable = True

    def reached(self, batches: int | None, goes_on: bool = True) -> tuple[int | None, Position]:
        """The seed and the position that a state of now names.

        Args:
            batches: of the epoch, how many were consumed.
            goes_on: whether the rest of an epoch that was given up may still be asked for.
        """
        latest = self.latest
        if latest is not None and self._iterates and (goes_on or not latest.given_up):
            position = latest.position(batches)
        elif batches is None or self.resuming:
            position = self.next
        else:
            position = Position(self.next.epoch, batches)
        seed, here = self.seed, position.batch == 0 and not position.streams
        if not any(stream != StreamPosition() for stream in position.streams):
            position = dataclasses.replace(position, streams=())
        if position == Position(position.epoch, begins=position.begins):
            seed, plan = upcoming(self._config, seed)
            position = Position(position.epoch, plan=plan, streams=self._known_here() if here else ())
        return seed, position

    def resume(self, position: Position, seed: int | None) -> None:
        """Makes the next iteration begin at ``position``, of an order with ``seed``."""
        self.end_running("another state was loaded during the iteration; start a new iteration")
        if seed != self.seed:
            self.idle.close()  # their workers have the other seed
        self.seed = seed
        self.next = position
        self.resuming = True
        self._was_read = self._is_read
        self.latest = None

    def succeed(self, other: Epochs) -> None:
        """Counts epochs on from where another loader of the same dataset stands, in whose place this one comes."""
        if not self._config.seed_is_given:
            self.seed = other.seed
        self.next, self.resuming, self.latest = other.next, other.resuming, other.latest
        self._initial, self._was_read = other._initial, other._was_read
        self._only_reading = other._only_reading
        self._chosen_at = other._chosen_at
        other.idle.close()

    def latest_engine(self) -> Engine | None:
        """The engine of the latest iteration, if it belongs to this process."""
        engine = self.latest.engine if self.latest is not None else None
        return engine if engine is not None and engine.is_mine() else None

    def end_running(self, reason: str, feed_reason: str | None = None) -> None:
        for running in self.running:
            if isinstance(running, Feed):
                running.stop(feed_reason or reason)
            else:
                running.end(reason)
        self.running.clear()

    def close(self) -> None:
        """Ends the workers."""
        self.end_running(
            "the loader was shut down during the iteration", "the loader was shut down while it fed the queue"
        )
        self.idle.close()
        if self.latest is not None:
            self.latest.engine = None

    @property
    def _iterates(self) -> bool:
        """Whether the latest iteration says where the loader is, rather than an epoch that was chosen since."""
        return self.latest is not None and self.latest.batch != self._chosen_at

    @property
    def _is_read(self) -> bool:
        """Whether a batch of any iteration was requested."""
        return self._was_read or (self.latest is not None and not self.latest.untouched)

    def _continued(self) -> tuple[Position, bool]:
        """The position from which a copy continues, and whether it is within an epoch."""
        latest = self.latest
        if latest is None or not self._iterates or (latest.feeding and not latest.finished):
            return self.next, self.resuming
        if latest.untouched:
            return latest.back
        return latest.position(None), not latest.finished

    def _stream_here(self) -> tuple[StreamPosition, ...]:
        """Between epochs: where an iterable dataset is that no worker reads; empty if it has no state."""
        dataset = self._config.dataset
        if not self._config.iterable or self._config.num_workers > 0 or not has_state(dataset):
            return ()
        try:
            state = dataset.state_dict()
        except Exception as error:
            state = UntoldState(dataset, error) if self._is_read else None  # before it has started it may have none
        return (StreamPosition(0, state),)

    def _known_here(self) -> tuple[StreamPosition, ...]:
        """The same; empty also if the dataset does not say."""
        return tuple(stream for stream in self._stream_here() if stream.state is not None)

    def _plan_of_another_epoch(self) -> dict[str, Any]:
        """What a state between two epochs says of the next order, which goes on there whatever the epoch's number."""
        return {} if self.next.begun else self._config.sampler_state.of_another_epoch(self.next.plan)

    def _begins(self, position: Position) -> tuple[StreamPosition, ...]:
        """Where the streams of an epoch began that ``position`` is in the middle of: of a state, which does not say,
        where the loader has found its dataset.
        """
        return (self._initial or ()) if position.begins is None else position.begins
