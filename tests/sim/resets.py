"""Resets in the simulation (D8): the real sender, receiver and installer.

Owns: the state machine's side of a reset, the stop and start of a node when a reset is decided, and the
replacements of clocks, gRPC and secrets for the modules under test.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ledgermq.raft.core.outputs import ResetOffered
from ledgermq.raft.disk.files import FileSystem
from ledgermq.raft.errors import RaftError, StateTransferError
from ledgermq.raft.folder import reset_install
from ledgermq.raft.folder.reset_install import ResetPlan
from ledgermq.raft.log import rewrite as log_repair
from ledgermq.raft.log.segment_keeper import LogFolders
from ledgermq.raft.repair import refetch
from ledgermq.raft.reset import receiver as reset_receiver
from ledgermq.raft.reset import sender as reset_sender
from ledgermq.raft.reset.decision import Resets
from ledgermq.raft.types import LogIndex, NodeId, Term

from . import retention
from .file_system import ROOMY
from .parts import Patch
from .retention import Saved

if TYPE_CHECKING:
    from .life import Life
    from .node import SimNode
    from .world import World

MS = 1000


def simulated_modules(world: World) -> tuple[Patch, ...]:
    """Return the replacements that the modules of resets and repairs need during a run of this world."""
    rng = world.rng
    idle, total = rng.choice(((60.0, 1800.0), (0.3, 1800.0), (1.0, 3.0)))
    head, chunk = rng.choice(((120.0, 30.0), (1.0, 0.5)))
    clock = SimpleNamespace(monotonic=lambda: world.now / 1e6)
    secrets = SimpleNamespace(randbits=rng.getrandbits)

    def decide(files: FileSystem, folders: LogFolders, plan: ResetPlan) -> None:
        node = world.node_of(folders.data)
        world.horizon.on_decided(node, plan)
        reset_install.decide(files, folders, plan)
        world.faults.on_reset(node, max(1, node.files.busy_until - world.now))

    def defect(text: str, *_: object) -> None:
        world.note_defect(sys.exception() or AssertionError(text))

    logger = SimpleNamespace(info=_silent, warning=_silent, error=_silent, exception=defect)
    return (
        (reset_sender, "time", clock),
        (reset_receiver, "time", clock),
        (reset_receiver, "GrpcChannel", world.calls.channel),
        (reset_receiver, "decide", decide),
        (reset_receiver, "logger", logger),
        (reset_receiver, "HEAD_TIMEOUT_S", head),
        (reset_receiver, "CHUNK_TIMEOUT_S", chunk),
        (refetch, "time", clock),
        (refetch, "GrpcChannel", world.calls.channel),
        (log_repair, "secrets", secrets),
        (reset_sender, "IDLE_SECONDS", idle),
        (reset_sender, "TOTAL_SECONDS", total),
    )


def _silent(*_: object) -> None:
    pass


@dataclass
class Outgoing:
    """A checkpoint being sent."""

    index: LogIndex
    data: bytes
    piece: int

    @property
    def size(self) -> int:
        return len(self.data)

    async def pieces(self) -> AsyncIterator[bytes]:
        for position in range(0, len(self.data), self.piece):
            yield self.data[position : position + self.piece]

    def close(self) -> None:
        pass


class SimTransfer:
    """Implements `ledgermq.raft.reset.state_transfer.StateTransfer` with the node's checkpoint."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    @property
    def counts_on_log_to(self) -> LogIndex:
        return LogIndex(0)

    @property
    def needs_entries_to(self) -> LogIndex:
        saved = self._node.saved
        return LogIndex(saved.whole_from if saved.whole_from > saved.applied else 0)

    async def open(self, first_index: LogIndex) -> Outgoing:
        life = self._node.life
        if life is None:
            raise StateTransferError("this node is still starting")
        applied = life.state.last_applied
        if await life.checkpoints.write_now() < applied:
            raise StateTransferError("the checkpoint to send could not be written")
        saved = life.checkpoints.saved
        known = life.node.parts.state_class()
        known.install(saved.state)
        if known.log_start < first_index:
            raise StateTransferError("the state still counts on entries that are deleted")
        return Outgoing(LogIndex(saved.applied), saved.state, life.world.piece_bytes)

    def install(self, staged: Path, plan: ResetPlan) -> None:
        """Replace the checkpoint by the received one."""
        node = self._node
        file = node.files.open(staged, writable=False)
        state = file.pread(file.size(), 0)
        file.close()
        node.world.horizon.on_install(node, plan, state)
        node.installed = plan
        node.promised = (0, 0)  # everything durable before is gone, by a durable decision
        retention.store(node.files, node.config.data_dir, Saved(plan.base_index, plan.state_index, state))


class _Driver:
    """A life carries out the core's output after every input, so nothing is ever left to settle."""

    def settle(self) -> None:
        pass


class SimResets:
    """Both sides of a reset in one life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        node = life.node
        assert node.port is not None
        driver: Any = _Driver()
        port: Any = node.port
        rights: Any = life.membership
        self.real = Resets(
            node.config, node.files, life.core, life.log, driver, port, rights, SimTransfer(node),
            hello=lambda _to: life.membership.own_hello(), on_decided=self._on_decided, fail=self._fail,
        )  # fmt: skip

    def offered(self, offer: ResetOffered) -> None:
        """Handle the leader's offer of its state."""
        life = self._life
        fetches = self.real.is_resetting(life.node.config.node_id)
        with life.loop.running():
            self.real.offered(offer)
        if not fetches and self.real.is_resetting(life.node.config.node_id):
            life.world.faults.on_reset(life.node, 100 * MS)

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Handle a new leader, or none."""
        with self._life.loop.running():
            self.real.leader_changed(leader, term)

    def _fail(self, reason: str) -> None:
        self._life.fail(reason, full=self._life.node.files.capacity != ROOMY)

    # --- the node starts again ------------------------------------------------------------------------------
    def _on_decided(self) -> None:
        self._life.later(self._life.node.rng.randint(0, 50) * MS, "reset_stop")

    def on_stop(self, _payload: None) -> None:
        """Close the node in order, or just end it."""
        life = self._life
        if life.core.fault is None and not life.disk.broken and life.node.rng.random() < 0.5:
            with suppress(OSError, RaftError):  # the process ends anyway
                life.storage.close(clean=True)
        life.disk.broken = True
        life.when_disk_is_done("reset_start")

    def on_start(self, _payload: None) -> None:
        """Open the folder in a new process."""
        node = self._life.node
        node.crash(None)
        node.world.start_node(node)
