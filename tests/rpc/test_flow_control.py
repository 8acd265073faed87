"""What a peer may send: never more than the memory, and always enough for one message."""

from __future__ import annotations

import random

import pytest

from ledgermq.rpc.flow_control import ReceiveMemory, stream_grant
from ledgermq.rpc.http2_frames import FLOW_CONTROL_ERROR, Http2ConnectionError
from ledgermq.rpc.wire_limits import DEFAULT_WINDOW, MAX_WINDOW, WireLimits

LIMIT = 16 << 20


def test_window_and_unread_bytes_never_exceed_the_limit() -> None:
    rng, memory = random.Random(1), ReceiveMemory(LIMIT)
    memory.grant()
    for _ in range(10_000):
        size = rng.randrange(0, min(memory.window, 1 << 20) + 1)
        memory.take(size)
        memory.held += size
        memory.held -= rng.randrange(0, memory.held + 1) if rng.random() < 0.3 else 0
        memory.grant()
        assert memory.window + memory.held <= LIMIT


def test_a_peer_is_never_left_without_window_while_memory_is_free() -> None:
    memory = ReceiveMemory(LIMIT)
    memory.grant()
    memory.take(LIMIT)
    memory.held = LIMIT
    assert memory.grant() == 0 and memory.is_full
    memory.held -= 1
    assert memory.grant() == 1 and not memory.is_full


def test_no_window_is_larger_than_http_2_allows() -> None:
    memory = ReceiveMemory(1 << 40)
    memory.grant()
    assert memory.window == MAX_WINDOW


def test_small_increments_are_saved_up() -> None:
    memory = ReceiveMemory(LIMIT)
    assert memory.grant() == LIMIT - DEFAULT_WINDOW
    memory.take(LIMIT // 8)
    assert memory.grant() == 0
    memory.take(LIMIT // 8)
    assert memory.grant() == LIMIT // 4


def test_more_than_the_window_is_an_error_of_the_connection() -> None:
    memory = ReceiveMemory(LIMIT)
    with pytest.raises(Http2ConnectionError) as caught:
        memory.take(DEFAULT_WINDOW + 1)
    assert caught.value.code == FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    ("window", "unread", "missing", "increment"),
    [
        (100_000, 0, 0, 0),  # enough is left
        (40_000, 0, 0, 60_000),
        (40_000, 60_000, 0, 0),  # the reader is slow
        (0, 100_000, 0, 0),
        (0, 30_000, 0, 70_000),
        (40_000, 0, 1_000_000, 1_060_000),  # a large message gets room at once
        (1_000_000, 0, 900_000, 0),
        (5, 500_000, 10, 5),  # its rest, although nothing else is read
    ],
)
def test_grants_of_a_stream(window: int, unread: int, missing: int, increment: int) -> None:
    assert stream_grant(100_000, window, unread, missing) == increment


def test_limits_that_no_peer_could_keep_are_refused() -> None:
    with pytest.raises(ValueError, match="stream_window"):
        WireLimits(stream_window=1000)
    for size in ((1 << 14) - 1, 1 << 24):
        with pytest.raises(ValueError, match="max_data_frame"):
            WireLimits(max_data_frame=size)
    with pytest.raises(ValueError, match="twice"):
        WireLimits(connection_memory=300_000)


def test_large_messages_are_promised_a_quarter_of_the_memory() -> None:
    memory = ReceiveMemory(LIMIT)
    assert memory.may_promise(LIMIT // 2), "one always"
    memory.promised += 3 << 20
    assert memory.may_promise(1 << 20) and not memory.may_promise((1 << 20) + 1)
