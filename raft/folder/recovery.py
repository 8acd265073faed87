"""Recovery of the log after a stop (rule P18): which entries to trust, what to cut off, what to refuse.

Owns: the distinction between a torn tail and damage.
Must not: truncate anything that was ever durable, or start empty.

After a clean stop the index files are trusted and only the tail is read. Otherwise every segment that may
hold entries above the acked floor is read and verified. Suppose reading stops at byte `o`, and the latest
flush mark says [start, end) (see segment.py):
- below the acked floor, or o < start: those bytes were durable. Damage.
- start <= o < end: the last turn may be unfinished. Torn, unless a valid entry lies at or after `end`: only a
  later turn can have written it. Damage then.
- o >= end: a turn that never finished. Torn.
- both marks of the segment unreadable: damage. A turn writes only one of them, so no power cut destroys both,
  and it is unknown what was durable. (If only zeros follow, nothing is cut, and the floor alone tells whether
  anything is missing.)

A torn tail is durably overwritten with zeros before anything else is written.

A damage report carries everything that a repair must know: what the first missing entry must continue, and
how far the log must reach again (`RepairNote`). If an interrupted repair left such a note, a log that ends
earlier is damaged, whatever its end looks like.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ledgermq.proto.entry import HEADER_SIZE, decode_header, verify_entry
from ledgermq.proto.errors import LayoutError, NewerFormatError

from ..damage import Before, Damage, RepairNote
from ..disk.files import File, FileSystem
from ..errors import DamagedLogError, NewerFolderError
from ..log.digest_store import remove_digests
from ..log.entry_index import index_path, read_index
from ..log.hard_state import DurableState
from ..log.identity import Manifest
from ..log.segment import (
    PREPARING,
    TRAILER_SIZE,
    FlushMark,
    Segment,
    encode_mark,
    mark_position,
    read_marks,
    segment_path,
    segment_start,
)
from ..log.segment_keeper import LogFolders
from ..log.segment_scan import SegmentScan, find_valid_entry, last_nonzero, scan_segment
from ..log.writer import zero_tail
from ..node_status import StartStep

_log = logging.getLogger(__name__)
_TAIL_CHECK: Final = 4096
_PIECE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The recovered log, as it is on stable storage now."""

    # those with entries, oldest first; sealed ones with a good index file have no offsets in memory
    segments: list[Segment]
    existing: list[int]  # starts of all segment files
    unsaved: list[Segment]  # sealed segments whose index file must be written
    turn: int  # last flush turn
    scanned_bytes: int
    truncated_bytes: int  # bytes of a torn tail that were zeroed
    # the last entry; what the next one must continue
    end: Before


@dataclass(frozen=True, slots=True)
class _Broken:
    """First segment file that is missing or too short. start -1: there is none."""

    start: int  # physical
    size: int  # bytes that are there; 0: the file is missing
    reason: str


@dataclass(slots=True)
class _Marks:
    """Latest flush mark of all segments, and its location."""

    latest: FlushMark
    start: int  # segment that holds it; -1: no segment holds a mark
    unreadable: set[int]  # segments whose two mark blocks were written but are unreadable
    doubtful: bool = False  # an unreadable block may hold the mark of a later turn than `latest`


@dataclass(frozen=True, slots=True)
class _Stop:
    """Where the log stops being valid, and what was found before."""

    start: int  # of the segment
    position: int  # in its file
    reason: str
    segments: list[Segment]  # segments before, and this one if it holds an entry
    marks: _Marks


class LogRecovery:
    """One recovery of one log. Blocking."""

    def __init__(
        self,
        node: str,
        files: FileSystem,
        folders: LogFolders,
        segment_size: int,
        base: Manifest,
        state: DurableState,
        *,
        note: RepairNote | None = None,
        every_turn_synced: bool = True,
        step: StartStep | None = None,
    ) -> None:
        """`note`: of an unfinished repair.

        `every_turn_synced`: nothing after the latest mark was acknowledged (D7).

        `step` receives progress.
        """
        self._step = step or StartStep()
        self._node = node
        self._files = files
        self._folders = folders
        self._segment_size = segment_size
        self._base = base
        self._state = state
        self._note = note
        self._every_turn_synced = every_turn_synced
        self._scanned = 0
        self._truncated = 0
        self._unsaved: list[Segment] = []

    def run(self) -> RecoveredLog:
        """Recover the log. Raises: DamagedLogError, NewerFolderError (nothing was changed), OSError."""
        begin = time.monotonic()
        try:
            return self._run(begin)
        except NewerFormatError as error:
            raise NewerFolderError(self._node, self._folders.segments, error) from None

    def _run(self, begin: float) -> RecoveredLog:
        starts = self._list()
        marks = self._read_marks(starts)
        if self._state.cut_turn > marks.latest.turn:
            starts = self._finish_cut(starts)
            marks.latest = FlushMark(self._state.cut_turn, self._state.cut_offset, self._state.cut_offset)
        broken = self._find_broken(starts)
        before = self._end([])
        segments: list[Segment] = []
        for position, start in enumerate(starts):
            if start == broken.start:
                raise self._broken_file(starts, broken, segments, marks)
            self._step.doing = partial("verifies its log: segment {} of {}".format, position + 1, len(starts))
            scan = self._believe(start, before)
            before = scan.before
            if scan.segment.count:
                segments.append(scan.segment)
            if not scan.sealed or position == len(starts) - 1:
                stop = _Stop(start, scan.end, scan.reason or "zeros where an entry must be", segments, marks)
                self._refuse_gap(starts[position + 1 :], scan, stop)
                if broken.start > start:
                    raise self._broken_file(starts, broken, segments, marks)
                self._judge(stop)
                self._check_floor(stop)
                self._write_again(segments, marks.latest.start)
                turn = self._settle(start, scan, marks.latest.turn)
                break
        turn = self._settle_filler(segments, turn)
        self._log_result(segments, begin)
        unsaved = [segment for segment in self._unsaved if segment is not segments[-1]]
        return RecoveredLog(
            segments, starts, unsaved, turn, self._scanned, self._truncated, self._end(segments)
        )

    # --- looking --------------------------------------------------------------------------------------------
    def _list(self) -> list[int]:
        """Return the starts of the segments from the base on. Removes leftovers of interrupted work."""
        starts: list[int] = []
        for name in self._files.list_directory(self._folders.segments):
            if name.endswith(PREPARING):
                self._files.unlink(self._folders.segments / name)
            elif len(name) == 20 and name.isdecimal() and int(name) % self._segment_size == 0:
                starts.append(int(name))
        for start in starts:
            if start < self._base.first_offset:  # retention stopped between manifest and unlink
                self._files.unlink(segment_path(self._folders.segments, start))
        for name in self._files.list_directory(self._folders.indexes):
            if len(name) == 20 and name.isdecimal() and int(name) < self._base.first_offset:
                self._files.unlink(index_path(self._folders.indexes, int(name)))
        for name in self._files.list_directory(self._folders.digests):
            if not (len(name) == 20 and name.isdecimal()) or int(name) < self._base.first_offset:
                self._files.unlink(self._folders.digests / name)
        return [start for start in starts if start >= self._base.first_offset]

    def _find_broken(self, starts: list[int]) -> _Broken:
        """Find the first segment file that is missing or too short. A missing one is added to `starts`."""
        for place in range(len(starts) + 1):
            expected = self._base.first_offset + place * self._segment_size
            if place == len(starts) and place:
                break
            if place == len(starts) or starts[place] != expected:
                starts.insert(place, expected)
                return _Broken(expected, 0, "the segment file is missing")
            size = self._size(expected)
            if size < self._segment_size + TRAILER_SIZE:
                return _Broken(expected, size, "the file is shorter than a segment")
        return _Broken(-1, 0, "")

    def _broken_file(
        self, starts: list[int], broken: _Broken, segments: list[Segment], marks: _Marks
    ) -> DamagedLogError:
        """Return the error for a missing or short file. A flush mark may be lost with it."""
        later = self._later_entry(starts[starts.index(broken.start) + 1 :])
        stop = _Stop(broken.start, broken.size, broken.reason, segments, marks)
        lost_marks = later is None and not self._state.clean_stop
        return self._stopped(stop, broken.reason, 0 if later is None else later + 1, open_ended=lost_marks)

    def _size(self, start: int) -> int:
        with closing(self._open(start, writable=False)) as file:
            return file.size()

    def _read_marks(self, starts: list[int]) -> _Marks:
        marks = _Marks(FlushMark(0, self._base.first_offset, self._base.first_offset), -1, set())
        for start in starts:
            with self._reading(start) as file:
                mark, unreadable = read_marks(file, self._segment_size)
            if unreadable == 2:
                marks.unreadable.add(start)
            marks.doubtful = marks.doubtful or unreadable > 0
            if mark is not None and mark.turn >= marks.latest.turn:
                marks.latest, marks.start = mark, start
        return marks

    # --- believing ------------------------------------------------------------------------------------------
    def _believe(self, start: int, before: Before) -> SegmentScan:
        """Return the entries of a segment, from its index file where that is trusted, else by reading all of
        it.
        """
        scan = self._from_index(start, before)
        if scan is None:
            with self._reading(start) as file:
                scan = scan_segment(file, start, self._segment_size, before)
            self._scanned += scan.end
            if scan.sealed:
                self._unsaved.append(scan.segment)
        return scan

    def _from_index(self, start: int, before: Before) -> SegmentScan | None:
        """Use the index file of a segment that cannot have changed since, if it matches the segment."""
        try:
            segment = read_index(self._files, self._folders.indexes, start)
        except (OSError, LayoutError):
            return None  # missing, unreadable or newer: it can be rebuilt
        if (
            segment.first_index != before.index + 1
            or segment.last is None
            or segment.count != len(segment.offsets or ())
        ):
            return None
        if not self._state.clean_stop and segment.last_index > self._state.floor_index:
            return None
        with self._reading(start) as file:
            return self._fits(file, segment, before)

    def _fits(self, file: File, segment: Segment, before: Before) -> SegmentScan | None:
        """Compare an index with its segment: first header, last entry with its checksum, filler, zeros after
        the end.
        """
        last, offsets = segment.last, segment.offsets
        assert last is not None and offsets is not None
        position = last.physical_offset - segment.start
        end = position + last.size
        sealed = end == self._segment_size or bool(segment.filler)
        try:
            first = decode_header(file.pread(HEADER_SIZE, 0))
            raw = file.pread(last.size, position)
            if first.prev_crc != before.crc or first.index != before.index + 1 or decode_header(raw) != last:
                return None
            verify_entry(raw, 0, last)
            behind = file.pread(HEADER_SIZE, end) if end < self._segment_size else b""
            if behind.strip(b"\0") != segment.filler.strip(b"\0"):
                return None
            crc = decode_header(segment.filler).crc if segment.filler else last.crc
        except (LayoutError, OSError):
            return None  # reading the whole segment shows what is wrong, and where
        if sealed:
            segment = replace(segment, offsets=None)
        after = replace(Before.after(last), crc=crc)
        return SegmentScan(segment, self._segment_size if sealed else end, sealed, "", after)

    # --- deciding -------------------------------------------------------------------------------------------
    def _refuse_gap(self, later_starts: list[int], scan: SegmentScan, stop: _Stop) -> None:
        """Refuse a log whose entries stop in one segment and continue in a later one.

        Raises: DamagedLogError.
        """
        if scan.sealed:
            return
        later = self._later_entry(later_starts)
        if later is not None:
            raise self._stopped(stop, f"{stop.reason}; valid entries follow in the next file", later + 1)

    def _later_entry(self, starts: list[int]) -> int | None:
        """Return the physical offset of the first valid entry in later segments, or None."""
        for later in starts:
            if not self._files.exists(segment_path(self._folders.segments, later)):
                continue
            with self._reading(later) as file:
                found = find_valid_entry(file, later, min(self._segment_size, file.size()), 0)
            if found is not None:
                return later + found
        return None

    def _judge(self, stop: _Stop) -> None:
        """Decide whether the log stops with a torn tail or damage. Raises: DamagedLogError (damage)."""
        start, offset, latest, note = stop.start, stop.start + stop.position, stop.marks.latest, self._note
        if offset < latest.start:
            raise self._stopped(stop, f"{stop.reason}, in bytes that were on stable storage")
        if note is not None and not note.is_reached(offset, self._end(stop.segments).index):
            raise self._stopped(stop, f"{stop.reason}, where a repair was interrupted")
        if offset < latest.end:
            search_from = latest.end - start if stop.marks.start == start else stop.position + 1
        elif start in stop.marks.unreadable:
            search_from = stop.position + 1
        else:
            return
        with self._reading(start) as file:
            later = find_valid_entry(file, start, self._segment_size, min(search_from, self._segment_size))
            is_cut = last_nonzero(file, stop.position, self._segment_size) > stop.position
        if later is not None:
            text = f"{stop.reason}; a valid entry follows at byte {later}"
            raise self._stopped(stop, text, start + later + 1)
        if is_cut and start in stop.marks.unreadable:
            raise self._stopped(stop, f"{stop.reason}, and both flush marks of the segment are damaged")

    def _check_floor(self, stop: _Stop) -> None:
        """Refuse a log that ends before an entry that this node acknowledged. Raises: DamagedLogError."""
        end, floor = self._end(stop.segments), self._state.floor_index
        if end.index < floor:
            text = f"the log ends at entry {end.index}, but entry {floor} was acknowledged"
            raise self._stopped(stop, text)

    def _stopped(
        self, stop: _Stop, reason: str, reaches: int = 0, *, open_ended: bool = False
    ) -> DamagedLogError:
        """Return the error for a log that stops being valid at `stop`. Something valid lies before `reaches`.

        It carries how far a repair must reach: to the end of everything that may have been acknowledged.
        """
        latest, state = stop.marks.latest, self._state
        turn_is_known = self._every_turn_synced and not stop.marks.doubtful and not state.clean_stop
        note = RepairNote(
            must_reach=max(reaches, latest.end if turn_is_known else latest.start),
            reach_index=state.floor_index,  # after a clean stop: the very last entry
            open_ended=open_ended or not (turn_is_known or state.clean_stop),
        )
        if self._note is not None:
            note = note.joined(self._note)
        # A filler belongs to the entry after it, so the repair begins before the filler.
        places = [(self._end([]), self._base.first_offset)]
        places += [(self._end([segment]), segment.end_offset) for segment in stop.segments]
        before, offset = places.pop()
        path = segment_path(self._folders.segments, stop.start)
        damage = Damage(before, offset, note, tuple(places))
        return DamagedLogError(self._node, path, stop.position, stop.start + stop.position, reason, damage)

    def _end(self, segments: list[Segment]) -> Before:
        if segments and segments[-1].last is not None:
            return Before.after(segments[-1].last)
        return self._base.before

    # --- changing -------------------------------------------------------------------------------------------
    def _write_again(self, segments: list[Segment], begin: int) -> None:
        """Write the last turn's bytes once more, durably.

        Its fsync may have failed and ended the process. The page cache then still holds bytes that the disk
        never got, but considers them clean, and no later fsync would write them (P15).
        """
        if self._state.clean_stop:
            return
        for segment in segments:
            end = segment.end_offset + len(segment.filler)
            if begin >= end:
                continue
            with closing(self._open(segment.start)) as file:
                for position in range(max(begin, segment.start) - segment.start, end - segment.start, _PIECE):
                    piece = file.pread(min(_PIECE, end - segment.start - position), position)
                    file.pwritev([piece], position)
                file.fdatasync()

    def _settle(self, start: int, scan: SegmentScan, turn: int) -> int:
        """Make the end of the log durable, followed by zeros. Returns the last flush turn."""
        look_at = self._segment_size
        if self._state.clean_stop:
            look_at = min(look_at, scan.end + _TAIL_CHECK)
        with self._reading(start) as file:
            dirty_end = last_nonzero(file, scan.end, look_at)
        with closing(self._open(start)) as file:
            if dirty_end > scan.end:
                self._truncated = dirty_end - scan.end
                _log.warning(
                    "torn tail cut path=%s position=%d bytes=%d", file.path, scan.end, self._truncated
                )
            elif self._state.clean_stop:
                return turn
            # Entries of a killed process may be only in the page cache. Make them durable before the mark
            # that says so.
            zero_tail(file, scan.end, dirty_end)
            self._mark(file, turn + 1, start + scan.end)
            return turn + 1

    def _settle_filler(self, segments: list[Segment], turn: int) -> int:
        """Open the last segment with entries for appends: a filler with nothing after it is not part of the
        log.
        """
        if not segments:
            return turn
        tail = segments[-1]
        if tail.offsets is None:
            tail.offsets = read_index(self._files, self._folders.indexes, tail.start).offsets
        if not tail.filler:
            return turn
        tail.filler = b""
        with closing(self._open(tail.start)) as file:
            position = tail.end_offset - tail.start
            # Write the mark first. The latest one may cover the filler as durable, so its absence would count
            # as damage.
            self._mark(file, turn + 1, tail.end_offset)
            zero_tail(file, position, position + HEADER_SIZE)
        return turn + 1

    def _mark(self, file: File, turn: int, offset: int) -> None:
        """Store a mark: everything before `offset` is durable, and nothing after it was begun."""
        mark = encode_mark(FlushMark(turn, offset, offset))
        file.pwritev([mark], mark_position(turn, self._segment_size))
        file.fdatasync()

    def _finish_cut(self, starts: list[int]) -> list[int]:
        """Repeat a truncation that a crash interrupted. Its intent is durable, its completion is not."""
        cut = self._state.cut_offset
        start = segment_start(cut, self._segment_size)
        for later in reversed([other for other in starts if other > start]):
            self._files.unlink(segment_path(self._folders.segments, later))
        self._files.sync_directory(self._folders.segments)
        starts = [other for other in starts if other <= start]
        if start in starts:
            with closing(self._open(start)) as file:
                zero_tail(file, cut - start, self._segment_size)
        for other in [start, *starts]:
            path = index_path(self._folders.indexes, other)
            if other >= start and self._files.exists(path):
                self._files.unlink(path)
            if other >= start:
                remove_digests(self._files, self._folders.digests, other)
        return starts

    # --- small things ---------------------------------------------------------------------------------------
    def _open(self, start: int, *, writable: bool = True) -> File:
        return self._files.open(segment_path(self._folders.segments, start), writable=writable)

    @contextmanager
    def _reading(self, start: int) -> Iterator[File]:
        """Open a segment for reading. An unreadable one is damage. Raises: DamagedLogError."""
        path = segment_path(self._folders.segments, start)
        file = self._files.open(path, writable=False)
        try:
            yield file
        except OSError as error:
            raise DamagedLogError(
                self._node, path, 0, start, f"it cannot be read: {error.strerror}"
            ) from None
        finally:
            file.close()

    def _log_result(self, segments: list[Segment], begin: float) -> None:
        end = self._end(segments)
        _log.info(
            "log recovered first=%d last=%d term=%d scanned_bytes=%d truncated_bytes=%d seconds=%.2f",
            self._base.first_index, end.index, end.term, self._scanned, self._truncated,
            time.monotonic() - begin,
        )  # fmt: skip
