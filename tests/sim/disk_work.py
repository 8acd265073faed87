"""Work of the storage threads in one life: flusher turns, syncs of the asynchronous modes, background work.

Each runs on the simulated disk at once. Its report is an event at the time when the disk is done. After an
error the disk is not used any more (P15).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ledgermq.raft.errors import StorageError
from ledgermq.raft.log.segment import TRAILER_SIZE
from ledgermq.raft.log.segment_keeper import SPARE_SPACE
from ledgermq.raft.log.writer import Append

if TYPE_CHECKING:
    from .life import Life

MS = 1000
FLOOR_INTERVAL_US = 1000 * MS
FULL_RETRY_US = 500 * MS


class DiskWork:
    """Drives the stepped flusher and the segment keeper of one life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._turn_under_way = False
        self._syncing = False
        self._background_due = False
        self._floor_stored = life.world.now
        self.broken = False
        self.synced_index = int(life.log.last_index)  # async: what survives a power cut for sure

    def begin(self) -> None:
        """Start the periodic work."""
        if not self._life.node.is_sync:
            self._life.later(self._life.node.flush_interval_us, "sync")
        self.background_soon()

    def on_flushed(self, seq: int) -> None:
        """Handle the completion of a turn."""
        self._turn_under_way = False
        self._life.flusher.report(seq)
        self._life.membership.note_durable(seq)
        if self._life.node.is_sync and self._life.world.now - self._floor_stored >= FLOOR_INTERVAL_US:
            self._floor_stored = self._life.world.now
            self._use_disk(self._life.flusher.store_floor)
        elif self._life.node.flush == "async_notify" and not self._syncing:
            self._sync()
        self.begin_turn()

    def on_turn(self, _payload: None) -> None:
        self._turn_under_way = False
        self.begin_turn()

    def begin_turn(self) -> None:
        """Run the flusher's next turn. Its end is an event."""
        if self._turn_under_way or self.broken or not self._life.flusher.queue:
            return
        self._turn_under_way = True
        if self._must_wait_for_room():
            self._life.later(FULL_RETRY_US, "turn")
            return
        seq = self._use_disk(self._life.flusher.turn)
        if seq is not None:
            self._life.when_disk_is_done("flushed", seq)
            self._life.world.faults.on_turn(self._life.node, self._life.node.files.busy_until)
        self.background_soon()

    def _must_wait_for_room(self) -> bool:
        """Return whether a needed segment has no room. The real flusher then waits inside its turn."""
        files = self._life.node.files
        needed = self._life.node.config.segment_size + TRAILER_SIZE + SPARE_SPACE
        if files.available >= needed:
            return False
        return any(
            isinstance(action, Append) and not self._life.storage.has_segment(action.offset)
            for op in self._life.flusher.queue
            for action in op.actions
        )

    def _use_disk(self, work: Any) -> Any:
        """Run work of a storage thread. A failure is reported to the loop when its time has come."""
        try:
            return work()
        except (OSError, StorageError) as error:
            self.broken = True
            with suppress(OSError):
                self._life.storage.note_failure()
            self._life.when_disk_is_done("disk_failed", str(error))
            return None

    def on_sync(self, _payload: None) -> None:
        """Handle the end of the asynchronous modes' interval."""
        self._life.later(self._life.node.flush_interval_us, "sync")
        self._sync()

    def _sync(self) -> None:
        if self.broken or self._syncing:
            return
        self._syncing = True
        self._use_disk(lambda: self._life.flusher.sync(others_write=True))
        self._life.when_disk_is_done("synced", int(self._life.storage.statistics().flushed_index))

    def on_synced(self, index: int) -> None:
        self._syncing = False
        self.synced_index = index

    def background_soon(self) -> None:
        if not self._background_due and self._life.storage.has_background_work:
            self._background_due = True
            self._life.later(self._life.node.rng.randint(50, 5000), "background")

    def on_background(self, _payload: None) -> None:
        """Prepare segments, write index files, delete old segments."""
        self._background_due = False
        if self.broken:
            return
        self._use_disk(self._life.storage.run_background)
        if self._life.storage.has_background_work and not self.broken:
            self._background_due = True
            self._life.later(FULL_RETRY_US, "background")
