"""Sample readers, as Fluid's programs use them: functions without arguments that return an iterable of samples.

``decorator`` makes readers of readers, ``creator`` makes them of files and arrays. Each call of a reader starts a new
pass; its threads, if it has any, are in ``_readahead``. The readers of programs, in C++, are in the folder ``reader``
of the repository.
"""

from headrace.reader import creator
from headrace.reader.decorator import (
    ComposeNotAligned,
    Fake,
    PipeReader,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

__all__ = [
    "ComposeNotAligned",
    "Fake",
    "PipeReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "creator",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]
