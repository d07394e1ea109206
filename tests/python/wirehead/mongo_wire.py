"""MongoDB's wire protocol, as far as the servers of these tests speak it: OP_MSG, and OP_QUERY for the first hello."""

from __future__ import annotations

import socket
import struct
from typing import Any

import bson

Document = dict[str, Any]

_HEADER = struct.Struct("<4i")  # length, request, what it answers, kind
_REPLY, _QUERY, _MSG = 1, 2004, 2013
_HAS_CHECKSUM = 1


def receive(connection: socket.socket) -> bytes | None:
    """The next message; None at the end."""
    header = _exactly(connection, _HEADER.size)
    if header is None:
        return None
    rest = _exactly(connection, _HEADER.unpack(header)[0] - _HEADER.size)
    return None if rest is None else header + rest


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    parts = []
    while length > 0:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def command_of(message: bytes) -> Document:
    """The command of a request, with its documents; or the document of a reply."""
    kind = _HEADER.unpack_from(message)[3]
    if kind == _QUERY:
        start = message.index(b"\0", 20) + 9
        return bson.decode(message[start:])
    assert kind == _MSG, kind
    end = len(message) - (4 if struct.unpack_from("<i", message, 16)[0] & _HAS_CHECKSUM else 0)
    command: Document = {}
    sequences: Document = {}
    position = 20
    while position < end:
        section, position = message[position], position + 1
        (length,) = struct.unpack_from("<i", message, position)
        part, position = message[position : position + length], position + length
        if section == 0:
            command = bson.decode(part)
        else:
            name, _, documents = part[4:].partition(b"\0")
            sequences[name.decode()] = bson.decode_all(documents)
    return {**command, **sequences}


def is_legacy(message: bytes) -> bool:
    """Whether a request is of the kind that clients say hello with."""
    return bool(_HEADER.unpack_from(message)[3] == _QUERY)


def reply_to(message: bytes, document: Document) -> bytes:
    """The reply to a request."""
    request, body = _HEADER.unpack_from(message)[1], bson.encode(document)
    if is_legacy(message):
        return _HEADER.pack(36 + len(body), 0, request, _REPLY) + struct.pack("<iqii", 8, 0, 0, 1) + body
    return _HEADER.pack(21 + len(body), 0, request, _MSG) + struct.pack("<ib", 0, 0) + body
