"""Care for the log of a running node: repairs, the scrubber, and answers to peers that repair their logs.

Owns: the life of the three.   Must not: decide anything that they decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ledgermq.proto.digest_file import SegmentDigests

from ..config import RaftConfig
from ..core.machine import RaftCore
from ..disk.files import FileSystem
from ..errors import DamagedLogError, StorageFailedError
from ..folder.storage import RaftStorage
from ..log.segment_keeper import LogFolders
from ..metrics import RaftMetrics
from ..types import LogIndex
from .refetch import RefetchService, RefetchSource
from .scrub_plan import ScrubPlan
from .scrubber import Scrubber
from .while_running import RangeRepair

#: How long a reader waits for a repair.
READ_WAIT_S: Final = 5.0


class LogCare:
    """Usage: `start()`, `await close()`. `on_repaired`: read again. `on_failed`: the node must stop."""

    def __init__(
        self,
        config: RaftConfig,
        files: FileSystem,
        storage: RaftStorage,
        core: RaftCore,
        metrics: RaftMetrics,
        refetch: RefetchService,
        *,
        on_repaired: Callable[[], None],
        on_failed: Callable[[str], None],
    ) -> None:
        def settled_index() -> LogIndex:
            """Return the last entry that is committed and locally durable."""
            return min(core.commit_index, core.stable_index)

        def group_id() -> int:
            return storage.identity.group_id

        log = storage.log
        self._core = core
        self.repair = RangeRepair(
            config, files, log, metrics, settled_index, group_id, on_repaired, on_failed
        )
        self._scrubber = Scrubber(
            config.node_id,
            ScrubPlan(config.scrub_bytes_per_second, config.scrub_interval_s),
            log,
            files,
            LogFolders(config.data_dir),
            self.repair,
            metrics,
            settled_index,
            lambda: storage.identity.incarnation,
        )
        refetch.source = RefetchSource(
            log, lambda: core.commit_index, lambda: core.leader_id, group_id, self.damage_for_peer
        )

    def start(self) -> None:
        """Start scrubbing."""
        self._scrubber.start()

    async def verify(self, progress: Callable[[int], None]) -> LogIndex:
        """Verify all that is durable (`Scrubber.verify`). Returns the last entry. Failed writes are fatal."""
        last = self._core.stable_index
        try:
            await self._scrubber.verify(last, progress)
        except StorageFailedError as error:
            self.repair.on_failed(str(error))
            raise
        return last

    async def digests(self, progress: Callable[[int], None], *, reread: bool = False) -> list[SegmentDigests]:
        """Return the block digests of the committed log (`Scrubber.digests`). Failed writes are fatal."""
        try:
            return await self._scrubber.digests(progress, reread=reread)
        except StorageFailedError as error:
            self.repair.on_failed(str(error))
            raise

    async def close(self) -> None:
        """Stop scrubbing and repairing."""
        await self._scrubber.stop()
        await self.repair.close()

    def damage_at_apply(self, error: DamagedLogError) -> bool:
        """Repair entries that cannot be applied. False: impossible, and the node fails."""
        return self.repair.report(error, "apply")

    async def damage_at_read(self, error: DamagedLogError) -> bool:
        """Repair what a reader found, and wait for it. False: impossible, or not soon enough."""
        try:
            async with asyncio.timeout(READ_WAIT_S):
                return await self.repair.repaired(error, "read")
        except TimeoutError:
            return False  # the repair continues, but the caller has waited long enough

    def damage_for_peer(self, error: DamagedLogError) -> None:
        """Repair damage found while reading for a peer. If that is impossible, the node fails."""
        self.repair.report(error, "peer")
