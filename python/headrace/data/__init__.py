"""The feeding engine: datasets in, batches in shared memory out."""

from headrace.data.dataloader import DataLoader
from headrace.data.dataset import Dataset
from headrace.data.random import record_generator
from headrace.data.worker import WorkerInfo, get_worker_info

__all__ = ["DataLoader", "Dataset", "WorkerInfo", "get_worker_info", "record_generator"]
