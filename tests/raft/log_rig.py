"""CommitLog on a simulated disk, driven step by step, beside a model of its expected contents."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ledgermq.proto.entry import EntryHeader, EntryKind
from ledgermq.raft.config import Member, RaftConfig
from ledgermq.raft.folder.storage import RaftStorage, StorageConfig, create_data_folder, open_storage
from ledgermq.raft.log.flusher import SteppedFlusher
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

from .simulated_disk import SimulatedDisk

SEGMENT = 4096
DATA = Path("/data/n1")


def storage_config(
    *, segment_size: int = SEGMENT, flush: str = "sync", cache_bytes: int = 4096
) -> StorageConfig:
    """Small segments, so that tests cross many of them."""
    return StorageConfig(
        data_dir=DATA,
        cluster_id="local",
        group="g0",
        node_id=NodeId("n1"),
        segment_size=segment_size,
        flush=flush,
        cache_bytes=cache_bytes,
        read_threads=1,
    )


def node_config(*members: str, **changes: Any) -> RaftConfig:
    """Settings of n1 on that folder, in a broker group with these members."""
    return RaftConfig(
        cluster_id="local", group="g0", node_id=NodeId("n1"), data_dir=DATA, segment_size=SEGMENT,
        members=tuple(Member(NodeId(name), f"{name}:1") for name in members), **changes,
    )  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """The model's view of an entry."""

    index: int
    term: int
    payload: bytes


class LogRig:
    """Opens (or creates) the data folder on `disk`. `entries` is the model, entry 1 first."""

    def __init__(
        self,
        disk: SimulatedDisk,
        *,
        flush: str = "sync",
        cache_bytes: int = 4096,
        segment_size: int = SEGMENT,
        learner_after_reboot: bool = False,
        direct_write_bytes: int = 0,
    ) -> None:
        self.disk = disk
        self.config = replace(
            storage_config(flush=flush, cache_bytes=cache_bytes, segment_size=segment_size),
            learner_after_reboot=learner_after_reboot,
            direct_write_bytes=direct_write_bytes,
        )
        if not disk.exists(DATA / "identity"):
            create_data_folder(self.config, disk)
        self.storage: RaftStorage = open_storage(self.config, disk)
        self.log = self.storage.log
        self.durable_seq = 0
        self.seq = 0
        self.flusher: SteppedFlusher = self.storage.start_stepped(on_durable=self._durable)
        self.entries: list[Stored] = []
        self.dropped = 0  # entries at the start of the log that retention deleted

    def _durable(self, seq: int) -> None:
        assert seq > self.durable_seq
        self.durable_seq = seq

    def append(self, payload: bytes, term: int | None = None) -> EntryHeader:
        """Stage one entry, as a leader does."""
        term = max(term or 1, self.log.last_term)
        header = self.log.stage_entry(
            EntryKind.RECORDS,
            [payload[:10], payload[10:]],
            section_count=1,
            index=LogIndex(self.log.last_index + 1),
            term=Term(term),
            timestamp=self.log.last_timestamp + 1,
        )
        self.entries.append(Stored(header.index, term, payload))
        return header

    def append_random(self, rng: random.Random, term: int | None = None) -> EntryHeader:
        """Stage an entry of any allowed size."""
        size = rng.choice((0, rng.randint(0, 100), rng.randint(0, self.log.max_entry_size - 64)))
        return self.append(rng.randbytes(size), term)

    def truncate(self, index: int) -> None:
        """Cut off the entries >= `index`."""
        self.log.truncate_from(LogIndex(index))
        self.entries = [entry for entry in self.entries if entry.index < index]

    def persist(self, hard: HardState | None = None) -> int:
        """Queue what is staged."""
        self.seq += 1
        self.log.persist(self.seq, hard)
        return self.seq

    def flush(self) -> None:
        """Make everything durable and finish background work."""
        self.persist()
        while self.flusher.step():
            pass
        self.storage.run_background()

    def retained(self) -> list[Stored]:
        """Return the model of what the log still holds."""
        return [entry for entry in self.entries if entry.index >= self.log.first_index]

    def read_all(self, max_bytes: int = 1500) -> list[Stored]:
        """Read the whole log as apply does."""
        return asyncio.run(self._read_all(max_bytes))

    async def _read_all(self, max_bytes: int) -> list[Stored]:
        out: list[Stored] = []
        index = self.log.first_index
        while index <= self.log.last_index:
            for header, payload in await self.log.entries(index, self.log.last_index, max_bytes):
                out.append(Stored(header.index, header.term, bytes(payload)))
            index = LogIndex(out[-1].index + 1)
        return out

    def close(self, *, clean: bool = True) -> None:
        """Stop the storage in order."""
        self.storage.run_background()
        self.storage.close(clean=clean)


def reopen(disk: SimulatedDisk, before: LogRig) -> LogRig:
    """Reopen a folder with the same settings."""
    config = before.config
    return LogRig(
        disk,
        flush=config.flush,
        cache_bytes=config.cache_bytes,
        segment_size=config.segment_size,
        direct_write_bytes=config.direct_write_bytes,
    )
