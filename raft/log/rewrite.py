"""In-place repair: writes committed entries from a peer over damaged ones (P18, D6).

Blocking; run it in a thread.

Replicas hold the same entry bytes at the same offsets (D3), so a peer's bytes can replace a damaged range.
Owns: the position of the repair, and giving up the vote when it is unknown what was acknowledged.
Must not: choose peers, wait, or write entries that no peer has committed.
Invariants: every entry is verified before it is written, by itself and against the entry before it. Its term
is durable by then. Everything written is durable when `take` returns. The log is cut only after the hard
state durably says that this node does not vote. No readable byte is given up, nor any byte that the log's
writer may write.
"""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum

from ledgermq.proto.entry import (
    HEADER_SIZE,
    EntryHeader,
    EntryKind,
    decode_header,
    encode_filler,
    verify_entry,
    walk_wire,
)
from ledgermq.proto.errors import LayoutError

from ..damage import Before, Damage, RepairNote
from ..disk.files import File, FileSystem, write_zeros
from ..disk.page_writer import PAGE
from ..errors import InvalidWireError, LogCompactedError, OtherHistoryError
from ..types import LogIndex, Term
from .digest_store import remove_digests
from .entry_index import index_path
from .hard_state import HardStateFile
from .identity import LEARNER_MARK, Identity, read_identity, read_manifest, write_identity
from .repair_note import note_path, read_note, remove_note, write_note
from .segment import TRAILER_SIZE, create_segment, place_entry, read_marks, segment_path, segment_start
from .segment_keeper import LogFolders
from .segment_scan import check_continues, read_around
from .wire_batch import check_wire

logger = logging.getLogger(__name__)


class RewriteProgress(Enum):
    """Result of writing one chunk of entries."""

    MORE = "more"  # more entries are needed
    CONNECTED = "connected"  # the log after the chunk is valid and continues it


@dataclass(slots=True)
class LogRepair:
    """Repair of one log. Requires the folder lock, or a range below the node's own commit index."""

    files: FileSystem
    folders: LogFolders
    segment_size: int
    before: Before  # what the next entry must continue
    offset: int  # physical offset where that entry (or a filler before it) must be
    #: Last entry that may be written. In a running node: the last applied one.
    last_index: LogIndex | None = None
    #: In a running node: physical offset just past that entry. The log's writer may change its page and all
    #: later bytes.
    settled_end: int | None = None
    #: False: index files of repaired segments are deleted, because replacing entries with committed ones may
    #: change entry offsets. True below the node's own commit index, where offsets cannot change.
    keeps_indexes: bool = False
    #: Positions to fall back to, oldest first.
    earlier: list[tuple[Before, int]] = field(default_factory=list)
    #: Makes a term durable before its first entry is written (P4). None in a running node: its core did that.
    promise_term: Callable[[Term], None] | None = None
    #: Bytes before this physical offset are replaced without looking at them.
    connect_from: int = 0
    written_bytes: int = 0
    _begin: int = field(init=False)  # the log before this offset is trusted and not written

    def __post_init__(self) -> None:
        self._begin = self.offset

    @property
    def next_index(self) -> LogIndex:
        """Index of the first missing entry."""
        return LogIndex(self.before.index + 1)

    def take(self, wire: bytes) -> RewriteProgress:
        """Verify entries that begin with `next_index` and durably write those that are needed.

        Raises: OtherHistoryError (then `go_back`), InvalidWireError (nothing was written, or only whole
        verified entries), LogCompactedError (running node: retention deleted the range), OSError (terminal,
        P15).
        """
        check_wire(wire, self.segment_size)
        opened: dict[int, File] = {}
        try:
            return self._write_all(memoryview(wire), opened)
        finally:
            for file in opened.values():
                file.close()

    def _write_all(self, wire: memoryview, opened: dict[int, File]) -> RewriteProgress:
        progress = RewriteProgress.MORE
        for position, header in walk_wire(wire):
            is_filler = header.kind is EntryKind.FILLER
            if position == 0 and is_filler and header.crc == self.before.crc:
                continue  # it closes a segment that retention deleted here: this log begins after it
            if position == 0 and header.prev_crc != self.before.crc:
                filler = self._filler_before(header)
                self._step(decode_header(filler), memoryview(filler), opened)
            # A filler belongs to the entry after it.
            belongs_to = header.index + 1 if is_filler else header.index
            if self.last_index is not None and belongs_to > self.last_index:
                break
            self._step(header, wire[position : position + header.wire_size], opened)
            if self.connects():
                progress = RewriteProgress.CONNECTED
                break
        for file in opened.values():
            file.fdatasync()
        return progress

    def _filler_before(self, header: EntryHeader) -> bytes:
        """Return the filler before a peer's entry, which the peer lacks because its log begins after it.

        It follows from the entry before. Raises: OtherHistoryError (the peer's entry does not continue that
        filler).
        """
        before, end = self.before, segment_start(self.offset, self.segment_size) + self.segment_size
        if self.offset % self.segment_size and header.physical_offset == end:
            previous = EntryHeader(
                before.crc,
                0,
                EntryKind.NOOP,
                0,
                before.index,
                before.term,
                self.offset,
                before.timestamp,
                0,
                0,
            )  # all that a filler inherits; its size follows from the offset
            filler = bytes(encode_filler(previous, end))
            if decode_header(filler).crc == header.prev_crc:
                return filler
        raise OtherHistoryError(
            f"entry {header.index} of a peer does not continue entry {before.index} of this log"
        )

    def _step(self, header: EntryHeader, data: memoryview, opened: dict[int, File]) -> None:
        """Check an entry or filler, write it, and advance past it."""
        self._check(header)
        if self.promise_term is not None and header.term > self.before.term:
            self.promise_term(Term(header.term))
        self._write(header, data, opened)
        self.before = Before.after(header)
        self.offset = header.end

    def go_back(self) -> bool:
        """Fall back to the end of an earlier segment: the entries after it were never committed.

        False: there is none.
        """
        if not self.earlier:
            return False
        self.connect_from = max(self.connect_from, self.offset)
        self.before, self.offset = self.earlier.pop()
        self._begin = self.offset
        return True

    def connects(self) -> bool:
        """Return whether a valid entry (or filler) already continues the repaired part."""
        start = segment_start(self.offset, self.segment_size)
        path = segment_path(self.folders.segments, start)
        if self.offset <= self.connect_from:
            return False
        position = self.offset - start
        try:
            file = self.files.open(path, writable=False)
        except FileNotFoundError:
            return False
        try:
            header = decode_header(read_around(file, HEADER_SIZE, position))
            check_continues(header, self.before, self.offset, self.segment_size, position)
            verify_entry(read_around(file, header.wire_size, position), 0, header)
        except LayoutError:
            return False
        finally:
            file.close()
        return True

    def _check(self, header: EntryHeader) -> None:
        """Check that a verified entry or filler continues the entry before it. Raises: InvalidWireError."""
        step = 0 if header.kind is EntryKind.FILLER else 1
        before = self.before
        if (
            header.index != before.index + step
            or header.physical_offset != self.offset
            or header.prev_crc != before.crc
            or header.term < before.term
            or header.timestamp < before.timestamp
            or (step and place_entry(self.offset, header.size, self.segment_size) != self.offset)
        ):
            raise InvalidWireError(
                f"entry {header.index} from a peer (offset {header.physical_offset}, chained to "
                f"{header.prev_crc:08x}) does not continue entry {before.index} of this log (offset "
                f"{self.offset}, {before.crc:08x})"
            )

    def _write(self, header: EntryHeader, data: memoryview, opened: dict[int, File]) -> None:
        start = segment_start(header.physical_offset, self.segment_size)
        file = opened.get(start)
        if file is None:
            file = opened[start] = self._open(start)
        position = header.physical_offset - start
        self._make_writable(file, start, position, len(data))
        file.pwritev([data], position)  # only once: a failed write is terminal (P15)
        if header.kind is EntryKind.FILLER:  # only its header is sent; the rest is zeros by definition
            write_zeros(file, position + HEADER_SIZE, self.segment_size)
        self.written_bytes += len(data)

    def _make_writable(self, file: File, start: int, position: int, size: int) -> None:
        """Rewrite the unreadable pages at either end of a range, with zeros for the lost bytes.

        Such a page cannot be written in part, because the kernel would read the rest first. The page is
        tested before the write: the write's error would look the same as that of a disk that takes no data
        any more. The lost bytes must all be within this repair. If more may be lost, the node must stop; the
        next start looks again, without a concurrent writer.
        """
        for page in {position // PAGE * PAGE, (position + size - 1) // PAGE * PAGE}:
            try:
                file.pread(PAGE, page)
            except OSError as error:
                if error.errno != errno.EIO or self._is_shared(start + page):
                    raise
                kept = min(max(self._begin - start - page, 0), PAGE)
                file.pwritev([file.pread(kept, page), read_around(file, PAGE - kept, page + kept)], page)

    def _is_shared(self, page: int) -> bool:
        """Return whether the log's writer may change the page at a physical offset.

        Only the writer knows the contents of such a page.
        """
        return self.settled_end is not None and page + PAGE > self.settled_end

    def _open(self, start: int) -> File:
        path = segment_path(self.folders.segments, start)
        remove_digests(self.files, self.folders.digests, start)  # they say that the node read it intact
        if self.keeps_indexes:
            try:
                return self.files.open(path)
            except FileNotFoundError:  # a settled entry has a file for as long as the log holds it
                raise LogCompactedError(self.next_index, LogIndex(self.next_index + 1)) from None
        if not self.files.exists(path):
            create_segment(self.files, self.folders.segments, start, self.segment_size)
        index = index_path(self.folders.indexes, start)
        if self.files.exists(index):
            self.files.unlink(index)
        return self.files.open(path)


def renew_identity(files: FileSystem, folders: LogFolders, identity: Identity, incarnation: int) -> Identity:
    """Take over, as a learner, the incarnation that the hard state already has. Removes the note last."""
    if identity.incarnation != incarnation:
        members = {**identity.members, identity.node_id: LEARNER_MARK}
        identity = identity.with_former(identity.node_id, identity.incarnation)
        identity = replace(identity, incarnation=incarnation, members=members)
        write_identity(files, folders.identity, identity)
    remove_note(files, folders.data)
    return identity


class StoppedLog:
    """Log of a node that cannot start. Callers must hold its lock."""

    def __init__(self, node: str, files: FileSystem, folders: LogFolders, segment_size: int) -> None:
        self._node = node
        self._files = files
        self._folders = folders
        self._segment_size = segment_size

    def begin(self, damage: Damage) -> tuple[LogRepair, RepairNote]:
        """Store how far the log must reach again, restore all segment files to full length, and return the
        repair.
        """
        note = damage.note
        write_note(self._files, self._folders.data, note)
        self._make_files_whole()
        repair = LogRepair(
            self._files,
            self._folders,
            self._segment_size,
            damage.before,
            damage.offset,
            earlier=list(damage.earlier),
            promise_term=self._promise_term,
        )
        return repair, note

    def group_id(self) -> int:
        """Return the id of the broker group that the folder belongs to; 0: unknown."""
        return read_identity(self._files, self._folders.identity, self._node).group_id

    def end(self) -> None:
        """Remove the note: the log is intact again, or nothing after the repaired part was touched."""
        if self._files.exists(note_path(self._folders.data)):
            remove_note(self._files, self._folders.data)

    def give_up_vote(self, repair: LogRepair, note: RepairNote) -> None:
        """Come back as a learner whose log ends at the repair's position: it is unknown what was acknowledged
        after it.

        The order makes it safe. One durable hard state record takes the vote away, under a new incarnation,
        and names the cut; only then does recovery cut. Acknowledgements of the old incarnation no longer
        count (P19).
        """
        rejoin_as = secrets.randbits(63) | 1
        write_note(self._files, self._folders.data, replace(note, rejoin_as=rejoin_as))
        with closing(HardStateFile.open(self._files, self._folders.hard_state)) as hard:
            state = hard.state
            index, term = repair.before.index, repair.before.term
            promise = replace(
                state.hard, is_voter=False, commit_hint=LogIndex(min(state.hard.commit_hint, index))
            )
            hard.write(
                replace(
                    state,
                    hard=promise,
                    incarnation=rejoin_as,
                    floor_index=index,
                    floor_term=term,
                    clean_stop=False,
                    cut_turn=self._last_turn() + 1,
                    cut_offset=repair.offset,
                )
            )
        self.finish_rejoin()

    def finish_rejoin(self) -> None:
        """Give the folder the incarnation that the hard state took over, in case a crash came in between."""
        try:
            note = read_note(self._files, self._folders.data)
        except LayoutError:
            return  # opening the folder reports it
        if note is None or not note.rejoin_as:
            return
        hard = HardStateFile.open(self._files, self._folders.hard_state)
        hard.close()
        if hard.state.incarnation != note.rejoin_as or hard.state.hard.is_voter:
            return  # the vote was not given up yet: the repair starts over
        identity = read_identity(self._files, self._folders.identity, self._node)
        renew_identity(self._files, self._folders, identity, note.rejoin_as)

    def _promise_term(self, term: Term) -> None:
        """Store that this node knows `term`.

        The others may have committed entries of a term unknown to it.
        """
        with closing(HardStateFile.open(self._files, self._folders.hard_state)) as hard:
            state = hard.state
            if term > state.hard.term:
                hard.write(replace(state, hard=replace(state.hard, term=term, voted_for=None)))

    def _starts(self) -> list[int]:
        names = self._files.list_directory(self._folders.segments)
        return [int(name) for name in names if len(name) == 20 and name.isdecimal()]

    def _make_files_whole(self) -> None:
        """Recreate missing segment files and extend short ones with zeros, which count as damage."""
        base = read_manifest(self._files, self._folders.manifest, self._node).first_offset
        size = self._segment_size + TRAILER_SIZE
        for start in range(base, max(self._starts(), default=base) + 1, self._segment_size):
            path = segment_path(self._folders.segments, start)
            if not self._files.exists(path):
                create_segment(self._files, self._folders.segments, start, self._segment_size)
                continue
            with closing(self._files.open(path)) as file:
                if file.size() < size:
                    write_zeros(file, file.size(), size)
                    file.fdatasync()

    def _last_turn(self) -> int:
        turn = 0
        for start in self._starts():
            with closing(
                self._files.open(segment_path(self._folders.segments, start), writable=False)
            ) as file:
                mark, _ = read_marks(file, self._segment_size)
            turn = max(turn, mark.turn if mark is not None else 0)
        return turn
