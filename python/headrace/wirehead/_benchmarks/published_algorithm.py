"""The algorithm that Wirehead was published with, small: the baseline of the benchmark."""

from __future__ import annotations

import importlib
import io
from typing import Any

import numpy as np


class Published:
    """The published algorithm, small: the baseline.

    A sample takes the next number of a counter document; each of its arrays is serialised whole (by ``torch.save``, or
    by ``numpy.save`` where torch is not installed), cut into chunks and inserted with number, kind and chunk number
    into a collection with an index on the numbers. A read finds all chunks of a sample by number and kind (``$in``),
    sorts and joins them in Python, and loads the arrays from the result.
    """

    def __init__(self, uri: str, database: str, chunksize: float = 10) -> None:
        import pymongo

        self.client: Any = pymongo.MongoClient(uri)
        self._database = self.client[database]
        self._chunks = self._database["published.write.bin"]
        self._counter = self._database["published.counter"]
        self._chunks.create_index([("id", 1)])
        self._counter.insert_one({"_id": "uniqueFieldCounter", "sequence_value": 0})
        self._chunk_bytes = int(chunksize * 2**20)

    def put(self, sample: tuple[Any, Any]) -> None:
        counter: Any = self._counter.find_one_and_update({"_id": "uniqueFieldCounter"}, {"$inc": {"sequence_value": 1}})
        documents = []
        for kind, array in zip(("data", "label"), sample):
            data = _serialise(array)
            for number, start in enumerate(range(0, len(data), self._chunk_bytes)):
                chunk = data[start : start + self._chunk_bytes]
                documents.append({"id": counter["sequence_value"], "chunk_id": number, "kind": kind, "chunk": chunk})
        self._chunks.insert_many(documents)

    def get(self, id: int) -> list[Any]:
        fields = {"id": 1, "chunk": 1, "kind": 1, "chunk_id": 1}
        found = list(self._chunks.find({"id": {"$in": [id]}, "kind": {"$in": ["data", "label"]}}, fields))
        arrays = []
        for kind in ("data", "label"):
            chunks = [chunk for chunk in found if chunk["kind"] == kind]
            chunks.sort(key=lambda chunk: int(chunk["chunk_id"]))
            arrays.append(_load(b"".join(chunk["chunk"] for chunk in chunks)))
        return arrays


def _serialise(array: Any) -> bytes:
    buffer = io.BytesIO()
    torch = _torch()
    if torch is None:
        np.save(buffer, array)
    else:
        torch.save(torch.from_numpy(array), buffer)
    return buffer.getvalue()


def _load(data: bytes) -> Any:
    torch = _torch()
    if torch is None:
        return np.load(io.BytesIO(data))
    return torch.load(io.BytesIO(data), weights_only=True)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None
