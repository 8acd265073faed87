"""State machine of the simulated nodes: its interface, and a minimal one that reveals every difference.

A node has one per life, built from its last checkpoint. Equal entries must produce equal bytes on every node:
results of `capture` at an index are compared between nodes, and so across checkpoints, restarts and resets
(I12).
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from crc32c import crc32c

from ledgermq.proto.entry import EntryHeader

Entry = tuple[EntryHeader, memoryview]
"""Header and payload. The payload is valid only during the call."""


class SimState(Protocol):
    """Deterministic state machine without clock, disk or randomness."""

    last_applied: int  # last entry in this state; 0: none
    log_start: int  # beginning of the log as decided by the broker group (retention)

    def apply(self, entry: Entry) -> None:
        """Apply the entry last_applied + 1, of any kind."""

    def capture(self) -> bytes:
        """Return the state as bytes, equal on all nodes at equal indexes."""

    def install(self, state: bytes) -> None:
        """Replace the state by a captured one, from any node."""

    def log_start_command(self, first_index: int, first_offset: int) -> bytes:
        """Return the payload of an entry that decides where the log begins."""


_ROWS: Final = 64
_HEAD: Final = struct.Struct("<QQI")
_TABLE: Final = struct.Struct(f"<{_ROWS}I")
_LOG_START: Final = b"log start"
_INDEX: Final = struct.Struct("<Q")


class DigestState:
    """A running checksum of everything applied, and its values at the last 64 entries."""

    def __init__(self) -> None:
        self.last_applied = 0
        self.log_start = 1
        self._digest = 0
        self._rows = [0] * _ROWS

    def apply(self, entry: Entry) -> None:
        header, payload = entry
        assert header.index == self.last_applied + 1, f"entry {header.index} after {self.last_applied}"
        self._digest = crc32c(payload, self._digest ^ header.crc)
        self._rows[header.index % _ROWS] = self._digest
        if bytes(payload[: len(_LOG_START)]) == _LOG_START:
            self.log_start = max(self.log_start, _INDEX.unpack_from(payload, len(_LOG_START))[0])
        self.last_applied = header.index

    def capture(self) -> bytes:
        return _HEAD.pack(self.last_applied, self.log_start, self._digest) + _TABLE.pack(*self._rows)

    def install(self, state: bytes) -> None:
        self.last_applied, self.log_start, self._digest = _HEAD.unpack_from(state)
        self._rows = list(_TABLE.unpack_from(state, _HEAD.size))

    def log_start_command(self, first_index: int, first_offset: int) -> bytes:
        return _LOG_START + _INDEX.pack(first_index)
