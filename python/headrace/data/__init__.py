"""The feeding engine: datasets in, batches in shared memory out."""

from headrace.data._dataloader import DataLoader
from headrace.data._datasets.datasets import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from headrace.data._datasets.frozen_list import FrozenList
from headrace.data._datasets.grain import RecordMetadata, SampledDataset
from headrace.data._datasets.mixtures import IterableMixture, MixtureDataset, MixtureSampler
from headrace.data._datasets.packing import PackedDataset, PackedIterableDataset
from headrace.data._datasets.schedule import Schedule
from headrace.data._randomness.records import record_generator
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
