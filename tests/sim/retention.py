"""State checkpoints and deletion of old segments in the simulation, by the broker's rules (D8, D12).

Does with events what `broker/checkpoint/schedule.py` and `broker/retention/keeper.py` do with clocks and
threads. A checkpoint is never ahead of this node's durable log. The leader proposes where the log begins once
its own checkpoint covers that. Every node unlinks segments below both its own checkpoint and the beginning in
it, at a limited rate. The broker's own policy decides which segments may go.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from ledgermq.broker.retention.policy import DeletionPace, Expiry, expired_before, oldest_before
from ledgermq.raft.disk.checked_file import read_record, write_record
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.types import LogIndex

if TYPE_CHECKING:
    from pathlib import Path

    from .life import Life

MS = 1000
_KIND: Final = "checkpoint"
_DURABLE_POLL_S: Final = 0.05


class Saved(NamedTuple):
    """A checkpoint. `state` includes everything up to `whole_from`; the log continues at `applied`."""

    applied: int = 0
    whole_from: int = 0  # above `applied` after a reset: until then the node is being rebuilt
    state: bytes = b""


def checkpoint_path(data: Path) -> Path:
    """Return the path of a node's checkpoint."""
    return data / "checkpoint"


def store(files: FileSystem, data: Path, saved: Saved) -> None:
    """Replace the checkpoint durably. Raises: OSError."""
    fields = {"applied": saved.applied, "whole_from": saved.whole_from, "state": saved.state.hex()}
    write_record(files, checkpoint_path(data), _KIND, 1, fields)


def load(files: FileSystem, data: Path) -> Saved:
    """Return the checkpoint; an empty one if there is none."""
    try:
        fields = read_record(files, checkpoint_path(data), _KIND, 1)
    except FileNotFoundError:
        return Saved()
    return Saved(fields["applied"], fields["whole_from"], bytes.fromhex(fields["state"]))


class Checkpoints:
    """Writes the state of one life periodically."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.saved = life.node.saved
        self.log_start = life.state.log_start if self.saved.applied else 1  # as stated in the checkpoint
        self._writing = asyncio.Lock()

    @property
    def floor(self) -> int:
        """Return the first entry that a restart may need."""
        return self.saved.applied + 1

    def begin(self) -> None:
        """Start writing periodically."""
        self._life.loop.create_task(self._run())

    async def _run(self) -> None:
        node = self._life.node
        while not self._life.core.is_silent:
            await asyncio.sleep(node.world.checkpoint_ms * node.rng.uniform(0.5, 1.5) / 1000)
            await self.write_now()

    async def write_now(self) -> int:
        """Write a checkpoint if that is possible and worth it. Returns the index of the newest one."""
        async with self._writing:
            await self._write()
        return self.saved.applied

    async def _write(self) -> None:
        life = self._life
        state = life.state
        if life.applied < life.whole_from or state.last_applied == self.saved.applied:
            return
        saved, log_start = Saved(state.last_applied, state.last_applied, state.capture()), state.log_start
        life.world.horizon.on_capture(life.node, saved.applied, saved.state)
        while int(life.storage.statistics().flushed_index) < saved.applied:  # noqa: ASYNC110 (no event signals it)
            await asyncio.sleep(_DURABLE_POLL_S)
        if life.disk.broken:
            return
        files, data = life.node.files, life.node.config.data_dir
        try:
            await asyncio.get_running_loop().run_in_executor(None, store, files, data, saved)
        except OSError:
            return  # a full disk: the log is kept
        self.saved, self.log_start = saved, log_start


class Retention:
    """One life's part in the deletion of old segments."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._pace = DeletionPace(life.world.delete_per_second)

    def begin(self) -> None:
        """Start checking periodically for segments to delete."""
        self._life.later(self._life.node.rng.randint(50, 500) * MS, "unlink")

    # --- the leader -----------------------------------------------------------------------------------------
    def decide(self, need: int, keep_ms: int) -> None:
        """Delete what is older than `keep_ms`, or (0) the oldest `need` bytes."""
        self._life.loop.create_task(self._decide(need, keep_ms))

    async def _decide(self, need: int, keep_ms: int) -> None:
        life = self._life
        if not life.is_ready:
            return
        segments, floor = list(life.log.segments()), life.applied + 1
        if keep_ms:
            first_kept = expired_before(segments, Expiry(life.log.last_timestamp, keep_ms, floor))
        else:
            first_kept = oldest_before(segments, need, floor)
        if first_kept is None or await life.checkpoints.write_now() < first_kept.first_index - 1:
            return
        if life.is_ready:
            command = life.state.log_start_command(first_kept.first_index, first_kept.start_offset)
            life.propose_payloads([command], urgent=True)

    def deletable_below(self) -> int:
        """Return the first entry that must stay on this node: by its checkpoint and the beginning in it."""
        return min(self._life.checkpoints.log_start, self._life.checkpoints.floor)

    # --- every node -----------------------------------------------------------------------------------------
    def on_unlink(self, _payload: None) -> None:
        """Delete segments below the replicated beginning and this node's checkpoint."""
        life = self._life
        self.begin()
        below = self.deletable_below()
        if life.core.is_silent or life.disk.broken or below <= life.log.first_index or life.log.deleting:
            return
        ready = [segment for segment in life.log.segments()[:-1] if segment.last_index < below]
        count = self._pace.take(len(ready), life.world.now / 1e6)
        if count:
            self._delete_before(LogIndex(ready[count - 1].last_index + 1))

    def _delete_before(self, index: LogIndex) -> None:
        """Do what RaftNode.delete_segments_before does."""
        life = self._life
        limit = life.resets.real.limit_deletion(min(index, LogIndex(life.applied)))
        gone = life.log.delete_segments_before(limit)
        if gone:
            life.world.segments_deleted += len(gone)
            life.core.compacted(life.log.first_index)
            life.world.horizon.on_deleted(life.node)
            life.pump()
            life.disk.background_soon()
