"""Sections and fetch answers as a broker would return them."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.client.produce.encoding import RecordEncoder
from ledgermq.proto import log_pb2
from ledgermq.proto.record import SECTION_HEADER_SIZE, SectionKind, encode_section, seal_section

TOPIC_ID = 7


def section(queue_id: int, base: int, *bodies: bytes, tags: Sequence[str] = ()) -> bytes:
    """A section as a broker would return it. `tags`: one for each body; none: no tags."""
    encoder = RecordEncoder("orders", born_host="here")
    size, records = SECTION_HEADER_SIZE, []
    for number, body in enumerate(bodies):
        identity = bytes([1, *bytes(14), number]), f"id{base + number}"
        records.append(encoder.encode(size, body, identity, 1000, tags[number] if tags else ""))
        size += len(records[-1])
    sealed = bytearray(
        encode_section(
            SectionKind.RECORDS, records, len(records),
            topic_id=TOPIC_ID, queue_id=queue_id, producer_id=1, base_sequence=base,
        )
    )  # fmt: skip
    seal_section(sealed, base_queue_offset=base, entry_distance=64)
    return bytes(sealed)


def answer(*sections: tuple[int, bytes]) -> log_pb2.FetchResponse:
    response = log_pb2.FetchResponse()
    for queue_id, raw in sections:
        queue = response.queues.add(topic_id=TOPIC_ID, queue_id=queue_id)
        queue.sections.add(section=raw, store_timestamp=5)
    return response
