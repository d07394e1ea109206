"""A replica set of three members in this process, small: what :mod:`headrace.wirehead` asks of MongoDB, as MongoDB does
it where members fail.

All members have a log of what was written. A write counts for a majority when two have it; who has not heard that it
does shows an older state to those who read what a majority has. A primary that is cut off stays one for a while: it
takes writes, which nobody acknowledges, and what it has alone goes when it hears of the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import itertools
import socket
import struct
import threading
import time
from typing import Any

import bson
from mongo_wire import Document, command_of, receive, reply_to

NAME = "rs"
_OPERATION_FAILS_AFTER = 60.0  # seconds


@dataclasses.dataclass(frozen=True)
class Entry:
    """Of a log: the term of the primary that wrote it; a time, different for each; what to do; whose command it was."""

    term: int
    time: int
    operation: tuple[Any, ...]
    transaction: tuple[bytes, int] | None = None


class Refused(Exception):
    """An error that goes to the client."""

    def __init__(self, code: int, name: str, *labels: str) -> None:
        super().__init__(name)
        self.document = {"ok": 0.0, "code": code, "codeName": name, "errmsg": name, "errorLabels": list(labels)}


class Data:
    """Collections, after so many entries of a log."""

    def __init__(self) -> None:
        self.collections: dict[str, dict[Any, Document]] = {}
        self.done = 0

    def follow(self, log: list[Entry], count: int) -> None:
        for entry in log[self.done : count]:
            kind, *rest = entry.operation
            if kind == "put":
                self.collections.setdefault(rest[0], {})[rest[1]["_id"]] = rest[1]
            elif kind == "remove":
                self.collections.get(rest[0], {}).pop(rest[1], None)
            elif kind == "drop":
                self.collections.pop(rest[0], None)
        self.done = max(self.done, count)


class Member:
    """Attributes:
    log: what it has.
    committed: how many entries of that it knows a majority to have.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.log: list[Entry] = []
        self.committed = 0
        self.all, self.of_majority = Data(), Data()
        self.term = 0
        self.is_primary = self.is_dead = self.is_frozen = False
        self.group = 0  # members of different groups do not hear of each other
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connections: set[socket.socket] = set()

    def append(self, entry: Entry) -> None:
        self.log.append(entry)
        self.all.follow(self.log, len(self.log))

    def know_committed(self, count: int) -> None:
        self.committed = max(self.committed, min(count, len(self.log)))
        self.of_majority.follow(self.log, self.committed)

    def copy(self, other: Member) -> None:
        """Its log becomes that of the primary."""
        common = 0
        while common < min(len(self.log), len(other.log)) and self.log[common] is other.log[common]:
            common += 1
        assert common >= self.committed, "what a majority had is lost"
        if common < len(self.log):
            del self.log[common:]
            self.all = Data()
        self.log += other.log[common:]
        self.all.follow(self.log, len(self.log))


class ReplicaSet:
    """Attributes:
    linger: seconds that a primary which is cut off, or frozen, takes itself for one.
    lag: seconds after its election in which a primary has not heard how much a majority has.
    """

    def __init__(self, linger: float = 1.5, lag: float = 0.3) -> None:
        self.linger, self.lag = linger, lag
        self.members = [Member(number) for number in range(3)]
        self._changed = threading.Condition(threading.RLock())
        self._times = itertools.count(1)
        self._cursors: dict[int, list[Document]] = {}
        self._numbers = itertools.count(1)
        self._lagging_until = 0.0
        self._has_ended = False
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        self.uri = f"mongodb://{hosts}/?replicaSet={NAME}&heartbeatFrequencyMS=500"
        for member in self.members:
            self._listen(member)
        with self._changed:
            self._elect(self.members[0])

    def close(self) -> None:
        with self._changed:
            self._has_ended = True
            for member in self.members:
                self._hang_up(member)
            self._changed.notify_all()

    @property
    def primary(self) -> Member:
        """The one that a majority has elected."""
        return max((member for member in self.members if member.is_primary), key=lambda member: member.term)

    def disturb(self, what: str) -> None:
        """The primary is killed or steps down ("kill", "step_down"), is cut off ("partition") or stands still
        ("freeze");
        another one takes its place.
        """
        with self._changed:
            old = self.primary
            if what == "kill":
                old.is_dead = True
                old.is_primary = False
                self._hang_up(old)
            elif what == "step_down":
                old.is_primary = False
            else:
                old.group, old.is_frozen = 1, what == "freeze"
                self._after(self.linger, self._step_down, old, old.term)
            others = [m for m in self.members if m is not old and not m.is_dead and m.group == 0]
            self._elect(max(others, key=lambda member: (len(member.log), member.number)))
            self._changed.notify_all()

    def heal(self) -> None:
        """All members are there again and hear of each other."""
        with self._changed:
            for member in self.members:
                member.group, member.is_frozen = 0, False
                if member.is_dead:
                    member.is_dead = False
                    member.listener = socket.create_server(("127.0.0.1", member.port))
                    self._listen(member)
                if member is not self.primary:
                    member.is_primary = False
            self._replicate()

    def _step_down(self, member: Member, term: int) -> None:
        with self._changed:
            if member.term == term and member is not self.primary:
                member.is_primary = False
                self._changed.notify_all()

    def _append(self, member: Member, operation: tuple[Any, ...], transaction: Any = None) -> None:
        member.append(Entry(member.term, next(self._times), operation, transaction))

    def _elect(self, member: Member) -> None:
        member.is_primary, member.term = True, 1 + max(m.term for m in self.members)
        self._lagging_until = time.monotonic() + self.lag
        self._append(member, ("nothing",))
        self._after(self.lag, self._replicate)

    @staticmethod
    def _after(seconds: float, action: Any, *arguments: Any) -> None:
        timer = threading.Timer(seconds, action, arguments)
        timer.daemon = True
        timer.start()

    def _replicate(self) -> None:
        with self._changed:
            primary = self.primary
            hearing = [m for m in self.members if m.group == primary.group and not m.is_dead]
            if len(hearing) >= 2 and time.monotonic() >= self._lagging_until:
                for member in hearing:
                    if member is not primary:
                        member.copy(primary)
                        member.know_committed(primary.committed)  # and of what follows the next time
                primary.know_committed(len(primary.log))
            self._changed.notify_all()

    def _hang_up(self, member: Member) -> None:
        with contextlib.suppress(OSError):
            member.listener.shutdown(socket.SHUT_RDWR)
        member.listener.close()
        for connection in list(member.connections):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.shutdown(socket.SHUT_RDWR)

    def _listen(self, member: Member) -> None:
        listener = member.listener

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=self._serve, args=(member, client), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def _serve(self, member: Member, client: socket.socket) -> None:
        member.connections.add(client)
        with contextlib.suppress(OSError), client:
            while (message := receive(client)) is not None:
                with self._changed:
                    while member.is_frozen and not self._has_ended:
                        self._changed.wait(1)
                    reply = self._answer(member, command_of(message))
                client.sendall(reply_to(message, reply))
        member.connections.discard(client)

    def _answer(self, member: Member, command: Document) -> Document:
        try:
            reply = self._run(member, command)
        except Refused as error:
            reply = error.document
        newest = self._stamp(member.log[-1].time if member.log else 0)
        seen = member.committed if command.get("readConcern", {}).get("level") == "majority" else len(member.log)
        reply.setdefault("operationTime", self._stamp(member.log[seen - 1].time if seen else 0))
        return {
            **reply,
            "$clusterTime": {"clusterTime": newest, "signature": {"hash": bytes(20), "keyId": bson.Int64(0)}},
        }

    @staticmethod
    def _stamp(time: int) -> bson.Timestamp:
        return bson.Timestamp(1, time)

    def _run(self, member: Member, command: Document) -> Document:
        name = next(iter(command), "")
        if name.lower() in ("hello", "ismaster"):
            return self._hello(member)
        if name in ("ping", "endSessions"):
            return {"ok": 1.0}
        deadline = time.monotonic() + command.get("maxTimeMS", 1000 * _OPERATION_FAILS_AFTER) / 1000
        if name in ("find", "getMore", "listCollections"):
            if not member.is_primary:
                raise Refused(13435, "NotPrimaryNoSecondaryOk")
            return self._read(member, name, command, deadline)
        if not member.is_primary:
            raise Refused(10107, "NotWritablePrimary", "RetryableWriteError")
        return self._write(member, name, command, deadline)

    def _hello(self, member: Member) -> Document:
        known = member if member.is_primary else self.primary
        return {
            "ok": 1.0,
            "helloOk": True,
            "ismaster": member.is_primary,
            "isWritablePrimary": member.is_primary,
            "secondary": not member.is_primary,
            "setName": NAME,
            "setVersion": 1,
            "hosts": [f"127.0.0.1:{other.port}" for other in self.members],
            "me": f"127.0.0.1:{member.port}",
            **({} if member.group else {"primary": f"127.0.0.1:{known.port}"}),
            **({"electionId": bson.ObjectId(f"{member.term:024x}")} if member.is_primary else {}),
            "localTime": datetime.datetime.now(datetime.timezone.utc),
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "maxBsonObjectSize": 1 << 24,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "logicalSessionTimeoutMinutes": 30,
        }

    def _wait(self, member: Member, deadline: float, is_done: Any, is_write: bool) -> None:
        term = member.term
        while True:
            # First: whose log was another one meanwhile may know as many entries of that to be committed.
            if not member.is_primary or member.term != term or self._has_ended:
                raise Refused(11602, "InterruptedDueToReplStateChange", *(["RetryableWriteError"] if is_write else []))
            if is_done():
                return
            if time.monotonic() > deadline:
                raise Refused(50, "MaxTimeMSExpired")
            self._changed.wait(0.05)

    def _read(self, member: Member, name: str, command: Document, deadline: float) -> Document:
        database = command["$db"]
        if name == "getMore":
            rest = self._cursors.pop(int(command["getMore"]), None)
            if rest is None:
                raise Refused(43, "CursorNotFound")
            space = f"{database}.{command['collection']}"
            return {"ok": 1.0, "cursor": {"id": bson.Int64(0), "ns": space, "nextBatch": rest}}
        concern = command.get("readConcern", {})
        is_of_majority = concern.get("level") == "majority"
        after = concern["afterClusterTime"].inc if "afterClusterTime" in concern else 0

        def has_come() -> bool:
            count = member.committed if is_of_majority else len(member.log)
            return count > 0 and member.log[count - 1].time >= after

        if after > member.log[-1].time and member is self.primary:
            self._append(member, ("nothing",))  # as MongoDB does, lest it wait for the next write
            self._replicate()
        if after:
            self._wait(member, deadline, has_come, is_write=False)
        collections = (member.of_majority if is_of_majority else member.all).collections
        if name == "listCollections":
            found: list[Document] = [
                {"name": space.partition(".")[2], "type": "collection"}
                for space in member.all.collections
                if space.partition(".")[0] == database
            ]
        else:
            documents = collections.get(f"{database}.{command['find']}", {})
            wanted = command.get("filter", {}).get("_id")
            if isinstance(wanted, str):
                found = [documents[wanted]] if wanted in documents else []
            else:
                names = sorted(documents) if wanted is None else [name for name in wanted["$in"] if name in documents]
                found = [documents[name] for name in names]
        first, rest = found[:101], found[101:]
        number = next(self._numbers) if rest else 0
        if rest:
            self._cursors[number] = rest
        space = f"{database}.{command[name]}" if name == "find" else f"{database}.$cmd.listCollections"
        return {"ok": 1.0, "cursor": {"id": bson.Int64(number), "ns": space, "firstBatch": first}}

    def _write(self, member: Member, name: str, command: Document, deadline: float) -> Document:
        transaction = (bytes(command["lsid"]["id"]), command["txnNumber"]) if "txnNumber" in command else None
        if transaction is not None and any(entry.transaction == transaction for entry in member.log):
            reply: Document = {"ok": 1.0, "n": 1}
        else:
            reply = {"ok": 1.0, "n": 0, **self._do(member, name, command, transaction)}
        count = len(member.log)
        reply["operationTime"] = self._stamp(member.log[-1].time)
        self._replicate()
        if command.get("writeConcern", {}).get("w") == "majority":
            try:
                self._wait(member, deadline, lambda: member.committed >= count, is_write=transaction is not None)
            except Refused as error:
                if "writeErrors" not in reply:
                    raise
                # What was in the way may not be what a majority has.
                reply["writeConcernError"] = {name: error.document[name] for name in ("code", "codeName", "errmsg")}
        return reply

    def _do(self, member: Member, name: str, command: Document, transaction: Any) -> Document:
        space = f"{command['$db']}.{command[name]}"
        documents = member.all.collections.get(space, {})

        def log(*operation: Any) -> None:
            self._append(member, operation, transaction)

        if name == "drop":
            log("drop", space)
            return {}
        if name == "dropDatabase":
            for other in [s for s in member.all.collections if s.partition(".")[0] == command["$db"]]:
                log("drop", other)
            return {}
        duplicate = {"index": 0, "code": 11000, "errmsg": "E11000 duplicate key error", "keyPattern": {"_id": 1}}
        if name == "insert":
            (document,) = command["documents"]
            if document["_id"] in documents:
                return {"writeErrors": [duplicate]}
            log("put", space, document)
            return {"n": 1}
        if name == "delete":
            (which,) = command["deletes"]
            log("remove", space, which["q"]["_id"])
            return {"n": 1}
        assert name == "update", name
        (update,) = command["updates"]
        key = update["q"]["_id"]
        known = documents.get(key, {})
        if "beat" in update["q"] and known.get("beat", -1) >= update["q"]["beat"]["$not"]["$gte"]:
            return {"writeErrors": [duplicate]}
        now = datetime.datetime.now(datetime.timezone.utc)
        log("put", space, {**known, "_id": key, **update["u"]["$set"], "time": now})
        return {"n": 1, "nModified": 1}
