"""The feeding engine: datasets in, batches in shared memory out."""

from headrace.data._collation import RaggedRule, default_collate, default_convert
from headrace.data._dataloader import DataLoader
from headrace.data._dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from headrace.data._frozen_list import FrozenList
from headrace.data._grain import RecordMetadata, SampledDataset
from headrace.data._mixing import IterableMixture, MixtureDataset, MixtureSampler, Schedule
from headrace.data._packing import PackedDataset, PackedIterableDataset
from headrace.data._ragged import Ragged
from headrace.data._random import record_generator
from headrace.data._sampler import (
    BatchSampler,
    DistributedSampler,
    PermutedRange,
    RandomSampler,
    Sampler,
    SeekableSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.data._worker import WorkerInfo, WorkerTraceback, get_worker_info

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
