"""A distributed circular cache of synthetic samples: many generators fill it, training reads it, storage stays
constant.

A generator script and a training script share one ``config.yaml``::

    WireheadGenerator(generator=create_generator(), config_path="config.yaml").run_generator()

    dataset = MongoheadDataset("config.yaml")
    for batch in DataLoader(dataset, batch_size=4, sampler=dataset.sampler(), num_workers=2):
        ...

Samples are kept on a server that speaks MongoDB's protocol (MONGOHOST in the configuration), or in a folder of this
machine. :mod:`headrace.wirehead._protocol.cache` states the guarantees and explains why they hold; ``python -m
headrace.wirehead --help`` lists the commands.
"""

from headrace.wirehead._datasets.datasets import MongoheadDataset, MongoTupleheadDataset
from headrace.wirehead._datasets.sampler import GenerationSampler
from headrace.wirehead.config import Config
from headrace.wirehead.errors import CacheGoneError, ConfigError, CorruptSampleError, StoreError, StoreUnreachableError
from headrace.wirehead.generator import WireheadGenerator
from headrace.wirehead.manager import WireheadManager

__all__ = [
    "CacheGoneError",
    "Config",
    "ConfigError",
    "CorruptSampleError",
    "GenerationSampler",
    "MongoTupleheadDataset",
    "MongoheadDataset",
    "StoreError",
    "StoreUnreachableError",
    "WireheadGenerator",
    "WireheadManager",
]
