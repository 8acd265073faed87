"""Flow control: how many bytes a peer may send, per stream and per connection (RFC 9113, 5.2).

Owns: the arithmetic of received bytes. Must not: know frames or messages.

The connection promises memory: window plus unread bytes never exceed its `limit`. A stream promises
`stream_window` unread bytes, and room for the message that it is receiving: a message is read only as a
whole, so it must fit. Large messages get such promises in the order in which they began: one always, more as
long as they need a quarter of the memory together; the others wait. The rest of the memory is for the windows
of streams that wait.
"""

from __future__ import annotations

from .http2_frames import FLOW_CONTROL_ERROR, Http2ConnectionError
from .wire_limits import DEFAULT_WINDOW, MAX_WINDOW

#: Window under which a peer is given whatever there is, however little.
_LOW_WINDOW = 16 << 10


class ReceiveMemory:
    """What one connection may receive.

    `held`: memory of unread messages, and of parts of them; `promised`: sizes of messages with a promise;
    """

    __slots__ = ("held", "limit", "promised", "window")

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, MAX_WINDOW)
        self.window = DEFAULT_WINDOW
        self.held = self.promised = 0

    def may_promise(self, size: int) -> bool:
        """Whether one more large message may come beside those that have a promise."""
        return not self.promised or 4 * (self.promised + size) <= self.limit

    @property
    def is_full(self) -> bool:
        """Whether the peer cannot send a byte until something is read or dropped."""
        return self.window <= 0 and self.held >= self.limit

    @property
    def is_worth_granting(self) -> bool:
        """Whether an increment may be worth a frame."""
        return 4 * (self.limit - self.held - self.window) >= self.limit or self.window <= _LOW_WINDOW

    def take(self, size: int) -> None:
        """Count the payload of a DATA frame. Raises: Http2ConnectionError."""
        self.window -= size
        if self.window < 0:
            raise Http2ConnectionError(FLOW_CONTROL_ERROR, "more DATA than the connection's window")

    def grant(self) -> int:
        """Return the increment to send, or 0 when it is not worth a frame. It is counted as sent."""
        free = self.limit - self.held - self.window
        if free <= 0 or not self.is_worth_granting:
            return 0
        self.window += free
        return free


def stream_grant(stream_window: int, window: int, unread: int, missing: int) -> int:
    """Return the increment of a stream's window, or 0 when it is not worth a frame.

    `unread`: bytes that came, without those of a message that has a promise; `missing`: bytes that this one
    still needs.
    """
    wanted = max(0, stream_window - unread) + missing
    increment = wanted - window
    if increment <= 0 or (2 * increment < stream_window and window >= missing):
        return 0
    return increment
