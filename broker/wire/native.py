"""Produce and Fetch messages at the level of wire bytes: sections pass through without conversion to objects.

Pure. Field numbers: proto/log.proto. `tests/broker/wire/test_log_wire.py` compares with the generated code.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np

from ledgermq.proto.entry import Buffer
from ledgermq.proto.errors import CorruptError, LayoutError
from ledgermq.proto.record import (
    MAX_BODY_SIZE,
    MAX_KEYS,
    MAX_PROPERTIES_SIZE,
    PRODUCER_FLAGS,
    RECORD_HEADER_SIZE,
    SECTION_HEADER_SIZE,
    RecordFlags,
    SectionHeader,
    SectionKind,
    record_flags,
    record_headers,
    record_positions,
    verify_section,
    walk_sections,
)
from ledgermq.proto.values import value
from ledgermq.proto.varint import read_varint, varint

#: Maximum of sections in one ProduceRequest: verifying more would block the event loop for too long.
MAX_SECTIONS: Final = 8192
_FLAGS: Final = struct.Struct("<H")
#: Number of records up to which a loop is faster than an array.
_FEW: Final = 4
_REFUSED_FLAGS: Final = 0xFFFF & ~PRODUCER_FLAGS
#: Allowance for wire bytes other than tag, keys and properties: topic, message group, ids, host, and all
#: framing.
_FRAMING: Final = 2304
_FRAMING_PER_KEY: Final = 4


@value
class ProducedSection:
    """A section as sent by a producer."""

    header: SectionHeader  # decoded
    header_bytes: bytearray  # writable copy, for sealing
    body: memoryview  # view of the request's bytes


class BadProduceRequestError(ValueError):
    """An invalid ProduceRequest. `corrupt`: its bytes do not match their checksum or structure."""

    def __init__(self, reason: str, request_id: int, corrupt: bool) -> None:
        super().__init__(reason)
        self.request_id = request_id
        self.corrupt = corrupt


def split_produce_request(raw: bytes) -> tuple[int, memoryview, int]:
    """Return (request id, bytes of the sections, section count). Raises: BadProduceRequestError."""
    request_id = count = position = 0
    sections = memoryview(b"")
    try:
        while position < len(raw):
            tag, position = read_varint(raw, position)
            value, position = read_varint(raw, position)
            if tag == 0x12:
                sections = memoryview(raw)[position : position + value]
                position += value
            elif tag == 0x08:
                request_id = value
            elif tag == 0x18:
                count = value
            elif tag & 7 == 2:
                position += value
            elif tag & 7 != 0:
                raise BadProduceRequestError("unknown field in a ProduceRequest", request_id, True)
    except CorruptError as error:
        raise BadProduceRequestError(f"the ProduceRequest is damaged: {error}", request_id, True) from None
    if position != len(raw):
        raise BadProduceRequestError("the ProduceRequest is cut short", request_id, True)
    return request_id, sections, count


def checked_sections(
    request_id: int, raw: memoryview, count: int, max_message_bytes: int = MAX_BODY_SIZE
) -> list[ProducedSection]:
    """Verify structure and checksums of the sections of a request. Raises: BadProduceRequestError."""
    found: list[ProducedSection] = []
    if not count:
        raise BadProduceRequestError("the request holds no section", request_id, False)
    if count > MAX_SECTIONS:
        raise BadProduceRequestError(
            f"{count} sections in one request; at most {MAX_SECTIONS}. Send several requests",
            request_id,
            False,
        )
    try:
        for position, header in walk_sections(raw, count):
            if header.kind is not SectionKind.RECORDS or not header.count:
                raise BadProduceRequestError(
                    "only sections of at least one record can be produced", request_id, False
                )
            verify_section(raw, position, header)
            start = position + SECTION_HEADER_SIZE
            body = raw[start : start + header.size]
            positions = record_positions(body, header.count)
            if reason := _refused_flags(body, positions) or _too_large(body, positions, max_message_bytes):
                raise BadProduceRequestError(reason, request_id, False)
            found.append(ProducedSection(header, bytearray(raw[position:start]), body))
    except CorruptError as error:
        raise BadProduceRequestError(f"section is damaged: {error}", request_id, True) from None
    except LayoutError as error:
        raise BadProduceRequestError(str(error), request_id, False) from None
    return found


def _refused_flags(body: memoryview, positions: np.ndarray) -> str:
    """Return the problem with the flags of a section's records; "": none."""
    if len(positions) <= _FEW:
        refused = 0
        for position in positions.tolist():
            refused |= _FLAGS.unpack_from(body, position + 8)[0] & _REFUSED_FLAGS
    else:
        refused = int(np.bitwise_or.reduce(record_flags(body, positions))) & _REFUSED_FLAGS
    if not refused:
        return ""
    if refused == RecordFlags.COPY:
        return "a record is marked as a copy (flag COPY); only the brokers make copies. Leave the flag out"
    return "a record has flags that have no meaning; see proto/record.py"


def _too_large(body: memoryview, positions: np.ndarray, max_message_bytes: int) -> str:
    """Return the limit that a record of the section exceeds; "": none. Only large records are checked."""
    small = RECORD_HEADER_SIZE + min(MAX_PROPERTIES_SIZE, max_message_bytes)  # such a record exceeds no limit
    if len(body) <= small:
        return ""
    last = int(positions[-1])
    if len(body) - last <= small and (positions[1:] - positions[:-1]).max(initial=0) <= small:
        return ""
    headers = record_headers(body, positions[np.diff(positions, append=len(body)) > small])
    if headers["body_size"].max() > max_message_bytes:
        return f"a message body has more than {max_message_bytes} bytes; split it"
    keys = headers["key_count"].astype(np.int64)
    if keys.max() > MAX_KEYS:
        return f"a message has {keys.max()} keys; at most {MAX_KEYS} are allowed. Send fewer"
    labels = headers["system_size"].astype(np.int64) + headers["rest_size"] - headers["body_size"]
    if bool((labels > MAX_PROPERTIES_SIZE + _FRAMING + _FRAMING_PER_KEY * keys).any()):
        return (
            f"tag, keys and properties of a message have more than {MAX_PROPERTIES_SIZE} bytes. Shorten them"
        )
    return ""


def _integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF) if value else b""


def _block(field: int, size: int) -> bytes:
    return varint(field << 3 | 2) + varint(size)


def _text(field: int, text: str) -> bytes:
    raw = text.encode()
    return _block(field, len(raw)) + raw


class QueueFrame:
    """Encoder of a FetchedQueue, section by section."""

    def __init__(self, topic_id: int, queue_id: int) -> None:
        self._parts: list[Buffer] = [_integer(1, topic_id), _integer(2, queue_id)]
        self.size = sum(len(part) for part in self._parts)
        self.sections = 0

    def add(self, section: Buffer, store_timestamp: int, physical_offset: int) -> None:
        """Add one section with the bytes from the log."""
        head = _block(1, len(section))
        tail = _integer(2, store_timestamp) + _integer(3, physical_offset)
        inner = len(head) + len(section) + len(tail)
        block = _block(4, inner) + head
        self._parts += (block, section, tail)
        self.size += len(block) + len(section) + len(tail)
        self.sections += 1

    def refuse(self, refusal: bytes) -> None:
        """Add an encoded Refusal."""
        block = _block(3, len(refusal)) + refusal
        self._parts.append(block)
        self.size += len(block)

    def close(self, begin_offset: int, end_offset: int) -> list[Buffer]:
        """Return the parts of one `queues` field of a FetchResponse."""
        tail = _integer(5, begin_offset) + _integer(6, end_offset)
        return [_block(2, self.size + len(tail)), *self._parts, tail]


def fetch_response(
    queues: Iterable[list[Buffer]], applied_index: int, node_id: str, stale: bool, suggested: str = ""
) -> bytes:
    """Return a FetchResponse of closed queue frames. It copies the sections once."""
    tail = _integer(3, applied_index) + _text(4, node_id) + (b"\x28\x01" if stale else b"")
    if suggested:
        tail += _text(6, suggested)
    return b"".join([part for queue in queues for part in queue] + [tail])
