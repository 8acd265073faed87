"""Repair at start: a node with a damaged log fetches what is missing before it takes part again.

Meanwhile there is no Raft core: the node neither votes nor acknowledges, and its peers see it as repairing.
If the log ends in damage and it is unknown what was acknowledged after it, the node durably gives up its
vote, cuts the log there, and catches up as a learner (P18, P19). It does so only if a majority goes on
without it: a peer must know of a leader. Otherwise it waits, and reports what for.

Owns: the order of these steps.   Must not: cut or overwrite anything itself (log/rewrite.py, recovery.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ledgermq.proto import raft_pb2 as pb

from ..config import RaftConfig
from ..damage import RepairNote
from ..disk.files import FileSystem
from ..disk.threads import in_thread
from ..errors import DamagedFolderError, DamagedLogError
from ..folder.quarantine import is_asked, is_under_way
from ..folder.storage import RaftStorage, lock_folder
from ..log.repair_note import note_path
from ..log.rewrite import LogRepair, StoppedLog
from ..log.segment_keeper import LogFolders
from ..metrics import RaftMetrics
from ..node_status import StartStep
from ..types import LogIndex
from .from_peers import RoundOutcome, RoundResult, run_round
from .refetch import RefetchClient, repair_text

logger = logging.getLogger(__name__)

PAUSE_S = 0.5  # between two rounds
#: Rounds in which peers with a leader offer nothing more, before the vote is given up. The commit index
#: may need that long to arrive.
PATIENCE = 4
REMIND_S = 30.0  # interval at which a waiting node logs it again


@dataclass
class StartRepair:
    """Use once: `storage = await StartRepair(…).open()`.

    `open_folder` opens the data folder (in a thread). `applied` returns the last entry in the state.
    """

    config: RaftConfig
    files: FileSystem
    open_folder: Callable[[], RaftStorage]
    applied: Callable[[], LogIndex]
    metrics: RaftMetrics
    step: StartStep = field(default_factory=StartStep)
    _said: tuple[str, float] = ("", -REMIND_S)  # what it waits for, and when that was logged
    _repaired: int = 0

    def __post_init__(self) -> None:
        config = self.config
        self._client = RefetchClient(config, 0)
        self._log = StoppedLog(config.node_id, self.files, LogFolders(config.data_dir), config.segment_size)

    async def open(self) -> RaftStorage:
        """Open the data folder, repairing its log for as long as that takes.

        Raises: DataFolderError subclasses; DamagedLogError if no peer can help: a node without peers, a
        folder that does not know its broker group id yet, or `rejoin` is set.
        """
        try:
            while True:
                try:
                    storage = await in_thread(self._open, undo=lambda opened: opened.close(clean=False))
                except DamagedLogError as error:
                    if error.damage is None or not self.config.peers or self.config.rejoin:
                        raise
                    await self._repair(error)
                else:
                    await in_thread(self._log.end)
                    if self._repaired:
                        logger.warning("log repaired node=%s bytes=%d", self.config.node_id, self._repaired)
                    return storage
        finally:
            await self._client.close()

    def _open(self) -> RaftStorage:
        data_dir, files = self.config.data_dir, self.files
        # The whole folder is given up, and the repair with it.
        given_up = self.config.rejoin or is_asked(data_dir, files) or is_under_way(data_dir, files)
        if files.exists(note_path(data_dir)) and not given_up:
            lock = lock_folder(self.config.node_id, self.config.data_dir, self.files)
            try:
                self._log.finish_rejoin()
            finally:
                lock.release()
        return self.open_folder()

    async def _repair(self, error: DamagedLogError) -> None:
        """Repair from where the log stops being valid to where it continues, or as far as it promised."""
        assert error.damage is not None
        logger.error(
            "log damaged node=%s path=%s position=%d offset=%d reason=%r; fetching it from the other "
            "members, without a "
            "vote until then", self.config.node_id, error.path, error.position, error.offset, error.reason,
        )  # fmt: skip
        self.metrics.counter("ledgermq_raft_damaged_ranges_total", "start").inc()
        self.metrics.gauge("ledgermq_raft_repairing").set(1)
        lock = lock_folder(self.config.node_id, self.config.data_dir, self.files)
        try:
            self._client.group_id = await asyncio.to_thread(self._log.group_id)
            if not self._client.group_id:
                raise error  # without an id, another cluster with the same names might answer
            repair, note = await in_thread(partial(self._log.begin, error.damage))
            await self._fetch(error, repair, note)
            self._repaired += repair.written_bytes
            self.metrics.counter("ledgermq_raft_repaired_ranges_total").inc()
        finally:
            lock.release()
            self.metrics.gauge("ledgermq_raft_repairing").set(0)

    async def _fetch(self, error: DamagedLogError, repair: LogRepair, note: RepairNote) -> None:
        told = pb.RepairProgress(
            from_offset=repair.offset, to_offset=0 if note.open_ended else note.must_reach
        )
        self.step.doing = partial(repair_text, told)
        rounds_without = 0
        while True:
            before = repair.next_index
            result = await run_round(
                self.config, self._client, repair, told,
                lambda repair: note.is_reached(repair.offset, repair.before.index),
            )  # fmt: skip
            if result.outcome is RoundOutcome.CONNECTED:
                # The log after the damage was not touched. Recovery judges it by itself.
                await in_thread(self._log.end)
                return
            if result.outcome is RoundOutcome.REACHED:
                return
            if result.is_deleted_everywhere(self.config, repair.next_index):
                raise _deleted(self.config, error, repair.next_index)
            rounds_without = 0 if repair.next_index > before else rounds_without + 1
            if rounds_without >= PATIENCE and await self._may_give_up_vote(result, repair):
                await in_thread(partial(self._log.give_up_vote, repair, note))
                logger.warning(
                    "vote given up until everything is here again node=%s cut_after=%d: it is not known what "
                    "this node acknowledged behind it", self.config.node_id, repair.before.index,
                )  # fmt: skip
                return
            told.waiting_for = result.waiting_for(repair.next_index)
            self._say_what_it_waits_for(error, told.waiting_for)
            await asyncio.sleep(PAUSE_S)

    async def _may_give_up_vote(self, result: RoundResult, repair: LogRepair) -> bool:
        """Return whether the others have a leader without this node, and nothing more that it lacks."""
        led = [offer for offer in result.offers if offer.leader_id and offer.leader_id != self.config.node_id]
        has_all = bool(led) and max(offer.commit_index for offer in led) < repair.next_index
        return has_all and repair.before.index >= await asyncio.to_thread(self.applied)

    def _say_what_it_waits_for(self, error: DamagedLogError, waiting_for: str) -> None:
        now = asyncio.get_running_loop().time()
        said, when = self._said
        if waiting_for != said or now - when >= REMIND_S:
            self._said = (waiting_for, now)
            logger.warning(
                "%s does not start yet: %s is damaged at byte %d (physical offset %d), and nothing was cut "
                "off. It waits for %s. Start the other members; if they are lost, or for a fresh copy of "
                "everything: ledgermq broker "
                "--rejoin", self.config.node_id, error.path, error.position, error.offset, waiting_for,
            )  # fmt: skip


def _deleted(config: RaftConfig, error: DamagedLogError, index: LogIndex) -> DamagedFolderError:
    return DamagedFolderError(
        f"{config.node_id} will not start: {error.path} is damaged at byte {error.position}, and every other "
        f"member has deleted entry {index}, which stood there (retention). Nothing was cut off. Fetch a "
        "fresh copy of everything: ledgermq broker --rejoin"
    )
