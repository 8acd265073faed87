"""Golden data folder of format version 1: every later build must open, read and verify it, byte for byte."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest

from ledgermq.proto.entry import EntryKind, decode_header, verify_entry
from ledgermq.proto.record import decode_record, verify_section, walk_sections
from ledgermq.raft.disk.files import RealFileSystem
from ledgermq.raft.folder.storage import RaftStorage, open_storage
from ledgermq.raft.types import LogIndex

from ..golden import ENTRIES, FOLDER, SEGMENT, golden_config, payload, write

#: sha256 of the log bytes of each segment, recorded when the folder was created.
LOG_BYTES = {
    0: "156121c0e412e9713471d4ea003fa65ca4bd677c553a3a99bfacde2bc0a3b4ac",
    8192: "08a2c5f52516cb10acbd5a5c279b174c43a672459016d61779bfbac0704e9ea2",
}
#: Entry 3 as stored on disk.
ENTRY_3 = (
    "4c4d51017495c2a6080100000100010003000000000000000100000000000000e0000000000000000368e5cf8b010000"
    "40b4cbcac80000000000000000000000010103000100000000000000000000000100000088000000b645965c40000000"
    "050000000000000000000000000000000000000000000000000000000000000088000000400000000000020006000000"
    "300000005e00000028000000000000000b000000000000000368e5cf8b01000000000000000000000000000000000003"
    "0300000000000000fdffffffffffffff0a04546167410a066f72646572736d6573736167652033206d65737361676520"
    "33206d6573736167652033206d6573736167652033200000"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Copy the folder: the fixture itself is never opened for writing."""
    return Path(shutil.copytree(FOLDER, tmp_path / "golden"))


def test_log_bytes_are_those_that_were_written_down() -> None:
    found = {
        int(path.name): hashlib.sha256(path.read_bytes()[:SEGMENT]).hexdigest()
        for path in sorted((FOLDER / "commitlog").iterdir())
    }
    assert {start: digest for start, digest in found.items() if start in LOG_BYTES} == LOG_BYTES


def test_known_bytes_of_one_entry_and_its_chain() -> None:
    raw = (FOLDER / "commitlog" / f"{0:020d}").read_bytes()[:SEGMENT]
    header = decode_header(raw)
    while header.index < 3:
        before, header = header, decode_header(raw, header.end)
        assert header.prev_crc == before.crc
    assert raw[header.physical_offset : header.end].hex() == ENTRY_3


def read_all(storage: RaftStorage) -> None:
    async def run() -> None:
        index = storage.log.first_index
        while index <= storage.log.last_index:
            for header, data in await storage.log.entries(index, storage.log.last_index, 4096):
                kind, expected, sections, term = payload(header.index)
                assert (header.kind, bytes(data), header.section_count, header.term) == (
                    kind,
                    expected,
                    sections,
                    term,
                )
                if kind is EntryKind.RECORDS:
                    for position, section in walk_sections(data, sections):
                        verify_section(data, position, section)
                        if header.index > 2:
                            assert decode_record(data, position + 64).message_id == header.index.to_bytes(
                                16, "big"
                            )
                index = LogIndex(header.index + 1)

    asyncio.run(run())
    assert storage.log.last_index == ENTRIES


def test_folder_opens_after_its_clean_stop_and_serves_every_entry(folder: Path) -> None:
    storage = open_storage(golden_config(folder), RealFileSystem())
    assert storage.recovered.clean_stop
    assert (storage.hard_state.term, storage.hard_state.voted_for) == (3, "n1")
    assert storage.log.term_runs() == [(1, 1), (16, 3)]
    read_all(storage)


def test_folder_opens_with_a_full_scan_when_its_index_files_are_gone(folder: Path) -> None:
    shutil.rmtree(folder / "entryindex")
    storage = open_storage(golden_config(folder), RealFileSystem())
    assert storage.recovered.scanned_bytes == storage.log.end_offset
    read_all(storage)


def test_this_build_writes_the_same_log_bytes(tmp_path: Path) -> None:
    asyncio.run(write(tmp_path / "new"))
    for path in sorted((FOLDER / "commitlog").iterdir()):
        new = (tmp_path / "new" / "commitlog" / path.name).read_bytes()[:SEGMENT]
        assert new == path.read_bytes()[:SEGMENT]
    raw = (FOLDER / "commitlog" / f"{0:020d}").read_bytes()
    verify_entry(raw, 0, decode_header(raw))
