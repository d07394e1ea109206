"""The loader: datasets in, batches in shared memory out.

``_datasets`` and ``_samplers`` are what users hand in. ``_order`` says which samples make up which batch; the shuffle
itself is ``reader/index_permutation.h``. ``_samples`` takes batches apart for shared memory and puts them together
again. ``_randomness`` seeds. ``_workers`` has what runs in workers, and what happens when they die. ``_iteration`` is
the program's side: the engine, iterators and their state. ``_reports`` are statistics and the timeline, ``_system``
what the operating system offers.

The arena, the scheduler of its batches, and how workers claim rows are C++: ``reader/shared_memory/``.
"""

from headrace.data._dataloader import DataLoader
from headrace.data._datasets.datasets import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset
from headrace.data._datasets.frozen_list import FrozenList
from headrace.data._datasets.grain import RecordMetadata, SampledDataset
from headrace.data._datasets.iterable_datasets import ChainDataset, IterableDataset
from headrace.data._datasets.mixtures import IterableMixture, MixtureDataset, MixtureSampler
from headrace.data._datasets.packing import PackedDataset, PackedIterableDataset
from headrace.data._datasets.random_split import random_split
from headrace.data._datasets.schedule import Schedule
from headrace.data._randomness.sample_seeds import record_generator
from headrace.data._samplers.permuted_range import PermutedRange
from headrace.data._samplers.protocols import Sampler, SeekableSampler
from headrace.data._samplers.samplers import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)
from headrace.data._samplers.weighted import WeightedRandomSampler
from headrace.data._samples.collation import RaggedRule, default_collate, default_convert
from headrace.data._samples.ragged import Ragged
from headrace.data._workers.errors import WorkerTraceback
from headrace.data._workers.info import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FrozenList",
    "IterableDataset",
    "IterableMixture",
    "MixtureDataset",
    "MixtureSampler",
    "PackedDataset",
    "PackedIterableDataset",
    "PermutedRange",
    "Ragged",
    "RaggedRule",
    "RandomSampler",
    "RecordMetadata",
    "SampledDataset",
    "Sampler",
    "Schedule",
    "SeekableSampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "WorkerTraceback",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
    "record_generator",
]
