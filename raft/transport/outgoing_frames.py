"""Frames for the peers: control messages in batches, appends encoded once for several peers.

Owns: the last append frame. Must not: send, or look into entries.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ..core.messages import AppendEntries, Message
from .hello import Hello
from .wire import encode_append, encode_control

#: Maximum number of control messages in a frame.
MAX_CONTROL_BATCH: Final = 64


class AppendFrames:
    """Encoder of appends. Both followers nearly always get the same one."""

    def __init__(self) -> None:
        self._last: tuple[AppendEntries, tuple[bytes, bytes]] | None = None

    def encode(self, message: AppendEntries, entries: bytes) -> tuple[bytes, bytes]:
        """Return the frame of an append with its log bytes."""
        if self._last is not None:
            before, frame = self._last
            # The same object was read for the same range, so its entries and the entry before have the same
            # terms.
            if (
                frame[1] is entries
                and before.prev_index == message.prev_index
                and before.hi == message.hi
                and before.commit_index == message.commit_index
                and before.term == message.term
            ):
                return frame
        frame = encode_append(message, entries)
        self._last = message, frame
        return frame

    def forget(self) -> None:
        """Drop frames encoded before a repair."""
        self._last = None


def make_control_frame(queue: deque[Message | Hello]) -> tuple[bytes]:
    """Take control messages off the queue, several into one frame. Only the latest greeting is kept."""
    messages: list[Message] = []
    hello: Hello | None = None
    for _ in range(min(len(queue), MAX_CONTROL_BATCH)):
        item = queue.popleft()
        if isinstance(item, Hello):
            hello = item
        else:
            messages.append(item)
    return (encode_control(messages, hello),)


def make_append_frame(queue: deque[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Take one append frame off its queue."""
    return queue.popleft()
