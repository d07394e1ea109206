"""Programs that read from datasets in every way while generations are swapped, beside a model that knows what each
sample is. Swaps, reads and damage come in an order that a seed decides.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import remove_chunk

from headrace import DataLoader
from headrace.wirehead import CorruptSampleError, MongoheadDataset, MongoTupleheadDataset
from headrace.wirehead._datasets.sampler import FIRST_ROUND
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.writer import Writer

CAP = 6
SEEDS = 8
KINDS = ["image", "label", "mask"]


def made(generation: int, id: int) -> dict[str, Any]:
    """A sample, which says everywhere which one it is."""
    number = 100 * generation + id
    dtype = [np.float32, np.int16, np.int64][number % 3]
    return {
        "image": np.arange(12, dtype=dtype).reshape(3, 4) + np.array(number, dtype),
        "label": np.full(1, number, np.int64),
        "mask": np.full(1 + number % 4, number % 2 == 0),
    }


def id_of(index: int) -> int:
    """The id that an index of a sampler stands for."""
    return (index - FIRST_ROUND) % CAP


def first_column(array: Any) -> Any:
    return array[..., :1]


def doubled(array: Any) -> Any:
    return array * 2


class World:
    """A cache, its only writer and its only manager."""

    def __init__(self, keys: dict[str, Any], rng: random.Random) -> None:
        self.keys, self.rng = keys, rng
        self.cache = Cache(keys)
        self.writer, self.manager = Writer(self.cache), GenerationManager(self.cache)
        self.stored = 0
        self.damaged: set[tuple[int, int]] = set()
        self.swap()

    @property
    def current(self) -> int:
        return self.cache.current()

    def swap(self) -> None:
        """Makes the next generation readable, unless a reader still holds one before the current one."""
        if self.stored < CAP * (self.current + 1):
            for id in range(CAP):
                assert self.writer.put(made(self.current + 1, id)) == (self.current + 1, id)
                self.stored += 1
        for _ in range(10):
            if self.manager.step() is not None:
                break

    def damage(self) -> None:
        generation, id = self.current, self.rng.randrange(CAP)
        if (generation, id) not in self.damaged and len(self.damaged_of(generation)) < CAP // 2:
            description = self.cache.sample(generation, id)
            assert description is not None
            (name,) = chunk_names(description, range(description["chunks"]))
            (found,) = self.cache.store.read_chunks(generation, [name])
            assert found is not None
            data = bytes(byte ^ 1 for byte in found)
            assert remove_chunk(self.cache, generation, name)  # readers have mapped it
            self.cache.store.write_chunks(generation, {name: data})
            self.damaged.add((generation, id))

    def damaged_of(self, generation: int) -> set[int]:
        return {id for of, id in self.damaged if of == generation}

    def happen(self) -> None:
        """Something, or nothing, beside a program."""
        self.rng.choice([self.swap, self.swap, self.damage, lambda: None])()

    def close(self) -> None:
        self.writer.close()
        self.manager.close()
        self.cache.close()


class Program:
    """Reads from one dataset, and knows what it has to be given."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, world.rng
        self.sample = self.rng.choice([KINDS, KINDS[:2], ["label", "image"], ["mask"]])
        self.to = self.rng.choice(["numpy", None, *(["torch"] if importlib.util.find_spec("torch") else [])])
        self.transform: Callable[[Any], Any] | None = self.rng.choice([None, first_column])
        self.normalize: Callable[[Any], Any] | None = self.rng.choice([None, doubled])
        self.skips = self.rng.random() < 0.5
        self.is_dict = self.rng.random() < 0.5
        self.waits = self.rng.random() < 0.4
        make: Any = MongoheadDataset if self.is_dict else MongoTupleheadDataset
        self.dataset = make(
            world.keys,
            0.05,
            sample=self.sample,
            transform=self.transform,
            normalize=self.normalize,
            to=self.to,
            on_corrupt="skip" if self.skips else "raise",
            wait_for_new=self.waits,
        )

    def expected(self, generation: int, id: int) -> list[Any]:
        """The arrays of a sample, in the order of ``sample``."""
        values = []
        for name in self.sample:
            value = made(generation, id)[name]
            if self.transform is not None:
                value = self.transform(value)
            if self.normalize is not None and name == self.sample[0]:
                value = self.normalize(value if value.dtype.kind in "fc" else value.astype(np.float32))
            values.append(value)
        return values

    def replacement(self, generation: int, id: int) -> int:
        damaged = self.world.damaged_of(generation)
        return next(i % CAP for i in range(id, id + CAP) if i % CAP not in damaged)

    def check(self, found: Any, generation: int, id: int) -> None:
        names = ["input", "label", *self.sample[2:]][: len(self.sample)]
        values = [found[name] for name in names] if self.is_dict else list(found)
        assert len(found) == len(self.sample)
        for value, expected in zip(values, self.expected(generation, id)):
            is_tensor = self.to == "torch" or (self.to is None and "torch" in sys.modules)
            assert type(value).__module__.partition(".")[0] == ("torch" if is_tensor else "numpy")
            array = np.asarray(value)
            assert array.dtype == expected.dtype
            assert array.shape == expected.shape
            assert (array == expected).all()

    def read(self, dataset: Any, index: int, generation: int, id: int) -> None:
        """One sample, of that generation."""
        if id in self.world.damaged_of(generation) and not self.skips:
            with pytest.raises(CorruptSampleError) as caught:
                dataset[index]
            assert (caught.value.generation, caught.value.id) == (generation, id)
            return
        self.check(dataset[index], generation, self.replacement(generation, id))

    def read_many(self, ids: list[int], generation: int) -> None:
        damaged = self.world.damaged_of(generation)
        numbers = [id % CAP for id in ids]
        asked: Any = self.rng.choice([list, tuple, np.array])(ids)
        if damaged & set(numbers) and not self.skips:
            with pytest.raises(CorruptSampleError):
                self.dataset[asked]
            return
        found = self.dataset[asked]
        kept = [id for id, number in zip(ids, numbers) if number not in damaged]
        if self.is_dict:
            assert list(found) == list(dict.fromkeys(kept))
            for id in kept:
                self.check(found[id], generation, id % CAP)
        else:
            assert len(found) == len(kept)
            for sample, id in zip(found, kept):
                self.check(sample, generation, id % CAP)

    def plain(self) -> None:
        """By ids: a pass reads one generation, and another begins where an id comes again."""
        of_pass, seen = 0, set[int]()
        for _ in range(self.rng.randrange(1, 25)):
            self.world.happen()
            count = self.rng.choice([1, 1, 1, 0, 2, 4])
            ids = [self.rng.randrange(-CAP, CAP) for _ in range(count)]
            numbers = {id % CAP for id in ids}
            if not of_pass or numbers & seen:
                of_pass, seen = self.world.current, set()
            seen |= numbers
            if count == 1:
                self.read(self.dataset, ids[0], of_pass, ids[0] % CAP)
            else:
                self.read_many(ids, of_pass)
        with pytest.raises(IndexError):
            self.dataset[self.rng.choice([CAP, -CAP - 1])]

    def sampled(self) -> None:
        """By a sampler, in this process and by a copy: each round is a share of one generation."""
        world = self.rng.choice([1, 1, 2, 4])
        rank = self.rng.randrange(world)
        infinite = self.rng.random() < 0.5
        sampler = self.dataset.sampler(
            shuffle=self.rng.random() < 0.7, seed=3, infinite=infinite, shard=(rank, world) if world > 1 else None
        )
        share = CAP // world
        self.world.damage()
        # Of two that wait, one would hold up the swap that the other waits for.
        copies = [] if self.waits else [pickle.loads(pickle.dumps(self.dataset))]
        readers = [self.dataset, *copies]
        last = 0
        epochs = [sampler] if infinite else itertools.repeat(sampler)
        indices: Iterator[int] = itertools.chain.from_iterable(epochs)
        for _ in range(self.rng.randrange(1, 4)):
            generation, ids = 0, []
            for index in itertools.islice(indices, share):
                self.world.happen()
                reader = self.rng.choice(readers)
                if not generation and self.waits:
                    while self.world.current <= last:
                        with pytest.raises(TimeoutError, match=f"no generation after {last}"):
                            reader[index]
                        self.world.swap()
                generation = generation or self.world.current
                id = id_of(index)
                ids.append(id)
                self.read(reader, index, generation, id)
            assert len(set(ids)) == share
            assert generation >= last + self.waits
            last = generation
        for copy in copies:
            copy.close()

    def shared_out(self) -> None:
        """Processes that train together have no sample in common, where they read the same generation."""
        world = self.rng.choice([2, 3])
        samplers = [self.dataset.sampler(seed=5, shard=(rank, world)) for rank in range(world)]
        for _ in range(3):
            ids = [[id_of(index) for index in sampler] for sampler in samplers]
            assert len(set(itertools.chain(*ids))) == CAP // world * world

    def by_threads(self) -> None:
        """Whatever several threads ask for, each sample is whole, and each list of one generation."""
        if self.sample != KINDS[:2] or self.transform is not None:
            return
        errors: list[BaseException] = []
        wanted = [[self.rng.randrange(CAP) for _ in range(30)] for _ in range(3)]

        def identity(sample: Any) -> tuple[int, int]:
            label = np.asarray(sample["label"] if self.is_dict else sample[1])
            return divmod(int(label[0]), 100)

        def read(ids: list[int]) -> None:
            try:
                for at in range(0, len(ids), 3):
                    with contextlib.suppress(CorruptSampleError):
                        generation, id = identity(self.dataset[ids[at]])
                        assert id == self.replacement(generation, ids[at])
                    with contextlib.suppress(CorruptSampleError):
                        found = self.dataset[ids[at + 1 : at + 3]]
                        several = [identity(sample) for sample in (found.values() if self.is_dict else found)]
                        assert len({generation for generation, _ in several}) <= 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read, args=(ids,)) for ids in wanted]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.world.swap()
        for thread in threads:
            thread.join()
        assert errors == []

    def loaded(self) -> None:
        """By a loader: batches of one generation, and no sample twice in an epoch."""
        if self.world.damaged_of(self.world.current) or self.sample != KINDS[:2] or self.waits:
            return
        sampler = self.dataset.sampler(seed=self.rng.randrange(9))
        loader = DataLoader(self.dataset, batch_size=4, sampler=sampler, num_workers=0, collate_fn=list)
        for _ in range(3):
            generation, ids = 0, []
            for batch in loader:
                generation = generation or self.world.current
                for sample in batch:
                    label = sample["label"] if self.is_dict else sample[1]
                    number = int(np.asarray(label)[0])
                    assert number // 100 == generation
                    ids.append(number % 100)
                    self.check(sample, generation, ids[-1])
                self.world.swap()
            assert sorted(ids) == list(range(CAP))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_program_is_given_what_was_stored(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    keys = {"DBNAME": "test", "DIRECTORY": str(tmp_path), "SWAP_CAP": CAP, "SAMPLE": KINDS}
    with contextlib.closing(World(keys, rng)) as world:
        for _ in range(12):
            program = Program(world)
            with program.dataset:
                ways = [program.plain, program.sampled, program.shared_out, program.by_threads, program.loaded]
                rng.choices(ways, (2, 4, 1, 2, 2))[0]()
