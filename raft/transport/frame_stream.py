"""Plain frames on a TCP connection, for peers of the version before: length and frame, then with checksums.

Owns: the buffers of one connection. Must not: know what a frame means, or who the peer is. A large frame is
received into its own memory and stays there: its entries are staged and cached without a copy. That memory
grows with the received bytes. Nothing is delivered after `abort` or during `hold`, and nothing that was
corrupted on the way.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from crc32c import crc32c

from ledgermq.proto.entry import Buffer

from ..errors import DamagedFrameError
from .checked_frame import HEADER_SIZE, check_body, header_of, read_header
from .stream_kind import REPORT_AFTER_S
from .stream_watch import StreamWatch

_LENGTH: Final = struct.Struct("<I")
_SCRATCH_SIZE: Final = 64 << 10
#: Initial memory of a large frame; doubled whenever it is full. Ordinary appends fit.
_FIRST_PIECE: Final = 2 << 20
#: Bytes waiting for the network above which no more frames are made.
_HIGH_WATER: Final = 1 << 20
#: Smaller frames are joined with their length: one buffer costs less than two.
_JOIN_BELOW: Final = 16 << 10


class FrameStream(asyncio.BufferedProtocol):
    """One connection, used on the loop thread."""

    def __init__(
        self,
        on_frame: Callable[[Buffer], None],
        on_lost: Callable[[str], None],
        max_frame_size: int,
        on_writable: Callable[[], None] = lambda: None,
        stall_s: float = 0.0,
    ) -> None:
        """`on_lost(reason)` is called once, when the connection ends; `on_writable` when it accepts frames
        again.

        A frame that has begun must be complete, or have grown by a fair amount, within `stall_s` (0: no
        limit).
        """
        self.max_frame_size = max_frame_size
        self.is_open = False
        self.may_send = False  # open, and most of what was sent has left the write buffer
        self.is_damaged = False  # it was ended because of damage
        self.sent = 0  # bytes of checked frames sent
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_writable = on_writable
        self._transport: Any = None
        self._is_checked = self._reports = False
        self._scratch = bytearray(_SCRATCH_SIZE)
        self._view = memoryview(self._scratch)
        self._filled = 0  # bytes in the scratch buffer
        self._large: memoryview | None = None  # memory of a frame that does not fit the scratch buffer
        self._large_size = self._large_filled = 0
        # checksums of the large frame: of the bytes so far, and of the whole frame as stated
        self._checksum = self._stated = 0
        self._taken = 0  # bytes of all frames before the current one
        self._due = 0  # bytes of the current one including its header, as far as known
        self._watch = StreamWatch(stall_s) if stall_s else None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._held = False
        self._reason = ""

    @property
    def is_held(self) -> bool:
        """True: nothing is read or delivered until `resume`."""
        return self._held

    @property
    def received(self) -> int:
        """Bytes received since `check_frames`, including those of an incomplete frame."""
        return self._taken + self._pending

    @property
    def _pending(self) -> int:
        return self._filled if self._large is None else self._header_size + self._large_filled

    @property
    def _header_size(self) -> int:
        return HEADER_SIZE if self._is_checked else _LENGTH.size

    def check_frames(self, *, reports: bool) -> None:
        """Use checksums on all frames from now on. `reports`: report received bytes to the peer."""
        self._is_checked, self._reports = True, reports
        self._taken = self.sent = 0

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write one frame. It is dropped if the connection has ended."""
        if not self.is_open:
            return
        size = sum(map(len, parts))
        if self._is_checked:
            header = header_of(parts)
            self.sent += HEADER_SIZE + size
        else:
            header = _LENGTH.pack(size)
        if size < _JOIN_BELOW:
            self._transport.write(b"".join((header, *parts)))
        else:
            self._transport.writelines((header, *parts))

    def send_preamble(self, preamble: bytes) -> None:
        """Write the bytes that open a connection, before any frame."""
        self._transport.write(preamble)

    def hold(self) -> None:
        """Deliver nothing more until `resume`."""
        if not self._held:
            self._held = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Deliver what was held back, and continue reading."""
        if self._held and self.is_open:
            self._held = False
            self._take()
            if not self._held and self.is_open:
                self._transport.resume_reading()

    def close(self) -> None:
        """End the connection once everything sent has left the write buffer."""
        if self.is_open:
            self.is_open = self.may_send = False
            self._transport.close()

    def abort(self, reason: str = "") -> None:
        """End the connection at once."""
        self._reason = self._reason or reason
        self.is_open = self.may_send = False
        if self._transport is not None:
            self._transport.abort()

    def feed(self, data: bytes) -> None:
        """Process bytes that were received before this protocol took over the connection."""
        while data and self.is_open:
            buffer = self.get_buffer(len(data))
            count = min(len(buffer), len(data))
            if not count:  # held, and the buffer is full: a peer may not send this much before the answer
                self.abort("it sends before it was answered")
                return
            buffer[:count] = data[:count]
            self.buffer_updated(count)
            data = data[count:]

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self.is_open = self.may_send = True

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is None:
            return self._view[self._filled :]
        if self._large_filled == len(self._large):
            self._grow()
        return self._large[self._large_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is not None:
            self._take(nbytes)
            return
        self._filled += nbytes
        if not self._held:
            self._take()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = self.may_send = False
        for timer in (self._watch_timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        self._on_lost(self._reason or (str(exc) if exc else "closed by the peer"))

    def pause_writing(self) -> None:
        self.may_send = False

    def resume_writing(self) -> None:
        self.may_send = self.is_open
        if self.may_send:
            self._on_writable()

    def end_damaged(self, error: DamagedFrameError) -> None:
        """End the connection: the position of the next frame is unknown."""
        self.is_damaged = True
        self.abort(str(error))

    # --- inside --------------------------------------------------------------------------------------------
    def _take(self, of_large: int = 0) -> None:
        """Process received bytes: so many of a large frame, or those in the scratch buffer."""
        try:
            if of_large:
                self._take_large(of_large)
            else:
                self._cut()
        except DamagedFrameError as error:
            self.end_damaged(error)
        if self.is_open:
            self._look_after()

    def _cut(self) -> None:
        """Deliver the whole frames in the scratch buffer; begin a large one. Raises: DamagedFrameError."""
        view, start, end, header = self._view, 0, self._filled, self._header_size
        self._due = header
        while end - start >= header and not self._held and self.is_open:
            size, stated = self._read_header(start)
            if size > self.max_frame_size:
                self.abort(f"a frame of {size} bytes; at most {self.max_frame_size}")
                return
            self._due = header + size
            body = start + header
            if body + size <= end:
                start = body + size
                frame = bytes(view[body:start])
                if self._is_checked:
                    check_body(crc32c(frame), stated)
                self._taken += self._due
                self._due = header
                self._hand_up(frame)
                header = self._header_size
            elif header + size > _SCRATCH_SIZE:
                self._begin_large(size, stated, view[body:end])
                start = end
            else:
                break
        self._filled = end - start
        if start and self._filled:
            self._scratch[: self._filled] = self._scratch[start:end]

    def _read_header(self, start: int) -> tuple[int, int]:
        if self._is_checked:
            return read_header(self._scratch, start)
        return _LENGTH.unpack_from(self._scratch, start)[0], 0

    def _begin_large(self, size: int, stated: int, first: memoryview) -> None:
        self._large = memoryview(bytearray(min(size, _FIRST_PIECE)))
        self._large_size, self._stated = size, stated
        self._large_filled = self._checksum = 0
        self._large[: len(first)] = first
        self._take_large(len(first))

    def _take_large(self, count: int) -> None:
        """Process more bytes of a large frame. Raises: DamagedFrameError."""
        large, filled = self._large, self._large_filled
        assert large is not None
        self._large_filled += count
        if self._is_checked:  # piece by piece, because the loop has other work
            self._checksum = crc32c(large[filled : filled + count], self._checksum)
        if self._large_filled < self._large_size:
            return
        self._large = None
        if self._is_checked:
            check_body(self._checksum, self._stated)
        self._taken += self._due
        self._due = self._header_size
        self._hand_up(large)

    def _grow(self) -> None:
        """Double the memory of a large frame."""
        assert self._large is not None
        larger = memoryview(bytearray(min(self._large_size, 2 * self._large_filled)))
        larger[: self._large_filled] = self._large
        self._large = larger

    def _hand_up(self, frame: Buffer) -> None:
        if self.is_open:
            self._on_frame(frame)

    # --- what has come -------------------------------------------------------------------------------------
    def _look_after(self) -> None:
        """Schedule a report to the peer, and the check that a frame in progress is completed."""
        if self._reports and self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(REPORT_AFTER_S, self._report)
        if self._watch is not None and self._watch_timer is None and self._pending and not self._held:
            self._look()

    def _report(self) -> None:
        self._report_timer = None
        if self.may_send:
            self.send((self.received.to_bytes(8, "little"),))

    def _look(self) -> None:
        self._watch_timer = None
        watch, pending = self._watch, self._pending
        if watch is None or not self.is_open or not pending or self._held:
            return
        loop = asyncio.get_running_loop()
        stood_s = watch.look(loop.time(), self._taken + self._due, self._taken + pending)
        if stood_s >= watch.limit_s:
            self.abort(f"a frame began and did not go on for {stood_s:.1f} s")
        else:
            self._watch_timer = loop.call_later(watch.interval_s, self._look)
