"""Durable hard state of one node (D6, rule P1): one checksummed record in two alternating slots.

Owns: `hardstate`, a file of four 4 KiB blocks. It is filled with zeros when the data folder is created, so a
term or a vote can be stored even on a full disk. Must not: decide when to write. The flusher does that, in
order with the log.
Invariant: a write goes to the slot that does not hold the latest record, and fdatasync completes it. Each
slot has two copies, so a damaged sector cannot bring an older vote back.

Blocks: 0 slot A, 1 slot B, 2 copy of A, 3 copy of B. Record (little-endian, 512 bytes)
     0  4   magic b"LMQH"          4  u32 version (1)       8  u32 crc32c over bytes [0, 8) and [12, 512)
    12  u32 flags (1: clean stop, 2: voter)                16  u64 sequence: the slot is sequence % 2
    24  u64 term                  32  u64 commit hint      40  u64 acked floor, index
    48  u64 acked floor, term     56  u64 incarnation      64  16  kernel boot id
    80  u64 cut turn              88  u64 cut offset: a truncation in progress (0: none)
    96  u8  length of voted_for (0: no vote), then its UTF-8 bytes
"""

from __future__ import annotations

import logging
import struct
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from ledgermq.proto.errors import CorruptError, NewerFormatError

from ..disk.files import File, FileSystem, write_zeros
from ..errors import DamagedFolderError, OldHardStateError
from ..types import LAST_TERM, NO_INDEX, NO_TERM, HardState, LogIndex, NodeId, Term

_log = logging.getLogger(__name__)

RECORD_SIZE: Final = 512
BLOCK: Final = 4096
FILE_SIZE: Final = 4 * BLOCK
VERSION: Final = 1
MAX_NODE_ID_SIZE: Final = 200
NO_BOOT_ID: Final = str(uuid.UUID(int=0))

_MAGIC: Final = b"LMQH"
_RECORD: Final = struct.Struct("<4sIIIQQQQQQ16sQQB")
_CLEAN_STOP: Final = 1
_VOTER: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableState:
    """Contents of the record. The floor is the highest entry known to have been durable (P18)."""

    # term, vote, commit hint and voting right; the core owns it
    hard: HardState = field(default_factory=HardState)
    # acked floor; invariant: it never exceeds what an fdatasync has covered
    floor_index: LogIndex = NO_INDEX
    floor_term: Term = NO_TERM
    incarnation: int
    boot_id: str = NO_BOOT_ID
    # set by a clean stop: the log ends exactly at the floor; cleared when the folder is opened for writing
    clean_stop: bool = False
    # a truncation to `cut_offset` is pending unless a flush mark with turn >= this exists; 0: none
    cut_turn: int = 0
    cut_offset: int = 0


def _checksum(record: bytes | bytearray) -> int:
    """Return the checksum of a record, over everything but its own field.

    It includes the version, so a bit flip cannot look like a newer build.
    """
    view = memoryview(record)
    return crc32c(view[12:RECORD_SIZE], crc32c(view[:8]))


def encode_state(state: DurableState, sequence: int) -> bytes:
    """Return the record's bytes."""
    hard = state.hard
    voted_for = (hard.voted_for or "").encode()
    flags = (_CLEAN_STOP if state.clean_stop else 0) | (_VOTER if hard.is_voter else 0)
    assert len(voted_for) <= MAX_NODE_ID_SIZE
    fixed = _RECORD.pack(
        _MAGIC, VERSION, 0, flags, sequence, hard.term, hard.commit_hint, state.floor_index, state.floor_term,
        state.incarnation, uuid.UUID(state.boot_id).bytes,
        state.cut_turn, state.cut_offset, len(voted_for),
    )  # fmt: skip
    record = bytearray((fixed + voted_for).ljust(RECORD_SIZE, b"\0"))
    struct.pack_into("<I", record, 8, _checksum(record))
    return bytes(record)


def decode_state(record: bytes) -> tuple[int, DurableState]:
    """Decode a record into (sequence, state). Raises: CorruptError, NewerFormatError."""
    if len(record) < RECORD_SIZE or record[:4] != _MAGIC:
        raise CorruptError("no hard state record", 0)
    (
        _, version, crc, flags, sequence, term, commit, floor_index, floor_term, incarnation, boot_id,
        cut_turn, cut_offset, voted_size,
    ) = _RECORD.unpack_from(record)  # fmt: skip
    if crc != _checksum(record):
        raise CorruptError("hard state checksum mismatch", 0)
    if version > VERSION:
        raise NewerFormatError("hard state", version, VERSION)
    try:
        voted_for = record[_RECORD.size : _RECORD.size + voted_size].decode()
    except UnicodeDecodeError:
        raise CorruptError("hard state with a vote for no node", 0) from None
    vote = NodeId(voted_for) if voted_for else None
    return sequence, DurableState(
        hard=HardState(Term(term), vote, LogIndex(commit), bool(flags & _VOTER)),
        floor_index=LogIndex(floor_index), floor_term=Term(floor_term), incarnation=incarnation,
        boot_id=str(uuid.UUID(bytes=boot_id)), clean_stop=bool(flags & _CLEAN_STOP),
        cut_turn=cut_turn, cut_offset=cut_offset,
    )  # fmt: skip


def check_not_older(node_id: str, path: Path, hard: HardState, log_term: Term) -> None:
    """Refuse a record that is older than the log. Raises: OldHardStateError.

    No entry is written before its term is durable (P4). A log with a newer term proves that the newer record,
    and the vote in it, is lost in all copies.
    """
    if log_term > hard.term:
        found = f"{path} knows term {hard.term} and the log ends in term {log_term}: it is damaged, or old"
        raise OldHardStateError(
            f"{node_id} will not start: {found}, so what this node promised is not known. Fetch a clean copy "
            "from the other nodes: ledgermq broker --rejoin",
            found=found,
        )


def check_term(node_id: str, path: Path, hard: HardState) -> None:
    """Refuse a term after the last allowed one, which an earlier build took from a message.

    Raises: DamagedFolderError.
    """
    if hard.term > LAST_TERM:
        found = f"{path} says term {hard.term}, which no election leads to"
        raise DamagedFolderError(
            f"{node_id} will not start: {found}: a damaged or forged message brought it. While a majority of "
            "the nodes is in a lower term: ledgermq broker --rejoin on this one. Else make the broker group "
            "anew from the node with the most, its log stays: ledgermq cluster recover; nothing was "
            "changed.",
            found=found,
        )


class HardStateFile:
    """The open hard state file. Not thread-safe: use it from one thread at a time."""

    def __init__(self, file: File, sequence: int, state: DurableState) -> None:
        self._file = file
        self._sequence = sequence
        self.state = state
        self.is_broken = False

    @classmethod
    def create(cls, files: FileSystem, path: Path, state: DurableState) -> HardStateFile:
        """Create the file with its space reserved. The caller makes its name durable. Raises: OSError."""
        file = files.open(path, create=True)
        write_zeros(file, 0, FILE_SIZE)
        file.fdatasync()
        opened = cls(file, 0, state)
        opened.write(state)
        return opened

    @classmethod
    def open(cls, files: FileSystem, path: Path, *, writable: bool = True) -> HardStateFile:
        """Read the latest record.

        With `writable` that record is durable on return, even after a killed process.

        A file also counts as corrupt if an unreadable block may hold the latest record. A torn write damages
        one slot, never a block of the other one. Raises: FileNotFoundError, CorruptError, NewerFormatError,
        OSError.
        """
        file = files.open(path, writable=writable)
        found: list[tuple[int, DurableState]] = []
        blank: list[int] = []
        problems: dict[int, CorruptError] = {}
        try:
            if writable:
                file.fdatasync()
            for block in range(4):
                try:
                    record = file.pread(RECORD_SIZE, block * BLOCK)
                    if any(record):
                        found.append(decode_state(record))
                    else:
                        blank.append(block)
                except CorruptError as error:
                    problems[block] = CorruptError(f"block {block}: {error.reason}", block * BLOCK)
                except OSError as error:  # a bad sector: this is what the copies are for
                    reason = f"block {block} cannot be read: {error.strerror}"
                    problems[block] = CorruptError(reason, block * BLOCK)
            sequence, state = max(found, key=lambda item: item[0], default=(0, None))
            if sequence > 1:  # by then every block has been written
                problems |= {block: CorruptError(f"block {block} is empty", block * BLOCK) for block in blank}
            if state is None or len(problems) > 2:
                raise next(iter(problems.values()), CorruptError("no hard state record", 0))
        except BaseException:
            file.close()
            raise
        for problem in problems.values():
            _log.warning("hard state copy not readable path=%s reason=%r", path, problem.reason)
        return cls(file, sequence, state)

    def write(self, state: DurableState) -> None:
        """Store `state` durably. Raises: OSError; the file must not be used afterwards (P15)."""
        sequence = self._sequence + 1
        record = encode_state(state, sequence)
        slot = sequence % 2
        self.is_broken = True  # until the write succeeds
        self._file.pwritev([record], slot * BLOCK)
        self._file.pwritev([record], (slot + 2) * BLOCK)
        self._file.fdatasync()
        self.is_broken = False
        self._sequence = sequence
        self.state = state

    def close(self) -> None:
        self._file.close()
