"""Lasting part of a simulated node, from life to life: its disk, its clock, its checkpoint, and its promises.

A start opens the data folder with the real recovery code. A crash takes the disk as it is at that moment.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.core.machine import RaftCore
from ledgermq.raft.core.reign import Replication
from ledgermq.raft.errors import DamagedLogError, DataFolderError, DiskFullError
from ledgermq.raft.folder.opening import check_state_fits, open_node_storage, storage_config
from ledgermq.raft.folder.reset_install import ResetPlan
from ledgermq.raft.folder.storage import Machine, RaftStorage, StorageConfig, create_data_folder, open_storage
from ledgermq.raft.types import LogIndex, NodeId
from tests.power_cut import Keep

from . import retention
from .atlas import POWER_LOST
from .calls import Port
from .clock import SimClock
from .disk_image import DiskImage
from .life import Life
from .loop import SimLoop
from .parts import Parts
from .repairs import can_repair, note_repaired, repair
from .resets import SimTransfer
from .retention import Saved

if TYPE_CHECKING:
    from .world import World


class SimMachine(Machine):
    """Boot ids change with a power cut. Random numbers come from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.power_on()

    def power_on(self) -> None:
        """Boot."""
        self._boot_id = str(uuid.UUID(int=self._rng.getrandbits(128)))

    def boot_id(self) -> str:
        return self._boot_id

    def random_bits(self, count: int) -> int:
        return self._rng.getrandbits(count)


SCRUB_AGAIN_US = 2_000_000
#: Minimum size of flushes that bypass the page cache, chosen by the seed: the default, all, the larger ones.
DIRECT_WRITES = (128 << 10, 1, 4 << 10)


class SimNode:
    """One member. `life` is None while it is down or starting."""

    def __init__(self, world: World, name: str, parts: Parts) -> None:
        self.world = world
        self.name = name
        self.parts = parts
        self.rng = random.Random(world.rng.getrandbits(64))
        self.flush = world.flush
        self.flush_interval_us = 500_000
        self.clock = SimClock(lambda: world.now)
        self.machine = SimMachine(random.Random(world.rng.getrandbits(64)))
        self.files = parts.file_system_class(random.Random(world.rng.getrandbits(64)), lambda: world.now)
        self.files.watches_written = not self.is_sync
        self.config = self._config(rejoin=False)
        self.image = DiskImage(self.files, self.config.data_dir, self.config.segment_size)
        # Checksums by index of entries that it acknowledged on disks it has lost since.
        self.ghosts: list[dict[int, int]] = []
        self.life_number = 0  # incremented on every start and stop: events of an earlier life are void
        self.life: Life | None = None
        self.starting = False
        self.last_core: RaftCore | None = None
        self.incarnation = 0  # of the folder when last opened
        self.loop: SimLoop | None = None  # of the process that runs or starts
        self.port: Port | None = None
        self.saved = Saved()  # the checkpoint as last read from the disk
        self.installed: ResetPlan | None = None  # the reset that this start completed
        self.is_repaired = False  # by this start
        self.promised = (0, 0)  # (index, checksum) that recovery must find again; index 0: none
        self.wants_rejoin = False
        self.wants_new_disk = False
        self.is_refetched = False  # its log has started empty since it was last hurt
        self.paused_until = 0
        self.inbox: list[tuple[str, object]] = []  # input that arrived during a pause
        self.tick_us = 10_000

    @property
    def is_sync(self) -> bool:
        return self.flush == "sync"

    @property
    def up(self) -> bool:
        return self.life is not None

    @property
    def core(self) -> RaftCore:
        """Core of this life, or of the last one."""
        if self.life is not None:
            return self.life.core
        assert self.last_core is not None
        return self.last_core

    def _config(self, *, rejoin: bool) -> RaftConfig:
        world = self.world
        return RaftConfig(
            cluster_id="sim",
            group="g0",
            node_id=NodeId(self.name),
            members=tuple(Member(NodeId(name), f"{name}:1") for name in world.names),
            data_dir=world.data_dir(self.name),
            rejoin=rejoin,
            segment_size=world.segment_size,
            flush=self.flush,
            replication=Replication.ASYNC_MASTER if world.master else Replication.QUORUM,
            master=world.master,
            heartbeat_ms=70,
            election_ms_min=400,
            election_ms_max=800,
            **world.limits,
        )

    def settings(self) -> StorageConfig:
        """Return the storage settings of this node."""
        return replace(
            storage_config(self.config),
            cache_bytes=self.world.cache_bytes,
            direct_write_bytes=DIRECT_WRITES[self.world.seed % len(DIRECT_WRITES)],
            read_threads=0,
            machine=self.machine,
        )

    # --- life -----------------------------------------------------------------------------------------------
    def make_member(self, incarnations: dict[NodeId, int]) -> None:
        """Give it the folder of a voter in a broker group that has run before."""
        storage = open_storage(self.settings(), self.files)
        storage.learn_members(incarnations)
        storage.close(clean=False)
        self.files.finish()

    def make_folder(self) -> int:
        """Create a voter's empty folder. Returns its incarnation."""
        create_data_folder(self.settings(), self.files, is_voter=True)
        storage = open_storage(self.settings(), self.files)
        storage.close(clean=False)
        self.files.finish()
        self.incarnation = storage.incarnation
        return storage.incarnation

    def start(self) -> None:
        """Open the data folder. The node is up once the disk is done."""
        self.life_number += 1
        self.starting = True
        self.loop, self.port, self.installed, self.is_repaired = self._make_loop(), Port(), None, False
        self.config = self._config(rejoin=self.wants_rejoin and len(self.world.names) > 1)
        held = self.image.known() if self.wants_rejoin else {}
        try:
            storage = self._open()
        except (DataFolderError, DamagedLogError) as error:
            if can_repair(self, error):
                repair(self, self._open, self._opened)
            else:
                self.world.on_start_refused(self, error)
            return
        except (OSError, DiskFullError) as error:
            self.world.on_start_failed(self, error)
            return
        self._opened(storage, held)

    def _make_loop(self) -> SimLoop:
        """Make a loop on which every handle is a separate event."""
        world = self.world

        def later(delay_us: int, handle: asyncio.Handle) -> None:
            world.later(delay_us, self.name, "loop", handle)

        return SimLoop(
            now=lambda: world.now,
            soon=partial(later, 0),
            later=later,
            when_disk_is_done=lambda handle: later(max(0, self.files.busy_until - world.now), handle),
            on_defect=world.note_defect,
        )

    def _opened(self, storage: RaftStorage, held: dict[int, int]) -> None:
        self.is_refetched = self.is_refetched or storage.log.last_index < storage.log.first_index
        if storage.incarnation != self.incarnation:
            self._begin_again(held, storage.incarnation)
        delay = max(0, self.files.busy_until - self.world.now)
        self.world.later(delay, self.name, "started", storage)

    def _open(self) -> RaftStorage:
        install = SimTransfer(self).install
        storage = open_node_storage(self.config, self.files, install, settings=self.settings())
        self.saved = Saved()  # a broker reads its own when it starts
        if self.world.broker is None:
            self.saved = retention.load(self.files, self.config.data_dir)
        check_state_fits(self.config, LogIndex(self.saved.applied), storage.log)
        self.config = replace(self.config, reign=storage.identity.reign)
        return storage

    def _begin_again(self, held: dict[int, int], incarnation: int) -> None:
        """Record that the folder is new: what the old one held was acknowledged, and is gone."""
        if held:
            self.ghosts.append(held)
        if self.incarnation:
            self.world.rejoins += 1
            self.world.invariants.on_lost_disk(self)
            self.world.promises.on_lost_disk(self)
        self.incarnation = incarnation
        self.promised = (0, 0)

    def on_started(self, storage: RaftStorage) -> None:
        """Handle the end of recovery."""
        self.starting = False
        broker = None
        if self.world.broker is not None:
            broker = self.world.broker.open(self, storage)
            if broker is None:
                return
        self.wants_rejoin = False
        self.life = Life(self, storage, broker)
        self.world.horizon.on_life(self)
        if self.is_repaired:
            note_repaired(self)
        self.world.invariants.on_restart(self)
        self.world.promises.on_restart(self)
        if self.installed is not None:
            self.world.horizon.on_installed(self)
        self.life.begin()
        self.life.pump()

    def crash(self, keep: Keep | None) -> None:
        """End the process; with `keep` the power fails too."""
        self.life_number += 1
        self.inbox.clear()
        self.paused_until = 0
        self.starting = False
        if self.life is not None:
            self._remember(self.life, power=keep is not None)
        self.end_tasks()
        self.life = None
        self.port = None
        self.world.calls.process_ended(self)
        self.world.horizon.on_life(self)
        self.files.crash(keep)
        if keep is not None:
            self.machine.power_on()

    def end_tasks(self) -> None:
        """End all tasks of this process."""
        if self.life is not None and self.life.broker is not None:
            self.life.broker.end()
        if self.loop is not None:
            self.loop.kill()

    def _remember(self, life: Life, *, power: bool) -> None:
        core = self.last_core = life.core
        stable = int(core.stable_index)
        if not self.is_sync and (power or self.files.failed is not None):
            stable = min(stable, life.disk.synced_index)  # a failed sync may drop the rest too (D7)
        chain_of = self.world.invariants.chain_of
        if self.name in self.world.atlas.hurt:  # its acknowledgements on a bad disk may still be in flight
            indexes = range(int(core.first_index), int(core.stable_index) + 1)
            self.ghosts.append({i: chain for i in indexes if (chain := chain_of(core, i)) is not None})
        known = chain_of(core, stable)
        self.promised = (stable, known) if known is not None else (0, 0)

    def lose_disk(self) -> None:
        """Record that the disk's contents count as acknowledged and are about to be lost."""
        self.ghosts.append(self.image.known())

    def promoted(self) -> None:
        """Handle that it votes (again)."""
        if self.is_refetched or self.world.atlas.hurt.get(self.name) == POWER_LOST:
            self.world.atlas.recovered(self.name)
        elif self.name in self.world.atlas.hurt:
            self.world.later(SCRUB_AGAIN_US, "", "scrub", self.name)
        self.world.faults.on_promoted(self)

    def has_durable(self, index: int, chain: int) -> bool:
        """Return whether this node's disk holds that entry, or held it before it was lost."""
        if index <= self.image.base or self.image.crc(index) == chain:
            return True
        if any(ghost.get(index) == chain for ghost in self.ghosts):
            return True
        if self.name not in self.world.atlas.hurt or self.life is None:
            return False
        # A drive that lies: the node was told that the entry is durable.
        core = self.life.core
        return index <= core.stable_index and self.world.invariants.chain_of(core, index) == chain
