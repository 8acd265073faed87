"""Version 1 message ids: unique without coordination.

    text   34 upper-case hex digits of 17 bytes
    bytes  1 version (01) · 6 random per process · 2 process id · 4 seconds since 2021-01-01 · 4 sequence

The six bytes are random instead of a hardware address: containers share addresses and process ids, and the
brokers detect repeated sends by the id. One source per process, safe to use from several threads and after
fork().
"""

from __future__ import annotations

import functools
import os
import secrets
import threading
from typing import Final, NamedTuple

import numpy as np

_EPOCH_S: Final = 1_609_459_200  # 2021-01-01T00:00:00Z


class IdStem(NamedTuple):
    """The common part of all ids of one second. A 32-bit number completes it to an id."""

    second: int
    raw: bytes  # 12 bytes
    text: str  # 26 characters

    def message_id(self, number: int) -> tuple[bytes, str]:
        """Return the 16 bytes after the version byte, and the text."""
        return self.raw + number.to_bytes(4, "big"), f"{self.text}{number:08X}"

    def texts(self, first: int, count: int) -> list[str]:
        """Return the texts of the ids with `count` consecutive numbers."""
        text, digits = self.text, numbers_from(first, count).tobytes().hex().upper()
        return [text + digits[at : at + 8] for at in range(0, len(digits), 8)]


def numbers_from(first: int, count: int) -> np.ndarray:
    """Return consecutive numbers of ids (uint32, big-endian). Behind the largest one comes 0."""
    return np.arange(first, first + count, dtype=np.int64).astype(">u4")


class MessageIdSource:
    """Source of ids. `next` takes the time, so that the caller reads the clock once per batch."""

    __slots__ = ("_lock", "_next", "_prefix", "_stem")

    def __init__(self, node: bytes, process_id: int) -> None:
        """`node`: 6 bytes that no other process with the same process id has."""
        assert len(node) == 6
        self._prefix = node + (process_id & 0xFFFF).to_bytes(2, "big")
        self._next = 0
        self._lock = threading.Lock()
        self._stem = IdStem(-1, b"", "")  # one tuple, so that threads never see a torn value

    def next(self, now_ms: int) -> tuple[bytes, str]:
        """Return the 16 bytes after the version byte, and the text."""
        return self.stem(now_ms).message_id(self.next_number())

    def stem(self, now_ms: int) -> IdStem:
        """Return the common part of the ids of this second."""
        second = now_ms // 1000 - _EPOCH_S
        stem = self._stem
        if second != stem.second:
            raw = self._prefix + (second & 0xFFFFFFFF).to_bytes(4, "big")
            stem = self._stem = IdStem(second, raw, "01" + raw.hex().upper())
        return stem

    def next_number(self, count: int = 1) -> int:
        """Take `count` consecutive numbers and return the first one.

        Combined with any stem of this source each gives a unique id. Behind the largest one comes 0.
        """
        with self._lock:
            first = self._next
            self._next = (first + count) & 0xFFFFFFFF
        return first


def time_of(message_id: str) -> int:
    """Return when a version 1 id was created, ms since the epoch, to the second; 0 for any other id."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        return 0
    if len(raw) != 17 or raw[0] != 1:
        return 0
    return (int.from_bytes(raw[9:13], "big") + _EPOCH_S) * 1000


_sources: list[MessageIdSource] = []


def process_ids() -> MessageIdSource:
    """Return the source of this process."""
    if not _sources:
        _forget_in_children()
        _sources.append(MessageIdSource(secrets.token_bytes(6), os.getpid()))
    return _sources[0]


@functools.cache
def _forget_in_children() -> None:
    """Register the fork handler once per process; children inherit it. Must not run at import."""
    os.register_at_fork(after_in_child=_sources.clear)
