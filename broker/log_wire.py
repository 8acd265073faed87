"""Produce and Fetch messages at the level of wire bytes: sections pass through without being copied into objects.

Pure. Field numbers: proto/log.proto. `tests/broker/test_log_wire.py` compares with the generated code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ledgermq.proto.entry import Buffer
from ledgermq.proto.errors import CorruptError, LayoutError
from ledgermq.proto.record import (
    KNOWN_FLAGS,
    MAX_BODY_SIZE,
    SECTION_HEADER_SIZE,
    SectionHeader,
    SectionKind,
    record_flags,
    record_headers,
    record_positions,
    verify_section,
    walk_sections,
)

from .messaging_wire import varint

#: Sections in one ProduceRequest: checking more would hold the event loop for too long.
MAX_SECTIONS: Final = 8192
_UNKNOWN_FLAGS: Final = 0xFFFF & ~KNOWN_FLAGS


@dataclass(frozen=True, slots=True)
class ProducedSection:
    """A section as a producer sent it: a writable header and its body, still inside the request's bytes."""

    header: SectionHeader
    header_bytes: bytearray
    body: memoryview


class BadProduceRequestError(ValueError):
    """The request cannot be used. `corrupt`: bytes do not fit their checksum or structure."""

    def __init__(self, reason: str, request_id: int, corrupt: bool) -> None:
        super().__init__(reason)
        self.request_id = request_id
        self.corrupt = corrupt


def _varint_at(raw: Buffer, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def split_produce_request(raw: bytes) -> tuple[int, memoryview, int]:
    """Return (request id, bytes of the sections, section count). Raises: BadProduceRequestError."""
    request_id = count = position = 0
    sections = memoryview(b"")
    try:
        while position < len(raw):
            tag, position = _varint_at(raw, position)
            value, position = _varint_at(raw, position)
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
    except IndexError:
        raise BadProduceRequestError("the ProduceRequest is cut short", request_id, True) from None
    return request_id, sections, count


def checked_sections(request_id: int, raw: memoryview, count: int) -> list[ProducedSection]:
    """Check structure and checksums of the sections of a request. Raises: BadProduceRequestError."""
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
            if bool((record_flags(body, positions) & _UNKNOWN_FLAGS).any()):
                raise BadProduceRequestError(
                    "a record has flags that have no meaning; see proto/record.py", request_id, False
                )
            if (
                header.size > MAX_BODY_SIZE
                and record_headers(body, positions)["body_size"].max() > MAX_BODY_SIZE
            ):
                raise BadProduceRequestError(
                    f"a message body has more than {MAX_BODY_SIZE} bytes; split it", request_id, False
                )
            found.append(ProducedSection(header, bytearray(raw[position:start]), body))
    except CorruptError as error:
        raise BadProduceRequestError(f"section is damaged: {error}", request_id, True) from None
    except LayoutError as error:
        raise BadProduceRequestError(str(error), request_id, False) from None
    return found


def _integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value & 0xFFFFFFFFFFFFFFFF) if value else b""


def _block(field: int, size: int) -> bytes:
    return varint(field << 3 | 2) + varint(size)


class QueueFrame:
    """A FetchedQueue that grows by sections."""

    def __init__(self, topic_id: int, queue_id: int) -> None:
        self._parts: list[Buffer] = [_integer(1, topic_id), _integer(2, queue_id)]
        self.size = sum(len(part) for part in self._parts)
        self.sections = 0

    def add(self, section: Buffer, store_timestamp: int, physical_offset: int) -> None:
        """Add one section as it stands in the log."""
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
        """Return the parts of the whole field `queues` of a FetchResponse."""
        tail = _integer(5, begin_offset) + _integer(6, end_offset)
        return [_block(2, self.size + len(tail)), *self._parts, tail]


def fetch_response(queues: Iterable[list[Buffer]], applied_index: int, node_id: str, stale: bool) -> bytes:
    """Return a FetchResponse made of closed queue frames: one copy of the sections."""
    name = node_id.encode()
    tail = _integer(3, applied_index) + _block(4, len(name)) + name + (b"\x28\x01" if stale else b"")
    return b"".join([part for queue in queues for part in queue] + [tail])
