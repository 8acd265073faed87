"""Disk faults. Those that damage acknowledged data hit a minority of the nodes at a time (atlas.py).

A drive that damages its very last write and then loses power cannot be told from a torn write. So damage at
rest lies below the floor that the node stored. A node hit above it by a misdirected write counts, when it
stops, as one whose drive is gone.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import TYPE_CHECKING

from ledgermq.proto.errors import CorruptError
from ledgermq.raft.log.hard_state import DurableState, decode_state
from ledgermq.raft.log.segment_keeper import LogFolders

from .atlas import EMPTY_DISK, OLD_DISK
from .file_system import NO_SEGMENT, ROOMY, FailedSync, Inode, SimFileSystem

if TYPE_CHECKING:
    from .faults import Faults
    from .node import SimNode

MS = 1000
MIB = 1 << 20


class DiskFaults:
    """Each method is one fault. It does nothing if the fault would be unfair now."""

    def __init__(self, faults: Faults, rng: random.Random) -> None:
        self.faults = faults
        self.world = faults.world
        self.rng = rng
        self.backups: dict[str, dict[Path, bytes]] = {}  # disks that were replaced
        self.lie_index: dict[str, int] = {}  # where a misdirected write hit a node's log

    # --- errors that are reported ---------------------------------------------------------------------------
    def disk_error(self) -> None:
        """Let the next write or flush of the log or the hard state fail."""
        # In the asynchronous modes a failed flush may lose entries acknowledged earlier (D7).
        node = self.faults.any_running() if self.world.is_sync else self._victim()
        if node is None:
            return
        if self.rng.random() < 0.3:
            node.files.fail_write = errno.EIO
        else:
            node.files.fail_sync = self.rng.choice((FailedSync.DROP, FailedSync.KEEP))
        what = f"the next {'write' if node.files.fail_write else 'flush'} fails"
        if self.world.is_sync:
            self.faults.tell(f"{node.name}: {what}")
        else:
            self._hurt(node, what)

    def disk_full(self) -> None:
        """Fill the disk for a while."""
        node = self.world.nodes[self.rng.choice(self.world.names)]
        node.files.capacity = node.files.used + self.rng.choice((0, 10_000, MIB))
        self.faults.tell(f"the disk of {node.name} is full")
        self.world.later(self.rng.randint(200, 4000) * MS, "", "room", node.name)

    def room(self, name: str) -> None:
        """Free the disk again."""
        self.world.nodes[name].files.capacity = ROOMY

    def read_error(self) -> None:
        """Make a sector unreadable."""
        node = self._victim()
        found = self._place_at_rest(node) if node is not None else None
        if node is None or found is None:
            return
        inode, position = found
        inode.bad.append((position - position % 512, position - position % 512 + 512))
        self._hurt(node, f"byte {position} cannot be read")

    def slow_disk(self) -> None:
        """Change the duration of flushes from now on."""
        node = self.world.nodes[self.rng.choice(self.world.names)]
        node.files.sync_delay_us = self.rng.choice(
            ((50, 500), (100, 3000), (20_000, 300_000), (100_000, 1_500_000))
        )
        self.faults.tell(f"flushes of {node.name} take {node.files.sync_delay_us} us")

    # --- damage ---------------------------------------------------------------------------------------------
    def bit_flip(self) -> None:
        """Flip a bit at rest."""
        node = self._victim()
        found = self._place_at_rest(node) if node is not None else None
        if node is None or found is None:
            return
        inode, position = found
        inode.flip(position, 1 << self.rng.randrange(8))
        self._hurt(node, f"a bit at byte {position} flips")

    def misdirect(self) -> None:
        """Redirect the next write to the log to another place."""
        node = self._victim()
        if node is None:
            return

        def hit() -> None:
            self.lie_index[node.name] = int(node.core.last_index)

        node.files.on_damage = hit
        node.files.misdirect = 1
        self._hurt(node, "the next write to the log goes elsewhere")

    def wipe(self) -> None:
        """Put in a new, empty disk under an old name."""
        node = self._victim()
        if node is None:
            return
        self.faults.kill(node, power=True)
        self.replace(node)
        self._hurt(node, EMPTY_DISK)

    def old_disk(self) -> None:
        """Put a replaced disk back in."""
        fair = [node for node in self.faults.running() if node.name in self.backups and self._is_fair(node)]
        if fair:
            self.restore(self.rng.choice(fair))

    def restore(self, node: SimNode) -> None:
        """Put a node's former disk back in, if that is fair."""
        if not node.up or node.name not in self.backups or not self._is_fair(node):
            return
        self.faults.kill(node, power=True)
        backup = self.backups[node.name]
        self._lose(node)
        node.files.restore(backup)
        self._hurt(node, OLD_DISK)

    # --- repairs --------------------------------------------------------------------------------------------
    def scrub(self, name: str) -> None:
        """Notice the damage and restart the node.

        Either with --rejoin, or without its indexes, so that it reads its whole log and repairs it.
        """
        node = self.world.nodes[name]
        if name not in self.world.atlas.hurt or not node.up or not node.core.is_voter:
            return
        self.faults.tell(f"the damage of {name} is noticed")
        if self.world.repairs_logs and self.rng.random() < 0.5:
            self.faults.kill(node, power=False)
            indexes = LogFolders(node.config.data_dir).indexes
            for each in node.files.list_directory(indexes):
                node.files.unlink(indexes / each)
            # the damage may be in another file
            self.world.later(self.rng.randint(2000, 6000) * MS, "", "scrub", name)
            return
        node.wants_rejoin = True
        self.backups[name] = node.files.copy()
        self.faults.kill(node, power=False)

    def before_start(self, node: SimNode) -> None:
        """Treat a node that lied about its last writes as one whose drive is gone."""
        lie = self.lie_index.pop(node.name, 0)
        if (lie and durable_floor(node.files) < lie) or node.wants_new_disk:
            node.wants_new_disk = False
            self.replace(node)

    def replace(self, node: SimNode) -> None:
        """Put in an empty disk, as a person would."""
        self._lose(node)
        node.files.wipe()

    def stop(self) -> None:
        """Stop all faults."""
        for node in self.world.nodes.values():
            files = node.files
            files.capacity = ROOMY
            files.fail_sync, files.fail_write, files.misdirect, files.cold_share = None, 0, 0, 0.0
            files.sync_delay_us = (100, 2000)

    # --- inside ---------------------------------------------------------------------------------------------
    def _victim(self) -> SimNode | None:
        node = self.faults.any_running()
        return node if node is not None and self._is_fair(node) else None

    def _is_fair(self, node: SimNode) -> bool:
        return self.world.atlas.may_hurt(node.name, self._without_vote()) and node.core.is_voter

    def _without_vote(self) -> list[str]:
        """Return the nodes that never became voters: they count as having lost their vote."""
        cores = {
            n.name: n.life.core if n.life is not None else n.last_core for n in self.world.nodes.values()
        }
        return [name for name, core in cores.items() if core is None or not core.is_voter]

    def _hurt(self, node: SimNode, what: str) -> None:
        self.faults.tell(f"{node.name}: {what}")
        self.world.atlas.note(node.name, what)
        node.is_refetched = False
        self.world.later(self.rng.randint(500, 6000) * MS, "", "scrub", node.name)

    def _lose(self, node: SimNode) -> None:
        """Record that the disk is about to be given up."""
        node.files.advance()
        self.backups[node.name] = node.files.copy()
        node.lose_disk()

    def _place_at_rest(self, node: SimNode) -> tuple[Inode, int] | None:
        """Choose a byte that has long been durable: in the log below the stored floor, or in a small file."""
        files, rng = node.files, self.rng
        files.advance()
        if rng.random() < 0.2:
            name = rng.choice(("hardstate", "identity", "manifest"))
            inode = files.durable_names.get(node.config.data_dir / name)
            if inode is not None and inode.durable:
                return inode, rng.randrange(len(inode.durable))
        floor = durable_floor(files)
        if floor <= node.image.base or node.image.crc(floor) is None:
            return None
        offset = rng.randrange(node.image.begin(), node.image.end_of(floor))
        size = node.config.segment_size
        for path in sorted(files.durable_names):
            inode = files.durable_names[path]
            if inode.segment != NO_SEGMENT and inode.segment <= offset < inode.segment + size:
                return inode, offset - inode.segment
        return None


def durable_floor(files: SimFileSystem) -> int:
    """Return the acked floor in the hard state on the platter; 0 if there is none."""
    state = _durable_state(files)
    return 0 if state is None else int(state.floor_index)


def durable_vote(files: SimFileSystem) -> tuple[int, str | None]:
    """Return the term and the vote in the hard state on the platter."""
    state = _durable_state(files)
    return (0, None) if state is None else (state.hard.term, state.hard.voted_for)


def _durable_state(files: SimFileSystem) -> DurableState | None:
    files.advance()
    found: tuple[int, DurableState] | None = None
    for path, inode in files.durable_names.items():
        if path.name != "hardstate" or path.parent.name.startswith("quarantine"):
            continue
        for block in range(4):
            try:
                read = decode_state(bytes(inode.durable[block * 4096 : block * 4096 + 512]))
            except CorruptError:
                continue
            if found is None or read[0] > found[0]:
                found = read
    return None if found is None else found[1]
