"""The feeding engine: datasets in, batches in shared memory out."""

from headrace.data._collation import default_collate, default_convert
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
from headrace.data._grain import GrainSampler, SampledDataset, grain_batch_count, grain_positions
from headrace.data._mixing import IterableMixture, MixtureDataset, MixtureSampler
from headrace.data._packing import PackedDataset, PackedIterableDataset
from headrace.data._ragged import Ragged
from headrace.data._random import record_generator
from headrace.data._sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SeekableSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from headrace.data._worker import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "FrozenList",
    "GrainSampler",
    "IterableDataset",
    "IterableMixture",
    "MixtureDataset",
    "MixtureSampler",
    "PackedDataset",
    "PackedIterableDataset",
    "Ragged",
    "RandomSampler",
    "SampledDataset",
    "Sampler",
    "SeekableSampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "grain_batch_count",
    "grain_positions",
    "random_split",
    "record_generator",
]
