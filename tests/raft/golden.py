"""Generator of the golden data folder `tests/fixtures/golden-v1`: run once per format version.

`python -m tests.raft.golden` writes it again. If a test fails afterwards, the format has changed; a new
format needs a new version and a new folder beside this one.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from ledgermq.proto.entry import HEADER_SIZE, EntryKind
from ledgermq.proto.record import SectionKind, encode_command, encode_record, encode_section, seal_section
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.folder.storage import StorageConfig, create_data_folder, open_storage
from ledgermq.raft.types import HardState, LogIndex, NodeId, Term

FOLDER = Path(__file__).parent.parent / "fixtures" / "golden-v1"
SEGMENT = 8192
ENTRIES = 40


def golden_config(folder: Path) -> StorageConfig:
    """Return the settings that the folder was created with."""
    return StorageConfig(
        data_dir=folder,
        cluster_id="golden",
        group="g0",
        node_id=NodeId("n1"),
        segment_size=SEGMENT,
        read_threads=1,
    )


def payload(index: int) -> tuple[EntryKind, bytes, int, int]:
    """Return (kind, payload, section count, term) of an entry."""
    term = 1 if index <= 15 else 3
    if index in (1, 16):
        return EntryKind.NOOP, b"", 0, term
    if index == 2:
        command = encode_section(SectionKind.COMMANDS, [encode_command(1, 1, b"create topic orders")], 1)
        seal_section(command, base_queue_offset=-1, entry_distance=HEADER_SIZE)
        return EntryKind.RECORDS, bytes(command), 1, term
    body = f"message {index} ".encode() * (index % 7 + 1)
    record = encode_record(
        b"\x0a\x04TagA",
        b"\x0a\x06orders" + body,
        section_distance=64,
        body_offset_in_rest=8,
        body_size=len(body),
        message_id=index.to_bytes(16, "big"),
        born_timestamp=1_700_000_000_000 + index,
        tag_hash=11,
        key_hashes=[index, -index],
    )
    section = encode_section(SectionKind.RECORDS, [record], 1, topic_id=1, queue_id=index % 4, producer_id=5)
    seal_section(section, base_queue_offset=index // 4, entry_distance=HEADER_SIZE)
    return EntryKind.RECORDS, bytes(section), 1, term


async def write(folder: Path) -> None:
    """Fill an empty folder through the storage itself, and stop cleanly."""
    files = RealFileSystem()
    create_data_folder(golden_config(folder), files)
    storage = open_storage(golden_config(folder), files)
    done = asyncio.Event()
    storage.start(
        asyncio.get_running_loop().call_soon_threadsafe,
        on_durable=lambda seq: done.set() if seq == ENTRIES else None,
        on_failed=lambda error: done.set(),
        on_disk_full=lambda full: None,
    )
    for index in range(1, ENTRIES + 1):
        kind, data, sections, term = payload(index)
        storage.log.stage_entry(
            kind, [data], section_count=sections, index=LogIndex(index), term=Term(term),
            timestamp=1_700_000_000_000 + index,
        )  # fmt: skip
        storage.log.persist(index, HardState(Term(term), NodeId("n1"), LogIndex(index - 1)))
    await done.wait()
    await asyncio.to_thread(storage.close)


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    asyncio.run(write(FOLDER))
    (FOLDER / "lock").unlink()
