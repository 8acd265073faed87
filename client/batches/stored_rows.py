"""Stored rows: what earlier attempts at a part have stored, as a multiset of message contents.

A repeated task may produce its rows in another order, so rows are compared by content: body, tag, keys,
properties, message group. Ids and times differ between attempts and do not count.
Owns: reading back, and the comparison. Must not: send messages.
Memory: about 100 bytes for each stored message of the part.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from ledgermq.proto import log_pb2 as pb
from ledgermq.proto.record import BATCH_WRITE_EPOCH, decode_section

from ..cluster.calls import call_log_service
from ..cluster.channels import Channels
from ..cluster.topic_route import BrokerGroup
from ..consume.fetched_records import open_section
from ..errors import (
    BatchError,
    BrokerUnreachableError,
    LedgerMQError,
    OffsetOutOfRangeError,
    error_of,
)
from ..message import MessageQueue, MessageView
from .row_packer import Row

_FETCH_BYTES: Final = 4 << 20
_POLL_MS: Final = 1000


def content_of(row: Row) -> bytes:
    """Return a 16-byte digest of the content of a row."""
    properties = sorted((row.properties or {}).items())
    texts = [row.tag, row.message_group, *row.keys, *(text for pair in properties for text in pair)]
    raw = [text.encode() for text in texts]
    sizes = struct.pack(f"<{len(raw) + 2}I", len(row.keys), len(properties), *map(len, raw))
    return hashlib.blake2b(b"".join((sizes, *raw, row.body)), digest_size=16).digest()


def row_of(view: MessageView) -> Row:
    """Return the content of a stored message. Raises: CorruptMessageError."""
    return Row(view.body, view.tag, view.keys, view.properties, view.message_group)


class StoredRows:
    """The stored messages of a part that this attempt has not produced yet."""

    def __init__(self) -> None:
        self._left: Counter[bytes] = Counter()
        self.count = 0  # that are left

    def add(self, row: Row) -> None:
        """Note a stored message."""
        self._left[content_of(row)] += 1
        self.count += 1

    def take(self, row: Row) -> bool:
        """Tell whether a row that this attempt produced is stored already; each counts once."""
        key = content_of(row)
        left = self._left.get(key, 0)
        if left == 1:
            del self._left[key]
        elif left:
            self._left[key] = left - 1
        self.count -= bool(left)
        return left > 0


async def read_back(
    stored: StoredRows,
    broker_group: Callable[[], BrokerGroup],
    channels: Channels,
    topic: str,
    answer: pb.BeginBatchResponse,
    timeout_s: float,
) -> None:
    """Add the messages of the part that a broker group has stored. `answer`: the one that tells where.

    Raises: BatchError (retention deleted some), and what `call_log_service` raises.
    """
    found = 0
    for span in answer.spans:
        queue = MessageQueue(topic, broker_group().name, span.queue_id)
        at, heard_at = span.offset, time.monotonic()
        while at < span.end_offset:
            request = pb.FetchRequest(max_bytes=_FETCH_BYTES, max_wait_ms=_POLL_MS)
            request.positions.add(topic_id=answer.topic_id, queue_id=span.queue_id, offset=at)
            fetched = await call_log_service(
                broker_group, channels, lambda stub: stub.Fetch, request, timeout_s=timeout_s
            )
            start = at
            for views, end in _views(fetched, queue, answer.producer_id, at):
                at = end
                for view in views:
                    stored.add(row_of(view))
                    found += 1
            if at > start:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > timeout_s:
                raise BrokerUnreachableError(queue.broker_group, f"it sent no messages from offset {at} on")
    if found != answer.count:
        raise LedgerMQError(
            f"{found:,} messages of this part of the batch were found in broker group {broker_group().name}, "
            f"which has recorded {answer.count:,}",
            "Its log and its state differ",
            "Report this, with the logs of the brokers",
        )


def _views(
    fetched: pb.FetchResponse, queue: MessageQueue, producer_id: int, at: int
) -> Iterator[tuple[list[MessageView], int]]:
    """Yield the messages of the part in each section, and the offset behind it.

    Raises: CorruptMessageError, BatchError, and other refusals.
    """
    for each in fetched.queues:
        if each.HasField("refusal"):
            error = error_of(each.refusal)
            if isinstance(error, OffsetOutOfRangeError):
                raise BatchError(
                    "what is missing of a batch cannot be told",
                    f"Retention has deleted messages of it that an earlier attempt stored: {error}",
                    "Start with a new checkpoint",
                )
            raise error
        for section in each.sections:
            records = open_section(queue, section, at)
            if records is None:
                continue
            header = decode_section(section.section)
            ours = header.producer_id == producer_id and header.producer_epoch & BATCH_WRITE_EPOCH
            views = list(records.take(queue, header.count)) if ours else []
            at = records.end
            yield views, at
