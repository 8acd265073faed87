"""In-memory disk in simulated time: the FileSystem under the real storage code.

A call takes effect at once for the calling process, and gets a place in simulated time after the earlier
calls: `busy_until` advances by a drawn latency. The calls whose time has come determine what the disk holds.
A power cut keeps any part, block by block, of what was written by then and not synced; later calls have not
happened. So a turn of the flusher can be cut between, and inside, any two of its calls.

Each file has three versions: `current` (as the running process sees it), `written` (page cache, by simulated
time), `durable` (the platter, by simulated time).
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ledgermq.raft.disk.files import Buffer, DiskUse, LockedError
from ledgermq.raft.disk.page_writer import PAGE
from tests.power_cut import FolderMoves, Keep, Write, blocks, kept_names, kept_writes, put, relocate

SEGMENT_FOLDER = "commitlog"
NO_SEGMENT = -1
ROOMY = 1 << 40  # capacity of a disk that is not full


class SimulationError(AssertionError):
    """The code under test did something forbidden."""


class FailedSync(Enum):
    """Kernel behaviour for the pages of a failed fsync. It marks them clean in any case."""

    DROP = "drop"  # dropped from the page cache
    KEEP = "keep"  # readable until the power goes


@dataclass(slots=True, eq=False)
class Inode:
    """Bytes of one file. Invariant: durable + clean + pending = written."""

    current: bytearray = field(default_factory=bytearray)
    written: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)
    clean: list[Write] = field(default_factory=list)  # pages that a failed sync left readable
    bad: list[tuple[int, int]] = field(default_factory=list)  # unreadable byte ranges
    segment: int = NO_SEGMENT  # physical start, if it is a log segment

    def flip(self, position: int, mask: int) -> None:
        """Damage a byte at rest."""
        for version in (self.current, self.written, self.durable):
            if position < len(version):
                version[position] ^= mask


_NO_WRITE = Write(0, b"")
Name = tuple[Path, Inode | None]  # a file appears under a name, or (None) disappears


@dataclass(slots=True)
class _Call:
    """One call with its place in time."""

    time: int
    kind: str  # write | sync | failed_sync | names | sync_names
    inode: Inode | None = None
    write: Write = _NO_WRITE
    names: tuple[Name, ...] = ()
    folder: Path | None = None
    how: FailedSync = FailedSync.DROP


class SimFileSystem:
    """Disk of one node. `clock` returns simulated time in microseconds."""

    def __init__(self, rng: random.Random, clock: Callable[[], int]) -> None:
        self.rng = rng
        self.clock = clock
        self.block = rng.choice((512, 4096))
        self.sync_delay_us = (100, 3000)
        self.capacity = ROOMY
        self.cold_share = 0.0  # share of reads that miss the page cache
        self.watches_written = False  # the log image follows `written`, not `durable`
        self.fail_sync: FailedSync | None = None  # set: the next sync fails
        self.fail_write = 0  # an errno: the next write fails
        self.misdirect = 0  # the next write of at least this size to a segment goes elsewhere
        self.on_damage: Callable[[], None] = lambda: None
        self.on_segment_change: Callable[[int, int], None] = lambda segment, position: None
        self.on_segment_gone: Callable[[int], None] = lambda segment: None
        # An error was reported for this file: it must not be used again (P15).
        self.failed: Inode | None = None
        self.busy_until = 0
        self.calls = 0
        self.names: dict[Path, Inode] = {}
        self.written_names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.directories: dict[Path, None] = {}
        self._moves = FolderMoves()
        self._calls: deque[_Call] = deque()
        self._locked: dict[Path, None] = {}

    # --- FileSystem -----------------------------------------------------------------------------------------
    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> SimFile:
        inode = self.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            inode = Inode()
            self.rename_all(((path, inode),))
        return SimFile(self, path, inode, writable)

    def exists(self, path: Path) -> bool:
        return path in self.names or path in self.directories

    def list_directory(self, path: Path) -> list[str]:
        files = [name.name for name in self.names if name.parent == path]
        return sorted([*files, *(name.name for name in self.directories if name.parent == path)])

    def make_directory(self, path: Path) -> None:
        for folder in (path, *path.parents):
            self.directories[folder] = None

    def rename(self, old: Path, new: Path) -> None:
        if old in self.directories:
            self._rename_directory(old, new)
        else:
            self.rename_all(((old, None), (new, self.names[old])))

    def unlink(self, path: Path) -> None:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self.rename_all(((path, None),))

    def sync_directory(self, path: Path) -> None:
        self.sync_call(path, _Call(0, "sync_names", folder=path))

    def disk_use(self, path: Path) -> DiskUse:
        return DiskUse(self.capacity, self.available)

    def lock(self, path: Path) -> SimLock:
        if path in self._locked:
            raise LockedError(errno.EAGAIN, "locked by process 4711", str(path))
        self._locked[path] = None
        return SimLock(self._locked, path)

    # --- calls ----------------------------------------------------------------------------------------------
    @property
    def available(self) -> int:
        """Return the free bytes."""
        return ROOMY if self.capacity == ROOMY else max(0, self.capacity - self.used)

    @property
    def used(self) -> int:
        """Return the bytes used by files."""
        return sum(len(inode.current) for inode in self.names.values())

    def write(self, path: Path, inode: Inode, write: Write) -> None:
        """Perform one write, or fail as planned. Raises: OSError."""
        offset, data, _ = write
        self._must_work(path, inode)
        self._spend(1, 30)
        if self.fail_write and _is_vital(path, inode):
            code, self.fail_write, self.failed = self.fail_write, 0, inode
            raise OSError(code, os.strerror(code), str(path))
        growth = offset + len(data) - len(inode.current)
        if growth > 0 and growth > self.available:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self.misdirect and inode.segment != NO_SEGMENT and offset > 0:
            self.misdirect = 0
            self._misdirected(inode, data, offset)
            return
        if inode.bad:  # the drive remaps a bad sector when it is written
            inode.bad = [(a, b) for a, b in inode.bad if b <= offset or offset + len(data) <= a]
        put(inode.current, offset, data)
        self._calls.append(_Call(self.busy_until, "write", inode, write))

    def _misdirected(self, inode: Inode, data: bytes, offset: int) -> None:
        """Put the bytes at another place without an error (the page cache is assumed to be dropped)."""
        self.on_damage()
        wrong = self.rng.randrange(0, offset, self.block) if offset >= self.block else 0
        kept = bytes(inode.durable[offset : offset + len(data)]).ljust(len(data), b"\0")
        for place, what in ((offset, kept), (wrong, data)):
            put(inode.current, place, what)
            self._calls.append(_Call(self.busy_until, "write", inode, Write(place, what)))

    def sync_call(self, path: Path, call: _Call) -> None:
        """Sync a file or folder, or fail as planned. Raises: OSError."""
        self._must_work(path, call.inode)
        self._spend(*self.sync_delay_us)
        call.time = self.busy_until
        if self.fail_sync is not None and _is_vital(path, call.inode):
            call.kind, call.how, self.fail_sync, self.failed = "failed_sync", self.fail_sync, None, call.inode
            self._calls.append(call)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        self._calls.append(call)

    def rename_all(self, names: tuple[Name, ...]) -> None:
        """Change names in one step."""
        self._spend(1, 30)
        self.calls += 1
        _apply_names(self.names, names)
        self._calls.append(_Call(self.busy_until, "names", names=names))

    def _rename_directory(self, old: Path, new: Path) -> None:
        """Rename a folder. Only rejoin does that, after a process ended, and the next one sees it at once."""
        self.finish()
        for version in (self.names, self.written_names, self.durable_names):
            relocate(version, old, new)
        relocate(self.directories, old, new)
        self._moves.add(old, new)

    def _must_work(self, path: Path, inode: Inode | None) -> None:
        self.calls += 1
        if self.failed is not None and self.failed is inode:
            raise SimulationError(f"P15: {path} is written or flushed after the disk reported an error")

    def _spend(self, lowest: int, highest: int) -> None:
        begin = max(self.busy_until, self.clock())
        self.busy_until = begin + lowest + int(self.rng.random() * (highest - lowest))

    # --- time -----------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Complete all pending calls."""
        self._advance(self.busy_until)

    def advance(self) -> None:
        """Bring `written` and `durable` up to now."""
        if self._calls and self._calls[0].time <= (now := self.clock()):
            self._advance(now)

    def _advance(self, now: int) -> None:
        calls = self._calls
        while calls and calls[0].time <= now:
            call = calls.popleft()
            inode = call.inode
            if call.kind == "write":
                assert inode is not None
                self._write_back(inode, call.write)
            elif call.kind == "sync":
                assert inode is not None
                self._make_durable(inode, inode.pending)
                inode.pending.clear()
            elif call.kind == "failed_sync":
                assert inode is not None
                self._lose(inode, call.how)
            elif call.kind == "names":
                self._note_segments(call.names)
                _apply_names(self.written_names, call.names)
            else:
                self._sync_names(call.folder)

    def _write_back(self, inode: Inode, write: Write) -> None:
        put(inode.written, write.offset, write.data)
        inode.pending.append(write)
        if self.watches_written and inode.segment != NO_SEGMENT:
            self.on_segment_change(inode.segment, write.offset)

    def _make_durable(self, inode: Inode, writes: list[Write]) -> None:
        for offset, data, _ in writes:
            put(inode.durable, offset, data)
            if inode.segment != NO_SEGMENT and not self.watches_written:
                self.on_segment_change(inode.segment, offset)

    def _lose(self, inode: Inode, how: FailedSync) -> None:
        """Fail a sync: some blocks reach the platter, the rest is marked clean and never will.

        Direct writes are still on their way; where pages are kept, the drive is assumed to have lost them
        too.
        """
        self._make_durable(
            inode, [piece for piece in blocks(inode.pending, self.block) if self.rng.random() < 0.5]
        )
        if how is FailedSync.KEEP:
            inode.clean.extend(inode.pending)
            inode.pending.clear()
            return
        inode.pending = [write for write in inode.pending if write.is_direct]
        inode.written = bytearray(inode.durable)
        for offset, data, _ in inode.pending:
            put(inode.written, offset, data)

    def _note_segments(self, names: tuple[Name, ...]) -> None:
        for path, inode in names:
            if path.parent.name != SEGMENT_FOLDER or not path.name.isdecimal():
                continue
            if inode is None:
                self.on_segment_gone(int(path.name))
            else:
                inode.segment = int(path.name)
                self.on_segment_change(inode.segment, 0)

    def _sync_names(self, folder: Path | None) -> None:
        for name in [name for name in self.durable_names if name.parent == folder]:
            del self.durable_names[name]
        for name, inode in self.written_names.items():
            if name.parent == folder:
                self.durable_names[name] = inode
        if folder is not None:
            self._moves.sync(folder)

    # --- crashes --------------------------------------------------------------------------------------------
    def crash(self, keep: Keep | None) -> None:
        """End the process now. `keep` None: only the process; else the power fails too."""
        self.advance()
        if self._calls and self._calls[0].kind == "write" and self.rng.random() < 0.5:
            call = self._calls[0]  # a write in progress
            assert call.inode is not None
            offset, data, is_direct = call.write
            part = data[: self.rng.randrange(len(data) + 1) // self.block * self.block]
            self._write_back(call.inode, Write(offset, part, is_direct))
        self._calls.clear()
        self._locked.clear()
        self.failed = None
        self.busy_until = self.clock()
        if keep is not None:
            self._lose_power(keep)
        for inode in self._inodes(self.names, self.written_names):
            inode.current = bytearray(inode.written)
        self.names = dict(self.written_names)

    def _lose_power(self, keep: Keep) -> None:
        names = kept_names(self.written_names, self.durable_names, keep, self.rng)
        for new, old in self._moves.taken_back(keep, self.rng):
            relocate(names, new, old)
            relocate(self.directories, new, old)
        self._moves = FolderMoves()
        self.written_names, self.durable_names = names, dict(names)
        for inode in self._inodes(names):
            if inode.pending or inode.clean:
                self._make_durable(inode, kept_writes(inode.pending, self.block, keep, self.rng))
                inode.pending.clear()
                inode.clean.clear()
                inode.written = bytearray(inode.durable)
            if inode.segment != NO_SEGMENT:
                self.on_segment_change(inode.segment, 0)

    def _inodes(self, *versions: dict[Path, Inode]) -> list[Inode]:
        """Return each inode once, in the order of their names."""
        found: dict[int, Inode] = {}
        for version in versions:
            for path in sorted(version):
                found.setdefault(id(version[path]), version[path])
        return list(found.values())

    def wipe(self) -> None:
        """Become a new, empty disk."""
        for version in (self.names, self.written_names, self.durable_names, self.directories):
            version.clear()
        self._calls.clear()
        self._moves = FolderMoves()
        self.on_segment_gone(NO_SEGMENT)

    def copy(self) -> dict[Path, bytes]:
        """Return the platter's contents, as a backup."""
        return {path: bytes(inode.durable) for path, inode in self.durable_names.items()}

    def restore(self, backup: dict[Path, bytes]) -> None:
        """Hold exactly a backup."""
        self.wipe()
        for path, data in backup.items():
            self.make_directory(path.parent)
            inode = Inode(bytearray(data), bytearray(data), bytearray(data))
            self._note_segments(((path, inode),))
            self.names[path] = self.written_names[path] = self.durable_names[path] = inode


def _is_vital(path: Path, inode: Inode | None) -> bool:
    """Return whether a failed flush of the file must end the node: hard state or log segment."""
    return inode is not None and (path.name == "hardstate" or path.parent.name == SEGMENT_FOLDER)


def _apply_names(target: dict[Path, Inode], names: tuple[Name, ...]) -> None:
    for path, inode in names:
        if inode is None:
            target.pop(path, None)
        else:
            target[path] = inode


class SimFile:
    """Open file."""

    __slots__ = ("_files", "_inode", "_path", "_writable")

    def __init__(self, files: SimFileSystem, path: Path, inode: Inode, writable: bool) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._writable = writable

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        return len(self._inode.current)

    def pread(self, size: int, offset: int) -> bytes:
        for begin, end in self._inode.bad:
            if begin < offset + size and offset < end:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path))
        return bytes(self._inode.current[offset : offset + size])

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        files = self._files
        if files.cold_share and files.rng.random() < files.cold_share:
            return None
        return self.pread(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        assert self._writable
        self._files.write(self._path, self._inode, Write(offset, b"".join(buffers)))

    def write_zeros(self, start: int, end: int) -> None:
        self.pwritev([bytes(end - start)], start)

    def write_past_cache(self, data: memoryview, offset: int) -> None:
        assert offset % PAGE == len(data) % PAGE == 0
        self._files.write(self._path, self._inode, Write(offset, bytes(data), is_direct=True))

    def fdatasync(self) -> None:
        self._files.sync_call(self._path, _Call(0, "sync", self._inode))

    def close(self) -> None:
        pass


class SimLock:
    """Held lock."""

    def __init__(self, locked: dict[Path, None], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.pop(self._path, None)
