"""Opening a data folder: its identity, refusals, rejoin, and the threads on a real disk."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgermq.proto.entry import EntryKind
from ledgermq.raft.core.reign import Claim, Reign
from ledgermq.raft.disk.checked_file import write_record
from ledgermq.raft.disk.files import Buffer, RealFile, RealFileSystem
from ledgermq.raft.errors import (
    DamagedFolderError,
    DamagedLogError,
    ForeignFolderError,
    LockedFolderError,
    NewerFolderError,
    StorageError,
    StorageFailedError,
)
from ledgermq.raft.folder.quarantine import rejoin
from ledgermq.raft.folder.storage import (
    RaftStorage,
    StorageConfig,
    create_data_folder,
    is_initialized,
    open_storage,
)
from ledgermq.raft.log.identity import Recovery, read_identity, write_identity
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term
from tests.volatile_disk import VolatileFileSystem

FILES = RealFileSystem()
REIGN = Reign(master=NodeId("n1"))


def config_for(folder: Path, flush: str = "sync") -> StorageConfig:
    return StorageConfig(
        data_dir=folder / "n1",
        cluster_id="local",
        group="g0",
        node_id=NodeId("n1"),
        segment_size=1 << 16,
        flush=flush,
        cache_bytes=1 << 16,
        flush_interval_ms=20,
    )


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    """Settings of a new folder."""
    config = config_for(tmp_path)
    create_data_folder(config, FILES)
    return config


class Session:
    """One run of a storage on a real event loop."""

    def __init__(self, storage: RaftStorage) -> None:
        self.storage = storage
        self.done: asyncio.Queue[int] = asyncio.Queue()
        self.failed: asyncio.Future[StorageError] = asyncio.get_running_loop().create_future()
        self.seq = 0
        storage.start(
            asyncio.get_running_loop().call_soon_threadsafe,
            on_durable=self.done.put_nowait,
            on_failed=self.failed.set_result,
            on_disk_full=lambda full: None,
        )

    async def append(self, payload: bytes, count: int = 1, hard: HardState | None = None) -> None:
        """Stage entries, persist them, wait until they are durable."""
        log = self.storage.log
        for _ in range(count):
            log.stage_entry(
                EntryKind.RECORDS, [payload], section_count=1, index=LogIndex(log.last_index + 1),
                term=Term(1),
                timestamp=log.last_timestamp,
            )  # fmt: skip
        self.seq += 1
        log.persist(self.seq, hard)
        while await self.done.get() < self.seq:
            pass

    async def payloads(self) -> list[bytes]:
        """Read the whole log."""
        log, out = self.storage.log, []
        index = log.first_index
        while index <= log.last_index:
            entries = await log.entries(index, log.last_index, 1 << 14)
            out += [bytes(payload) for _, payload in entries]
            index = LogIndex(entries[-1][0].index + 1)
        return out


@pytest.mark.parametrize("flush", ["sync", "async_timed", "async_notify"])
@pytest.mark.parametrize("clean", [True, False])
def test_entries_and_vote_survive_a_restart_on_a_real_disk(tmp_path: Path, flush: str, clean: bool) -> None:
    config = config_for(tmp_path, flush)
    create_data_folder(config, FILES)
    vote = HardState(Term(3), NodeId("n2"), LogIndex(0))

    async def first() -> list[bytes]:
        session = Session(open_storage(config, FILES))
        await session.append(b"a" * 900, 200, vote)
        await session.append(b"b" * 5000, 30)
        statistics = session.storage.statistics()
        assert statistics.written_bytes == 200 * 968 + 30 * 5064 + 64 * (session.storage.log.end_offset >> 16)
        payloads = await session.payloads()
        await asyncio.to_thread(session.storage.close, clean=clean)
        assert session.storage.statistics().flushed_index == 230
        return payloads

    async def second(expected: list[bytes]) -> None:
        storage = open_storage(config, FILES)
        assert storage.recovered.clean_stop is clean
        assert (storage.hard_state.term, storage.hard_state.voted_for) == (3, "n2")
        session = Session(storage)
        assert await session.payloads() == expected
        await session.append(b"c", 3)
        assert await session.payloads() == [*expected, b"c", b"c", b"c"]
        await asyncio.to_thread(storage.close)

    expected = asyncio.run(first())
    assert expected == [b"a" * 900] * 200 + [b"b" * 5000] * 30
    asyncio.run(second(expected))


class BrokenFile(RealFile):
    """A file whose fdatasync can be made to fail."""

    broken: threading.Event

    def fdatasync(self) -> None:
        if self.broken.is_set():
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        super().fdatasync()


class BrokenFileSystem(RealFileSystem):
    """A real file system that begins to fail."""

    def __init__(self) -> None:
        self.broken = threading.Event()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> RealFile:
        opened = super().open(path, create=create, writable=writable)
        file = BrokenFile(path, opened._fd)
        file.broken = self.broken
        return file


def test_failed_fsync_is_terminal_even_when_the_next_one_would_succeed(config: StorageConfig) -> None:
    """Rule P15: after the error nothing is ever reported as durable."""
    files = BrokenFileSystem()

    async def run() -> None:
        session = Session(open_storage(config, files))
        await session.append(b"good")
        files.broken.set()
        session.storage.log.stage_entry(
            EntryKind.RECORDS, [b"x"], section_count=1, index=LogIndex(2), term=Term(1), timestamp=0
        )
        session.storage.log.persist(2)
        error = await session.failed
        assert isinstance(error, StorageFailedError) and "Input/output error" in str(error)
        files.broken.clear()
        session.storage.log.persist(3)
        await asyncio.to_thread(session.storage.close)
        assert session.done.empty()

    asyncio.run(run())
    assert not open_storage(config, files).recovered.clean_stop


@pytest.mark.parametrize("lies", [False, True])
def test_volatile_disk_loses_exactly_what_was_not_synced(config: StorageConfig, lies: bool) -> None:
    async def run() -> None:
        storage = open_storage(config, VolatileFileSystem(ignore_fdatasync=lies))
        session = Session(storage)
        await session.append(b"acknowledged" * 100, 10)
        storage._lock.release()  # the process is killed here: memory is gone

    asyncio.run(run())
    after = open_storage(config, RealFileSystem())
    assert after.log.last_index == (0 if lies else 10)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"node_id": NodeId("n2")},
            "belongs to node n1 of broker group g0, as the file .*/identity says.*put back the one of n2"
            ".*--rejoin",
        ),
        ({"group": "g1"}, "belongs to node n1 of broker group g0"),
        ({"cluster_id": "other"}, "belongs to cluster local"),
        ({"segment_size": 1 << 17}, "segment_size = 65536"),
    ],
)
def test_folder_of_somebody_else_is_refused_and_left_alone(
    config: StorageConfig, change: dict[str, Any], words: str
) -> None:
    before = snapshot(config.data_dir)
    with pytest.raises(ForeignFolderError, match=words) as caught:
        open_storage(replace(config, **change), FILES)
    assert "nothing was changed" in str(caught.value)
    assert snapshot(config.data_dir) == before


def test_folder_that_another_process_uses_is_refused(config: StorageConfig) -> None:
    first = open_storage(config, FILES)
    with pytest.raises(LockedFolderError, match="locked by process"):
        open_storage(config, FILES)
    first.close()
    open_storage(config, FILES).close()


@pytest.mark.parametrize("name", ["identity", "manifest"])
def test_record_of_a_newer_version_is_refused(config: StorageConfig, name: str) -> None:
    path = config.data_dir / name
    known = {"identity": 4, "manifest": 2}[name]
    path.write_bytes(path.read_bytes().replace(f"LMQ {name} {known}".encode(), f"LMQ {name} 7".encode()))
    with pytest.raises(NewerFolderError, match=rf"version 7.*version {known}") as caught:
        open_storage(config, FILES)
    assert str(path) in str(caught.value)


def test_folder_that_was_only_half_made_is_made_again(config: StorageConfig) -> None:
    path = config.data_dir / "identity"
    good = path.read_bytes()
    assert is_initialized(config.data_dir, FILES, config.node_id)
    path.unlink()
    with pytest.raises(DamagedFolderError, match=r"^n7 will not start: .*identity is missing"):
        is_initialized(config.data_dir, FILES, "n7")
    path.write_bytes(good)
    open_storage(config, FILES).close()


def fields_of(path: Path) -> tuple[str, dict[str, Any]]:
    raw = path.read_bytes()
    assert raw[: len(raw) // 2] == raw[len(raw) // 2 :], "it stands twice"
    head, _, body = raw[: len(raw) // 2].partition(b"\n")
    return head.decode().rpartition(" ")[0], json.loads(body)


def test_the_identity_of_a_quorum_group_has_no_fields_of_a_master(config: StorageConfig) -> None:
    path = config.data_dir / "identity"
    recovery = Recovery(
        replaced_group_id=7, from_incarnation=9, term=2, last_index=1, last_crc=3, counted=True
    )
    write_identity(FILES, path, replace(read_identity(FILES, path, "n1"), recovery=recovery, group_id=8))
    head, fields = fields_of(path)
    assert head == "LMQ identity 4"
    assert fields.keys() == {
        "cluster_id", "group", "node_id", "incarnation", "segment_size", "feature_level", "members",
        "complete",
        "group_id", "recovery",
    }  # fmt: skip
    assert fields["recovery"].keys() == {
        "replaced_group_id", "from_incarnation", "term", "last_index", "last_crc", "counted"
    }  # fmt: skip
    assert read_identity(FILES, path, "n1").recovery == recovery


@pytest.mark.parametrize(
    "changes", [{"reign": REIGN}, {"reign": REIGN, "successor": REIGN.next(NodeId("n2"), 5, LogIndex(3))}]
)
def test_a_folder_that_knows_a_master_is_read_as_every_build_wrote_it(
    config: StorageConfig, changes: dict[str, Any]
) -> None:
    path = config.data_dir / "identity"
    recovery = Recovery(
        replaced_group_id=7, from_incarnation=9, term=2, last_index=1, last_crc=3, counted=True, promoted=True
    )
    identity = replace(read_identity(FILES, path, "n1"), recovery=recovery, **changes)
    write_identity(FILES, path, identity)
    head, fields = fields_of(path)
    assert head == "LMQ identity 4" and fields["recovery"]["promoted"]
    assert read_identity(FILES, path, "n1") == identity
    for version in (1, 2, 3):  # these stored a single copy
        write_record(FILES, path, "identity", version, fields)
        assert read_identity(FILES, path, "n1") == identity
    write_record(FILES, path, "identity", 5, fields, twice=True)
    with pytest.raises(NewerFolderError):
        read_identity(FILES, path, "n1")


def test_a_folder_that_was_told_of_a_promotion_remembers_it(config: StorageConfig) -> None:
    path = config.data_dir / "identity"
    write_identity(FILES, path, replace(read_identity(FILES, path, "n1"), reign=REIGN))
    claims = [Claim(group_id=9, reign=REIGN.next(NodeId(n), 5, LogIndex(3))) for n in ("n2", "n3")]
    storage = open_storage(replace(config, reign=REIGN), FILES)
    for claim in claims:
        storage.learn_claim(claim)
    again = replace(claims[0], group_id=11)
    storage.learn_claim(again)
    storage.close()
    assert read_identity(FILES, path, "n1").claims == (claims[1], again), "the last one of each node"


def test_rejoin_moves_everything_aside_and_keeps_the_vote(config: StorageConfig) -> None:

    async def run() -> int:
        session = Session(open_storage(config, FILES))
        await session.append(b"x" * 100, 5, HardState(Term(4), NodeId("n3"), LogIndex(0)))
        await asyncio.to_thread(session.storage.close)
        return session.storage.incarnation

    incarnation = asyncio.run(run())
    segment = (config.data_dir / "commitlog" / f"{0:020d}").read_bytes()
    moved = rejoin(config, FILES)
    assert moved == config.data_dir / "quarantine-1"
    assert (moved / "commitlog" / f"{0:020d}").read_bytes() == segment
    after = open_storage(config, FILES)
    assert after.log.last_index == 0 and after.incarnation != incarnation
    hard = after.hard_state
    assert (hard.term, hard.voted_for, hard.is_voter) == (4, "n3", False)
    after.close()
    assert rejoin(config, FILES) == config.data_dir / "quarantine-2"


def test_the_group_id_is_remembered_and_absent_in_records_that_do_not_know_it(config: StorageConfig) -> None:
    assert b"group_id" not in (config.data_dir / "identity").read_bytes()
    storage = open_storage(config, FILES)
    assert storage.identity.group_id == 0
    storage.learn_group_id((1 << 64) - 1)
    storage.learn_members({NodeId("n2"): 17})
    storage.close()
    after = open_storage(config, FILES)
    assert after.identity.group_id == (1 << 64) - 1
    assert after.identity.members == {"n1": after.incarnation, "n2": 17}
    after.close()
    rejoin(config, FILES)
    after = open_storage(config, FILES)
    assert after.identity.group_id == 0, "whoever rejoins takes it from its peers"
    after.close()


def test_real_file_survives_many_buffers_and_short_reads(tmp_path: Path) -> None:
    file = RealFileSystem().open(tmp_path / "f", create=True)
    parts: list[Buffer] = [bytes([number % 251]) * 3 for number in range(3000)]
    file.pwritev(parts, 5)
    assert file.pread(10_000, 5) == b"".join(parts)
    assert file.pread(4, 9003) == file.pread(2, 9003)
    assert file.pread_nowait(10, 9000) is None
    file.close()
    file.close()


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied"), IsADirectoryError(21, "Is a directory")]
)
def test_a_lock_that_cannot_be_taken_is_named_with_the_way_out(
    config: StorageConfig, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:

    def refuse(self: RealFileSystem, path: Path) -> None:
        raise error

    monkeypatch.setattr(RealFileSystem, "lock", refuse)
    with pytest.raises(
        DamagedFolderError, match=r"/lock cannot be locked .*rm -r .*/lock.*nothing was changed"
    ):
        open_storage(config, FILES)


def test_a_deleted_folder_of_segments_is_a_log_that_misses_all_of_them(config: StorageConfig) -> None:
    shutil.rmtree(config.data_dir / "commitlog")
    with pytest.raises(
        DamagedLogError, match=r"commitlog/0{20} .*the segment file is missing.*--rejoin"
    ) as caught:
        open_storage(config, FILES)
    assert caught.value.damage is not None, "the other members may have it"
