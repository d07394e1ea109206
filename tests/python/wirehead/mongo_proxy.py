"""A proxy between a client and a server that speaks MongoDB's protocol, which makes things go wrong on the way."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

import bson
from mongo_wire import Document, command_of, is_legacy, receive, reply_to

WRITES = ("insert", "update", "delete", "drop")


class Exchange:
    """A request that a client has sent, and its reply."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket, message: bytes) -> None:
        self._proxy, self._client, self._server, self.message = proxy, client, server, message
        self.command = {} if is_legacy(message) else command_of(message)
        self.name = next(iter(self.command), "hello")
        self.collection = str(self.command.get(self.name)) if self.command else ""

    def forward(self) -> Document:
        """What the server replies."""
        self._server.sendall(self.message)
        reply = receive(self._server)
        if reply is None:
            raise ConnectionError("the server has gone")
        return command_of(reply)

    def forward_later(self, seconds: float) -> None:
        """Sends it to the server some time, over another connection."""

        def send() -> None:
            with contextlib.suppress(OSError), socket.create_connection(self._proxy.server) as server:
                server.sendall(self.message)
                receive(server)

        timer = threading.Timer(seconds, send)
        timer.daemon = True
        timer.start()

    def reply(self, document: Document, pieces: int = 1) -> None:
        """Replies to the client, in so many pieces with pauses between them."""
        message = reply_to(self.message, document)
        step = -(-len(message) // pieces)
        for start in range(0, len(message), step):
            self._client.sendall(message[start : start + step])
            if pieces > 1:
                time.sleep(0.01)

    def cut(self) -> None:
        """Ends the client's connection."""
        raise ConnectionAbortedError


Fault = Callable[[Exchange], None]


def refusal(code: int, name: str, labels: Iterable[str] = ()) -> Document:
    return {"ok": 0.0, "code": code, "codeName": name, "errmsg": f"{name}, says the proxy", "errorLabels": [*labels]}


def refused(code: int, name: str, *labels: str) -> Fault:
    """The server does not get it, and an error comes back."""
    return lambda exchange: exchange.reply(refusal(code, name, labels))


def done_but_refused(code: int, name: str, *labels: str) -> Fault:
    """The server does it, and an error comes back."""

    def fault(exchange: Exchange) -> None:
        exchange.forward()
        exchange.reply(refusal(code, name, labels))

    return fault


def not_by_a_majority(code: int, name: str) -> Fault:
    """The server does it, and says that a majority of its set has not."""

    def fault(exchange: Exchange) -> None:
        error = {"code": code, "codeName": name, "errmsg": "waiting for replication timed out"}
        exchange.reply({**exchange.forward(), "writeConcernError": error})

    return fault


def cut_before(exchange: Exchange) -> None:
    """The connection ends, and the server does not get it."""
    exchange.cut()


def cut_after(exchange: Exchange) -> None:
    """The server does it, and the connection ends before its reply."""
    exchange.forward()
    exchange.cut()


def late(seconds: float) -> Fault:
    """The connection ends, and the server gets it when the client has tried again."""

    def fault(exchange: Exchange) -> None:
        exchange.forward_later(seconds)
        exchange.cut()

    return fault


def delayed(seconds: float) -> Fault:
    """The reply comes late."""

    def fault(exchange: Exchange) -> None:
        reply = exchange.forward()
        time.sleep(seconds)
        exchange.reply(reply)

    return fault


def doubled(exchange: Exchange) -> None:
    """The server gets it twice, and the client the first reply."""
    reply = exchange.forward()
    exchange.forward()
    exchange.reply(reply)


def doubled_and_answered_last(exchange: Exchange) -> None:
    """The server gets it twice, as from a driver that tries again by itself, and the client the second reply; where it
    says that there is such a document already, the connection has ended.
    """
    exchange.forward()
    reply = exchange.forward()
    if reply.get("writeErrors"):
        exchange.cut()
    exchange.reply(reply)


def slow(exchange: Exchange) -> None:
    """The reply trickles in."""
    exchange.reply(exchange.forward(), pieces=20)


FAULTS: dict[str, Fault] = {
    "NotWritablePrimary": refused(10107, "NotWritablePrimary", "RetryableWriteError"),
    "NotPrimaryNoSecondaryOk": refused(13435, "NotPrimaryNoSecondaryOk"),
    "PrimarySteppedDown, done": done_but_refused(189, "PrimarySteppedDown", "RetryableWriteError"),
    "InterruptedAtShutdown, done": done_but_refused(11600, "InterruptedAtShutdown"),
    "InterruptedDueToReplStateChange": refused(11602, "InterruptedDueToReplStateChange"),
    "WriteConcernFailed": not_by_a_majority(64, "WriteConcernFailed"),
    "ShutdownInProgress in the write concern": not_by_a_majority(91, "ShutdownInProgress"),
    "cut before": cut_before,
    "cut after": cut_after,
    "late": late(0.3),
    "delayed": delayed(0.2),
    "doubled": doubled,
    "doubled and answered last": doubled_and_answered_last,
    "slow": slow,
}


@dataclasses.dataclass
class Rule:
    """Which requests something happens to.

    Attributes:
        names: commands; empty: all.
        collection: what the name of the collection contains.
        skip: how many that match it lets pass first.
        times: how many times it happens.
        happened: how many times it has.
    """

    fault: Fault
    names: tuple[str, ...] = ()
    collection: str = ""
    skip: int = 0
    times: int = 1
    happened: int = 0

    def applies(self, exchange: Exchange) -> bool:
        if self.happened >= self.times or (self.names and exchange.name not in self.names):
            return False
        if self.collection not in exchange.collection:
            return False
        self.skip -= 1
        return self.skip < 0


class Proxy:
    """Listens at ``uri``.

    Attributes:
        first_batch: how many documents a reply holds; what is more has to be fetched by a cursor that the proxy keeps.
        chance: that something of ``FAULTS`` happens to a request, whatever it is; ``rng`` decides.
        happened: what has happened by chance, and how often.
    """

    def __init__(self, uri: str, seed: int = 0) -> None:
        found = urlsplit(uri)
        self.server = found.hostname, found.port
        self.first_batch: int | None = None
        self.chance, self.rng, self.happened = 0.0, random.Random(seed), dict.fromkeys(FAULTS, 0)
        self._rules: list[Rule] = []
        self._cursors: dict[int, list[Document]] = {}
        self._numbers = itertools.count(1 << 40)
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: set[socket.socket] = set()
        self.uri = f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def add(self, fault: Fault, *names: str, **options: Any) -> Rule:
        """From now on; see :class:`Rule`."""
        rule = Rule(fault, names, **options)
        self._rules.append(rule)
        return rule

    def cut(self) -> None:
        """Ends all connections."""
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def lose_cursors(self) -> None:
        self._cursors.clear()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._connections.add(client)
        with contextlib.suppress(OSError), client, socket.create_connection(self.server) as server:
            while (message := receive(client)) is not None:
                self._pass(Exchange(self, client, server, message))
        self._connections.discard(client)

    def _pass(self, exchange: Exchange) -> None:
        if is_legacy(exchange.message):
            exchange._server.sendall(exchange.message)
            reply = receive(exchange._server)
            if reply is None:
                exchange.cut()
            exchange._client.sendall(reply)  # type: ignore[arg-type]
            return
        fault = self._fault(exchange)
        if fault is not None:
            fault(exchange)
        elif exchange.name == "getMore" and int(exchange.command["getMore"]) >> 40:
            self._more(exchange)
        elif exchange.name == "find" and self.first_batch is not None:
            self._first(exchange, self.first_batch)
        else:
            exchange.reply(exchange.forward())

    def _fault(self, exchange: Exchange) -> Fault | None:
        with self._lock:
            for rule in self._rules:
                if rule.applies(exchange):
                    rule.happened += 1
                    return rule.fault
            if exchange.name not in (*WRITES, "find", "listCollections") or self.rng.random() >= self.chance:
                return None
            of_writes = ("done", "concern", "Concern", "doubled")
            names = [n for n in FAULTS if exchange.name in WRITES or not any(word in n for word in of_writes)]
            name = self.rng.choice(names)
            self.happened[name] += 1
            return FAULTS[name]

    def _first(self, exchange: Exchange, count: int) -> None:
        reply = exchange.forward()
        if reply["ok"] and not exchange.command.get("singleBatch"):
            cursor = reply["cursor"]
            batch, rest = cursor["firstBatch"][:count], cursor["firstBatch"][count:]
            if rest:
                number = next(self._numbers)
                self._cursors[number] = rest
                reply = {**reply, "cursor": {**cursor, "id": bson.Int64(number), "firstBatch": batch}}
        exchange.reply(reply)

    def _more(self, exchange: Exchange) -> None:
        number = int(exchange.command["getMore"])
        rest = self._cursors.pop(number, None)
        if rest is None:
            exchange.reply(refusal(43, "CursorNotFound"))
            return
        space = f"{exchange.command['$db']}.{exchange.command['collection']}"
        exchange.reply({"ok": 1.0, "cursor": {"id": bson.Int64(0), "ns": space, "nextBatch": rest}})
