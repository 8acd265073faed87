"""Creation of a stopped node's data folder from the entries in a dump (D20).

The result is the folder of a node that was a member of the dumped broker group and stopped. `restore_folder`
in group_recovery.py makes it the first member of a new broker group, and `clone_folder` copies it for the
others.

Owns: the order on disk: log and base point, then hard state, then identity. So an unfinished folder has no
identity, and no node takes it for its own. Must not: judge entries. Opening the folder reads all of them
again (`inspect`), and refuses a log that does not reach the acked floor written here.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from ledgermq.proto.entry import EntryHeader

from ..disk.files import File, FileSystem
from ..log.hard_state import DurableState, HardStateFile
from ..log.identity import Identity, Manifest, write_identity, write_manifest
from ..log.segment import TRAILER_SIZE, create_segment, segment_path, segment_start
from ..log.segment_keeper import SPARE_SPACE, LogFolders, make_ballast
from ..types import HardState, LogIndex, NodeId, Term

_BATCH = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPlan:
    """Identity of the folder to create.

    `replaced_group_id` is that of the dumped broker group (0: it had none).
    """

    cluster_id: str
    group: str
    node_id: NodeId
    members: Collection[NodeId]  # including this one
    segment_size: int
    base: Manifest
    replaced_group_id: int = 0


def space_of_log(base: Manifest, end_offset: int, segment_size: int) -> int:
    """Return the bytes that a node's folder needs for a log up to that offset."""
    segments = max(1, -(-(end_offset - base.first_offset) // segment_size))
    return segments * (segment_size + TRAILER_SIZE) + SPARE_SPACE


@dataclass(slots=True)
class FolderWriter:
    """Writer of one folder. Pass it every entry and filler from the base on, then call `finish`.

    Blocking. Close it in any case.
    """

    data: Path
    files: FileSystem
    plan: FolderPlan
    _last: EntryHeader | None = None
    _file: File | None = None
    _file_start: int = -1
    _waiting: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    _waiting_start: int = 0

    @property
    def folders(self) -> LogFolders:
        return LogFolders(self.data)

    def begin(self) -> None:
        """Create the empty folder. Raises: OSError."""
        for folder in (self.folders.segments, self.folders.indexes):
            self.files.make_directory(folder)
        self._open(self.plan.base.first_offset)

    def append(self, header: EntryHeader, raw: bytes) -> None:
        """Write the next entry (or the header of a filler) at its physical offset. Raises: OSError."""
        start = segment_start(header.physical_offset, self.plan.segment_size)
        if start != self._file_start:
            self._write_out()
            self._seal()
            self._open(start)
        if not self._waiting:
            self._waiting_start = header.physical_offset
        self._waiting.append(raw)
        self._waiting_bytes += len(raw)
        self._last = header
        if self._waiting_bytes >= _BATCH:
            self._write_out()

    def finish(self) -> None:
        """Make everything durable and the folder ready to open. Raises: OSError."""
        self._write_out()
        self._seal()
        plan, last = self.plan, self._last
        index = LogIndex(last.index if last else plan.base.first_index - 1)
        term = Term(last.term if last else plan.base.prev_term)
        write_manifest(self.files, self.folders.manifest, plan.base)
        incarnation = secrets.randbits(63) | 1
        state = DurableState(
            hard=HardState(term, None, index, is_voter=False),
            floor_index=index,
            floor_term=term,
            incarnation=incarnation,
        )
        HardStateFile.create(self.files, self.folders.hard_state, state).close()
        make_ballast(self.files, self.folders.ballast)
        self.files.sync_directory(self.data)
        write_identity(
            self.files,
            self.folders.identity,
            Identity(
                cluster_id=plan.cluster_id,
                group=plan.group,
                node_id=plan.node_id,
                incarnation=incarnation,
                segment_size=plan.segment_size,
                members={**dict.fromkeys(plan.members, 0), plan.node_id: incarnation},
                group_id=plan.replaced_group_id,
            ),
        )

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, start: int) -> None:
        create_segment(self.files, self.folders.segments, start, self.plan.segment_size)
        self._file = self.files.open(segment_path(self.folders.segments, start))
        self._file_start = start

    def _write_out(self) -> None:
        if self._waiting and self._file is not None:
            self._file.pwritev([b"".join(self._waiting)], self._waiting_start - self._file_start)
        self._waiting, self._waiting_bytes = [], 0

    def _seal(self) -> None:
        if self._file is not None:
            self._file.fdatasync()
        self.close()
