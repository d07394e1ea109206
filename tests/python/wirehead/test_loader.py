"""Into the loader and programs."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from damage import remove_chunk

import headrace.fluid as fluid
from headrace import DataLoader
from headrace.wirehead import (
    CorruptSampleError,
    GenerationSampler,
    MongoheadDataset,
    MongoTupleheadDataset,
    WireheadGenerator,
)
from headrace.wirehead._format.sample import chunk_names
from headrace.wirehead._protocol.cache import Cache
from headrace.wirehead._protocol.generation_manager import GenerationManager
from headrace.wirehead._protocol.writer import Writer
from headrace.wirehead._stores.store import ROUNDS

CAP = 12


@pytest.fixture
def config(location: dict[str, Any]) -> dict[str, Any]:
    return {**location, "SWAP_CAP": CAP, "TIMEOUT": 30}


def numbered(start: int, count: int) -> Iterator[tuple[Any, Any]]:
    for number in range(start, start + count):
        yield np.full((4, 3), number, np.float32), np.full(1, number, np.int64)


def generate(config: dict[str, Any], start: int, count: int = CAP) -> None:
    WireheadGenerator(numbered(start, count), config).run()


@pytest.mark.parametrize(("num_workers", "workers"), [(0, "process"), (2, "process"), (2, "thread")])
def test_a_dataset_like_any_other(config: dict[str, Any], num_workers: int, workers: str) -> None:
    generate(config, 100)
    with MongoheadDataset(config, to="numpy") as dataset:
        loader = DataLoader(dataset, batch_size=5, shuffle=True, seed=3, num_workers=num_workers, workers=workers)
        for _ in range(2):
            batches = list(loader)
            assert [len(batch["input"]) for batch in batches] == [5, 5, 2]
            labels = np.concatenate([batch["label"] for batch in batches])[:, 0]
            assert sorted(labels) == list(range(100, 100 + CAP))
            assert all((batch["input"] == batch["label"][:, :, None]).all() for batch in batches)


def test_samples_are_decoded_into_their_rows(config: dict[str, Any]) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        assert dataset.sample_spec == (((4, 3), np.float32), ((1,), np.int64))
        out = np.empty((4, 3), np.float32), np.empty(1, np.int64)
        assert dataset.__getitem__(7, out) is out
        assert (out[0] == 7).all()
        other = np.empty((4, 2), np.float32), np.empty(1, np.int64)
        assert (dataset.__getitem__(8, other)[0] == 8).all()  # has no room there

        class Watched(MongoTupleheadDataset):
            def __getitem__(self, index: Any, out: Any = None) -> Any:
                assert out is not None
                result = super().__getitem__(index, out)
                assert result is out
                return result

    with Watched(config, to="numpy") as dataset:
        batches = list(DataLoader(dataset, batch_size=4, num_workers=2))
        assert [int(batch[1][0, 0]) for batch in batches] == [0, 4, 8]


def test_an_epoch_is_one_generation_with_the_sampler(config: dict[str, Any]) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy", timeout=60) as dataset:
        loader = DataLoader(dataset, batch_size=5, sampler=dataset.sampler(seed=1), num_workers=2)
        orders = []
        for epoch in range(6):
            if epoch < 5:
                generate(config, 100 * (epoch + 1))
            labels = np.concatenate([labels for _, labels in loader])[:, 0].tolist()
            assert len({label // 100 for label in labels}) == 1
            assert sorted(label % 100 for label in labels) == list(range(CAP))
            orders.append([label % 100 for label in labels])
        assert labels[0] // 100 >= 3  # it has followed
        assert len({tuple(order) for order in orders}) == 6


def test_an_epoch_is_one_generation_with_torchs_loader_too(config: dict[str, Any]) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    generate(config, 0)
    with MongoTupleheadDataset(config, to="torch", timeout=60) as dataset:
        loader = torch_data.DataLoader(
            dataset, batch_size=5, sampler=dataset.sampler(seed=1), num_workers=2, persistent_workers=True
        )
        for epoch in range(4):
            generate(config, 100 * (epoch + 1))
            labels = [int(label) for _, batch in loader for label in batch[:, 0]]
            assert len({label // 100 for label in labels}) == 1
            assert sorted(label % 100 for label in labels) == list(range(CAP))
        assert labels[0] // 100 >= 2
        del loader


def test_infinite_mode_follows_the_generations(config: dict[str, Any]) -> None:
    cache = Cache(config)
    writer, manager = Writer(cache), GenerationManager(cache)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            manager.step()
            time.sleep(0.005)

    def write() -> None:
        for begin in itertools.count(0, CAP):
            for sample in numbered(begin, CAP):
                if stop.is_set():
                    return
                writer.put(sample)

    threads = [threading.Thread(target=swap), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    with MongoTupleheadDataset(config, to="numpy", wait_for_new=True, timeout=60) as dataset:
        loader = DataLoader(
            dataset, batch_size=4, sampler=dataset.sampler(seed=1, infinite=True), num_workers=2, prefetch_factor=2
        )
        labels = [int(label) for _, batch in itertools.islice(loader, 12) for label in batch[:, 0]]
        del loader
    rounds = [labels[i : i + CAP] for i in range(0, 48, CAP)]
    assert all(len({label // CAP for label in round}) == 1 and len(set(round)) == CAP for round in rounds)
    generations = [round[0] // CAP for round in rounds]
    assert generations == sorted(set(generations))  # each one newer than that before
    stop.set()
    writer._stop.set()
    for thread in threads:
        thread.join()
    writer.close()
    cache.close()


def test_infinite_mode_reads_again_when_there_is_nothing_new(config: dict[str, Any]) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        loader = DataLoader(dataset, batch_size=6, sampler=dataset.sampler(shuffle=False, infinite=True))
        labels = [int(label) for _, batch in itertools.islice(loader, 4) for label in batch[:, 0]]
        assert labels == [*range(CAP), *range(CAP)]


def test_an_end_of_new_data_is_a_timeout(config: dict[str, Any]) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy", wait_for_new=True, timeout=0.1) as dataset:
        loader = DataLoader(dataset, batch_size=12, sampler=dataset.sampler(infinite=True), num_workers=0)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(TimeoutError, match=r"no generation after 1 within 0\.1 seconds"):
            next(iterator)


@pytest.mark.parametrize("wait_for_new", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_new_loader_and_sampler_read_the_newest_generation(
    config: dict[str, Any], num_workers: int, wait_for_new: bool
) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy", wait_for_new=wait_for_new) as dataset:
        for epoch in range(3):
            if epoch > 0:
                generate(config, 100 * epoch)
            loader = DataLoader(
                dataset, batch_size=4, sampler=dataset.sampler(seed=epoch), num_workers=num_workers, seed=1
            )
            numbers = sorted(int(number) for _, label in loader for number in label[:, 0])
            assert numbers == list(range(100 * epoch, 100 * epoch + 12))
            loader.shutdown()


def test_rounds_that_are_begun_out_of_turn_read_ever_newer_generations(
    config: dict[str, Any], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by workers that read ahead: whoever comes first to a round agrees on those before it, too."""
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy", wait_for_new=True) as dataset:
        sampler, waits = dataset.sampler(shuffle=False, infinite=True), []

        def wait(cache: Any, generation: int) -> None:
            waits.append(generation)
            while cache.current() <= generation:
                generate(config, 100 * generation)

        monkeypatch.setattr(dataset, "_wait_for_newer", wait)
        first_of_round = [int(sampler.order(0, 12 * round, 12 * round + 1)[0]) for round in range(5)]
        begun = [int(dataset[first_of_round[round]][1][0]) for round in (1, 0, 3, 2, 4)]
        assert begun == [100, 0, 300, 200, 400]
        assert waits == [0, 1, 2, 3, 4]
        # A new epoch comes after the newest of the one before, whose next rounds may never have begun.
        sampler.order(0, 12 * 5, 12 * 7)
        assert dataset[int(sampler.order(1, 0, 1)[0])][1][0] == 500
        assert waits[5:] == [5]
        # After a pause the generations of earlier rounds are gone, and managers have removed what was agreed on.
        for key in cache.store.scan(ROUNDS):
            cache.store.remove(ROUNDS, key)
        assert dataset[int(sampler.order(1, 12, 13)[0])][1][0] == 600
        assert waits[6:] == [6]


def test_a_sampler_knows_any_position() -> None:
    for infinite in (False, True):
        sampler = GenerationSampler(7, shuffle=True, seed=5, infinite=infinite)
        stop = 21 if infinite else 7
        whole = sampler.order(3, 0, stop)
        assert np.concatenate([sampler.order(3, 0, 4), sampler.order(3, 4, stop)]).tolist() == whole.tolist()
        assert len(set(whole.tolist())) == stop
        assert max(whole) < 2**62


def damage(config: dict[str, Any], id: int, is_lost: bool = False) -> None:
    """Changes the last byte of a stored sample of generation 1, which is its label's; or takes it all away."""
    with contextlib.closing(Cache(config)) as cache:
        description = cache.sample(1, id)
        assert description is not None
        (name,) = chunk_names(description, range(description["chunks"]))
        (found,) = cache.store.read_chunks(1, [name])
        assert found is not None
        data = bytes(found)
        assert remove_chunk(cache, 1, name)
        if not is_lost:
            cache.store.write_chunks(1, {name: data[:-1] + bytes([data[-1] ^ 1])})


@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_corrupted_chunk_in_a_worker(config: dict[str, Any], is_sampled: bool) -> None:
    generate(config, 0)
    damage(config, 6)

    def batches(on_corrupt: str) -> Iterator[Any]:
        with MongoTupleheadDataset(config, to="numpy", on_corrupt=on_corrupt) as dataset:
            sampler = dataset.sampler(shuffle=False) if is_sampled else None
            yield from DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2)

    message = "sample 6 of generation 1 is corrupt: label has checksum"
    with pytest.raises(CorruptSampleError, match=message) as caught:
        list(batches("raise"))
    assert (caught.value.generation, caught.value.id) == (1, 6)
    found = list(batches("skip"))
    assert [labels[:, 0].tolist() for _, labels in found] == [[0, 1, 2, 3], [4, 5, 7, 7], [8, 9, 10, 11]]
    assert all((values == labels[:, :, None]).all() for values, labels in found)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("on_corrupt", ["raise", "skip"])
def test_a_worker_that_comes_late_to_a_round_does_not_take_damage_for_a_dropped_generation(
    config: dict[str, Any], on_corrupt: str, is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It would continue with another one."""
    generate(config, 0)
    damage(config, 6, is_lost)
    with (
        MongoTupleheadDataset(config, to="numpy", on_corrupt=on_corrupt) as dataset,
        pickle.loads(pickle.dumps(dataset)) as late,
    ):
        indices = list(dataset.sampler(shuffle=False))
        assert dataset[indices[0]][1][0] == 0
        generate(config, 100)
        assert late[indices[5]][1][0] == 5
        if on_corrupt == "raise":
            what = r"chunk 0 \(data\) is missing" if is_lost else "label has checksum"
            with pytest.raises(CorruptSampleError, match=f"sample 6 of generation 1 is corrupt: {what}"):
                late[indices[6]]
        else:
            assert late[indices[6]][1][0] == 7
        assert late[indices[8]][1][0] == 8
    assert "mixes" not in caplog.text


@pytest.mark.parametrize("chunksize", [10, 15])
def test_a_large_sample_that_nothing_compresses(location: dict[str, Any], chunksize: int) -> None:
    data = np.random.default_rng(chunksize).integers(0, 1 << 16, (chunksize, 1024, 1024), np.uint16)
    config = {**location, "SWAP_CAP": 1, "TIMEOUT": 60, "CHUNKSIZE": chunksize}
    WireheadGenerator([(data, 7)], config).run()
    with contextlib.closing(Cache(config)) as cache:
        description = cache.sample(1, 0)
        assert description is not None
        chunks = cache.store.read_chunks(1, chunk_names(description, range(description["chunks"])))
        assert [chunk.nbytes for chunk in chunks if chunk is not None] == [chunksize << 20, chunksize << 20, 8]
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        read, label = dataset[0]
        assert read.dtype == np.uint16
        assert np.array_equal(read, data)
        assert label == 7


def names_of(config: dict[str, Any]) -> list[str]:
    """The collections of a database."""
    import pymongo

    with contextlib.closing(pymongo.MongoClient[Any](config["MONGOHOST"])) as client:
        return client[config["DBNAME"]].list_collection_names()


@pytest.mark.parametrize("location", ["mongo"], indirect=True)
def test_caches_with_other_prefixes_in_one_database(config: dict[str, Any]) -> None:
    keys = {"WRITE_COLLECTION": "brains.raw", "COUNTER_COLLECTION": "counter.brains"}
    prefixes = ("brains.raw.", "counter.brains.")
    first, second = {**config, **keys}, {**config, "SWAP_CAP": 3, "SAMPLE": ["x", "y"]}
    generate(first, 100)
    assert {name[: len(prefix)] for name in names_of(config) for prefix in prefixes if name.startswith(prefix)} == {
        *prefixes
    }
    assert all(name.startswith(prefixes) for name in names_of(config))
    generate(second, 200, 6)  # settings of its own, too
    others = sorted(name for name in names_of(config) if not name.startswith(prefixes))
    assert all(name.startswith(("write.", "counter.")) for name in others)
    with MongoTupleheadDataset(first, to="numpy") as dataset:
        assert [int(label[0]) for _, label in dataset[range(CAP)]] == list(range(100, 100 + CAP))
        assert dataset.generation == 1
    with MongoTupleheadDataset(second, to="numpy") as dataset:
        assert [int(label[0]) for _, label in dataset[range(3)]] == [203, 204, 205]
        assert dataset.generation == 2
    with contextlib.closing(Cache(first)) as cache:
        assert cache.leases() == {}
        cache.store.clean()
    assert sorted(names_of(config)) == others
    with MongoTupleheadDataset(second, to="numpy") as dataset:
        assert int(dataset[0][1][0]) == 203


def test_a_program_reads_from_it(config: dict[str, Any]) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        program, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(program, startup), fluid.unique_name.guard(), fluid.scope_guard(fluid.Scope()):
            reader = fluid.layers.py_reader(capacity=4, shapes=[[-1, 4, 3], [-1, 1]], dtypes=["float32", "int64"])
            values, labels = fluid.layers.read_file(reader)
            executor = fluid.Executor(fluid.CPUPlace())
            executor.run(startup)
            reader.decorate_loader(DataLoader(dataset, batch_size=4, num_workers=2))
            reader.start()
            seen = []
            try:
                while True:
                    images, numbers = (np.array(v) for v in executor.run(program, fetch_list=[values, labels]))
                    assert (images == numbers[:, :, None]).all()
                    seen += numbers[:, 0].tolist()
            except fluid.core.EOFException:
                reader.reset()
            assert seen == list(range(CAP))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_may_be_pickled_and_forked(config: dict[str, Any], method: str) -> None:
    generate(config, 0)
    with MongoTupleheadDataset(config, to="numpy") as dataset:
        assert dataset[2][1][0] == 2
        assert pickle.loads(pickle.dumps(dataset))[3][1][0] == 3
        context: Any = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.apply(_label, (dataset, 4)) == 4


def _label(dataset: MongoTupleheadDataset, index: int) -> int:
    return int(dataset[index][1][0])


@pytest.mark.parametrize(("num_workers", "is_sampled"), [(0, True), (2, True), (0, False)])
def test_samples_of_two_shapes_are_named_by_generation_and_id(
    config: dict[str, Any], num_workers: int, is_sampled: bool
) -> None:
    for start in (0, 100):
        generate(config, start, CAP - 1)
        WireheadGenerator(iter([(np.zeros(5, np.float32), np.zeros(1, np.int64))]), config).run()
    with MongoheadDataset(config, to="numpy") as dataset:
        sampler = dataset.sampler(shuffle=False) if is_sampled else None
        loader = DataLoader(dataset, batch_size=5, sampler=sampler, num_workers=num_workers)
        with pytest.raises(
            ValueError, match="sample 11 of generation 2 cannot be batched with sample 10 of generation 2 "
        ):
            list(loader)
