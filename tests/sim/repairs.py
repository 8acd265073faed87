"""Repair of a damaged log at a node's start, in the simulation: the real code over simulated calls.

Owns: the check that the platter is intact again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ledgermq.raft.errors import DamagedLogError, DataFolderError, DiskFullError
from ledgermq.raft.repair.at_start import StartRepair
from ledgermq.raft.repair.refetch import RefetchService, RefetchSource
from ledgermq.raft.types import LogIndex

from . import retention
from .atlas import OLD_DISK
from .parts import NoMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledgermq.raft.folder.storage import RaftStorage

    from .life import Life
    from .node import SimNode


def serve_refetch(life: Life) -> None:
    """Answer peers that repair their logs."""
    node = life.node
    assert node.port is not None
    service = RefetchService(node.config)
    service.source = RefetchSource(
        life.log,
        lambda: life.core.commit_index,
        lambda: life.core.leader_id,
        lambda: life.membership.group_id,
        lambda error: life.fail(str(error)),
    )
    node.port.serve_also(service.handler())


def can_repair(node: SimNode, error: Exception) -> bool:
    """Return whether a node would repair this rather than refuse to start."""
    damaged = isinstance(error, DamagedLogError) and error.damage is not None
    return damaged and node.world.repairs_logs and bool(node.config.peers) and not node.config.rejoin


def repair(
    node: SimNode,
    open_folder: Callable[[], RaftStorage],
    opened: Callable[[RaftStorage, dict[int, int]], None],
) -> None:
    """Repair for as long as it takes, then continue the start."""
    assert node.loop is not None
    held = node.image.known()  # entries given up because no peer has them count as acknowledged
    node.world.faults.tell(f"{node.name} repairs its log")

    def applied() -> LogIndex:
        return LogIndex(retention.load(node.files, node.config.data_dir).applied)

    metrics: Any = NoMetrics()
    start = StartRepair(node.config, node.files, open_folder, applied, metrics)

    async def run() -> None:
        try:
            async with asyncio.timeout(node.rng.uniform(1.0, 8.0)):
                storage = await start.open()
        except TimeoutError as error:
            node.world.on_start_refused(node, error)  # a person does what its log line says: --rejoin
        except (DataFolderError, DamagedLogError) as error:
            node.world.on_start_refused(node, error)
        except (OSError, DiskFullError) as error:
            node.world.on_start_failed(node, error)
        except Exception as error:  # noqa: BLE001 (a real node would end with a traceback)
            node.world.note_defect(error)
        else:
            node.world.repairs += 1
            node.is_repaired = True
            opened(storage, held)

    node.loop.create_task(run())


def note_repaired(node: SimNode) -> None:
    """Let a repaired voter count as sound again if the platter agrees: nothing excuses it from here on."""
    core, atlas, invariants = node.core, node.world.atlas, node.world.invariants
    index = core.stable_index
    sound = index <= node.image.base or node.image.crc(index) == invariants.chain_of(core, index)
    if not (core.is_voter and sound and index >= node.promised[0] and atlas.is_damaged(node.name)):
        return
    if atlas.hurt[node.name] == OLD_DISK:
        return  # an intact log does not make it the current one
    atlas.recovered(node.name)
    promised, chain = node.promised
    mine = invariants.chain_of(core, promised)
    if mine != chain and mine == invariants.committed.get(promised):
        node.promised = (0, 0)  # it was never committed; committed entries have replaced it
