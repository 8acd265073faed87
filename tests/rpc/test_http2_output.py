"""Windows of the peer: what is sent follows them, also when SETTINGS make them smaller."""

from __future__ import annotations

import struct

import pytest

from ledgermq.rpc import http2_frames as h2
from ledgermq.rpc.wire_limits import DEFAULT_WINDOW

from .peers import run, serving
from .raw_peer import ECHO, RawPeer, message, raw_peer

BODY = bytes(range(256)) * 1000


async def _received(peer: RawPeer, size: int) -> bytes:
    """Return `size` bytes of DATA of stream 1."""
    found = b""
    while len(found) < size:
        found += (await peer.until(h2.DATA, 1))[3]
    return found


@pytest.mark.parametrize("smaller", [0, 1, DEFAULT_WINDOW - 1, DEFAULT_WINDOW, DEFAULT_WINDOW + 1])
def test_a_stream_whose_window_shrinks_below_what_was_sent_waits_for_it(smaller: int) -> None:
    """The window of the connection is used up, that of the stream is not; then it is, and more than that."""

    async def test() -> None:
        async with serving("wire") as (_, address, _), raw_peer(address) as peer:
            peer.writer.write(h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, 1 << 20)]))
            peer.call(1, ECHO, BODY)
            answer = await _received(peer, DEFAULT_WINDOW)
            peer.writer.write(h2.settings_frame([(h2.INITIAL_WINDOW_SIZE, smaller)]))
            peer.send(h2.WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 20))
            peer.send(h2.PING, 0, 0, b"no more?")
            while (frame := await peer.read_frame()) is not None and frame[0] != h2.PING:
                answer += frame[3] if frame[0] == h2.DATA else b""
            assert frame is not None, "the connection has ended"
            assert len(answer) == max(smaller, DEFAULT_WINDOW)
            peer.send(h2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 20))
            answer += await _received(peer, len(message(BODY)) - len(answer))
            assert answer == message(BODY)

    run(test)
