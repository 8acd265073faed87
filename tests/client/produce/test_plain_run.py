"""Messages encoded together are byte for byte those encoded one by one."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ledgermq.client.message import MessageQueue
from ledgermq.client.produce.encoding import RecordEncoder, alike_sizes
from ledgermq.client.produce.message_ids import MessageIdSource
from ledgermq.client.produce.plain_run import PlainRun
from ledgermq.client.produce.produce_stream import encoded
from ledgermq.client.produce.send_window import SendWindow
from ledgermq.proto import log_pb2
from ledgermq.proto.record import SECTION_HEADER_SIZE, decode_section, record_positions, verify_section


def one_by_one(bodies: list[bytes], distance: int, born_ms: int) -> bytes:
    encoder, ids = (
        RecordEncoder("orders", born_host="host-1", compress_above=None),
        MessageIdSource(b"\1\2\3\4\5\6", 4711),
    )
    records = b""
    for body in bodies:
        records += encoder.encode(distance + len(records), body, ids.next(born_ms), born_ms)
    return records


@given(
    st.sampled_from(((1, 127), (128, 300), (100, 100), (128, 128), (16_300, 16_383), (16_384, 16_400))),
    st.integers(1, 40),
    st.sampled_from((64, 4096, 1 << 18)),
    st.integers(1_700_000_000_000, 1_700_000_003_000),
    st.randoms(use_true_random=False),
)
def test_a_run_gives_the_records_that_are_made_one_by_one(
    sizes: tuple[int, int], count: int, distance: int, born_ms: int, rng: random.Random
) -> None:
    bodies = [rng.randbytes(rng.randint(*sizes)) for _ in range(count)]
    encoder = RecordEncoder("orders", born_host="host-1", compress_above=None)
    run = PlainRun(encoder, distance, len(bodies[0]), born_ms, MessageIdSource(b"\1\2\3\4\5\6", 4711))
    assert all(run.fits(encoder, len(body), born_ms) for body in bodies)
    run.bodies = list(bodies)
    ends = run.record_ends(bodies).tolist()
    assert ends == list(accumulate(run.record_size(len(body)) for body in bodies))
    encoder.encode(64, b"another", (bytes(16), "another"), born_ms + 777)  # the encoder is used meanwhile
    out = bytearray(b"?" * (ends[-1] + 5))
    assert run.write(memoryview(out)) == ends[-1]
    again = MessageIdSource(b"\1\2\3\4\5\6", 4711)
    assert run.message_ids(0, count) == [again.next(born_ms)[1] for _ in bodies]
    assert bytes(out) == one_by_one(bodies, distance, born_ms) + b"?????"


def test_only_bodies_whose_size_is_written_down_in_as_many_bytes_share_a_run() -> None:
    encoder = RecordEncoder("orders", born_host="h")
    ranges = [encoder.plain_sizes(size) for size in (1, 127, 128, 4096)]
    assert ranges == [(1, 127), (1, 127), (128, 4096), (128, 4096)]
    assert alike_sizes(16_383) == (128, 16_383) and alike_sizes(16_384) == (16_384, (1 << 21) - 1)


def test_runs_and_single_records_share_a_section() -> None:
    encoder, ids, now = (
        RecordEncoder("orders", born_host="h"),
        MessageIdSource(b"\1\2\3\4\5\6", 1),
        1_700_000_000_001,
    )
    window = SendWindow(lambda: 7)
    lane = window.lane(MessageQueue("orders", "g0", 0), 3)
    section = window.open_section(lane, 0, 1000, 100)
    runs = [PlainRun(encoder, section.size, 5, now, ids)]
    runs[0].bodies.append(b"00000")
    window.added_run(section, runs[0], runs[0].record_size(5), "twelve", grows=True)
    for number in range(1, 12):
        runs[0].bodies.append(b"%05d" % number)
        window.grew(section, 1, runs[0].record_size(5))
    window.added(section, encoder.encode(section.size, b"labelled", ids.next(now), now, tag="t"), 12)
    runs.append(PlainRun(encoder, section.size, 5, now + 1, ids))
    runs[1].bodies = [b"%05d" % number for number in range(13, 16)]
    window.added_run(section, runs[1], 3 * runs[1].record_size(5), "three", grows=False)
    request = window.next_request(0)
    assert request is not None
    sections = b"".join(request.parts)
    header = decode_section(sections)
    verify_section(sections, 0, header)
    body = sections[SECTION_HEADER_SIZE:]
    assert (header.count, header.total_size, section.size) == (16, len(sections), len(sections))
    assert len(record_positions(body, header.count)) == 16


def test_a_request_on_the_wire_is_what_protobuf_reads() -> None:
    window = SendWindow(lambda: 7)
    for queue in range(3):
        section = window.open_section(window.lane(MessageQueue("orders", "g0", queue), 3), 0, 1000, 100)
        window.added(section, bytes(200 * 64), "ticket")
    request = window.next_request(0)
    assert request is not None
    read = log_pb2.ProduceRequest.FromString(encoded(request))
    assert (read.request_id, read.section_count) == (request.request_id, 3)
    assert read.sections == b"".join(request.parts)


def test_only_bytes_that_go_as_they_are_may_wait() -> None:
    encoder = RecordEncoder("orders", born_host="h", compress_above=100)
    assert encoder.is_plain(b"x" * 100)
    others: list[Any] = [b"", b"x" * 101, bytearray(b"x"), memoryview(b"x")]
    for body in others:
        assert not encoder.is_plain(body)
