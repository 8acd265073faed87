"""Log writer: puts persist operations on stable storage, in order.

Synchronous; called by the flusher thread or a simulator.
Owns: the open segment's file for writing, the hard state file, the turn counter, the written and flushed
positions.
Must not: run threads or know the event loop.
Invariants: operations run in the given order. Hard state is stored before the log changes that came with it.
A segment is durable before the next one is written. A truncation is durable before anything is written at the
cut (D6).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ledgermq.proto.entry import Buffer

from ..disk.files import File, write_zeros
from ..disk.page_writer import PageWriter
from ..types import HardState, LogIndex, Term
from .hard_state import DurableState, HardStateFile
from .segment import MARK_BLOCK, FlushMark, encode_mark, mark_position, segment_start
from .segment_keeper import SegmentKeeper


@dataclass(slots=True)
class Append:
    """Bytes for one range of one segment.

    A filler consists of its header; its `end` is the end of the segment.
    """

    offset: int  # physical
    end: int  # physical offset where the log continues
    buffers: list[Buffer]
    size: int  # bytes in `buffers`
    last_index: LogIndex  # of the last entry in it; for a filler, of the entry before
    last_term: Term


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log at a physical offset."""

    offset: int  # physical; the log ends there afterwards
    index: LogIndex  # first index that is cut off
    prev_term: Term  # of index - 1


@dataclass(slots=True)
class PersistOp:
    """One unit of durability. `seq` increases from operation to operation."""

    # reported back once the operation is done
    seq: int
    hard: HardState | None = None  # stored before `actions` run; None: unchanged
    actions: list[Append | Truncate] = field(default_factory=list)  # log changes, in order

    @property
    def size(self) -> int:
        """Log bytes to write."""
        return sum(action.size for action in self.actions if isinstance(action, Append))


@dataclass(frozen=True, slots=True)
class WritePosition:
    """A position in the log."""

    offset: int  # physical, just past the entry `index`
    index: LogIndex  # last entry before it
    term: Term  # of that entry


class LogWriter:
    """`run` is for one thread. `sync` and `store_floor` may be called from a second one."""

    def __init__(
        self,
        keeper: SegmentKeeper,
        hard: HardStateFile,
        end: WritePosition,
        turn: int,
        segment_size: int,
        direct_write_bytes: int,
    ) -> None:
        self._keeper = keeper
        self._pages = PageWriter(direct_write_bytes)
        self._hard = hard
        self._segment_size = segment_size
        self._file: File | None = None
        self._start = -1
        self._turn = turn
        self.written = end  # end of what is in the file or the page cache
        self.flushed = end  # end of what is on stable storage; never after `written`
        self._gave_up_vote = False
        #: Highest index known to be committed; set by the event loop. It is stored with the floor. After a
        #: restart this node can then give committed entries to members with damaged logs, even before there
        #: is a leader.
        self.commit_index = hard.state.hard.commit_hint
        # Held for everything but plain writes: syncing, switching files, truncating, hard state.
        self._lock = threading.RLock()

    @property
    def state(self) -> DurableState:
        """The hard state as last stored."""
        return self._hard.state

    @property
    def unsynced_bytes(self) -> int:
        return self.written.offset - self.flushed.offset

    def run(self, ops: Sequence[PersistOp], *, sync: bool) -> None:
        """Execute `ops`. With `sync`, everything is durable on return.

        Without it, the log bytes are in the page cache or on their way to the disk, so a killed process loses
        none. Raises: OSError, DiskFullError. Both are terminal, because the contents of the disk are then
        unknown.
        """
        self._store_hard(ops)
        run: list[Append] = []
        for op in ops:
            for action in op.actions:
                if isinstance(action, Truncate):
                    self._write(run)
                    run = []
                    self._truncate(action)
                    continue
                if run and not self._continues(run[-1], action):
                    self._write(run)
                    run = []
                run.append(action)
        self._write(run)
        if sync:
            self.sync()

    def sync(self, *, others_write: bool = False) -> bool:
        """Make everything written durable. Returns whether there was anything to do. Raises: OSError.

        `others_write`: another thread keeps writing meanwhile. The disk may keep some of its bytes and lose
        part of this turn. The mark must then not claim that nothing follows the turn's end, because recovery
        would see damage.
        """
        with self._lock:
            written, flushed, file = self.written, self.flushed, self._file
            if written == flushed or file is None:
                return False
            turn = self._turn + 1
            end = self._start + self._segment_size if others_write else written.offset
            self._mark(file, FlushMark(turn, flushed.offset, end))
            file.fdatasync()
            self._turn = turn
            self.flushed = written
            self._forget_cut()
            return True

    def store_floor(self, *, clean_stop: bool = False) -> None:
        """Store the flushed index as the acked floor. `clean_stop` also records that the log ends there."""
        with self._lock:
            state = self._with_floor(self._hard.state)
            if clean_stop:
                if state.cut_turn and self._file is not None:
                    self._file.fdatasync()  # makes the mark durable that completes the cut
                state = replace(state, clean_stop=True, cut_turn=0, cut_offset=0)
            if state != self._hard.state:
                self._hard.write(state)

    def give_up_vote(self) -> None:
        """Store that this node must not vote before it has caught up, unless the hard state is what failed.

        For the async modes, after a failed write or sync: the kernel may have dropped acknowledged entries,
        and the boot id does not change (D7). Raises: OSError.
        """
        with self._lock:
            # an operation already started by the other thread may still carry the vote
            self._gave_up_vote = True
            state = self._hard.state
            if not self._hard.is_broken and state.hard.is_voter:
                self._hard.write(replace(state, hard=replace(state.hard, is_voter=False)))

    def close(self) -> None:
        """Close the files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._hard.close()

    def _store_hard(self, ops: Sequence[PersistOp]) -> None:
        """Store the last hard state in `ops`. Storing it early is harmless: nothing has been reported yet."""
        hard = next((op.hard for op in reversed(ops) if op.hard is not None), None)
        if hard is None:
            return
        with self._lock:
            known = max(hard.commit_hint, self._hard.state.hard.commit_hint)
            is_voter = hard.is_voter and not self._gave_up_vote
            hard = replace(hard, commit_hint=known, is_voter=is_voter)
            self._hard.write(self._with_floor(replace(self._hard.state, hard=hard)))

    def _with_floor(self, state: DurableState) -> DurableState:
        hint = max(state.hard.commit_hint, min(self.commit_index, self.flushed.index))
        return replace(
            state,
            floor_index=self.flushed.index,
            floor_term=self.flushed.term,
            hard=replace(state.hard, commit_hint=LogIndex(hint)),
        )

    def _continues(self, before: Append, after: Append) -> bool:
        """Return whether one write can take both: no filler rest and no segment end lies between them."""
        return after.offset == before.offset + before.size and after.offset % self._segment_size != 0

    def _write(self, run: list[Append]) -> None:
        """Write adjacent appends."""
        if not run:
            return
        first, last = run[0], run[-1]
        file = self._file_for(first.offset)
        buffers = first.buffers if len(run) == 1 else [part for action in run for part in action.buffers]
        self._pages.write(file, buffers, first.offset - self._start, self._segment_size)
        self.written = WritePosition(last.end, last.last_index, last.last_term)

    def _file_for(self, offset: int) -> File:
        """Return the file to write at `offset`. Finishes the previous segment first."""
        start = segment_start(offset, self._segment_size)
        if self._file is None or start != self._start:
            self.sync()  # the old segment must be durable before the new one holds anything
            opened = self._keeper.open_segment(start)
            with self._lock:
                self._use(opened, start)
        assert self._file is not None
        return self._file

    def _use(self, file: File | None, start: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._start = file, start
        self._pages.forget()

    def _forget_cut(self) -> None:
        """Clear the recorded cut: a mark that completes it is durable now."""
        if self._hard.state.cut_turn:
            self._hard.state = replace(self._hard.state, cut_turn=0, cut_offset=0)

    def _mark(self, file: File, mark: FlushMark) -> None:
        block = encode_mark(mark).ljust(MARK_BLOCK, b"\0")
        file.pwritev([block], mark_position(mark.turn, self._segment_size))

    def _truncate(self, cut: Truncate) -> None:
        """Cut the log durably.

        The hard state names the cut first, so recovery can finish it after a crash.
        """
        with self._lock:
            self.sync()
            state = self._with_floor(self._hard.state)
            if cut.index <= state.floor_index:
                state = replace(state, floor_index=LogIndex(cut.index - 1), floor_term=cut.prev_term)
            self._hard.write(replace(state, cut_turn=self._turn + 1, cut_offset=cut.offset))
            old_end = self.written.offset
            start = segment_start(cut.offset, self._segment_size)
            if start != self._start:
                self._use(self._keeper.open_segment(start), start)
            self._keeper.delete_after(start)
            assert self._file is not None
            self._pages.forget()
            zero_tail(self._file, cut.offset - start, min(old_end - start, self._segment_size))
            # Deliberately not synced: the mark spares a killed process a repeated cut. After a power cut the
            # cut is repeated.
            self._turn += 1
            self._mark(self._file, FlushMark(self._turn, cut.offset, cut.offset))
            position = WritePosition(cut.offset, LogIndex(cut.index - 1), cut.prev_term)
            self.written = self.flushed = position


def zero_tail(file: File, start: int, end: int) -> None:
    """Fill [start, end) of a file with zeros, durably."""
    if start < end:
        write_zeros(file, start, end)
    file.fdatasync()
