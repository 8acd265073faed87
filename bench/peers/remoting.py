"""RocketMQ's remoting protocol, as much of it as a producer and a pulling consumer need.

A frame is: length of the rest (4 bytes), length of the header (4, the highest byte being its kind, 0 for
JSON), header, body. Answers carry the `opaque` number of their request, so many requests share a connection.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, cast

PULL, CREATE_TOPIC, ROUTE, SEND, SEND_BATCH = 11, 17, 105, 310, 320
OK, NO_NEW_MESSAGE, PULL_AGAIN = 0, 19, 20
_ANY_TOPIC = "TBW102"  # each broker that creates topics by itself registers it
_LARGEST_FRAME = 64 << 20
_LENGTHS = struct.Struct(">II")
_BODY_AT = 84
_IPV6_BORN, _IPV6_STORE = 1 << 4, 1 << 5


class RefusedError(Exception):
    """An answer with an error code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code


class Answer:
    __slots__ = ("body", "code", "header")

    def __init__(self, header: dict[str, Any], body: bytes) -> None:
        self.code: int = header["code"]
        self.header, self.body = header, body

    def accept(self, *codes: int) -> Answer:
        """Return the answer if it has one of these codes or none of an error. Raises: RefusedError."""
        if self.code != OK and self.code not in codes:
            raise RefusedError(self.code, str(self.header.get("remark", "")))
        return self


class Request:
    """A request whose header is the same each time, apart from its number."""

    def __init__(self, code: int, fields: Mapping[str, object]) -> None:
        texts = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()
        }
        header = {"code": code, "flag": 0, "language": "PYTHON", "version": 0, "extFields": texts}
        self._header = json.dumps(header, separators=(",", ":")).encode()[:-1] + b',"opaque":'

    def frame(self, opaque: int, body: bytes = b"") -> bytes:
        header = b"%s%d}" % (self._header, opaque)
        return _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body


class Connection(asyncio.Protocol):
    """A connection with any number of open requests."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._received = bytearray()
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._lost: Exception | None = None

    @classmethod
    async def to(cls, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    async def call(self, request: Request, body: bytes = b"") -> Answer:
        """Send a request and wait for its answer. Raises: OSError (the connection is lost)."""
        await self._writable.wait()
        if self._lost:
            raise self._lost
        opaque = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[opaque] = answer
        self._transport.write(request.frame(opaque, body))
        try:
            return await answer
        finally:
            self._open.pop(opaque, None)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = error or ConnectionError("the broker closed the connection")
        self._writable.set()
        for answer in self._open.values():
            if not answer.done():
                answer.set_exception(self._lost)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        while len(received) - at >= _LENGTHS.size:
            length, header_length = _LENGTHS.unpack_from(received, at)
            header_length &= 0xFFFFFF
            if length > _LARGEST_FRAME or header_length > length - 4:
                self._transport.abort()
                return
            end, body_at = at + 4 + length, at + _LENGTHS.size + header_length
            if len(received) < end:
                break
            self._on_frame(json.loads(received[at + _LENGTHS.size : body_at]), bytes(received[body_at:end]))
            at = end
        if at:
            del received[:at]

    def _on_frame(self, header: dict[str, Any], body: bytes) -> None:
        """Resolve the request of an answer; what a broker asks of its clients is left unanswered."""
        answer = self._open.get(header["opaque"]) if header["flag"] & 1 else None
        if answer is not None and not answer.done():
            answer.set_result(Answer(header, body))


def send_request(topic: str, queue: int, *, batch: bool = False) -> Request:
    """Return the request that stores a message, or a batch of messages, in a queue."""
    fields = {
        "a": "peers", "b": topic, "c": _ANY_TOPIC, "d": 8, "e": queue, "f": 0, "g": 0, "h": 0, "i": "",
        "j": 0, "k": False, "m": batch,
    }  # fmt: skip
    return Request(SEND_BATCH if batch else SEND, fields)


def create_topic_request(topic: str, queues: int) -> Request:
    return Request(
        CREATE_TOPIC,
        {
            "topic": topic,
            "defaultTopic": _ANY_TOPIC,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        },
    )


def pull_request(group: str, topic: str, queue: int, offset: int, wait_ms: int) -> Request:
    """Return the request for a queue's messages from an offset on; it also commits that offset."""
    return Request(
        PULL,
        {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 1000,
            "sysFlag": 1 | 2 | 4,  # commit the offset, wait for messages, with a subscription
            "commitOffset": offset,
            "suspendTimeoutMillis": wait_ms,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        },
    )


def batch_body(bodies: list[bytes]) -> bytes:
    """Return messages as a batch has them: without flags, checksum and properties."""
    return b"".join(
        part
        for body in bodies
        for part in (struct.pack(">IIIII", 22 + len(body), 0, 0, 0, len(body)), body, b"\0\0")
    )


def stored_bodies(found: bytes) -> Iterator[bytes]:
    """Yield the bodies of the stored messages that an answer to a pull has."""
    at = 0
    while at < len(found):
        (size,) = struct.unpack_from(">I", found, at)
        (flags,) = struct.unpack_from(">I", found, at + 36)
        hosts = 12 * (bool(flags & _IPV6_BORN) + bool(flags & _IPV6_STORE))
        (length,) = struct.unpack_from(">I", found, at + _BODY_AT + hosts)
        begin = at + _BODY_AT + hosts + 4
        if not begin + length <= at + size <= len(found):
            raise ValueError(f"a stored message of {size} bytes with a body of {length} does not fit")
        yield found[begin : begin + length]
        at += size


async def brokers(nameserver: int) -> dict[int, int]:
    """Return the ports of the registered brokers by id; 0 is the master. Raises: OSError, RefusedError."""
    connection = await Connection.to(nameserver)
    try:
        request = Request(ROUTE, {"topic": _ANY_TOPIC, "acceptStandardJsonOnly": True})
        answer = (await asyncio.wait_for(connection.call(request), 5)).accept()
    finally:
        connection.close()
    return {
        int(number): int(address.rpartition(":")[2])
        for broker in json.loads(answer.body)["brokerDatas"]
        for number, address in broker["brokerAddrs"].items()
    }


async def master(nameserver: int) -> int | None:
    """Return the port of the broker group's master. Raises: OSError, RefusedError."""
    return (await brokers(nameserver)).get(0)
