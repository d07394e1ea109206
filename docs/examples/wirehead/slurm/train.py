"""Reads what the generators make, in worker processes that decode into the rows of a batch. Here it only counts."""

from __future__ import annotations

import collections
import itertools

from headrace import DataLoader
from headrace.wirehead import MongoTupleheadDataset

dataset = MongoTupleheadDataset("config.yaml")
loader = DataLoader(dataset, batch_size=10, num_workers=2, sampler=dataset.sampler(infinite=True))
subjects: collections.Counter[int] = collections.Counter()
for _volumes, labels in itertools.islice(loader, 50):
    subjects.update(int(label) for label in labels)
print("samples by subject:", dict(sorted(subjects.items())))
